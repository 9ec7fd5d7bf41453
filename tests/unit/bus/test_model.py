"""A group against a model that knows only the promises.

The model does not predict which member gets an event; it watches. Every delivery must be allowed by the promises (the
event is free, it is its turn, the member has room, the attempt number is right), and whenever everything has settled,
nothing may be left that could be delivered. The commit, the leases and the dead letters must be what follows from what
was seen. Crashes included.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mainspring.bus import DeadLetter, DeadLetterFilter
from mainspring.loop import VirtualClock, VirtualEventLoop
from tests.support.bus import BEGINNING, WALL_MS, Peer, World, settle

LEASE_S = 30
MAX_ATTEMPTS = 3
PARTITIONS = 2
Place = tuple[int, int]


@dataclass
class Event:
    deliveries: int = 0
    holder: int | None = None
    leased_at: int = 0
    refused: bool = False
    not_before: int = 0
    settled: bool = False
    dead: bool = False
    redriven: bool = False


@dataclass
class Member:
    peer: Peer
    window: int
    each: bool


@dataclass
class Model:
    events: dict[Place, Event] = field(default_factory=dict)
    highest: dict[Place, int] = field(default_factory=dict)  # of a member in a partition: first deliveries ascend
    floor: dict[int, int] = field(default_factory=dict)  # of a partition: what was committed when letters went back

    def held_by(self, member: int) -> list[Place]:
        return [place for place, event in self.events.items() if event.holder == member]

    def give_back(self, place: Place, *, not_before: int = 0) -> None:
        event = self.events[place]
        event.holder = None
        if event.deliveries >= MAX_ATTEMPTS:
            event.dead = event.settled = True
        else:
            event.not_before = not_before

    def committed(self, partition: int) -> int:
        """Everything up to here is settled; a letter that goes back to the group does not lower it."""
        offset = 0
        while (event := self.events.get((partition, offset + 1))) is not None and event.settled:
            offset += 1
        return max(offset, self.floor.get(partition, 0))


class GroupMachine(RuleBasedStateMachine):
    """Rules are what clients and time can do."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = VirtualClock(1_000, wall_ms=WALL_MS)
        self.runner = asyncio.Runner(loop_factory=lambda: VirtualEventLoop(self.clock))
        self.world = World(self.clock, max_attempts=MAX_ATTEMPTS, ack_timeout_ms=LEASE_S * 1000)
        self.model = Model()
        self.members: dict[int, Member] = {}
        self.numbers = 0
        self.do(self._begin())

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(work)

    def say(self, words: Callable[[], object]) -> None:
        """Something a peer does, inside the event loop."""

        async def run() -> None:
            words()

        self.do(run())

    async def _begin(self) -> None:
        await self.world.start()
        await self.world.create("t", partitions=PARTITIONS)

    def teardown(self) -> None:
        self.do(self.world.stop())
        self.runner.close()

    # -- what can happen

    @rule(keys=st.lists(st.sampled_from("abcdef"), min_size=1, max_size=6))
    def publish(self, keys: list[str]) -> None:
        async def run() -> None:
            writer = self.world.connect()
            for key in keys:
                placed = await writer.publish("t", key, key=key)
                self.model.events[(placed["partition"], placed["offset"])] = Event()
            writer.close()

        self.do(run())

    @precondition(lambda self: len(self.members) < 3)
    @rule(window=st.integers(1, 4), each=st.booleans(), batch=st.sampled_from([1, 3]))
    def join(self, window: int, each: bool, batch: int) -> None:
        async def run() -> None:
            self.numbers += 1
            peer = self.world.connect()
            self.members[self.numbers] = Member(peer, window, each)
            ack = "each" if each else "upto"
            await peer.subscribe("t", "g", BEGINNING, max_inflight=window, ack=ack, batch=batch)

        self.do(run())

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.members)))
        if any(map(self._overdue, self.model.held_by(number))):
            return
        self.say(self.members.pop(number).peer.close)
        for place in self.model.held_by(number):
            self.model.give_back(place)

    @precondition(lambda self: self._holders())
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        number, (partition, offset) = self._some_lease(data)
        member = self.members[number]
        self.say(lambda: member.peer.ack("t", "g", offset, partition))
        for place in self.model.held_by(number):
            event = self.model.events[place]
            exactly = place == (partition, offset)
            below = place[0] == partition and place[1] < offset and not member.each and not event.refused
            if exactly or below:
                event.holder, event.settled = None, True

    @precondition(lambda self: self._holders())
    @rule(data=st.data(), delay_ms=st.sampled_from([0, 0, 5_000, 90_000]))
    def nack(self, data: st.DataObject, delay_ms: int) -> None:
        number, (partition, offset) = self._some_lease(data)
        self.say(lambda: self.members[number].peer.nack("t", "g", offset, partition, delay_ms=delay_ms))
        self.model.events[(partition, offset)].refused = True
        not_before = self.clock.now_ms() + delay_ms if delay_ms else 0
        self.model.give_back((partition, offset), not_before=not_before)

    @precondition(lambda self: len(self.members) > 1)
    @rule(data=st.data())
    def ack_of_someone_elses_event_settles_nothing_of_theirs(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.members)))
        others = [place for place, event in self.model.events.items() if event.holder not in (None, number)]
        if others and self.members[number].each:
            partition, offset = data.draw(st.sampled_from(sorted(others)))
            self.say(lambda: self.members[number].peer.ack("t", "g", offset, partition))

    @precondition(lambda self: self._dead())
    @rule(data=st.data(), to_all=st.booleans())
    def redrive(self, data: st.DataObject, to_all: bool) -> None:
        """Some letters go back: to the group, as they were and with their attempts counted anew, or to all groups."""
        chosen = data.draw(st.lists(st.sampled_from(self._dead()), min_size=1, unique=True))

        async def run() -> list[Place]:
            await settle(0.05)
            letters = await self.world.bus.dead_letters.page("t", limit=10_000)
            offsets = [each.offset for each in letters if (each.original_partition, each.original_offset) in chosen]
            assert len(offsets) == len(chosen)
            wanted = DeadLetterFilter(offsets=offsets)
            sent = await self.world.bus.dead_letters.redrive("t", wanted, to_all=to_all)
            return [(each.partition, each.offset) for each in sent]

        self._watch()
        if any(self._overdue(p) for n in self.members for p in self.model.held_by(n)):
            return
        places = self.do(run())
        for place in chosen:
            self.model.events[place].dead = False
        if to_all:
            assert len(places) == len(chosen)
            assert not self.model.events.keys() & set(places)
            self.model.events.update({place: Event() for place in places})
        else:
            assert sorted(places) == sorted(chosen)
            self.model.floor = {partition: self.model.committed(partition) for partition in range(PARTITIONS)}
            self.model.events.update({place: Event(redriven=True, refused=True) for place in places})

    @rule(seconds=st.sampled_from([1, 7, LEASE_S + 2, 100]))
    def time_passes(self, seconds: int) -> None:
        """In steps shorter than a lease, because a redelivered event may expire again."""
        for _ in range(seconds):
            self.do(settle(1))
            self._watch()
            self._expire()

    @rule()
    def crash(self) -> None:
        async def run() -> None:
            await settle(0.1)  # what was decided is stored by now
            await self.world.kill()

        self.do(run())
        self.members.clear()
        for place, event in self.model.events.items():
            if event.holder is not None:
                # Nobody failed it, so a last delivery that was under way only counts; it dies when its turn comes.
                event.holder = None
                if event.deliveries >= MAX_ATTEMPTS:
                    self.model.give_back(place)

    def _dead(self) -> list[Place]:
        return sorted(place for place, event in self.model.events.items() if event.dead)

    def _holders(self) -> list[int]:
        """Members that hold something, all of it for sure."""
        held = {number: self.model.held_by(number) for number in sorted(self.members)}
        return [number for number, places in held.items() if places and not any(map(self._overdue, places))]

    def _some_lease(self, data: st.DataObject) -> tuple[int, Place]:
        number = data.draw(st.sampled_from(self._holders()))
        return number, data.draw(st.sampled_from(sorted(self.model.held_by(number))))

    # -- what must hold

    def _expire(self) -> None:
        """Leases end after their time and are looked at within a second after that; nobody tells the holder."""
        now = self.clock.now_ms()
        for place, event in self.model.events.items():
            if event.holder is not None and now - event.leased_at > (LEASE_S + 2) * 1000:
                self.model.give_back(place)

    def _watch(self) -> None:
        self.do(settle())
        numbers = {member.peer: number for number, member in self.members.items()}
        seen, self.world.journal[:] = list(self.world.journal), []
        for peer, frame in seen:
            if peer in numbers and frame["type"] in ("MESSAGE", "MESSAGES"):
                for message in frame.get("messages", [frame]):
                    self._delivered(numbers[peer], (message["partition"], message["offset"]), message["attempt"])
            else:
                assert frame["type"] in ("OK", "PUBLISHED"), frame

    def _delivered(self, number: int, place: Place, attempt: int) -> None:
        event, now = self.model.events[place], self.clock.now_ms()
        if event.holder is not None:  # only a lease that ended allows another one
            assert self._overdue(place), f"{place} was sent to two at once"
            self.model.give_back(place)
        assert not event.settled, f"{place} was settled"
        assert attempt == event.deliveries + 1 <= MAX_ATTEMPTS, f"{place}: attempt {attempt}"
        assert now >= event.not_before, f"{place} came {event.not_before - now} ms too early"
        if attempt == 1 and not event.redriven:
            assert place[1] > self.model.highest.get((number, place[0]), 0), f"{place} out of order"
            self.model.highest[(number, place[0])] = place[1]
        event.deliveries, event.holder, event.leased_at = attempt, number, now
        held = [p for p in self.model.held_by(number) if not self._overdue(p)]
        assert len(held) <= self.members[number].window, f"member {number} holds {len(held)}"

    def _overdue(self, place: Place) -> bool:
        """Its lease may have ended already; it began up to a second before the model looked."""
        return self.clock.now_ms() - self.model.events[place].leased_at >= (LEASE_S - 1.1) * 1000

    @invariant()
    def nothing_deliverable_is_left_lying(self) -> None:
        self._watch()
        if any(self._overdue(p) for n in self.members for p in self.model.held_by(n)):
            return
        now = self.clock.now_ms()
        free = [m for n, m in self.members.items() if len(self.model.held_by(n)) < m.window]
        waiting = [
            place
            for place, event in self.model.events.items()
            if not event.settled and event.holder is None and event.not_before <= now
        ]
        assert not (free and waiting), f"{waiting} wait although there is room"

    @invariant()
    def commit_leases_and_dead_letters_follow(self) -> None:
        async def look() -> tuple[list[int], list[int], list[DeadLetter]]:
            await settle(0.05)
            offsets = await self.world.bus.groups.offsets("t") if self.members else []
            commits = [entry.groups["g"].last_committed for entry in offsets]
            inflight = [entry.groups["g"].inflight for entry in offsets]
            return commits, inflight, await self.world.bus.dead_letters.page("t", limit=10_000)

        self._watch()
        if any(self._overdue(p) for n in self.members for p in self.model.held_by(n)):
            return
        commits, inflight, letters = self.do(look())
        self._watch()
        if self.members:
            assert commits == [self.model.committed(partition) for partition in range(PARTITIONS)]
            held = [place for n in self.members for place in self.model.held_by(n)]
            assert inflight == [sum(1 for place in held if place[0] == p) for p in range(PARTITIONS)]
            died = [(letter.original_partition, letter.original_offset) for letter in letters]
            assert sorted(died) == sorted(place for place, event in self.model.events.items() if event.dead)


TestGroup = pytest.mark.slow(GroupMachine.TestCase)
TestGroup.settings = settings(
    max_examples=120, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
