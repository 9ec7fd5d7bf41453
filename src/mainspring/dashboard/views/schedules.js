// Schedules: what is published again and again, when it comes next, how the last call went; run now, pause, resume.

import { topicPath } from "../api.js";
import { h, alone, beside, closer, empty, facts, failure, head, panel, refill, say, tag } from "../dom.js";
import { action, prose, question, refused, toast, trouble } from "../feedback.js";
import { ago, exact, moment, plural, span } from "../format.js";
import { Grid, LoadedList } from "../grid.js";
import { tree } from "../json.js";
import { note, to } from "../router.js";

const RESULTS = { done: "good", failed: "bad", skipped: "warn" };
const MOST_RIGHTS = 50; // topics whose rights are looked up at once; the node refuses anyway

const schedulePath = (name, verb = "") => `/schedules/${encodeURIComponent(name)}${verb}`;

export function open(ctx) {
  return new Schedules(ctx);
}

class Schedules extends LoadedList {
  constructor(ctx) {
    super(ctx);
    this.all = [];
    this.rows = [];
    this.refusals = new Map(); // topic -> why its schedules may not be changed
    this.shown = ctx.parts[0] ?? null;
    this.sentence = h("span", { text: "Loading…" });
    this.search = h("input", { type: "search", class: "grow", placeholder: "Filter by name or topic", aria: { label: "Filter schedules" }, on: { input: () => this.draw() } });
    this.grid = new Grid({
      label: "Schedules",
      onOpen: (row) => this.show(row.name),
      none: empty("No schedules", prose("`@app.every` and `@app.cron` in a program make them; so does `POST /schedules`.")),
      columns: [
        { label: "Schedule", width: "minmax(96px, 1.6fr)", cell: (row) => row.name },
        { label: "When", width: "minmax(120px, 1fr)", kind: "m", least: 620, cell: when },
        { label: "Next", width: "minmax(108px, 0.9fr)", cell: (row) => this.next(row) },
        { label: "Last run", width: "minmax(92px, 0.9fr)", least: 560, cell: (row) => (row.lastMs ? h("span", { title: exact(row.lastMs), text: ago(row.lastMs, this.now) }) : h("span", { class: "dim", text: "never" })) },
        { label: "Result", width: "88px", cell: (row) => (row.last ? result(row.last) : "") },
        { label: "Took", width: "84px", kind: "r", least: 700, cell: (row) => (row.last && row.last.result !== "skipped" ? span(row.last.durationMs ?? 0) : "") },
        { label: "", width: "104px", kind: "r", least: 820, keep: (row) => row.name, cell: (row) => this.button("Run now", row, () => this.run(row)) },
        { label: "", width: "92px", kind: "r", least: 820, keep: (row) => `${row.name} ${row.paused}`, cell: (row) => this.button(row.paused ? "Resume" : "Pause", row, () => this.pause(row)) },
      ],
    });
    this.grid.element.classList.add("fill");
    this.grid.isSelected = (_, row) => Boolean(row && row.name === this.shown);
    this.split = h("div", { class: "split" }, this.grid.element);
    this.trouble = trouble();
    this.element = h("div", {}, head("Schedules", this.sentence), this.trouble.element, h("div", { class: "bar" }, this.search), this.split);
    this.load();
  }

  next(row) {
    if (row.paused) return tag("paused", "warn");
    return h("span", { title: exact(row.nextMs), text: row.nextMs > this.now ? `in ${span(row.nextMs - this.now)}` : "now" });
  }

  button(label, row, run, kind = "plain") {
    return action(this.ctx, label, run, { kind, why: this.refusals.get(row.topic) ?? "" });
  }

  async load() {
    try {
      this.all = (await this.ctx.api.get("/schedules", { signal: this.ctx.signal })).schedules;
      await this.learnRights();
      this.trouble.over();
      this.draw();
    } catch (problem) {
      this.trouble.tell(problem);
    }
  }

  async learnRights() {
    const topics = new Set(this.all.map(({ topic }) => topic).filter((topic) => !this.refusals.has(topic)));
    await Promise.all([...topics].slice(0, MOST_RIGHTS).map(async (topic) => {
      const rights = await this.ctx.api.get(topicPath(topic, "/rights"), { signal: this.ctx.signal }).catch(() => null);
      if (rights) this.refusals.set(topic, rights.publishRefusal);
    }));
  }

  /** What failed last comes first: somebody has to look at it. */
  draw() {
    const wanted = this.search.value.trim().toLowerCase();
    const rank = (row) => (row.last?.result === "failed" ? 0 : 1);
    this.rows = this.all.filter(({ name, topic }) => `${name} ${topic}`.toLowerCase().includes(wanted)).sort((a, b) => rank(a) - rank(b) || (a.name < b.name ? -1 : 1));
    const failed = this.all.filter((row) => row.last?.result === "failed").length;
    const paused = this.all.filter((row) => row.paused).length;
    say(this.sentence, `${plural(this.all.length, "schedule")}${failed ? `, ${failed} failed last time` : ""}${paused ? `, ${paused} paused` : ""}.`);
    this.grid.setRows(this.rows.length, (index) => this.rows[index]);
    if (this.shown) this.drawDetail();
  }

  // -- one schedule

  show(name) {
    this.shown = name;
    this.drawn = null;
    note(["schedules", name], {});
    this.drawDetail();
    this.grid.refresh();
  }

  hide() {
    this.shown = null;
    this.drawn = null;
    note(["schedules"], {});
    alone(this.split, this.grid.element);
    this.grid.refresh();
  }

  drawDetail() {
    const row = this.all.find(({ name }) => name === this.shown);
    const seen = JSON.stringify([row, this.refusals.get(row?.topic)]);
    if (this.drawn?.seen === seen) return; // nothing moves under a reader
    const close = closer(this.grid.element, () => this.hide());
    const detail = panel(this.shown, { note: close, class: "detail" }, row ? this.sections(row) : h("section", {}, refused({ message: "There is no such schedule.", remedy: "" })));
    if (this.drawn?.name === this.shown && this.drawn.detail.isConnected) {
      refill(this.drawn.detail, ...detail.childNodes);
      this.drawn.seen = seen;
    } else {
      beside(this.split, this.grid.element, detail);
      this.drawn = { name: this.shown, detail, seen };
    }
  }

  sections(row) {
    const { last } = row;
    return [
      h("section", {}, facts([
        ["When", when(row)],
        ["Next", row.paused ? tag("paused", "warn") : h("span", { title: exact(row.nextMs), text: moment(row.nextMs) })],
        ["Last run", row.lastMs ? h("span", { title: exact(row.lastMs), text: moment(row.lastMs) }) : "never"],
        ["Declared", row.declared ? "by a program" : "by a client"],
        row.owner && ["Owner", row.owner],
        ["Overlap", row.overlap ?? "queue"],
        ["Publishes to", h("a", { href: to(["events"], { topic: row.topic }), text: row.topic })],
        row.key && ["Key", row.key],
      ]), h("div", { class: "acts" }, this.button("Run now", row, () => this.run(row), ""), this.button(row.paused ? "Resume" : "Pause", row, () => this.pause(row), ""), this.button("Delete…", row, () => this.remove(row), "danger"))),
      last ? h("section", {}, h("h3", { text: "Last call" }), facts([
        ["Result", result(last)],
        ["At", h("span", { title: exact(last.atMs), text: moment(last.atMs) })],
        last.result !== "skipped" && ["Took", span(last.durationMs ?? 0)],
        last.attempt > 1 && ["Attempt", String(last.attempt)],
      ]), last.failure ? null : last.reason && h("p", { class: "dim", text: last.reason })) : null,
      last?.failure ? failure(last.failure, "Why it failed") : null,
      h("section", {}, h("h3", { text: "Payload" }), tree(row.payload ?? null)),
    ];
  }

  async run(row) {
    await this.ctx.api.send("POST", schedulePath(row.name, "/run"));
    toast(`${row.name} was run.`);
    await this.load();
  }

  async pause(row) {
    await this.ctx.api.send("POST", schedulePath(row.name, row.paused ? "/resume" : "/pause"));
    toast(row.paused ? `${row.name} goes on.` : `${row.name} is paused, also after a restart.`);
    await this.load();
  }

  async remove(row) {
    const text = row.declared ? "A program declares it: it comes back when the program starts. Pause it to stop it for good." : "It publishes nothing more.";
    if (!(await question({ title: `Delete ${row.name}?`, text, yes: "Delete it", danger: true }))) return;
    await this.ctx.api.send("DELETE", schedulePath(row.name));
    toast(`${row.name} was deleted.`);
    this.hide();
    await this.load();
  }
}

function when(row) {
  return `${row.cron ?? `every ${span(row.every)}`}${row.timezone ? ` ${row.timezone}` : ""}`;
}

function result(last) {
  const made = tag(last.result, RESULTS[last.result] ?? "");
  if (last.reason) made.title = last.reason;
  return made;
}
