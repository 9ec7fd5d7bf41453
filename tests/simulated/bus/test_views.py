"""What is known of a group is the same on every node, in the log, and after the log has moved to one node."""

from __future__ import annotations

import json
import random
from typing import Any

from msgspec import UNSET

from mainspring.bus import Bus
from mainspring.log import Log, MemoryEngine
from mainspring.loop import Loop
from tests.support.bus import BEGINNING, Peer
from tests.support.shared_bus import LEASE_MS, Node, Town, in_town, settle


async def shared_record(node: Node) -> dict[str, Any]:
    (record,) = [record async for record in node.log.scan("groups")]
    found: dict[str, Any] = json.loads(record.value)
    return found


@in_town
async def test_every_node_sees_who_has_what(town: Town) -> None:
    first, second = town.nodes
    one, two = first.connect(), second.connect()
    await one.subscribe("t", "g", BEGINNING, max_inflight=2)
    writer = second.connect()
    await writer.publish_many("t", 3)
    await two.subscribe("t", "g", max_inflight=5)
    await settle(0.1)
    two.nack("t", "g", 3, delay_ms=60_000, reason="later")
    await settle(0.1)
    views = [node.bus.topics.get("t").groups["g"].leases(town.clock, 100) for node in town.nodes]
    for view in views:
        assert [(each.offset, each.deliveries) for each in view] == [(1, 1), (2, 1), (3, 1)]
        assert [each.state for each in view] == ["leased", "leased", "delayed"]
        assert view[2].reason == "later"
    assert [each.epoch for each in views[0]] == [0, 0, second.cluster.epoch]
    assert [each.epoch for each in views[1]] == [first.cluster.epoch, first.cluster.epoch, 0]
    infos = [node.bus.groups.infos("t")[0] for node in town.nodes]
    assert [(info.members, info.partitions[0].last_committed, info.partitions[0].lag) for info in infos] == [
        (2, 0, 3),
        (2, 0, 3),
    ]


@in_town
async def test_every_node_says_who_the_members_are_and_what_they_hold(town: Town) -> None:
    first, second = town.nodes
    joined = town.clock.wall_ms()
    await first.connect("ada").subscribe("t", "g", BEGINNING, max_inflight=1)
    await first.connect("bob").subscribe("t", "g", max_inflight=1)
    grace = second.connect("grace")
    await grace.subscribe("t", "g", max_inflight=5)
    await grace.publish_many("t", 6)
    await settle(0.1)
    here = [(each.agent, each.node, each.inflight) for each in first.bus.groups.members("t", "g")]
    held = next(count for name, _, count in here if name == "grace")
    assert here == [("ada", "node-1", 1), ("bob", "node-1", 1), ("grace", "node-2", held)]
    assert held == second.bus.groups.members("t", "g")[0].inflight == 4
    there = second.bus.groups.members("t", "g")
    assert [(each.agent, each.node, each.inflight) for each in there[1:]] == [
        ("ada", "node-1", UNSET),  # what node-1 has is known of both together
        ("bob", "node-1", UNSET),
    ]
    assert all(joined <= each.since <= town.clock.wall_ms() and not each.program for each in there)
    grace.close()
    await settle(0.1)
    assert [each.agent for each in first.bus.groups.members("t", "g")] == ["ada", "bob"]


@in_town
async def test_the_record_in_the_log_follows_the_commit(town: Town) -> None:
    """Acknowledgements write only the node's own claim; the shared record says the commit a little later."""
    first, second = town.nodes
    one = first.connect()
    await one.subscribe("t", "g", BEGINNING)
    await second.connect().publish_many("t", 4)
    await settle(0.1)
    one.ack("t", "g", 4)
    await settle(2)
    assert (await shared_record(second))["lastCommitted"] == 4


@in_town
async def test_a_log_that_moves_to_one_node_keeps_what_its_nodes_held(town: Town) -> None:
    first, second = town.nodes
    one, two = first.connect(), second.connect()
    await one.subscribe("t", "g", BEGINNING, max_inflight=2)
    await two.subscribe("t", "g", BEGINNING, max_inflight=2)
    await first.connect().publish_many("t", 6)
    await settle(0.1)
    held = {frame["offset"] for peer in (one, two) for frame in await peer.messages()}
    assert held == {1, 2, 3, 4}
    for node in town.nodes:
        node.kill()

    engine: MemoryEngine = town.shared.state
    loop, log = Loop(town.clock), Log(engine)
    loop.attach()
    await log.open()
    bus = Bus(log, town.clock, loop, settings=town.settings, new_id=town.new_id, random=random.Random(1).random)
    await bus.start()
    assert [record.key async for record in log.scan("claims")] == []
    peer = Peer(bus, None, town.journal)
    await peer.subscribe("t", "g", max_inflight=10)
    await settle(0.1)
    assert [(frame["offset"], frame["attempt"]) for frame in await peer.messages()] == [
        (1, 2),
        (2, 2),
        (3, 2),
        (4, 2),
        (5, 1),
        (6, 1),
    ]
    await bus.stop()
    loop.detach()


@in_town
async def test_nothing_is_left_of_nodes_that_are_gone(town: Town) -> None:
    first, second = town.nodes
    one, two = first.connect(), second.connect()
    await one.subscribe("t", "g", BEGINNING)
    await two.subscribe("t", "h", BEGINNING)
    await first.connect().publish_many("t", 3)
    await settle(0.1)
    first.kill()
    await settle(LEASE_MS / 1000 * 4)
    own = f"{second.cluster.epoch:020d}"
    for space in ("claims", "members"):
        assert all([record.key.endswith(own) async for record in second.log.scan(space)]), space
    assert {info.group: info.members for info in second.bus.groups.infos("t")} == {"g": 0, "h": 1}
    third = await town.add()
    again = third.connect()
    await again.subscribe("t", "g")
    await settle(0.1)
    assert [frame["attempt"] for frame in await again.messages()] == [2, 2, 2]
