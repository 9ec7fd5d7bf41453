"""Groups with sticky keys and with filters over several nodes, while nodes come, go and lose touch."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.bus import BEGINNING, Frame, Peer
from tests.support.shared_bus import LEASE_MS, Node, Town, in_town, settle

KEYS = "abcde"
STEPS = 60


@dataclass
class Member:
    peer: Peer
    node: Node
    key: str | None = None


class Chaos:
    """Clients and bad weather by chance."""

    def __init__(self, town: Town, seed: int, **options: Any) -> None:
        self.town = town
        self.chance = random.Random(seed)
        self.options = options
        self.members: list[Member] = []
        self.published = 0
        self.promised: set[int] = set()
        self.keys: dict[int, str] = {}
        self.seen: list[tuple[int, int, Member]] = []  # payload, attempt, by whom
        self.acked: set[int] = set()

    def nodes(self) -> list[Node]:
        return [node for node in self.town.nodes if node.alive]

    async def join(self, node: Node, key: str | None = None) -> None:
        member = Member(node.connect(), node, key)
        wanted = {} if key is None else {"filter": {"key": key}}
        await member.peer.subscribe("t", "g", BEGINNING, max_inflight=3, ack="each", **self.options, **wanted)
        self.members.append(member)

    async def publish(self) -> None:
        sound = [node for node in self.nodes() if not node.engine.cut_off]
        if sound:
            peer = self.chance.choice(sound).connect()
            for _ in range(self.chance.randint(1, 6)):
                key = self.chance.choice(KEYS)
                self.keys[self.published] = key
                answer = await peer.ask({"type": "PUBLISH", "topic": "t", "payload": self.published, "key": key})
                if answer["type"] == "PUBLISHED":
                    self.promised.add(self.published)
                self.published += 1
            peer.close()

    def handle(self) -> None:
        """Members acknowledge some of what they have, and refuse some."""
        for member in self.members:
            kept: list[Frame] = []
            for frame in member.peer.got:
                if frame["type"] == "MESSAGE" and "noted" not in frame:
                    frame["noted"] = True
                    self.seen.append((frame["envelope"]["payload"], frame["attempt"], member))
                if frame["type"] != "MESSAGE":
                    continue
                what = self.chance.random()
                if what < 0.6:
                    member.peer.ack("t", "g", frame["offset"], frame["partition"])
                    self.acked.add(frame["envelope"]["payload"])
                elif what < 0.7:
                    member.peer.nack("t", "g", frame["offset"], frame["partition"])
                else:
                    kept.append(frame)
            member.peer.got = kept

    async def weather(self) -> None:
        node = self.chance.choice(self.nodes())
        what = self.chance.choice(["kill", "cut", "lose", "well", "well", "add", "stop"])
        if what in ("kill", "stop") and len(self.nodes()) > 1 and not node.engine.cut_off:
            self.members = [member for member in self.members if member.node is not node]
            if what == "kill":
                node.kill()
            else:
                await node.stop()
        elif what == "cut":
            node.engine.cut_off = True
        elif what == "lose":
            node.engine.lose_answers = True
        elif what == "well":
            node.engine.lose_answers = False
            node.engine.join_again()
        elif what == "add" and len(self.nodes()) < 3:
            await self.town.add()

    async def run(self, keys: list[str | None]) -> None:
        for node, key in zip(self.nodes(), keys, strict=False):
            await self.join(node, key)
        for _ in range(STEPS):
            await self.publish()
            if self.chance.random() < 0.3:
                await self.weather()
            sound = [node for node in self.nodes() if not node.engine.cut_off and not node.engine.lose_answers]
            if len(self.members) < 4 and sound and self.chance.random() < 0.3:
                await self.join(self.chance.choice(sound), self.chance.choice(keys))
            await settle(self.chance.choice([0.01, 0.1, 0.6, LEASE_MS / 1000]))
            self.handle()

    async def finish(self) -> None:
        """Good weather, and members that acknowledge everything."""
        for node in self.nodes():
            node.engine.lose_answers = False
            node.engine.join_again()
        await settle(LEASE_MS / 1000 * 3)
        for _ in range(300):
            await settle(0.3)
            for member in self.members:
                got, member.peer.got = member.peer.got, []
                for frame in got:
                    if "noted" not in frame:
                        self.seen.append((frame["envelope"]["payload"], frame["attempt"], member))
                    self.acked.add(frame["envelope"]["payload"])
                    member.peer.ack("t", "g", frame["offset"], frame["partition"])
            if not await self.lag():
                return
        assert not await self.lag()

    async def lag(self) -> int:
        total = 0
        for node in self.nodes():
            for entry in await node.bus.groups.offsets("t"):
                total += entry.groups["g"].lag + entry.groups["g"].inflight
        return total


@pytest.mark.parametrize("seed", range(6))
@in_town(ack_timeout_ms=5_000, max_attempts=1_000)
async def test_keys_that_stick_come_in_order(town: Town, seed: int) -> None:
    await town.create("t", partitions=2)
    chaos = Chaos(town, seed, sticky=True)
    await chaos.run([None])
    for node in chaos.nodes():
        node.engine.lose_answers = False
        node.engine.join_again()
    await settle(LEASE_MS / 1000 * 3)
    await chaos.join(chaos.nodes()[0])
    await chaos.finish()
    assert chaos.acked >= chaos.promised
    deliveries = [frame["envelope"] for _, frame in town.journal if frame["type"] == "MESSAGE"]
    for key in KEYS:
        firsts = list(dict.fromkeys(envelope["payload"] for envelope in deliveries if envelope["key"] == key))
        assert firsts == sorted(firsts), f"{key}: {firsts}"


@pytest.mark.parametrize("seed", range(6))
@in_town(ack_timeout_ms=5_000, max_attempts=1_000)
async def test_filters_let_every_event_reach_who_accepts_it(town: Town, seed: int) -> None:
    chaos = Chaos(town, seed)
    await chaos.run(["a", "b", "c"])
    for node in chaos.nodes():
        node.engine.lose_answers = False
        node.engine.join_again()
    await settle(LEASE_MS / 1000 * 3)
    for key in KEYS:
        await chaos.join(chaos.chance.choice(chaos.nodes()), key)
    await chaos.finish()
    assert all(member.key in (None, chaos.keys.get(payload)) for payload, _, member in chaos.seen)
