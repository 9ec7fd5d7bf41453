"""The verbs that change something beside publishing and consuming: leases by hand, seeks, letters, schedules.

A part of the scenario in `promises`. Each block is a verb's operations, what they were told, and what must be true.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection
from typing import Any, TypeVar

from mainspring import App, Event, Fail
from mainspring.bus import ScheduleInfo
from mainspring.client import Client, NodeRefused, TimedOut
from mainspring.testing.simulation import PlannedStep, Rest, Scenario, operation
from mainspring.testing.simulation.machines import SystemClient

T = TypeVar("T")
KEYS = ("a", "b", "c")
EVERY_MS = 1_000
KEPT = 6
LOOK_S = 0.3
CALM_S = 2.2  # after everything has come to rest, to see whether schedules go on


class Verbs(Scenario):
    def __init__(self) -> None:
        self.numbers = itertools.count(1)
        self.finished: set[str] = set()  # ids of `jobs` that somebody has acknowledged
        self.dropped = False  # letters of `jobs`, on purpose
        self.fed: set[str] = set()
        self.to_read: list[set[str]] = []  # for each seek what was stored then
        self.last_value: Counter[str] = Counter()  # of each key in `latest`
        self.chained = 0
        self.taken: set[str] = set()
        self.fired_now: dict[int, str] = {}  # offsets of alarms that were run by hand
        self.pauses: list[tuple[str, int, int]] = []  # of alarms: since when, until when
        self.unscheduled: dict[str, int] = {}
        self.locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def _new_id(self) -> str:
        return f"n{next(self.numbers)}"

    async def _insist(self, client: Client, work: Callable[[], Awaitable[T]]) -> T:
        """Again and again, while the node or its log cannot be reached."""
        while True:
            try:
                return await client.insist(work)
            except Fail as error:
                if error.code not in (503, 504):
                    raise
                await asyncio.sleep(0.3)

    def declare_verbs(self, app: App) -> None:
        app.topic("jobs", max_attempts=5)
        app.topic("kept", retention_count=KEPT)
        app.topic("latest", compact=True)

        @app.cron("* * * * *")
        async def minute(event: Event[Any]) -> None: ...

        @app.command("Note.Take")
        async def take(data: dict[str, Any], ctx: Any) -> None:
            await ctx.publish("taken", {"id": data["id"]}, id=self._new_id())

    async def start_verbs(self, client: Client) -> None:
        async def work(event: Any) -> None:
            await asyncio.sleep(0.02)
            self.finished.add(event.id)

        async def read(event: Any) -> None:
            for each in self.to_read:
                each.discard(event.id)

        client.consume("jobs", work, group="hands", retry_delay=0.1, from_="beginning")
        client.consume("feed", read, group="reader", retry_delay=0.1, from_="beginning")

    # -- leases by hand: ack, nack, reject, extend; letters

    @operation
    async def publish_job(self, client: Client, step: PlannedStep) -> None:
        await client.publish("jobs", {}, id=step.id)

    @operation(weight=2)
    async def by_hand(self, client: Client, step: PlannedStep) -> None:
        if not step.client:  # it consumes the same group
            return
        async with self.locks["by hand"]:
            await client.publish("jobs", {}, id=step.id)
            subscription = client.subscribe("jobs", group="hands", max_inflight=2)
            try:
                await self._handle(await subscription.get(timeout=3), step)
            except TimedOut:  # the other member has them all
                pass
            finally:
                await subscription.close()

    async def _handle(self, event: Any, step: PlannedStep) -> None:
        how = step.random.choice(("ack", "nack", "reject", "extend", "leave"))
        if how == "nack":
            await event.nack(delay=0.3, reason="not now")
        elif how == "reject":
            await event.reject("never")
        elif how != "leave":
            if how == "extend":
                await event.extend(4)
                await asyncio.sleep(3)
            self.finished.add(event.id)
            await event.ack()

    @operation
    async def redrive_jobs(self, client: Client, step: PlannedStep) -> None:
        await client.redrive("jobs", group="hands")

    @operation
    async def drop_letters(self, client: Client, step: PlannedStep) -> None:
        """Not in every run: what is dropped may be lost."""
        if step.random.random() < 0.3:
            self.dropped = True
            await client.drop_dead_letters("jobs", all=True)

    async def _unfinished(self, end: Rest) -> set[str]:
        """Jobs that nobody has finished or given up; the lag says nothing of letters that were sent back."""
        letters = {each.original_id for each in await end.nodes[0].bus.dead_letters.page("jobs")}
        rotten = rotten_offsets(end, "jobs")
        jobs = {event.id for event in await end.events("jobs") if event.offset not in rotten}
        return set() if self.dropped else jobs - self.finished - letters

    async def _check_jobs(self, end: Rest) -> None:
        page = await end.nodes[0].bus.dead_letters.page("jobs")
        letters = Counter(each.original_id or f"offset {each.original_offset}" for each in page)  # rotten: without id
        end.require(set(letters.values()) <= {1}, f"one letter for each: {letters.most_common(3)}")

    # -- a group that is sent back

    @operation
    async def feed(self, client: Client, step: PlannedStep) -> None:
        await client.publish("feed", {}, id=step.id)
        self.fed.add(step.id)

    @operation
    async def seek(self, client: Client, step: PlannedStep) -> None:
        again = set(self.fed)
        self.to_read.append(again)
        try:
            await client.seek("feed", "reader", "beginning")
        except BaseException:
            again.clear()  # it may not have happened
            raise

    async def _check_feed(self, end: Rest) -> None:
        rotten = {event.id for event in await end.events("feed") if event.offset in rotten_offsets(end, "feed")}
        missed = set().union(*self.to_read) - rotten
        end.require(not missed or end.damaged, f"sent back, the group was not given {sorted(missed)[:3]} again")

    # -- topics that lose their past: by number, and by key

    @operation
    async def publish_kept(self, client: Client, step: PlannedStep) -> None:
        for n in range(4):
            await client.publish("kept", {}, id=f"{step.id}.{n}")

    @operation
    async def publish_latest(self, client: Client, step: PlannedStep) -> None:
        key = f"{step.random.choice(KEYS)}{step.client}"
        async with self.locks[f"latest {key}"]:
            number = self.last_value[key] + 1
            await client.publish("latest", {"n": number}, key=key)
            self.last_value[key] = number

    async def _check_removal(self, end: Rest) -> None:
        for bounds in await end.nodes[0].log.bounds("kept"):
            end.require(bounds.head <= max(1, bounds.tail - KEPT + 1), f"too much of `kept` is gone: {bounds}")
        newest: Counter[str] = Counter()
        for event in await end.events("latest"):
            newest[str(event.key)] = event.payload["n"]
        for key, number in self.last_value.items():
            gone = newest[key] < number and not rotten_offsets(end, "latest")
            end.require(not gone, f"the value of {key} was {number} and is {newest[key]}")

    # -- behind a certain offset only

    @operation
    async def publish_expecting(self, client: Client, step: PlannedStep) -> None:
        after = self.chained
        try:
            place = await client.publish("chain", {"after": after}, id=step.id, expect=after)
        except NodeRefused as error:
            if error.code != "bad_offset":
                raise
            self.chained = await self._tail(client)
        else:
            self.chained = max(self.chained, int(place))

    async def _tail(self, client: Client) -> int:
        found = await client.http.call("GET", "/topics/chain/offsets")
        return max(each["tail"] for each in found["partitions"])

    async def _check_chain(self, end: Rest) -> None:
        for event in await end.events("chain"):
            end.require(event.payload["after"] + 1 == event.offset, f"{event.id} lies at {event.offset}")

    # -- a command that is not durable

    @operation
    async def plain_command(self, client: Client, step: PlannedStep) -> None:
        await client.command("Note.Take", {"id": step.id}, timeout=5)
        self.taken.add(step.id)

    async def _check_taken(self, end: Rest) -> None:
        taken = {event.payload["id"] for event in await end.events("taken")}
        end.require(self.taken <= taken, f"answered without their events: {sorted(self.taken - taken)[:3]}")

    # -- schedules: made, paused, run by hand, resumed, forgotten

    @operation
    async def alarm(self, client: Client, step: PlannedStep) -> None:
        name, chance = f"alarm-{step.id}", step.random
        assert isinstance(client, SystemClient)
        connections = client.connections
        await client.schedule(name, "alarms", {"name": name}, every=0.5)
        asked_twice = client.connections != connections
        await asyncio.sleep(chance.uniform(0, 1.5))
        await self._insist(client, lambda: client.pause_schedule(name))
        paused = client.wall_ms()
        if chance.random() < 0.5:
            self.fired_now[await client.run_schedule(name)] = name
        await asyncio.sleep(1.2)
        self.pauses.append((name, paused, client.wall_ms()))
        await self._insist(client, lambda: client.resume_schedule(name))
        await asyncio.sleep(chance.uniform(0, 1.5))
        await client.unschedule(name)
        if not asked_twice:  # else the node that was asked first may come to it now, and it is there again
            self.unscheduled[name] = client.wall_ms()

    async def _check_alarms(self, end: Rest) -> None:
        alarms = {event.offset: event for event in await end.events("alarms")}
        for offset, name in self.fired_now.items():
            found = alarms.get(offset)
            end.require(found is not None and found.payload["name"] == name, f"{name} was run and is not at {offset}")
        if "clock jump" in end.faults:
            return
        times: defaultdict[str, list[int]] = defaultdict(list)
        for event in alarms.values():
            if event.offset not in self.fired_now:
                times[event.payload["name"]].append(event.ts)
        for name, since, until in self.pauses:
            came = [at for at in times[name] if since < at < until]
            end.require(not came, f"{name} was paused from {since} to {until} and fired at {came}")
        for name, since in self.unscheduled.items():
            late = [at for at in times[name] if at > since]
            end.require(not late, f"{name} was forgotten at {since} and fired at {late}")

    async def _check_firings(self, end: Rest) -> None:
        """Each time once; what passed while no node could fire was made up once."""
        if "clock jump" in end.faults:
            return
        node = end.nodes[0]
        rested = node.clock.wall_ms()
        await asyncio.sleep(CALM_S)
        tick, fired = await self._standing(end)
        if tick.last_ms != fired[-1]:  # it fired between the two looks
            await asyncio.sleep(LOOK_S)
            tick, fired = await self._standing(end)
        slots = Counter((at - tick.next_ms) // EVERY_MS for at in fired)
        end.require(set(slots.values()) <= {1}, f"firings that came twice: {slots.most_common(3)}")
        calm = [at for at in fired if at > rested]
        end.require(len(calm) in (2, 3), f"in {CALM_S} s of calm it fired at {calm}")
        end.require(tick.last_ms == fired[-1], f"it fired at {tick.last_ms}, and its last event is of {fired[-1]}")
        due = await self._minutes(end)
        end.require(set(due.values()) <= {1}, f"minutes and how often each fired: {due}")

    async def _standing(self, end: Rest) -> tuple[ScheduleInfo, list[int]]:
        """A schedule as its node knows it, and when its events were stored."""
        (tick,) = [each for each in end.nodes[0].bus.schedules.all() if each.topic == "schedules.promises.tick"]
        return tick, [event.ts for event in await end.events(tick.topic)]

    async def _minutes(self, end: Rest) -> Counter[int]:
        """Each minute that has begun, and how often its schedule fired for it."""
        begun, now = end.began_ms // 60_000, end.nodes[0].clock.wall_ms() // 60_000
        fired = Counter(event.ts // 60_000 for event in await end.events("schedules.promises.minute"))
        return Counter({minute: fired[minute] for minute in range(begun + 1, now + 1)})

    def _late(self, end: Rest) -> list[str]:
        node = end.nodes[0]
        now = node.clock.wall_ms()
        return [each.name for each in node.bus.schedules.all() if not each.paused and each.next_ms < now]

    # -- all of it

    async def verbs_left(self, end: Rest) -> dict[str, Collection[Any]]:
        """What is left to do, by what it is; of what is done, nothing."""
        minutes = {} if "clock jump" in end.faults else await self._minutes(end)
        return {
            "minutes that did not fire": [minute for minute, count in minutes.items() if not count],
            "schedules that are late": () if "clock jump" in end.faults else self._late(end),
            "jobs that nobody has finished or given up": await self._unfinished(end),
            "events to read again after a seek": () if end.damaged else set().union(*self.to_read),
        }

    async def check_verbs(self, end: Rest) -> None:
        await self._check_jobs(end)
        await self._check_feed(end)
        await self._check_removal(end)
        await self._check_chain(end)
        await self._check_taken(end)
        await self._check_alarms(end)
        await self._check_firings(end)


def rotten_offsets(end: Rest, topic: str) -> set[int]:
    """Of events of the topic whose bytes rotted."""
    return {offset for where, _, offset in end.damaged if where == topic}
