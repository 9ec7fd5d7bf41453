// What the JavaScript client promises, told as small stories. The same file runs under Node and in a browser:
// `run(connect, WebSocket, url, story)` gives back what the story saw.

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

const stories = {
  async publishes_and_consumes({ bus, topic }) {
    const places = await Promise.all([1, 2, 3].map((n) => bus.publish(topic, { n }, { key: "k", headers: { h: "v" } })));
    const seen = [];
    for await (const event of bus.subscribe(topic, { group: "g", from: "beginning" })) {
      seen.push([event.offset, event.payload.n, event.key, event.headers.h, event.attempt, event.ack()]);
      if (seen.length === 3) break;
    }
    return { places: places.map((place) => place.offset), version: places[0].id[14], seen };
  },

  async refuses_and_gets_again({ bus, topic }) {
    const attempts = [];
    await new Promise((resolve) => {
      bus.subscribe(topic, { group: "g" }, (event) => {
        attempts.push(event.attempt);
        if (event.attempt === 1) bus.nack(event, { delayMs: 50, reason: "later" });
        else resolve(bus.ack(event));
      });
      bus.publish(topic, "x");
    });
    return attempts;
  },

  async a_handler_that_throws_refuses_its_event({ bus, topic }) {
    const errors = [];
    const attempts = [];
    await new Promise((resolve) => {
      bus.subscribe(
        topic,
        { group: "g" },
        async (event) => {
          attempts.push(event.attempt);
          if (event.attempt === 1) throw new Error("boom");
          event.ack();
          resolve();
        },
        (error) => errors.push(error.message),
      );
      bus.publish(topic, "x");
    });
    return { attempts, errors };
  },

  async keeps_the_order_of_a_burst({ bus, topic }) {
    const places = await Promise.all(Array.from({ length: 2_000 }, (_, n) => bus.publish(topic, n)));
    return places.every((place, n) => place.offset === n + 1);
  },

  async the_same_id_is_stored_once({ bus, topic }) {
    const first = await bus.publish(topic, 1, { id: "order-1" });
    const again = await bus.publish(topic, 1, { id: "order-1" });
    return [first.offset, again.offset];
  },

  async tells_why_it_was_refused({ bus }) {
    const codes = [];
    await bus.publish("no spaces", 1).catch((error) => codes.push(error.code));
    await bus.subscribe("no spaces", { group: "g" }).confirmed.catch((error) => codes.push(error.code));
    const held = bus.subscribe("t", { group: "twice" });
    try {
      bus.subscribe("t", { group: "twice" });
    } catch (error) {
      codes.push(error.code);
    }
    await held.close();
    return codes;
  },

  async survives_a_lost_connection({ bus, topic, states }) {
    const seen = [];
    const subscription = bus.subscribe(topic, { group: "g", from: "latest" }, (event) => {
      seen.push(event.payload);
      event.ack();
    });
    await subscription.confirmed;
    await bus.publish(topic, 1);
    bus.reconnect();
    await bus.publish(topic, 2);
    while (seen.length < 2) await sleep(10);
    return { seen, opened: states.filter((state) => state === "open").length };
  },

  async everybody_who_follows_gets_every_event_once({ bus, topic }) {
    await bus.publish(topic, 0);
    const shown = [[], []];
    const tabs = shown.map((seen) => bus.follow(topic, (event) => seen.push(event.payload)));
    const iterated = bus.follow(topic, undefined, { from: "beginning" });
    await Promise.all([...tabs, iterated].map((each) => each.confirmed));
    await bus.publish(topic, 1);
    while (shown.some((seen) => seen.length < 1)) await sleep(10);
    bus.reconnect();
    await bus.publish(topic, 2);
    while (shown.some((seen) => seen.length < 2)) await sleep(10);
    const all = [];
    for await (const event of iterated) {
      all.push(event.payload);
      if (all.length === 3) break;
    }
    return [...shown, all];
  },

  async leaves_what_it_did_not_acknowledge({ bus, topic }) {
    await bus.publish(topic, 1);
    const first = bus.subscribe(topic, { group: "g" });
    const event = (await first[Symbol.asyncIterator]().next()).value;
    await first.close();
    const second = bus.subscribe(topic, { group: "g" });
    const again = (await second[Symbol.asyncIterator]().next()).value;
    return [event.attempt, again.attempt, event.ack(), again.ack()];
  },

  async a_closed_client_says_so({ bus, topic }) {
    const publishing = bus.publish(topic, 1);
    await bus.close();
    const { offset } = await publishing;
    return [offset, await bus.publish(topic, 2).catch((error) => error.code), bus.state];
  },

  async asks_again_for_what_may_pass_and_forgets_what_is_final({ connect }) {
    const asked = [];
    const answers = ["unavailable", "rate_limited", null, "forbidden"];
    class Scripted {
      constructor() {
        this.readyState = 1;
        Scripted.last = this;
        queueMicrotask(() => this.onopen());
      }
      send(text) {
        const { type, corr, group } = JSON.parse(text);
        if (type === "SUBSCRIBE") asked.push(group);
        const code = type === "SUBSCRIBE" ? answers.shift() : null;
        this.say(code ? { type: "ERROR", code, message: "no", in_reply_to: type, corr } : { type: "OK", corr });
      }
      say(frame) {
        queueMicrotask(() => this.onmessage({ data: JSON.stringify(frame) }));
      }
      close() {}
    }
    const bus = connect("ws://nowhere", { WebSocket: Scripted });
    const taken = bus.subscribe("t", { group: "passing" });
    await taken.confirmed;
    const refused = await bus.subscribe("t", { group: "final" }).confirmed.catch((error) => error.code);
    const next = taken[Symbol.asyncIterator]().next();
    Scripted.last.say({ type: "ERROR", code: "forbidden", message: "no", in_reply_to: "", topic: "t", group: "passing" });
    const ended = await next.catch((error) => error.code);
    bus.reconnect();
    bus.subscribe("t", { group: "passing" });
    while (asked.length < 5) await sleep(10);
    await bus.close();
    return { asked, refused, ended };
  },

  async publishes_over_a_killed_node({ bus, topic, tell }) {
    await bus.publish(topic, 0);
    await tell("kill");
    const publishing = Promise.all([1, 2, 3].map((n) => bus.publish(topic, n)));
    await tell("restart");
    return (await publishing).map((place) => place.offset);
  },
};

export async function run({ connect, WebSocket, url, topic, story, tell }) {
  const states = [];
  const bus = connect(url, { ...(WebSocket && { WebSocket }), onState: (state) => states.push(state) });
  try {
    return await stories[story]({ bus, topic, states, tell, connect });
  } finally {
    await bus.close({ drainMs: 1_000 });
  }
}
