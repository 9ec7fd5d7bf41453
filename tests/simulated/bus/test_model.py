"""Groups over several nodes against a history checker that knows only the promises.

Hypothesis plays clients, time, and everything that can happen to nodes: they are killed, cut off, fenced, they lose the
answers of what they store, new ones join. The checker writes down what every client was told and did, and holds it
against the promises: nothing acknowledged to a publisher is lost, nobody has an event while somebody else rightfully
has it, attempts only grow, commits never go back and never pass what nobody settled, an acknowledged event does not
come again, and when the faults stop everything drains, with one dead letter for each event that died.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mainspring.bus import Start
from mainspring.bus.groups.dead_letters import read_letter
from mainspring.log import Batch
from mainspring.loop import VirtualClock, VirtualEventLoop
from tests.support.bus import BEGINNING, WALL_MS, Peer
from tests.support.shared_bus import LEASE_MS, Node, Town, settle

LEASE_S = 10
MAX_ATTEMPTS = 4
PARTITIONS = 2
MOST_NODES = 3
Place = tuple[int, int]


@dataclass
class Member:
    peer: Peer
    node: Node
    window: int
    each: bool
    holds: dict[Place, Delivery] = field(default_factory=dict)


@dataclass
class Delivery:
    """One event with one member, since when, and under which of the node's leases."""

    attempt: int
    at: int
    epoch: int
    moves: int


@dataclass
class Event:
    attempt: int = 0
    promised: bool = False
    delivered: bool = False
    acked: bool = False  # some member said so
    gone: bool = False  # that is durable: it must not come again
    skipped: bool = False  # a move passed over it


class TownMachine(RuleBasedStateMachine):
    """Rules are what clients, time and bad weather can do."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = VirtualClock(1_000, wall_ms=WALL_MS)
        self.runner = asyncio.Runner(loop_factory=lambda: VirtualEventLoop(self.clock))
        self.town = Town(self.clock, max_attempts=MAX_ATTEMPTS, ack_timeout_ms=LEASE_S * 1000)
        self.members: dict[int, Member] = {}
        self.events: dict[Place, Event] = {}
        self.commits: dict[tuple[str, int], int] = {}
        self.settling: list[tuple[int, Place, int, Node]] = []  # when, what, after how many moves, on which node
        self.moves = 0
        self.moved_at = 0
        self.moving = False
        self.start = 1  # where the group was sent last
        self.numbers = 0
        self.do(self._begin())

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(work)

    def say(self, words: Callable[[], object]) -> None:
        async def run() -> None:
            words()
            await settle()

        self.do(run())
        self._watch()

    async def _begin(self) -> None:
        for _ in range(2):
            await self.town.add()
        await self.town.create("t", partitions=PARTITIONS)
        peer = self.town.nodes[0].connect()
        await peer.subscribe("t", "g", BEGINNING)
        peer.close()
        await settle(0.2)

    # -- what clients do

    def _nodes(self) -> list[Node]:
        return [node for node in self.town.nodes if node.alive]

    def _sound(self, node: Node) -> bool:
        engine = node.engine
        return node.alive and not engine.cut_off and not engine.lose_answers and not engine.late_s

    def _node(self, data: st.DataObject, nodes: list[Node] | None = None) -> Node:
        names = {node.name: node for node in nodes or self._nodes()}
        return names[data.draw(st.sampled_from(sorted(names)))]

    @rule(data=st.data(), keys=st.lists(st.sampled_from("abcdef"), min_size=1, max_size=6))
    def publish(self, data: st.DataObject, keys: list[str]) -> None:
        node = self._node(data)

        async def run() -> None:
            writer = node.connect()
            for key in keys:
                writer.send({"type": "PUBLISH", "topic": "t", "payload": key, "key": key})
            await settle(0.005)
            for frame in writer.got:
                if frame["type"] == "PUBLISHED":
                    self._event((frame["partition"], frame["offset"])).promised = True
            writer.close()

        self.do(run())
        self._watch()

    def _event(self, place: Place) -> Event:
        return self.events.setdefault(place, Event(skipped=place[1] < self.start))

    @precondition(lambda self: len(self.members) < 4 and any(map(self._sound, self._nodes())))
    @rule(data=st.data(), window=st.integers(1, 4), each=st.booleans(), batch=st.sampled_from([1, 3]))
    def join(self, data: st.DataObject, window: int, each: bool, batch: int) -> None:
        node = self._node(data, [node for node in self._nodes() if self._sound(node)])

        async def run() -> None:
            self.numbers += 1
            peer = node.connect()
            self.members[self.numbers] = Member(peer, node, window, each)
            ack = "each" if each else "upto"
            await peer.subscribe("t", "g", max_inflight=window, ack=ack, batch=batch)

        self.do(run())
        self._watch()

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.members)))
        member = self.members.pop(number)
        self.say(member.peer.close)

    def _holders(self) -> list[int]:
        return [number for number, member in sorted(self.members.items()) if member.holds]

    def _some(self, data: st.DataObject) -> tuple[Member, Place]:
        member = self.members[data.draw(st.sampled_from(self._holders()))]
        return member, data.draw(st.sampled_from(sorted(member.holds)))

    @precondition(lambda self: self._holders())
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        member, place = self._some(data)
        for other, delivery in list(member.holds.items()):
            if other == place or (other[0] == place[0] and other[1] < place[1] and not member.each):
                del member.holds[other]
                self._event(other).acked = True
                if self._rightful(member, delivery) and self._sound(member.node):
                    self.settling.append((self.clock.now_ms(), other, self.moves, member.node))
        self.say(lambda: member.peer.ack("t", "g", place[1], place[0]))

    @precondition(lambda self: self._holders())
    @rule(data=st.data(), delay_ms=st.sampled_from([0, 0, 2_000, 30_000]))
    def nack(self, data: st.DataObject, delay_ms: int) -> None:
        member, place = self._some(data)
        del member.holds[place]
        self.say(lambda: member.peer.nack("t", "g", place[1], place[0], delay_ms=delay_ms))

    @precondition(lambda self: any(map(self._sound, self._nodes())))
    @rule(data=st.data(), offset=st.integers(1, 12))
    def seek(self, data: st.DataObject, offset: int) -> None:
        node = self._node(data, [node for node in self._nodes() if self._sound(node)])
        self._watch()
        self.do(node.bus.groups.seek("t", "g", Start("offset", offset)))
        self.moving = True  # what came meanwhile may be from before or from after the move
        self._watch()
        self.moving = False
        self.start = offset
        self.moves += 1
        self.moved_at = self.clock.now_ms()
        for member in self.members.values():
            if self._sound(member.node):
                member.holds.clear()
        for (_, at), event in self.events.items():
            event.gone = event.gone and at < offset
            event.skipped = event.skipped or at < offset
            event.attempt = 0
        self._watch()

    @rule(seconds=st.sampled_from([0.02, 0.2, 1, LEASE_MS / 1000, LEASE_S + 2]))
    def time_passes(self, seconds: float) -> None:
        while seconds > 0:
            self.do(settle(min(seconds, 0.5)))
            self._watch()
            seconds -= 0.5

    # -- bad weather

    @precondition(lambda self: len(self._nodes()) > 1)
    @rule(data=st.data())
    def kill(self, data: st.DataObject) -> None:
        node = self._node(data)
        self._calm(data)
        self.say(node.kill)
        self._forget(node)

    def _calm(self, data: st.DataObject) -> None:
        """Perhaps everything that was decided is stored by now. If not, the newest deliveries may not be counted."""
        if data.draw(st.booleans()):
            self.do(settle(0.05))
            self._watch()
        else:
            self._watch()
            for event in self.events.values():
                event.attempt = min(event.attempt, 1)

    def _forget(self, node: Node) -> None:
        self.settling = [each for each in self.settling if each[3] is not node]
        self.members = {number: member for number, member in self.members.items() if member.node is not node}

    @precondition(lambda self: len(self._nodes()) > 1)
    @rule(data=st.data())
    def stop(self, data: st.DataObject) -> None:
        node = self._node(data)
        if self._sound(node):
            self._forget(node)
            self.do(node.stop())
            self._watch()

    @precondition(lambda self: len(self._nodes()) < MOST_NODES)
    @rule()
    def add(self) -> None:
        self.do(self.town.add())
        self._watch()

    @rule(data=st.data())
    def cut_off(self, data: st.DataObject) -> None:
        node = self._node(data)
        self._calm(data)
        node.engine.cut_off = True
        self.settling = [each for each in self.settling if each[3] is not node]

    @rule(data=st.data())
    def join_again(self, data: st.DataObject) -> None:
        node = self._node(data)
        self.say(node.engine.join_again)

    @rule(data=st.data(), lose=st.booleans())
    def lose_answers(self, data: st.DataObject, lose: bool) -> None:
        node = self._node(data)
        self._calm(data)
        node.engine.lose_answers = lose

    @rule(data=st.data(), seconds=st.sampled_from([0.0, 0.02, 0.3, 2.5]))
    def late(self, data: st.DataObject, seconds: float) -> None:
        """What the node stores is in doubt first, and stored later."""
        node = self._node(data)
        self._calm(data)
        node.engine.late_s = seconds
        self.settling = [each for each in self.settling if each[3] is not node]

    @rule(data=st.data())
    def fence(self, data: st.DataObject) -> None:
        """Somebody takes the node's lease away, though it lives."""
        node = self._node(data)
        self._calm(data)
        key = f"node/{node.name}"
        self.settling = [each for each in self.settling if each[3] is not node]

        async def take() -> None:
            record = await self.town.shared.state.get("leases", key)
            others = [each for each in self._nodes() if each is not node and not each.engine.cut_off]
            if record is not None and others:
                batch = Batch()
                batch.delete("leases", key, expect=record.version)
                await others[0].engine.commit([batch])
            await settle()

        self.do(take())
        self._watch()

    # -- what must hold

    def _lease(self, node: Node) -> int:
        record = self.town.shared.state._records.get("leases", {}).get(f"node/{node.name}")
        return 0 if record is None else record.version

    def _rightful(self, member: Member, delivery: Delivery) -> bool:
        """Whether this delivery is still the only one there may be, as far as the promises say."""
        if not member.node.alive or self._lease(member.node) != delivery.epoch or delivery.moves != self.moves:
            return False
        return self.clock.now_ms() - delivery.at < (LEASE_S - 2) * 1000

    def _watch(self) -> None:
        members = {member.peer: member for member in self.members.values()}
        seen, self.town.journal[:] = list(self.town.journal), []
        for peer, frame in seen:
            if peer in members and frame["type"] in ("MESSAGE", "MESSAGES"):
                for message in frame.get("messages", [frame]):
                    place = (message["partition"], message["offset"])
                    self._delivered(members[peer], place, message["attempt"], frame["epoch"])
        now = self.clock.now_ms()
        for when, place, moves, node in self.settling:
            if now - when >= 100 and moves == self.moves and self._sound(node):
                self.events[place].gone = True
        self.settling = [each for each in self.settling if now - each[0] < 100 and each[2] == self.moves]

    def _delivered(self, member: Member, place: Place, attempt: int, epoch: int) -> None:
        event, node = self._event(place), member.node
        event.delivered = True
        # A node that cannot hear may not know yet that the group was moved, or that its lease is gone.
        hears = node.alive and not node.engine.cut_off
        knows = hears and not self.moving and self._lease(node) == epoch
        for other in self.members.values():
            held = other.holds.get(place)
            if held is not None:
                both = self._rightful(other, held) and knows
                assert not both or other is member, f"{place} is with two members"
                del other.holds[place]
        if knows:
            assert not event.gone, f"{place} was settled"
            assert attempt >= event.attempt or (attempt == 1 and self.clock.now_ms() - self.moved_at < 1_000), (
                f"{place}: attempt {attempt} after {event.attempt}"
            )
        if knows and self._sound(node):  # others are not sure to have stored it
            event.attempt = max(event.attempt, attempt)
        member.holds[place] = Delivery(attempt, self.clock.now_ms(), epoch, self.moves)
        held_now = [each for each, d in member.holds.items() if self._rightful(member, d)]
        assert self.moving or len(held_now) <= member.window, f"a member holds {len(held_now)}"

    async def _letters(self) -> set[Place]:
        letters = await self.town.shared.state.read("t.DLQ", 0, 1, 10_000)
        found = [read_letter(letter) for letter in letters]
        died = Counter((letter.original_partition, letter.original_offset) for letter in found)
        assert all(times <= 1 + self.moves for times in died.values()), f"an event died twice: {died}"
        return set(died)

    @invariant()
    def commits_are_true_and_never_go_back(self) -> None:
        async def look() -> tuple[list[tuple[Node, int, int]], set[Place]]:
            found = [
                (node, entry.partition, entry.groups["g"].last_committed)
                for node in self._nodes()
                for entry in await node.bus.groups.offsets("t")
                if "g" in entry.groups
            ]
            return found, await self._letters()

        commits, letters = self.do(look())
        for node, partition, committed in commits:
            key = (node.name, partition)
            assert committed >= self.commits.get(key, 0), f"{node.name} took a commit back"
            self.commits[key] = committed
            for offset in range(1, committed + 1):
                event = self.events.get((partition, offset))
                settled = event is not None and (event.acked or event.skipped)
                unknown = event is None or not event.promised  # its publisher was never told
                assert settled or unknown or (partition, offset) in letters, f"{(partition, offset)} was not settled"

    def teardown(self) -> None:
        try:
            self._watch()
            self.do(self._drain())
        finally:
            self.do(self.town.stop())
            self.runner.close()

    async def _drain(self) -> None:
        """The faults stop; members that acknowledge everything finish the work."""
        for node in self._nodes():
            node.engine.lose_answers, node.engine.late_s = False, 0.0
            node.engine.join_again()
        for member in self.members.values():
            member.peer.close()
        await settle(LEASE_MS / 1000 * 3)
        workers = []
        for node in self._nodes():
            peer = node.connect()
            await peer.subscribe("t", "g", max_inflight=5, ack="each")
            workers.append(peer)
        for _ in range(200):
            await settle(0.5)
            for peer in workers:
                got, peer.got = peer.got, []
                for frame in got:
                    place = (frame["partition"], frame["offset"])
                    self._event(place).delivered = self._event(place).acked = True
                    peer.ack("t", "g", place[1], place[0])
            if not await self._behind():
                break
        assert not await self._behind()
        letters = await self._letters()
        for place, event in self.events.items():
            if event.promised:
                done = event.skipped or (event.delivered and (event.acked or place in letters))
                assert done, f"{place} was lost"

    async def _behind(self) -> list[tuple[str, int, int, int]]:
        """Where the nodes' views of the group do not say that all is done."""
        found = []
        for node in self._nodes():
            for entry in await node.bus.groups.offsets("t"):
                group = entry.groups["g"]
                if group.lag or group.inflight:
                    found.append((node.name, entry.partition, group.lag, group.inflight))
        return found


TestTown = pytest.mark.slow(TownMachine.TestCase)
TestTown.settings = settings(
    max_examples=int(os.environ.get("TOWN_EXAMPLES", "60")),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
