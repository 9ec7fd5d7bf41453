"""Several nodes on one log: one order, everything reported once, and a node that only follows reads no events."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mainspring.log import ABSENT, Append, Batch, Change, Delete, MissedTooMuch, Put, Receipt, Refused, Remove
from mainspring.log.engines.postgres import PostgresEngine
from tests.servers.postgres.conftest import OpenEngine
from tests.support.client_node import eventually


def event(name: str, topic: str = "t", **more: Any) -> Append:
    return Append(topic, 0, name, 1, b"1", **more)


class Watcher:
    """Keeps what an engine reports."""

    def __init__(self, engine: PostgresEngine) -> None:
        self.changes: list[Change] = []
        self._news = asyncio.Event()
        engine.watch(self._seen)

    def _seen(self, change: Change) -> None:
        self.changes.append(change)
        self._news.set()

    async def until(self, key: str) -> list[Change]:
        """All changes up to the one that writes this record."""
        while not any(record.key == key for change in self.changes for record in change.records):
            self._news.clear()
            await self._news.wait()
        return self.changes


async def test_all_nodes_see_the_same_commits_in_the_same_order(open_engine: OpenEngine) -> None:
    engines = [await open_engine() for _ in range(3)]
    watchers = [Watcher(engine) for engine in engines]

    async def write(engine: PostgresEngine, name: str) -> None:
        for n in range(20):
            (result,) = await engine.commit([Batch([event(f"{name}{n}"), Put("s", f"{name}{n}", b"v")])])
            assert isinstance(result, Receipt)

    await asyncio.gather(*(write(engine, name) for engine, name in zip(engines, "abc", strict=True)))
    await engines[0].commit([Batch([Put("s", "end", b"")])])
    told = [[(c.appended, c.records) for c in await watcher.until("end")] for watcher in watchers]
    assert told[0] == told[1] == told[2]
    assert [appended.first for appendeds, _ in told[0] for appended in appendeds] == list(range(1, 61))
    assert [sum(change.own for change in watcher.changes) for watcher in watchers] == [21, 20, 20]
    found = await engines[2].read("t", 0, 1, 100)
    assert [e.id for e in found] == [record.key for _, records in told[0] for record in records if record.key != "end"]


async def test_versions_guard_against_other_nodes(open_engine: OpenEngine) -> None:
    one, two = await open_engine(), await open_engine()
    (first,) = await one.commit([Batch([Put("s", "k", b"1", ABSENT)])])
    assert isinstance(first, Receipt)
    (second,) = await two.commit([Batch([Put("s", "k", b"2", first.versions[0])])])
    assert isinstance(second, Receipt)
    (stale,) = await one.commit([Batch([Put("s", "k", b"3", first.versions[0])])])
    assert isinstance(stale, Refused)
    assert stale.actual == second.versions[0]
    await two.commit([Batch([Delete("s", "k")])])
    (fresh,) = await one.commit([Batch([Put("s", "k", b"4", ABSENT), event("e", expect=0)])])
    assert isinstance(fresh, Receipt)
    (behind,) = await two.commit([Batch([event("f", expect=0)])])
    assert isinstance(behind, Refused)


async def test_a_follower_learns_of_a_large_commit_from_one_small_row(
    address: str, open_engine: OpenEngine, sql: Any
) -> None:
    writer, follower = await open_engine(), await open_engine()
    watcher = Watcher(follower)
    await writer.commit([Batch([Append("t", n % 4, f"{n}", 1, b"x" * 500)]) for n in range(2_000)])
    await writer.commit([Batch([Put("s", "end", b"")])])
    changes = await watcher.until("end")
    assert [(a.partition, a.first, a.last) for a in changes[0].appended] == [(n, 1, 500) for n in range(4)]
    schema = address.rpartition("=")[2]
    assert await sql.fetchval(f"SELECT max(length(body)) FROM {schema}.commits") < 200
    assert await sql.fetchval(f"SELECT count(*) FROM {schema}.chunks") == 4


async def test_what_another_node_removed_is_gone_here_too(open_engine: OpenEngine) -> None:
    one, two = await open_engine(), await open_engine()
    watcher = Watcher(one)
    await one.commit([Batch([event(f"{n}") for n in range(1, 6)])])
    assert len(await one.read("t", 0, 1, 9)) == 5
    await two.commit([Batch([Remove("t", 0, below=3, offsets=(4,)), Put("s", "end", b"")])])
    await watcher.until("end")
    assert [e.offset for e in await one.read("t", 0, 1, 9)] == [3, 5]
    assert [e.offset for e in await two.read("t", 0, 1, 9)] == [3, 5]


async def test_old_news_go_and_a_node_that_missed_them_says_so(address: str, open_engine: OpenEngine, sql: Any) -> None:
    one = await open_engine("keep_ms=1")
    schema = address.rpartition("=")[2]
    for n in range(5):
        await one.commit([Batch([event(f"{n}")])])

    async def tidied() -> bool:
        return await sql.fetchval(f"SELECT count(*) FROM {schema}.commits") == 1  # type: ignore[no-any-return]

    await eventually(tidied)
    await one.commit([Batch([event("next")])])
    late = await open_engine()
    assert len(await late.read("t", 0, 1, 9)) == 6
    await sql.execute(f"UPDATE {schema}.commits SET number = number + 5")  # as if it had been away for a long time
    failed: list[BaseException] = []
    late.on_failure(failed.append)
    with pytest.raises(MissedTooMuch):
        await late.commit([Batch([event("late")])])
    assert isinstance(failed[0], MissedTooMuch)
