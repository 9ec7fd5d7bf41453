// Tasks: how many calls of each wait, run, are done and failed; the calls of one, and retrying, cancelling, discarding.

import { topicPath, withQuery } from "../api.js";
import { h, alone, beside, closer, empty, facts, failure, fill, head, panel, refill, say, tag } from "../dom.js";
import { action, field, prose, question, refused, toast, trouble } from "../feedback.js";
import { ago, brief, count, exact, moment, plural, span } from "../format.js";
import { Grid, LoadedList } from "../grid.js";
import { tree } from "../json.js";
import { note, to } from "../router.js";

const STATES = { waiting: "", delayed: "", running: "info", retrying: "warn", done: "good", failed: "bad", discarded: "", cancelled: "warn", expired: "warn" };
const OPEN = ["waiting", "delayed", "running", "retrying"];
const PAGE = 50;

const taskPath = (task, rest = "") => `/tasks/${encodeURIComponent(task)}${rest}`;
const callPath = (task, id) => taskPath(task, `/calls/${encodeURIComponent(id)}`);

export function open(ctx) {
  return ctx.parts[0] ? new Calls(ctx, ctx.parts[0]) : all(ctx);
}

// -- all tasks

function all(ctx) {
  const sentence = h("span", { text: "Loading…" });
  const number = (name, width, least) => ({ label: name[0].toUpperCase() + name.slice(1), width, kind: "r", least, cell: (row) => (row[name] ? h("a", { href: to(["tasks", row.task], { state: name }), tabindex: "-1" }, name === "failed" ? tag(count(row[name]), "bad") : count(row[name])) : h("span", { class: "dim", text: "0" })) });
  const grid = new Grid({
    label: "Tasks",
    onOpen: (row) => (location.hash = to(["tasks", row.task])),
    none: empty("No tasks", prose("`@app.task` in a program makes them. They are known when a node or a worker runs the program.")),
    columns: [
      { label: "Task", width: "minmax(110px, 2.4fr)", cell: (row) => h("a", { href: to(["tasks", row.task]), tabindex: "-1", text: row.task }) },
      number("failed", "minmax(64px, 0.6fr)"),
      number("waiting", "minmax(72px, 0.7fr)"),
      number("running", "minmax(78px, 0.7fr)", 430),
      number("retrying", "minmax(78px, 0.7fr)", 620),
      number("delayed", "minmax(78px, 0.7fr)", 700),
      number("done", "minmax(60px, 0.8fr)", 340),
      number("cancelled", "minmax(88px, 0.7fr)", 820),
      { label: "Takes", width: "84px", kind: "r", least: 900, cell: ({ duration }) => (duration ? h("span", { title: `On average, of those that are done; the longest took ${span(duration.longestMs)}`, text: span(Math.round(duration.meanMs)) }) : "") },
      { label: "Workers", width: "minmax(80px, 0.7fr)", kind: "r", least: 760, cell: (row) => (row.workers ? count(row.workers) : tag("none", row.waiting ? "bad" : "")) },
    ],
  });
  grid.element.classList.add("fill");
  const place = trouble();
  const element = h("div", {}, head("Tasks", sentence), place.element, grid.element);
  const load = async () => {
    try {
      const { tasks } = await ctx.api.get("/tasks", { signal: ctx.signal });
      place.over();
      const total = (name) => tasks.reduce((sum, row) => sum + row[name], 0);
      const idle = tasks.filter((row) => row.waiting && !row.workers).length;
      say(sentence, `${plural(tasks.length, "task")}: ${count(total("waiting"))} waiting, ${count(total("running"))} running, ${count(total("failed"))} failed.${idle ? ` Nobody takes the calls of ${plural(idle, "task")}.` : ""} Results are kept for a day.`);
      tasks.sort((a, b) => b.failed - a.failed || (a.task < b.task ? -1 : 1));
      grid.setRows(tasks.length, (index) => tasks[index]);
    } catch (problem) {
      place.tell(problem);
    }
  };
  load();
  return Object.assign(new LoadedList(ctx), { element, grid, load });
}

// -- the calls of one

class Calls extends LoadedList {
  constructor(ctx, task) {
    super(ctx);
    this.task = task;
    this.info = null;
    this.rows = [];
    this.next = "";
    this.shown = ctx.parts[1] ?? null;
    this.why = "";
    this.sentence = h("span", { text: "Loading…" });
    this.state = h("select", { on: { change: () => this.choose() } }, ["", ...Object.keys(STATES)].map((name) => h("option", { value: name, text: name || "any" })));
    this.state.value = ctx.query.get("state") ?? "";
    this.acts = h("div", { class: "end" });
    this.more = h("button", { type: "button", hidden: true, text: "Load older ones", on: { click: () => this.load({ older: true }) } });
    this.grid = new Grid({
      label: "Calls",
      onOpen: (row) => this.show(row.id),
      none: empty("No calls", "Nothing here fits."),
      columns: [
        { label: "State", width: "100px", cell: (row) => stateTag(row) },
        { label: "Arguments", width: "minmax(100px, 2fr)", kind: "m", cell: (row) => brief(written(row), 160) },
        { label: "Result", width: "minmax(90px, 2fr)", kind: "m", cell: (row) => brief(became(row), 160) },
        { label: "Attempts", width: "84px", kind: "r", least: 680, cell: (row) => (row.attempts ? count(row.attempts) : "") },
        { label: "Took", width: "84px", kind: "r", least: 620, cell: (row) => (row.durationMs === undefined ? "" : span(row.durationMs)) },
        { label: "Call", width: "minmax(90px, 1.2fr)", kind: "m", least: 860, cell: (row) => row.id },
        { label: "Enqueued", width: "minmax(118px, 0.9fr)", kind: "r", least: 480, cell: (row) => (row.created ? h("span", { title: exact(row.created), text: ago(row.created, this.now) }) : "") },
      ],
    });
    this.grid.element.classList.add("fill");
    this.grid.isSelected = (_, row) => Boolean(row && row.id === this.shown);
    this.split = h("div", { class: "split" }, this.grid.element);
    const crumb = h("a", { class: "crumb", href: "#/tasks", text: "Tasks" });
    this.links = h("div", { class: "actions" });
    this.trouble = trouble();
    this.element = h("div", {}, head(task, this.sentence, this.links, crumb), this.trouble.element, h("div", { class: "bar" }, field("State", this.state), this.acts), this.split, this.more);
    this.load();
  }

  choose() {
    this.hide();
    note(["tasks", this.task], { state: this.state.value });
    this.load();
  }

  async load({ older = false } = {}) {
    const turn = (this.turn = {}); // what was asked before comes too late
    const options = { signal: this.ctx.signal };
    try {
      const query = { state: this.state.value, limit: older ? PAGE : Math.max(PAGE, Math.min(1000, this.rows.length)), cursor: older ? this.next : "" };
      const [{ tasks }, page] = await Promise.all([this.ctx.api.get("/tasks", options), this.ctx.api.get(withQuery(taskPath(this.task, "/calls"), query), options)]);
      if (this.turn !== turn) return;
      this.trouble.over();
      this.rows = older ? [...this.rows, ...page.calls] : page.calls;
      this.next = page.next ?? "";
      this.more.hidden = !this.next;
      await this.learn(tasks.find(({ task }) => task === this.task) ?? null);
      this.grid.setRows(this.rows.length, (index) => this.rows[index]);
      if (this.shown) await this.fetchCall();
    } catch (problem) {
      this.trouble.tell(problem);
    }
  }

  async learn(info) {
    if (!info) return;
    if (!this.info) {
      const rights = await this.ctx.api.get(topicPath(info.topic, "/rights"), { signal: this.ctx.signal }).catch(() => ({ publishRefusal: "" }));
      this.why = rights.publishRefusal;
      fill(this.links, h("a", { class: "button", href: to(["topics", info.topic]), text: "Topic" }));
    }
    this.info = info;
    const parts = [...OPEN, "done", "failed", "cancelled"].filter((name) => info[name]).map((name) => `${count(info[name])} ${name}`);
    say(this.sentence, `${parts.join(", ") || "No calls"}; ${info.workers ? plural(info.workers, "worker takes them", "workers take them") : "nobody takes them now"}.`);
    const open = OPEN.reduce((sum, name) => sum + info[name], 0);
    const seen = JSON.stringify([info.failed, open, this.why]);
    if (this.counted === seen) return;
    this.counted = seen;
    refill(this.acts,
      info.failed ? this.button(`Retry ${count(info.failed)} failed…`, () => this.all("retry", info.failed)) : null,
      info.failed ? this.button("Discard them…", () => this.all("discard", info.failed), "danger") : null,
      open ? this.button(`Cancel ${count(open)} open…`, () => this.all("cancel", open), "danger") : null);
  }

  button(label, run, kind = "") {
    return action(this.ctx, label, run, { kind, why: this.why });
  }

  async all(verb, many) {
    const what = { retry: "They get all their attempts anew.", discard: "Nobody will do them any more.", cancel: "Those that wait never begin, those that run are interrupted." }[verb];
    const title = `${verb[0].toUpperCase()}${verb.slice(1)} ${plural(many, "call")}?`;
    if (!(await question({ title, text: what, yes: title.slice(0, -1), danger: verb !== "retry" }))) return;
    await this.change(verb, { all: true });
  }

  async change(verb, body) {
    const done = await this.ctx.api.send("POST", taskPath(this.task, `/${verb}`), body);
    const left = Object.keys(done.refused).length;
    toast(`${plural(done.count, "call was", "calls were")} ${{ retry: "sent back", discard: "discarded", cancel: "cancelled" }[verb]}.${left ? ` ${count(left)} could not be.` : ""}`, Object.values(done.refused)[0] ?? "");
    this.drawn = null;
    this.ctx.store.plan(0);
    await this.load();
  }

  // -- one call

  async show(id) {
    this.shown = id;
    this.drawn = null;
    note(["tasks", this.task, id], { state: this.state.value });
    await this.fetchCall();
    this.grid.refresh();
  }

  hide() {
    this.shown = null;
    this.drawn = null;
    note(["tasks", this.task], { state: this.state.value });
    alone(this.split, this.grid.element);
    this.grid.refresh();
  }

  async fetchCall() {
    const id = this.shown;
    let content;
    let seen = "";
    try {
      const call = await this.ctx.api.get(callPath(this.task, id), { signal: this.ctx.signal });
      seen = JSON.stringify(call);
      if (this.shown !== id || this.drawn?.seen === seen) return; // nothing moves under a reader
      content = this.sections(call);
    } catch (problem) {
      if (problem.name === "AbortError" || this.shown !== id) return;
      content = h("section", {}, refused(problem));
    }
    const close = closer(this.grid.element, () => this.hide());
    const detail = panel(id, { note: close, class: "detail" }, content);
    if (this.drawn?.id === id && this.drawn.detail.isConnected) refill(this.drawn.detail, ...detail.childNodes);
    else beside(this.split, this.grid.element, detail);
    this.drawn = { id, seen, detail: this.drawn?.id === id ? this.drawn.detail : detail };
  }

  sections(call) {
    const at = (ms) => h("span", { title: exact(ms), text: moment(ms) });
    const acts = [
      call.state === "failed" && this.button("Retry", () => this.change("retry", { ids: [call.id] })),
      call.state === "failed" && this.button("Discard", () => this.change("discard", { ids: [call.id] }), "danger"),
      OPEN.includes(call.state) && this.button("Cancel", () => this.change("cancel", { ids: [call.id] }), "danger"),
      h("a", { class: "button", href: to(["trace", call.id]), text: "What caused it" }),
    ];
    return [
      h("section", {}, facts([
        ["State", stateTag(call)],
        ["Task", call.task],
        call.created && ["Enqueued", at(call.created)],
        call.nextMs && ["Due", at(call.nextMs)],
        call.updated && [OPEN.includes(call.state) ? "Last heard of" : "Ended", at(call.updated)],
        call.attempts && ["Attempts", count(call.attempts)],
        call.durationMs !== undefined && ["Last attempt took", span(call.durationMs)],
        call.key && ["Key", call.key],
        call.offset && ["Event", h("a", { href: to(["events"], { topic: call.topic, partition: call.partition || "", offset: call.offset }), text: `${call.topic} ${call.partition}:${call.offset}` })],
        call.letter && ["Dead letter", h("a", { href: to(["deadletters", call.topic]), text: `${call.topic} ${call.letter}` })],
      ]), h("div", { class: "acts" }, acts)),
      call.error ? failure(call.failure ?? { type: call.error }, OPEN.includes(call.state) ? "Last error" : "Why it failed") : null,
      call.value === undefined ? null : h("section", {}, h("h3", { text: "Result" }), tree(call.value)),
      call.progress === undefined ? null : h("section", {}, h("h3", { text: "Progress" }), tree(call.progress)),
      h("section", {}, h("h3", { text: "Arguments" }), tree(call.args ?? []), call.kwargs ? tree(call.kwargs) : null),
    ];
  }
}

function stateTag(call) {
  const made = tag(call.state, STATES[call.state] ?? "");
  if (call.error && call.state !== "done") made.title = call.error;
  return made;
}

/** The arguments as they would be written. */
function written({ args = [], kwargs = {} }) {
  return [...args.map((each) => JSON.stringify(each)), ...Object.entries(kwargs).map(([name, each]) => `${name}=${JSON.stringify(each)}`)].join(", ");
}

function became(call) {
  if (call.error && call.state !== "done") return call.error;
  const value = call.value === undefined ? call.progress : call.value;
  return value === undefined ? "" : JSON.stringify(value);
}
