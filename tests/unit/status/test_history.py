"""The node's history: regular rows in four ranges, bounded, kept over restarts."""

from __future__ import annotations

from typing import get_args

import pytest

from mainspring.client import HistoryRange
from mainspring.log import Batch, Log, MemoryEngine
from mainspring.status import FIGURES, HISTORY, RANGES, HistoryRow, NodeHistory, group_key
from mainspring.status.history import CHUNK, MOST_NAMED

STEP = 10_000
WEEK = 7 * 86_400_000
GROUP = group_key("orders", "billing")


def row(t: int, published: float = 0, lag: int = 0, **more: object) -> HistoryRow:
    figures = {"published": published, "lag": lag}
    groups = {GROUP: (lag, published / 2, lag * 1000)} if lag else {}
    return HistoryRow(t, tuple(figures.get(name, 0) for name in FIGURES), {"orders": (published, 0.0)}, groups)


@pytest.fixture
async def log() -> Log:
    log = Log(MemoryEngine())
    await log.open()
    return log


async def keys(log: Log) -> list[str]:
    return [record.key async for record in log.scan(HISTORY)]


def test_the_ranges_are_the_same_for_the_node_and_its_clients() -> None:
    assert RANGES == get_args(HistoryRange) == ("15m", "6h", "24h", "7d")


async def test_a_longer_range_has_the_mean_of_rates_and_the_highest_of_the_rest(log: Log) -> None:
    history = NodeHistory(log, "node", STEP)
    for n in range(1, 13):
        history.add(row(n * STEP, published=n, lag=n % 7))
    assert [each.t for each in history.rows("15m", 120_000)] == [n * STEP for n in range(1, 13)]
    first, second = history.rows("6h", 120_000)
    assert (first.t, second.t) == (60_000, 120_000)
    assert first.figures[FIGURES.index("published")] == pytest.approx(3.5)
    assert first.figures[FIGURES.index("lag")] == 6
    assert first.topics["orders"] == (pytest.approx(3.5), 0)
    assert first.groups[GROUP] == (6, pytest.approx(1.75), 6_000)
    (unfinished,) = history.rows("7d", 120_000)  # a step that is not over is told, too
    assert unfinished.t == 120_000
    assert unfinished.figures[FIGURES.index("published")] == pytest.approx(6.5)


async def test_a_week_stays_in_bounded_space_and_survives_a_restart(log: Log) -> None:
    minute = 60_000
    history = NodeHistory(log, "node", minute)
    for n in range(1, 8 * 1_440):
        history.add(row(n * minute, published=1, lag=1))
        if n % 30 == 0:
            await history.save()
    await history.save()
    now = (8 * 1_440 - 1) * minute
    counts = {each: len(history.rows(each, now)) for each in RANGES}
    assert counts == {"15m": 15, "6h": 360, "24h": 288, "7d": 336} | {"24h": counts["24h"], "7d": counts["7d"]}
    assert counts["24h"] in (288, 289)
    assert counts["7d"] in (336, 337)
    most = sum(each.rows // CHUNK + 2 for each in history.ranges)
    assert len(await keys(log)) <= most
    again = NodeHistory(log, "node", minute)
    await again.load(now)
    for each in RANGES:
        assert again.rows(each, now) == history.rows(each, now)
    again.add(row(now + minute, published=5))
    assert again.rows("6h", now + minute)[-1].figures[0] == 5


async def test_what_is_too_old_is_removed_also_of_nodes_that_never_came_back(log: Log) -> None:
    for name in ("gone", "here"):
        history = NodeHistory(log, name, STEP)
        history.add(row(STEP))
        history.add(row(60_000))
        await history.save()
    junk = Batch()
    junk.put(HISTORY, "here/15m/001", b"not a row")
    await log.commit(junk)
    assert len(await keys(log)) > 2
    late = NodeHistory(log, "here", STEP)
    await late.load(WEEK * 2)
    assert await keys(log) == []
    assert late.rows("7d", WEEK * 2) == []


async def test_a_row_names_a_bounded_number_of_topics_and_groups(log: Log) -> None:
    history = NodeHistory(log, "node", STEP)
    for n in range(1, 7):
        many = {f"topic-{n}-{number}": (float(number), 0.0) for number in range(MOST_NAMED)}
        history.add(HistoryRow(n * STEP, (0.0,) * len(FIGURES), many))
    merged = history.rows("6h", 60_000)[-1]
    assert len(merged.topics) == MOST_NAMED
    assert min(rate for rate, _ in merged.topics.values()) > 0


async def test_history_that_cannot_be_stored_is_stored_later(log: Log) -> None:
    history = NodeHistory(log, "node", STEP)
    history.add(row(STEP, published=3))
    await log.close()
    await history.save()
    other = Log(MemoryEngine())
    await other.open()
    moved = NodeHistory(other, "node", STEP)
    moved.add(row(STEP))
    await moved.save()
    assert await keys(other) == ["node/15m/000"]
