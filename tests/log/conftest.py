"""One suite, every engine: a test that takes `make_engine` runs on each engine that this file knows.

To add an engine, add an entry to ENGINES: a function from a directory of the test to a maker. A maker gives an engine,
not yet open; engines of one maker share what they stored, so that a test can close one and open the next.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from hashlib import sha256
from pathlib import Path

import pytest

from mainspring.log import Engine, Log, MemoryEngine, SqliteEngine, open_engine
from servers.mongo_server import new_database
from servers.nats_server import shared_server

MakeEngine = Callable[[], Engine]


def _memory(_: Path) -> MakeEngine:
    engine = MemoryEngine()  # what it stored lives as long as the object
    return lambda: engine


def _sqlite(place: Path) -> MakeEngine:
    return lambda: SqliteEngine(place / "log.sqlite3")


def _jetstream(place: Path) -> MakeEngine:
    log = sha256(str(place).encode()).hexdigest()[:24]
    return lambda: open_engine(shared_server().url(log), place)


def _mongo(_: Path) -> MakeEngine:
    address = new_database()
    return lambda: open_engine(address, "unused")


ENGINES: dict[str, Callable[[Path], MakeEngine]] = {
    "jetstream": _jetstream,
    "memory": _memory,
    "mongo": _mongo,
    "sqlite": _sqlite,
}


@pytest.fixture(params=sorted(ENGINES))
def make_engine(request: pytest.FixtureRequest, tmp_path: Path) -> MakeEngine:
    return ENGINES[request.param](tmp_path)


@pytest.fixture
async def log(make_engine: MakeEngine) -> AsyncIterator[Log]:
    log = Log(make_engine())
    await log.open()
    yield log
    await log.close()
