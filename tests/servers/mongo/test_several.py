"""Several engines on one database, as several nodes have them: one order, one winner, and the same news for all."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from pymongo.errors import AutoReconnect

from mainspring.log import (
    ABSENT,
    Append,
    Batch,
    Change,
    Delete,
    Guard,
    Put,
    Receipt,
    Refused,
    Remove,
)
from mainspring.log.engines.mongo import MongoEngine
from mainspring.loop import VirtualClock
from tests.support.fixtures.mongo import OpenEngine


def event(name: str, topic: str = "t", partition: int = 0, **more: Any) -> Append:
    return Append(topic, partition, name, 1, b"1", **more)


async def publish(engine: MongoEngine, *events: Append) -> Receipt:
    (result,) = await engine.commit([Batch(list(events))])
    assert isinstance(result, Receipt), result
    return result


async def put(engine: MongoEngine, key: str, value: bytes, expect: int = -1) -> int | Refused:
    (result,) = await engine.commit([Batch([Put("s", key, value, expect)])])
    if isinstance(result, Receipt):
        return result.versions[0]
    assert isinstance(result, Refused), result
    return result


async def ids(engine: MongoEngine, topic: str = "t", partition: int = 0) -> list[str]:
    return [found.id for found in await engine.read(topic, partition, 1, 10_000)]


async def until(condition: Any, what: str) -> None:
    for _ in range(3000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"never: {what}")


class TestOneOrder:
    async def test_all_may_start_at_once_on_an_empty_database(self, open_engine: OpenEngine) -> None:
        engines = await asyncio.gather(*(open_engine() for _ in range(4)))
        await asyncio.gather(*(publish(engine, event(str(n))) for n, engine in enumerate(engines)))
        assert sorted(await ids(await open_engine())) == ["0", "1", "2", "3"]

    async def test_offsets_of_all_engines_are_one_row_of_numbers(self, open_engine: OpenEngine) -> None:
        engines = [await open_engine() for _ in range(3)]
        given: list[int] = []

        async def publisher(engine: MongoEngine, name: str) -> None:
            for n in range(12):
                receipt = await publish(engine, event(f"{name}-{n}"), event(f"{name}-{n}+"))
                first, second = (offset for _, offset, _ in receipt.offsets)
                assert second == first + 1
                given.extend((first, second))

        await asyncio.gather(*(publisher(engine, str(n)) for n, engine in enumerate(engines)))
        assert sorted(given) == list(range(1, 73))
        late = await open_engine()
        order = await ids(late)
        assert sorted(order) == sorted(f"{e}-{n}{x}" for e in range(3) for n in range(12) for x in ("", "+"))
        for name in "012":
            assert [i for i in order if i.startswith(f"{name}-") and i[-1] != "+"] == [f"{name}-{n}" for n in range(12)]
        assert sum(engine.losses for engine in engines) > 0  # they did get into each other's way

    async def test_everybody_hears_everything_in_the_same_order(self, open_engine: OpenEngine) -> None:
        engines = [await open_engine() for _ in range(3)]
        heard: list[list[tuple[Any, ...]]] = [[] for _ in engines]
        own: list[int] = [0, 0, 0]

        def listen(n: int) -> None:
            def seen(change: Change) -> None:
                heard[n].append((change.appended, change.records, change.removed))
                own[n] += change.own

            engines[n].watch(seen)

        for n in range(3):
            listen(n)
        await asyncio.gather(
            *(
                engine.commit([Batch([event(f"{n}"), Put("s", f"{n}{k}", b"v")]), Batch([Delete("s", f"{n}{k}")])])
                for n, engine in enumerate(engines)
                for k in range(4)
            )
        )
        await until(lambda: all(len(news) == 24 for news in heard), "all news with everybody")
        assert heard[0] == heard[1] == heard[2]
        assert own == [8, 8, 8]
        offsets = [appended[0].first for appended, _, _ in heard[0] if appended]
        assert offsets == list(range(1, 13))

    async def test_an_own_change_is_heard_before_the_commit_returns_and_can_be_read(
        self, open_engine: OpenEngine
    ) -> None:
        engine, other = await open_engine(), await open_engine()
        heard: list[Change] = []
        engine.watch(heard.append)
        read: list[tuple[list[str], bytes]] = []

        async def look() -> None:
            record = await other.get("s", "k")
            assert record is not None
            read.append((await ids(other), record.value))

        other.watch(lambda _: tasks.append(asyncio.create_task(look())))
        tasks: list[asyncio.Task[None]] = []
        await engine.commit([Batch([event("a"), Put("s", "k", b"1")])])
        assert len(heard) == 1
        assert heard[0].own
        await until(lambda: tasks, "news at the other engine")
        await asyncio.gather(*tasks)
        assert read == [(["a"], b"1")]

    async def test_nobody_starves(self, open_engine: OpenEngine) -> None:
        engines = [await open_engine() for _ in range(4)]
        done = [0, 0, 0, 0]

        async def publisher(n: int) -> None:
            while sum(done) < 80:
                await publish(engines[n], event(f"{n}"))
                done[n] += 1

        await asyncio.gather(*(publisher(n) for n in range(4)))
        assert min(done) >= 6, done


class TestExpectations:
    async def test_one_of_many_wins_a_compare_and_set(self, open_engine: OpenEngine) -> None:
        engines = [await open_engine() for _ in range(3)]
        results = await asyncio.gather(*(put(engine, "k", b"%d" % n, ABSENT) for n, engine in enumerate(engines)))
        winners = [result for result in results if isinstance(result, int)]
        assert len(winners) == 1
        losers = [result for result in results if isinstance(result, Refused)]
        assert [loser.actual for loser in losers] == winners * 2

    async def test_counting_together_loses_nothing(self, open_engine: OpenEngine) -> None:
        engines = [await open_engine() for _ in range(3)]
        await put(engines[0], "n", b"0")

        async def add(engine: MongoEngine) -> None:
            for _ in range(8):
                while True:
                    record = await engine.get("s", "n")
                    version, count = (record.version, int(record.value)) if record else (ABSENT, 0)
                    if isinstance(await put(engine, "n", b"%d" % (count + 1), version), int):
                        break

        await asyncio.gather(*(add(engine) for engine in engines))
        await engines[0].commit([Batch([Guard("s", "none", ABSENT)])])  # knows everything now
        record = await engines[0].get("s", "n")
        assert record is not None
        assert int(record.value) == 24

    async def test_a_refusal_is_never_of_yesterday(self, open_engine: OpenEngine) -> None:
        """What one engine committed is expected of another at once, before any news of it came there."""
        first, second = await open_engine("poll_ms=60000"), await open_engine("poll_ms=60000")
        for n in range(5):
            version = await put(first, "k", b"%d" % n)
            assert isinstance(version, int)
            (held,) = await second.commit([Batch([Guard("s", "k", version)])])
            assert isinstance(held, Receipt)
            await publish(first, event(f"a{n}"))
            (result,) = await second.commit([Batch([event(f"b{n}", expect=2 * n + 1)])])
            assert isinstance(result, Receipt)

    async def test_the_same_event_through_two_nodes_is_stored_once(self, open_engine: OpenEngine) -> None:
        engines = [await open_engine() for _ in range(3)]
        receipts = await asyncio.gather(
            *(publish(engine, event("x", partition=n, dedupe="d", dedupe_until=99)) for n, engine in enumerate(engines))
        )
        assert len({receipt.offsets[0][:2] for receipt in receipts}) == 1
        assert sorted(receipt.offsets[0][2] for receipt in receipts) == [False, True, True]

    async def test_versions_of_all_engines_only_grow(self, open_engine: OpenEngine) -> None:
        engines = [await open_engine() for _ in range(3)]
        given: list[int] = []
        for n in range(9):
            version = await put(engines[n % 3], f"k{n % 2}", b"v")
            assert isinstance(version, int)
            given.append(version)
            if n % 4 == 3:
                await engines[(n + 1) % 3].commit([Batch([Delete("s", "k1")])])
        assert given == sorted(set(given))


class TestReaders:
    async def test_no_reader_passes_an_offset_that_is_not_decided(self, open_engine: OpenEngine) -> None:
        """Readers on other nodes follow the end while many write: what they get never has a gap."""
        writers = [await open_engine() for _ in range(2)]
        reader = await open_engine()
        stop = False
        seen: list[int] = []

        async def follow() -> None:
            following = 1
            while not stop or following <= 60:
                for found in await reader.read("t", 0, following, 7):
                    assert found.offset == following
                    seen.append(found.offset)
                    following += 1
                await asyncio.sleep(0)

        async def write(engine: MongoEngine, name: str) -> None:
            for n in range(10):
                await publish(engine, *(event(f"{name}{n}{k}") for k in range(3)))

        following = asyncio.create_task(follow())
        await asyncio.gather(*(write(engine, str(n)) for n, engine in enumerate(writers)))
        stop = True
        await asyncio.wait_for(following, 60)
        assert seen == list(range(1, 61))

    async def test_a_reader_does_not_look_behind_the_end_it_knows(self, open_engine: OpenEngine, database: Any) -> None:
        """Another node is just putting events in place, the later one first."""
        engine = await open_engine()
        await publish(engine, event("a"))
        await engine.spaces()
        reader = await open_engine()
        half = {**database.events.find_one({}), "_id": "t:0:0000000000000003", "offset": 3, "id": "c"}
        database.events.insert_one(half)
        assert await ids(reader) == ["a"]
        assert (await reader.bounds("t"))[0].tail == 1
        assert await reader.offset_at("t", 0, 5) == 2

    async def test_what_memory_no_longer_holds_comes_from_the_server(self, open_engine: OpenEngine) -> None:
        engine = await open_engine(recent_bytes=3_000)
        payload = b'"' + b"x" * 500 + b'"'
        for n in range(1, 8):
            await publish(engine, Append("t", 0, str(n), n, payload, key="k"))
        assert [found.offset for found in await engine.read("t", 0, 1, 99)] == list(range(1, 8))
        assert [found.offset for found in await engine.read("t", 0, 7, 99)] == [7]
        assert [found.offset for found in await engine.read("t", 0, 2, 99, max_bytes=600)] == [2]
        assert [found.offset for found in await engine.outline("t", 0, 1, 3)] == [1, 2, 3]
        assert await engine.offset_at("t", 0, 3) == 3
        await engine.commit([Batch([Remove("t", 0, below=3, offsets=(4, 7))])])
        assert [found.id for found in await engine.read("t", 0, 1, 99)] == ["3", "5", "6"]
        (bounds,) = await engine.bounds("t")
        assert (bounds.head, bounds.tail, bounds.events, bounds.bytes) == (3, 7, 3, 3 * (len(payload) + 2))

    async def test_removals_of_one_engine_are_seen_by_the_others(self, open_engine: OpenEngine) -> None:
        first, second = await open_engine(), await open_engine()
        await publish(first, *(event(str(n)) for n in range(1, 8)))
        await second.commit([Batch([Remove("t", 0, below=3, offsets=(5,))])])
        await first.commit([Batch([event("8"), Remove("t", 0, offsets=(6, 8))])])
        for engine in (second, await open_engine()):
            await engine.commit([Batch([Guard("s", "none", ABSENT)])])
            assert await ids(engine) == ["3", "4", "7"]
            (bounds,) = await engine.bounds("t")
            assert (bounds.head, bounds.tail, bounds.events, bounds.bytes) == (3, 8, 3, 6)


class TestHousekeeping:
    async def test_old_entries_go_and_the_log_stays_whole(self, open_engine: OpenEngine, database: Any) -> None:
        clock = VirtualClock()
        engine = await open_engine(clock=clock)
        await engine.commit([Batch([event(str(n)), Put("s", str(n), b"v")]) for n in range(3)])
        await engine.commit([Batch([Delete("s", "1"), Remove("t", 0, offsets=(2,))])])
        await engine.spaces()
        await engine.tidying.round()
        clock.advance(600_000)
        await publish(engine, event("late"))
        await engine.tidying.round()
        assert [document["_id"] for document in database.commits.find({})] == ["0000000000000003"]
        assert database.records.count_documents({"deleted": True}) == 1
        assert database.events.count_documents({"removed": True}) == 1
        clock.advance(3_600_000)
        await engine.tidying.round()
        assert database.records.count_documents({"deleted": True}) == 0
        assert database.stones.count_documents({}) == 0
        assert database.events.count_documents({"removed": True}) == 0
        other = await open_engine()
        assert await ids(other) == ["0", "2", "late"]
        version = await put(other, "new", b"v")
        assert isinstance(version, int)
        assert version > 4


async def test_what_many_engines_do_is_what_one_would_have_done(open_engine: OpenEngine) -> None:
    """Random batches on three engines; their entries, replayed in the journal's order, give the same log."""
    dice = random.Random(7)
    engines = [await open_engine() for _ in range(3)]
    order: list[Change] = []
    engines[0].watch(order.append)

    def one(n: int) -> Batch:
        batch = Batch()
        for k in range(dice.randrange(1, 4)):
            choice = dice.random()
            if choice < 0.5:
                batch.append(event(f"{n}.{k}", dice.choice("tu"), dice.randrange(2)))
            elif choice < 0.8:
                batch.put("s", dice.choice("abc"), b"%d" % n)
            elif choice < 0.9:
                batch.delete("s", dice.choice("abc"))
            else:
                batch.remove(
                    dice.choice("tu"), dice.randrange(2), below=dice.randrange(6), offsets=(dice.randrange(9),)
                )
        return batch

    plans = [[[one(100 * e + 10 * n + b) for b in range(dice.randrange(1, 3))] for n in range(8)] for e in range(3)]

    async def run(engine: MongoEngine, commits: list[list[Batch]]) -> None:
        for batches in commits:
            for result in await engine.commit(batches):
                assert isinstance(result, Receipt), result

    await asyncio.gather(*(run(engine, plan) for engine, plan in zip(engines, plans, strict=True)))
    for engine in engines:
        await engine.commit([Batch([Guard("s", "none", ABSENT)])])  # knows everything now
    expected_records: dict[str, tuple[bytes, int]] = {}
    held: dict[tuple[str, int], set[int]] = {}
    for change in order:
        for appended in change.appended:
            held.setdefault((appended.topic, appended.partition), set()).update(
                range(appended.first, appended.last + 1)
            )
        for record in change.records:
            expected_records.pop(record.key, None)
            if record.version != ABSENT:
                expected_records[record.key] = (record.value, record.version)
        for removed in change.removed:
            gone = held.get((removed.topic, removed.partition), set())
            gone -= {offset for offset in gone if offset < removed.below or offset in removed.offsets}
    late = await open_engine()
    for engine in (*engines, late):
        found = {record.key: (record.value, record.version) async for record in engine.scan("s")}
        assert found == expected_records
        for (topic, partition), offsets in held.items():
            assert {e.offset for e in await engine.read(topic, partition, 1, 1000)} == offsets
            bounds = next(b for b in await engine.bounds(topic) if b.partition == partition)
            assert bounds.events == len(offsets)


async def values(engine: MongoEngine, space: str) -> list[bytes]:
    return [record.value async for record in engine.scan(space)]


async def test_a_scan_waits_only_for_what_changed_its_space(open_engine: OpenEngine) -> None:
    away = True

    def only_the_journal(step: str) -> None:
        if away and step != "journal":
            raise AutoReconnect("the rest does not arrive")

    writer = await open_engine("takeover_ms=600000", step=only_the_journal)
    reader = await open_engine("takeover_ms=600000")
    await put(writer, "k", b"1")
    await reader.commit([Batch([Guard("s", "none", ABSENT)])])  # it knows of that now
    async with asyncio.timeout(30):
        assert await values(reader, "quiet") == []
    changed = asyncio.create_task(values(reader, "s"))
    await until(lambda: reader._placing._moved, "a scan that waits")
    away = False
    assert await changed == [b"1"]
