// Durable runs: all of them, newest first, found by state, program, time and text, changed one by one or many at once;
// and one as a timeline of its effects and their failed attempts, from which it can be forked.

import { h, alone, beside, closer, empty, facts, failure, fill, head, panel, refill, say, tag, time } from "../dom.js";
import { action, announce, field, prose, question, refusal, refused, toast, trouble } from "../feedback.js";
import { ago, brief, count, local, moment, plural, span } from "../format.js";
import { Grid } from "../grid.js";
import { tree } from "../json.js";
import { note, to } from "../router.js";

const STATES = { running: "info", waiting: "warn", blocked: "bad", done: "good", failed: "bad", cancelled: "warn" };
const ORDER = ["failed", "blocked", "running", "done", "cancelled"];
const LONG = 500; // effects; a longer run is read anew less often while somebody looks at it
const PAGE = 50;
const SPANS = [["", "any time"], ["900000", "15 min"], ["3600000", "1 h"], ["86400000", "24 h"], ["604800000", "7 d"]];
const MOST_FAMILY = 1_000;
const NARROW = 440; // px: where the state and what a run waits for share a column
const DANGEROUS = new Set(["cancel", "forget"]);
const QUESTIONS = {
  retry: "Those that failed, were cancelled or are blocked go on from their journals, with the program of now.",
  cancel: "Each ends at its next effect.",
  signal: "The value is stored, and received where the program waits for a signal of this name.",
  fork: "A new run of each begins with the first answers of the old one and goes on by itself.",
  forget: "Finished ones go with their journals and the finished runs below them; the others stay. This cannot be undone.",
};
const CHANGES = { retry: "Retry", cancel: "Cancel", signal: "Signal", fork: "Fork", forget: "Forget" };
const CHANGED = { retry: "retried", cancel: "cancelled", signal: "signalled", fork: "forked", forget: "forgotten" };

export function open(ctx) {
  return new Runs(ctx);
}

class Runs {
  constructor(ctx) {
    this.ctx = ctx;
    this.rows = [];
    this.end = false;
    this.openStep = "";
    this.marked = new Set();
    this.counts = [];
    this.build(ctx.query);
    this.load(true);
    if (ctx.parts[0]) this.show(ctx.parts[0]);
  }

  build(query) {
    this.sentence = h("span", { text: "Loading…" });
    this.text = h("input", { type: "search", placeholder: "Text in id, error or arguments", value: query.get("text") ?? "" });
    this.prefix = h("input", { type: "search", placeholder: "Id begins with", value: query.get("prefix") ?? "" });
    this.program = h("select", {}, h("option", { value: "", text: "any" }));
    this.wantedProgram = query.get("program") ?? "";
    this.state = h("select", {}, ["", ...ORDER].map((name) => h("option", { value: name, text: name || "any" })));
    this.state.value = query.get("state") ?? "";
    this.since = h("select", {}, SPANS.map(([value, text]) => h("option", { value, text })));
    this.since.value = query.get("since") ?? "";
    for (const each of [this.state, this.program, this.since]) each.addEventListener("change", () => this.filter());
    this.more = h("button", { type: "button", hidden: true, text: "Load more", on: { click: () => this.load() } });
    this.countsBar = h("div", { class: "counts-bar", role: "group", aria: { label: "Runs by state" } });
    this.bulkBar = h("div", { class: "bulk", role: "group", aria: { label: "Change many" } });
    this.grid = this.list();
    this.split = h("div", { class: "split" }, this.grid.element);
    const form = h("form", { class: "bar", on: { submit: (event) => this.filter(event) } },
      h("div", { class: "grow" }, field("Search", this.text)), field("Run", this.prefix), field("Program", this.program), field("State", this.state), field("Began within", this.since), h("button", { type: "submit", text: "Filter" }));
    this.trouble = trouble();
    this.element = h("div", {}, head("Runs", this.sentence), this.trouble.element, this.countsBar, form, this.bulkBar, this.split, this.more);
    this.ctx.api.ask("Run.Programs", {}, { signal: this.ctx.signal }).then(({ programs }) => this.offer(programs), () => {});
  }

  list() {
    const { ctx } = this;
    const grid = new Grid({
      label: "Runs",
      onOpen: (row) => this.show(row.id),
      onToggle: (row) => this.mark(row),
      none: empty("No runs", prose("`mainspring runs start` begins one; so does the command `Run.Start`.")),
      columns: [
        { label: "", width: "40px", kind: "tick", least: 420, cell: (row, _, cell) => this.tick(row, cell) },
        { label: "Run", width: "minmax(96px, 1.3fr)", cell: (row) => (row.parent ? `↳ ${row.id}` : row.id) },
        { label: "Program", width: "minmax(90px, 1fr)", least: 620, cell: (row) => row.program },
        { label: "State", width: "88px", least: NARROW, cell: stateOf },
        { label: "Waits for, or failed with", width: "minmax(112px, 2.2fr)", least: NARROW, cell: whatOf },
        { label: "State, and what it waits for", width: "minmax(180px, 2.9fr)", most: NARROW, cell: (row) => h("span", {}, stateOf(row), " ", whatOf(row)) },
        ...(ctx.store.shared ? [{ label: "Node", width: "minmax(80px, 0.8fr)", least: 500, cell: (row) => row.owner ?? "" }] : []),
        { label: "Began", width: "minmax(92px, 0.8fr)", kind: "r", least: 560, cell: (row) => time(row.created, ago(row.created, this.now)) },
        { label: "Lasted", width: "minmax(84px, 0.7fr)", kind: "r", least: 900, cell: (row) => span((isOver(row) ? row.updated : this.now) - row.created) },
      ],
    });
    grid.element.classList.add("fill");
    grid.isSelected = (_, row) => Boolean(row && row.id === this.shown);
    return grid;
  }

  get now() {
    return this.ctx.store.node?.now ?? Date.now();
  }

  /** The programs of all nodes, and the one that an address names. */
  offer(programs) {
    const names = [...new Set([...programs, this.wantedProgram].filter(Boolean))].sort();
    fill(this.program, h("option", { value: "", text: "any" }), names.map((name) => h("option", { value: name, text: name })));
    this.program.value = this.wantedProgram;
  }

  // -- which runs

  get filters() {
    return { state: this.state.value, program: this.program.value || this.wantedProgram, prefix: this.prefix.value.trim(), text: this.text.value.trim(), since: this.since.value };
  }

  /** The same as a message says it. */
  get asked() {
    const { since, ...texts } = this.filters;
    const given = Object.fromEntries(Object.entries(texts).filter(([, value]) => value));
    return since ? { ...given, since: Math.floor(this.now - Number(since)) } : given;
  }

  filter(event) {
    event?.preventDefault();
    this.wantedProgram = this.program.value;
    this.marked.clear();
    if (!this.shown) note(["runs"], this.filters);
    this.load(true);
  }

  async load(anew = false) {
    const turn = (this.turn = {}); // what was asked before comes too late
    const pages = anew ? 1 : Math.ceil((this.rows.length + 1) / PAGE);
    try {
      const rows = [];
      const options = { signal: this.ctx.signal };
      const { state, ...others } = this.asked;
      for (let page = 0; page < pages; page++) rows.push(...(await this.ctx.api.ask("Run.List", { ...this.asked, after: rows.at(-1)?.id ?? "" }, options)).runs);
      const { counts } = await this.ctx.api.ask("Run.Count", others, options);
      if (this.turn !== turn) return;
      this.trouble.over();
      Object.assign(this, { rows, counts, end: rows.length < pages * PAGE });
      this.more.hidden = this.end;
      this.draw();
    } catch (problem) {
      this.trouble.tell(problem);
    }
  }

  countOf(state) {
    return this.counts.filter((each) => !state || each.state === state).reduce((sum, each) => sum + each.count, 0);
  }

  draw() {
    const all = this.countOf(this.state.value);
    say(this.sentence, `${plural(Math.max(all, this.rows.length), "run")}${this.rows.length < all ? `, ${count(this.rows.length)} of them here` : ""}, newest first.`);
    this.grid.setRows(this.rows.length, (index) => this.rows[index]);
    const choices = ["", ...ORDER].map((state) => [state, this.countOf(state)]).filter(([state, number]) => number || !state || state === this.state.value);
    refill(this.countsBar, choices.map(([state, number]) => h("button", { type: "button", aria: { pressed: String(this.state.value === state) }, on: { click: () => this.choose(state) } }, state || "all", h("b", { class: STATES[state] === "bad" ? "bad" : "", text: count(number) }))));
    this.drawBulk();
  }

  choose(state) {
    this.state.value = state;
    this.filter();
  }

  // -- changing many

  tick(row, cell) {
    const box = cell.firstElementChild ?? cell.appendChild(h("input", { type: "checkbox", tabindex: "-1" }));
    box.checked = this.marked.has(row.id);
    box.setAttribute("aria-label", `Mark run ${row.id}`);
    return undefined;
  }

  mark(row) {
    if (this.marked.has(row.id)) this.marked.delete(row.id);
    else this.marked.add(row.id);
    this.drawBulk();
  }

  /** Which runs a change of many is about: the marked ones, or all that fit a filter. */
  get chosen() {
    if (this.marked.size) return { body: { ids: [...this.marked] }, number: this.marked.size, what: `${count(this.marked.size)} marked` };
    const number = this.countOf(this.state.value);
    return { body: this.asked, number, what: `all ${count(number)}` };
  }

  drawBulk() {
    if (this.changing) return;
    const isFiltered = Object.keys(this.asked).length > 0;
    const { number, what } = this.chosen;
    if (!number || !(this.marked.size || isFiltered)) {
      refill(this.bulkBar);
      return;
    }
    refill(this.bulkBar, Object.entries(CHANGES).map(([verb, word]) => action(this.ctx, `${word} ${what}…`, () => this.changeMany(verb), { kind: DANGEROUS.has(verb) ? "danger" : "" })),
      this.marked.size > 0 && h("button", { type: "button", class: "plain", text: "Mark none", on: { click: () => this.unmark() } }));
  }

  unmark() {
    this.marked.clear();
    this.grid.refresh();
    this.drawBulk();
  }

  async changeMany(verb) {
    const { body, number } = this.chosen;
    const values = await question({ title: `${CHANGES[verb]} ${plural(number, "run")}?`, text: QUESTIONS[verb], fields: fieldsOf(verb), yes: `${CHANGES[verb]} ${plural(number, "run")}`, danger: DANGEROUS.has(verb) });
    if (!values) return;
    await this.changeAll(verb, { ...body, ...detailsOf(verb, values) }, number);
  }

  /** Page by page, so that one sees how far it is, and can stop it. */
  async changeAll(verb, body, number) {
    const bar = h("progress", { max: String(number), value: "0", aria: { label: `Runs ${CHANGED[verb]}` } });
    const told = h("span", { role: "status", text: `0 of ${count(number)} ${CHANGED[verb]}…` });
    let stopped = false;
    let done = 0;
    const refusedRuns = [];
    this.changing = true;
    fill(this.bulkBar, bar, told, h("button", { type: "button", text: "Stop", on: { click: () => (stopped = true) } }));
    try {
      for (let after = ""; after !== null && !stopped; ) {
        const changed = await this.ctx.api.command("Run.Bulk", { ...body, action: verb, after });
        done += changed.count;
        refusedRuns.push(...Object.entries(changed.refused));
        bar.value = done + refusedRuns.length;
        say(told, `${count(done)} of ${count(number)} ${CHANGED[verb]}…`);
        after = changed.after ?? null;
      }
    } finally {
      this.changing = false;
    }
    toast(`${plural(done, "run")} ${CHANGED[verb]}${stopped ? ", then stopped" : ""}.`);
    if (refusedRuns.length) refusal({ message: `${plural(refusedRuns.length, "run")} could not be ${CHANGED[verb]}.`, remedy: refusedRuns.slice(0, 5).map(([id, why]) => `${id}: ${why}`).join("; ") });
    announce(`${plural(done, "run")} ${CHANGED[verb]}.`);
    this.marked.clear();
    await this.load(true);
  }

  // -- one run

  async show(id) {
    this.shown = id;
    this.seen = "";
    this.pace = 0;
    this.drawn = null;
    this.openStep = "";
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
    const seen = JSON.stringify([run.updated, now.state, now.owner, now.waitsFor, progress, journal.map((step) => [step.answered, step.failures?.length])]);
    if (this.shown !== id || this.seen === seen) return;
    this.seen = seen;
    this.pace = !isOver(now) ? 1 + Math.floor(journal.length / LONG) : 0;
    const family = run.parent || run.has_children ? await this.family(id) : [];
    if (this.shown === id) this.drawRun({ ...run, state: now.state, owner: now.owner, waitsFor: now.waitsFor, waitsUntil: now.waitsUntil, progress }, journal, family);
  }

  /** All runs of the tree that a run stands in, a parent before its children. */
  async family(id) {
    const root = id.split("~")[0];
    const found = [];
    const options = { signal: this.ctx.signal };
    found.push(...(await this.ctx.api.ask("Run.List", { ids: [root] }, options)).runs);
    for (let page = [null]; page.length && found.length < MOST_FAMILY; ) {
      page = (await this.ctx.api.ask("Run.List", { prefix: `${root}~`, after: found.length > 1 ? found.at(-1).id : "" }, options)).runs;
      found.push(...page);
      if (page.length < PAGE) break;
    }
    return found.sort((a, b) => a.id.localeCompare(b.id, "en", { numeric: true }));
  }

  drawRun(run, journal, family) {
    this.steps?.close();
    const close = closer(this.grid.element, () => this.hide());
    const over = isOver(run);
    const acts = [
      over ? null : action(this.ctx, "Signal…", () => this.signal(run), { kind: run.waitsFor?.startsWith("signal ") ? "main" : "" }),
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
        run.waitsFor && ["Waits for", waitText(run)],
        ["Began", time(run.created)],
        [over ? "Ended" : "Last written", time(run.updated)],
        ["Lasted", span((over ? run.updated : this.now) - run.created)],
        run.parent && ["Started by", h("a", { href: to(["runs", run.parent]), text: run.parent })],
        run.forked_from && ["Forked from", h("a", { href: to(["runs", run.forked_from]), text: `${run.forked_from}, after ${plural(run.forked_at ?? 0, "answer")}` })],
        run.retries && ["Retries", count(run.retries)],
      ]), h("div", { class: "acts" }, acts)),
      run.state === "failed" ? failure({ ...run.error, traceback: run.traceback }, "Why it failed") : null,
      run.state === "blocked" ? outcome(run) : null,
      family.length > 1 ? h("section", {}, h("h3", { text: `Tree, ${plural(family.length, "run")}` }), familyTree(family, run.id)) : null,
      h("section", { class: "bare" }, h("h3", { text: `Timeline, ${plural(journal.length, "effect")}` }), this.timeline(run, journal, stepDetail), stepDetail),
      run.progress == null ? null : h("section", {}, h("h3", { text: "Progress" }), tree(run.progress)),
      h("section", {}, h("h3", { text: "Arguments" }), tree(run.args ?? null)),
      run.state === "blocked" ? null : outcome(run));
    if (this.drawn?.id === run.id && this.drawn.detail.isConnected) refill(this.drawn.detail, ...detail.childNodes);
    else {
      beside(this.split, this.grid.element, detail);
      this.drawn = { id: run.id, detail };
    }
  }

  timeline(run, journal, place) {
    const first = run.created;
    const last = Math.max(isOver(run) ? run.updated : this.now, ...journal.map((step) => step.at + (step.ms ?? 0)), first + 1);
    const rows = journal.flatMap((step, index) => [...attemptsOf(step, index), { ...step, index, name: `${index}` }]);
    this.steps = new Grid({
      label: "Timeline",
      maxRows: 12,
      rowHeight: 30,
      none: empty("No effects yet"),
      onOpen: (step) => {
        this.openStep = step.name;
        fill(place, step.attempt ? attemptDetail(step) : this.step(run, step));
      },
      columns: [
        { label: "#", width: "38px", kind: "r", cell: (step) => (step.attempt ? "" : String(step.index + 1)) },
        { label: "Effect", width: "minmax(96px, 2.4fr)", cell: (step) => (step.attempt ? h("span", { class: "bad", text: `attempt ${step.attempt}: ${step.error.type}` }) : step.error ? h("span", { class: "bad", text: `${step.effect}: ${step.error.type}` }) : step.effect) },
        { label: `0 to ${span(last - first)}`, width: "minmax(112px, 1fr)", kind: "full", cell: (step) => bar(step, first, last) },
        { label: "Took", width: "76px", kind: "r", cell: (step) => (step.attempt ? "failed" : step.answered ? took(step.ms ?? 0) : "open") },
      ],
    });
    this.steps.setRows(rows.length, (index) => rows[index]);
    const opened = rows.find(({ name }) => name === this.openStep) ?? (run.state === "failed" ? rows.findLast((step) => step.error) : null);
    if (opened) this.steps.onOpen(opened);
    return this.steps.element;
  }

  step(run, step) {
    const answer = step.error ? failure({ ...step.error, traceback: step.traceback }, "Failed with") : h("div", {}, h("h3", { text: "Answer" }), tree(step.value ?? null));
    return h("div", { class: "step" },
      facts([["Effect", `${step.index + 1}. ${step.effect}`], ["Performed", time(step.at)], ...(step.attempts ? [["Attempts", String(step.attempts)]] : []), ["Arguments", h("code", { text: brief(step.args ?? null, 400) })]]),
      step.answered ? answer : h("p", { class: "dim", text: "Not answered yet." }),
      h("div", { class: "acts" }, action(this.ctx, "Fork after this step…", () => this.fork(run, step.index + 1))));
  }

  async signal(run) {
    const waited = run.waitsFor?.startsWith("signal ") ? run.waitsFor.slice("signal ".length) : "";
    const values = await question({ title: `Signal ${run.id}`, text: QUESTIONS.signal, fields: fieldsOf("signal", waited), yes: "Signal" });
    if (!values) return;
    const { signalled } = await this.ctx.api.command("Run.Signal", { id: run.id, ...detailsOf("signal", values) });
    toast(signalled ? `${run.id} has the signal ${values.name}.` : `${run.id} was over.`);
    await this.again(run.id);
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
    note(["runs"], this.filters);
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

function stateOf(row) {
  return stateTag(row.waitsFor?.startsWith("program ") ? "waiting" : row.state, row.waitsFor && `Waits for ${row.waitsFor}`);
}

/** What a run waits for, and until when; or why it failed. */
function whatOf(row) {
  if (row.waitsFor) return h("span", { title: row.waitsUntil ? `Until ${local(row.waitsUntil)} local` : "", text: waitText(row) });
  if (row.error) return h("span", { class: "bad", title: row.error.message ?? "", text: `${row.error.type}: ${row.error.message ?? ""}` });
  return "";
}

function waitText(run) {
  return run.waitsUntil ? `${run.waitsFor} until ${moment(run.waitsUntil).replace(/:\d\d\.\d+$/, "")}` : run.waitsFor;
}

/** The attempts at an effect that failed and were followed by another one. */
function attemptsOf(step, index) {
  const failures = step.failures ?? [];
  const first = (step.attempts ?? 0) - failures.length + (step.answered ? 0 : 1);
  return failures.map((failed, at) => ({ ...failed, effect: step.effect, index, attempt: first + at, began: step.at, name: `${index}.${first + at}` }));
}

function attemptDetail(step) {
  return h("div", { class: "step" },
    facts([["Effect", `${step.index + 1}. ${step.effect}, attempt ${step.attempt}`], ["Failed", time(step.at)]]),
    failure({ ...step.error, traceback: step.traceback }, "Failed with"));
}

function familyTree(family, shown) {
  const depth = (id) => id.split("~").length - 1;
  return h("ul", { class: "family" }, family.map((run) => h("li", { css: { "padding-left": `${depth(run.id) * 18}px` } },
    h("a", { href: to(["runs", run.id]), aria: { current: run.id === shown ? "true" : null }, text: run.id }), stateTag(run.state), " ", h("span", { class: "dim", text: run.waitsFor ? waitText(run) : run.program }))));
}

/** What is asked before a change, and the members of the message that the answers become. */
function fieldsOf(verb, name = "") {
  if (verb === "signal") return [field("Name", h("input", { type: "text", name: "name", required: true, value: name })), field("Value (JSON)", h("input", { type: "text", name: "value", value: "null" }))];
  if (verb === "cancel") return [field("Reason", h("input", { type: "text", name: "reason", placeholder: "Kept with the outcome" }))];
  if (verb === "fork") return [field("Answers to begin with", h("input", { type: "number", name: "at", min: "0", value: "0" }))];
  return [];
}

function detailsOf(verb, values) {
  if (verb === "signal") return { name: values.name.trim(), value: jsonOf(values.value) };
  if (verb === "cancel") return { reason: values.reason || null };
  return verb === "fork" ? { at: Number(values.at) } : {};
}

function jsonOf(text) {
  try {
    return JSON.parse(text.trim() || "null");
  } catch {
    throw Object.assign(new Error(`“${text}” is not JSON.`), { remedy: "Write null, 5, \"text\" or {\"paid\": true}." });
  }
}

function bar(step, first, last) {
  if (step.attempt) {
    const from = ((step.began - first) / (last - first)) * 100;
    const length = ((step.at - step.began) / (last - first)) * 100;
    return h("span", { class: "track" }, h("i", { class: "bad", css: { left: `${Math.min(from, 99)}%`, width: `${Math.max(0, Math.min(length, 100 - from))}%` } }));
  }
  const left = ((step.at - first) / (last - first)) * 100;
  const length = (((step.answered ? step.at + (step.ms ?? 0) : last) - step.at) / (last - first)) * 100;
  const line = h("i", { class: !step.answered ? "open" : step.error ? "bad" : "", css: { left: `${Math.min(left, 99)}%`, width: `${Math.max(0, Math.min(length, 100 - left))}%` } });
  return h("span", { class: "track" }, line);
}

function outcome(run) {
  if (run.state === "done") return h("section", {}, h("h3", { text: "Value" }), tree(run.value ?? null));
  if (run.state === "blocked") return h("section", {}, h("h3", { text: "Why it is blocked" }), h("pre", { text: run.error?.message ?? "" }));
  if (run.state === "cancelled") return h("section", {}, h("h3", { text: "Reason" }), tree(run.reason ?? null));
  return null;
}
