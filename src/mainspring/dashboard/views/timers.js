// What will happen by itself: messages that are sent later, and events that are published again and again.

import { topicPath } from "../api.js";
import { h, empty, head, panel, say } from "../dom.js";
import { action, prose, question, toast, trouble } from "../feedback.js";
import { ago, brief, exact, moment, plural, span } from "../format.js";
import { Grid, Pages } from "../grid.js";
import { to } from "../router.js";
import { kindTag } from "./trace.js";

const PAGE = 50; // what Timer.List gives at once
const MOST_RIGHTS = 50; // topics whose rights are looked up at once; the node refuses anyway

const schedulePath = (row, verb = "") => `/schedules/${encodeURIComponent(row.name)}${verb}`;

/** How a call went, in a word or two; the reason is its title. */
function outcome(last) {
  return last.result === "skipped" ? "skipped" : `${last.result} in ${span(last.durationMs ?? 0)}`;
}

export function open(ctx) {
  const sentence = h("span", { text: "Loading…" });
  const now = () => ctx.store.node?.now ?? Date.now();
  const due = (ms) => h("span", { title: exact(ms), text: ms > now() ? `in ${span(ms - now())}` : "now" });
  let total = 0;
  let schedules = [];
  const refusals = new Map(); // topic -> why its schedules may not be changed

  const timers = new Grid({
    label: "Timers",
    maxRows: 10,
    none: empty("No timers", "No message waits to be sent."),
    columns: [
      { label: "Due", width: "minmax(124px, 1fr)", cell: (row) => due(row.deadline) },
      { label: "At", width: "minmax(168px, 1fr)", kind: "m", least: 640, cell: (row) => moment(row.deadline) },
      { label: "Kind", width: "104px", least: 520, cell: (row) => kindTag(row.messageKind) },
      { label: "Timer kind", width: "104px", least: 700, cell: (row) => row.kind === "retry" ? `attempt ${row.attempt ?? 2}` : row.durable ? "durable" : "" },
      { label: "Type", width: "minmax(110px, 2fr)", cell: (row) => row.type },
      { label: "Timer", width: "minmax(110px, 1.6fr)", kind: "m", least: 860, cell: (row) => row.timerId },
      { label: "", width: "96px", kind: "r", keep: (row) => row.timerId, cell: (row) => action(ctx, "Cancel", () => cancel(row), { kind: "plain" }) },
    ],
  });
  const pages = new Pages(PAGE, async (page) => (await ctx.api.ask("Timer.List", { offset: page * PAGE }, { signal: ctx.signal })).timers, () => timers.refresh());

  const plans = new Grid({
    label: "Schedules",
    maxRows: 12,
    none: empty("No schedules", prose("`@app.every` and `@app.cron` in a program make them; so does `POST /schedules`.")),
    columns: [
      { label: "Schedule", width: "minmax(96px, 1.4fr)", cell: (row) => row.name },
      { label: "When", width: "minmax(128px, 1fr)", kind: "m", least: 440, cell: (row) => `${row.cron ?? `every ${span(row.every)}`}${row.timezone ? ` ${row.timezone}` : ""}` },
      { label: "Next", width: "minmax(110px, 1fr)", cell: (row) => row.paused ? h("span", { class: "dim", text: "paused" }) : due(row.nextMs) },
      { label: "Last", width: "minmax(110px, 1fr)", least: 720, cell: (row) => row.lastMs ? h("span", { title: exact(row.lastMs), text: ago(row.lastMs, now()) }) : "" },
      { label: "Result", width: "minmax(110px, 1.2fr)", least: 900, cell: (row) => row.last ? h("span", { title: row.last.reason ?? exact(row.last.atMs), text: outcome(row.last) }) : "" },
      { label: "Topic", width: "minmax(90px, 1fr)", least: 1100, cell: (row) => h("a", { href: to(["topics", row.topic]), tabindex: "-1", text: row.topic }) },
      { label: "Payload", width: "minmax(90px, 1.6fr)", kind: "m", least: 1280, cell: (row) => brief(row.payload, 100) },
      { label: "", width: "104px", kind: "r", least: 620, keep: (row) => row.name, cell: (row) => action(ctx, "Run now", () => run(row), { kind: "plain", why: refusals.get(row.topic) ?? "" }) },
      { label: "", width: "96px", kind: "r", least: 540, keep: (row) => `${row.name} ${row.paused}`, cell: (row) => action(ctx, row.paused ? "Resume" : "Pause", () => pause(row), { kind: "plain", why: refusals.get(row.topic) ?? "" }) },
      { label: "", width: "96px", kind: "r", keep: (row) => row.name, cell: (row) => action(ctx, "Forget", () => forget(row), { kind: "plain", why: refusals.get(row.topic) ?? "" }) },
    ],
  });
  const place = trouble();
  const element = h("div", { class: "stack" }, head("Timers and schedules", sentence), place.element, panel("Timers", { note: "kept in memory unless durable", class: "holds" }, timers.element), panel("Schedules", { note: "kept in the log", class: "holds" }, plans.element));

  async function load() {
    try {
      const [first, planned] = await Promise.all([ctx.api.ask("Timer.List", {}, { signal: ctx.signal }), ctx.api.get("/schedules", { signal: ctx.signal })]);
      place.over();
      total = first.total;
      pages.clear();
      pages.pages.set(0, first.timers);
      schedules = planned.schedules;
      await learnRights();
      timers.setRows(total, (index) => pages.get(index));
      plans.setRows(schedules.length, (index) => schedules[index]);
      say(sentence, `${plural(total, "timer")} and ${plural(schedules.length, "schedule")}.`);
    } catch (problem) {
      place.tell(problem);
    }
  }

  async function learnRights() {
    const topics = new Set(schedules.map(({ topic }) => topic).filter((topic) => !refusals.has(topic)));
    await Promise.all([...topics].slice(0, MOST_RIGHTS).map(async (topic) => {
      refusals.set(topic, (await ctx.api.get(topicPath(topic, "/rights"), { signal: ctx.signal })).publishRefusal);
    }));
  }

  async function cancel(row) {
    const { cancelled } = await ctx.api.command("Timer.Cancel", { timerId: row.timerId });
    toast(cancelled ? `${row.type} will not be sent.` : `${row.type} was sent already.`);
    await load();
  }

  async function run(row) {
    await ctx.api.send("POST", schedulePath(row, "/run"));
    toast(`${row.name} was run.`);
    await load();
  }

  async function pause(row) {
    await ctx.api.send("POST", schedulePath(row, row.paused ? "/resume" : "/pause"));
    toast(row.paused ? `${row.name} goes on.` : `${row.name} is paused, also after a restart.`);
    await load();
  }

  async function forget(row) {
    const text = row.declared ? "A program declares it: it comes back when the program starts. Pause it to stop it for good." : "It publishes nothing more.";
    if (!(await question({ title: `Forget ${row.name}?`, text, yes: "Forget it", danger: true }))) return;
    await ctx.api.send("DELETE", schedulePath(row));
    toast(`${row.name} was forgotten.`);
    await load();
  }

  load();
  let polls = 0;
  return {
    element,
    update() {
      if (++polls % 3 === 0) load(); // asking is itself a message; seldom is enough
      else {
        timers.refresh();
        plans.refresh();
      }
    },
    close() {
      timers.close();
      plans.close();
    },
  };
}
