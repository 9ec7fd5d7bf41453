"""Mainspring's own promises as a scenario: every verb, and what docs/explanation/guarantees.md says about it.

What must happen exactly once writes an event with an id of its own each time it happens, in the commit that makes it
happen: an id that stayed the same would hide the second time.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Collection
from typing import Any, ClassVar

from mainspring import App, Event
from mainspring.beats.errors import BeatRunning
from mainspring.client import Client, New
from mainspring.outbox import Outbox
from mainspring.testing.simulation import PlannedStep, Rest, operation
from tests.simulated.system.calls import CallVerbs
from tests.simulated.system.verbs import EVERY_MS, KEYS, rotten_offsets


class Promises(CallVerbs):
    operations: ClassVar = 24
    settings: ClassVar = {"ack_timeout_ms": 2_000, "retention_interval_ms": 700}
    drainers: ClassVar = (0, 1, 2)

    def __init__(self) -> None:
        super().__init__()
        self.sent: set[str] = set()  # ids of `work` that a publisher was told are stored
        self.given: set[str] = set()  # ids of `work` that the group outside was given
        self.last_number: Counter[str] = Counter()  # of each key
        self.keyed: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self.ordered: defaultdict[str, list[int]] = defaultdict(list)
        self.replies: dict[str, int] = {}  # of durable commands: which execution answered
        self.runs: set[str] = set()
        self.tasks: set[str] = set()
        self.ran: set[str] = set()
        self.later: set[str] = set()
        self.signals: dict[str, bool] = {}  # to the beats: whether their sender was told that they are stored
        self.memory: dict[str, list[str]] = {}
        self.outboxed: dict[str, list[str]] = defaultdict(list)  # ids in the order of their commits, by key

    # -- the program

    def program(self) -> App:
        app = App("promises")
        app.topic("work", partitions=2)
        app.topic("keyed", partitions=2)
        app.topic("steps")
        self._consumers(app)
        self.declare_verbs(app)

        @app.command("Order.Place", durable=True)
        async def place(data: dict[str, Any], ctx: Any) -> int:
            execution = next(self.numbers)
            await ctx.publish("orders", {"id": data["id"], "by": execution}, id=f"o{execution}")
            await ctx.publish("bills", {"by": execution}, id=f"b{execution}")
            await ctx.sleep(0.05)
            return execution

        @app.query("Stock.Count")
        async def count(data: dict[str, Any], ctx: Any) -> int:
            return 3

        @app.every(EVERY_MS / 1_000)
        async def tick(event: Event[Any]) -> None:
            event.publish("ticks", {"at": event.ts}, id=self._new_id())

        @app.task
        async def mail(to: str) -> str:
            self.ran.add(to)
            return to

        @app.enzyme("/topics/pulses", match="prefix")
        def pulse(signal: str, target: str, stage: Any) -> None:
            stage.add("/count", 1)

        @app.enzyme("/signals", match="prefix")
        def hear(signal: str, target: str, stage: Any) -> None:
            stage.add(f"/heard{signal}", 1)

        app.beats_from("pulses")
        app.state.mail = mail
        return app

    def _consumers(self, app: App) -> None:
        @app.consumer("work", group="workers", concurrency=3, max_attempts=3, backoff="100ms")
        async def work(event: Event[dict[str, Any]]) -> None:
            await asyncio.sleep(0.02)
            if event.payload["kind"] == "poison" or (event.payload["kind"] == "flaky" and event.attempt == 1):
                raise ValueError("this one cannot be handled")
            event.publish("done", {"work": event.id}, id=self._new_id())
            if event.payload["kind"] == "run":
                event.start_run("job", f"r-{event.id}", False, id=f"r-{event.id}")

        @app.consumer("keyed", group="ordered", concurrency=4, key_concurrency=1, max_attempts=50, backoff="50ms")
        async def in_order(event: Event[dict[str, Any]]) -> None:
            await asyncio.sleep(0.01)
            if event.attempt == 1 and event.payload["n"] % 3 == 0:
                raise ValueError("once")
            event.publish("ordered", {"key": event.key, "n": event.payload["n"]}, id=self._new_id())

    # -- what clients do

    async def start(self, client: Client) -> None:
        async def received(event: Any) -> None:
            await asyncio.sleep(0.03)
            if event.attempt == 1 and event.offset % 4 == 0:
                raise ValueError("not now")
            self.given.add(event.id)

        client.consume("work", received, group="outside", concurrency=2, retry_delay=0.1, from_="beginning")
        await self.start_verbs(client)

    @operation(weight=4)
    async def publish(self, client: Client, step: PlannedStep) -> None:
        kind = step.random.choice(("plain", "plain", "flaky", "poison", "run"))
        await client.publish("work", {"kind": kind}, id=step.id, key=step.random.choice((None, "k")))
        self.sent.add(step.id)

    @operation
    async def publish_twice(self, client: Client, step: PlannedStep) -> None:
        """Two senders of one id, as after a crash of the first."""
        await asyncio.gather(*(client.publish("work", {"kind": "plain"}, id=step.id) for _ in range(2)))
        self.sent.add(step.id)

    @operation
    async def publish_many(self, client: Client, step: PlannedStep) -> None:
        ids = [f"{step.id}.{n}" for n in range(step.random.randint(2, 12))]
        await client.publish_many("work", [New({"kind": "plain"}, id=id) for id in ids])
        self.sent.update(ids)

    @operation
    async def publish_over_http(self, client: Client, step: PlannedStep) -> None:
        event = {"id": step.id, "payload": {"kind": "plain"}}
        await self._insist(client, lambda: client.http.call("POST", "/topics/work/events", event))
        self.sent.add(step.id)

    @operation(weight=2)
    async def publish_keyed(self, client: Client, step: PlannedStep) -> None:
        key = f"{step.random.choice(KEYS)}{step.client}"
        async with self.keyed[key]:
            for _ in range(3):
                self.last_number[key] += 1
                await client.publish("keyed", {"n": self.last_number[key]}, key=key)

    @operation
    async def publish_later(self, client: Client, step: PlannedStep) -> None:
        await client.publish("later", {}, id=step.id, delay=step.random.choice((0.01, 0.5, 3)))
        self.later.add(step.id)

    @operation(weight=2)
    async def command(self, client: Client, step: PlannedStep) -> None:
        self.replies[step.id] = await self._insist(
            client, lambda: client.command("Order.Place", {"id": step.id}, id=step.id, timeout=10)
        )

    @operation
    async def query(self, client: Client, step: PlannedStep) -> None:
        assert await client.query("Stock.Count", timeout=5) == 3

    @operation(weight=2)
    async def run(self, client: Client, step: PlannedStep) -> None:
        waits = step.random.random() < 0.5
        await self._insist(client, lambda: client.start_run("job", step.id, waits, id=step.id))
        self.runs.add(step.id)
        if waits:
            await self._insist(client, lambda: client.signal(step.id, "go", 7))
        await self._insist(client, lambda: client.outcome(step.id))

    @operation
    async def task(self, client: Client, step: PlannedStep) -> None:
        handle = await self._app(client, step).state.mail.enqueue(step.id)
        self.tasks.add(step.id)
        if step.random.random() < 0.5:
            assert await self._result(handle) == step.id

    @operation
    async def pulse(self, client: Client, step: PlannedStep) -> None:
        await client.publish("pulses", {}, id=step.id)
        signal = f"/signals/{step.id}"
        self.signals[signal] = False
        await client.command("Beat.Signal", {"signal": signal}, timeout=10)
        self.signals[signal] = True

    @operation
    async def remember(self, client: Client, step: PlannedStep) -> None:
        key = f"/m/{step.id}"
        await client.command("Memory.Set", {"key": key, "value": "one"}, timeout=10)
        self.memory[key] = ["one", "two"]
        await client.command("Memory.Set", {"key": key, "value": "two"}, timeout=10)
        self.memory[key] = ["two"]

    @operation
    async def hold(self, client: Client, step: PlannedStep) -> None:
        """Take events as a member of the group outside, and never acknowledge them."""
        if step.client:  # the other one consumes
            client.subscribe("work", group="outside", max_inflight=2)

    @operation
    async def redrive(self, client: Client, step: PlannedStep) -> None:
        await client.redrive("work")

    @operation(weight=2)
    async def add_to_outbox(self, client: Client, step: PlannedStep) -> None:
        """The program's own transaction; some of them are rolled back."""
        if self.database is not None:
            key, commits = step.random.choice(KEYS), step.random.random() < 0.8
            ids = [f"{step.id}.{n}" for n in range(step.random.randint(1, 4))]
            for id in ids:
                Outbox().add(self.database, "outboxed", {}, key=key, id=id)
            if commits:
                self.database.commit()
                self.outboxed[key] += ids
            else:
                self.database.rollback()

    # -- what must be true

    async def left_to_do(self, end: Rest) -> str:
        pulses, count = len(await end.events("pulses")), await end.nodes[0].heartbeat.aread("/count") or 0
        later = {event.id for event in await end.events("later")}
        done = {event.payload["work"] for event in await end.events("done")}
        letters = {each.original_id for each in await end.nodes[0].bus.dead_letters.page("work")}
        work = {event.id for event in await end.events("work")}
        idle, rotten = self.tasks - self.ran, len(rotten_offsets(end, "tasks.promises.mail"))  # perhaps before they ran
        told = [signal for signal, is_stored in self.signals.items() if is_stored]
        left: dict[str, Collection[Any]] = {
            "work that nobody has done or given up": work - done - letters,  # the lag knows no letters sent back
            "tasks that did not run": idle if len(idle) > rotten else (),
            "delayed events that did not come": self.later - later,
            "pulses that were not counted": range(count, pulses),
            "signals that were not heard": [signal for signal in told if not await self._heard(end, signal)],
            **await self.verbs_left(end),
        }
        return "; ".join(f"{what}: {sorted(which)[:3]}" for what, which in left.items() if which)

    async def _heard(self, end: Rest, signal: str) -> int:
        return int(await end.nodes[0].heartbeat.aread(f"/heard{signal}") or 0)

    async def check(self, end: Rest) -> None:
        await self._check_work(end)
        await self._check_order(end)
        await self._check_commands_and_runs(end)
        await self._check_beats(end)
        sent: defaultdict[str, list[str]] = defaultdict(list)
        for event in await end.events("outboxed"):
            sent[str(event.key)].append(event.id)
        end.require(sent == self.outboxed, f"rows {dict(self.outboxed)} were sent as {dict(sent)}")
        later = Counter(event.id for event in await end.events("later"))
        end.require(later == Counter(self.later) or later.keys() >= self.later, f"delayed events: {later}")
        await self.check_verbs(end)

    async def _check_work(self, end: Rest) -> None:
        stored = {event.id: event.payload["kind"] for event in await end.events("work")}
        lost = {
            event.id for event in await end.events("work") if ("work", event.partition, event.offset) in end.damaged
        }
        gone, rotten = self.sent - stored.keys(), sum(topic == "work" for topic, _, _ in end.damaged)
        end.require(len(gone) <= rotten, f"publishers were told that {sorted(gone)[:3]} are stored")
        done = Counter(event.payload["work"] for event in await end.events("done"))
        found = await end.nodes[0].bus.dead_letters.page("work")
        letters = Counter(letter.original_id for letter in found if letter.group == "workers")
        given = self.given | {letter.original_id for letter in found if letter.group == "outside"}
        for id, kind in stored.items():
            if id in lost:
                continue
            wanted = (0, 1) if kind == "poison" else (1, 0)
            end.require(
                (done[id], letters[id]) == wanted,
                f"{kind} event {id} was done {done[id]} times and is {letters[id]} letters",
            )
        missing = stored.keys() - given - lost
        end.require(not missing, f"the group outside was never given {sorted(missing)[:3]}")

    async def _check_order(self, end: Rest) -> None:
        asked: defaultdict[str, list[int]] = defaultdict(list)
        answered: defaultdict[str, list[int]] = defaultdict(list)
        for event in await end.events("keyed"):
            if ("keyed", event.partition, event.offset) not in end.damaged:
                asked[str(event.key)].append(event.payload["n"])
        for event in await end.events("ordered"):
            key, number = event.payload["key"], event.payload["n"]
            if number in asked.get(key, ()) or not end.damaged:  # one that rotted may have been handled before
                answered[key].append(number)
        for key, numbers in asked.items():
            end.require(numbers == sorted(numbers), f"events of key {key} are stored as {numbers}")
        end.require(asked == answered, f"events of keys {dict(asked)} were handled as {dict(answered)}")

    async def _check_commands_and_runs(self, end: Rest) -> None:
        orders = Counter(event.payload["id"] for event in await end.events("orders"))
        executions = {event.payload["id"]: event.payload["by"] for event in await end.events("orders")}
        bills = {event.payload["by"] for event in await end.events("bills")}
        end.require(bills == set(executions.values()), f"orders {sorted(executions.values())}, bills {sorted(bills)}")
        for id, by in self.replies.items():
            end.require(orders[id] == 1, f"command {id} published {orders[id]} times")
            end.require(
                executions.get(id) == by, f"command {id} was answered by {by}, published by {executions.get(id)}"
            )
        steps = Counter((event.payload["run"], event.payload["step"]) for event in await end.events("steps"))
        end.require(set(steps.values()) <= {1}, f"effects that were applied twice: {steps.most_common(3)}")
        node = end.nodes[0]
        work = {event.id: event.payload["kind"] for event in await end.events("work")}
        started = {f"r-{event.payload['work']}" for event in await end.events("done")}
        for id in sorted(self.runs | {id for id in started if work.get(id.removeprefix("r-")) == "run"}):
            record = await node.runtime.durable.store.record(id)
            end.require(record.state == "done", f"run {id} ended as {record.state}: {record.error}")
            end.require(steps[id, 1] == steps[id, 2] == 1, f"run {id} ended without its steps")
        for key, written in self.memory.items():
            value = (await node.kernel.ask("query", "Memory.Get", {"key": key}))["value"]
            end.require(value in written, f"{key} holds {value}, written were {written}")

    async def _replay(self, node: Any) -> Any:
        while True:
            try:
                return await node.heartbeat.areplay()
            except BeatRunning:
                await asyncio.sleep(0.01)

    async def _check_beats(self, end: Rest) -> None:
        pulses = len(await end.events("pulses"))
        for node in end.nodes:
            end.require(not await node.heartbeat.averify(), f"{node.settings.node} has damaged beats")
            replay = await self._replay(node)
            end.require(replay.identical, f"a replay on {node.settings.node} differs: {replay.divergence}")
        count = await end.nodes[0].heartbeat.aread("/count")
        rotten = sum(topic == "pulses" for topic, _, _ in end.damaged)  # perhaps counted before
        end.require(pulses <= (count or 0) <= pulses + rotten, f"{pulses} pulses were counted as {count}")
        for signal, is_stored in self.signals.items():
            heard = await self._heard(end, signal)
            end.require(heard in ((1,) if is_stored else (0, 1)), f"signal {signal} was heard {heard} times")
