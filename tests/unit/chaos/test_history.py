"""The checker itself: a right history passes, and each kind of broken promise is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.chaos.history import Confirmed, History, Stored


def right() -> History:
    view = [Stored("a", 0, 1), Stored("b", 0, 2), Stored("c", 1, 1)]
    return History(
        confirmed=[Confirmed("a", 0, 1), Confirmed("c", 1, 1)],
        work={"one": list(view), "two": list(view)},
        settled=["b", "a", "c"],
        received={"a", "b", "c"},
        lags={"one workers": 0},
        expected_runs={"r"},
        outcomes={"one": {"r": "ok"}, "two": {"r": "ok"}},
        steps=[("r", 1), ("r", 2)],
        firings=[(1, 1_010), (2, 2_400), (3, 5_020)],
    )


def test_a_history_that_keeps_every_promise_has_no_violations() -> None:
    assert right().violations() == []


def _reuse(history: History) -> None:
    history.confirmed.append(Confirmed("x", 0, 1))


def _hole(history: History) -> None:
    for view in history.work.values():
        view.append(Stored("d", 1, 3))
    history.settled.append("d")
    history.received.add("d")


def _double(history: History) -> None:
    for view in history.work.values():
        view.append(Stored("a", 1, 2))


BROKEN: dict[str, tuple[Callable[[History], Any], str]] = {
    "a lost event": (lambda h: h.confirmed.append(Confirmed("z", 0, 9)), "is not there"),
    "a reused offset": (_reuse, "where a is"),
    "a hole": (_hole, "has holes"),
    "an event stored twice": (_double, "event id a happened 2 times"),
    "nodes that disagree": (lambda h: h.work["two"].pop(), "shows other events"),
    "an event settled twice": (lambda h: h.settled.append("a"), "acknowledgement a happened 2 times"),
    "an event never settled": (lambda h: h.settled.remove("a"), "never settled"),
    "a settled event nobody stored": (lambda h: h.settled.append("q"), "not stored"),
    "an event not delivered": (lambda h: h.received.remove("b"), "never reached"),
    "a group that does not drain": (lambda h: h.lags.update({"one workers": 3}), "3 events to settle"),
    "a run without outcome": (lambda h: h.outcomes["two"].clear(), "no outcome on node two"),
    "a run with two outcomes": (lambda h: h.outcomes["two"].update(r="failed"), "ended as failed"),
    "an effect stored twice": (lambda h: h.steps.append(("r", 1)), "effect ('r', 1) happened 2 times"),
    "a due time that fired twice": (lambda h: h.firings.append((4, 2_900)), "due time 2 fired 2 times"),
    "a firing settled twice": (lambda h: h.firings.append((2, 2_400)), "acknowledgement of firing 2 happened 2 times"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_promise_is_named(name: str) -> None:
    spoil, words = BROKEN[name]
    history = right()
    spoil(history)
    assert any(words in violation for violation in history.violations())
