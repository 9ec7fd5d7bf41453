// Topics: all of them in one list, or one of them with its partitions, groups and rates.

import { topicPath } from "../api.js";
import { History, spark } from "../chart.js";
import { h, empty, fill, refill, head, panel, say, table, tag } from "../dom.js";
import { action, field, question, toast, trouble } from "../feedback.js";
import { count, plural, rate, span } from "../format.js";
import { Grid } from "../grid.js";
import { note, to } from "../router.js";

export function open(ctx) {
  return ctx.parts[0] ? one(ctx, ctx.parts[0]) : all(ctx);
}

// -- all topics

function all(ctx) {
  const { api, store } = ctx;
  let configs = [];
  let rows = [];
  let order = { name: "topic", up: true };
  const search = h("input", { type: "search", class: "grow", placeholder: "Filter by name", value: ctx.query.get("q") ?? "", aria: { label: "Filter topics by name" } });
  const system = h("input", { type: "checkbox" });
  const sentence = h("span", { text: "Loading…" });
  const place = trouble();
  const grid = new Grid({
    label: "Topics",
    onOpen: (row) => (location.hash = to(["topics", row.topic])),
    onSort: (name, direction) => {
      order = { name, up: direction === "ascending" };
      draw();
    },
    none: empty("No topics", "A topic begins with the first event that is published to it."),
    columns: [
      { label: "Topic", width: "minmax(140px, 3fr)", sort: "topic", cell: (row) => h("a", { href: to(["topics", row.topic]), tabindex: "-1", text: row.topic }) },
      { label: "Published /s", width: "minmax(96px, 1fr)", kind: "r", sort: "pub", cell: (row) => rate(row.pub) },
      { label: "Delivered /s", width: "minmax(96px, 1fr)", kind: "r", sort: "del", least: 620, cell: (row) => rate(row.del) },
      { label: "Rate", width: "120px", least: 760, cell: (row, _, cell) => line(row, cell) },
      { label: "Since start", width: "minmax(92px, 1fr)", kind: "r", sort: "total", least: 680, cell: (row) => count(row.total) },
      { label: "Partitions", width: "88px", kind: "r", sort: "partitions", least: 540, cell: (row) => count(row.partitions) },
      { label: "Groups", width: "76px", kind: "r", sort: "groups", least: 620, cell: (row) => count(row.groups) },
      { label: "Behind", width: "minmax(72px, 0.7fr)", kind: "r", sort: "lag", cell: (row) => count(row.lag) },
    ],
  });
  grid.element.classList.add("fill");

  function draw() {
    const groups = new Map();
    for (const group of store.groups) {
      const known = groups.get(group.topic) ?? { groups: 0, lag: 0 };
      groups.set(group.topic, { groups: known.groups + 1, lag: known.lag + group.lag });
    }
    const wanted = search.value.trim().toLowerCase();
    rows = configs
      .filter(({ topic }) => (system.checked || !topic.startsWith("system.")) && topic.toLowerCase().includes(wanted))
      .map((config) => rowOf(config, store, groups.get(config.topic)));
    const sign = order.up ? 1 : -1;
    rows.sort((a, b) => (a[order.name] < b[order.name] ? -sign : a[order.name] > b[order.name] ? sign : a.topic < b.topic ? -1 : 1));
    say(sentence, `${plural(rows.length, "topic")}${wanted ? ` with “${search.value.trim()}” in the name` : ""}.`);
    grid.setRows(rows.length, (index) => rows[index]);
  }

  async function load() {
    try {
      configs = (await api.get("/topics", { signal: ctx.signal })).topics;
      place.over();
      draw();
    } catch (problem) {
      place.tell(problem);
    }
  }

  search.addEventListener("input", () => {
    note(["topics"], { q: search.value });
    draw();
  });
  system.addEventListener("change", draw);
  const element = h(
    "div",
    {},
    head("Topics", sentence),
    place.element,
    h("div", { class: "bar" }, search, h("label", { class: "check" }, system, "Topics of the system")),
    grid.element,
  );
  grid.sorted = { name: "topic", order: "ascending" };
  grid.drawHeader();
  load();
  let polls = 0;
  return {
    element,
    update: () => (++polls % 5 ? draw() : load()), // the list itself changes seldom
    close: () => grid.close(),
  };
}

function rowOf(config, store, groups = { groups: 0, lag: 0 }) {
  const rates = store.topicRates.get(config.topic);
  const counted = store.stats?.byTopic[config.topic];
  return {
    topic: config.topic,
    partitions: config.partitions ?? 1,
    pub: rates?.pub ?? 0,
    del: rates?.del ?? 0,
    series: rates?.series ?? [],
    total: counted?.pub ?? 0,
    ...groups,
  };
}

function line(row, cell) {
  const canvas = cell.firstElementChild ?? cell.appendChild(h("canvas", { aria: { hidden: "true" } }));
  canvas.style.width = "100px";
  canvas.style.height = "20px";
  spark(canvas, row.series.some((value) => value > 0) ? row.series : [], "blue", 100, 20);
  return undefined; // drawn in place
}

// -- one topic

function one(ctx, topic) {
  const { api, store } = ctx;
  const history = new History({
    ctx,
    path: topicPath(topic, "/history"),
    charts: [{
      label: `Events per second of ${topic}`,
      series: [
        { name: "published per second", token: "blue", pick: (point) => point.published, format: rate },
        { name: "delivered per second", token: "teal", pick: (point) => point.delivered, format: rate, fill: false },
      ],
    }],
  });
  const partitions = h("div");
  const groups = h("div");
  const settings = h("div", { class: "tags" });
  const tails = new Map(); // partition -> [{t, tail}]
  const stored = h("span");
  const refusals = trouble();
  const actions = [
    h("a", { class: "button", href: to(["events"], { topic }), text: "Browse events" }),
    topic.endsWith(".DLQ") ? null : h("a", { class: "button", href: to(["deadletters", topic]), text: "Dead letters" }),
    action(ctx, "Purge…", purge),
    action(ctx, "Delete…", remove, { kind: "danger" }),
  ];

  /** Whether a person typed the topic's name under this warning. */
  async function sure(title, text, yes) {
    const values = await question({ title, text, fields: [field("Type its name", h("input", { type: "text", name: "name", autocomplete: "off" }))], yes, danger: true });
    if (values && values.name !== topic) toast(`Nothing was done: the name is ${topic}.`);
    return values?.name === topic;
  }

  async function purge() {
    if (!(await sure(`Remove every event of ${topic}?`, "Its settings and groups stay. This cannot be undone.", "Purge it"))) return;
    const { removed } = await api.send("POST", topicPath(topic, "/purge"));
    toast(`${plural(removed, "event was", "events were")} removed.`);
    load();
  }

  async function remove() {
    if (!(await sure(`Delete ${topic}?`, "Its groups, schedules, schemas and dead letters go with it. This cannot be undone.", "Delete it"))) return;
    await api.send("DELETE", topicPath(topic));
    toast(`${topic} was deleted.`);
    location.hash = "#/topics";
  }

  const element = h(
    "div",
    { class: "stack" },
    head(topic, stored, actions, h("a", { class: "crumb", href: "#/topics", text: "Topics" })),
    refusals.element,
    settings,
    panel("Events per second", { note: history.choice }, h("div", { class: "body" }, history.element)),
    panel("Partitions", {}, partitions),
    panel("Groups", {}, groups),
  );

  async function load() {
    try {
      const { partitions: places } = await api.get(topicPath(topic, "/offsets"), { signal: ctx.signal });
      refusals.over();
      draw(places);
    } catch (problem) {
      refusals.tell(problem);
    }
  }

  function draw(places) {
    const now = store.node?.now ?? Date.now();
    const held = places.reduce((sum, { head: first, tail }) => sum + Math.max(0, tail - first + 1), 0);
    say(stored, `${plural(held, "event")} stored in ${plural(places.length, "partition")}.`);
    refill(partitions, table("Partitions", [["Partition"], ["First", true], ["Last", true], ["Events", true], ["Per second", true], ["Rate"], ["", false, true]], places.map((place) => {
      const seen = noteTail(tails, place, now);
      const canvas = h("canvas", { aria: { hidden: "true" }, css: { width: "140px", height: "20px", display: "block" } });
      spark(canvas, seen.length > 1 ? seen : [], "blue", 140, 20);
      return [
        String(place.partition), count(place.head), count(place.tail), count(Math.max(0, place.tail - place.head + 1)), rate(seen.at(-1) ?? 0), canvas,
        h("a", { href: to(["events"], { topic, partition: place.partition }), text: "events" }),
      ];
    })));
    const names = [...new Set(places.flatMap((place) => Object.keys(place.groups)))];
    const sums = names.map((name) => [name, ...["lastCommitted", "lag", "inflight"].map((key) => places.reduce((sum, place) => sum + (place.groups[name]?.[key] ?? 0), 0))]);
    refill(groups, sums.length
      ? table("Groups", [["Group"], ["Settled up to", true], ["Behind", true], ["In flight", true]], sums.map(([name, done, lag, inflight]) => [h("a", { href: to(["groups", topic, name]), text: name }), count(done), count(lag), count(inflight)]))
      : empty("No groups", "Nobody has subscribed to this topic."));
  }

  api.get(topicPath(topic), { signal: ctx.signal }).then((config) => fill(settings, tagsOf(config)), () => {});
  load();
  return {
    element,
    update: () => {
      history.update();
      load();
    },
    close: () => history.close(),
  };
}

/** The rates of a partition, from the tails seen so far. */
function noteTail(tails, place, now) {
  const known = tails.get(place.partition) ?? { t: 0, tail: 0, rates: [] };
  if (known.t && now > known.t) known.rates.push(Math.max(0, place.tail - known.tail) / ((now - known.t) / 1000));
  if (known.rates.length > 60) known.rates.shift();
  if (now > known.t) Object.assign(known, { t: now, tail: place.tail });
  tails.set(place.partition, known);
  return known.rates;
}

function tagsOf(config) {
  const tags = [tag(plural(config.partitions ?? 1, "partition"))];
  if (config.retentionMs) tags.push(tag(`kept ${span(config.retentionMs)}`));
  if (config.retentionCount) tags.push(tag(`kept ${count(config.retentionCount)} events`));
  if (config.retentionBytes) tags.push(tag(`kept ${count(config.retentionBytes)} bytes`));
  if (config.compact) tags.push(tag("newest of each key is kept", "info"));
  if (config.maxAttempts) tags.push(tag(`${plural(config.maxAttempts, "attempt")} before it is a dead letter`));
  if (config.ackTimeoutMs) tags.push(tag(`leases of ${span(config.ackTimeoutMs)}`));
  if (config.ratePerSecond) tags.push(tag(`at most ${count(config.ratePerSecond)} per second`, "warn"));
  if (config.publishACL || config.subscribeACL) tags.push(tag("access list", "warn"));
  return tags;
}
