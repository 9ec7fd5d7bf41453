"""Clocks: the machine's only go forward, a virtual one only goes where it is told."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.loop import Clock, ClockError, MonotonicClock, VirtualClock


def test_both_clocks_fit_the_protocol() -> None:
    assert isinstance(MonotonicClock(), Clock)
    assert isinstance(VirtualClock(), Clock)


def test_the_monotonic_clock_never_goes_back_and_its_units_agree() -> None:
    clock = MonotonicClock()
    readings = [clock.now_ns() for _ in range(1000)]
    assert readings == sorted(readings)
    before, middle, after = clock.now_ns(), clock.now_ms(), clock.now_ns()
    assert before // 1_000_000 <= middle <= after // 1_000_000


def test_the_wall_clock_is_the_time_of_day() -> None:
    before = int(time.time() * 1000) - 1
    assert before <= MonotonicClock().wall_ms() <= int(time.time() * 1000) + 1


def test_a_virtual_clock_starts_where_it_is_told() -> None:
    assert (VirtualClock().now_ms(), VirtualClock().wall_ms()) == (0, 0)
    assert VirtualClock(start_ms=-5).now_ms() == 0
    assert VirtualClock(start_ms=7).wall_ms() == 7
    assert VirtualClock(start_ms=7.9, wall_ms=5000.9).wall_ms() == 5000
    assert VirtualClock(start_ms=7.9).now_ms() == 7


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_times_that_are_no_numbers_are_refused(bad: float) -> None:
    for attempt in (
        lambda: VirtualClock(bad),
        lambda: VirtualClock(0, bad),
        lambda: VirtualClock().advance(bad),
        lambda: VirtualClock().move_to(bad),
    ):
        with pytest.raises(ClockError):
            attempt()


def test_a_virtual_clock_stands_still_until_moved() -> None:
    clock = VirtualClock(100, 5000)
    assert [clock.now_ms() for _ in range(3)] == [100, 100, 100]
    clock.advance(50)
    assert (clock.now_ms(), clock.wall_ms(), clock.now_ns()) == (150, 5050, 150_000_000)
    clock.move_to(150)
    clock.move_to(1000)
    assert (clock.now_ms(), clock.wall_ms()) == (1000, 5900)


def test_a_virtual_clock_cannot_go_back() -> None:
    clock = VirtualClock(100)
    with pytest.raises(ClockError, match="cannot go back"):
        clock.move_to(99)
    with pytest.raises(ClockError, match="cannot go back"):
        clock.advance(-1)
    assert clock.now_ms() == 100


def test_setting_the_time_of_day_does_not_move_scheduling_time() -> None:
    clock = VirtualClock(100, 5000)
    clock.shift_wall(-4000)
    assert (clock.now_ms(), clock.wall_ms()) == (100, 1000)


def test_listeners_hear_of_moves_until_they_stop() -> None:
    clock = VirtualClock()
    heard: list[int] = []
    stop = clock.on_move(lambda: heard.append(clock.now_ms()))
    clock.advance(0)
    clock.advance(5)
    stop()
    stop()
    clock.advance(5)
    assert heard == [5]


@given(st.lists(st.integers(0, 10**15)), st.integers(0, 10**9))
def test_many_small_steps_are_exactly_one_big_one(steps_ns: list[int], start_ms: int) -> None:
    clock = VirtualClock(start_ms)
    for step in steps_ns:
        clock.move_to_ns(clock.now_ns() + step)
    assert clock.now_ns() == start_ms * 1_000_000 + sum(steps_ns)
    assert clock.now_ms() == clock.now_ns() // 1_000_000
    assert clock.wall_ms() == clock.now_ms()


def test_fractions_of_a_millisecond_add_up_without_drift() -> None:
    clock = VirtualClock()
    for _ in range(10_000):
        clock.advance(0.1)
    assert clock.now_ns() == 1000 * 1_000_000
