"""What a loop counts, and its longest turn."""

from __future__ import annotations

import functools

import pytest

from mainspring.loop import FailedTurn, Loop, VirtualClock, turn_name


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


def test_the_longest_turn_is_named_with_the_class_of_its_object() -> None:
    clock = VirtualClock()
    loop = Loop(clock)
    loop.post(lambda _: clock.advance(50), None)
    loop.post(GiftCart(clock).add, 1)
    loop.post(lambda _: None, None)
    loop.run_until_idle()
    counters = loop.counters()
    assert (counters.longest_turn_ns, counters.longest_turn) == (60_000_000_000, f"{__name__}.GiftCart.add(int)")


def test_the_turn_of_a_timer_is_named_by_its_own_function() -> None:
    clock = VirtualClock()
    loop = Loop(clock)
    loop.schedule(10, Cart(clock).add, 2)
    loop.advance(10)
    assert loop.counters().longest_turn == f"{__name__}.Cart.add(int)"


def test_a_turn_that_fails_can_be_the_longest() -> None:
    clock = VirtualClock()
    failed: list[FailedTurn] = []
    loop = Loop(clock, on_error=failed.append)

    def bad(argument: object) -> None:
        clock.advance(100)
        raise ValueError

    loop.post(bad, None)
    loop.run_until_idle()
    assert len(failed) == 1
    assert loop.counters().longest_turn_ns == 100_000_000


def test_a_shorter_turn_does_not_replace_the_longest(caplog: pytest.LogCaptureFixture) -> None:
    clock = VirtualClock()
    loop = Loop(clock)
    for ms in (400, 500, 60, 400):
        loop.post(clock.advance, ms)
    loop.run_until_idle()
    assert loop.counters().longest_turn_ns == 500_000_000
    assert caplog.text == ""


def test_what_the_error_hook_takes_is_nobodys_turn() -> None:
    clock = VirtualClock()
    loop = Loop(clock, on_error=lambda _: clock.advance(10_000))

    def bad(argument: object) -> None:
        raise ValueError

    loop.post(bad, None)
    loop.post(clock.advance, 60)
    loop.run_until_idle()
    assert loop.counters().longest_turn_ns == 60_000_000


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
