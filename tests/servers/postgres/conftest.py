"""A log of its own for each test, and engines on it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import asyncpg
import pytest

from mainspring.log.engines.postgres import PostgresEngine
from tests.support.postgres import new_log, shared_postgres

OpenEngine = Callable[..., Awaitable[PostgresEngine]]


@pytest.fixture
def address() -> str:
    return new_log()


@pytest.fixture
async def sql() -> AsyncIterator[Any]:
    """A plain connection to the engines' database."""
    connection = await asyncpg.connect(shared_postgres().url("postgres"))
    yield connection
    await connection.close()


@pytest.fixture
async def open_engine(address: str) -> AsyncIterator[OpenEngine]:
    """Opens one more engine on the test's log."""
    opened: list[PostgresEngine] = []

    async def make(options: str = "", *, at: str = address, **more: Any) -> PostgresEngine:
        engine = PostgresEngine(f"{at}&{options}" if options else at, **more)
        opened.append(engine)
        await engine.open()
        return engine

    yield make
    for engine in opened:
        await engine.close()
