// Beats: the line of digests, and of each beat what came in, what ran, what it made visible and what it asked for.

import { h, alone, beside, closer, empty, facts, fill, head, panel, say, table, tag } from "../dom.js";
import { action, field, question, refused, toast, trouble } from "../feedback.js";
import { brief, count, plural } from "../format.js";
import { Grid, Pages } from "../grid.js";
import { tree } from "../json.js";
import { note } from "../router.js";

const RESULTS = { ok: "good", retry: "warn", failed: "bad", fatal: "bad", blocked: "warn", duplicate: "" };
const PAGE = 20;
const MOST_ROWS = 200;

export function open(ctx) {
  return new Beats(ctx);
}

class Beats {
  constructor(ctx) {
    this.ctx = ctx;
    this.next = 1;
    this.sentence = h("span", { text: "Loading…" });
    this.acts = h("span", { class: "acts" });
    this.pages = new Pages(PAGE, (page) => this.fetchPage(page), () => this.grid.refresh());
    this.grid = new Grid({
      label: "Beats",
      onOpen: (row) => this.show(row.beat),
      none: empty("No beats yet", "A signal begins the first one."),
      rowHeight: 32,
      columns: [
        { label: "", width: "40px", kind: "full", cell: () => h("span", { class: "link" }) },
        { label: "Beat", width: "90px", kind: "r", cell: (row) => count(row.beat) },
        { label: "Digest", width: "minmax(120px, 1fr)", kind: "m", cell: (row) => row.digest ?? "not kept" },
      ],
    });
    this.grid.element.classList.add("fill");
    this.grid.isSelected = (_, row) => Boolean(row && row.beat === this.shown);
    this.split = h("div", { class: "split" }, this.grid.element);
    this.path = h("input", { type: "search", placeholder: "Read a path, like /index or /rt/beat/3/agenda" });
    const form = h("form", { class: "bar", on: { submit: (event) => this.read(event) } }, h("div", { class: "grow" }, field("Path", this.path)), h("button", { type: "submit", text: "Read" }));
    this.trouble = trouble();
    this.element = h("div", {}, head("Beats", this.sentence, this.acts), this.trouble.element, form, this.split);
    this.load().then(() => ctx.parts[0] && this.show(Number(ctx.parts[0])));
  }

  async load() {
    try {
      const standing = await this.ctx.api.ask("Beat.Standing", {}, { signal: this.ctx.signal });
      const { beat, paused, waiting } = standing;
      this.trouble.over();
      say(this.sentence, `Beat ${count(beat)} is next, ${plural(waiting, "signal")} waiting${paused ? "; paused" : ""}.`);
      if (this.paused !== paused) this.drawActs(paused);
      this.paused = paused;
      if (beat !== this.next) {
        this.next = beat;
        this.pages.clear();
        this.grid.setRows(beat - 1, (index) => this.pages.get(index));
      } else if (beat === 1) this.grid.setRows(0, () => undefined);
    } catch (problem) {
      this.trouble.tell(problem);
    }
  }

  drawActs(paused) {
    const { ctx } = this;
    fill(this.acts,
      action(ctx, "Signal…", () => this.signal()),
      action(ctx, paused ? "Resume" : "Pause", () => this.command(paused ? "Beat.Resume" : "Beat.Pause")),
      action(ctx, "Beat now", () => this.command("Beat.Run")));
  }

  async command(type) {
    await this.ctx.api.command(type, {});
    await this.load();
  }

  async signal() {
    const values = await question({
      title: "Send a signal",
      fields: [field("Signal", h("input", { type: "text", name: "signal", placeholder: "/signals/image/thumbnail" })), field("Target", h("input", { type: "text", name: "target", placeholder: "A path; may be empty" }))],
      yes: "Send",
    });
    if (!values) return;
    const { beat } = await this.ctx.api.command("Beat.Signal", { signal: values.signal.trim() || null, target: values.target.trim() || null });
    toast(`It lands in beat ${count(beat)}.`);
    await this.load();
  }

  fetchPage(page) {
    const newest = this.next - 1 - page * PAGE;
    const beats = Array.from({ length: Math.min(PAGE, newest) }, (_, at) => newest - at);
    return Promise.all(beats.map(async (beat) => ({ beat, digest: await this.value(`/rt/beat/${beat}/digest`) })));
  }

  async value(path) {
    return (await this.ctx.api.ask("Beat.Read", { path }, { signal: this.ctx.signal })).value;
  }

  async read(event) {
    event.preventDefault();
    const path = this.path.value.trim();
    if (!path) return;
    try {
      const value = await this.value(path);
      this.detail(path, h("section", {}, value === null ? h("p", { class: "dim", text: "Nothing is there." }) : tree(value)));
    } catch (problem) {
      this.detail(path, h("section", {}, refused(problem)));
    }
  }

  // -- one beat

  async show(beat) {
    this.shown = beat;
    note(["beats", String(beat)], {});
    this.grid.refresh();
    try {
      const [found, dead] = await Promise.all([this.value(`/rt/beat/${beat}`), this.value(`/rt/dead/${beat}`)]);
      if (found) this.detail(`Beat ${count(beat)}`, this.sections(found, dead));
      else this.detail(`Beat ${count(beat)}`, h("section", {}, h("p", { class: "dim", text: "Its details are not kept any more; its digest is." })));
    } catch (problem) {
      if (problem.name !== "AbortError") this.detail(`Beat ${count(beat)}`, h("section", {}, refused(problem)));
    }
  }

  sections(found, dead) {
    const pair = (entry) => `${entry.signal ?? "any signal"}${entry.target ? ` → ${entry.target}` : ""}`;
    return [
      h("section", {}, h("h3", { text: "Digest" }), h("div", { class: "chain" }, h("div", { class: "this" }, h("span", { text: found.digest ?? "not yet" })), h("div", { class: "dim" }, h("span", {}, found.previous ?? "", h("span", { class: "faint", text: found.beat > 1 ? `  beat ${count(found.beat - 1)}` : "  the beginning" }))))),
      part("Agenda", found.agenda, (entries) => table("Agenda", [["Enzyme", false, true], ["For"], ["Result", false, true]], entries.map((entry) => [entry.enzyme, pair(entry), tag(entry.result, RESULTS[entry.result] ?? "")]))),
      part("Staged values", found.stage, (entries) => h("ul", { class: "staged" }, entries.map((entry) => h("li", {}, facts([["Path", h("code", { text: entry.path })], ["By", entry.enzyme]]), entry.op === "delete" ? h("p", { class: "dim", text: "Deleted." }) : tree(entry.value))))),
      part("Inbox", found.inbox, (entries) => table("Inbox", [["Signal and target"], ["Cause", false, true], ["Attempt", true]], entries.map((entry) => [pair(entry), brief(entry.cause?.kind ?? "", 60), count(entry.attempt ?? 1)]))),
      part("Emitted", found.emitted, (entries) => table("Emitted", [["Signal and target"], ["Lands in", true]], entries.map((entry) => [pair(entry), count(entry.beat)]))),
      part("Diagnostics", found.diagnostics, (entries) => table("Diagnostics", [["Code"], ["About"]], entries.map((entry) => [tag(entry.code, "warn"), brief(entry, 200)]))),
      part("Given up", dead, (entries) => table("Given up", [["Signal and target"], ["Why"]], entries.map((entry) => [pair(entry), entry.reason ?? ""]))),
    ];
  }

  detail(title, ...sections) {
    const close = closer(this.grid.element, () => this.hide());
    beside(this.split, this.grid.element, panel(title, { note: close, class: "detail" }, sections));
  }

  hide() {
    this.shown = null;
    note(["beats"], {});
    alone(this.split, this.grid.element);
    this.grid.refresh();
  }

  update() {
    this.polls = (this.polls ?? 0) + 1;
    if (this.polls % 2 === 0) this.load();
  }

  close() {
    this.grid.close();
  }
}

/** A section, left out where there is nothing; a long list is cut, because nobody reads a hundred thousand lines here. */
function part(title, entries, draw) {
  if (!entries?.length) return null;
  const shown = entries.slice(0, MOST_ROWS);
  const more = entries.length - shown.length;
  return h("section", {}, h("h3", { text: `${title}, ${count(entries.length)}` }), draw(shown), more > 0 && h("p", { class: "dim", text: `${count(more)} more are in the journal.` }));
}
