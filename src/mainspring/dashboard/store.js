// What every view wants to know: the node, its numbers, its groups. Asked for every two seconds while the page is
// seen, and kept as series, so that a chart shows what happened before its view was opened. What happened before the
// page was opened comes from the log: the node writes its counters to `system.metrics`.

import { topicPath } from "./api.js";

export const EVERY_MS = 2_000;
export const WINDOW_MS = 15 * 60_000;
export const OWN_GROUPS = "dashboard."; // groups of pages like this one; they are nobody's backlog
const LEAST_MS = 500; // a rate over less says more about chance than about the node
const METRICS = "system.metrics";
const KEPT_POINTS = 900;
const TOPIC_POINTS = 60;
const HISTORY_BYTES = 4_000_000; // of system.metrics that a page reads at its start

/** One node, as far as this page knows it. */
export class Store extends EventTarget {
  constructor(api) {
    super();
    this.api = api;
    this.node = null;
    this.stats = null;
    this.groups = [];
    this.followers = [];
    this.deadLetters = 0; // kept now, at most; some of them may have been sent again
    this.polls = 0;
    this.problem = null;
    this.points = []; // {t, published, delivered, acks, turns, lag, inflight, dlq}: rates per second and gauges
    this.topicRates = new Map(); // topic -> {pub, del, series: [rate]}
    this.topicHistory = new Map(); // topic -> [{t, pub, del}] from the log
    this.last = null;
    this.timer = null;
  }

  start() {
    document.addEventListener("visibilitychange", () => this.plan(0));
    this.plan(EVERY_MS);
    this.readHistory().catch(() => {}); // a token may not be allowed to read it; the charts then begin now
  }

  /** Ask no more: there is no point without a token. */
  stop() {
    this.stopped = true;
    clearTimeout(this.timer);
  }

  plan(delay) {
    clearTimeout(this.timer);
    if (!document.hidden && !this.stopped) this.timer = setTimeout(() => this.poll(), delay);
  }

  async poll() {
    try {
      const [node, stats, groups] = await Promise.all([
        this.api.get("/node"),
        this.api.get("/stats"),
        this.api.get("/groups"),
      ]);
      this.take(node, stats, groups.groups);
      if (this.polls++ % 5 === 0) await this.countDeadLetters();
      this.problem = null;
    } catch (problem) {
      this.problem = problem;
    }
    this.dispatchEvent(new Event("change"));
    this.plan(EVERY_MS);
  }

  async countDeadLetters() {
    const { topics } = await this.api.get("/dlq");
    this.deadLetters = topics.reduce((sum, topic) => sum + topic.atMost, 0);
  }

  /** Something was given up or sent again; many changes are counted once. */
  deadLettersChanged() {
    this.recount ??= setTimeout(async () => {
      this.recount = null;
      await this.countDeadLetters().catch(() => {});
      this.dispatchEvent(new Event("change"));
    }, 500);
  }

  take(node, stats, groups) {
    this.node = node;
    this.stats = stats;
    this.groups = groups.filter(({ group }) => !group.startsWith(OWN_GROUPS));
    this.followers = groups.filter(({ group }) => group.startsWith(OWN_GROUPS));
    const now = node.now;
    const lag = this.lag;
    const seen = { t: now, started: node.started, stats, turns: node.loop?.turns ?? 0 };
    const before = this.last;
    if (before && before.started === node.started && now - before.t < LEAST_MS) return;
    this.last = seen;
    if (!before || before.started !== node.started) return;
    const seconds = (now - before.t) / 1000;
    const per = (name) => Math.max(0, stats[name] - before.stats[name]) / seconds;
    this.points.push({
      t: now,
      published: per("published"),
      delivered: per("delivered"),
      acks: per("acks"),
      turns: Math.max(0, seen.turns - before.turns) / seconds,
      dlq: stats.dlq,
      inflight: stats.inflight,
      lag,
    });
    if (this.points.length > KEPT_POINTS) this.points.splice(0, this.points.length - KEPT_POINTS);
    for (const [topic, counted] of Object.entries(stats.byTopic)) {
      const earlier = before.stats.byTopic[topic] ?? { pub: 0, del: 0 };
      this.noteTopic(topic, now, (counted.pub - earlier.pub) / seconds, (counted.del - earlier.del) / seconds);
    }
  }

  noteTopic(topic, t, pub, del) {
    let known = this.topicRates.get(topic);
    if (!known) this.topicRates.set(topic, (known = { pub: 0, del: 0, series: [] }));
    known.pub = Math.max(0, pub);
    known.del = Math.max(0, del);
    known.series.push(known.pub);
    if (known.series.length > TOPIC_POINTS) known.series.shift();
    const past = this.topicHistory.get(topic);
    if (past) past.push({ t, pub: known.pub, del: known.del });
  }

  /** The rates of one topic over time: from the log, and what was seen since. */
  historyOf(topic) {
    if (!this.topicHistory.has(topic)) this.topicHistory.set(topic, ratesOf(this.metrics ?? [], (payload) => payload.byTopic[topic]));
    return this.topicHistory.get(topic);
  }

  /** Counters the node wrote down before this page was opened. */
  async readHistory() {
    const path = topicPath(METRICS);
    const { topics } = await this.api.get(`/topics?prefix=${METRICS}`);
    if (!topics.some(({ topic }) => topic === METRICS)) return; // a node that has just begun
    const { partitions } = await this.api.get(`${path}/offsets`);
    const tail = partitions[0].tail;
    if (!tail) return;
    const newest = await this.api.text(`${path}/events/0/${tail}`);
    const most = Math.max(6, Math.min(100, Math.floor(HISTORY_BYTES / newest.length)));
    const { events } = await this.api.get(`${path}/events?partition=0&offset=${Math.max(1, tail - most + 1)}&limit=${most}`);
    this.metrics = events;
    const earliest = this.points[0]?.t ?? Infinity;
    const past = ratesOf(events, (payload) => ({ pub: payload.published, del: payload.delivered, acks: payload.acks }));
    const points = past.map(({ t, pub, del, acks }) => ({ t, published: pub, delivered: del, acks }));
    this.points.unshift(...points.filter((point) => point.t < earliest));
    this.topicHistory.clear();
    this.dispatchEvent(new Event("change"));
  }

  get lag() {
    return this.groups.reduce((sum, group) => sum + group.lag, 0);
  }

  /** Why commands would be refused; empty when they would not. */
  get readOnly() {
    if (!this.node || this.node.you.admin) return "";
    return "This token is read-only: use one with the scope admin.";
  }
}

/** Counters as rates. A counter that fell belongs to a node that started again: that step has no rate. */
function ratesOf(events, pick) {
  const rates = [];
  let before = null;
  for (const { ts, payload } of events) {
    const counted = pick(payload) ?? { pub: 0, del: 0 };
    if (before && ts > before.ts && counted.pub >= before.counted.pub && counted.del >= before.counted.del) {
      const seconds = (ts - before.ts) / 1000;
      const point = { t: ts };
      for (const name of Object.keys(counted)) point[name] = (counted[name] - (before.counted[name] ?? 0)) / seconds;
      rates.push(point);
    }
    before = { ts, counted };
  }
  return rates;
}
