// A program as its author's compiler sees it. Lines marked `// wrong:` are wrong, and no others.
import { BusError, connect, TaskHandle, type BusClient, type Event, type Subscription } from "mainspring-client";

interface Order {
  sku: number;
}

const bus: BusClient = connect(["ws://a", "ws://b"], { token: "t", onState: (state) => state === "open" });

export async function use(): Promise<void> {
  const { offset, id } = await bus.publish("orders", { sku: 1 }, { key: "c-17", headers: { a: "b" }, delayMs: 5 });
  const numbers: [number, string] = [offset, id];
  const screen: Subscription<Order> = bus.follow<Order>("orders", (event) => event.payload.sku, { from: new Date() });
  bus.subscribe("orders", { group: "g", from: "latest" }, (event) => event.ack());
  for await (const event of bus.subscribe<Order>("orders", { group: "billing", maxInflight: 5 })) {
    const taken: Event<Order> = event;
    const done: boolean = taken.payload.sku > 1 ? event.ack() : event.nack({ delayMs: 5 });
    event.payload.price; // wrong: an order has none
    console.log(done);
  }
  const receipt = await bus.command<{ paid: number }>("Order.Place", { sku: 1 }, { retry: { maxAttempts: 3 } });
  const count: number = await bus.query<number>("Order.Count");
  const handle: TaskHandle<number> = await bus.enqueue<number>("shop.add", [1, 2], { priority: "high" });
  const sum: number = await handle.result({ timeoutMs: 5 });
  const text: string = await handle.result(); // wrong: a number
  await bus.enqueue("shop.add", [1], { priority: "urgent" }); // wrong: no such priority
  bus.subscribe("orders", { from: "latest" }); // wrong: no group
  bus.publish("orders", 1, { keys: "k" }); // wrong: misspelt
  new TaskHandle(); // wrong: the client makes them
  if ((await bus.task("shop.add", handle.id).state()) === "finished") return; // wrong: no such state
  await screen.close();
  await bus.close({ drainMs: 5 });
  try {
    await screen.confirmed;
  } catch (error) {
    if (error instanceof BusError) console.log(error.code, error.status, numbers, receipt.paid, count, sum, text);
  }
}
