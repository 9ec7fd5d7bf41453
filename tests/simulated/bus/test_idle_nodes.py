"""Members that wait on several nodes: an event costs what it costs with one of them, and nobody waits for a node that
does not take it.

As in a queue group of NATS or a consumer group of Kafka, a user adds a worker on each node for safety, and does not
expect that every event becomes dearer by it. Nor that an event waits until a node that is gone is declared dead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from mainspring.log import Batch, Result
from tests.support.bus import BEGINNING, Peer
from tests.support.shared_bus import LEASE_MS, Node, Town, in_town, settle

ROUND_TRIP_S = 0.003


class Wire:
    """Commits take a moment, so that nodes can be at it together, and are counted."""

    def __init__(self, town: Town) -> None:
        self.commits = 0
        for node in town.nodes:
            self._count(node)

    def _count(self, node: Node) -> None:
        store = node.engine.commit

        async def commit(batches: Sequence[Batch]) -> list[Result]:
            self.commits += 1
            await asyncio.sleep(ROUND_TRIP_S)
            return await store(batches)

        node.engine.commit = commit  # type: ignore[method-assign]


async def members(town: Town, **options: object) -> list[Peer]:
    peers = [node.connect() for node in town.nodes]
    for peer in peers:
        await peer.subscribe("t", "g", BEGINNING, **{"max_inflight": 1, **options})
        await settle(0.1)
    return peers


def got(peers: list[Peer]) -> list[int]:
    return sorted(frame["offset"] for peer in peers for frame in peer.got if frame["type"] == "MESSAGE")


async def handle(peers: list[Peer]) -> None:
    for peer in peers:
        for frame in await peer.messages():
            peer.ack("t", "g", frame["offset"])


@in_town(nodes=6)
async def test_an_idle_member_on_each_node_adds_no_commits(town: Town) -> None:
    peers = await members(town)
    publisher = town.nodes[0].connect()
    wire = Wire(town)
    began, before = town.clock.now_ms(), wire.commits
    served: set[Peer] = set()
    for _ in range(50):
        publisher.send({"type": "PUBLISH", "topic": "t", "payload": 1})
        await settle(0.1)
        served.update(peer for peer in peers if peer.got)
        await handle(peers)
        await settle(0.1)
    pulses = 6 * 3 * (town.clock.now_ms() - began) // LEASE_MS
    assert wire.commits - before - pulses <= 3.5 * 50  # published, taken, settled
    assert len(served) == 6


@pytest.mark.parametrize("trouble", ["killed", "stalled", "busy", "not reading"])
@in_town(nodes=4)
async def test_a_node_that_does_not_take_its_turn_holds_nothing_up(town: Town, trouble: str) -> None:
    """No event waits until the node is declared dead, or until its member has room again."""
    peers = await members(town)
    publisher = town.nodes[0].connect()
    troubled, well = peers[1:3], [peers[0], peers[3]]
    if trouble == "busy":
        while not all(peer.got for peer in troubled):
            await publisher.publish("t", 1)
            await settle(0.2)
            await handle(well)
        for peer in troubled:
            peer.got.clear()
    for node, peer in zip(town.nodes[1:3], troubled, strict=True):
        if trouble == "killed":
            node.kill()
        elif trouble == "stalled":
            node.engine.cut_off = True
        elif trouble == "not reading":
            peer.session.pause()
    began = town.clock.now_ms()
    for _ in range(5):
        offset = (await publisher.publish("t", 1))["offset"]
        await settle(0.2)
        assert got(well) == [offset], trouble
        await handle(well)
    assert town.clock.now_ms() - began < LEASE_MS


@in_town(nodes=4)
async def test_a_backlog_is_shared_by_nodes_with_room(town: Town) -> None:
    publisher = town.nodes[0].connect()
    for n in range(40):
        await publisher.publish("t", n)
    peers = await members(town, max_inflight=2)
    Wire(town)
    handled: list[int] = []
    while len(handled) < 40:
        await settle(0.2)
        held = got(peers)
        assert held
        assert all(len(peer.got) == 2 for peer in peers) or len(handled) + len(held) == 40
        handled += held
        await handle(peers)
    assert sorted(handled) == list(range(1, 41))
