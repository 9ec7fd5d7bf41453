"""A served node for every test that asks for one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mainspring.log import Engine, MemoryEngine
from tests.support.http_site import Site, serve


@pytest.fixture(params=["port", "mounted"])
async def site(request: pytest.FixtureRequest) -> AsyncIterator[Site]:
    """On the node's own port, and as an ASGI application below a path of another one."""
    async with serve(mounted=request.param == "mounted") as served:
        yield served


@pytest.fixture(params=["memory", "sqlite"])
async def each_engine(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Site]:
    """For what depends on how events are stored."""
    from mainspring.log import SqliteEngine

    engine: Engine = MemoryEngine() if request.param == "memory" else SqliteEngine(tmp_path / "log.db")
    async with serve(engine) as served:
        yield served
