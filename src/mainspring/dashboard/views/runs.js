// Durable runs: all of them, and one as a timeline of its effects, from which it can be forked, cancelled or retried.

import { h, alone, beside, closer, empty, facts, fill, head, panel, refill, say, tag } from "../dom.js";
import { action, field, prose, question, refused, toast, trouble } from "../feedback.js";
import { ago, brief, count, exact, plural, span } from "../format.js";
import { Grid } from "../grid.js";
import { tree } from "../json.js";
import { note, to } from "../router.js";

const STATES = { running: "info", waiting: "warn", blocked: "bad", done: "good", failed: "bad", cancelled: "warn" };
const LONG = 500; // effects; a longer run is read anew less often while somebody looks at it

export function open(ctx) {
  return new Runs(ctx);
}

class Runs {
  constructor(ctx) {
    this.ctx = ctx;
    this.rows = [];
    this.end = false;
    this.openStep = -1;
    this.sentence = h("span", { text: "Loading…" });
    this.prefix = h("input", { type: "search", placeholder: "Id begins with", value: ctx.query.get("prefix") ?? "" });
    this.state = h("select", {}, ["", "running", "blocked", "done", "failed", "cancelled"].map((name) => h("option", { value: name, text: name || "any" })));
    this.state.value = ctx.query.get("state") ?? "";
    this.state.addEventListener("change", () => this.load(true));
    this.more = h("button", { type: "button", hidden: true, text: "Load more", on: { click: () => this.load() } });
    this.grid = new Grid({
      label: "Runs",
      onOpen: (row) => this.show(row.id),
      none: empty("No runs", prose("`mainspring runs start` begins one; so does the command `Run.Start`.")),
      columns: [
        { label: "Run", width: "minmax(120px, 2fr)", cell: (row) => row.id },
        { label: "Program", width: "minmax(90px, 1.2fr)", least: 440, cell: (row) => row.program },
        { label: "State", width: "104px", cell: (row) => stateTag(row.waitsFor ? "waiting" : row.state, row.waitsFor && `Waits for ${row.waitsFor}`) },
        ...(ctx.store.shared ? [{ label: "Node", width: "minmax(80px, 1fr)", least: 500, cell: (row) => row.owner ?? "" }] : []),
        { label: "Began", width: "minmax(96px, 1fr)", kind: "r", least: 560, cell: (row) => ago(row.created, this.now) },
        { label: "Lasted", width: "minmax(84px, 0.8fr)", kind: "r", least: 680, cell: (row) => span((isOver(row) ? row.updated : this.now) - row.created) },
      ],
    });
    this.grid.element.classList.add("fill");
    this.grid.isSelected = (_, row) => Boolean(row && row.id === this.shown);
    this.split = h("div", { class: "split" }, this.grid.element);
    const form = h("form", { class: "bar", on: { submit: (event) => this.filter(event) } }, h("div", { class: "grow" }, field("Run", this.prefix)), field("State", this.state), h("button", { type: "submit", text: "Filter" }));
    this.trouble = trouble();
    this.element = h("div", {}, head("Runs", this.sentence), this.trouble.element, form, this.split, this.more);
    this.load(true);
    if (ctx.parts[0]) this.show(ctx.parts[0]);
  }

  get now() {
    return this.ctx.store.node?.now ?? Date.now();
  }

  filter(event) {
    event.preventDefault();
    note(["runs"], { prefix: this.prefix.value.trim(), state: this.state.value });
    this.load(true);
  }

  async load(anew = false) {
    const pages = anew ? 1 : Math.ceil((this.rows.length + 1) / 50);
    try {
      const rows = [];
      for (let page = 0; page < pages; page++) rows.push(...(await this.page(rows.at(-1)?.id ?? "")));
      this.trouble.over();
      this.rows = rows;
      this.end = rows.length < pages * 50;
      this.more.hidden = this.end;
      say(this.sentence, `${plural(rows.length, "run")}${this.end ? "" : " so far"}, by id.`);
      this.grid.setRows(rows.length, (index) => rows[index]);
    } catch (problem) {
      this.trouble.tell(problem);
    }
  }

  async page(after) {
    const asked = { prefix: this.prefix.value.trim(), after, ...(this.state.value && { state: this.state.value }) };
    return (await this.ctx.api.ask("Run.List", asked, { signal: this.ctx.signal })).runs;
  }

  // -- one run

  async show(id) {
    this.shown = id;
    this.seen = "";
    this.pace = 0;
    this.drawn = null;
    this.openStep = -1;
    note(["runs", id], {});
    try {
      await this.fetchRun(id);
    } catch (problem) {
      if (problem.name === "AbortError") return;
      const close = closer(this.grid.element, () => this.hide());
      beside(this.split, this.grid.element, panel(id, { note: close, class: "detail" }, h("section", {}, refused(problem))));
    }
    this.grid.refresh();
  }

  /** The run as it is now; drawn only when something in it has changed, so that nothing moves under a reader. */
  async fetchRun(id) {
    const options = { signal: this.ctx.signal };
    const [{ run, journal, progress }, now] = await Promise.all([this.ctx.api.ask("Run.History", { id }, options), this.ctx.api.ask("Run.Outcome", { id }, options)]);
    const seen = JSON.stringify([run.updated, now.state, now.owner, now.waitsFor, progress, journal.map((step) => step.answered)]);
    if (this.shown !== id || this.seen === seen) return;
    this.seen = seen;
    this.pace = !isOver(now) ? 1 + Math.floor(journal.length / LONG) : 0;
    this.drawRun({ ...run, state: now.state, owner: now.owner, waitsFor: now.waitsFor, progress }, journal);
  }

  drawRun(run, journal) {
    this.steps?.close();
    const close = closer(this.grid.element, () => this.hide());
    const over = isOver(run);
    const acts = [
      over ? null : action(this.ctx, "Cancel…", () => this.cancel(run), { kind: "danger" }),
      ["blocked", "failed", "cancelled"].includes(run.state) ? action(this.ctx, "Retry", () => this.retry(run)) : null,
      run.state === "blocked" ? action(this.ctx, "Move…", () => this.move(run)) : null,
      run.state === "blocked" ? action(this.ctx, "Fail", () => this.fail(run), { kind: "danger" }) : null,
      action(this.ctx, "Fork…", () => this.fork(run, journal.length)),
      over ? action(this.ctx, "Forget…", () => this.forget(run), { kind: "danger" }) : null,
      h("a", { class: "button", href: to(["trace", run.id]), text: "What caused it" }),
    ];
    const stepDetail = h("div");
    const detail = panel(run.id, { note: close, class: "detail" },
      h("section", {}, facts([
        ["Program", run.program],
        ["State", stateTag(run.state)],
        run.owner && ["Executed by", h("a", { href: to(["nodes", run.owner]), text: run.owner })],
        run.waitsFor && ["Waits for", run.waitsFor],
        ["Began", exact(run.created)],
        [over ? "Ended" : "Last written", exact(run.updated)],
        ["Lasted", span((over ? run.updated : this.now) - run.created)],
        run.parent && ["Started by", h("a", { href: to(["runs", run.parent]), text: run.parent })],
        run.forked_from && ["Forked from", h("a", { href: to(["runs", run.forked_from]), text: `${run.forked_from}, after ${plural(run.forked_at ?? 0, "answer")}` })],
        run.retries && ["Retries", count(run.retries)],
      ]), h("div", { class: "acts" }, acts)),
      h("section", { class: "bare" }, h("h3", { text: `Timeline, ${plural(journal.length, "effect")}` }), this.timeline(run, journal, stepDetail), stepDetail),
      run.progress == null ? null : h("section", {}, h("h3", { text: "Progress" }), tree(run.progress)),
      h("section", {}, h("h3", { text: "Arguments" }), tree(run.args ?? null)),
      outcome(run));
    if (this.drawn?.id === run.id && this.drawn.detail.isConnected) refill(this.drawn.detail, ...detail.childNodes);
    else {
      beside(this.split, this.grid.element, detail);
      this.drawn = { id: run.id, detail };
    }
  }

  timeline(run, journal, place) {
    const first = run.created;
    const last = Math.max(isOver(run) ? run.updated : this.now, ...journal.map((step) => step.at + (step.ms ?? 0)), first + 1);
    const rows = journal.map((step, index) => ({ ...step, index }));
    this.steps = new Grid({
      label: "Timeline",
      maxRows: 12,
      rowHeight: 30,
      none: empty("No effects yet"),
      onOpen: (step) => {
        this.openStep = step.index;
        fill(place, this.step(run, step));
      },
      columns: [
        { label: "#", width: "44px", kind: "r", cell: (step) => String(step.index + 1) },
        { label: "Effect", width: "minmax(80px, 1fr)", cell: (step) => step.effect },
        { label: `0 to ${span(last - first)}`, width: "minmax(110px, 2.2fr)", kind: "full", cell: (step) => bar(step, first, last) },
        { label: "Took", width: "84px", kind: "r", cell: (step) => (step.answered ? took(step.ms ?? 0) : "open") },
      ],
    });
    this.steps.setRows(rows.length, (index) => rows[index]);
    if (rows[this.openStep]) this.steps.onOpen(rows[this.openStep]);
    return this.steps.element;
  }

  step(run, step) {
    return h("div", { class: "step" },
      facts([["Effect", `${step.index + 1}. ${step.effect}`], ["Performed", exact(step.at)], ...(step.attempts ? [["Attempts", String(step.attempts)]] : []), ["Arguments", h("code", { text: brief(step.args ?? null, 400) })]]),
      step.answered ? h("div", {}, h("h3", { text: step.error ? "Failed with" : "Answer" }), tree(step.error ?? step.value ?? null)) : h("p", { class: "dim", text: "Not answered yet." }),
      h("div", { class: "acts" }, action(this.ctx, "Fork after this step…", () => this.fork(run, step.index + 1))));
  }

  async cancel(run) {
    const reason = h("input", { type: "text", name: "reason", placeholder: "Kept with the outcome" });
    const values = await question({ title: `Cancel ${run.id}?`, text: "It ends at its next effect.", fields: [field("Reason", reason)], yes: "Cancel the run", danger: true });
    if (!values) return;
    const { cancelled } = await this.ctx.api.command("Run.Cancel", { id: run.id, reason: values.reason || null });
    toast(cancelled ? `${run.id} is being cancelled.` : `${run.id} was over.`);
    await this.again(run.id);
  }

  async retry(run) {
    await this.ctx.api.command("Run.Retry", { id: run.id });
    toast(`${run.id} goes on from its journal.`);
    await this.again(run.id);
  }

  async move(run) {
    const text = "It goes on with the program of now from the last effect that fits. The answers behind it are dropped, and what they stand for is done again.";
    if (!(await question({ title: `Move ${run.id}?`, text, yes: "Move the run", danger: true }))) return;
    await this.ctx.api.command("Run.Retry", { id: run.id, keep: "fitting" });
    toast(`${run.id} goes on from the last effect that fits.`);
    await this.again(run.id);
  }

  async fail(run) {
    await this.ctx.api.command("Run.Fail", { id: run.id });
    toast(`${run.id} failed.`);
    await this.again(run.id);
  }

  async fork(run, at) {
    const answers = h("input", { type: "number", name: "at", min: "0", value: String(at) });
    const id = h("input", { type: "text", name: "id", placeholder: "One is made otherwise" });
    const values = await question({ title: `Fork ${run.id}`, text: "A new run begins with the first answers of this one and goes on by itself.", fields: [field("Answers to begin with", answers), field("Id of the new run", id)], yes: "Fork" });
    if (!values) return;
    const forked = await this.ctx.api.command("Run.Fork", { id: run.id, at: Number(values.at), ...(values.id.trim() && { newId: values.id.trim() }) });
    toast(`${forked.id} has begun.`);
    await this.again(forked.id);
  }

  async forget(run) {
    const text = "Its journal and the finished runs below it go with it, and its id can be used again. This cannot be undone.";
    if (!(await question({ title: `Forget ${run.id}?`, text, yes: "Forget the run", danger: true }))) return;
    const { count: gone } = await this.ctx.api.command("Run.Forget", { id: run.id });
    toast(`${plural(gone, "run was", "runs were")} forgotten.`);
    this.hide();
    await this.load(true);
  }

  async again(id) {
    await this.load();
    await this.show(id);
  }

  hide() {
    this.shown = null;
    note(["runs"], { prefix: this.prefix.value.trim(), state: this.state.value });
    alone(this.split, this.grid.element);
    this.grid.refresh();
  }

  update() {
    this.polls = (this.polls ?? 0) + 1;
    if (this.shown && this.pace && this.polls % this.pace === 0) this.fetchRun(this.shown).catch(() => {}); // the list tells
    if (this.polls % 3 === 0) this.load(); // asking is itself a message; seldom is enough
    else this.grid.refresh();
  }

  close() {
    this.steps?.close();
    this.grid.close();
  }
}

/** The journal counts whole milliseconds. */
function took(ms) {
  return ms < 1 ? "< 1 ms" : span(ms);
}

function isOver(run) {
  return run.state !== "running" && run.state !== "blocked";
}

function stateTag(state, title) {
  const made = tag(state, STATES[state] ?? "");
  if (title) made.title = title;
  return made;
}

function bar(step, first, last) {
  const left = ((step.at - first) / (last - first)) * 100;
  const length = (((step.answered ? step.at + (step.ms ?? 0) : last) - step.at) / (last - first)) * 100;
  const line = h("i", { class: step.answered ? "" : "open", css: { left: `${Math.min(left, 99)}%`, width: `${Math.max(0, Math.min(length, 100 - left))}%` } });
  return h("span", { class: "track" }, line);
}

function outcome(run) {
  if (run.state === "done") return h("section", {}, h("h3", { text: "Value" }), tree(run.value ?? null));
  if (run.state === "blocked") return h("section", {}, h("h3", { text: "Why it is blocked" }), h("pre", { text: run.error?.message ?? "" }));
  if (run.state === "failed") return h("section", {}, h("h3", { text: "Error" }), facts(Object.entries(run.error ?? {})));
  if (run.state === "cancelled") return h("section", {}, h("h3", { text: "Reason" }), tree(run.reason ?? null));
  return null;
}
