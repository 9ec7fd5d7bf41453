"""Retry policies and lines of keyed tasks, without a node."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.client.errors import BadArgument
from mainspring.durations import BadDuration
from mainspring.tasks import Retry
from mainspring.tasks.worker import KeyOrder


def test_waits_grow_up_to_the_longest() -> None:
    policy = Retry(attempts=9, first=1, factor=3, longest=50, jitter=0.5)
    assert [policy.delay(attempt, lambda: 0.0) for attempt in range(1, 7)] == [1, 3, 9, 27, 50, 50]
    assert [policy.delay(attempt, lambda: 1.0) for attempt in (1, 2)] == [0.5, 1.5]


@given(
    st.builds(
        Retry,
        attempts=st.integers(1, 1000),
        first=st.floats(0, 1e6),
        factor=st.floats(1, 100),
        longest=st.floats(0, 1e6),
        jitter=st.floats(0, 1),
    ),
    st.integers(1, 100_000),
    st.floats(0, 1),
)
def test_a_policy_survives_the_journey_and_never_waits_too_long(policy: Retry, attempt: int, chance: float) -> None:
    travelled = Retry.from_header(policy.header(), Retry())
    assert travelled.attempts == policy.attempts
    assert travelled.first == pytest.approx(policy.first, rel=1e-5)
    assert 0 <= policy.delay(attempt, lambda: chance) <= policy.longest


@pytest.mark.parametrize("header", [None, "", "1 2 3", "x 1 2 3 4", "0 1 2 3 0", "5 1 2 600 9"])
def test_a_policy_that_makes_no_sense_counts_as_none(header: str | None) -> None:
    assert Retry.from_header(header, Retry(attempts=7)) == Retry(attempts=7)


@pytest.mark.parametrize("wrong", [{"attempts": 0}, {"first": -1}, {"factor": 0.5}, {"jitter": 2}])
def test_a_policy_that_makes_no_sense_cannot_be_declared(wrong: dict[str, Any]) -> None:
    with pytest.raises((BadArgument, BadDuration)):
        Retry(**wrong)


class Task:
    """What a line needs of an event."""

    def __init__(self, key: str | None, offset: int) -> None:
        self.key = key
        self.offset = offset


def test_tasks_of_one_key_start_one_after_the_other() -> None:
    order: KeyOrder[Any] = KeyOrder()
    a1, a2, b1 = Task("a", 1), Task("a", 2), Task("b", 3)
    for task in (a1, a2, b1):
        order.arrived(task)
    assert list(order.ready) == [a1, b1]
    order.ready.clear()
    order.ended(a1)
    assert list(order.ready) == [a2]


def test_a_key_waits_for_the_task_that_is_tried_again() -> None:
    order: KeyOrder[Any] = KeyOrder()
    first, second, third = Task("a", 1), Task("a", 2), Task("a", 3)
    order.arrived(first)
    order.arrived(second)
    order.ready.clear()
    order.retrying(first)
    order.arrived(third)
    assert not order.ready
    assert order.blocked == 2
    again = Task("a", 1)
    order.arrived(again)
    assert list(order.ready) == [again]
    assert order.blocked == 0
    order.ready.clear()
    order.ended(again)
    order.ended(order.ready.popleft())
    assert list(order.ready) == [third]


def test_after_a_lost_connection_only_what_runs_holds_its_key() -> None:
    order: KeyOrder[Any] = KeyOrder()
    running, retried = Task("a", 1), Task("b", 2)
    for task in (running, retried, Task("a", 3), Task("b", 4)):
        order.arrived(task)
    order.ready.clear()
    order.retrying(retried)
    order.lost({"a"})
    assert (len(order), order.blocked) == (0, 0)
    a1, b2 = Task("a", 1), Task("b", 2)
    order.arrived(a1)
    order.arrived(b2)
    assert list(order.ready) == [b2]
    order.ready.clear()
    order.ended(running)
    assert list(order.ready) == [a1]


@pytest.mark.slow
@given(st.data())
def test_whatever_fails_each_key_ends_in_its_order(data: st.DataObject) -> None:
    """A node that redelivers what was refused, a worker that runs some at a time."""
    order: KeyOrder[Any] = KeyOrder()
    undelivered = deque(Task(data.draw(st.sampled_from("abc")), offset) for offset in range(1, 15))
    refused: list[Task] = []
    running: list[Task] = []
    ended: dict[str, list[int]] = {"a": [], "b": [], "c": []}
    for _ in range(400):
        steps = [
            # The node holds later tasks of a key back while one of them waits for its next try.
            *(["deliver"] if undelivered and undelivered[0].key not in {task.key for task in refused} else []),
            *(["again"] if refused else []),
            *(["start"] if order.ready else []),
            *(["end", "fail"] if running else []),
        ]
        if not steps:
            break
        step = data.draw(st.sampled_from(steps))
        if step == "deliver":
            order.arrived(undelivered.popleft())
        elif step == "again":
            order.arrived(refused.pop(0))
        elif step == "start":
            running.append(order.ready.popleft())
            assert len({task.key for task in running}) == len(running), "two of one key at once"
        else:
            task = running.pop(data.draw(st.integers(0, len(running) - 1)))
            if step == "end":
                ended[str(task.key)].append(task.offset)
                order.ended(task)
            else:
                refused.append(task)
                order.retrying(task)
    for offsets in ended.values():
        assert offsets == sorted(offsets)
