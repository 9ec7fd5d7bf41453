"""Retry policies and lines of keyed tasks, without a node."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.retries import ALWAYS, Backoff, Retries
from mainspring.tasks.task import retries_from, retries_header
from mainspring.tasks.worker import KeyOrder


@given(st.integers(1, 1000), st.integers(0, 10**6), st.integers(0, 10**6))
def test_a_policy_survives_the_journey(attempts: int, first_ms: int, longest_ms: int) -> None:
    retries = Retries(Backoff(first_ms, longest_ms), attempts)
    travelled = retries_from(retries_header(retries), ALWAYS)
    assert travelled.max_attempts == attempts
    assert travelled.backoff.first_ms == pytest.approx(first_ms, rel=1e-5)
    assert travelled.backoff.longest_ms == pytest.approx(longest_ms, rel=1e-5)


@pytest.mark.parametrize("header", [None, "", "1 2 3", "x 1 2 3 4", "1 -1 2 3 0"])
def test_a_policy_that_makes_no_sense_counts_as_none(header: str | None) -> None:
    assert retries_from(header, ALWAYS) == ALWAYS


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
