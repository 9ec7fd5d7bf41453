"""What a loop tells about itself, and who blocked it."""

from __future__ import annotations

import functools
import logging

import pytest

from mainspring.loop import Loop, SlowTurn, VirtualClock, turn_name


class Cart:
    """Its methods are turns of these tests."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock

    def add(self, minutes: int) -> None:
        self.clock.advance(minutes * 60_000)

    def __call__(self, minutes: int) -> None:
        self.add(minutes)

    @classmethod
    def empty(cls, argument: object) -> None:
        """A turn without an object."""


class GiftCart(Cart):
    """Inherits its turn."""


def test_the_slow_turn_hook_names_who_was_slow_and_how_long() -> None:
    clock = VirtualClock()
    slow: list[SlowTurn] = []
    loop = Loop(clock, slow_turn_ms=50, on_slow_turn=slow.append)
    cart = GiftCart(clock)
    loop.post(lambda _: clock.advance(50), None)
    loop.post(cart.add, 1)
    loop.post(lambda _: None, None)
    loop.run_until_idle()
    assert [(report.duration_ms, report.limit_ms) for report in slow] == [(60_000, 50)]
    assert slow[0].name == f"{__name__}.GiftCart.add(int)"
    assert "60000.0 ms" in str(slow[0])
    assert loop.counters().slow_turns == 1


def test_a_slow_timer_is_named_by_its_own_function() -> None:
    clock = VirtualClock()
    slow: list[SlowTurn] = []
    loop = Loop(clock, slow_turn_ms=50, on_slow_turn=slow.append)
    loop.schedule(10, Cart(clock).add, 2)
    loop.advance(10)
    assert [report.name for report in slow] == [f"{__name__}.Cart.add(int)"]
    assert loop.counters().longest_turn == f"{__name__}.Cart.add(int)"


def test_a_slow_turn_that_also_fails_is_reported_both_ways() -> None:
    clock = VirtualClock()
    reports: list[object] = []
    loop = Loop(clock, slow_turn_ms=50, on_slow_turn=reports.append, on_error=reports.append)

    def bad(argument: object) -> None:
        clock.advance(100)
        raise ValueError

    loop.post(bad, None)
    loop.run_until_idle()
    assert [type(report).__name__ for report in reports] == ["SlowTurn", "FailedTurn"]


def test_every_slow_turn_is_reported_also_when_an_earlier_one_was_slower() -> None:
    clock = VirtualClock()
    slow: list[SlowTurn] = []
    loop = Loop(clock, slow_turn_ms=50, on_slow_turn=slow.append)
    for ms in (500, 60, 40, 51, 400):
        loop.post(clock.advance, ms)
    loop.run_until_idle()
    assert [report.duration_ms for report in slow] == [500, 60, 51, 400]
    assert loop.counters().longest_turn_ns == 500_000_000


def test_what_the_hook_itself_takes_is_nobodys_turn() -> None:
    clock = VirtualClock()
    slow: list[SlowTurn] = []

    def hook(report: SlowTurn) -> None:
        slow.append(report)
        clock.advance(10_000)

    loop = Loop(clock, slow_turn_ms=50, on_slow_turn=hook)
    loop.post(clock.advance, 60)
    loop.post(clock.advance, 1)
    loop.run_until_idle()
    assert [report.duration_ms for report in slow] == [60]


def test_without_a_hook_a_slow_turn_goes_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    clock = VirtualClock()
    loop = Loop(clock, slow_turn_ms=50)
    loop.post(Cart(clock).add, 1)
    with caplog.at_level(logging.WARNING, "mainspring.loop"):
        loop.run_until_idle()
    assert "Cart.add(int) took 60000.0 ms" in caplog.text


def test_slow_turns_can_be_ignored_while_the_longest_is_still_known(caplog: pytest.LogCaptureFixture) -> None:
    clock = VirtualClock()
    loop = Loop(clock, slow_turn_ms=None)
    loop.post(Cart(clock).add, 1)
    loop.run_until_idle()
    assert caplog.text == ""
    assert (loop.counters().slow_turns, loop.counters().longest_turn_ns) == (0, 60_000_000_000)


def test_counters_tell_depths_turns_slices_and_timers() -> None:
    clock = VirtualClock()
    loop = Loop(clock, max_turns_per_slice=10)
    for number in range(25):
        loop.post(lambda _: None, number)
    loop.post_system(lambda _: None, None)
    loop.complete(lambda _: None, None)
    loop.schedule(1000, lambda _: None, None)
    counters = loop.counters()
    assert (counters.user_depth, counters.system_depth, counters.completions_waiting) == (25, 1, 1)
    assert (counters.timers_pending, counters.turns, counters.slices) == (1, 0, 0)
    loop.run_until_idle()
    counters = loop.counters()
    assert (counters.user_depth, counters.system_depth, counters.completions_waiting) == (0, 0, 0)
    assert (counters.timers_pending, counters.turns, counters.slices) == (1, 27, 3)


def test_the_oldest_waiting_turn_is_dated_by_the_slice_that_saw_it_first() -> None:
    clock = VirtualClock()
    loop = Loop(clock, max_turns_per_slice=2)
    for number in range(6):
        loop.post(lambda _: clock.advance(10), number)
    assert loop.counters().oldest_waiting_ms == 0
    seen: list[int] = []
    loop.post_system(lambda _: seen.append(loop.counters().oldest_waiting_ms), None)
    clock.advance(7)
    loop.tick()
    assert seen == [7]
    assert loop.counters().oldest_waiting_ms == 17
    loop.run_until_idle()
    assert loop.counters().oldest_waiting_ms == 0


def test_names_of_turns_tell_people_where_to_look() -> None:
    cart = Cart(VirtualClock())
    assert turn_name(cart.add, 1) == f"{__name__}.Cart.add(int)"
    assert turn_name(cart, "x") == f"{__name__}.Cart(str)"
    assert turn_name(Cart.empty, None) == f"{__name__}.Cart.empty(NoneType)"
    assert turn_name(functools.partial(cart.add), 1) == f"{__name__}.Cart.add(int)"
    assert turn_name([].append, cart).endswith("list.append(Cart)")
    assert turn_name(lambda _: None, 1.5).endswith("<lambda>(float)")
