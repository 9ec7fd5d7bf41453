// Timers: messages that are sent later.

import { h, empty, head, panel, say } from "../dom.js";
import { action, toast, trouble } from "../feedback.js";
import { exact, moment, plural, span } from "../format.js";
import { Grid, Pages } from "../grid.js";
import { kindTag } from "./trace.js";

const PAGE = 50; // what Timer.List gives at once

export function open(ctx) {
  const sentence = h("span", { text: "Loading…" });
  const now = () => ctx.store.node?.now ?? Date.now();
  const due = (ms) => h("span", { title: exact(ms), text: ms > now() ? `in ${span(ms - now())}` : "now" });
  let total = 0;

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

  const place = trouble();
  const element = h("div", { class: "stack" }, head("Timers", sentence), place.element, panel("Timers", { note: "kept in memory unless durable", class: "holds" }, timers.element));

  async function load() {
    try {
      const first = await ctx.api.ask("Timer.List", {}, { signal: ctx.signal });
      place.over();
      total = first.total;
      pages.clear();
      pages.pages.set(0, first.timers);
      timers.setRows(total, (index) => pages.get(index));
      say(sentence, `${plural(total, "timer")}.`);
    } catch (problem) {
      place.tell(problem);
    }
  }

  async function cancel(row) {
    const { cancelled } = await ctx.api.command("Timer.Cancel", { timerId: row.timerId });
    toast(cancelled ? `${row.type} will not be sent.` : `${row.type} was sent already.`);
    await load();
  }

  load();
  let polls = 0;
  return {
    element,
    update() {
      if (++polls % 3 === 0) load(); // asking is itself a message; seldom is enough
      else timers.refresh();
    },
    close() {
      timers.close();
    },
  };
}
