// What every view wants to know: the node, its numbers, its groups, and what needs a person. Asked for every two
// seconds while the page is seen. What happened before comes from the node's own history, which charts ask for.

export const EVERY_MS = 2_000;
const PATIENCE_MS = 5_000; // a node that is silent for longer is told to be silent
export const OWN_GROUPS = "dashboard."; // groups of pages like this one; they are nobody's backlog
const LEAST_MS = 500; // a rate over less says more about chance than about the node
const KEPT_POINTS = 90;
const TOPIC_POINTS = 60;

/** One node, as far as this page knows it. */
export class Store extends EventTarget {
  constructor(api) {
    super();
    this.api = api;
    this.node = null;
    this.stats = null;
    this.groups = [];
    this.followers = [];
    this.attention = { count: 0, needs: [] };
    this.nodes = []; // everybody on the log
    this.engine = null; // {name, shared, durable, statement}
    this.answered = null; // when the node answered last, by this page's clock
    this.polls = 0;
    this.problem = null;
    this.points = []; // {t, published, delivered, acks, turns, lag, inflight, dlq}: rates per second and gauges
    this.topicRates = new Map(); // topic -> {pub, del, series: [rate]}
    this.last = null;
    this.timer = null;
  }

  start() {
    document.addEventListener("visibilitychange", () => this.plan(0));
    this.plan(EVERY_MS);
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
    if (this.polling) return;
    this.polling = true;
    const [before, failed] = [this.node, this.problem];
    try {
      const signal = AbortSignal.timeout(PATIENCE_MS);
      const [node, stats, groups, attention] = await Promise.all([
        this.api.get("/node", { signal }),
        this.api.get("/stats", { signal }),
        this.api.get("/groups", { signal }),
        this.api.get("/attention", { signal }),
      ]);
      this.attention = attention;
      this.take(node, stats, groups.groups);
      if (this.polls++ % 5 === 0) await this.lookAround(signal);
      this.problem = null;
      this.answered = Date.now();
    } catch (problem) {
      this.problem = problem;
      if (!failed) this.lift();
    }
    this.polling = false;
    this.dispatchEvent(new Event("change"));
    const restarted = before !== null && before.started !== this.node.started;
    if (before && !this.problem && (failed || restarted)) this.dispatchEvent(new CustomEvent("again", { detail: { restarted } }));
    this.plan(EVERY_MS);
  }

  /** Who else is on the log, and what holds it. */
  async lookAround(signal) {
    const { nodes, engine } = await this.api.get("/nodes", { signal });
    this.nodes = nodes;
    this.engine = engine;
  }

  /** Whether other nodes may be on the log. */
  get shared() {
    return this.engine?.shared ?? false;
  }

  /** The name of the node this page talks to. */
  get here() {
    return this.nodes.find((node) => node.here)?.name ?? "";
  }

  /** From here on nothing is known: a chart draws no line to what comes next. */
  lift() {
    if (this.points.length) this.points.push({ t: this.points.at(-1).t + 1 });
  }

  /** Something was given up or dealt with; many changes are counted once. */
  attentionChanged() {
    this.recount ??= setTimeout(async () => {
      this.recount = null;
      this.attention = await this.api.get("/attention").catch(() => this.attention);
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
    if (!before || before.started !== node.started) return this.lift();
    const seconds = (now - before.t) / 1000;
    const per = (name) => Math.max(0, stats[name] - before.stats[name]) / seconds;
    const [counted, earlier] = [withoutSystem(stats), withoutSystem(before.stats)];
    this.points.push({
      t: now,
      published: Math.max(0, counted.pub - earlier.pub) / seconds,
      delivered: Math.max(0, counted.del - earlier.del) / seconds,
      acks: per("acks"),
      turns: Math.max(0, seen.turns - before.turns) / seconds,
      dlq: stats.dlq,
      inflight: stats.inflight,
      lag,
    });
    if (this.points.length > KEPT_POINTS) this.points.splice(0, this.points.length - KEPT_POINTS);
    for (const [topic, counted] of Object.entries(stats.byTopic)) {
      const earlier = before.stats.byTopic[topic] ?? { pub: 0, del: 0 };
      this.noteTopic(topic, (counted.pub - earlier.pub) / seconds, (counted.del - earlier.del) / seconds);
    }
  }

  noteTopic(topic, pub, del) {
    let known = this.topicRates.get(topic);
    if (!known) this.topicRates.set(topic, (known = { pub: 0, del: 0, series: [] }));
    known.pub = Math.max(0, pub);
    known.del = Math.max(0, del);
    known.series.push(known.pub);
    if (known.series.length > TOPIC_POINTS) known.series.shift();
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

/** What was published and delivered in topics of programs: the node's own events would make every quiet node look busy. */
function withoutSystem({ published, delivered, byTopic }) {
  const rest = { pub: published, del: delivered };
  for (const [topic, { pub, del }] of Object.entries(byTopic)) {
    if (!topic.startsWith("system.")) continue;
    rest.pub -= pub;
    rest.del -= del;
  }
  return rest;
}
