"""Groups with a time to live on a log that several nodes share: they go when no node has a member any more."""

from __future__ import annotations

from mainspring.log import Log
from tests.support.bus import BEGINNING
from tests.support.shared_bus import LEASE_MS, Town, in_town, settle

TTL_MS = 5_000


async def records(log: Log) -> set[str]:
    """The spaces that hold something of a group."""
    wanted = ("groups", "claims", "members", "copies", "group_ttls", "group_owners")
    return {space for space in wanted for _ in [record async for record in log.scan(space)]}


@in_town(nodes=2)
async def test_a_group_goes_when_its_last_member_on_any_node_is_gone(town: Town) -> None:
    one, two = town.nodes
    await town.create("t", partitions=2)
    first, second = one.connect(), two.connect()
    await first.subscribe("t", "tab", BEGINNING, group_ttl_ms=TTL_MS)
    await second.subscribe("t", "tab", group_ttl_ms=TTL_MS)
    await first.publish_many("t", 4)
    first.close()
    await settle(TTL_MS / 1000 * 3)
    assert [node.bus.groups.infos("t")[0].ttl_ms for node in town.nodes] == [TTL_MS, TTL_MS]
    second.close()
    await settle(TTL_MS / 1000 - 1)
    third = one.connect()
    await third.subscribe("t", "tab", group_ttl_ms=TTL_MS)  # a reconnect, at another node
    third.close()
    await settle(TTL_MS / 1000 - 1)
    assert [len(node.bus.groups.infos("t")) for node in town.nodes] == [1, 1]
    await settle(3)
    assert [node.bus.groups.infos("t") for node in town.nodes] == [[], []]
    assert await records(one.log) == set()


@in_town(nodes=2)
async def test_a_group_of_a_node_that_died_goes_too(town: Town) -> None:
    one, two = town.nodes
    await town.create("t")
    await one.connect().subscribe("t", "tab", BEGINNING, group_ttl_ms=TTL_MS)
    await two.connect().publish_many("t", 3)
    await settle(1)
    one.kill()
    await settle((3 * LEASE_MS + 2 * TTL_MS) / 1000 + 120)
    assert two.bus.groups.infos("t") == []
    assert await records(two.log) == set()
