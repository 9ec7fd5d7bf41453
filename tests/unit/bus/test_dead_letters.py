"""Dead letters: read, sent back to the group that gave up, sent to all, dropped."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mainspring.bus import Conflict, DeadLetterFilter, Start, TopicConfig, Unavailable, UnknownEvent, UnknownGroup
from mainspring.log import Batch
from tests.support.bus import BEGINNING, FailingEngine, Peer, World, in_virtual_time, settle


async def kill_events(world: World, count: int) -> None:
    """Group `g` gives up on every event at once; group `other` has handled them."""
    await world.create("t", maxAttempts=1)
    peer, other = world.connect(), world.connect()
    await peer.subscribe("t", "g", BEGINNING)
    await other.subscribe("t", "other", BEGINNING)
    for n in range(1, count + 1):
        await world.connect().publish("t", n, key=f"k{n}", headers={"h": "v"}, id=f"id-{n}")
        await peer.message()
        await other.message()
        peer.nack("t", "g", n, reason=f"reason {n}")
        other.ack("t", "other", n)
    await settle()
    peer.close()
    other.close()


async def offsets(world: World) -> list[int]:
    return [letter.offset for letter in await world.bus.dead_letters.page("t")]


async def copies(world: World) -> int:
    await settle(0.5)
    return len([record async for record in world.log.scan("redriven")])


def told(messages: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(m["offset"], m["attempt"], m["envelope"]["id"], m["envelope"]["payload"]) for m in messages]


async def subscribed(world: World, group: str, **options: Any) -> Peer:
    peer = world.connect()
    await peer.subscribe("t", group, max_inflight=100, **options)
    return peer


@in_virtual_time
async def test_they_can_be_listed_and_looked_at(world: World) -> None:
    await kill_events(world, 3)
    letters = await world.bus.dead_letters.page("t")
    assert [(d.offset, d.original_offset, d.original_id, d.group, d.attempts, d.reason) for d in letters] == [
        (n, n, f"id-{n}", "g", 1, f"reason {n}") for n in (1, 2, 3)
    ]
    assert letters[0].headers == {"h": "v"}
    assert (await world.bus.dead_letters.get("t", 2)).key == "k2"
    assert [d.offset for d in await world.bus.dead_letters.page("t", offset=2, limit=1)] == [2]
    assert await world.bus.dead_letters.count("t") == 3
    with pytest.raises(UnknownEvent):
        await world.bus.dead_letters.get("t", 9)


@in_virtual_time
async def test_a_redriven_event_comes_to_the_group_that_gave_up_and_to_no_other(world: World) -> None:
    await kill_events(world, 3)
    (sent,) = await world.bus.dead_letters.redrive("t", DeadLetterFilter(offsets=[2]))
    assert (sent.topic, sent.partition, sent.offset, sent.id) == ("t", 0, 2, "id-2")
    assert (await offsets(world), await world.bus.dead_letters.count("t")) == ([1, 3], 2)
    one, other = await subscribed(world, "g"), await subscribed(world, "other")
    messages = await one.messages()
    assert told(messages) == [(2, 1, "id-2", 2)]
    assert messages[0]["envelope"]["headers"] == {"h": "v", "x-redriven": "t.DLQ/0/2"}
    assert await other.messages() == []
    assert (await world.committed("t", "g"), await world.inflight("t", "g")) == (3, 1)
    one.ack("t", "g", 2)
    assert (await world.inflight("t", "g"), await copies(world)) == (0, 0)
    assert await world.stored("t") == [1, 2, 3]


@in_virtual_time
async def test_all_of_them_go_back_while_the_group_is_at_work(world: World) -> None:
    await kill_events(world, 200)
    peer = await subscribed(world, "g", ack="upto")
    assert len(await world.bus.dead_letters.redrive("t")) == 200
    await world.connect().publish("t", "new")
    got: list[int] = []
    while messages := await peer.messages():
        for message in messages:
            got.append(message["offset"])
            peer.ack("t", "g", message["offset"])
        await settle()
    assert sorted(got) == list(range(1, 202))
    assert (await world.committed("t", "g"), await copies(world), await offsets(world)) == (201, 0, [])


@in_virtual_time
async def test_a_cumulative_acknowledgement_does_not_settle_a_redriven_event_below_it(world: World) -> None:
    await kill_events(world, 2)
    peer = await subscribed(world, "g", ack="upto")
    await world.connect().publish("t", "new")
    await world.bus.dead_letters.redrive("t", DeadLetterFilter(offsets=[1]))
    await settle()
    assert sorted(m["offset"] for m in await peer.messages()) == [1, 3]
    peer.ack("t", "g", 3)
    await settle()
    peer.close()
    assert told(await (await subscribed(world, "g")).messages()) == []  # its second and last attempt
    assert [letter.original_offset for letter in await world.bus.dead_letters.page("t")] == [2, 1]


@in_virtual_time
async def test_attempts_are_counted_anew_and_it_can_die_again(world: World) -> None:
    await kill_events(world, 1)
    await world.create("t", maxAttempts=3)
    for life in range(2):
        await world.bus.dead_letters.redrive("t")
        peer = await subscribed(world, "g")
        for attempt in (1, 2, 3):
            (message,) = await peer.messages()
            assert told([message]) == [(1, attempt, "id-1", 1)]
            peer.nack("t", "g", 1, reason=f"life {life}")
            await settle()
        peer.close()
        (letter,) = await world.bus.dead_letters.page("t")
        assert (letter.original_id, letter.attempts, letter.reason) == ("id-1", 3, f"life {life}")
        assert await copies(world) == 0


@in_virtual_time
async def test_a_crash_loses_nothing_of_a_redrive(world: World) -> None:
    await kill_events(world, 2)
    await world.bus.dead_letters.redrive("t")
    await world.kill()
    assert await offsets(world) == []
    peer = await subscribed(world, "g")
    assert told(await peer.messages()) == [(1, 1, "id-1", 1), (2, 1, "id-2", 2)]
    peer.ack("t", "g", 1)
    await settle(0.1)
    await world.create("t", maxAttempts=5)
    await world.kill()
    assert told(await (await subscribed(world, "g")).messages()) == [(2, 2, "id-2", 2)]
    assert await copies(world) == 1


@in_virtual_time
async def test_an_event_that_its_topic_has_forgotten_comes_from_the_letter(world: World) -> None:
    await kill_events(world, 3)
    batch = Batch()
    batch.remove("t", 0, below=4)
    await world.log.commit(batch)
    await world.kill()
    await world.bus.dead_letters.redrive("t")
    peer = await subscribed(world, "g")
    assert told(await peer.messages()) == [(n, 1, f"id-{n}", n) for n in (1, 2, 3)]
    for n in (1, 2):
        peer.ack("t", "g", n)
    peer.nack("t", "g", 3, reason="again")
    await settle(0.1)
    (letter,) = await world.bus.dead_letters.page("t")
    assert (letter.original_offset, letter.reason, bytes(letter.payload)) == (3, "again", b"3")
    assert await copies(world) == 0


@in_virtual_time
async def test_letters_redriven_by_several_at_once_are_sent_once(world: World) -> None:
    await kill_events(world, 20)
    sent = await asyncio.gather(*(world.bus.dead_letters.redrive("t") for _ in range(4)), return_exceptions=True)
    assert sum(len(each) for each in sent if isinstance(each, list)) == 20
    assert len(await (await subscribed(world, "g")).messages()) == 20
    assert await offsets(world) == []


@in_virtual_time
async def test_to_all_publishes_it_anew_for_every_group_under_its_id(world: World) -> None:
    await kill_events(world, 2)
    sent = await asyncio.gather(*(world.bus.dead_letters.redrive("t", to_all=True) for _ in range(4)))
    assert sorted(each.offset for some in sent for each in some) == [3, 4]
    for group in ("g", "other"):
        messages = await (await subscribed(world, group)).messages()
        assert told(messages) == [(3, 1, "id-1", 1), (4, 1, "id-2", 2)]
    assert await offsets(world) == []


@in_virtual_time
async def test_no_id_of_a_client_can_take_a_dead_letter_away(world: World) -> None:
    await kill_events(world, 1)
    await world.connect().publish("t", "mine", id="t.DLQ/0/1")
    (sent,) = await world.bus.dead_letters.redrive("t", to_all=True)
    assert ((await world.stored("t"))[-2:], sent.offset) == (["mine", 1], 3)


@in_virtual_time
async def test_a_letter_whose_group_is_gone_stays_and_the_refusal_says_what_to_do(world: World) -> None:
    await kill_events(world, 2)
    await world.bus.groups.delete("t", "g")
    with pytest.raises(UnknownGroup, match=r"no group to go back to.*send it to all groups, or drop it"):
        await world.bus.dead_letters.redrive("t")
    await world.connect().publish("t.DLQ", "by hand")
    with pytest.raises(UnknownGroup):
        await world.bus.dead_letters.redrive("t", DeadLetterFilter(offsets=[3]))
    assert await offsets(world) == [1, 2, 3]


@in_virtual_time
async def test_a_group_that_gets_the_event_again_anyway_is_not_given_it_twice(world: World) -> None:
    await kill_events(world, 2)
    await world.bus.groups.seek("t", "g", Start("offset", 1))
    with pytest.raises(Conflict, match=r"again by itself"):
        await world.bus.dead_letters.redrive("t")
    peer = await subscribed(world, "g")
    with pytest.raises(Conflict, match=r"again by itself"):
        await world.bus.dead_letters.redrive("t")
    assert len(await peer.messages()) == 2


@pytest.mark.parametrize(
    ("wanted", "left"),
    [
        (DeadLetterFilter(), []),
        (DeadLetterFilter(offsets=[2, 9]), [1, 3, 4]),
        (DeadLetterFilter(key="k3"), [1, 2, 4]),
        (DeadLetterFilter(reason="reason 4"), [1, 2, 3]),
        (DeadLetterFilter(group="nobody"), [1, 2, 3, 4]),
        (DeadLetterFilter(group="g", limit=3), [4]),
        (DeadLetterFilter(before=1), [1, 2, 3, 4]),
    ],
)
@in_virtual_time
async def test_dropped_letters_are_gone_for_good(world: World, wanted: DeadLetterFilter, left: list[int]) -> None:
    await kill_events(world, 4)
    assert await world.bus.dead_letters.drop("t", wanted) == 4 - len(left)
    assert (await offsets(world), await world.bus.dead_letters.count("t")) == (left, len(left))
    await world.kill()
    assert (await offsets(world), await world.bus.dead_letters.count("t")) == (left, len(left))
    assert await (await subscribed(world, "g")).messages() == []


@in_virtual_time
async def test_a_deleted_group_leaves_no_copies(world: World) -> None:
    await kill_events(world, 2)
    await world.bus.dead_letters.redrive("t")
    assert await copies(world) == 2
    await world.bus.groups.delete("t", "g")
    assert await copies(world) == 0


@in_virtual_time
async def test_a_seek_forward_leaves_no_copies(world: World) -> None:
    await kill_events(world, 2)
    await world.bus.dead_letters.redrive("t")
    await world.bus.groups.seek("t", "g", Start("latest"))
    assert await copies(world) == 0


@in_virtual_time(retention_interval_ms=21_600_000)
async def test_letters_wait_for_somebody_however_old_they_are(world: World) -> None:
    await kill_events(world, 3)
    assert world.bus.topics.config_of("t.DLQ") == TopicConfig(topic="t.DLQ"), "no retention of any kind"
    await settle(60 * 86_400)
    assert await offsets(world) == [1, 2, 3]
    await world.kill()
    await settle(60 * 86_400)
    assert await offsets(world) == [1, 2, 3]


@pytest.mark.parametrize("most", [2, 3], ids=["it was the last", "one is left"])
@in_virtual_time
async def test_attempts_are_counted_over_a_crash_also_the_one_under_way(world: World, most: int) -> None:
    await world.create("t", maxAttempts=most)
    peer = world.connect()
    await peer.subscribe("t", "g", BEGINNING)
    await world.connect().publish("t", 1)
    assert (await peer.message())["attempt"] == 1
    peer.nack("t", "g", 1, reason="no")
    assert (await peer.message())["attempt"] == 2
    await settle(0.1)
    await world.kill()
    peer = await subscribed(world, "g")
    assert [m["attempt"] for m in await peer.messages()] == ([3] if most == 3 else [])
    assert [d.attempts for d in await world.bus.dead_letters.page("t")] == ([] if most == 3 else [2])


@pytest.mark.parametrize("change", ["redrive", "redrive to all", "drop"])
@in_virtual_time
async def test_while_the_disk_is_full_the_remedy_is_to_ask_for_the_same_again(world: World, change: str) -> None:
    """And not to publish something, as who publishes is told."""
    engine = FailingEngine()
    full = World(world.clock, engine)
    await full.start()
    await kill_events(full, 2)
    letters = full.bus.dead_letters
    engine.full = True
    with pytest.raises(Unavailable) as refused:
        await (letters.drop("t") if change == "drop" else letters.redrive("t", to_all=change != "redrive"))
    assert "so ask again" in refused.value.message
    assert "publish" not in str(refused.value)
    assert refused.value.remedy == "make room"
    assert await offsets(full) == [1, 2]
    await full.stop()
