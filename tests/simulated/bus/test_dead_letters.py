"""Dead letters of a group whose members are connected to several nodes."""

from __future__ import annotations

import asyncio
from typing import Any

from mainspring.bus import Conflict, DeadLetterFilter
from mainspring.log import Batch
from tests.support.bus import BEGINNING, Peer
from tests.support.shared_bus import LEASE_MS, Node, Town, in_town, settle


async def kill_events(town: Town, count: int) -> None:
    """Group `g` gives up on every event at once; group `other` has handled them."""
    await town.create("t", maxAttempts=1)
    first, second = town.nodes
    peer, other = first.connect(), second.connect()
    await peer.subscribe("t", "g", BEGINNING, max_inflight=100)
    await other.subscribe("t", "other", BEGINNING, max_inflight=100)
    for n in range(1, count + 1):
        await first.connect().publish("t", n, id=f"id-{n}")
    await settle(0.1)
    for message in await peer.messages():
        peer.nack("t", "g", message["offset"], reason="no")
    for message in await other.messages():
        other.ack("t", "other", message["offset"])
    await settle(0.2)
    peer.close()
    other.close()
    await settle(0.2)
    assert await first.bus.dead_letters.count("t") == count


async def subscribed(node: Node, group: str, window: int = 100) -> Peer:
    peer = node.connect()
    await peer.subscribe("t", group, max_inflight=window)
    await settle(0.2)
    return peer


async def copies(node: Node) -> int:
    await settle(2)
    return len([record async for record in node.log.scan("redriven")])


def told(messages: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return sorted((m["offset"], m["attempt"], m["envelope"]["id"], m["envelope"]["payload"]) for m in messages)


@in_town
async def test_a_redriven_event_comes_to_one_member_of_the_group_that_gave_up(town: Town) -> None:
    await kill_events(town, 6)
    first, second = town.nodes
    one, two, other = (
        await subscribed(first, "g", 3),
        await subscribed(second, "g", 3),
        await subscribed(first, "other"),
    )
    sent = await second.bus.dead_letters.redrive("t")
    assert [(each.offset, each.id) for each in sent] == [(n, f"id-{n}") for n in range(1, 7)]
    await settle(0.2)
    got = [(peer, message) for peer in (one, two) for message in await peer.messages()]
    assert told([message for _, message in got]) == [(n, 1, f"id-{n}", n) for n in range(1, 7)]
    assert await other.messages() == []
    for peer, message in got:
        peer.ack("t", "g", message["offset"])
    assert [await copies(node) for node in town.nodes] == [0, 0]
    assert [await node.bus.dead_letters.count("t") for node in town.nodes] == [0, 0]
    assert [await node.committed("t", "g") for node in town.nodes] == [6, 6]


@in_town
async def test_a_redriven_event_comes_although_the_answer_is_later_than_the_change(town: Town) -> None:
    """The group cannot take it while its position is being written; nothing else woke it afterwards."""
    await kill_events(town, 1)
    first, _ = town.nodes
    peer = await subscribed(first, "g")
    commit = first.engine.commit

    async def answered_late(batches: Any) -> Any:
        results = await commit(batches)
        await asyncio.sleep(0.05)
        return results

    first.engine.commit = answered_late  # type: ignore[method-assign]
    await first.bus.dead_letters.redrive("t")
    await settle(1)
    assert told(await peer.messages()) == [(1, 1, "id-1", 1)]


@in_town
async def test_a_letter_can_be_sent_back_where_the_change_is_shown_later_than_it_is_read(town: Town) -> None:
    """A node reads the letter in the log; what it was told of the group says that the event is still being handled."""
    await town.create("t", maxAttempts=1)
    first, second = town.nodes
    peer = await subscribed(first, "g")
    await second.connect().publish("t", 1, id="id-1")
    await settle(0.2)
    show = second.engine._report_waiting
    second.engine._report_waiting = lambda: asyncio.get_running_loop().call_later(0.1, show)  # type: ignore[assignment, return-value]
    peer.nack("t", "g", 1, reason="no")
    while not await first.bus.dead_letters.count("t"):
        await settle()
    await second.bus.dead_letters.redrive("t")
    second.engine._report_waiting = show  # type: ignore[method-assign]
    await settle(0.2)
    assert told(await peer.messages()) == [(1, 1, "id-1", 1), (1, 1, "id-1", 1)]


@in_town
async def test_it_dies_again_with_its_attempts_counted_anew(town: Town) -> None:
    await kill_events(town, 1)
    await town.create("t", maxAttempts=2)
    await settle(0.2)
    first, second = town.nodes
    await first.bus.dead_letters.redrive("t")
    peer = await subscribed(second, "g")
    for attempt in (1, 2):
        assert told(await peer.messages()) == [(1, attempt, "id-1", 1)]
        peer.nack("t", "g", 1, reason=f"attempt {attempt}")
        await settle(0.2)
    (letter,) = await first.bus.dead_letters.page("t")
    assert (letter.attempts, letter.reason, letter.original_id) == (2, "attempt 2", "id-1")
    assert await copies(first) == 0


@in_town
async def test_an_event_that_its_topic_has_forgotten_comes_from_the_letter(town: Town) -> None:
    await kill_events(town, 3)
    first, second = town.nodes
    batch = Batch()
    batch.remove("t", 0, below=4)
    await first.log.commit(batch)
    third = await town.add()
    await second.bus.dead_letters.redrive("t")
    peer = await subscribed(third, "g")
    assert told(await peer.messages()) == [(n, 1, f"id-{n}", n) for n in (1, 2, 3)]
    for n in (1, 2, 3):
        peer.ack("t", "g", n)
    assert await copies(first) == 0


@in_town
async def test_redriven_by_two_nodes_at_once_it_comes_once(town: Town) -> None:
    await kill_events(town, 20)
    first, second = town.nodes
    sent = await asyncio.gather(*(node.bus.dead_letters.redrive("t") for node in town.nodes), return_exceptions=True)
    assert all(isinstance(each, list | Conflict) for each in sent)
    assert sum(len(each) for each in sent if isinstance(each, list)) == 20
    peer = await subscribed(second, "g")
    got = await peer.messages()
    assert told(got) == [(n, 1, f"id-{n}", n) for n in range(1, 21)]
    assert await first.bus.dead_letters.count("t") == 0


@in_town
async def test_the_node_that_has_a_redriven_event_dies_and_another_takes_it(town: Town) -> None:
    await kill_events(town, 2)
    await town.create("t", maxAttempts=5)
    first, second = town.nodes
    await first.bus.dead_letters.redrive("t")
    lost = await subscribed(first, "g")
    assert len(await lost.messages()) == 2
    first.kill()
    peer = await subscribed(second, "g")
    await settle(LEASE_MS / 1000 * 2)
    assert told(await peer.messages()) == [(n, 2, f"id-{n}", n) for n in (1, 2)]
    for n in (1, 2):
        peer.ack("t", "g", n)
    assert await copies(second) == 0


@in_town
async def test_an_answer_that_is_lost_neither_loses_nor_doubles_it(town: Town) -> None:
    await kill_events(town, 3)
    first, second = town.nodes
    first.engine.late_s = 0.5
    sent = await first.bus.dead_letters.redrive("t")
    first.engine.late_s = 0.0
    assert len(sent) == 3
    peer = await subscribed(second, "g")
    assert told(await peer.messages()) == [(n, 1, f"id-{n}", n) for n in (1, 2, 3)]


@in_town
async def test_dropped_on_one_node_they_are_gone_on_all(town: Town) -> None:
    await kill_events(town, 3)
    first, second = town.nodes
    assert await first.bus.dead_letters.drop("t", DeadLetterFilter(offsets=[2])) == 1
    assert [letter.offset for letter in await second.bus.dead_letters.page("t")] == [1, 3]
    assert await second.bus.dead_letters.count("t") == 2
