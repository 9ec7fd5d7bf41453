"""The lanes: system first, each in order, and how long the oldest has waited."""

from __future__ import annotations

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from mainspring.loop import Lane, Lanes


def ignore(argument: object) -> None:
    """The turns of these tests are only looked at."""


def test_nothing_waits_at_first() -> None:
    """Nothing to select."""
    lanes = Lanes()
    assert lanes.take() is None
    assert len(lanes) == 0
    assert lanes.waiting_ms(1000) == 0


@given(st.lists(st.sampled_from(["system", "user", "take"])))
def test_selection_is_system_first_and_each_lane_in_order(steps: list[str]) -> None:
    """Against two plain queues."""
    lanes = Lanes()
    system: deque[int] = deque()
    user: deque[int] = deque()
    for number, step in enumerate(steps):
        if step == "system":
            lanes.push_system((ignore, number))
            system.append(number)
        elif step == "user":
            lanes.push_user((ignore, number))
            user.append(number)
        else:
            taken = lanes.take()
            queue = system or user
            assert taken == ((ignore, queue.popleft()) if queue else None)
        assert len(lanes) == len(system) + len(user)


@given(st.lists(st.tuples(st.sampled_from(["arrive", "take", "mark"]), st.integers(0, 50))))
def test_the_oldest_is_as_old_as_the_first_mark_after_its_arrival(steps: list[tuple[str, int]]) -> None:
    """So an age is never exaggerated: what no mark has dated yet counts as new."""
    lane = Lane()
    dates: deque[int | None] = deque()
    now = 0
    for step, passed in steps:
        now += passed
        if step == "arrive":
            lane.append((ignore, None))
            dates.append(None)
        elif step == "take" and lane:
            lane.popleft()
            lane.taken += 1
            dates.popleft()
        elif step == "mark":
            lane.mark(now)
            dates = deque(now if date is None else date for date in dates)
        oldest = dates[0] if dates else None
        assert lane.waiting_ms(now) == (0 if oldest is None else now - oldest)


def test_marks_do_not_pile_up_while_a_lane_moves() -> None:
    lane = Lane()
    for now in range(10_000):
        lane.append((ignore, now))
        lane.mark(now)
        if len(lane) > 3:
            lane.popleft()
            lane.taken += 1
    assert lane.waiting_ms(10_000) == 3
    lane.mark(10_001)
    assert len(lane._marks) <= 4
