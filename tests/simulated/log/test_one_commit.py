"""What is promised to be one commit is one commit.

Whoever knows a database transaction expects this of each pair below: a node that dies at any moment leaves both or
neither. So each story is told once for every commit that it makes: the world ends behind that commit, and a new node
goes on from there; and once more with that commit refused. Whatever was acknowledged before the end is there after it.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from mainspring import App, Effect, Event, Fail, Publish, Sleep, WaitSignal
from mainspring.bus import NewEvent
from mainspring.message import Message, Metadata
from mainspring.node import Core
from tests.support.commits import Fault, Stored, Story, tell


class AFiring(Story):
    """A schedule's event and its next time; the call's end and how it went."""

    every_ms = 10_000
    rest_s = 1.0

    def app(self) -> App:
        app = App("clock")

        @app.every("10s")
        async def tick(event: Event[Any]) -> None:
            event.publish("ticks", event.offset)

        return app

    async def play(self, node: Core) -> None:
        await asyncio.sleep((self.begin_ms + 35_000 * (1 + self.tries["play"]) - node.clock.wall_ms()) / 1_000)
        self.tries["play"] += 1

    def check(self, stored: Stored) -> None:
        events = stored.events("schedules.clock.tick")
        for schedule in stored.records("schedules", "named/").values():
            assert schedule.get("lastMs", 0) == (events[-1].ts if events else 0)
        settled = stored.settled("schedules.clock.tick", "clock")
        assert set(stored.payloads("ticks")) == settled, "what a call published comes with its acknowledgement"
        assert bool(stored.records("schedule_calls")) == bool(settled), "and so does how it went"

    def check_end(self, stored: Stored) -> None:
        fired = [(event.ts - self.begin_ms) // self.every_ms for event in stored.events("schedules.clock.tick")]
        assert fired in ([1, 2, 3], [1, 2, 3, 4, 5, 6, 7]), "each time once"
        assert stored.payloads("ticks") == list(range(1, len(fired) + 1))


class ADurableCommand(Story):
    """A durable command's events and its outcome."""

    def app(self) -> App:
        app = App("shop")

        @app.command("Order.Place", durable=True)
        async def place(data: dict[str, Any], ctx: Any) -> Any:
            await ctx.publish("orders", data)
            await ctx.publish("mails", data)
            return data["n"]

        return app

    async def play(self, node: Core) -> None:
        for n in range(3):
            await self.step(f"order {n}", lambda n=n: self._place(node, n))  # type: ignore[misc]

    async def _place(self, node: Core, n: int) -> Any:
        metadata = Metadata(f"order {n}", node.clock.wall_ms())
        answer = await node.kernel.exchange_request(Message("command", "Order.Place", Raw(b'{"n":%d}' % n), metadata))
        if answer.kind != "reply":
            raise Fail(answer.data["code"], answer.data["message"])
        return answer.data

    def check(self, stored: Stored) -> None:
        commands = stored.records("commands").values()
        done = sorted(each["message"]["data"]["n"] for each in commands if each["outcome"] is not None)
        assert sorted(each["n"] for each in stored.payloads("orders")) == done
        assert sorted(each["n"] for each in stored.payloads("mails")) == done
        assert {f"order {n}" for n in done} >= set(self.acknowledged)

    def check_end(self, stored: Stored) -> None:
        assert sorted(each["n"] for each in stored.payloads("orders")) == [0, 1, 2]


class ADelayedEvent(Story):
    """A delayed event's row and its append."""

    def app(self) -> App:
        return App("later")

    async def play(self, node: Core) -> None:
        for n in range(3):
            await self.step(
                f"e{n}",
                lambda n=n: node.bus.publish("later", b"%d" % n, id=f"e{n}", delay_ms=500 * n + 100),  # type: ignore[misc]
            )

    def check(self, stored: Stored) -> None:
        waiting = [row["id"] for row in stored.records("schedules", "delayed/").values()]
        there = [event.id for event in stored.events("later")]
        for n in range(3):
            id = f"e{n}"
            found = waiting.count(id) + there.count(id)
            assert there.count(id) <= 1
            assert found >= (id in self.acknowledged)
            if self.was_sent_once(id):
                assert found <= 1, "its row goes when it is appended"

    def check_end(self, stored: Stored) -> None:
        assert sorted(stored.payloads("later")) == [0, 1, 2]
        assert stored.records("schedules", "delayed/") == {}


class AnAcknowledgement(Story):
    """A consumer's events, runs and tasks, and its acknowledgement."""

    def app(self) -> App:
        app = App("shop")

        @app.task
        async def send(to: int) -> None: ...

        @app.run
        async def ship(n: int, perform: Any) -> int:
            await perform(Sleep(1))
            return n

        @app.consumer("orders", group="billing")
        async def bill(event: Event[int]) -> None:
            event.publish("billed", event.offset)
            event.start_run(ship, event.payload, id=f"ship-{event.offset}")
            event.publish(send.topic, send.payload(event.offset), id=f"mail-{event.offset}")

        return app

    async def play(self, node: Core) -> None:
        for n in range(3):
            await self.step(f"o{n}", lambda n=n: node.bus.publish("orders", b"%d" % n, id=f"o{n}"))  # type: ignore[misc]

    def check(self, stored: Stored) -> None:
        settled = stored.settled("orders", "billing")
        runs = {*stored.raw_records("runs"), *stored.raw_records("runs/live")}
        assert sorted(stored.payloads("billed")) == sorted(settled)
        assert runs == {f"ship-{offset}" for offset in settled}
        assert {event.id for event in stored.events("tasks.shop.send")} == {f"mail-{offset}" for offset in settled}
        assert {event.id for event in stored.events("orders")} >= set(self.acknowledged)

    def check_end(self, stored: Stored) -> None:
        assert stored.settled("orders", "billing") == {1, 2, 3}
        assert [run["state"] for run in stored.records("runs").values()] == ["done"] * 3


class ADeadLetter(Story):
    """A dead letter, its notice, and the event being settled."""

    def app(self) -> App:
        app = App("shop")

        @app.consumer("orders", group="billing", max_attempts=2, backoff="1s")
        async def bill(event: Event[int]) -> None:
            if event.payload % 2:
                raise ValueError("it is odd")

        return app

    async def play(self, node: Core) -> None:
        for n in range(1, 5):
            await self.step(f"o{n}", lambda n=n: node.bus.publish("orders", b"%d" % n, id=f"o{n}"))  # type: ignore[misc]

    def check(self, stored: Stored) -> None:
        died = [int(headers(event)["x-original-offset"]) for event in stored.events("orders.DLQ")]
        odd = {event.offset for event in stored.events("orders") if msgspec.json.decode(event.payload) % 2}
        assert sorted(died) == sorted(stored.settled("orders", "billing") & odd), "once, and with its settling"
        assert [notice["offset"] for notice in stored.payloads("system.bus.dlq")] == died

    def check_end(self, stored: Stored) -> None:
        assert {headers(event)["x-original-id"] for event in stored.events("orders.DLQ")} == {"o1", "o3"}
        assert stored.settled("orders", "billing") == {1, 2, 3, 4}


class Note(Effect[int]):
    n: int


class AStep(Story):
    """A run's step, what its handler stored, and the events it published; its outcome."""

    def app(self) -> App:
        app = App("flow")

        @app.handles(Note)
        async def note(effect: Note, ctx: Any) -> int:
            ctx.batch.put("notes", f"{effect.n}", b"%d" % effect.n)
            return effect.n

        @app.run
        async def work(perform: Any) -> int:
            for n in range(2):
                await perform(Note(n))
                await perform(Publish("receipts", n))
                await perform(Sleep(1))
            return 2

        return app

    async def play(self, node: Core) -> None:
        async def start() -> None:
            await node.runtime.durable.written(node.runtime.start("work", durable=True, id="run"))

        await self.step("start", start)
        outcome = await node.runtime.durable.find("run")
        assert outcome is not None
        self.acknowledged["outcome"] = await outcome

    def check(self, stored: Stored) -> None:
        answered = [entry for entry in stored.records("journal/runs").values() if entry.get("answered")]
        notes = [entry["value"] for entry in answered if entry["effect"] == "Note"]
        published = [entry["args"]["payload"] for entry in answered if entry["effect"] == "Publish"]
        assert sorted(stored.records("notes").values()) == notes
        assert stored.payloads("receipts") == published
        runs, live = stored.records("runs"), stored.records("runs/live")
        assert len(runs) + len(live) >= ("start" in self.acknowledged)
        assert not (runs and live)
        assert len(runs) == len(stored.raw_records("runs/done"))
        assert len(runs) >= ("outcome" in self.acknowledged)

    def check_end(self, stored: Stored) -> None:
        assert stored.payloads("receipts") == [0, 1]
        assert self.acknowledged["outcome"] == 2


class ABeat(Story):
    """A beat's cells, and how far the topic that feeds it is read; signals that were acknowledged."""

    def app(self) -> App:
        app = App("beats")

        def seen(signal: str, target: str | None, stage: Any) -> None:
            stage.write(f"/seen{signal}", (stage.read(f"/seen{signal}") or 0) + 1)

        app.enzyme("/topics/ticks", name="tick", match="prefix")(seen)
        app.enzyme("/sig", name="sig", match="prefix")(seen)
        app.beats_from("ticks")
        return app

    async def play(self, node: Core) -> None:
        for n in range(3):
            await self.step(f"t{n}", lambda n=n: node.bus.publish("ticks", b"%d" % n, id=f"t{n}"))  # type: ignore[misc]
            await self.step(
                f"s{n}",
                lambda n=n: node.kernel.ask("command", "Beat.Signal", {"signal": f"/sig/{n}", "target": None}),  # type: ignore[misc]
            )

    def seen(self, stored: Stored) -> dict[str, int]:
        """How often each signal was worked on."""
        found: dict[str, int] = {}
        for key, value in sorted(stored.raw_records("beats").items()):
            path = key.partition("/cell/")[2].rpartition("//")[0]
            if path.startswith("/seen"):
                found[path.removeprefix("/seen")] = int(value[1:])
        return found

    def check(self, stored: Stored) -> None:
        read = sum(each["next"] - 1 for each in stored.records("beats.positions").values())
        seen = self.seen(stored)
        ticks = {path: count for path, count in seen.items() if path.startswith("/topics/")}
        assert ticks == {f"/topics/ticks/0/{offset}": 1 for offset in range(1, read + 1)}, "each event once"
        for n in range(3):
            if self.was_sent_once(f"s{n}"):
                assert seen.get(f"/sig/{n}", 0) <= 1

    def check_end(self, stored: Stored) -> None:
        seen = self.seen(stored)
        assert len(stored.events("ticks")) == 3
        assert set(seen) == {f"/{each}" for n in range(3) for each in (f"topics/ticks/0/{n + 1}", f"sig/{n}")}


class ABatch(Story):
    """The events of one batch, over partitions, with delayed ones among them."""

    def app(self) -> App:
        app = App("batches")
        app.topic("many", partitions=3)
        return app

    async def play(self, node: Core) -> None:
        for b in range(3):
            events = [NewEvent(b"%d" % n, key=f"k{n}", id=f"b{b}-{n}", delay_ms=200 * (n == 4)) for n in range(5)]
            await self.step(f"b{b}", lambda events=events: node.bus.publish_batch("many", events))  # type: ignore[misc]

    def check(self, stored: Stored) -> None:
        ids = [event.id for event in stored.events("many")]
        assert len(ids) == len(set(ids))
        for b in range(3):
            now = [f"b{b}-{n}" for n in range(4) if f"b{b}-{n}" in ids]
            rows = [row["id"] for row in stored.records("schedules", "delayed/").values()]
            later = rows.count(f"b{b}-4") + ids.count(f"b{b}-4")
            assert len(now) in (0, 4)
            assert bool(now) == bool(later)
            assert bool(now) >= (f"b{b}" in self.acknowledged)

    def check_end(self, stored: Stored) -> None:
        assert len(stored.events("many")) == 15


class ARedrive(Story):
    """A dead letter that is sent back to its group: it is a letter, or open again, or settled; never two of these."""

    to_all = False

    def __init__(self) -> None:
        super().__init__()
        self.works = False

    def app(self) -> App:
        app = App("shop")

        @app.consumer("orders", group="billing", max_attempts=1)
        async def bill(event: Event[int]) -> None:
            if not self.works:
                raise ValueError("not yet")
            event.publish("billed", event.id, id=f"billed {event.id}")

        return app

    async def play(self, node: Core) -> None:
        for n in range(3):
            await self.step(f"o{n}", lambda n=n: node.bus.publish("orders", b"%d" % n, id=f"o{n}"))  # type: ignore[misc]
        if not self.works:
            await asyncio.sleep(5)
            self.works = len(await node.bus.dead_letters.page("orders")) == 3
            assert self.works
        await self.step("redrive", lambda: node.bus.dead_letters.redrive("orders", to_all=self.to_all))

    def check(self, stored: Stored) -> None:
        letters = [headers(event)["x-original-id"] for event in stored.events("orders.DLQ")]
        billed = stored.payloads("billed")
        assert len(set(letters)) == len(letters)
        assert len(set(billed)) == len(billed)
        opened = stored.open_events("orders", "billing")
        settled = stored.settled("orders", "billing")
        for event in stored.events("orders"):
            if not self.to_all and event.offset in opened | settled:
                ways = (event.id in letters, event.offset in opened, event.id in billed)
                assert sum(ways) == 1, ways
        if self.to_all:
            died = {event.id for event in stored.events("orders") if event.offset in settled} - set(billed)
            again = [event.id for event in stored.events("orders") if b"x-redriven" in (event.headers or b"")]
            assert len(set(again)) == len(again)
            assert died <= set(letters) | set(again), "it is in one of the two places"
            assert not set(letters) & set(again), "and never in both"

    def check_end(self, stored: Stored) -> None:
        assert sorted(stored.payloads("billed")) == ["o0", "o1", "o2"]
        assert stored.events("orders.DLQ") == []
        assert stored.raw_records("redriven") == {}


class ARedriveToAll(ARedrive):
    """A dead letter that is published anew: the letter goes with it."""

    to_all = True


class ATask(Story):
    """A task's result and its acknowledgement."""

    def app(self) -> App:
        app = App("sums")

        @app.task(backoff="1s")
        async def double(n: int) -> int:
            return 2 * n

        self.double = double
        return app

    async def play(self, node: Core) -> None:
        for n in range(3):
            await self.step(f"t{n}", lambda n=n: self._double(n))  # type: ignore[misc]

    async def _double(self, n: int) -> Any:
        return await (await self.double.options(unique=f"t{n}").enqueue(n)).result(timeout=60)

    def check(self, stored: Stored) -> None:
        ids = {event.offset: event.id for event in stored.events("tasks.sums.double")}
        results = [event.key for event in stored.events("tasks.sums.results")]
        assert sorted(results) == sorted(ids[offset] for offset in stored.settled("tasks.sums.double", "sums"))
        assert set(results) >= {f"double:{name}" for name in self.acknowledged}

    def check_end(self, stored: Stored) -> None:
        assert self.acknowledged == {"t0": 0, "t1": 2, "t2": 4}


class AnEarlySignal(Story):
    """A signal is waiting for its run, or it is in the run's journal; also when it was sent before the run began."""

    def app(self) -> App:
        app = App("flow")

        @app.run
        async def listen(perform: Any) -> list[Any]:
            return [await perform(WaitSignal("news")), await perform(WaitSignal("news"))]

        return app

    async def play(self, node: Core) -> None:
        durable = node.runtime.durable

        async def start() -> None:
            await durable.written(node.runtime.start("listen", durable=True, id="run"))

        await self.step("0", lambda: durable.signal("run", "news", 0))
        await self.step("start", start)
        await self.step("1", lambda: durable.signal("run", "news", 1))

    def check(self, stored: Stored) -> None:
        waiting = list(stored.records("runs/signals").values())
        received = [entry["value"] for entry in stored.records("journal/runs").values() if entry.get("answered")]
        for n in (0, 1):
            found = waiting.count(n) + received.count(n)
            assert found >= (str(n) in self.acknowledged)
            if self.was_sent_once(str(n)):
                assert found <= 1

    def check_end(self, stored: Stored) -> None:
        (run,) = stored.records("runs").values()
        if self.was_sent_once("0"):
            assert run["value"] == [0, 1]


def headers(event: Any) -> dict[str, str]:
    return msgspec.json.decode(event.headers)


STORIES = [
    AFiring,
    ADurableCommand,
    ADelayedEvent,
    AnAcknowledgement,
    ADeadLetter,
    AStep,
    ABeat,
    ABatch,
    ARedrive,
    ARedriveToAll,
    ATask,
    AnEarlySignal,
]


@pytest.mark.parametrize("engine", ["memory", pytest.param("sqlite", marks=pytest.mark.slow)])
@pytest.mark.parametrize("fault", ["ends", "refuses"])
@pytest.mark.parametrize("story", STORIES)
def test_one_commit(story: type[Story], fault: Fault, engine: str, tmp_path: Path) -> None:
    commits = tell(story, engine, tmp_path / "well")
    for at in range(1, commits + 1):
        tell(story, engine, tmp_path / f"{at}", fault, at)
