"""A server that comes back with less than it had acknowledged: no node goes on with a history of its own.

A loss of power is imitated by giving the server its older files back, which is what is left when nothing was synced; a
restored backup looks the same.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient

from mainspring.errors import MainspringError
from mainspring.log import Append, Batch, EngineSetup, LogUnavailable, Parting, Receipt, SqliteEngine, compare_logs
from mainspring.log.engines import history
from mainspring.log.engines.history import OtherHistory
from mainspring.log.engines.mongo import FACTORY, MongoEngine
from tests.support.fixtures.mongo import OpenEngine
from tests.support.fixtures.nats import until
from tests.support.mongo_server import MongoServer, own_server

OpenAt = Callable[[str], Awaitable[MongoEngine]]


@pytest.fixture
def server() -> Iterator[MongoServer]:
    with own_server() as server:
        yield server


@pytest.fixture
async def node(server: MongoServer, tmp_path: Path) -> AsyncIterator[OpenAt]:
    """Opens an engine as a node of that name would."""
    opened: list[MongoEngine] = []

    async def make(name: str) -> MongoEngine:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        engine = FACTORY.open(f"{server.url}/log?patience_ms=3000&poll_ms=20", EngineSetup(folder))
        assert isinstance(engine, MongoEngine)
        await engine.open()
        opened.append(engine)
        return engine

    yield make
    for engine in opened:
        await engine.close()


async def publish(engine: MongoEngine, *names: str) -> None:
    for name in names:
        (result,) = await engine.commit([Batch([Append("t", 0, name, 1, b"1", dedupe=name, dedupe_until=1 << 50)])])
        assert isinstance(result, Receipt), result


async def ids(engine: MongoEngine) -> list[str]:
    return [event.id for event in await engine.read("t", 0, 1, 100)]


def stop_and_copy(server: MongoServer, to: Path) -> None:
    server.kill()
    shutil.copytree(server.folder, to)
    server.start()


def set_back(server: MongoServer, older: Path) -> None:
    for place in server.folder.iterdir():
        shutil.rmtree(place) if place.is_dir() else place.unlink()
    shutil.copytree(older, server.folder, dirs_exist_ok=True)


def failures_of(engine: MongoEngine) -> list[MainspringError]:
    failures: list[MainspringError] = []
    engine.on_failure(failures.append)
    return failures


async def test_a_node_that_has_seen_what_the_server_lost_stops_and_what_it_saw_is_kept(
    server: MongoServer, node: OpenAt, tmp_path: Path
) -> None:
    """The journal is as long as the node has seen it by the time it looks, because another node wrote."""
    one = await node("a")
    await publish(one, "kept-0", "kept-1")
    await asyncio.to_thread(stop_and_copy, server, tmp_path / "older")
    await publish(one, "lost-0", "lost-1")
    failures = failures_of(one)
    server.kill()
    set_back(server, tmp_path / "older")
    port, server.port = server.port, MongoServer(tmp_path).port
    await asyncio.to_thread(server.start)  # where only a newcomer finds it
    two = await node("b")
    await publish(two, "new-0", "new-1", "new-2")
    await two.close()
    server.kill()
    server.port = port
    await asyncio.to_thread(server.start)
    await until(lambda: bool(failures))
    assert isinstance(failures[0], OtherHistory)
    assert "two histories" in failures[0].message
    assert "engine compare" in failures[0].remedy
    with pytest.raises(OtherHistory):
        await publish(one, "refused")
    await one.close()
    two = await node("b")
    assert await ids(two) == ["kept-0", "kept-1", "new-0", "new-1", "new-2"]
    (parting,) = await partings(tmp_path / "a" / "mongodb-log.sqlite3.replaced-1", two)
    assert [event.id for event in parting.only_left] == ["lost-0", "lost-1"]
    assert [event.id for event in parting.only_right] == ["new-0", "new-1", "new-2"]


async def partings(kept: Path, now: MongoEngine) -> list[Parting]:
    before = SqliteEngine(kept, read_only=True)
    await before.open()
    try:
        return [each async for each in compare_logs(before, now)]
    finally:
        await before.close()


async def test_nothing_is_sent_before_the_history_was_compared(
    server: MongoServer, node: OpenAt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A publisher that never pauses must not fill the gap with its own commits."""
    monkeypatch.setattr(history, "BELIEVE_MS", 500)
    one = await node("a")
    await publish(one, "kept")
    await asyncio.to_thread(stop_and_copy, server, tmp_path / "older")
    await publish(one, "lost-0", "lost-1")
    failures = failures_of(one)
    server.kill()
    set_back(server, tmp_path / "older")
    await asyncio.to_thread(server.start)
    stored: list[str] = []
    number = 0
    async with asyncio.timeout(60):
        while not failures:
            number += 1
            try:
                await publish(one, f"more-{number}")
                stored.append(f"more-{number}")
            except (LogUnavailable, OtherHistory):
                await asyncio.sleep(0.01)
    assert isinstance(failures[0], OtherHistory)
    assert stored == []
    await one.close()
    again = await node("a")
    assert await ids(again) == ["kept"]
    await publish(again, "new")


async def test_a_writer_of_another_history_is_found_by_its_next_entry(open_engine: OpenEngine, database: Any) -> None:
    """Whatever the cause: here an entry is put behind the last one that carries another digest."""
    one, two = await open_engine(), await open_engine()
    await publish(one, "e0")
    await until(lambda: two._log_state.position == one._log_state.position)
    failures = failures_of(one)
    (entry,) = database.commits.find()
    database.commits.insert_one({**entry, "_id": f"{2:016d}", "token": "foreign:7", "before": b"another-hist"})
    await until(lambda: bool(failures))
    assert isinstance(failures[0], OtherHistory)
    assert "foreign:7" in failures[0].message
    with pytest.raises(OtherHistory):
        await publish(two, "e1")


async def test_entries_of_a_version_without_digests_are_followed_on(
    open_engine: OpenEngine, address: str, database: Any
) -> None:
    one = await open_engine()
    await publish(one, "e0")
    await one.close()
    client: Any = MongoClient(address)
    client.get_default_database().commits.update_many({}, {"$unset": {"before": ""}})
    client.close()
    again, two = await open_engine(), await open_engine()
    await publish(again, "e1")
    await publish(two, "e2")
    await until(lambda: again._log_state.position == two._log_state.position)
    assert await ids(again) == await ids(two) == ["e0", "e1", "e2"]
