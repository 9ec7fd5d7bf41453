// The nodes on this node's log: who they are, since when, what each does for all of them and what its program serves.

import { History } from "../chart.js";
import { h, alone, beside, closer, empty, facts, fill, head, panel, refill, say, tag, time } from "../dom.js";
import { trouble } from "../feedback.js";
import { ago, count, exact, plural, rate, span } from "../format.js";
import { Grid } from "../grid.js";
import { note } from "../router.js";

const ENGINES = { memory: "memory", sqlite: "SQLite", nats: "NATS JetStream", mongodb: "MongoDB" };
const SILENT_MS = 5_000; // a heartbeat that is younger is nothing to tell

export function open(ctx) {
  return new Nodes(ctx);
}

class Nodes {
  constructor(ctx) {
    this.ctx = ctx;
    this.rows = [];
    this.shown = ctx.parts[0] ?? null;
    this.sentence = h("span", { text: "Loading…" });
    this.promise = h("div", { class: "body" });
    this.engine = panel("Engine", {}, this.promise);
    this.engine.hidden = true;
    const { shared } = ctx.store; // a node alone has no epochs and shares no roles out
    this.grid = new Grid({
      label: "Nodes",
      onOpen: (row) => this.show(row.name),
      none: empty("No nodes", "Nobody holds a lease on the log."),
      columns: [
        { label: "Node", width: "minmax(120px, 1.6fr)", cell: (row) => h("span", {}, row.name, row.here && [" ", tag("this page", "info")]) },
        { label: "Since", width: "minmax(96px, 1fr)", kind: "r", cell: (row) => (row.since ? ago(row.since, this.now) : "joining") },
        { label: "Address", width: "minmax(120px, 1.6fr)", least: 640, cell: (row) => row.address },
        shared && { label: "Roles", width: "minmax(90px, 1.2fr)", least: 760, cell: (row) => row.roles.join(", ") },
        { label: "Serves", width: "88px", kind: "r", least: 460, cell: (row) => plural(row.serves.length, "type") },
        { label: "Version", width: "84px", kind: "r", least: 560, cell: (row) => row.version },
        shared && { label: "Epoch", width: "76px", kind: "r", least: 860, cell: (row) => count(row.epoch) },
      ].filter(Boolean),
    });
    this.grid.isSelected = (_, row) => Boolean(row && row.name === this.shown);
    this.grid.element.classList.add("fill");
    this.split = h("div", { class: "split" }, this.grid.element);
    this.trouble = trouble();
    this.away = h("ul", { class: "note-list" });
    this.missing = panel("Away", {}, h("div", { class: "body" }, this.away));
    this.loop = new LoopPanel(ctx);
    this.element = h("div", { class: "stack" }, head("Nodes", this.sentence), this.trouble.element, this.missing, this.engine, this.split, this.loop.element);
    this.load();
  }

  get now() {
    return this.ctx.store.node?.now ?? Date.now();
  }

  async load() {
    try {
      const { nodes, engine } = await this.ctx.api.get("/nodes", { signal: this.ctx.signal });
      this.trouble.over();
      this.rows = nodes;
      this.draw(engine);
    } catch (problem) {
      this.trouble.tell(problem);
    }
  }

  draw(engine) {
    const here = this.rows.find((row) => row.here)?.name ?? "this node";
    const name = engine && (ENGINES[engine.name] ?? engine.name);
    say(this.sentence, engine?.shared
      ? `${plural(this.rows.length, "node shares", "nodes share")} the log in ${name}. This page talks to ${here}.`
      : `${here} is alone: its log is in ${name ?? "its own hands"}, which no other node can share.`);
    this.engine.hidden = !engine;
    if (engine) refill(this.promise, promiseOf(engine, name));
    this.grid.setRows(this.rows.length, (index) => this.rows[index]);
    if (this.shown) this.drawNode();
  }

  // -- one node

  show(name) {
    this.shown = name;
    this.drawn = null;
    note(["nodes", name], {});
    this.drawNode();
    this.grid.refresh();
  }

  drawNode() {
    const row = this.rows.find((each) => each.name === this.shown);
    const close = closer(this.grid.element, () => this.hide());
    const inside = row ? this.sections(row) : [h("section", {}, h("p", { class: "dim", text: "It is not on the log now: it has stopped, or it was silent for longer than its lease." }))];
    const detail = panel(this.shown, { note: close, class: "detail" }, inside);
    if (this.drawn?.isConnected) refill(this.drawn, ...detail.childNodes);
    else beside(this.split, this.grid.element, (this.drawn = detail));
  }

  sections(row) {
    return [
      h("section", {}, facts([
        ["Name", row.here ? h("span", {}, row.name, " ", tag("this page", "info")) : row.name],
        row.since && ["Since", [time(row.since), `, ${span(Math.max(0, this.now - row.since))}`]],
        ["Address", address(row) || "not told"],
        ["Version", row.version || "not told"],
        ["Records", `form ${row.format}`],
        row.epoch && ["Epoch", count(row.epoch)],
        !row.here && ["Heard", row.silent_ms < SILENT_MS ? "just now" : `${span(row.silent_ms)} ago`],
        row.epoch && ["Roles", row.roles.length ? h("span", { class: "tags" }, row.roles.map((role) => tag(role))) : "none"],
      ])),
      h("section", {}, h("h3", { text: `Serves, ${plural(row.serves.length, "type")}` }), row.serves.length
        ? h("ul", { class: "mono" }, row.serves.map((each) => h("li", { text: each.replace(":", " ") })))
        : h("p", { class: "dim", text: "Its program handles no commands and no queries." })),
    ];
  }

  hide() {
    this.shown = this.drawn = null;
    note(["nodes"], {});
    alone(this.split, this.grid.element);
    this.grid.refresh();
  }

  drawAway() {
    const away = this.ctx.store.attention.needs.find(({ kind }) => kind === "nodes")?.examples ?? [];
    this.missing.hidden = !away.length;
    refill(this.away, away.map(({ name, at }) => h("li", {}, h("b", { text: name }), " went without a goodbye", h("span", { class: "when", title: exact(at), text: ago(at, this.now) }))));
  }

  update() {
    this.load();
    this.drawAway();
    this.loop.update(this.ctx.store.node);
  }

  close() {
    this.grid.close();
    this.loop.close();
  }
}

// -- the loop of the node that this page talks to

class LoopPanel {
  constructor(ctx) {
    this.lanes = h("div", { class: "lanes" });
    this.blocked = h("ul", { class: "note-list" });
    this.longest = h("p", { class: "dim" });
    this.history = new History({ ctx, path: "/history", charts: [{ label: "Turns of the loop per second", height: 110, series: [{ name: "turns per second", token: "violet", pick: (point) => point.turns, format: rate }] }] });
    this.element = panel("Loop", { note: this.history.choice }, h("div", { class: "body stack" }, this.lanes, this.history.element, h("h3", { text: "What blocked the loop" }), this.blocked, this.longest));
  }

  update(node) {
    const loop = node?.loop;
    this.element.hidden = !loop;
    if (!loop) return;
    const lanes = [
      ["System lane", count(loop.system_depth)],
      ["User lane", count(loop.user_depth)],
      ["Completions", count(loop.completions_waiting)],
      ["Oldest waits", span(loop.oldest_waiting_ms)],
      ["Timers", count(loop.timers_pending)],
      ["Failed turns", count(loop.failed_turns)],
    ];
    refill(this.lanes, lanes.map(([name, value]) => h("div", {}, h("b", { text: value }), h("span", { text: name }))));
    say(this.longest, loop.longest_turn ? `The longest turn was ${loop.longest_turn} with ${span(loop.longest_turn_ns / 1e6)}.` : "");
    this.drawBlocked(node);
    this.history.update();
  }

  /** While something blocks the loop no page can say so. The list is made anew only when it changed: an open stack stays open. */
  drawBlocked(node) {
    const shown = node.slowTurns.slice(0, 8);
    const state = shown.map((each) => each.at).join() || "none";
    if (this.blocked.dataset.shown !== state) {
      this.blocked.dataset.shown = state;
      fill(this.blocked, shown.length ? shown.map(blockedItem) : h("li", { class: "dim", text: "Nothing since the node started." }));
    }
    [...this.blocked.querySelectorAll(".when")].forEach((element, index) => say(element, ago(shown[index].at, node.now)));
  }

  close() {
    this.history.close();
  }
}

function blockedItem(each) {
  return h(
    "li",
    {},
    each.kind,
    " ",
    h("code", { text: each.name }),
    ` blocked it for ${span(each.ms)}`,
    h("span", { class: "when" }),
    each.where ? h("div", { class: "dim", text: each.where }) : null,
    each.stack ? h("details", {}, h("summary", { text: "Stack" }), h("pre", { class: "raw", text: each.stack })) : null,
  );
}

function promiseOf(engine, name) {
  const known = engine.durable !== null;
  return facts([
    ["Kept in", name],
    ["Acknowledged means", h("span", {}, tag(known ? (engine.durable ? "durable" : "could be lost") : "not known", known ? (engine.durable ? "good" : "warn") : ""), " ", engine.statement?.replace(`${engine.name}: `, "") ?? "The server does not answer now.")],
  ]);
}

/** Only what a browser opens as a page is a link: the text comes from another node. */
function address(row) {
  if (!/^https?:\/\//.test(row.address)) return row.address;
  return row.here ? row.address : h("a", { href: row.address, rel: "noreferrer", text: row.address });
}
