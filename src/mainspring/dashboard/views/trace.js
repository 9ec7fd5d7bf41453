// What caused what: the tree around one message, and the messages that passed lately to choose one from.

import { topicPath, withQuery } from "../api.js";
import { h, empty, facts, fill, head, panel, tag, time } from "../dom.js";
import { field, refused, trouble } from "../feedback.js";
import { moment, plural, span } from "../format.js";
import { Grid } from "../grid.js";
import { note, to } from "../router.js";

const CAUSATION = "x-causation"; // headers of a stored event
const CORRELATION = "x-correlation";
const KINDS = { command: "info", query: "", reply: "good", error: "bad", event: "warn", run: "work", beat: "work" };

// What the dashboard asks about by itself; a person looking for causes seldom looks for these.
const OWN = new Set(["Beat.Standing", "Beat.Read", "Run.List", "Run.Count", "Run.Programs", "Run.History", "Run.Outcome", "Timer.List", "Syscall.Trace", "Syscall.List", "Syscall.Describe"]);

export function kindTag(kind) {
  return tag(kind, KINDS[kind] ?? "");
}

export function open(ctx) {
  const sentence = h("span", { text: "Which message caused which. The node remembers the last 10,000." });
  const search = h("input", { type: "search", placeholder: "Id of a message, or part of a type", value: ctx.parts[0] ?? "" });
  const kind = h("select", {}, ["", "command", "query", "event", "reply", "error", "run", "beat"].map((name) => h("option", { value: name, text: name || "Any kind" })));
  const own = h("input", { type: "checkbox", checked: true });
  const tree = h("div");
  const place = trouble();
  let rows = [];
  const grid = new Grid({
    label: "Messages that passed lately",
    onOpen: (row) => draw(row.id),
    none: empty("No messages", "Nothing that fits has passed lately."),
    rowHeight: 34,
    columns: [
      { label: "Time", width: "120px", least: 460, kind: "m", cell: (row) => time(row.timestamp, moment(row.timestamp)) },
      { label: "Kind", width: "104px", cell: (row) => kindTag(row.kind) },
      { label: "Type", width: "minmax(120px, 1.4fr)", cell: (row) => row.type },
      { label: "Id", width: "minmax(100px, 1.4fr)", least: 620, kind: "m", cell: (row) => row.id },
      { label: "Caused by", width: "minmax(100px, 1.4fr)", least: 880, kind: "m", cell: (row) => row.causation ?? "" },
    ],
  });
  grid.element.classList.add("half");

  async function draw(id, place = {}) {
    note(["trace", id], place);
    try {
      const found = await ctx.api.ask("Syscall.Trace", { id }, { signal: ctx.signal });
      fill(tree, treeOf(found, draw));
    } catch (problem) {
      if (problem.name === "AbortError") return;
      const kept = problem.status === 404 && place.topic ? await fromLog(place) : null;
      fill(tree, kept ? treeOf(kept, draw, "The node has forgotten the messages around it; this is what the log keeps.") : panel("Causation", {}, h("div", { class: "body" }, refused(problem))));
    }
  }

  /** A stored event says what caused it, long after the node has forgotten the message. */
  async function fromLog({ topic, partition, offset }) {
    const path = topicPath(topic, `/events/${Number(partition || 0)}/${Number(offset)}`);
    const event = await ctx.api.get(path, { signal: ctx.signal }).catch(() => null);
    if (!event) return null;
    const { [CAUSATION]: causation, [CORRELATION]: correlation } = event.headers ?? {};
    const stored = { id: event.id, kind: "event", type: event.topic, timestamp: event.ts, causation, correlation };
    const cause = causation && { id: causation, kind: "message", type: "forgotten", depth: 0 };
    return { id: event.id, messages: [...(cause ? [cause] : []), { ...stored, depth: cause ? 1 : 0 }] };
  }

  async function list() {
    try {
      const text = search.value.trim();
      const { messages } = await ctx.api.get(withQuery("/messages", { text, kind: kind.value, limit: 1000 }), { signal: ctx.signal });
      const once = [...new Map(messages.map((message) => [message.id, message])).values()]; // an event passes by each of its readers
      rows = own.checked ? once.filter(({ type }) => !OWN.has(type)) : once;
      grid.setRows(rows.length, (index) => rows[index]);
      place.over();
      return rows;
    } catch (problem) {
      place.tell(problem);
      return [];
    }
  }

  const submit = async (event) => {
    event.preventDefault();
    const found = await list();
    const text = search.value.trim();
    if (text && (found.some((row) => row.id === text) || !found.length)) await draw(text);
  };
  kind.addEventListener("change", list);
  own.addEventListener("change", list);
  const element = h(
    "div",
    { class: "stack" },
    head("Causation", sentence),
    h("form", { class: "bar flush", on: { submit } }, h("div", { class: "grow" }, field("Message", search)), field("Kind", kind), h("button", { type: "submit", text: "Find" }), h("label", { class: "check" }, own, "Without what this page asks")),
    place.element,
    tree,
    grid.element,
  );
  if (ctx.parts[0]) {
    const [topic, partition, offset] = ["topic", "partition", "offset"].map((name) => ctx.query.get(name));
    draw(ctx.parts[0], topic ? { topic, partition, offset } : {});
    search.value = "";
  }
  list();
  return { element, close: () => grid.close() };
}

/** The tree as a list of rows, deep ones further in; arrow keys move, Enter makes a message the centre. */
function treeOf({ id, messages, truncated }, choose, remark = "") {
  const root = messages[0];
  const shown = Math.max(messages.findIndex((node) => node.id === id), 0);
  const detail = h("div", { class: "body" });
  const items = messages.map((node, at) => {
    return h(
      "div",
      {
        role: "treeitem",
        class: node.id === id ? "marked" : "",
        tabindex: at === shown ? "0" : "-1",
        aria: { level: node.depth + 1, selected: node.id === id },
        on: { click: () => focus(at), focus: () => tell(node), dblclick: () => choose(node.id) },
      },
      h("span", { class: "limb" }, twigs(messages, at), kindTag(node.kind), h("span", { class: "type", text: node.type }), h("code", { class: "id", text: node.id })),
      h("span", { class: "at", text: whenOf(node, at ? root : node) }),
    );
  });
  const focus = (at) => {
    const next = items[Math.max(0, Math.min(items.length - 1, at))];
    items.forEach((item) => item.setAttribute("tabindex", item === next ? "0" : "-1"));
    next.focus();
  };
  const tell = (node) => fill(detail, facts([
    ["Id", h("code", { text: node.id })],
    node.timestamp && ["Time", time(node.timestamp)],
    node.causation && ["Caused by", h("code", { text: node.causation })],
    node.correlation && ["Correlation", h("code", { text: node.correlation })],
    whereOf(node),
  ]));
  const list = h("div", { class: "tree", role: "tree", aria: { label: "Causation tree" } }, items);
  list.addEventListener("keydown", (event) => {
    const at = items.indexOf(document.activeElement);
    const moves = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: items.length - 1, ArrowLeft: parentOf(messages, at) };
    if (event.key in moves) focus(moves[event.key]);
    else if (event.key === "Enter") choose(messages[at].id);
    else return;
    event.preventDefault();
  });
  tell(messages[shown]);
  const length = `${plural(messages.length, "message")}${truncated ? ", more are not shown" : ""}`;
  const lasted = root.timestamp ? ` in ${span(Math.max(...messages.map((node) => node.timestamp)) - root.timestamp)}` : "";
  return panel(`Causation of ${messages[shown].type}`, { note: `${length}${lasted}` }, list, detail, remark && h("p", { class: "body dim", text: remark }));
}

/** The root's time of day, and how much later the others were; of a message that is forgotten no time is known. */
function whenOf(node, root) {
  if (node === root || !root.timestamp) return node.timestamp ? moment(node.timestamp) : "";
  return `+${span(node.timestamp - root.timestamp)}`;
}

/** The lines left of a node: for each level above it, whether a later brother or sister still comes. */
function twigs(messages, at) {
  const { depth } = messages[at];
  return Array.from({ length: depth }, (_, above) => {
    const level = above + 1;
    const next = messages.slice(at + 1).find((node) => node.depth <= level);
    const goesOn = next?.depth === level;
    return h("span", { class: `twig ${level === depth ? "turn" : ""} ${goesOn ? "on" : ""}` });
  });
}

/** Where more is known about a node that is no message: a run, a beat, a stored event, whose type is its topic. */
function whereOf({ kind, type, id }) {
  if (kind === "run") return ["Run", h("a", { href: to(["runs", id]), text: id })];
  const beat = kind === "beat" ? /^beat\/(\d+)/.exec(id)?.[1] : null;
  if (beat) return ["Beat", h("a", { href: to(["beats", beat]), text: beat })];
  if (kind === "event" && !/^[A-Z][A-Za-z0-9]*\.[A-Z]/.test(type)) return ["Topic", h("a", { href: to(["events"], { topic: type, q: id }), text: type })];
  return null;
}

function parentOf(messages, at) {
  for (let before = at - 1; before >= 0; before--) if (messages[before].depth < messages[at].depth) return before;
  return at;
}

export function traceLink(id, text = "trace") {
  return h("a", { href: to(["trace", id]), text });
}
