"""The one suite that every engine of the log must pass: what the contract promises, seen through `Log`.

For pytest with pytest-asyncio in its mode `auto`. Say how to make an engine, and inherit the tests:

    class TestMyEngine(EngineContract):
        @pytest.fixture
        def make_engine(self, tmp_path: Path) -> MakeEngine:
            return lambda: MyEngine(tmp_path / "log")

`make_engine()` gives an engine that is not yet open. What engines of one test stored they share, so that a test can
close one and open the next.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest

from mainspring.log import (
    ABSENT,
    Append,
    AppendMany,
    Batch,
    Bounds,
    Delete,
    Engine,
    Guard,
    KeptRecord,
    KeptTail,
    Log,
    Mark,
    Operation,
    Outline,
    Put,
    Receipt,
    Refused,
    Remove,
    StoredEvent,
    Unmarked,
)

MakeEngine = Callable[[], Engine]


def event(n: int = 1, topic: str = "t", partition: int = 0, **more: Any) -> Append:
    values: dict[str, Any] = {"ts": 1000 + n, "payload": b'{"n": %d}' % n} | more
    return Append(topic, partition, f"id-{n}", **values)


async def publish(log: Log, *events: Append) -> Receipt:
    return await log.commit(Batch(list(events)))


async def offsets(log: Log, topic: str = "t", partition: int = 0, start: int = 1, limit: int = 1000) -> list[int]:
    return [found.offset for found in await log.read(topic, partition, start, limit)]


async def keys(log: Log, space: str, prefix: str = "", after: str = "") -> list[str]:
    return [record.key async for record in log.scan(space, prefix, after)]


class _Events:
    async def test_offsets_start_at_one_and_each_partition_counts_for_itself(self, log: Log) -> None:
        receipt = await publish(log, event(1), event(2), event(3, partition=7), event(4, topic="u"))
        assert receipt.offsets == ((0, 1, False), (0, 2, False), (7, 1, False), (0, 1, False))
        assert (await publish(log, event(5))).offsets == ((0, 3, False),)

    async def test_an_event_comes_back_byte_for_byte(self, log: Log) -> None:
        odd = b'{ "a" :\t1.0,\r\n "a":2, "\\u00e9": "\xc3\xa9\x00\x1e\x1f\xff" }'
        await publish(
            log,
            event(1, payload=odd, key="k\x00ey,=|é😀", headers=b'{"h" : "\x00,1"}'),
            event(2, payload=b"", key="", headers=b""),
            event(3, payload=b"null"),
            event(4, payload=b"[]", headers=b"{}"),
            event(5, payload=b"1", key="only"),
        )
        found = await log.read("t", 0, 1, 10)
        assert found == [
            StoredEvent("t", 0, 1, "id-1", 1001, odd, "k\x00ey,=|é😀", b'{"h" : "\x00,1"}'),
            StoredEvent("t", 0, 2, "id-2", 1002, b"", "", b""),
            StoredEvent("t", 0, 3, "id-3", 1003, b"null", None, None),
            StoredEvent("t", 0, 4, "id-4", 1004, b"[]", None, b"{}"),
            StoredEvent("t", 0, 5, "id-5", 1005, b"1", "only", None),
        ]

    async def test_reading_starts_anywhere_and_stops_at_the_limit(self, log: Log) -> None:
        await publish(log, *(event(n) for n in range(1, 11)))
        assert await offsets(log, start=4, limit=3) == [4, 5, 6]
        assert await offsets(log, start=0, limit=2) == [1, 2]
        assert await offsets(log, start=-5, limit=1) == [1]
        assert await offsets(log, start=9, limit=100) == [9, 10]
        assert await offsets(log, start=11) == []
        assert await offsets(log, start=1 << 60) == []
        assert await offsets(log, limit=0) == []
        assert await offsets(log, topic="never") == []
        assert await offsets(log, partition=3) == []

    async def test_a_page_stays_within_its_bytes_but_holds_at_least_one_event(self, log: Log) -> None:
        await publish(log, *(event(n, payload=b"x" * 1000) for n in range(1, 6)))
        assert [e.offset for e in await log.read("t", 0, 1, 10, max_bytes=2500)] == [1, 2]
        assert [e.offset for e in await log.read("t", 0, 2, 10, max_bytes=1)] == [2]

    async def test_a_batch_of_thousands_keeps_its_order(self, log: Log) -> None:
        receipt = await publish(log, *(event(n, partition=n % 3) for n in range(5000)))
        assert [offset for partition, offset, _ in receipt.offsets if partition == 1] == list(range(1, 1668))
        found = await log.read("t", 1, 1, 5000)
        assert [e.id for e in found] == [f"id-{n}" for n in range(1, 5000, 3)]

    async def test_unknown_topics_have_no_bounds(self, log: Log) -> None:
        assert await log.bounds("t") == []
        assert await log.topics() == []

    async def test_bounds_count_events_and_bytes(self, log: Log) -> None:
        await publish(log, event(1, payload=b"12345", key="é", headers=b"{}"), event(2, partition=4, payload=b"1"))
        assert await log.bounds("t") == [Bounds(0, 1, 1, 1, 5 + 2 + 2 + 4), Bounds(4, 1, 1, 1, 1 + 4)]
        assert await log.topics() == ["t"]

    async def test_an_outline_tells_keys_sizes_and_tombstones(self, log: Log) -> None:
        await publish(
            log, event(1, key="a", payload=b"{}"), event(2, key="a", payload=b" null\n"), event(3, payload=b'"null"')
        )
        assert await log.outline("t", 0, 1, 10) == [
            Outline(1, "a", 1001, 2 + 1 + 4, False),
            Outline(2, "a", 1002, 6 + 1 + 4, True),
            Outline(3, None, 1003, 6 + 4, False),
        ]

    async def test_an_empty_batch_is_fine(self, log: Log) -> None:
        assert await log.commit(Batch()) == Receipt()


class _Columns:
    """Of engines that take `AppendMany`; others are left alone."""

    async def test_they_are_stored_behind_what_is_there_and_counted_like_events(self, log: Log) -> None:
        if not log.takes_many:
            return
        batch = Batch([event(1)])
        batch.append_many(AppendMany("t", 0, 7, ["a", "b"], [b"1", b"22"], ["k", None], [None, b"{}"]))
        batch.append(event(2))
        batch.append_many(AppendMany("t", 1, 8, ["c"], [b"3"]))
        assert batch.size() == 5
        assert (await log.commit(batch)).offsets == ((0, 1, False), (0, 2, False), (0, 4, False), (1, 1, False))
        found = await log.read("t", 0, 2, 2)
        assert found == [
            StoredEvent("t", 0, 2, "a", 7, b"1", "k"),
            StoredEvent("t", 0, 3, "b", 7, b"22", None, b"{}"),
        ]
        assert await offsets(log) == [1, 2, 3, 4]
        bounds = await log.bounds("t")
        assert [(each.tail, each.events) for each in bounds] == [(4, 4), (1, 1)]
        assert bounds[1].bytes == 2

    async def test_what_no_engine_can_hold_is_refused_whole(self, log: Log) -> None:
        if not log.takes_many:
            return
        bad = [
            AppendMany("t", 0, 1, [], []),
            AppendMany("t", 0, 1, ["a"], [b"1", b"2"]),
            AppendMany("t", 0, 1, ["a", "b"], [b"1", b"2"], ["k"]),
            AppendMany("t", 0, 1, ["a"], [b"1"], None, [b"{}", None]),
            AppendMany("t", 0, 1, ["a", "\ud800"], [b"1", b"2"]),
            AppendMany("t", 0, 1, ["a"], [b"1"], ["\ud800"]),
            AppendMany("t", 0, 1, ["a"], ["1"]),  # type: ignore[list-item]
            AppendMany("t", 0, 1, [None], [b"1"]),  # type: ignore[list-item]
            AppendMany("t", 0, 1 << 63, ["a"], [b"1"]),
            AppendMany("t", -1, 1, ["a"], [b"1"]),
            AppendMany("\ud800", 0, 1, ["a"], [b"1"]),
        ]
        results = await asyncio.gather(
            *(log.commit(Batch([event(8), events])) for events in bad),
            log.commit(Batch([event(9)])),
            return_exceptions=True,
        )
        assert [type(result) for result in results] == [Refused] * len(bad) + [Receipt]
        assert [e.id for e in await log.read("t", 0, 1, 10)] == ["id-9"]

    async def test_a_refused_batch_takes_them_back(self, log: Log) -> None:
        if not log.takes_many:
            return
        await publish(log, event(1))
        many = AppendMany("t", 0, 7, ["a", "b"], [b"1", b"2"])
        with pytest.raises(Refused):
            await log.commit(Batch([many, event(2, expect=1)]))
        with pytest.raises(Refused):
            await log.commit(Batch([AppendMany("new", 0, 7, ["a"], [b"1"]), Guard("s", "k", 3)]))
        assert (await log.commit(Batch([many]))).offsets == ((0, 2, False),)
        assert await log.topics() == ["t"]

    async def test_what_they_are_remembered_by_stands_for_all_of_them(self, log: Log) -> None:
        if not log.takes_many:
            return
        many = AppendMany("t", 0, 100, ["a", "b"], [b"1", b"2"], dedupe="x", dedupe_until=200)
        with pytest.raises(Refused):
            await log.commit(Batch([many, Guard("s", "k", 3)]))  # what is not stored is not remembered
        await log.commit(Batch([Unmarked("t", "x", 100), event(1)]))
        results = await asyncio.gather(*(log.commit(Batch([each, event(n)])) for n, each in ((2, many), (3, many))))
        assert [each.offsets for each in results] == [((0, 2, False), (0, 4, False)), ((0, 2, True), (0, 5, False))]
        with pytest.raises(Refused) as refused:
            await log.commit(Batch([event(4), Unmarked("t", "x", 200)]))
        assert (refused.value.code, refused.value.actual) == ("seen_before", 2)
        await log.commit(Batch([Unmarked("t", "x", 201), Unmarked("other", "x", 100), event(5)]))
        assert [mark async for mark in log.marks()] == [Mark("t", "x", 0, 2, 200)]
        later = msgspec.structs.replace(many, ts=201, dedupe_until=301)
        assert (await log.commit(Batch([later]))).offsets == ((0, 7, False),)
        assert [e.id for e in await log.read("t", 0, 1, 10)] == ["id-1", "a", "b", "id-2", "id-3", "id-5", "a", "b"]


class _Removal:
    async def test_below_moves_the_head_and_never_the_tail(self, log: Log) -> None:
        await publish(log, *(event(n) for n in range(1, 6)))
        await log.commit(Batch([Remove("t", 0, below=4)]))
        assert await offsets(log) == [4, 5]
        (bounds,) = await log.bounds("t")
        assert (bounds.head, bounds.tail, bounds.events) == (4, 5, 2)

    async def test_offsets_are_not_used_again_when_everything_is_gone(self, log: Log) -> None:
        await publish(log, event(1), event(2))
        await log.commit(Batch([Remove("t", 0, below=1000)]))
        assert await log.bounds("t") == [Bounds(0, 3, 2, 0, 0)]
        assert (await publish(log, event(3))).offsets == ((0, 3, False),)
        assert await offsets(log) == [3]

    async def test_also_not_after_the_log_was_opened_again(self, make_engine: MakeEngine) -> None:
        log = Log(make_engine())
        await log.open()
        await publish(log, event(1), event(2))
        await log.commit(Batch([Remove("t", 0, offsets=(2,))]))
        await log.close()
        log = Log(make_engine())
        await log.open()
        assert (await publish(log, event(3))).offsets == ((0, 3, False),)
        assert await offsets(log) == [1, 3]
        await log.close()

    async def test_compaction_leaves_holes_that_readers_pass(self, log: Log) -> None:
        await publish(log, *(event(n, payload=b"x" * n) for n in range(1, 8)))
        await log.commit(Batch([Remove("t", 0, offsets=(2, 3, 5, 99, 0, -1))]))
        assert await offsets(log) == [1, 4, 6, 7]
        assert await offsets(log, start=2, limit=1) == [4]
        (bounds,) = await log.bounds("t")
        assert (bounds.head, bounds.tail, bounds.events) == (1, 7, 4)
        assert bounds.bytes == 1 + 4 + 6 + 7 + 4 * len("id-1")

    async def test_both_kinds_together_and_twice_are_counted_once(self, log: Log) -> None:
        await publish(log, *(event(n) for n in range(1, 8)))
        await log.commit(Batch([Remove("t", 0, below=3, offsets=(1, 5)), Remove("t", 0, below=3, offsets=(5, 6))]))
        (bounds,) = await log.bounds("t")
        assert (bounds.head, bounds.tail, bounds.events) == (3, 7, 3)
        assert await offsets(log) == [3, 4, 7]

    async def test_a_remove_does_not_reach_events_that_come_after_it(self, log: Log) -> None:
        await publish(log, event(1))
        await log.commit(Batch([Remove("t", 0, below=1 << 40, offsets=(2,)), event(2), event(3)]))
        assert await offsets(log) == [2, 3]

    async def test_removing_from_what_never_was_does_nothing(self, log: Log) -> None:
        await log.commit(Batch([Remove("never", 3, below=10, offsets=(1, 2))]))
        assert await log.topics() == []

    async def test_trim_goes_all_the_way(self, log: Log) -> None:
        await publish(log, *(event(n) for n in range(1, 12_001)))
        await log.trim("t", 0, 11_990)
        assert await offsets(log) == list(range(11_990, 12_001))
        await log.trim("t", 0, 5)
        await log.trim("t", 0, 1 << 40)
        assert await log.bounds("t") == [Bounds(0, 12_001, 12_000, 0, 0)]
        await log.trim("never", 0, 5)


class _Time:
    async def test_finds_the_first_event_of_a_time(self, log: Log) -> None:
        await publish(log, *(event(n, ts=ts) for n, ts in enumerate([10, 20, 20, 30], 1)))
        assert [await log.offset_at("t", 0, ts) for ts in (0, 10, 11, 20, 21, 30, 31)] == [1, 1, 2, 2, 4, 4, 5]

    async def test_also_when_the_clock_stepped_back(self, log: Log) -> None:
        times = [10, 50, 20, 60, 5, 55, 70]
        await publish(log, *(event(n, ts=ts) for n, ts in enumerate(times, 1)))
        for wanted in range(80):
            expected = next((n for n, ts in enumerate(times, 1) if ts >= wanted), 8)
            assert await log.offset_at("t", 0, wanted) == expected

    async def test_removed_events_do_not_count(self, log: Log) -> None:
        await publish(log, *(event(n, ts=ts) for n, ts in enumerate([90, 10, 20, 95, 100], 1)))
        await log.commit(Batch([Remove("t", 0, below=2, offsets=(4,))]))
        assert [await log.offset_at("t", 0, ts) for ts in (0, 15, 50, 100, 101)] == [2, 3, 5, 5, 6]

    async def test_an_empty_partition_points_behind_its_tail(self, log: Log) -> None:
        assert await log.offset_at("t", 0, 5) == 1
        await publish(log, event(1), event(2))
        await log.commit(Batch([Remove("t", 0, below=3)]))
        assert await log.offset_at("t", 0, 0) == 3


class _Expectations:
    async def test_append_at_the_expected_tail_only(self, log: Log) -> None:
        await publish(log, event(1, expect=0), event(2, expect=1))
        with pytest.raises(Refused) as refusal:
            await publish(log, event(3), event(4, expect=3), event(5, expect=0))
        assert refusal.value.code == "conflict"
        assert refusal.value.actual == 4
        assert await offsets(log) == [1, 2]
        assert (await publish(log, event(3, expect=2))).offsets == ((0, 3, False),)

    async def test_a_refused_first_event_leaves_no_partition_behind(self, log: Log) -> None:
        with pytest.raises(Refused):
            await publish(log, event(1, topic="fresh", expect=3))
        assert await log.topics() == []
        assert await log.bounds("fresh") == []

    async def test_a_refused_batch_leaves_no_trace_and_its_neighbours_stand(self, log: Log) -> None:
        results = await asyncio.gather(
            log.commit(Batch([event(1), Put("s", "a", b"1")])),
            log.commit(
                Batch(
                    [
                        event(2, dedupe="d", dedupe_until=9999),
                        Put("s", "a", b"2"),
                        Put("s", "b", b"2"),
                        Delete("s", "a"),
                        Remove("t", 0, below=2),
                        Guard("s", "nobody", 17),
                    ]
                )
            ),
            log.commit(Batch([event(3, dedupe="d", dedupe_until=9999), Put("s", "c", b"3", expect=ABSENT)])),
            return_exceptions=True,
        )
        assert isinstance(results[1], Refused)
        assert isinstance(results[2], Receipt)
        assert results[2].offsets == ((0, 2, False),)
        assert [e.id for e in await log.read("t", 0, 1, 10)] == ["id-1", "id-3"]
        assert await keys(log, "s") == ["a", "c"]
        record = await log.get("s", "a")
        assert record is not None
        assert record.value == b"1"

    async def test_a_batch_sees_the_ones_before_it_in_the_same_commit(self, log: Log) -> None:
        first, second = await asyncio.gather(
            log.commit(Batch([event(1), Put("s", "k", b"1", expect=ABSENT)])),
            log.commit(Batch([event(2, expect=1)])),
        )
        assert (first.offsets, second.offsets) == (((0, 1, False),), ((0, 2, False),))
        with pytest.raises(Refused):
            await log.commit(Batch([Put("s", "k", b"2", expect=ABSENT)]))

    async def test_values_no_engine_can_hold_are_refused_and_hurt_nobody_else(self, log: Log) -> None:
        bad: list[Operation] = [
            event(1, key="\ud800"),
            event(1, dedupe="\ud800"),
            Append("t", 0, "\udfff", 1, b"1"),
            Append("\ud800", 0, "x", 1, b"1"),
            event(1, ts=1 << 63),
            event(1, partition=-1),
            event(1, dedupe="x", dedupe_until=1 << 70),
            Put("s", "\ud800", b""),
            Put("\ud800", "k", b""),
            Put("", "k", b""),
            Put("s", "", b""),
        ]
        results = await asyncio.gather(
            *(log.commit(Batch([event(8), operation])) for operation in bad),
            log.commit(Batch([event(9)])),
            return_exceptions=True,
        )
        assert [type(result) for result in results] == [Refused] * len(bad) + [Receipt]
        assert [e.id for e in await log.read("t", 0, 1, 10)] == ["id-9"]


class _Dedupe:
    async def test_the_same_text_gives_the_first_offset_again(self, log: Log) -> None:
        once = event(1, dedupe="x", dedupe_until=5000)
        assert (await publish(log, once)).offsets == ((0, 1, False),)
        assert (await publish(log, event(2, dedupe="x", dedupe_until=5000))).offsets == ((0, 1, True),)
        assert (await publish(log, event(3, dedupe="y", dedupe_until=5000), once)).offsets == (
            (0, 2, False),
            (0, 1, True),
        )
        assert await offsets(log) == [1, 2]

    async def test_within_one_batch_and_one_commit_too(self, log: Log) -> None:
        first, second = await asyncio.gather(
            publish(log, event(1, dedupe="x", dedupe_until=5000), event(2, dedupe="x", dedupe_until=5000)),
            publish(log, event(3, dedupe="x", dedupe_until=5000)),
        )
        assert first.offsets == ((0, 1, False), (0, 1, True))
        assert second.offsets == ((0, 1, True),)

    async def test_it_is_found_in_whichever_partition_the_first_went_to(self, log: Log) -> None:
        await publish(log, event(1, partition=2, dedupe="x", dedupe_until=5000))
        assert (await publish(log, event(2, partition=5, dedupe="x", dedupe_until=5000))).offsets == ((2, 1, True),)

    async def test_each_topic_remembers_for_itself(self, log: Log) -> None:
        await publish(log, event(1, dedupe="x", dedupe_until=5000))
        assert (await publish(log, event(2, topic="u", dedupe="x", dedupe_until=5000))).offsets == ((0, 1, False),)

    async def test_the_window_ends(self, log: Log) -> None:
        await publish(log, event(1, ts=100, dedupe="x", dedupe_until=200))
        assert (await publish(log, event(2, ts=200, dedupe="x", dedupe_until=300))).offsets == ((0, 1, True),)
        assert (await publish(log, event(3, ts=201, dedupe="x", dedupe_until=301))).offsets == ((0, 2, False),)
        assert (await publish(log, event(4, ts=301, dedupe="x", dedupe_until=401))).offsets == ((0, 2, True),)

    async def test_a_second_try_is_a_duplicate_even_if_its_expectation_no_longer_holds(self, log: Log) -> None:
        await publish(log, event(1, expect=0, dedupe="x", dedupe_until=5000))
        assert (await publish(log, event(1, expect=0, dedupe="x", dedupe_until=5000))).offsets == ((0, 1, True),)

    async def test_a_second_try_changes_nothing_for_its_neighbours_in_the_commit(self, log: Log) -> None:
        await log.commit(Batch([event(1, dedupe="x", dedupe_until=5000), Put("s", "k", b"old")]))
        new_topic, again, written, refused, removed, behind = await asyncio.gather(
            log.commit(Batch([event(2, topic="new", dedupe="n", dedupe_until=5000)])),
            log.commit(Batch([event(3, dedupe="y", dedupe_until=5000), event(4, dedupe="x", dedupe_until=5000)])),
            log.commit(Batch([Put("s", "k", b"new"), Put("s", "other", b"1", expect=ABSENT)])),
            log.commit(Batch([event(5, dedupe="z", dedupe_until=5000), Guard("s", "k", 1 << 40)])),
            log.commit(Batch([Remove("t", 0, below=2)])),
            log.commit(Batch([event(6, expect=2, dedupe="z", dedupe_until=5000)])),
            return_exceptions=True,
        )
        assert isinstance(refused, Refused)
        assert [new_topic.offsets, again.offsets, behind.offsets] == [  # type: ignore[union-attr]
            ((0, 1, False),),
            ((0, 2, False), (0, 1, True)),
            ((0, 3, False),),
        ]
        assert isinstance(removed, Receipt)
        assert (await offsets(log), await offsets(log, "new")) == ([2, 3], [1])
        record = await log.get("s", "k")
        assert record is not None
        assert (record.value, record.version) == (b"new", written.versions[0])  # type: ignore[union-attr]
        assert [(mark.dedupe, mark.offset) async for mark in log.marks()] == [("n", 1), ("x", 1), ("y", 2), ("z", 3)]

    async def test_a_second_try_may_be_refused_for_what_else_is_in_its_batch(self, log: Log) -> None:
        await publish(log, event(1, dedupe="x", dedupe_until=5000))
        both = Batch([event(2, dedupe="x", dedupe_until=5000), event(3, expect=1)])
        assert (await log.commit(both)).offsets == ((0, 1, True), (0, 2, False))
        with pytest.raises(Refused) as refusal:
            await log.commit(both)
        assert refusal.value.actual == 2
        assert await offsets(log) == [1, 2]

    async def test_marks_survive_reopening_and_are_forgotten_when_due(self, make_engine: MakeEngine) -> None:
        log = Log(make_engine())
        await log.open()
        await publish(
            log, event(1, dedupe="x", dedupe_until=2000), *(event(n, dedupe=f"y{n}", dedupe_until=n) for n in range(9))
        )
        await log.close()
        log = Log(make_engine())
        await log.open()
        assert (await publish(log, event(2, dedupe="x", dedupe_until=2000))).offsets == ((0, 1, True),)
        assert await log.forget_dedupe(9) == 9
        assert [mark async for mark in log.marks()] == [Mark("t", "x", 0, 1, 2000)]
        assert await log.forget_dedupe(2001) == 1
        assert (await publish(log, event(2, dedupe="x", dedupe_until=2000))).offsets == ((0, 11, False),)
        await log.close()


class _Records:
    async def test_versions_grow_and_are_never_given_twice(self, log: Log) -> None:
        seen: list[int] = []
        for _ in range(3):
            seen += (await log.commit(Batch([Put("s", "k", b"1"), Put("s", "k", b"2")]))).versions
            await log.commit(Batch([Delete("s", "k")]))
        assert seen == sorted(set(seen))
        assert len(seen) == 6
        assert seen[0] > ABSENT

    async def test_nor_after_the_log_was_opened_again(self, make_engine: MakeEngine) -> None:
        log = Log(make_engine())
        await log.open()
        (old,) = (await log.commit(Batch([Put("s", "k", b"1")]))).versions
        await log.commit(Batch([Delete("s", "k")]))
        await log.close()
        log = Log(make_engine())
        await log.open()
        (new,) = (await log.commit(Batch([Put("s", "k", b"1")]))).versions
        assert new > old
        await log.close()

    async def test_a_record_is_what_was_put_last(self, log: Log) -> None:
        receipt = await log.commit(Batch([Put("s", "k", b"\x00\xff"), Put("s", "k", b""), Put("u", "k", b"other")]))
        record = await log.get("s", "k")
        assert record is not None
        assert (record.value, record.version) == (b"", receipt.versions[1])
        assert await log.get("s", "absent") is None
        assert await log.get("absent", "k") is None
        assert await log.spaces() == ["s", "u"]

    async def test_put_and_delete_expect_a_version(self, log: Log) -> None:
        (version,) = (await log.commit(Batch([Put("s", "k", b"1", expect=ABSENT)]))).versions
        for stale in (Put("s", "k", b"2", ABSENT), Put("s", "k", b"2", version + 1), Delete("s", "k", ABSENT)):
            with pytest.raises(Refused) as refusal:
                await log.commit(Batch([stale]))
            assert refusal.value.actual == version
        (newer,) = (await log.commit(Batch([Put("s", "k", b"2", expect=version)]))).versions
        await log.commit(Batch([Delete("s", "k", expect=newer)]))
        await log.commit(Batch([Delete("s", "k", expect=ABSENT), Delete("s", "k")]))
        assert await log.get("s", "k") is None

    async def test_a_guard_holds_or_refuses_the_whole_batch(self, log: Log) -> None:
        (epoch,) = (await log.commit(Batch([Put("leases", "l", b"me")]))).versions
        await log.commit(Batch([Guard("leases", "l", epoch), event(1), Guard("leases", "other", ABSENT)]))
        await log.commit(Batch([Put("leases", "l", b"you", expect=epoch)]))
        with pytest.raises(Refused):
            await log.commit(Batch([event(2), Guard("leases", "l", epoch)]))
        assert await offsets(log) == [1]

    async def test_a_scan_goes_by_code_point_within_its_prefix(self, log: Log) -> None:
        names = [
            "a",
            "a/1",
            "a/10",
            "a/2",
            "a/\U0010ffff",
            "a/\U0010ffffz",
            "a0",
            "b",
            "Z",
            "é",
            "\uffff",
            "😀",
            "\ud7ff",
        ]
        await log.commit(Batch([*(Put("s", name, b"") for name in names), Put("t", "a/5", b"")]))
        assert await keys(log, "s") == sorted(names)
        assert await keys(log, "s", "a/") == ["a/1", "a/10", "a/2", "a/\U0010ffff", "a/\U0010ffffz"]
        assert await keys(log, "s", "a/", after="a/10") == ["a/2", "a/\U0010ffff", "a/\U0010ffffz"]
        assert await keys(log, "s", "a/", after="z") == []
        assert await keys(log, "s", "a/", after="A") == await keys(log, "s", "a/")
        assert await keys(log, "s", "\ud7ff") == ["\ud7ff"]
        assert await keys(log, "s", "\U0010ffff") == []
        assert await keys(log, "none") == []

    async def test_a_long_scan_gives_everything_once(self, log: Log) -> None:
        names = [f"{n:06}" for n in range(2000)]
        await log.commit(Batch([Put("s", name, name.encode()) for name in names]))
        assert await keys(log, "s") == names
        await log.commit(Batch([Delete("s", name) for name in names[::2]]))
        assert await keys(log, "s") == names[1::2]


class _Reopening:
    async def test_everything_is_there_again(self, make_engine: MakeEngine) -> None:
        log = Log(make_engine())
        await log.open()
        await publish(log, event(1, key="k", headers=b"{}"), event(2, topic="u", partition=3))
        await log.commit(Batch([Put("s", "k", b"v"), Remove("t", 0, below=1)]))
        before = [
            await log.read("t", 0, 1, 9),
            await log.read("u", 3, 1, 9),
            await log.bounds("t"),
            await log.get("s", "k"),
        ]
        await log.close()
        await log.close()
        log = Log(make_engine())
        await log.open()
        after = [
            await log.read("t", 0, 1, 9),
            await log.read("u", 3, 1, 9),
            await log.bounds("t"),
            await log.get("s", "k"),
        ]
        assert after == before
        await log.close()


class _Restore:
    async def test_offsets_versions_holes_tails_and_marks_are_kept(self, log: Log) -> None:
        first = StoredEvent("t", 2, 5, "a", 100, b"1", "k", b"{}")
        second = StoredEvent("t", 2, 9, "b", 50, b"2")
        await log.engine.restore(
            [
                first,
                second,
                KeptTail("t", 2, 12),
                KeptTail("t", 4, 3),
                KeptRecord("s", "k", b"v", 777),
                Mark("t", "x", 2, 9, 500),
            ]
        )
        assert await log.read("t", 2, 1, 10) == [first, second]
        assert await log.bounds("t") == [Bounds(2, 5, 12, 2, 2 + 3 + 2), Bounds(4, 4, 3, 0, 0)]
        assert await log.offset_at("t", 2, 60) == 5
        record = await log.get("s", "k")
        assert record is not None
        assert record.version == 777
        receipt = await log.commit(
            Batch([event(1, partition=2), event(2, partition=4), event(3, ts=1, dedupe="x"), Put("s", "k", b"w", 777)])
        )
        assert receipt.offsets == ((2, 13, False), (4, 4, False), (2, 9, True))
        assert receipt.versions[0] > 777

    async def test_offsets_that_do_not_ascend_are_refused(self, log: Log) -> None:
        await log.engine.restore([StoredEvent("t", 0, 5, "a", 1, b"1")])
        with pytest.raises(Refused):
            await log.engine.restore([StoredEvent("t", 0, 5, "b", 1, b"1")])
        assert [e.id for e in await log.read("t", 0, 1, 9)] == ["a"]
        assert (await publish(log, event(1))).offsets == ((0, 6, False),)


class EngineContract(_Events, _Columns, _Removal, _Time, _Expectations, _Dedupe, _Records, _Reopening, _Restore):
    """Every test of the contract. A subclass, or a conftest, gives the fixture `make_engine`."""

    @pytest.fixture
    async def log(self, make_engine: MakeEngine) -> AsyncIterator[Log]:
        log = Log(make_engine())
        await log.open()
        yield log
        await log.close()

    async def test_it_says_what_an_acknowledgement_means(self, log: Log) -> None:
        assert (await log.engine.durability()).statement


__all__ = ["EngineContract", "MakeEngine"]
