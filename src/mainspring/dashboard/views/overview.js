// What a person wants to know first: what needs them, is it moving, is something behind.

import { needs } from "../attention.js";
import { History, spark } from "../chart.js";
import { h, empty, refill, head, panel, say } from "../dom.js";
import { action, toast } from "../feedback.js";
import { ago, count, plural, rate, span } from "../format.js";
import { to } from "../router.js";

const FIGURES = [
  ["Published", "/s", "blue", (point) => point.published, rate, "#/topics"],
  ["Delivered", "/s", "teal", (point) => point.delivered, rate, "#/topics"],
  ["Behind", "events", "brass", (point) => point.lag, count, "#/groups"],
  ["In flight", "events", "violet", (point) => point.inflight, count, "#/groups"],
];
const BUILT_IN = new Set(["Syscall", "Timer", "Memory", "Event", "Bus", "Run", "Beat"]);

export function open(ctx) {
  const { store } = ctx;
  const history = new History({
    ctx,
    path: "/history",
    charts: [
      {
        label: "Events per second",
        series: [
          { name: "published per second", token: "blue", pick: (point) => point.published, format: rate },
          { name: "delivered per second", token: "teal", pick: (point) => point.delivered, format: rate, fill: false },
        ],
      },
      { label: "Events behind", height: 110, series: [{ name: "behind, all groups", token: "brass", pick: (point) => point.lag, format: count }] },
    ],
  });
  const figures = FIGURES.map((figure) => makeFigure(...figure));
  const urgent = h("div", { class: "body" });
  const faults = h("ul", { class: "note-list" });
  const behind = h("div", { class: "rank" });
  const busy = h("div", { class: "rank" });
  const sentence = h("span");
  const first = firstRun(ctx);
  const element = h(
    "div",
    { class: "stack" },
    head("Overview", sentence),
    first.element,
    panel("Needs attention", {}, urgent),
    h("div", { class: "figures" }, figures.map((figure) => figure.element)),
    panel("Events per second", { note: history.choice }, h("div", { class: "body" }, history.element)),
    h(
      "div",
      { class: "columns" },
      panel("Busiest topics", { note: "published per second" }, h("div", { class: "body" }, busy)),
      panel("Groups with the most to do", { note: "events behind" }, h("div", { class: "body" }, behind)),
      panel("Faults since the start", { note: h("a", { href: to(["kernel"], { tab: "faults" }), text: "all" }) }, h("div", { class: "body" }, faults)),
    ),
  );

  function update() {
    const { node, points } = store;
    if (!node) return;
    const others = store.shared ? `, one of ${plural(store.nodes.length, "node")} on the log` : "";
    const place = store.here ? `${store.here}${others}. ` : "";
    say(sentence, `${place}Mainspring ${node.version}, up ${span(node.now - node.started)}, ${plural(store.stats.connections, "connection")}.${refusals(store.stats.refused)}`);
    refill(urgent, needs(store.attention, node.now));
    for (const figure of figures) figure.update(points, history.points);
    history.update();
    drawFaults(faults, node);
    rank(busy, busiest(store), points.length ? "Nothing was published in the last seconds." : "Counting begins now.");
    rank(behind, furthest(store), "Every group has settled everything.");
    first.update();
  }

  return { element, update, close: () => history.close() };
}

// -- a node on which nothing has happened

/** Help with the first steps, until there is a program or a topic. */
function firstRun(ctx) {
  const { store, api } = ctx;
  const address = location.origin;
  const element = panel("This node is new", {}, h(
    "div",
    { class: "body steps" },
    h("p", { text: "Nothing was published here yet, and no program runs in this node. Two ways to begin:" }),
    h("h3", { text: "Publish an event and look at it" }),
    h("pre", { class: "raw", text: `mainspring pub hello '{"text": "hi"}' --url ${address}\nmainspring tail hello --url ${address}` }),
    h("p", {}, action(ctx, "Publish it from here", publish, { kind: "main" })),
    h("h3", { text: "Write a program and serve it" }),
    h("pre", { class: "raw", text: "mainspring new shop\ncd shop\nmainspring serve shop:app --reload" }),
    h("p", { class: "dim" }, "`mainspring demo` starts a node with a small living example. ".split("`").map((part, at) => (at % 2 ? h("code", { text: part }) : part)), "This page shows what needs a person as soon as something does; ", h("a", { href: "openapi.json", text: "the HTTP interface" }), " tells the same to programs."),
  ));
  element.hidden = true;
  let known = false; // that something is there: it never becomes a new node again
  let polls = 0;

  async function publish() {
    await api.send("POST", "/topics/hello/events", { payload: { text: "hi" } });
    toast("Published.");
    location.hash = to(["events"], { topic: "hello" });
  }

  async function update() {
    if (known || polls++ % 3) return;
    const own = store.node.kernel?.actors.some(({ id }) => !BUILT_IN.has(id));
    known = Boolean(own || store.groups.length || store.attention.count);
    if (!known) {
      const { topics } = await api.get("/topics", { signal: ctx.signal }).catch(() => ({ topics: [{ topic: "?" }] }));
      known = topics.some(({ topic }) => !topic.startsWith("system."));
    }
    element.hidden = known;
  }

  return { element, update };
}

// -- figures and ranks

function makeFigure(name, unit, token, pick, format, href) {
  const value = h("span", { text: "–" });
  const line = h("canvas", { aria: { hidden: "true" } });
  const shown = h("div", { class: "value" }, value, h("small", { text: unit }));
  const element = h("a", { class: "figure", href }, h("div", { class: "name", text: name }), shown, line);
  const update = (points, before) => {
    const now = points.map(pick).findLast((each) => each !== undefined);
    if (now !== undefined) say(value, format(now));
    spark(line, before.slice(-90).map(pick), token, line.clientWidth, 26);
  };
  return { element, update };
}

function drawFaults(place, node) {
  const { faults, counters } = node.kernel ?? { faults: [], counters: {} };
  const items = faults.slice(0, 5).map((fault) => h(
    "li",
    {},
    h("a", { href: to(["trace", fault.causation ?? fault.id]), text: fault.request || fault.type }),
    ` in ${fault.capability || "the kernel"}`,
    when(fault.at, node.now),
    h("div", { class: "dim", text: fault.message }),
  ));
  const sums = [["faults", "fault"], ["restarts", "restart"], ["timeouts", "timeout"], ["late", "late answer"]].map(([name, one]) => plural(counters[name] ?? 0, one)).join(", ");
  refill(place, items.length ? items : h("li", { class: "dim", text: "No handler has failed." }), h("li", { class: "dim", text: `${sums}.` }));
}

function when(at, now) {
  return h("span", { class: "when", text: ago(at, now) });
}

function busiest(store) {
  return [...store.topicRates]
    .filter(([topic, rates]) => rates.pub > 0 && !topic.startsWith("system."))
    .sort((one, other) => other[1].pub - one[1].pub)
    .slice(0, 6)
    .map(([topic, rates]) => ({ text: topic, value: rates.pub, shown: rate(rates.pub), href: to(["topics", topic]) }));
}

function furthest(store) {
  return store.groups
    .filter((group) => group.lag > 0)
    .sort((one, other) => other.lag - one.lag)
    .slice(0, 6)
    .map((group) => ({ text: `${group.group} of ${group.topic}`, value: group.lag, shown: count(group.lag), href: to(["groups", group.topic, group.group]) }));
}

function rank(place, entries, none) {
  const most = entries[0]?.value ?? 1;
  refill(place, entries.length ? entries.map((entry) => h(
    "a",
    { href: entry.href },
    h("i", { css: { width: `${Math.max(1.5, (entry.value / most) * 100)}%` } }),
    h("span", { text: entry.text }),
    h("span", { class: "num", text: entry.shown }),
  )) : empty("Quiet", none));
}

// Requests over a quota, by the quota: an operator sees who floods the node before anybody complains.
function refusals(refused) {
  const found = Object.entries(refused ?? {}).sort((one, other) => other[1] - one[1]);
  if (!found.length) return "";
  return ` Refused by quotas: ${found.map(([what, times]) => `${what} ${count(times)}`).join(", ")}.`;
}
