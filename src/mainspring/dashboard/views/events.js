// Events as they are stored: the whole partition is one list, newest first, fetched in pages where one looks. Search
// reads the log from the newest page back; following adds what is published while one watches.

import { topicPath, withQuery } from "../api.js";
import { h, alone, beside, closer, empty, facts, fill, head, panel, say } from "../dom.js";
import { announce, field, refusal, refused, trouble } from "../feedback.js";
import { brief, count, exact, moment, plural } from "../format.js";
import { Grid, Pages } from "../grid.js";
import { payloadText, viewer } from "../json.js";
import { note, to } from "../router.js";

const PAGE = 200;
const SEARCH_PAGE = 1_000;
const MOST_FOUND = 500;
const OFFERED = 24; // topics to choose from where there is no topic yet; the field above knows all of them
const SYSTEM = /^system\./;

export function open(ctx) {
  return new Browser(ctx);
}

class Browser {
  constructor(ctx) {
    this.ctx = ctx;
    this.topic = ctx.query.get("topic") ?? "";
    this.partition = Number(ctx.query.get("partition") ?? 0);
    this.bounds = { head: 1, tail: 0 };
    this.found = null; // events of a search, or null while the whole list is shown
    this.unseen = 0;
    this.stopFollowing = null;
    this.pages = new Pages(PAGE, (page) => this.fetchPage(page), (problem) => (problem ? this.trouble.tell(problem) : this.grid.refresh()));
    this.build();
    this.choose(Number(ctx.query.get("offset") ?? 0)).then(() => ctx.query.get("follow") && !ctx.signal.aborted && this.follow());
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
        { label: "Offset", width: "92px", kind: "r", always: true, cell: (event, index) => count(event?.offset ?? this.offsetAt(index)) },
        { label: "Time", width: "118px", kind: "m", least: 420, cell: (event) => moment(event.ts) },
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
      this.partition = Math.min(this.partition, partitions.length - 1);
      fill(this.partitionField, partitions.map(({ partition }) => h("option", { value: partition, text: String(partition) })));
      this.partitionField.value = String(this.partition);
      this.take(partitions[this.partition]);
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

  take({ head: first, tail }) {
    this.trouble.over();
    this.bounds = { head: first, tail };
    this.pages.clear();
    this.unseen = 0;
    this.found = null;
    this.list();
  }

  list() {
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
    const index = Math.max(0, Math.min(this.bounds.tail - offset, this.bounds.tail - this.bounds.head));
    this.grid.go(index);
    const path = topicPath(this.topic, `/events/${this.partition}/${offset}`);
    this.show(await this.ctx.api.get(path, { signal: this.ctx.signal }));
  }

  // -- the form

  async submit(event) {
    event?.preventDefault();
    const partition = Number(this.partitionField.value || 0);
    const topic = this.topicField.value.trim();
    const other = topic !== this.topic || partition !== this.partition;
    this.partition = topic === this.topic ? partition : 0;
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
      await this.goTo(/^\d{1,12}$/.test(text) ? Number(text) : await this.offsetOf(text));
    } catch (problem) {
      refusal(problem);
    }
  }

  async offsetOf(text) {
    const ms = /^\d{13}$/.test(text) ? Number(text) : Date.parse(/^\d{1,2}:\d{2}/.test(text) ? `${new Date().toDateString()} ${text}` : text);
    if (Number.isNaN(ms)) throw Object.assign(new Error(`“${text}” is no offset and no time.`), { remedy: "Write 1200, 14:05, or 2026-01-31T12:00:00Z." });
    const path = withQuery(topicPath(this.topic, "/events"), { partition: this.partition, from: ms, limit: 1 });
    const { events } = await this.ctx.api.get(path, { signal: this.ctx.signal });
    return events[0]?.offset ?? this.bounds.tail;
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

  /** Read the partition page by page, newest first. A line is looked at as text; only what fits is parsed. */
  async scan(text, signal) {
    let last = this.bounds.tail;
    while (last >= this.bounds.head && this.found.length < MOST_FOUND) {
      const first = Math.max(this.bounds.head, last - SEARCH_PAGE + 1);
      const path = withQuery(topicPath(this.topic, "/events"), { partition: this.partition, offset: first, limit: last - first + 1 });
      const lines = (await this.ctx.api.text(path, { accept: "application/x-ndjson", signal })).split("\n");
      const fits = lines.filter((line) => line && plain(line).includes(text)).map((line) => JSON.parse(line));
      this.found.push(...fits.filter(({ offset }) => offset <= last).reverse());
      last = first - 1;
      this.results(last);
    }
  }

  results(last) {
    const read = this.bounds.tail - last;
    const all = last < this.bounds.head;
    say(this.sentence, `${plural(this.found.length, "event")} with “${this.searchField.value.trim()}” in ${this.topic}, partition ${this.partition}.`);
    say(this.status, all ? `All ${count(read)} read.` : `${count(read)} of ${count(this.bounds.tail - this.bounds.head + 1)} read…`);
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
      partition: this.partition || "",
      offset: this.shown?.offset,
      q: this.searchField.value,
      follow: this.stopFollowing ? "1" : "",
    });
  }

  arrive(event) {
    if (event.partition !== this.partition || event.offset <= this.bounds.tail + this.unseen) return;
    this.unseen = event.offset - this.bounds.tail;
    if (!this.planned) this.planned = setTimeout(() => this.grow(), 150); // many events, one redraw
  }

  /** New events push the others down; who has scrolled away from the top keeps what is being looked at. */
  grow() {
    this.planned = 0;
    if (this.found) return;
    const added = this.unseen;
    const { body, rowHeight } = this.grid;
    this.bounds.tail += added;
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
        ["Time", exact(event.ts)],
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

/** A text as search compares it: small letters, and no spaces where JSON may have them or not. */
function plain(text) {
  return text.toLowerCase().replace(/([:,[{])\s+/g, "$1");
}
