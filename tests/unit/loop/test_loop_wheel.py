"""The timer wheel, example by example: order, exactness, far and past deadlines, cancelling."""

from __future__ import annotations

import gc
import random
import weakref

import pytest

from mainspring.loop import DuplicateTimer, TimerEntry, TimerWheel


def entry(timer_id: object, deadline: int) -> TimerEntry:
    return TimerEntry(timer_id, deadline, f"message of {timer_id}", "scheduled")  # type: ignore[arg-type]


def drain(wheel: TimerWheel, now: int) -> list[object]:
    ids: list[object] = []
    while (popped := wheel.pop_ready(now)) is not None:
        assert popped.deadline <= now
        ids.append(popped.id)
    return ids


def test_an_empty_wheel_has_nothing() -> None:
    wheel = TimerWheel()
    assert wheel.next_deadline() is None
    assert not wheel.has_ready(10**12)
    assert wheel.pop_ready(10**12) is None
    assert not wheel.cancel("nobody")
    assert len(wheel) == 0


def test_an_entry_carries_id_deadline_message_and_kind() -> None:
    wheel = TimerWheel()
    given = TimerEntry("timeout-1", 1_767_910_000_000, {"type": "Sys.Timeout"}, "timeout")
    wheel.schedule(given)
    popped = wheel.pop_ready(1_767_910_000_000)
    assert popped is given
    assert (popped.id, popped.deadline, popped.message, popped.kind) == (
        "timeout-1",
        1_767_910_000_000,
        {"type": "Sys.Timeout"},
        "timeout",
    )


def test_a_timer_is_ready_at_its_deadline_and_not_before() -> None:
    wheel = TimerWheel()
    wheel.schedule(entry("a", 100))
    for now in (0, 1, 63, 64, 99):
        assert not wheel.has_ready(now)
        assert wheel.pop_ready(now) is None
        assert wheel.next_deadline() == 100
    assert wheel.has_ready(100)
    assert drain(wheel, 100) == ["a"]
    assert not wheel.has_ready(10**9)


def test_equal_deadlines_leave_in_order_of_registration() -> None:
    wheel = TimerWheel()
    for number in range(500):
        wheel.schedule(entry(number, 77_777))
        if number % 7 == 0:
            assert wheel.next_deadline() == 77_777
            assert wheel.pop_ready(number * 150) is None
    assert drain(wheel, 77_777) == list(range(500))


def test_late_timers_still_leave_by_deadline() -> None:
    wheel = TimerWheel()
    shuffled = list(range(1, 3000))
    random.Random(7).shuffle(shuffled)
    for deadline in shuffled:
        wheel.schedule(entry(deadline, deadline))
    assert drain(wheel, 10**15) == sorted(shuffled)


def test_a_timer_set_for_an_earlier_time_goes_first_even_after_looking_far_ahead() -> None:
    wheel = TimerWheel()
    for number in range(100):
        wheel.schedule(entry(f"far-{number}", 3_600_000 + number))
    assert wheel.next_deadline() == 3_600_000
    wheel.schedule(entry("near", 10))
    assert wheel.next_deadline() == 10
    wheel.schedule(entry("nearer", 5))
    assert drain(wheel, 10) == ["nearer", "near"]
    assert wheel.next_deadline() == 3_600_000


def test_a_deadline_in_the_past_is_ready_at_once_and_in_order() -> None:
    wheel = TimerWheel()
    wheel.schedule(entry("due", 1000))
    assert drain(wheel, 5000) == ["due"]
    for timer_id, deadline in (("c", 900), ("a", -5), ("b", 10), ("d", 900), ("e", 5000), ("f", 6000)):
        wheel.schedule(entry(timer_id, deadline))
    assert wheel.next_deadline() == -5
    assert wheel.cancel("b")
    assert drain(wheel, 5000) == ["a", "c", "d", "e"]
    assert wheel.next_deadline() == 6000


def test_nanoseconds_to_the_end_of_64_bits_and_beyond() -> None:
    """Deadlines beyond one revolution, and beyond any."""
    wheel = TimerWheel()
    deadlines = [1, 2**32, 2**63 - 1, 2**64 - 1, 2**64, 2**64 + 1, 2**200, 2**200 + 1]
    for deadline in reversed(deadlines):
        wheel.schedule(entry(deadline, deadline))
    for deadline in deadlines:
        assert wheel.next_deadline() == deadline
        assert wheel.pop_ready(deadline - 1) is None
        assert drain(wheel, deadline) == [deadline]


def test_cancelling_works_once_and_only_while_pending() -> None:
    wheel = TimerWheel()
    for number in range(10):
        wheel.schedule(entry(number, 100 + number))
    assert wheel.cancel(3)
    assert not wheel.cancel(3)
    assert wheel.next_deadline() == 100
    assert wheel.cancel(0)
    assert wheel.cancel(5)
    assert wheel.next_deadline() == 101
    assert drain(wheel, 104) == [1, 2, 4]
    assert not wheel.cancel(4)
    assert len(wheel) == 4
    assert drain(wheel, 200) == [6, 7, 8, 9]


def test_an_id_is_unique_among_the_pending_and_free_again_afterwards() -> None:
    wheel = TimerWheel()
    wheel.schedule(entry("a", 10))
    with pytest.raises(DuplicateTimer, match="'a' is already pending"):
        wheel.schedule(entry("a", 20))
    assert wheel.next_deadline() == 10
    with pytest.raises(DuplicateTimer):
        wheel.schedule(entry("a", 20))
    assert wheel.cancel("a")
    wheel.schedule(entry("a", 30))
    assert drain(wheel, 30) == ["a"]
    wheel.schedule(entry("a", 40))
    assert len(wheel) == 1


def test_the_same_entry_scheduled_again_takes_its_new_place_in_the_order() -> None:
    for deadline in (5, 50_000):  # behind the cursor, and ahead of it
        wheel = TimerWheel()
        wheel.take_ready(100)
        first, second = entry("first", deadline), entry("second", deadline)
        wheel.schedule(first)
        wheel.schedule(second)
        assert wheel.next_deadline() == deadline
        wheel.cancel("first")
        wheel.schedule(first)
        assert drain(wheel, 50_000) == ["second", "first"]


@pytest.mark.parametrize("deadline", [1.5, "1", None, float("inf")])
def test_a_deadline_that_is_no_integer_is_refused_where_it_is_given(deadline: object) -> None:
    wheel = TimerWheel()
    with pytest.raises(TypeError, match="must be an int"):
        wheel.schedule(TimerEntry("a", deadline, None, "timeout"))  # type: ignore[arg-type]
    assert len(wheel) == 0
    assert wheel.next_deadline() is None


def test_pending_timers_can_be_asked_for() -> None:
    wheel = TimerWheel()
    wheel.schedule(entry("a", 10))
    assert wheel.next_deadline() == 10
    wheel.schedule(entry("b", 20))
    assert "a" in wheel
    assert "b" in wheel
    assert "c" not in wheel
    assert {pending.id for pending in wheel} == {"a", "b"}


def test_take_ready_gives_what_pop_ready_would() -> None:
    one, other = TimerWheel(), TimerWheel()
    generator = random.Random(3)
    for number in range(2000):
        deadline = generator.choice((-1, 0, 5, 64, 4096)) + generator.randrange(3) * generator.randrange(100_000)
        one.schedule(entry(number, deadline))
        other.schedule(entry(number, deadline))
    for now in (0, 5, 100, 100, 4096, 70_000, 10**9):
        assert [taken.id for taken in one.take_ready(now)] == drain(other, now)
        assert len(one) == len(other)


def test_very_many_equal_deadlines_leave_one_by_one_without_slowing_down() -> None:
    """Finding the first of many must not walk over those that left: a quadratic walk would take hours here."""
    wheel = TimerWheel()
    for number in range(200_000):
        wheel.schedule(entry(number, 1_000_000))
    for number in range(50_000):
        assert wheel.cancel(number)
        if number % 5 == 0:
            assert wheel.next_deadline() == 1_000_000
    assert drain(wheel, 1_000_000) == list(range(50_000, 200_000))


def test_cancelling_the_first_again_and_again_does_not_search_a_crowd_each_time() -> None:
    wheel = TimerWheel()
    for number in range(100_000):
        wheel.schedule(entry(number, 2**40 + number * 7919))
    for number in range(100_000):
        assert wheel.next_deadline() == 2**40 + number * 7919
        assert wheel.cancel(number)
    assert wheel.next_deadline() is None


def test_time_far_ahead_is_reached_without_walking_through_it() -> None:
    """Empty time costs nothing: stepping through these slots one by one would never end."""
    wheel = TimerWheel()
    now = 0
    for step in range(1, 500):
        now += step << 55
        wheel.schedule(entry(step, now))
        assert wheel.next_deadline() == now
        assert wheel.pop_ready(now - 1) is None
        assert drain(wheel, now) == [step]


class Parcel:
    """Something a timer carries; collected when nothing refers to it."""


def test_a_timer_that_left_keeps_nothing_alive() -> None:
    wheel = TimerWheel()
    kept: list[weakref.ref[Parcel]] = []
    for number in range(300):
        parcel = Parcel()
        kept.append(weakref.ref(parcel))
        wheel.schedule(TimerEntry(number, 1000 + number * 37, parcel, "timeout"))
        del parcel
    assert wheel.next_deadline() == 1000
    for number in range(0, 300, 2):
        wheel.cancel(number)
    gc.collect()
    assert [number for number, ref in enumerate(kept) if ref() is not None] == list(range(1, 300, 2))
    assert len(wheel.take_ready(10**6)) == 150
    gc.collect()
    assert not any(ref() for ref in kept)
