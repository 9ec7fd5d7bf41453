// A client of the Mainspring bus for browsers and Node 20+. One file, no build step, nothing to install:
//
//   import { connect } from "/client.js";
//   const bus = connect("ws://127.0.0.1:7070");
//   const { offset } = await bus.publish("orders", { sku: 1 }, { key: "c-17" });
//   const screen = bus.follow("orders", (event) => show(event.payload)); // every tab gets every event
//   const orders = bus.subscribe("orders", { group: "billing" }, async (event) => { event.ack(); });
//   const receipt = await bus.command("Order.Place", { sku: 1 });
//   const sum = await (await bus.enqueue("shop.add", [2, 3])).result();
//   ...
//   await bus.close();
//
// A publish resolves when the event is durable. While the node is away, events wait here and are sent again with
// their id, so they are stored once; subscriptions come back without moving their group; acknowledgements of leases
// that died with a connection are dropped, because the node delivers those events again.

const BASE_MS = 500; // the first wait before connecting again; doubles up to CAP_MS, and starts anew when it opens
const CAP_MS = 10_000;
const JITTER = 0.5; // each wait is shortened at random by up to this much
const MAX_BATCH = 500; // events of one PUBLISH_BATCH
const MAX_BATCH_CHARS = 200_000;
const UNDER_WAY = 2; // batches of one topic: one being stored while the next is read
const TRY_AGAIN = new Set(["unavailable", "rate_limited"]);
const WHOLE_TOPIC = new Set(["forbidden", "unauthorized"]);
const RETRY_FIRST_MS = 100;
const RETRY_LAST_MS = 5_000;
const OVERLAP_MS = 1_000; // events of several partitions are not delivered in the order of their times

// The HTTP status of the node's codes, so that an error means the same here as over HTTP and in Python.
const STATUS = Object.fromEntries(
  [
    [400, "bad_json bad_frame bad_query bad_name bad_offset not_subscribed bad_argument"],
    [401, "unauthorized"],
    [403, "forbidden"],
    [404, "unknown_topic unknown_group unknown_schedule"],
    [409, "conflict already_subscribed schema_incompatible"],
    [413, "too_large"],
    [422, "bad_payload bad_schema schema_mismatch"],
    [429, "rate_limited"],
    [503, "limit_reached unavailable log_unavailable in_doubt closed connection_lost uncertain"],
  ].flatMap(([status, codes]) => codes.split(" ").map((code) => [code, status])),
);

/** What the node refused, or what went wrong here. `code` is stable, `status` its HTTP status; `message` is for people. */
export class BusError extends Error {
  constructor(code, message, status = STATUS[code] ?? 500) {
    super(message);
    this.name = "BusError";
    this.code = code;
    this.status = status;
  }
}

/** How long to wait before connection attempt `failures` + 1 (0: the first after a loss). */
export function waitMs(failures, random = Math.random) {
  const full = Math.min(BASE_MS * 2 ** Math.min(failures, 32), CAP_MS);
  return Math.round(full * (1 - JITTER * random()));
}

/** A new id in the form of UUID version 7: ordered by time, so that they sort like the events. */
export function newId(now = Date.now(), bytes = crypto.getRandomValues(new Uint8Array(10))) {
  const time = Math.floor(now).toString(16).padStart(12, "0");
  bytes[0] = (bytes[0] & 0x0f) | 0x70;
  bytes[2] = (bytes[2] & 0x3f) | 0x80;
  const rest = Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
  return `${time.slice(0, 8)}-${time.slice(8)}-${rest.slice(0, 4)}-${rest.slice(4, 8)}-${rest.slice(8)}`;
}

/** One delivered event. It belongs to a lease: settle it with `ack` or `nack`, or it comes again. */
export class Event {
  #subscription;
  #epoch;

  constructor(subscription, epoch, topic, message) {
    const envelope = message.envelope;
    this.#subscription = subscription;
    this.#epoch = epoch;
    this.topic = topic;
    this.group = subscription.group;
    this.partition = message.partition;
    this.offset = message.offset;
    this.attempt = message.attempt ?? 1;
    this.id = envelope.id;
    this.ts = envelope.ts;
    this.key = envelope.key ?? null;
    this.headers = envelope.headers ?? {};
    this.payload = envelope.payload;
    this.settled = false;
  }

  /** Done. False: the lease is gone already, and the event comes again. */
  ack() {
    return this.#settle("ACK", {});
  }

  /** Not done: deliver it again, after `delayMs` at the earliest. */
  nack({ delayMs = 0, reason = "" } = {}) {
    return this.#settle("NACK", { ...(delayMs > 0 && { delay_ms: delayMs }), ...(reason && { reason }) });
  }

  /** Given up: it is a dead letter at once, without further attempts. */
  reject(reason = "") {
    return this.#settle("NACK", { reject: true, ...(reason && { reason }) });
  }

  /** The lease ends `ms` from now instead. */
  extend(ms) {
    return !this.settled && this.#subscription.say("EXTEND", this, this.#epoch, { ms });
  }

  #settle(type, more) {
    if (this.settled) return false;
    this.settled = true;
    return this.#subscription.say(type, this, this.#epoch, more);
  }
}

/** A subscription over every reconnect. Has a handler, or is iterated with `for await`. */
export class Subscription {
  constructor(client, topic, group, members, handler, onError, { isNew, again }) {
    this.client = client;
    this.topic = topic;
    this.group = group;
    this.members = members;
    this.handler = handler;
    this.onError = onError;
    this.isNew = isNew; // of one that follows: whether an event was not shown yet
    this.again = again; // where it begins after a reconnect, if its group is gone
    this.epoch = 0;
    this.lostAt = null;
    this.wasConfirmed = false;
    this.retryMs = RETRY_FIRST_MS;
    this.closed = false;
    this.arrived = [];
    this.waiters = [];
    this.error = null;
    this.confirmed = new Promise((resolve, reject) => Object.assign(this, { confirm: resolve, refuse: reject }));
    this.confirmed.catch(() => {});
  }

  say(type, event, epoch, more) {
    if (epoch !== this.epoch || this.closed) return false;
    this.client.send({ type, topic: event.topic, group: this.group, partition: event.partition, offset: event.offset, ...more });
    return true;
  }

  take(topic, messages) {
    for (const message of messages) {
      const event = new Event(this, this.epoch, topic, message);
      if (this.handler) {
        if (this.#isWanted(event)) this.#handle(event);
      } else {
        this.arrived.push(event);
        this.waiters.shift()?.();
      }
    }
  }

  /** False: it follows, and has shown this one. What it shows is acknowledged, because nobody else does. */
  #isWanted(event) {
    if (!this.isNew) return true;
    event.ack();
    return this.isNew(event);
  }

  async #handle(event) {
    try {
      await this.handler(event);
    } catch (error) {
      if (!this.isNew) event.nack({ reason: String(error?.message ?? error), delayMs: 1_000 });
      this.onError?.(error, event);
    }
  }

  lost(now) {
    this.epoch = 0;
    this.lostAt ??= now;
    this.arrived = []; // their leases are gone; the node delivers them again
  }

  end(error) {
    this.error ??= error;
    this.closed = true;
    this.arrived = [];
    this.refuse(error);
    for (const wake of this.waiters.splice(0)) wake();
  }

  /** Leave the group: what is not settled goes to others at once. */
  async close() {
    if (this.closed) return;
    const held = this.epoch !== 0;
    this.end(new BusError("closed", "the subscription is closed"));
    await this.client.unsubscribe(this, held);
  }

  async *[Symbol.asyncIterator]() {
    try {
      while (true) {
        while (!this.arrived.length) {
          if (this.error?.code === "closed") return;
          if (this.error) throw this.error;
          await new Promise((resolve) => this.waiters.push(resolve));
        }
        const event = this.arrived.shift();
        if (this.#isWanted(event)) yield event;
      }
    } finally {
      await this.close();
    }
  }
}

const ENDS = {
  failed: ["task_failed", (id, error) => `task ${id} failed: ${error}`],
  cancelled: ["task_cancelled", (id) => `task ${id} was cancelled`],
  expired: ["task_expired", (id) => `task ${id} expired before it was started`],
};

/** One call of a task by its id. Made by `enqueue`, and by `task` for one that was enqueued elsewhere. */
export class TaskHandle {
  #client;
  #topics;

  constructor(client, task, id, topics) {
    this.#client = client;
    this.#topics = topics;
    this.task = task;
    this.id = id;
  }

  /**
   * What the task returned. Rejects with code "task_failed" when it is a dead letter, "task_cancelled", "task_expired",
   * and "timed_out" when it did not end within `timeoutMs`.
   */
  async result({ timeoutMs } = {}) {
    let screen, timer;
    const ended = new Promise((resolve, reject) => {
      const take = (record) => {
        if (record.state === "done") resolve(record.value ?? null);
        else if (record.state in ENDS) {
          const [code, text] = ENDS[record.state];
          reject(new BusError(code, text(this.id, record.error)));
        }
      };
      // Whoever follows first and looks afterwards misses no end in between.
      screen = this.#client.follow(this.#topics.results, (event) => take(event.payload), {
        filter: { key: this.id },
        onError: reject,
      });
      screen.confirmed.then(() => this.#look(take)).catch(reject);
      if (timeoutMs !== undefined) {
        const late = () => reject(new BusError("timed_out", `task ${this.id} did not end within ${timeoutMs} ms`));
        timer = setTimeout(late, timeoutMs);
      }
    });
    try {
      return await ended;
    } finally {
      clearTimeout(timer);
      await screen?.close();
    }
  }

  /** "waiting", "delayed", "running", "retrying", "done", "failed", "cancelled" or "expired". */
  async state() {
    return (await this.#call()).state;
  }

  /** Ask for it to end: it will not be started, or is interrupted where it waits. Durable when it resolves. */
  async cancel(reason = "") {
    await this.#client.publish(this.#topics.control, { cancel: this.id, reason }, { key: this.id });
  }

  async #look(take) {
    try {
      take(await this.#call());
    } catch (error) {
      if (error.status !== 404 && error.code !== "connection_lost") throw error; // what comes later is followed
    }
  }

  #call() {
    return this.#client.http("GET", `/tasks/${encodeURIComponent(this.task)}/calls/${encodeURIComponent(this.id)}`);
  }
}

/** A connection that mends itself. Made by `connect`. */
export class BusClient {
  #urls;
  #turn;
  #options;
  #socket = null;
  #open = false;
  #closed = false;
  #failures = 0;
  #timer = null;
  #retryTimer = null;
  #corr = 0;
  #epoch = 0;
  #asked = new Map(); // corr -> {resolve, reject, type}
  #unasked = []; // requests made while not connected
  #lanes = new Map(); // topic -> {waiting, underWay, pausedUntil, retryMs}
  #batches = new Map(); // corr -> lane
  #subscriptions = new Map(); // JSON of [topic, group] -> Subscription
  #room = [];
  #idle = [];
  #count = 0;
  #planned = false;

  constructor(url, options = {}) {
    this.#options = {
      WebSocket: globalThis.WebSocket,
      random: Math.random,
      maxQueued: 10_000,
      dedupeWindowMs: 600_000, // how long the node remembers publish ids, by default
      now: () => Date.now(),
      ...options,
    };
    this.#urls = [url].flat().map((one) => one.replace(/^http/, "ws"));
    this.#turn = Math.floor(this.#options.random() * this.#urls.length); // many clients spread over the nodes
    if (!this.#options.WebSocket) {
      throw new BusError("no_websocket", "there is no WebSocket here: pass one, as { WebSocket } from the package ws");
    }
    this.#connect();
  }

  /** "connecting", "open", "waiting" or "closed". */
  get state() {
    if (this.#closed) return "closed";
    return this.#open ? "open" : this.#timer !== null ? "waiting" : "connecting";
  }

  // -- verbs

  /**
   * Publish one event; resolves to {topic, partition, offset, id} when it is durable (offset 0: it is delayed).
   * Rejects with a BusError the node's code says why; code "uncertain" when the node was away for too long to know.
   */
  async publish(topic, payload, { key, headers, id = newId(), delayMs, notBefore, ttlMs } = {}) {
    const event = { id, payload: payload === undefined ? null : payload };
    if (key !== undefined && key !== null) event.key = key;
    if (headers) event.headers = headers;
    if (delayMs) event.delay_ms = delayMs;
    if (notBefore) event.not_before = notBefore;
    if (ttlMs) event.ttl_ms = ttlMs;
    const text = JSON.stringify(event);
    while (this.#count >= this.#options.maxQueued && !this.#closed) await new Promise((go) => this.#room.push(go));
    if (this.#closed) throw new BusError("closed", "the client is closed");
    return new Promise((resolve, reject) => {
      if (!this.#lanes.has(topic)) {
        this.#lanes.set(topic, { topic, waiting: [], underWay: new Map(), pausedUntil: 0, retryMs: RETRY_FIRST_MS });
      }
      this.#lanes.get(topic).waiting.push({ id, text, resolve, reject, sentAt: 0, alone: false });
      this.#count += 1;
      this.#plan();
    });
  }

  /**
   * Consume a topic as a member of a group, or every topic that fits a pattern (`orders.*`), also later ones. `from` is
   * "latest", "beginning", an offset or a Date; it says where a new group starts. Without a handler, iterate the result
   * with `for await`. A new group with `groupTtlMs` is deleted when it had no member for so long.
   */
  subscribe(topic, options = {}, handler, onError) {
    const again = () => (options.groupTtlMs && options.from === "latest" ? startOf("latest") : undefined);
    return this.#subscribe(topic, options, handler, onError, { again });
  }

  #subscribe(topic, options, handler, onError, following) {
    const { group, from, maxInflight = 64, filter, ack = "each", sticky, groupTtlMs } = options;
    const place = JSON.stringify([topic, group]);
    if (this.#closed) throw new BusError("closed", "the client is closed");
    if (this.#subscriptions.has(place)) {
      throw new BusError("already_subscribed", `this client already consumes ${topic} as ${group}`);
    }
    const members = { topic, group, max_inflight: maxInflight, ack, batch: Math.min(maxInflight, 256), filter, sticky };
    if (groupTtlMs) members.group_ttl_ms = groupTtlMs;
    const subscription = new Subscription(this, topic, group, { ...members, from: startOf(from) }, handler, onError, following);
    this.#subscriptions.set(place, subscription);
    if (this.#open) this.#ask(subscription);
    return subscription;
  }

  /**
   * Every event of a topic, or of every topic that fits a pattern, from now on (or from `from`: "beginning", a Date),
   * without a group of your own and without acknowledging: for pages. Over reconnects nothing is missed and nothing
   * comes twice. What the node keeps for it is gone `keptMs` after the page is. Without a handler, iterate the result
   * with `for await`.
   */
  follow(topic, handler, { from = "latest", filter, maxInflight = 256, keptMs = 60_000, onError } = {}) {
    const seen = new Map(); // topic and partition -> the last offset that was shown
    let lastTs = 0;
    const isNew = (event) => {
      const place = JSON.stringify([event.topic, event.partition]);
      if (event.offset <= (seen.get(place) ?? 0)) return false;
      seen.set(place, event.offset);
      lastTs = Math.max(lastTs, event.ts);
      return true;
    };
    const members = { group: `follow-${newId()}`, from, maxInflight, filter, ack: "upto", groupTtlMs: keptMs };
    // Away for so long that the group may be gone: go on where this page was; what is shown already is left out.
    const again = (awayMs) => {
      if (lastTs && awayMs > keptMs / 2) return { kind: "timestamp", value: Math.max(0, lastTs - OVERLAP_MS) };
      return from === "latest" ? startOf(from) : undefined;
    };
    return this.#subscribe(topic, members, handler, onError, { isNew, again });
  }

  /**
   * Send a command to whoever serves it; the data of its reply. Rejects with a BusError whose `status` is the error's: what the
   * handler said, 500 if it failed, 504 if it took too long, 404 if nobody serves it; code "connection_lost" when the
   * command may have been carried out. A durable command with an `id` can be sent again: it is carried out once.
   */
  command(type, data, { id, timeoutMs, retry } = {}) {
    return this.#message("command", type, data, { id, timeout: timeoutMs, retry });
  }

  /** Ask a query; the data of its reply. */
  query(type, data, { timeoutMs } = {}) {
    return this.#message("query", type, data, { timeout: timeoutMs });
  }

  async #message(kind, type, data, members) {
    return (await this.http("POST", "/messages", { kind, type, data: data === undefined ? {} : data, ...members })).data;
  }

  /**
   * Have a task of a program done: `bus.enqueue("shop.send_mail", ["ada"])` calls `send_mail("ada")` of the app `shop`.
   * Resolves to its TaskHandle when the call is durable. `topic` is that of a task declared with one.
   */
  async enqueue(task, args = [], { kwargs, key, priority = "normal", delayMs, notBefore, ttlMs, unique, headers, topic } = {}) {
    const { name, shared, normal, ...topics } = topicsOf(task, topic);
    const id = unique === undefined ? newId() : `${name}:${unique}`;
    const sent = { ...headers, "x-task": name };
    if (ttlMs) sent["x-task-expires"] = String(this.#options.now() + ttlMs);
    const place = key != null ? `${shared}.ordered` : priority === "normal" ? normal : `${shared}.${priority}`;
    await this.publish(place, kwargs ? { args, kwargs } : { args }, { key, headers: sent, id, delayMs, notBefore });
    return new TaskHandle(this, task, id, topics);
  }

  /** The handle of a call that was enqueued elsewhere. */
  task(task, id, { topic } = {}) {
    const { results, control } = topicsOf(task, topic);
    return new TaskHandle(this, task, id, { results, control });
  }

  /** Acknowledge an event; the same as `event.ack()`. */
  ack(event) {
    return event.ack();
  }

  /** Refuse an event; the same as `event.nack(...)`. */
  nack(event, options) {
    return event.nack(options);
  }

  /** Drop the connection and make a new one now, without waiting. */
  reconnect() {
    if (this.#closed) return;
    clearTimeout(this.#timer);
    this.#timer = null;
    this.#lost();
    this.#failures = 0;
    this.#connect();
  }

  /** Wait until everything published is confirmed (at most `drainMs`), leave every group, disconnect. */
  async close({ drainMs = 10_000 } = {}) {
    if (this.#closed) return;
    const drained = new Promise((resolve) => (this.#count ? this.#idle.push(resolve) : resolve()));
    let timer;
    await Promise.race([drained, new Promise((resolve) => (timer = setTimeout(resolve, drainMs)))]);
    clearTimeout(timer);
    await Promise.all([...this.#subscriptions.values()].map((one) => one.close()));
    this.#closed = true;
    clearTimeout(this.#timer);
    clearTimeout(this.#retryTimer);
    const error = new BusError("closed", "the client is closed");
    for (const lane of this.#lanes.values()) {
      for (const event of [...[...lane.underWay.values()].flat(), ...lane.waiting]) event.reject(error);
    }
    this.#lanes.clear();
    for (const { reject } of this.#unasked.splice(0)) reject(error);
    for (const go of this.#room.splice(0)) go();
    this.#socket?.close(1000);
    this.#socket = null;
    this.#open = false;
    this.#say();
  }

  // -- the connection

  #connect() {
    const { WebSocket, token } = this.#options;
    // A page cannot set headers of a WebSocket, so the token is offered as a subprotocol.
    const protocols = token ? ["mainspring", `mainspring.token.${token}`] : [];
    const socket = new WebSocket(this.#urls[this.#turn], protocols);
    this.#socket = socket;
    this.#say();
    socket.onopen = () => socket === this.#socket && this.#opened();
    socket.onmessage = (message) => socket === this.#socket && this.#received(message.data);
    socket.onerror = () => {};
    socket.onclose = () => socket === this.#socket && this.#again();
  }

  #opened() {
    this.#open = true;
    this.#failures = 0;
    this.#say();
    for (const subscription of this.#subscriptions.values()) this.#ask(subscription);
    for (const { type, members, resolve, reject } of this.#unasked.splice(0)) {
      this.request(type, members).then(resolve, reject);
    }
    const oldest = this.#options.now() - this.#options.dedupeWindowMs;
    for (const lane of this.#lanes.values()) {
      lane.pausedUntil = 0;
      const doubtful = lane.waiting.filter((event) => event.sentAt && event.sentAt < oldest);
      lane.waiting = lane.waiting.filter((event) => !doubtful.includes(event));
      for (const event of doubtful) {
        const text = `the node was away for too long to know whether event ${event.id} is stored`;
        this.#decided(event, () => event.reject(new BusError("uncertain", text)));
      }
    }
    this.#flush();
  }

  #again() {
    this.#lost();
    if (this.#closed) return;
    this.#turn = (this.#turn + 1) % this.#urls.length;
    this.#timer = setTimeout(() => {
      this.#timer = null;
      this.#connect();
    }, waitMs(this.#failures, this.#options.random));
    this.#failures += 1;
    this.#say();
  }

  #lost() {
    const socket = this.#socket;
    this.#socket = null;
    this.#open = false;
    if (socket && socket.readyState <= 1) socket.close();
    for (const one of this.#subscriptions.values()) one.lost(this.#options.now());
    for (const { reject } of this.#asked.values()) reject(new BusError("connection_lost", "the connection was lost"));
    this.#asked.clear();
    this.#batches.clear();
    for (const lane of this.#lanes.values()) {
      lane.waiting.unshift(...[...lane.underWay.values()].flat());
      lane.underWay.clear();
    }
  }

  #say() {
    this.#options.onState?.(this.state);
  }

  /** Send a frame on the open connection; without one it is dropped. */
  send(frame) {
    if (this.#open) this.#socket.send(typeof frame === "string" ? frame : JSON.stringify(frame));
  }

  /** Ask the node over HTTP; the answer's JSON. Rejects with what its problem document says. */
  async http(method, path, body) {
    const { fetch = globalThis.fetch, token } = this.#options;
    const headers = token ? { Authorization: `Bearer ${token}` } : {};
    if (body !== undefined) headers["Content-Type"] = "application/json";
    let answer;
    try {
      const url = new URL(path, this.#urls[this.#turn].replace(/^ws/, "http"));
      answer = await fetch(url, { method, headers, ...(body !== undefined && { body: JSON.stringify(body) }) });
    } catch (error) {
      throw new BusError("connection_lost", `the node did not answer: ${error.message}`);
    }
    const found = await answer.json().catch(() => ({}));
    if (!answer.ok) throw new BusError(found.code ?? "internal", found.message ?? answer.statusText, answer.status);
    return found;
  }

  /** A request with an answer. Made while not connected, it waits. */
  request(type, members) {
    return new Promise((resolve, reject) => {
      if (!this.#open) {
        this.#unasked.push({ type, members, resolve, reject });
        return;
      }
      const corr = ++this.#corr;
      this.#asked.set(corr, { type, resolve, reject });
      this.send({ type, corr, ...members });
    });
  }

  #ask(subscription) {
    // With its start only until the node has confirmed it once: later that would move the whole group.
    const { from: first, ...members } = subscription.members;
    const epoch = (subscription.epoch = ++this.#epoch);
    const awayMs = this.#options.now() - (subscription.lostAt ?? Infinity);
    const from = subscription.wasConfirmed ? subscription.again(awayMs) : first;
    this.request("SUBSCRIBE", from ? { ...members, from } : members).then(
      () => {
        subscription.wasConfirmed = true;
        subscription.lostAt = null;
        subscription.retryMs = RETRY_FIRST_MS;
        subscription.confirm();
      },
      (error) => {
        if (error.code === "connection_lost" || epoch !== subscription.epoch) return;
        if (TRY_AGAIN.has(error.code)) {
          setTimeout(() => {
            if (epoch === subscription.epoch && !subscription.closed) this.#ask(subscription);
          }, subscription.retryMs);
          subscription.retryMs = Math.min(subscription.retryMs * 2, RETRY_LAST_MS);
        } else {
          this.#refuse(subscription, error);
        }
      },
    );
  }

  /** The node refused it for good, or ended it: it is forgotten, so that nothing comes for nobody. */
  #refuse(subscription, error) {
    this.#subscriptions.delete(JSON.stringify([subscription.topic, subscription.group]));
    subscription.end(error);
    subscription.onError?.(error);
  }

  async unsubscribe({ topic, group }, held) {
    this.#subscriptions.delete(JSON.stringify([topic, group]));
    if (this.#open && held) await this.request("UNSUBSCRIBE", { topic, group }).catch(() => {});
  }

  // -- publishing

  /** What is published in one turn of the event loop leaves together. */
  #plan() {
    if (this.#planned) return;
    this.#planned = true;
    queueMicrotask(() => {
      this.#planned = false;
      this.#flush();
    });
  }

  #flush() {
    if (!this.#open) return;
    const now = this.#options.now();
    let due = Infinity;
    for (const lane of this.#lanes.values()) {
      if (lane.waiting.length && lane.pausedUntil > now) due = Math.min(due, lane.pausedUntil);
      else while (lane.waiting.length && lane.underWay.size < UNDER_WAY) this.#sendBatch(lane, now);
    }
    if (due < Infinity) {
      clearTimeout(this.#retryTimer);
      this.#retryTimer = setTimeout(() => this.#flush(), due - now);
    }
  }

  #sendBatch(lane, now) {
    let chars = 0;
    let count = 0;
    while (count < lane.waiting.length && count < MAX_BATCH) {
      const event = lane.waiting[count];
      chars += event.text.length;
      if (count && (event.alone || lane.waiting[0].alone || chars > MAX_BATCH_CHARS)) break;
      count += 1;
    }
    const batch = lane.waiting.splice(0, count);
    for (const event of batch) event.sentAt ||= now;
    const corr = ++this.#corr;
    lane.underWay.set(corr, batch);
    this.#batches.set(corr, lane);
    const events = batch.map((event) => event.text).join(",");
    this.send(`{"type":"PUBLISH_BATCH","topic":${JSON.stringify(lane.topic)},"corr":${corr},"events":[${events}]}`);
  }

  #decided(event, tell) {
    this.#count -= 1;
    tell();
    if (this.#room.length && this.#count < this.#options.maxQueued) this.#room.shift()();
    if (!this.#count) for (const go of this.#idle.splice(0)) go();
  }

  #answered(corr) {
    const lane = this.#batches.get(corr);
    if (!lane) return null;
    const batch = lane.underWay.get(corr);
    this.#batches.delete(corr);
    lane.underWay.delete(corr);
    return { lane, batch };
  }

  #stored({ corr, topic, offsets }) {
    const { lane, batch } = this.#answered(corr) ?? {};
    if (!lane) return;
    lane.retryMs = RETRY_FIRST_MS;
    if (!lane.waiting.length && !lane.underWay.size) this.#lanes.delete(topic);
    batch.forEach((event, at) => {
      const [partition, offset] = offsets[at];
      this.#decided(event, () => event.resolve({ topic, partition, offset, id: event.id }));
    });
    this.#flush();
  }

  #refused(corr, error) {
    const { lane, batch } = this.#answered(corr) ?? {};
    if (!lane) return false;
    if (TRY_AGAIN.has(error.code)) {
      lane.pausedUntil = this.#options.now() + Math.max(lane.retryMs, error.retry_after_ms ?? 0);
      lane.retryMs = Math.min(lane.retryMs * 2, RETRY_LAST_MS);
      for (const event of batch) event.sentAt = 0; // the node said that it did not store it
      lane.waiting.unshift(...batch);
    } else if (batch.length === 1 || WHOLE_TOPIC.has(error.code)) {
      for (const event of batch) this.#decided(event, () => event.reject(new BusError(error.code, error.message)));
    } else {
      for (const event of batch) Object.assign(event, { alone: true, sentAt: 0 });
      lane.waiting.unshift(...batch);
    }
    this.#flush();
    return true;
  }

  // -- what the node says

  #received(text) {
    const frame = JSON.parse(text);
    if (frame.type === "MESSAGES" || frame.type === "MESSAGE") {
      const place = JSON.stringify([frame.pattern ?? frame.topic, frame.group]);
      this.#subscriptions.get(place)?.take(frame.topic, frame.messages ?? [frame]);
    } else if (frame.type === "PUBLISHED_BATCH") {
      this.#stored(frame);
    } else if (frame.type === "OK") {
      this.#asked.get(frame.corr)?.resolve(frame);
      this.#asked.delete(frame.corr);
    } else if (frame.type === "ERROR") {
      this.#complain(frame);
    }
  }

  #complain(error) {
    const asked = this.#asked.get(error.corr);
    if (asked) {
      this.#asked.delete(error.corr);
      asked.reject(new BusError(error.code, `${asked.type}: ${error.message}`));
      return;
    }
    const ended = !error.in_reply_to && this.#subscriptions.get(JSON.stringify([error.topic, error.group]));
    if (ended) {
      this.#refuse(ended, new BusError(error.code, error.message)); // its right was taken away
      return;
    }
    if (this.#refused(error.corr, error)) return;
    // A frame too large to be read has no answer of its own; it was the oldest without one.
    const oldest = this.#batches.keys().next();
    if (error.code === "too_large" && !oldest.done) this.#refused(oldest.value, error);
  }
}

function startOf(from) {
  if (from === undefined || from === null) return undefined;
  if (from === "latest") return { kind: "latest" };
  if (from === "beginning") return { kind: "offset", value: 0 };
  if (from instanceof Date) return { kind: "timestamp", value: from.getTime() };
  if (Number.isInteger(from) && from >= 0) return { kind: "offset", value: from };
  if (typeof from === "object" && "kind" in from) return from;
  throw new BusError("bad_argument", `${String(from)} is no place to begin`);
}

/** The topics of a task: `shop.send_mail` is the task `send_mail` of the app `shop`. */
function topicsOf(task, topic) {
  const cut = task.lastIndexOf(".");
  if (cut < 1 && !topic) throw new BusError("bad_argument", `${task} names no task: write app.task, as in shop.send_mail`);
  const shared = topic ?? `tasks.${task.slice(0, cut)}`;
  const name = task.slice(cut + 1);
  return { name, shared, normal: topic ?? `${shared}.${name}`, results: `${shared}.results`, control: `${shared}.control` };
}

/**
 * A client of the node at `url`, or of several nodes of one log when it is a list: it begins with one at random and goes
 * to the next whenever a connection fails or ends. Options: token, WebSocket, fetch, onState, maxQueued. It connects at once,
 * and for ever.
 */
export function connect(url, options) {
  return new BusClient(url, options);
}
