"""The timer wheel against the simplest thing that could work: a sorted list. A million operations in all."""

from __future__ import annotations

import random
from bisect import bisect_left, insort

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.loop import TimerEntry, TimerWheel

OPERATIONS_PER_SEED = 50_000
SPANS = ([10], [100, 1000], [10**5], [10**9, 100], [2**40, 2**64, 5], [2**64, 2**90])


class SortedList:
    """What a wheel promises, written down: entries by deadline, then by registration."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, int]] = []
        self._deadlines: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def schedule(self, timer_id: int, deadline: int) -> None:
        self._deadlines[timer_id] = deadline
        insort(self._rows, (deadline, timer_id))

    def cancel(self, timer_id: int) -> bool:
        deadline = self._deadlines.pop(timer_id, None)
        if deadline is None:
            return False
        del self._rows[bisect_left(self._rows, (deadline, timer_id))]
        return True

    def next_deadline(self) -> int | None:
        return self._rows[0][0] if self._rows else None

    def first(self) -> int | None:
        return self._rows[0][1] if self._rows else None

    def pop_ready(self, now: int) -> int | None:
        if not self._rows or self._rows[0][0] > now:
            return None
        timer_id = self._rows.pop(0)[1]
        del self._deadlines[timer_id]
        return timer_id

    def take_ready(self, now: int) -> list[int]:
        taken = []
        while (timer_id := self.pop_ready(now)) is not None:
            taken.append(timer_id)
        return taken


def popped(wheel: TimerWheel, now: int) -> int | None:
    entry = wheel.pop_ready(now)
    if entry is None:
        return None
    assert entry.deadline <= now, "a timer left early"
    assert isinstance(entry.id, int)
    return entry.id


def some_deadline(generator: random.Random, now: int, spans: list[int]) -> int:
    chance = generator.random()
    if chance < 0.45:
        span = generator.choice(spans)
        return now + generator.randint(-span // 8, span)
    if chance < 0.99:
        return now + generator.choice((0, 1, 5, 63, 64, 65, 4096))
    return -generator.randrange(1000)


@pytest.mark.parametrize("seed", range(20))
def test_a_long_random_life_agrees_with_a_sorted_list(seed: int) -> None:
    generator = random.Random(seed)
    spans = SPANS[seed % len(SPANS)]
    wheel, model = TimerWheel(), SortedList()
    now = generator.choice((0, 0, 10**9))
    last = 0
    for _ in range(OPERATIONS_PER_SEED):
        chance = generator.random()
        if chance < 0.45:
            last += 1
            deadline = some_deadline(generator, now, spans)
            wheel.schedule(TimerEntry(last, deadline, None, "timeout"))
            model.schedule(last, deadline)
        elif chance < 0.6 and last:
            timer_id = generator.choice((last, generator.randint(1, last)))
            assert wheel.cancel(timer_id) == model.cancel(timer_id)
        elif chance < 0.7:
            first = model.first()
            if first is not None:
                assert wheel.cancel(first)
                model.cancel(first)
        elif chance < 0.8:
            assert wheel.next_deadline() == model.next_deadline()
        elif chance < 0.9:
            now += generator.choice((0, 1, 3, 50, generator.choice(spans) // generator.randint(1, 20)))
        elif chance < 0.92:
            assert [entry.id for entry in wheel.take_ready(now)] == model.take_ready(now)
        else:
            for _ in range(generator.choice((1, 1, 3, 1000))):
                expected = model.pop_ready(now)
                assert wheel.has_ready(now) == (expected is not None)
                assert popped(wheel, now) == expected
                if expected is None:
                    break
        assert len(wheel) == len(model)
    rest = [entry.id for entry in wheel.take_ready(2**100)]
    assert rest == model.take_ready(2**100)


_deadlines = st.one_of(
    st.integers(-10, 200),
    st.integers(0, 2**20),
    st.integers(2**62, 2**66),
    st.sampled_from([63, 64, 4095, 4096, 2**64]),
)
_steps = st.lists(
    st.one_of(
        st.tuples(st.just("schedule"), _deadlines),
        st.tuples(st.just("cancel"), st.integers(0, 60)),
        st.tuples(st.just("pop"), _deadlines),
        st.tuples(st.just("take"), _deadlines),
        st.tuples(st.just("look"), st.just(0)),
    ),
    max_size=80,
)


@settings(max_examples=300, deadline=None)
@given(_steps)
def test_any_short_life_agrees_with_a_sorted_list(steps: list[tuple[str, int]]) -> None:
    """Time may even go back here: a wheel takes every `now` as it comes."""
    wheel, model = TimerWheel(), SortedList()
    last = 0
    for step, number in steps:
        if step == "schedule":
            last += 1
            wheel.schedule(TimerEntry(last, number, None, "timeout"))
            model.schedule(last, number)
        elif step == "cancel":
            assert wheel.cancel(number) == model.cancel(number)
        elif step == "pop":
            assert popped(wheel, number) == model.pop_ready(number)
        elif step == "take":
            taken = [entry.id for entry in wheel.take_ready(number)]
            assert taken == model.take_ready(number)
        else:
            assert wheel.next_deadline() == model.next_deadline()
        assert len(wheel) == len(model)
