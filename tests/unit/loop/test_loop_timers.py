"""Timers of the loop, bare, under virtual time: when they fire, in which order, and when they do not."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.loop import ClockError, DuplicateTimer, Loop, LoopLimit, LoopStalled, MonotonicClock, VirtualClock


def ignore(argument: object) -> None:
    """A turn that does nothing."""


def a_loop() -> tuple[Loop, VirtualClock]:
    clock = VirtualClock()
    return Loop(clock), clock


def test_a_timer_fires_at_its_deadline_exactly() -> None:
    loop, clock = a_loop()
    seen: list[int] = []
    loop.schedule(5000, lambda _: seen.append(clock.now_ms()), None)
    loop.advance(4999)
    assert seen == []
    loop.advance(1)
    assert seen == [5000]


def test_no_delay_means_the_next_opportunity_not_this_turn() -> None:
    loop, _ = a_loop()
    seen: list[str] = []

    def first(argument: object) -> None:
        loop.schedule(0, seen.append, "timer")
        loop.schedule(-7, seen.append, "late timer")
        seen.append("turn over")

    loop.post(first, None)
    loop.run_until_idle()
    assert seen == ["turn over", "timer", "late timer"], "a negative delay counts as 0, so registration decides"


def test_due_timers_join_the_user_lane_behind_what_waits_there_and_after_the_system_lane() -> None:
    loop, clock = a_loop()
    seen: list[str] = []
    loop.schedule(20, seen.append, "timer 20")
    loop.schedule(10, seen.append, "timer 10")
    loop.post(seen.append, "user")
    clock.advance(30)
    loop.post_system(seen.append, "system")
    loop.run_until_idle()
    assert seen == ["system", "user", "timer 10", "timer 20"]


@given(st.lists(st.integers(0, 50), min_size=1, max_size=60))
def test_any_set_of_timers_fires_by_deadline_then_registration_and_never_early(delays: list[int]) -> None:
    loop, clock = a_loop()
    seen: list[tuple[int, int]] = []

    def fire(number: int) -> None:
        assert clock.now_ms() == delays[number]
        seen.append((delays[number], number))

    for number, delay in enumerate(delays):
        loop.schedule(delay, fire, number)
    loop.advance(50)
    assert seen == sorted((delay, number) for number, delay in enumerate(delays))


def test_a_late_loop_fires_everything_in_deadline_order() -> None:
    loop, clock = a_loop()
    delays = list(range(500))
    random.Random(1).shuffle(delays)
    seen: list[int] = []
    for delay in delays:
        loop.schedule(delay, seen.append, delay)
    clock.advance(10_000)
    loop.run_until_idle()
    assert seen == sorted(delays)


def test_a_cancelled_timer_never_runs() -> None:
    loop, _ = a_loop()
    seen: list[str] = []
    kept, dropped = loop.schedule(10, seen.append, "kept"), loop.schedule(10, seen.append, "dropped")
    assert loop.cancel(dropped) is True
    assert loop.cancel(dropped) is False
    loop.advance(10)
    assert seen == ["kept"]
    assert loop.cancel(kept) is False
    assert loop.cancel("never was") is False


def test_a_timer_that_is_due_but_has_not_run_can_still_be_cancelled() -> None:
    """The answer that arrives in the same slice as the timeout wins."""
    loop, clock = a_loop()
    seen: list[str] = []
    timeout = loop.schedule(10, seen.append, "timeout")
    outcome: list[bool] = []
    clock.advance(10)
    loop.post(lambda _: outcome.append(loop.cancel(timeout)), None)
    loop.run_until_idle()
    assert (seen, outcome) == ([], [True])
    assert loop.counters().timers_pending == 0
    assert not loop.alive


def test_ids_can_be_given_and_are_unique_while_pending() -> None:
    """An id derived from a request's id."""
    loop, clock = a_loop()
    seen: list[str] = []
    assert loop.schedule(10, seen.append, "a", timer_id="timeout-1", kind="timeout") == "timeout-1"
    with pytest.raises(DuplicateTimer):
        loop.schedule(20, seen.append, "b", timer_id="timeout-1")
    clock.advance(10)
    refused: list[str] = []

    def while_due(argument: object) -> None:
        try:
            loop.schedule(20, seen.append, "b", timer_id="timeout-1")
        except DuplicateTimer as error:
            refused.append(error.code)

    loop.post(while_due, None)
    loop.run_until_idle()
    assert (seen, refused) == (["a"], ["duplicate_timer"])
    loop.schedule(20, seen.append, "b", timer_id="timeout-1")
    loop.advance(20)
    assert seen == ["a", "b"]


def test_a_fraction_of_a_millisecond_never_makes_a_timer_early() -> None:
    """The loop's unit is the millisecond, so what falls between is rounded up."""
    loop, clock = a_loop()
    clock.move_to_ns(10_900_000)
    seen: list[int] = []
    loop.schedule(5, lambda _: seen.append(clock.now_ns()), None)
    loop.schedule(0.2, lambda _: seen.append(clock.now_ns()), None)
    loop.advance(100)
    assert seen == [12_000_000, 16_000_000]
    assert all(at >= 10_900_000 + delay for at, delay in zip(seen, (200_000, 5_000_000), strict=True))


@pytest.mark.parametrize("delay", [float("nan"), float("inf"), float("-inf")])
def test_a_delay_that_is_no_number_is_refused(delay: float) -> None:
    loop, _ = a_loop()
    with pytest.raises(ClockError):
        loop.schedule(delay, ignore, None)
    with pytest.raises(ClockError):
        loop.advance(delay)
    assert not loop.alive


@pytest.mark.parametrize("delay", [1e303, 1.7e308, 10**309, 10**4000])
def test_a_delay_nobody_can_wait_for_is_a_delay_all_the_same(delay: float) -> None:
    loop, clock = a_loop()
    seen: list[str] = []
    loop.schedule(delay, seen.append, "for ever")
    loop.schedule(-delay, seen.append, "at once")
    loop.advance(10**12)
    assert seen == ["at once"]
    assert clock.now_ms() == 10**12


def test_an_instant_can_be_given_instead_of_a_delay() -> None:
    loop, clock = a_loop()
    clock.advance(100)
    seen: list[str] = []
    loop.schedule_at(150, seen.append, "future")
    loop.schedule_at(50, seen.append, "past")
    loop.run_until_idle()
    assert seen == ["past"]
    loop.advance(50)
    assert seen == ["past", "future"]


def test_setting_the_time_of_day_moves_no_timer() -> None:
    loop, clock = a_loop()
    seen: list[int] = []
    loop.schedule(1000, seen.append, 1)
    clock.shift_wall(10**9)
    loop.advance(999)
    assert seen == []
    clock.shift_wall(-(10**10))
    loop.advance(1)
    assert seen == [1]


def test_advancing_stops_at_every_deadline_on_the_way_also_at_new_ones() -> None:
    """No overshoot: a timer set by a timer counts from the instant it was set."""
    loop, clock = a_loop()
    seen: list[int] = []

    def again(left: int) -> None:
        seen.append(clock.now_ms())
        if left:
            loop.schedule(300, again, left - 1)

    loop.schedule(300, again, 5)
    loop.advance(1000)
    assert seen == [300, 600, 900]
    assert clock.now_ms() == 1000
    loop.advance(0)
    assert clock.now_ms() == 1000
    assert loop.run_until_quiescent() == 3
    assert seen == [300, 600, 900, 1200, 1500, 1800]
    assert clock.now_ms() == 1800, "time jumps to deadlines and no further"


def test_time_jumps_only_when_nothing_is_left_to_do() -> None:
    loop, clock = a_loop()
    seen: list[tuple[str, int]] = []

    def work(left: int) -> None:
        seen.append(("work", clock.now_ms()))
        if left:
            loop.post(work, left - 1)

    loop.schedule(10, lambda _: seen.append(("timer", clock.now_ms())), None)
    loop.post(work, 3000)
    loop.run_until_quiescent()
    assert seen == [*[("work", 0)] * 3001, ("timer", 10)]


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30), st.integers(0, 3)), max_size=12))
def test_chains_of_timers_happen_at_the_exact_sum_of_their_delays(chains: list[tuple[int, int, int]]) -> None:
    loop, clock = a_loop()
    wrong: list[tuple[int, int]] = []

    def step(state: tuple[int, int, int]) -> None:
        due, delay, left = state
        if clock.now_ms() != due:
            wrong.append((clock.now_ms(), due))
        if left:
            loop.schedule(delay, step, (due + delay, delay, left - 1))

    for start, delay, left in chains:
        loop.schedule(start, step, (start, delay, left))
    loop.run_until_quiescent()
    assert wrong == []
    assert clock.now_ms() == max((start + delay * left for start, delay, left in chains), default=0)


def test_a_timer_that_sets_itself_for_ever_runs_into_the_limit() -> None:
    loop, _ = a_loop()

    def again(argument: object) -> None:
        loop.schedule(1000, again, argument)

    loop.post(again, None)
    with pytest.raises(LoopLimit, match="limit of 100 turns"):
        loop.run_until_quiescent(limit=100)


def test_only_a_virtual_clock_can_be_advanced() -> None:
    with pytest.raises(ClockError, match="only a virtual clock"):
        Loop(MonotonicClock()).advance(1)


def test_a_held_loop_with_nothing_to_come_says_so_instead_of_hanging() -> None:
    loop, _ = a_loop()
    with loop.hold("reply of order-7"), pytest.raises(LoopStalled, match="reply of order-7"):
        loop.run_until_quiescent()
    assert loop.run_until_quiescent() == 0


def test_periodic_health_ticks_and_retries_are_timers_that_set_themselves_again() -> None:
    """Health ticks need not keep a program alive that has finished."""
    loop, clock = a_loop()
    health: list[int] = []
    tries: list[int] = []

    def tick(argument: object) -> None:
        health.append(clock.now_ms())
        loop.schedule(1000, tick, None, ref=False)

    def retry(delay_ms: int) -> None:
        tries.append(clock.now_ms())
        if len(tries) < 4:
            loop.schedule(delay_ms, retry, delay_ms * 2, kind="retry")

    loop.schedule(1000, tick, None, ref=False)
    loop.post(retry, 500)
    loop.run_until_quiescent()
    assert tries == [0, 500, 1500, 3500]
    assert health == [1000, 2000, 3000]
