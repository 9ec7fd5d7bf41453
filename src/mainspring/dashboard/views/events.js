// Events as they are stored, newest first: all partitions of a topic as one list by time, read on as one scrolls, or one
// partition, of which any place can be looked at. Search reads the log from the newest page back; following adds what is
// published while one watches.

import { topicPath, withQuery } from "../api.js";
import { h, alone, beside, closer, empty, facts, fill, head, panel, say, time } from "../dom.js";
import { announce, field, refusal, refused, trouble } from "../feedback.js";
import { brief, count, moment, plural } from "../format.js";
import { Grid, Pages } from "../grid.js";
import { payloadText, viewer } from "../json.js";
import { note, to } from "../router.js";

const PAGE = 200;
const SEARCH_PAGE = 1_000;
const MOST_FOUND = 500;
const OFFERED = 24; // topics to choose from where there is no topic yet; the field above knows all of them
const ALL = "all";
const SYSTEM = /^system\./;

export function open(ctx) {
  return new Browser(ctx);
}

class Browser {
  constructor(ctx) {
    this.ctx = ctx;
    this.topic = ctx.query.get("topic") ?? "";
    this.partition = partitionOf(ctx.query);
    this.parts = []; // the first and the last offset of each partition
    this.bounds = { head: 1, tail: 0 };
    this.found = null; // events of a search, or null while the whole list is shown
    this.unseen = 0;
    this.stopFollowing = null;
    this.pages = new Pages(PAGE, (page) => this.fetchPage(page), (problem) => (problem ? this.trouble.tell(problem) : this.grid.refresh()));
    this.build();
    this.choose(Number(ctx.query.get("offset") ?? 0)).then(() => this.goOn(ctx.query));
  }

  /** What an address says besides: the event that is open in the list of all partitions, and following. */
  async goOn(query) {
    if (this.ctx.signal.aborted) return;
    if (query.get("follow")) this.follow();
    const [partition, offset] = (query.get("at") ?? "").split(":");
    if (!this.isAll || !offset) return;
    try {
      this.show(await this.ctx.api.get(topicPath(this.topic, `/events/${partition}/${offset}`), { signal: this.ctx.signal }));
    } catch (problem) {
      refusal(problem);
    }
  }

  build() {
    const { ctx } = this;
    this.topicField = h("input", { type: "text", list: "topic-names", value: this.topic, placeholder: "Topic", autocomplete: "off", spellcheck: "false" });
    this.names = h("datalist", { id: "topic-names" });
    this.partitionField = h("select");
    this.searchField = h("input", { type: "search", placeholder: "Text in payload, key, id or headers", value: ctx.query.get("q") ?? "" });
    this.jumpField = h("input", { type: "text", placeholder: "Offset or time", size: "16", inputmode: "text" });
    this.followButton = h("button", { type: "button", aria: { pressed: "false" }, on: { click: () => this.follow() } }, h("span", { class: "live-dot" }), "Follow");
    this.sentence = h("span", { text: "Choose a topic." });
    this.status = h("span", { class: "dim", role: "status" });
    this.stopButton = h("button", { type: "button", class: "plain", hidden: true, text: "Stop", on: { click: () => this.searching?.abort() } });
    this.grid = new Grid({
      label: "Events",
      onOpen: (event) => this.show(event),
      none: empty("No topic chosen", "Write the name of one above."),
      columns: [
        { label: "Offset", width: "92px", kind: "r", always: true, least: 440, cell: (event, index) => (this.isAll ? event && `${event.partition}:${count(event.offset)}` : count(event?.offset ?? this.offsetAt(index))) },
        { label: "Time", width: "118px", kind: "m", cell: (event) => time(event.ts, moment(event.ts)) },
        { label: "Key", width: "minmax(70px, 0.6fr)", least: 640, cell: (event) => event.key ?? "" },
        { label: "Payload", width: "minmax(0, 3fr)", kind: "m", cell: (event) => brief(event.payload, 240) },
      ],
      rowHeight: 32,
    });
    this.grid.element.classList.add("fill");
    this.grid.isSelected = (_, event) => Boolean(event && this.shown && event.id === this.shown.id);
    this.split = h("div", { class: "split" }, this.grid.element);
    const form = h(
      "form",
      { class: "bar", on: { submit: (event) => this.submit(event) } },
      field("Topic", this.topicField),
      field("Partition", this.partitionField),
      h("div", { class: "grow" }, field("Search", this.searchField)),
      field("Go to", this.jumpField),
      h("button", { type: "submit", text: "Go" }),
      this.followButton,
      this.names,
    );
    form.querySelector(".grow input").classList.add("wide");
    this.topicField.addEventListener("change", () => this.submit());
    this.partitionField.addEventListener("change", () => this.submit());
    this.trouble = trouble();
    this.element = h("div", {}, head("Events", this.sentence, [this.status, this.stopButton]), form, this.trouble.element, this.split);
    ctx.api.get("/topics", { signal: ctx.signal }).then(({ topics }) => this.offer(topics.map(({ topic }) => topic)), () => {});
  }

  /** The names of all topics for the field, and some to press while none is chosen. */
  offer(names) {
    fill(this.names, names.map((name) => h("option", { value: name })));
    const own = names.filter((name) => !SYSTEM.test(name));
    if (this.topic) return;
    const links = own.slice(0, OFFERED).map((name) => h("a", { class: "button", href: to(["events"], { topic: name }), text: name }));
    const rest = own.length > OFFERED ? h("a", { class: "button", href: to(["topics"]), text: `all ${count(own.length)}…` }) : null;
    this.grid.explain(own.length ? h("div", { class: "empty" }, h("b", { text: "Which topic?" }), h("div", { class: "choices" }, links, rest)) : empty("No topics yet", "The first event that is published to a topic makes it."));
    this.grid.setRows(0, () => undefined);
  }

  // -- which events

  async choose(offset = 0) {
    this.stop();
    if (!this.topic) {
      this.grid.setRows(0, () => undefined);
      return;
    }
    try {
      const { partitions } = await this.ctx.api.get(topicPath(this.topic, "/offsets"), { signal: this.ctx.signal });
      this.parts = partitions;
      if (partitions.length === 1) this.partition = 0;
      else if (!this.isAll) this.partition = Math.min(this.partition, partitions.length - 1);
      const each = partitions.map(({ partition }) => h("option", { value: partition, text: String(partition) }));
      fill(this.partitionField, partitions.length > 1 && h("option", { value: ALL, text: "all" }), each);
      this.partitionField.value = String(this.partition);
      this.take(this.isAll ? { head: 1, tail: 0 } : partitions[this.partition]);
      if (offset) this.goTo(offset);
      if (this.searchField.value.trim()) await this.search();
    } catch (problem) {
      if (problem.name === "AbortError") return;
      say(this.sentence, "");
      this.grid.explain(empty("Nothing to show"));
      this.grid.setRows(0, () => undefined);
      this.trouble.tell(problem);
    }
  }

  get isAll() {
    return this.partition === ALL;
  }

  take({ head: first, tail }) {
    this.trouble.over();
    this.bounds = { head: first, tail };
    this.pages.clear();
    this.unseen = 0;
    this.found = null;
    if (this.isAll) this.begin(this.parts);
    this.list();
  }

  /** All partitions by time, from these ends back. */
  begin(parts) {
    this.merged = new Merged(parts, (partition, first, last) => this.read(partition, first, last));
    this.rows = [];
    this.wanted = 0; // the row that somebody looks at
    this.listed = -1;
    this.readOn();
  }

  async readOn() {
    const { merged } = this;
    if (this.reading || merged.end) return;
    this.reading = true;
    try {
      do {
        const more = await merged.next(Math.min(SEARCH_PAGE, Math.max(PAGE, this.wanted - this.rows.length + 1)));
        if (this.merged !== merged) break;
        this.rows.push(...more);
      } while (!merged.end && this.rows.length <= this.wanted);
    } catch (problem) {
      this.trouble.tell(problem);
      return; // not again by itself: the row that is missing would be asked for without end
    } finally {
      this.reading = false;
    }
    if (this.merged !== merged) this.readOn();
    else if (!this.found) this.list();
  }

  /** Events of a partition between two offsets, newest first. */
  async read(partition, first, last) {
    const path = withQuery(topicPath(this.topic, "/events"), { partition, offset: first, limit: last - first + 1 });
    const { events } = await this.ctx.api.get(path, { signal: this.ctx.signal });
    return events.filter(({ offset }) => offset <= last).reverse();
  }

  list() {
    if (this.isAll) {
      this.grid.explain(this.reading ? empty("Loading…") : empty("No events", "Nothing is stored in this topic."));
      const { rows, merged } = this;
      const length = merged.end ? rows.length : Math.max(rows.length + 1, merged.total);
      say(this.sentence, `${plural(length, "event")} of ${this.topic} in all ${count(this.parts.length)} partitions, newest first.`);
      if (length === this.listed) {
        this.grid.refresh();
        return;
      }
      this.listed = length;
      this.grid.setRows(length, (index) => {
        if (index >= rows.length && !merged.end) {
          this.wanted = Math.max(this.wanted, index);
          this.readOn();
        }
        return rows[index];
      });
      return;
    }
    const { head: first, tail } = this.bounds;
    const length = Math.max(0, tail - first + 1);
    this.grid.explain(empty("No events", "Nothing is stored in this partition."));
    say(this.sentence, `${plural(length, "event")} of ${this.topic} in partition ${this.partition}, newest first.`);
    this.grid.setRows(length, (index) => this.pages.get(index));
  }

  offsetAt(index) {
    return this.bounds.tail - index;
  }

  /** Rows of a page, newest first; offsets that retention or compaction took are gaps. */
  async fetchPage(page) {
    const last = this.offsetAt(page * PAGE);
    const first = Math.max(this.bounds.head, last - PAGE + 1);
    const path = withQuery(topicPath(this.topic, "/events"), { partition: this.partition, offset: first, limit: last - first + 1 });
    const { events } = await this.ctx.api.get(path, { signal: this.ctx.signal });
    const rows = new Array(last - first + 1).fill(null);
    for (const event of events) if (event.offset <= last) rows[last - event.offset] = event;
    return rows;
  }

  async goTo(offset) {
    if (this.isAll) throw Object.assign(new Error("An offset belongs to one partition."), { remedy: "Choose the partition, or write a time." });
    const index = Math.max(0, Math.min(this.bounds.tail - offset, this.bounds.tail - this.bounds.head));
    this.grid.go(index);
    const path = topicPath(this.topic, `/events/${this.partition}/${offset}`);
    this.show(await this.ctx.api.get(path, { signal: this.ctx.signal }));
  }

  // -- the form

  async submit(event) {
    event?.preventDefault();
    const partition = this.partitionField.value === ALL ? ALL : Number(this.partitionField.value || 0);
    const topic = this.topicField.value.trim();
    const other = topic !== this.topic || partition !== this.partition;
    this.partition = topic === this.topic ? partition : ALL;
    this.topic = topic;
    this.remember();
    if (other) {
      this.hide();
      await this.choose();
    } else if (this.jumpField.value.trim()) {
      await this.jump(this.jumpField.value.trim());
    } else {
      await this.search();
    }
  }

  async jump(text) {
    try {
      this.found = null;
      this.list();
      const isOffset = /^\d{1,12}$/.test(text);
      if (this.isAll && !isOffset) await this.backTo(momentOf(text));
      else await this.goTo(isOffset ? Number(text) : await this.offsetOf(text));
    } catch (problem) {
      refusal(problem);
    }
  }

  async offsetOf(text) {
    return (await this.firstSince(this.partition, momentOf(text))) ?? this.bounds.tail;
  }

  /** The offset of the first event of a partition at or after a time. */
  async firstSince(partition, ms) {
    const path = withQuery(topicPath(this.topic, "/events"), { partition, from: ms, limit: 1 });
    const { events } = await this.ctx.api.get(path, { signal: this.ctx.signal });
    return events[0]?.offset;
  }

  /** All partitions from a time back, with the first event after it in each. */
  async backTo(ms) {
    const ends = await Promise.all(this.parts.map(async (part) => ({ ...part, tail: (await this.firstSince(part.partition, ms)) ?? part.tail })));
    this.begin(ends);
    this.list();
    say(this.status, `Until ${moment(ms)}.`);
  }

  // -- search

  async search() {
    const text = this.searchField.value.trim();
    this.searching?.abort();
    if (!text || !this.topic) {
      this.found = null;
      say(this.status, "");
      this.list();
      return;
    }
    const aborter = (this.searching = new AbortController());
    this.ctx.signal.addEventListener("abort", () => aborter.abort());
    this.found = [];
    this.listed = -1;
    this.grid.explain(empty("Searching…"));
    this.stopButton.hidden = false;
    try {
      await this.scan(plain(text), aborter.signal);
    } catch (problem) {
      if (problem.name !== "AbortError") refusal(problem);
    }
    if (this.searching !== aborter) return;
    this.stopButton.hidden = true;
    this.grid.explain(empty("Nothing found", "No event that was read holds this text."));
    this.grid.setRows(this.found.length, (index) => this.found[index]);
    announce(`${plural(this.found.length, "event")} found.`);
  }

  /** Read page by page, newest first, all partitions in turn. A line is looked at as text; only what fits is parsed. */
  async scan(text, signal) {
    const parts = (this.isAll ? this.parts : [{ ...this.bounds, partition: this.partition }]).map((part) => ({ ...part, last: part.tail }));
    const total = parts.reduce((sum, { head: first, tail }) => sum + Math.max(0, tail - first + 1), 0);
    let read = 0;
    let left = parts;
    while ((left = left.filter((part) => part.last >= part.head)).length && this.found.length < MOST_FOUND) {
      for (const part of left) {
        const first = Math.max(part.head, part.last - SEARCH_PAGE + 1);
        const path = withQuery(topicPath(this.topic, "/events"), { partition: part.partition, offset: first, limit: part.last - first + 1 });
        const lines = (await this.ctx.api.text(path, { accept: "application/x-ndjson", signal })).split("\n");
        const fits = lines.filter((line) => line && plain(line).includes(text)).map((line) => JSON.parse(line));
        this.found.push(...fits.filter(({ offset }) => offset <= part.last));
        read += part.last - first + 1;
        part.last = first - 1;
      }
      this.found.sort((a, b) => b.ts - a.ts || b.offset - a.offset);
      this.results(read, total);
    }
    if (!total) this.results(0, 0);
  }

  results(read, total) {
    const where = this.isAll ? `all ${count(this.parts.length)} partitions` : `partition ${this.partition}`;
    say(this.sentence, `${plural(this.found.length, "event")} with “${this.searchField.value.trim()}” in ${this.topic}, ${where}.`);
    say(this.status, read >= total ? `All ${count(read)} read.` : `${count(read)} of ${count(total)} read…`);
    this.grid.setRows(this.found.length, (index) => this.found[index]);
  }

  // -- live

  follow() {
    if (this.stopFollowing) {
      this.stop();
      this.remember();
      return;
    }
    if (!this.topic) return;
    this.followButton.setAttribute("aria-pressed", "true");
    const failed = (problem) => {
      refusal(problem);
      this.stop();
    };
    this.stopFollowing = this.ctx.live.follow(this.topic, (event) => this.arrive(event), failed);
    this.remember();
  }

  stop() {
    this.stopFollowing?.();
    this.stopFollowing = null;
    this.followButton.setAttribute("aria-pressed", "false");
  }

  /** What is shown, as an address: for sharing, for the way back, and for going on when the node was started again. */
  remember() {
    note(["events"], {
      topic: this.topic,
      partition: this.isAll ? "" : this.partition,
      at: this.isAll ? this.shown && `${this.shown.partition}:${this.shown.offset}` : "",
      offset: this.isAll ? "" : this.shown?.offset,
      q: this.searchField.value,
      follow: this.stopFollowing ? "1" : "",
    });
  }

  arrive(event) {
    if (this.isAll) {
      this.arriveInAll(event);
      return;
    }
    if (event.partition !== this.partition || event.offset <= this.bounds.tail + this.unseen) return;
    this.unseen = event.offset - this.bounds.tail;
    if (!this.planned) this.planned = setTimeout(() => this.grow(), 150); // many events, one redraw
  }

  arriveInAll(event) {
    const part = this.parts[event.partition];
    if (!part || event.offset <= part.tail) return;
    part.tail = event.offset;
    this.rows.unshift(event);
    this.merged.total += 1;
    this.unseen += 1;
    if (!this.planned) this.planned = setTimeout(() => this.grow(), 150);
  }

  /** New events push the others down; who has scrolled away from the top keeps what is being looked at. */
  grow() {
    this.planned = 0;
    if (this.found) return;
    const added = this.unseen;
    const { body, rowHeight } = this.grid;
    if (!this.isAll) this.bounds.tail += added;
    this.unseen = 0;
    this.pages.clear();
    if (this.grid.active >= 0) this.grid.active += added;
    this.list();
    if (body.scrollTop > 0) body.scrollTop += added * rowHeight;
  }

  // -- one event

  async show(event) {
    this.shown = event;
    this.remember();
    const payload = h("div", { text: "Loading…" });
    const close = closer(this.grid.element, () => this.hide());
    const detail = panel(`Event ${count(event.offset)}`, { note: close, class: "detail" },
      h("section", {}, facts([
        ["Id", h("code", { text: event.id })],
        ["Time", time(event.ts)],
        ["Place", `${event.topic}, partition ${event.partition}, offset ${count(event.offset)}`],
        event.key !== undefined && event.key !== null && ["Key", event.key],
      ]), h("div", { class: "acts" }, h("a", { class: "button", href: to(["trace", event.id], { topic: event.topic, partition: event.partition || "", offset: event.offset }), text: "What caused it" }))),
      event.headers && h("section", {}, h("h3", { text: "Headers" }), facts(Object.entries(event.headers))),
      h("section", {}, h("h3", { text: "Payload" }), payload));
    beside(this.split, this.grid.element, detail);
    this.grid.refresh();
    try {
      const text = await this.ctx.api.text(topicPath(event.topic, `/events/${event.partition}/${event.offset}`), { signal: this.ctx.signal });
      fill(payload, viewer(payloadText(text) ?? JSON.stringify(event.payload)));
    } catch (problem) {
      if (problem.name !== "AbortError") fill(payload, refused(problem));
    }
  }

  hide() {
    this.shown = null;
    this.remember();
    alone(this.split, this.grid.element);
    this.grid.refresh();
  }

  close() {
    this.stop();
    this.searching?.abort();
    this.grid.close();
  }
}

/** The partition that an address names; a place belongs to partition 0 where it names none. */
function partitionOf(query) {
  const named = query.get("partition");
  return named !== null && named !== "" ? Number(named) : query.get("offset") ? 0 : ALL;
}

/** The time that somebody wrote, in epoch milliseconds. */
function momentOf(text) {
  const ms = /^\d{13}$/.test(text) ? Number(text) : Date.parse(/^\d{1,2}:\d{2}/.test(text) ? `${new Date().toDateString()} ${text}` : text);
  if (Number.isNaN(ms)) throw Object.assign(new Error(`“${text}” is no offset and no time.`), { remedy: "Write 1200, 14:05, or 2026-01-31T12:00:00Z." });
  return ms;
}

/** The events of several partitions as one list by time, newest first; `read(partition, first, last)` gives newest first. */
class Merged {
  constructor(parts, read) {
    this.read = read;
    this.total = parts.reduce((sum, { head: first, tail }) => sum + Math.max(0, tail - first + 1), 0); // and what is gone
    this.lines = parts.map(({ partition, head: first, tail }) => ({ partition, first, last: tail, held: [] }));
  }

  get end() {
    return this.lines.every((line) => !line.held.length && line.last < line.first);
  }

  /** The next ones, about as many as wanted. */
  async next(wanted) {
    const found = [];
    while (found.length < wanted && !this.end) {
      await Promise.all(this.lines.map((line) => this.fill(line, wanted)));
      const lines = this.lines.filter((line) => line.held.length);
      while (lines.length && found.length < wanted) {
        const newest = lines.reduce((best, line) => (line.held[0].ts > best.held[0].ts ? line : best));
        found.push(newest.held.shift());
        if (!newest.held.length) break; // its next one may be newer than what the others hold
      }
    }
    return found;
  }

  async fill(line, wanted) {
    while (!line.held.length && line.last >= line.first) {
      const first = Math.max(line.first, line.last - Math.max(20, Math.ceil(wanted / this.lines.length)) + 1);
      line.held = await this.read(line.partition, first, line.last);
      line.last = first - 1;
    }
  }
}

/** A text as search compares it: small letters, and no spaces where JSON may have them or not. */
function plain(text) {
  return text.toLowerCase().replace(/([:,[{])\s+/g, "$1");
}
