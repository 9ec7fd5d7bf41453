// What a person wants to know first: is it moving, is something behind, did something break.

import { Chart, spark } from "../chart.js";
import { h, empty, fill, refill, head, panel, say } from "../dom.js";
import { ago, count, plural, rate, span } from "../format.js";
import { to } from "../router.js";
import { WINDOW_MS } from "../store.js";

const FIGURES = [
  ["Published", "/s", "blue", (point) => point.published, rate, "#/topics"],
  ["Delivered", "/s", "teal", (point) => point.delivered, rate, "#/topics"],
  ["Behind", "events", "brass", (point) => point.lag, count, "#/groups"],
  ["In flight", "events", "violet", (point) => point.inflight, count, "#/groups"],
  ["Dead letters", "since start", "red", (point) => point.dlq, count, "#/deadletters"],
  ["Loop turns", "/s", "ink-3", (point) => point.turns, rate, "#/kernel"],
];

export function open(ctx) {
  const { store } = ctx;
  const chart = new Chart({
    label: "Events per second in the last 15 minutes",
    windowMs: WINDOW_MS,
    series: [
      { name: "published per second", token: "blue", pick: (point) => point.published, format: rate },
      { name: "delivered per second", token: "teal", pick: (point) => point.delivered, format: rate, fill: false },
    ],
  });
  const figures = FIGURES.map((figure) => makeFigure(...figure));
  const loop = h("div", { class: "lanes" });
  const blocked = h("ul", { class: "note-list" });
  const longest = h("p", { class: "dim" });
  const faults = h("ul", { class: "note-list" });
  const behind = h("div", { class: "rank" });
  const busy = h("div", { class: "rank" });
  const sentence = h("span");
  const element = h(
    "div",
    { class: "stack" },
    head("Overview", sentence),
    h("div", { class: "figures" }, figures.map((figure) => figure.element)),
    panel("Events per second", {}, h("div", { class: "body" }, chart.element)),
    h(
      "div",
      { class: "columns" },
      h(
        "div",
        { class: "stack" },
        panel("Busiest topics", { note: "published per second" }, h("div", { class: "body" }, busy)),
        panel("Faults", { note: h("a", { href: to(["kernel"], { tab: "faults" }), text: "all" }) }, h("div", { class: "body" }, faults)),
      ),
      h(
        "div",
        { class: "stack" },
        panel("Groups that are behind", { note: "events" }, h("div", { class: "body" }, behind)),
        panel("Loop", {}, h("div", { class: "body stack" }, loop, h("h3", { text: "What blocked the loop" }), blocked, longest)),
      ),
    ),
  );

  function update() {
    const { node, points } = store;
    if (!node) return;
    const others = store.shared ? `, one of ${plural(store.nodes.length, "node")} on the log` : "";
    const place = store.here ? `${store.here}${others}. ` : "";
    say(sentence, `${place}Mainspring ${node.version}, up ${span(node.now - node.started)}, ${plural(store.stats.connections, "connection")}.${refusals(store.stats.refused)}`);
    for (const figure of figures) figure.update(points);
    chart.draw(points, node.now);
    drawLoop(loop, longest, node);
    drawBlocked(blocked, node);
    drawFaults(faults, node);
    rank(busy, busiest(store), "Nothing was published in the last seconds.");
    rank(behind, furthest(store), "Every group has settled everything.");
  }

  return { element, update, close: () => chart.close() };
}

function makeFigure(name, unit, token, pick, format, href) {
  const value = h("span", { text: "–" });
  const line = h("canvas", { aria: { hidden: "true" } });
  const shown = h("div", { class: "value" }, value, h("small", { text: unit }));
  const element = h("a", { class: "figure", href }, h("div", { class: "name", text: name }), shown, line);
  const update = (points) => {
    const values = points.slice(-90).map(pick).filter((each) => each !== undefined);
    if (!values.length) return;
    say(value, format(values.at(-1)));
    shown.classList.toggle("bad", token === "red" && values.at(-1) > 0);
    spark(line, values, token, line.clientWidth, 26);
  };
  return { element, update };
}

function drawLoop(place, longest, node) {
  const { loop } = node;
  if (!loop) return;
  const lanes = [
    ["System lane", count(loop.system_depth)],
    ["User lane", count(loop.user_depth)],
    ["Completions", count(loop.completions_waiting)],
    ["Oldest waits", span(loop.oldest_waiting_ms)],
    ["Timers", count(loop.timers_pending)],
    ["Failed turns", count(loop.failed_turns)],
  ];
  refill(place, lanes.map(([name, value]) => h("div", {}, h("b", { text: value }), h("span", { text: name }))));
  say(longest, loop.longest_turn ? `The longest turn was ${loop.longest_turn} with ${span(loop.longest_turn_ns / 1e6)}.` : "");
}

/** While something blocks the loop no page can say so. The list is made anew only when it changed: an open stack stays open. */
function drawBlocked(place, node) {
  const shown = node.slowTurns.slice(0, 8);
  const state = shown.map((each) => each.at).join() || "none";
  if (place.dataset.shown !== state) {
    place.dataset.shown = state;
    fill(place, shown.length ? shown.map(blockedItem) : h("li", { class: "dim", text: "Nothing since the node started." }));
  }
  [...place.querySelectorAll(".when")].forEach((element, index) => say(element, ago(shown[index].at, node.now)));
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
  refill(place, items.length ? items : h("li", { class: "dim", text: "No actor has failed." }), h("li", { class: "dim", text: `Since the start: ${sums}.` }));
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
