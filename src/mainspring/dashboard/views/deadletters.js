// Dead letters: which events a group gave up on, why, sending them back, and dropping them.

import { topicPath, withQuery } from "../api.js";
import { h, alone, beside, closer, empty, facts, failure, fill, head, panel, say, time } from "../dom.js";
import { action, field, question, toast, trouble } from "../feedback.js";
import { ago, brief, count, plural } from "../format.js";
import { Grid } from "../grid.js";
import { payloadText, viewer } from "../json.js";
import { note, to } from "../router.js";

const PAGE = 500;

export function open(ctx) {
  return ctx.parts[0] ? new Letters(ctx, ctx.parts[0]) : all(ctx);
}

// -- topics that have some

function all(ctx) {
  const sentence = h("span", { text: "Loading…" });
  const grid = new Grid({
    label: "Topics with dead letters",
    onOpen: (row) => (location.hash = to(["deadletters", row.topic])),
    none: empty("No dead letters", "No group has given up on an event."),
    columns: [
      { label: "Topic", width: "minmax(140px, 3fr)", cell: (row) => h("a", { href: to(["deadletters", row.topic]), tabindex: "-1", text: row.topic }) },
      { label: "Kept in", width: "minmax(120px, 2fr)", least: 560, cell: (row) => row.deadLetterTopic },
      { label: "Letters", width: "130px", kind: "r", cell: (row) => count(row.count) },
    ],
  });
  grid.element.classList.add("fill");
  const place = trouble();
  const element = h("div", {}, head("Dead letters", sentence), place.element, grid.element);
  const load = async () => {
    try {
      const { topics } = await ctx.api.get("/dlq", { signal: ctx.signal });
      place.over();
      const found = topics.filter((row) => row.count > 0).sort((a, b) => b.count - a.count);
      say(sentence, found.length ? `${plural(found.length, "topic")} with events that a group gave up on.` : "Events a group gives up on are kept, with the reason.");
      grid.setRows(found.length, (index) => found[index]);
    } catch (problem) {
      place.tell(problem);
    }
  };
  return { element, update: load, close: () => grid.close() };
}

// -- the letters of one topic

class Letters {
  constructor(ctx, topic) {
    this.ctx = ctx;
    this.topic = topic;
    this.rows = [];
    this.marked = new Set();
    this.next = undefined;
    this.sentence = h("span", { text: "Loading…" });
    this.search = h("input", { type: "search", placeholder: "Text in the reason", value: ctx.query.get("reason") ?? "" });
    this.groupField = h("input", { type: "text", placeholder: "Any", value: ctx.query.get("group") ?? "" });
    this.acts = h("div", { class: "end" });
    this.more = h("button", { type: "button", hidden: true, text: "Load older ones", on: { click: () => this.load() } });
    this.grid = new Grid({
      label: "Dead letters",
      onOpen: (row) => this.show(row),
      onToggle: (row) => this.mark(row),
      none: empty("No dead letters", "Nothing here fits."),
      columns: [
        { label: "", width: "44px", kind: "tick", cell: (row, _, cell) => this.tick(row, cell) },
        { label: "Reason", width: "minmax(130px, 2.4fr)", cell: (row) => row.reason || "not acknowledged in time" },
        { label: "Group", width: "minmax(80px, 1fr)", least: 520, cell: (row) => row.group },
        { label: "Attempts", width: "84px", kind: "r", least: 600, cell: (row) => count(row.attempts) },
        { label: "Payload", width: "minmax(90px, 2fr)", kind: "m", least: 760, cell: (row) => brief(row.payload, 120) },
        { label: "Died", width: "120px", kind: "r", cell: (row) => time(row.ts, ago(row.ts, ctx.store.node?.now ?? Date.now())) },
      ],
    });
    this.grid.element.classList.add("fill");
    this.grid.isSelected = (_, row) => Boolean(row && this.shown?.offset === row.offset);
    this.split = h("div", { class: "split" }, this.grid.element);
    const form = h("form", { class: "bar", on: { submit: (event) => this.filter(event) } },
      h("div", { class: "grow" }, field("Reason", this.search)), field("Group", this.groupField), h("button", { type: "submit", text: "Filter" }), this.acts);
    const crumb = h("a", { class: "crumb", href: "#/deadletters", text: "Dead letters" });
    this.trouble = trouble();
    this.element = h("div", {}, head(topic, this.sentence, [h("a", { class: "button", href: to(["topics", topic]), text: "Topic" })], crumb), this.trouble.element, form, this.split, this.more);
    this.begin();
  }

  async begin() {
    const rights = await this.ctx.api.get(topicPath(this.topic, "/rights"), { signal: this.ctx.signal }).catch(() => ({ publishRefusal: "" }));
    this.why = rights.publishRefusal;
    this.drawActs();
    await this.load(true);
  }

  get filters() {
    return { reason: this.search.value.trim(), group: this.groupField.value.trim() };
  }

  filter(event) {
    event.preventDefault();
    note(["deadletters", this.topic], this.filters);
    this.hide();
    this.load(true);
  }

  async load(anew = false) {
    const turn = (this.turn = {}); // what was asked before comes too late
    try {
      if (anew) Object.assign(this, { rows: [], next: undefined, marked: new Set() });
      const { letters, next } = await this.fetch(this.next);
      if (this.turn !== turn) return;
      this.loaded = true;
      this.trouble.over();
      this.rows.push(...letters);
      this.next = next;
      this.more.hidden = next === undefined;
      this.more.textContent = "Load more";
      this.draw();
    } catch (problem) {
      this.trouble.tell(problem);
    }
  }

  fetch(offset) {
    const path = withQuery(`/dlq/${encodeURIComponent(this.topic)}`, { ...this.filters, offset: offset ?? "", limit: PAGE });
    return this.ctx.api.get(path, { signal: this.ctx.signal });
  }

  draw() {
    say(this.sentence, `${plural(this.rows.length, "event")}${this.next === undefined ? "" : " so far"} that a group gave up on, oldest first.`);
    this.grid.setRows(this.rows.length, (index) => this.rows[index]);
    this.drawActs();
  }

  drawActs() {
    const chosen = this.marked.size;
    if (!this.rows.length) {
      fill(this.acts);
      return;
    }
    fill(this.acts,
      action(this.ctx, chosen ? `Drop ${count(chosen)} marked…` : "Drop all…", () => this.drop(), { why: this.why }),
      action(this.ctx, chosen ? `Redrive ${count(chosen)} marked` : "Redrive all…", () => this.redrive(), { why: this.why, kind: "main" }),
      this.why && h("span", { class: "dim", text: "Read-only for this token." }));
  }

  tick(row, cell) {
    const box = cell.firstElementChild ?? cell.appendChild(h("input", { type: "checkbox", tabindex: "-1" }));
    box.checked = this.marked.has(row.offset);
    box.setAttribute("aria-label", `Mark dead letter ${row.offset}`);
    return undefined;
  }

  mark(row) {
    if (this.marked.has(row.offset)) this.marked.delete(row.offset);
    else this.marked.add(row.offset);
    this.drawActs();
  }

  /** The marked ones, or all that fit the filter: how the node is told, and how many that are. */
  async chosen(offsets) {
    if (offsets) return { body: { offsets }, what: plural(offsets.length, "dead letter") };
    const { reason, group } = this.filters;
    const body = { ...(reason && { reason }), ...(group && { group }) };
    if (this.next === undefined) return { body, what: reason || group ? `${plural(this.rows.length, "dead letter")} that fit the filter` : `all ${plural(this.rows.length, "dead letter")}` };
    if (reason || group) return { body, what: `everything that fits the filter, more than ${plural(this.rows.length, "dead letter")},` };
    const { topics } = await this.ctx.api.get("/dlq", { signal: this.ctx.signal });
    return { body, what: `all ${plural(topics.find((row) => row.topic === this.topic)?.count ?? 0, "dead letter")}` };
  }

  async redrive(offsets = this.marked.size ? [...this.marked] : null) {
    const { body, what } = await this.chosen(offsets);
    const target = h("select", { name: "to" }, h("option", { value: "group", text: "The group that gave up" }), h("option", { value: "all", text: "Every group of the topic" }));
    const values = await question({ title: "Send back?", text: `Sends ${what} back; attempts are counted anew.`, fields: [field("To", target)], yes: "Redrive" });
    if (!values) return;
    const done = await this.change("redrive", { ...body, toAll: values.to === "all" });
    toast(`${plural(done.count, "event")} sent back to ${values.to === "all" ? "every group" : "the group that gave up"}.`);
  }

  async drop(offsets = this.marked.size ? [...this.marked] : null) {
    const { body, what } = await this.chosen(offsets);
    if (!(await question({ title: "Drop for good?", text: `Drops ${what}. Nobody gets them any more.`, yes: "Drop", danger: true }))) return;
    const done = await this.change("drop", Object.keys(body).length ? body : { all: true });
    toast(`${plural(done.count, "dead letter")} dropped.`);
  }

  async change(verb, body) {
    const done = await this.ctx.api.send("POST", `/dlq/${encodeURIComponent(this.topic)}/${verb}`, body);
    this.ctx.store.attentionChanged();
    this.hide();
    await this.load(true);
    return done;
  }

  show(row) {
    this.shown = row;
    const close = closer(this.grid.element, () => this.hide());
    const payload = h("div", { text: "Loading…" });
    const place = { topic: row.originalTopic, partition: row.originalPartition || "", offset: row.originalOffset };
    const detail = panel(`Dead letter ${count(row.offset)}`, { note: close, class: "detail" },
      h("section", {}, facts([
        ["Reason", row.reason || "not acknowledged in time"],
        ["Group", h("a", { href: to(["groups", row.originalTopic, row.group]), text: row.group })],
        ["Attempts", count(row.attempts)],
        ["Came from", h("a", { href: to(["events"], place), text: `${row.originalTopic}, partition ${row.originalPartition}, offset ${count(row.originalOffset)}` })],
        ["Died", time(row.ts)],
        row.key !== undefined && ["Key", row.key],
      ]), h("div", { class: "acts" }, action(this.ctx, "Redrive this one…", () => this.redrive([row.offset]), { why: this.why }), action(this.ctx, "Drop this one…", () => this.drop([row.offset]), { why: this.why }))),
      failure(row.failure),
      h("section", {}, h("h3", { text: "Headers" }), facts(Object.entries(row.headers))),
      h("section", {}, h("h3", { text: "Payload" }), payload));
    this.loadPayload(row, payload);
    beside(this.split, this.grid.element, detail);
    this.grid.refresh();
  }

  /** The text as it is stored: a dead letter is an event of its own topic. */
  async loadPayload(row, place) {
    const path = topicPath(row.topic, `/events/${row.partition}/${row.offset}`);
    const text = await this.ctx.api.text(path, { signal: this.ctx.signal }).catch(() => "");
    fill(place, viewer(payloadText(text) ?? JSON.stringify(row.payload)));
  }

  hide() {
    this.shown = null;
    alone(this.split, this.grid.element);
    this.grid.refresh();
  }

  update() {
    this.grid.refresh();
    if (this.loaded && this.next === undefined && !this.catchingUp) this.catchUp();
  }

  /** What died meanwhile comes at the end, so nothing moves under a reader. */
  async catchUp() {
    const { turn } = this;
    this.catchingUp = true;
    const found = await this.fetch((this.rows.at(-1)?.offset ?? 0) + 1).catch(() => null); // the shell tells when a node is away
    this.catchingUp = false;
    if (!found?.letters.length || this.turn !== turn) return;
    this.rows.push(...found.letters);
    this.next = found.next;
    this.more.hidden = found.next === undefined;
    this.draw();
  }

  close() {
    this.grid.close();
  }
}
