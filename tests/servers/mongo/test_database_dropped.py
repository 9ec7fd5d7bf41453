"""A database that is dropped while nodes use it, or before they start again: no node begins an empty log by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mainspring.errors import MainspringError
from mainspring.log import Append, Batch, EngineSetup, LogMissing, Receipt
from mainspring.log.engines.history import OtherHistory
from mainspring.log.engines.mongo import FACTORY, MongoEngine
from tests.support.fixtures.nats import until


async def publish(engine: MongoEngine, name: str) -> None:
    (result,) = await engine.commit([Batch([Append("t", 0, name, 1, b"1")])])
    assert isinstance(result, Receipt)


def made(address: str, folder: Path) -> MongoEngine:
    engine = FACTORY.open(address, EngineSetup(folder))
    assert isinstance(engine, MongoEngine)
    return engine


async def test_a_running_node_stops_and_leaves_nothing_behind(address: str, database: Any, tmp_path: Path) -> None:
    engine = made(address, tmp_path)
    await engine.open()
    failures: list[MainspringError] = []
    engine.on_failure(failures.append)
    try:
        await publish(engine, "e0")
        await publish(engine, "e1")
        database.client.drop_database(database.name)
        with pytest.raises(OtherHistory, match="gone"):
            await publish(engine, "e2")
        await until(lambda: bool(failures))
    finally:
        await engine.close()
    assert list(database.commits.find()) == []
    assert (tmp_path / f"mongodb-{database.name}.sqlite3.replaced-1").exists()


async def test_a_node_that_starts_again_makes_no_empty_log(address: str, database: Any, tmp_path: Path) -> None:
    engine = made(address, tmp_path)
    await engine.open()
    await publish(engine, "e0")
    await engine.close()
    database.client.drop_database(database.name)
    again = made(address, tmp_path)
    with pytest.raises(LogMissing, match="was part of one") as refused:
        await again.open()
    assert "--begin-anew" in refused.value.remedy
    with pytest.raises(LogMissing):
        await FACTORY.init(address, EngineSetup(tmp_path))
    assert (await FACTORY.inspect(address, EngineSetup(tmp_path))).gone
    assert await FACTORY.init(address, EngineSetup(tmp_path, begin_anew=True))
    await again.open()
    try:
        await publish(again, "e1")
        assert [event.id for event in await again.read("t", 0, 1, 9)] == ["e1"]
    finally:
        await again.close()
