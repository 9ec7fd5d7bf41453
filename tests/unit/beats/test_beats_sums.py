"""Adding: what several calls of one beat add to a number all counts, and the bytes are the same every time."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring import App
from mainspring.beats import Heartbeat
from mainspring.testing import simulate


def adding(**rules: Any) -> Heartbeat:
    hb = Heartbeat(**rules)
    hb.register("count", "/count", lambda signal, target, stage: stage.add("/n", int(signal[7:])), match="prefix")
    hb.register("fix", "/fix", lambda signal, target, stage: stage.write("/n", 100))
    hb.register("drop", "/drop", lambda signal, target, stage: stage.delete("/n"))
    hb.register("spell", "/spell", lambda signal, target, stage: stage.write("/n", "hundred"))
    return hb


def conflicts(hb: Heartbeat) -> list[tuple[str | None, tuple[str, ...]]]:
    return [(note.path, note.names) for note in hb.beat().diagnostics if note.code == "write_conflict"]


@given(st.lists(st.lists(st.integers(-(10**20), 10**20), unique=True, max_size=8), max_size=5))
def test_everything_that_is_added_counts_however_it_falls_into_beats(beats: list[list[int]]) -> None:
    hb = adding()
    for amounts in beats:
        for amount in amounts:
            hb.signal(f"/count/{amount}")
        assert conflicts(hb) == []
    assert (hb.read("/n") or 0) == sum(sum(amounts) for amounts in beats)
    assert hb.replay().identical


@pytest.mark.parametrize(
    ("signals", "value"),
    [
        (["/count/1", "/fix", "/count/2"], 102),
        (["/fix", "/count/1"], 101),
        (["/count/1", "/drop"], None),
        (["/drop", "/count/3"], 3),
        (["/spell", "/count/3"], 3),
    ],
)
def test_what_is_written_in_the_same_beat_wins_over_what_came_before_and_is_a_conflict(
    signals: list[str], value: int | None
) -> None:
    hb = adding()
    for signal in signals:
        hb.signal(signal)
    (conflict,) = conflicts(hb)
    assert conflict[0] == "/n"
    assert "count" in conflict[1]
    assert hb.read("/n") == value


@pytest.mark.parametrize(("signals", "value"), [(["/count/1", "/fix"], 1), (["/fix", "/count/1"], 100)])
def test_strict_rules_refuse_the_later_of_a_sum_and_a_write(signals: list[str], value: int) -> None:
    hb = adding(strict=True)
    for signal in ["/count/0", *signals] if signals[0] != "/fix" else signals:
        hb.signal(signal)
    assert len(conflicts(hb)) == 1
    assert hb.read("/n") == value


def test_one_call_may_write_and_add() -> None:
    hb = Heartbeat()

    def both(signal: str | None, target: str | None, stage: Any) -> None:
        stage.write("/n", 5)
        stage.add("/n", 1)
        stage.add("/n", 1)
        assert stage.own("/n") == 5

    hb.register("both", "/both", both)
    hb.signal("/both")
    assert (conflicts(hb), hb.read("/n")) == ([], 7)


@pytest.mark.parametrize(("held", "amount"), [("text", 1), (1.5, 1), (True, 1), (1, 1.5), (1, True), (1, "1")])
def test_only_whole_numbers_are_added_and_added_to(held: Any, amount: Any) -> None:
    hb = Heartbeat()
    hb.register("set", "/set", lambda signal, target, stage: stage.write("/n", held))
    hb.register("count", "/count", lambda signal, target, stage: stage.add("/n", amount))
    for signal in ("/set", "/count"):
        hb.signal(signal)
        report = hb.beat()
    assert [entry.result for entry in report.agenda] == ["failed"]
    assert hb.read("/n") == held


async def test_events_that_come_at_once_are_all_counted_over_a_crash() -> None:
    app = App("shop")
    app.beats_from("orders")

    @app.enzyme("/topics/orders", match="prefix")
    def count(signal: str, target: str | None, stage: Any) -> None:
        stage.add("/orders", 1)

    async with simulate(app) as world:
        for crash in (False, True, False):
            world.node.heartbeat.pause()
            for n in range(10):
                await world.publish("orders", n)
            if crash:
                await world.crash_and_restart()
            world.node.heartbeat.resume()
            await world.advance("1s")
        assert world.read("/orders") == 30
