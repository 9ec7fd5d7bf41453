// A client of the bus in JavaScript, written from the protocol's text alone. It goes through the protocol's testing
// recipe: publish, consume with a window and acknowledge, survive a restart, and let a silent group reach its dead
// letters. Usage: node recipe.js PHASE PORT; prints one JSON line.
"use strict";
const WebSocket = require("ws");

const [phase, port] = process.argv.slice(2);
const TOPIC = "test.topic";

class Bus {
  constructor() {
    this.socket = new WebSocket(`ws://127.0.0.1:${port}`);
    this.answers = [];
    this.handlers = new Map();
    this.socket.on("message", (data) => {
      const frame = JSON.parse(data.toString());
      if (frame.type === "MESSAGE") {
        this.handlers.get(`${frame.topic} ${frame.group}`)(frame);
        return;
      }
      const [resolve, reject] = this.answers.shift();
      frame.type === "ERROR" ? reject(new Error(`${frame.code}: ${frame.message}`)) : resolve(frame);
    });
    this.opened = new Promise((resolve, reject) => {
      this.socket.on("open", resolve);
      this.socket.on("error", reject);
    });
  }

  send(frame) {
    this.socket.send(JSON.stringify(frame));
  }

  ask(frame) {
    return new Promise((resolve, reject) => {
      this.answers.push([resolve, reject]);
      this.send(frame);
    });
  }

  publish(topic, payload, key, headers) {
    return this.ask({ type: "PUBLISH", topic, payload, key, headers });
  }

  subscribe(topic, group, from, max_inflight, onMessage) {
    this.handlers.set(`${topic} ${group}`, onMessage);
    return this.ask({ type: "SUBSCRIBE", topic, group, from, max_inflight });
  }

  ack({ topic, partition, group, offset }) {
    this.send({ type: "ACK", topic, partition, group, offset });
  }
}

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function until(condition, what) {
  for (let n = 0; n < 2000; n++) {
    if (await condition()) return;
    await sleep(10);
  }
  throw new Error(`waited in vain for ${what}`);
}

async function committed() {
  const answer = await fetch(`http://127.0.0.1:${port}/topics/${TOPIC}/offsets`);
  return (await answer.json()).partitions[0].groups.g1.lastCommitted;
}

// Steps 1 to 3: a publisher, and a subscriber of group g1 from offset 0 with a window of 10 whose acks advance.
async function consume(bus) {
  const seen = [];
  let held = 0;
  let most = 0;
  await bus.subscribe(TOPIC, "g1", { kind: "offset", value: 0 }, 10, (frame) => {
    held += 1;
    most = Math.max(most, held);
    setTimeout(() => {
      held -= 1;
      seen.push(frame.offset);
      if (frame.offset <= 40) bus.ack(frame);
    }, 1);
  });
  const published = [];
  for (let n = 1; n <= 50; n++) {
    published.push((await bus.publish(TOPIC, { n }, `proc:${n % 3}`, { n: String(n) })).offset);
  }
  await until(() => seen.length >= 50, "50 messages");
  await until(async () => (await committed()) === 40, "a commit of 40");
  return { published, seen, most, committed: await committed() };
}

// Step 4: after kill and restart the same subscriber resumes behind the commit.
async function resume(bus) {
  const seen = [];
  await bus.subscribe(TOPIC, "g1", { kind: "offset", value: 0 }, 10, (frame) => {
    seen.push([frame.offset, frame.envelope.payload.n]);
    bus.ack(frame);
  });
  await until(() => seen.length >= 10, "the rest");
  await until(async () => (await committed()) === 50, "a commit of 50");
  return { seen, committed: await committed() };
}

// Step 5: acks off; redeliveries, then the dead-letter topic.
async function silence(bus) {
  const attempts = [];
  const dead = [];
  await bus.subscribe("quiet.topic.DLQ", "watch", { kind: "offset", value: 0 }, 10, (frame) => {
    dead.push(frame.envelope);
    bus.ack(frame);
  });
  await bus.subscribe("quiet.topic", "g1", { kind: "offset", value: 0 }, 10, (frame) => attempts.push(frame.attempt));
  const { id } = await bus.publish("quiet.topic", "boo", "proc:stt", { x: "1" });
  await until(() => dead.length === 1, "a dead letter");
  await sleep(500);
  return { attempts, dead, id };
}

async function main() {
  const bus = new Bus();
  await bus.opened;
  const result = await { consume, resume, silence }[phase](bus);
  process.stdout.write(`${JSON.stringify(result)}\n`);
  bus.socket.close();
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
