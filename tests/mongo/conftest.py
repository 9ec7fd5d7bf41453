"""A database of its own for each test, engines on it, and a plain client that looks at what they leave there."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest
from pymongo import MongoClient

from mainspring.log.engines.mongo import MongoEngine
from servers.mongo_server import new_database

OpenEngine = Callable[..., Awaitable[MongoEngine]]


@pytest.fixture
def address() -> str:
    return new_database()


@pytest.fixture
def database(address: str) -> Iterator[Any]:
    """The engines' database, seen by a plain client."""
    client: Any = MongoClient(address)
    found = client.get_default_database()
    yield found
    client.drop_database(found.name)
    client.close()


@pytest.fixture
async def open_engine(address: str) -> AsyncIterator[OpenEngine]:
    """Opens one more engine on the test's database."""
    opened: list[MongoEngine] = []

    async def make(options: str = "", **more: Any) -> MongoEngine:
        joined = f"{address}{'&' if '?' in address else '?'}{options}" if options else address
        engine = MongoEngine(joined, **more)
        await engine.open()
        opened.append(engine)
        return engine

    yield make
    for engine in opened:
        await engine.close()
