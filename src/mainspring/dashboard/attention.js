// What needs a person: the words for each kind, and where in these pages it is dealt with.

import { h, empty } from "./dom.js";
import { ago, count, exact, plural, span } from "./format.js";
import { to } from "./router.js";

// kind -> the view that deals with it, its words, the address of all of them, and of one
const KINDS = {
  disk: ["topics", "disk is nearly full", "disks are nearly full", () => to(["topics"]), ({ name }) => (name === "disk" ? to(["topics"]) : to(["topics", name]))],
  failed_runs: ["runs", "run failed", "runs failed", () => to(["runs"], { state: "failed" }), ({ name }) => to(["runs", name])],
  blocked_runs: ["runs", "run is blocked", "runs are blocked", () => to(["runs"], { state: "blocked" }), ({ name }) => to(["runs", name])],
  waiting_runs: ["runs", "run waits for a program that no node has", "runs wait for programs that no node has", () => to(["runs"], { state: "running" }), ({ name }) => to(["runs", name])],
  dead_letters: ["deadletters", "dead letter", "dead letters", () => to(["deadletters"]), ({ name }) => to(["deadletters", name])],
  dead_messages: ["kernel", "message reached nobody", "messages reached nobody", () => to(["kernel"], { tab: "dead" }), () => to(["kernel"], { tab: "dead" })],
  refused_outgoing: ["", "event of a transaction was refused", "events of transactions were refused", () => to([]), () => to([])],
  capabilities: ["kernel", "capability gave up", "capabilities gave up", () => to(["kernel"]), () => to(["kernel"])],
  groups: ["groups", "group is behind", "groups are behind", () => to(["groups"]), ({ name, of }) => to(["groups", of, name])],
  schedules: ["schedules", "schedule failed", "schedules failed", () => to(["schedules"]), () => to(["schedules"])],
  nodes: ["nodes", "node is away", "nodes are away", () => to(["nodes"]), ({ name }) => to(["nodes", name])],
};

// what the text of an example is, where it is a number
const UNITS = { dead_letters: ["event", "events"], groups: ["event behind", "events behind"] };

/** How many things need a person in each view. */
export function byView(attention) {
  const found = new Map([["", attention.count]]);
  for (const { kind, count: number } of attention.needs) {
    const view = KINDS[kind]?.[0] ?? "";
    if (view) found.set(view, (found.get(view) ?? 0) + number);
  }
  return found;
}

/** The list of what needs a person. */
export function needs(attention, now) {
  if (!attention.needs.length) return empty("Nothing needs you", "No run failed, no letter is dead, no group is behind.");
  return h("ul", { class: "needs" }, attention.needs.map((need) => one(need, now)));
}

function one({ kind, count: number, examples, remedy }, now) {
  const [, single, several, all, each] = KINDS[kind] ?? ["", kind, kind, () => "#/", () => "#/"];
  const rest = number - examples.reduce((sum, { text }) => sum + (kind === "dead_letters" ? Number(text) : kind === "disk" ? 0 : 1), kind === "disk" ? 1 : 0);
  return h(
    "li",
    { data: { kind } },
    h("a", { class: "what", href: all() }, h("b", { text: count(number) }), ` ${number === 1 ? single : several}`),
    h(
      "ul",
      {},
      examples.map((example) => h(
        "li",
        {},
        h("a", { href: each(example), text: example.name }),
        example.of ? h("span", { class: "dim", text: ` of ${example.of}` }) : null,
        example.at ? h("span", { class: "when", title: exact(example.at), text: kind === "groups" ? `waits ${span(Math.max(0, now - example.at))}` : ago(example.at, now) }) : null,
        example.text ? h("div", { class: "dim clip", title: example.text, text: UNITS[kind] ? plural(Number(example.text), ...UNITS[kind]) : example.text }) : null,
      )),
      rest > 0 ? h("li", {}, h("a", { href: all(), text: `and ${count(rest)} more` })) : null,
    ),
    h("code", { class: "remedy", text: remedy }),
  );
}
