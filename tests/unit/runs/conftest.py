"""A log of its own for each test, and time that stands still unless it is moved."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from mainspring.log import Log
from mainspring.loop import VirtualClock
from tests.support.runs import memory_log


@pytest.fixture
async def log() -> AsyncIterator[Log]:
    opened = await memory_log()
    yield opened
    await opened.close()


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(wall_ms=1_000_000_000)
