// The kernel: which capabilities there are and how their actors do, what is asked and not answered, what failed,
// messages that are dead letters, and asking something oneself.

import { h, alone, beside, closer, empty, facts, failure, fill, head, panel, say, tag, time } from "../dom.js";
import { action, announce, field, question, refusal, refused, toast, trouble } from "../feedback.js";
import { ago, brief, count, plural, span } from "../format.js";
import { Grid } from "../grid.js";
import { tree } from "../json.js";
import { note, to } from "../router.js";
import { sample } from "../sample.js";
import { kindTag, traceLink } from "./trace.js";

const STATES = { running: "good", restarting: "warn", unhealthy: "bad" };
const BUILT_IN = new Set(["Syscall", "Timer", "Memory", "Event", "Bus", "Run", "Beat"]); // the rest is the program's
const TABS = [["actors", "Actors"], ["requests", "Open requests"], ["faults", "Faults"], ["dead", "Dead messages"], ["ask", "Ask"]];
const REASONS = { gave_up: "given up", reached_nobody: "reached nobody" };

export function open(ctx) {
  const sentence = h("span");
  const body = h("div", { role: "tabpanel", id: "kernel-tab" });
  const parts = { actors: actors(ctx), requests: requests(), faults: faults(), dead: letters(ctx), ask: ask(ctx) };
  const buttons = TABS.map(([name, label]) => h("button", { type: "button", role: "tab", aria: { controls: "kernel-tab" }, data: { name }, text: label, on: { click: () => choose(name) } }));
  const tabs = h("div", { class: "tabs", role: "tablist", aria: { label: "Parts of the kernel" } }, buttons);
  let chosen = parts[ctx.query.get("tab")] ? ctx.query.get("tab") : "actors";

  function choose(name) {
    chosen = name;
    note(["kernel"], { tab: name === "actors" ? "" : name });
    for (const button of buttons) {
      const on = button.dataset.name === name;
      button.setAttribute("aria-selected", String(on));
      button.setAttribute("tabindex", on ? "0" : "-1");
    }
    fill(body, parts[name].element);
    update();
  }

  tabs.addEventListener("keydown", (event) => {
    const at = buttons.indexOf(document.activeElement);
    const next = { ArrowRight: at + 1, ArrowLeft: at - 1 }[event.key];
    if (next === undefined) return;
    const button = buttons[(next + buttons.length) % buttons.length];
    choose(button.dataset.name);
    button.focus();
  });

  function update() {
    const { node } = ctx.store;
    if (!node?.kernel) return;
    const { liveness, counters, actors: all } = node.kernel;
    say(sentence, `${plural(all.length, "capability", "capabilities")}, ${plural(liveness.inFlight, "open request")}, ${plural(liveness.timers, "timer")}; ${plural(counters.faults, "fault")} and ${plural(counters.restarts, "restart")} since the start.`);
    parts[chosen].update?.(node);
  }

  const element = h("div", {}, head("Kernel", sentence), tabs, body);
  choose(chosen);
  return { element, update, close: () => Object.values(parts).forEach((part) => part.close?.()) };
}

// -- actors

function actors(ctx) {
  const element = h("div", { class: "actors" });
  const cards = new Map();
  return {
    element,
    update({ kernel }) {
      for (const actor of ownFirst(kernel.actors, ({ id }) => id)) {
        if (!cards.has(actor.id)) {
          cards.set(actor.id, card(ctx, actor));
          element.append(cards.get(actor.id).element);
        }
        cards.get(actor.id).update(actor);
      }
    },
  };
}

/** What the program brings comes before what every node has; apart from that the order stays. */
function ownFirst(all, segmentOf) {
  const isOwn = (each) => !BUILT_IN.has(segmentOf(each));
  return [...all.filter(isOwn), ...all.filter((each) => !isOwn(each))];
}

function card(ctx, actor) {
  const again = action(ctx, "Start again", () => startAgain(ctx, actor.id));
  const state = h("span");
  const counts = h("p", { class: "counts" });
  const handles = h("ul", { class: "mono" }, actor.handles.map((each) => h("li", { text: each.replace(":", " ") })), actor.subscribes.map((each) => h("li", { text: `event ${each}` })));
  const kinds = [actor.isolation === "process" && tag("own process", "info"), actor.durable && tag("durable", "info")];
  const element = h(
    "article",
    { class: "actor", aria: { label: actor.id } },
    h("div", { class: "top" }, h("h2", { text: actor.id }), h("span", { class: "tags" }, kinds, state)),
    h("p", { text: actor.description }),
    h("details", {}, h("summary", { text: plural(actor.handles.length + actor.subscribes.length, "type") }), handles),
    counts,
    again,
  );
  return {
    element,
    update(now) {
      again.hidden = now.state !== "unhealthy";
      state.className = `tag ${STATES[now.state]}`;
      say(state, now.state);
      say(counts, `${count(now.open)} open, ${count(now.waiting)} waiting, ${plural(now.restarts, "restart")}`);
    },
  };
}

async function startAgain(ctx, capability) {
  await ctx.api.command("Syscall.Restart", { capability });
  announce(`${capability} is started again.`);
}

// -- open requests

function requests() {
  let rows = [];
  let now = 0;
  const grid = new Grid({
    label: "Open requests",
    none: empty("Nothing is open", "Every request has its answer."),
    columns: [
      { label: "Kind", width: "96px", least: 480, cell: (row) => kindTag(row.kind) },
      { label: "Type", width: "minmax(120px, 2fr)", cell: (row) => row.type },
      { label: "Capability", width: "minmax(90px, 1fr)", least: 600, cell: (row) => row.capability },
      { label: "Id", width: "minmax(100px, 2fr)", least: 760, kind: "m", cell: (row) => traceLink(row.id, row.id) },
      { label: "Waits for", width: "120px", kind: "r", cell: (row) => span(Math.max(0, now - row.since)) },
    ],
  });
  grid.element.classList.add("fill");
  return {
    element: grid.element,
    update(node) {
      rows = node.kernel.requests;
      now = node.now;
      grid.setRows(rows.length, (index) => rows[index]);
    },
    close: () => grid.close(),
  };
}

// -- faults

function faults() {
  let rows = [];
  let now = 0;
  const grid = new Grid({
    label: "Faults",
    none: empty("No faults", "No actor has failed since the node started."),
    onOpen: (row) => show(row),
    rowHeight: 38,
    columns: [
      { label: "When", width: "124px", least: 520, cell: (row) => time(row.at, ago(row.at, now)) },
      { label: "Capability", width: "minmax(80px, 0.8fr)", cell: (row) => row.capability },
      { label: "Handling", width: "minmax(100px, 1fr)", least: 560, cell: (row) => row.request },
      { label: "What happened", width: "minmax(120px, 2.4fr)", cell: (row) => h("span", { title: row.message, text: row.message }) },
      { label: "Told as", width: "minmax(100px, 0.8fr)", least: 800, kind: "m", cell: (row) => row.type },
    ],
  });
  grid.element.classList.add("fill");
  grid.isSelected = (_, row) => Boolean(row && row.id === shown);
  const split = h("div", { class: "split" }, grid.element);
  let shown = null;

  function show(row) {
    shown = row.id;
    const close = closer(grid.element, () => {
      shown = null;
      alone(split, grid.element);
      grid.refresh();
    });
    beside(split, grid.element, panel(row.capability, { note: close, class: "detail" },
      h("section", {}, facts([["What happened", row.message], ["Handling", row.request], ["Told as", row.type], ["When", time(row.at)]]),
        h("div", { class: "acts" }, h("a", { class: "button", href: to(["trace", row.causation ?? row.id]), text: "What caused it" }))),
      failure(row.failure)));
    grid.refresh();
  }

  return {
    element: split,
    update(node) {
      rows = node.kernel.faults;
      now = node.now;
      grid.setRows(rows.length, (index) => rows[index]);
    },
    close: () => grid.close(),
  };
}

// -- messages that failed

function letters(ctx) {
  let rows = [];
  let shown = null;
  let asking = false;
  let furtherPages = false; // who has asked for more than the first looks at those
  let polls = 0;
  const acts = h("div", { class: "end" });
  const older = h("button", { type: "button", hidden: true, text: "Load more", on: { click: () => load(rows.at(-1).id) } });
  const grid = new Grid({
    label: "Dead messages",
    none: empty("No dead messages", "A message that fails where nobody waits, or after its last attempt, is kept here."),
    onOpen: (row) => show(row),
    columns: [
      { label: "When", width: "124px", least: 520, cell: (row) => time(row.at, ago(row.at, ctx.store.node?.now ?? Date.now())) },
      { label: "Kind", width: "96px", least: 640, cell: (row) => kindTag(row.message.kind) },
      { label: "Type", width: "minmax(110px, 1.2fr)", cell: (row) => row.message.type },
      { label: "What happened", width: "minmax(120px, 2.4fr)", cell: (row) => h("span", { title: row.text, text: row.text }) },
      { label: "Reason", width: "minmax(110px, 0.8fr)", least: 560, cell: (row) => REASONS[row.reason] ?? row.reason },
      { label: "Data", width: "minmax(90px, 1.4fr)", kind: "m", least: 860, cell: (row) => brief(row.message.data, 120) },
    ],
  });
  grid.element.classList.add("fill");
  grid.isSelected = (_, row) => Boolean(row && row.id === shown);
  const split = h("div", { class: "split" }, grid.element);
  const place = trouble();

  /** From the beginning, or what comes after a letter. */
  async function load(after = "") {
    if (asking) return;
    asking = true;
    try {
      const found = await ctx.api.ask("Syscall.DeadLetters", { after }, { signal: ctx.signal });
      place.over();
      rows = after ? [...rows, ...found.letters] : found.letters;
      furtherPages = Boolean(after);
      older.hidden = !found.more || !found.letters.length;
      if (shown && !rows.some(({ id }) => id === shown)) hide();
      grid.setRows(rows.length, (index) => rows[index]);
      if (!rows.length) fill(acts);
      else if (!acts.childElementCount) fill(acts, action(ctx, "Drop all…", () => drop()), action(ctx, "Redrive all…", () => redrive(), { kind: "main" }));
    } catch (problem) {
      place.tell(problem);
    } finally {
      asking = false;
    }
  }

  function show(row) {
    shown = row.id;
    beside(split, grid.element, panel(row.message.type, { note: closer(grid.element, hide), class: "detail" },
      h("section", {}, facts([
        ["What happened", row.text],
        ["Reason", REASONS[row.reason] ?? row.reason],
        ["Told as", row.code ? `${row.error}, ${row.code}` : row.error],
        row.capability && ["Capability", row.capability],
        ["Message", traceLink(row.message.metadata.id, row.message.metadata.id)],
        ["When", time(row.at)],
      ]), h("div", { class: "acts" }, action(ctx, "Redrive this one", () => redrive(row)), action(ctx, "Drop this one…", () => drop(row)))),
      failure(row.failure),
      h("section", {}, h("h3", { text: "Data" }), tree(row.message.data))));
    grid.refresh();
  }

  function hide() {
    shown = null;
    alone(split, grid.element);
    grid.refresh();
  }

  async function redrive(row) {
    if (!row && !(await question({ title: "Send again?", text: "Sends all dead messages again, each with all its attempts. One stays in the list until it was handled.", yes: "Redrive" }))) return;
    await change("Syscall.Redrive", row, "sent again");
  }

  async function drop(row) {
    const what = row ? `this ${row.message.kind} ${row.message.type}` : "all dead messages";
    if (!(await question({ title: "Drop for good?", text: `Drops ${what}. Nobody gets ${row ? "it" : "them"} any more.`, yes: "Drop", danger: true }))) return;
    await change("Syscall.DropDeadLetters", row, "dropped");
  }

  async function change(type, row, done) {
    const { count: number } = await ctx.api.command(type, row ? { ids: [row.id] } : { all: true });
    toast(`${plural(number, "message")} ${done}.`);
    ctx.store.attentionChanged();
    await load();
  }

  return {
    element: h("div", {}, place.element, h("div", { class: "bar" }, h("span", { class: "dim grow", text: "Messages that failed where nobody waited, or after their last attempt; oldest first." }), acts), split, older),
    update() {
      if (polls++ % 3 === 0 && !furtherPages) load(); // asking is itself a message; seldom is enough
      else grid.refresh();
    },
    close: () => grid.close(),
  };
}

// -- asking

function ask(ctx) {
  const type = h("select");
  const about = h("p", { class: "dim" });
  const data = h("textarea", { spellcheck: "false", value: "{}" });
  const answer = h("div", {}, empty("No answer yet", "Choose a type, write its data, send."));
  const schema = h("div");
  const sendPlace = h("div", { class: "buttons" });
  let types = [];
  let blank = data.value; // what the page wrote into the field itself, and may replace

  async function load() {
    try {
      for (let page = 0, pages = 1; page < pages; page++) {
        const found = await ctx.api.ask("Syscall.List", { page }, { signal: ctx.signal });
        pages = found.pages;
        types.push(...found.types);
      }
      types.sort((a, b) => (a.type < b.type ? -1 : 1));
      fill(type, [["Of the program", false], ["Of every node", true]].map(([label, builtIn]) => group(label, types.filter((each) => BUILT_IN.has(segment(each)) === builtIn))));
      describe();
    } catch (problem) {
      if (problem.name !== "AbortError") fill(answer, refused(problem));
    }
  }

  async function describe() {
    const chosen = types.find((each) => each.type === type.value);
    if (!chosen) return;
    say(about, chosen.description);
    const why = chosen.kind === "command" ? ctx.may() : "";
    fill(sendPlace, action(ctx, "Send", () => send(chosen), { why, kind: "main" }), why && h("span", { class: "dim", text: why }));
    try {
      const described = await ctx.api.ask("Syscall.Describe", { name: chosen.type }, { signal: ctx.signal });
      if (type.value !== chosen.type) return; // another was chosen meanwhile
      if (data.value === blank) data.value = blank = JSON.stringify(sample(described.input) ?? {}, null, 2);
      fill(schema, h("details", {}, h("summary", { text: "Schema of its data" }), tree(described.input)), h("details", {}, h("summary", { text: "Schema of the answer" }), tree(described.output)));
    } catch (problem) {
      refusal(problem);
    }
  }

  async function send(chosen) {
    let parsed;
    try {
      parsed = JSON.parse(data.value || "{}");
    } catch (mistake) {
      fill(answer, refused({ message: "The data is not JSON.", remedy: mistake.message }));
      return;
    }
    try {
      const reply = await ctx.api.message(chosen.kind, chosen.type, parsed);
      fill(answer, h("p", { class: "dim" }, "Answered. ", traceLink(reply.metadata.causation, "What it caused")), tree(reply.data));
    } catch (problem) {
      fill(answer, refused(problem));
    }
  }

  type.addEventListener("change", describe);
  load();
  return {
    element: h("div", { class: "columns" },
      panel("Message", {}, h("div", { class: "body stack" }, field("Type", type), about, field("Data (JSON)", data), sendPlace, schema)),
      panel("Answer", {}, h("div", { class: "body" }, answer))),
  };
}

function segment({ type }) {
  return type.split(".")[0];
}

function group(label, types) {
  const options = types.map((each) => h("option", { value: each.type, text: `${each.type} (${each.kind})` }));
  return options.length ? h("optgroup", { label }, options) : null;
}
