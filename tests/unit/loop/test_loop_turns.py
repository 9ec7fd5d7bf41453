"""The tick, bare: what runs, in which order, and what happens to a turn that fails."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.loop import FailedTurn, Loop, LoopBusy, LoopLimit, VirtualClock


def ignore(argument: object) -> None:
    """A turn that does nothing."""


def a_loop(**options: object) -> Loop:
    return Loop(VirtualClock(), **options)  # type: ignore[arg-type]


def test_an_idle_loop_makes_no_turn() -> None:
    loop = a_loop()
    assert loop.tick() is False
    assert loop.run_until_idle() == 0
    assert loop.counters().turns == 0


def test_posting_returns_before_the_turn_runs() -> None:
    loop, seen = a_loop(), list[int]()
    loop.post(seen.append, 1)
    assert seen == []
    assert loop.tick() is True
    assert seen == [1]
    assert loop.tick() is False


def test_each_lane_keeps_its_order_and_system_goes_first() -> None:
    loop, seen = a_loop(), list[str]()
    for number in range(3):
        loop.post(seen.append, f"user {number}")
        loop.post_system(seen.append, f"system {number}")
    loop.run_until_idle()
    assert seen == ["system 0", "system 1", "system 2", "user 0", "user 1", "user 2"]


def test_a_tick_is_the_whole_system_lane_and_one_user_turn() -> None:
    """Also what arrives while draining."""
    loop, seen = a_loop(), list[str]()

    def more(depth: int) -> None:
        seen.append(f"system {depth}")
        if depth:
            loop.post_system(more, depth - 1)

    loop.post(seen.append, "user 1")
    loop.post(seen.append, "user 2")
    loop.post_system(more, 2)
    assert loop.tick()
    assert seen == ["system 2", "system 1", "system 0", "user 1"]
    assert loop.tick()
    assert seen[4:] == ["user 2"]


def test_the_system_lane_is_looked_at_after_every_user_turn() -> None:
    """A flood of user work delays a fault signal by one user turn at most."""
    loop, seen = a_loop(), list[str]()

    def user(number: int) -> None:
        seen.append(f"user {number}")
        if number == 5:
            loop.post_system(seen.append, "fault")

    for number in range(100):
        loop.post(user, number)
    loop.run_until_idle()
    assert seen.index("fault") == seen.index("user 5") + 1


Plan = list[tuple[str, list[str]]]
"""Lane by lane what is posted at first, and what each of these turns posts in turn."""


def played(plan: Plan, drive: Callable[[Loop], object], budget: int) -> list[str]:
    loop = Loop(VirtualClock(), max_turns_per_slice=budget)
    seen: list[str] = []

    def turn(step: tuple[str, list[str]]) -> None:
        seen.append(step[0])
        post_all([(lane, []) for lane in step[1]], step[0])

    def post_all(steps: Plan, parent: str) -> None:
        for number, (lane, children) in enumerate(steps):
            post = loop.post_system if lane == "system" else loop.post
            post(turn, (f"{parent}/{lane} {number}", children))

    post_all(plan, "")
    drive(loop)
    return seen


def expected(plan: Plan) -> list[str]:
    """The lane rule, written down: the system lane if it has something, else the user lane."""
    lanes: dict[str, deque[tuple[str, list[str]]]] = {"system": deque(), "user": deque()}
    seen: list[str] = []
    for number, (lane, children) in enumerate(plan):
        lanes[lane].append((f"/{lane} {number}", children))
    while queue := lanes["system"] or lanes["user"]:
        name, children = queue.popleft()
        seen.append(name)
        for number, lane in enumerate(children):
            lanes[lane].append((f"{name}/{lane} {number}", []))
    return seen


def tick_by_tick(loop: Loop) -> None:
    while loop.tick():
        pass


_lanes = st.sampled_from(["user", "system"])


@given(st.lists(st.tuples(_lanes, st.lists(_lanes, max_size=3))), st.integers(1, 5))
def test_any_mix_of_turns_runs_in_the_same_order_ticked_or_in_slices(plan: Plan, budget: int) -> None:
    """One algorithm, deterministic, whoever drives it and in whatever pieces."""
    assert played(plan, tick_by_tick, 1024) == expected(plan)
    assert played(plan, Loop.run_until_idle, 1024) == expected(plan)
    assert played(plan, Loop.run_until_idle, budget) == expected(plan)


def test_a_turn_that_raises_is_reported_and_the_rest_goes_on() -> None:
    """An exception never reaches whoever posted."""
    failures: list[FailedTurn] = []
    loop, seen = a_loop(on_error=failures.append), list[int]()

    def fails(argument: int) -> None:
        raise ValueError(f"no {argument}")

    for number in range(4):
        loop.post(fails if number % 2 else seen.append, number)
    loop.post_system(fails, 9)
    assert loop.run_until_idle() == 5
    assert seen == [0, 2]
    assert [str(failure.error) for failure in failures] == ["no 9", "no 1", "no 3"]
    assert failures[0].function is fails
    assert failures[0].argument == 9
    assert failures[0].name.endswith("fails(int)")
    assert failures[0].error.__traceback__ is not None
    counters = loop.counters()
    assert (counters.turns, counters.failed_turns) == (5, 3)


def test_without_a_hook_a_failure_goes_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    loop = a_loop()
    loop.post([].index, "absent")
    with caplog.at_level(logging.ERROR, "mainspring.loop"):
        loop.run_until_idle()
    assert "ValueError" in caplog.text
    assert "Traceback" in caplog.text


def test_a_hook_that_raises_neither_stops_the_loop_nor_hides_the_failure(caplog: pytest.LogCaptureFixture) -> None:
    def bad_hook(failure: FailedTurn) -> None:
        raise RuntimeError("the hook is broken")

    loop, seen = a_loop(on_error=bad_hook), list[int]()
    loop.post([].index, "absent")
    loop.post(seen.append, 1)
    loop.run_until_idle()
    assert seen == [1]
    assert "the hook is broken" in caplog.text
    assert "index" in caplog.text


def test_a_cancelled_error_out_of_a_turn_is_a_failure_like_any_other() -> None:
    failures: list[FailedTurn] = []
    loop, seen = a_loop(on_error=failures.append), list[int]()

    def cancelled(argument: object) -> None:
        raise asyncio.CancelledError

    loop.post(cancelled, None)
    loop.post(seen.append, 1)
    loop.run_until_idle()
    assert seen == [1]
    assert isinstance(failures[0].error, asyncio.CancelledError)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_a_program_that_is_told_to_end_ends_and_its_loop_stays_sound(error: type[BaseException]) -> None:
    loop, seen = a_loop(), list[int]()

    def ends(argument: object) -> None:
        raise error

    loop.post(seen.append, 1)
    loop.post(ends, None)
    loop.post(seen.append, 2)
    with pytest.raises(error):
        loop.run_until_idle()
    assert seen == [1]
    assert loop.run_until_idle() == 1
    assert seen == [1, 2]
    assert loop.counters().turns == 3


def test_work_that_feeds_itself_runs_into_the_limit_which_is_named() -> None:
    loop = a_loop()

    def again(argument: int) -> None:
        loop.post(again, argument)

    loop.post(again, 1)
    with pytest.raises(LoopLimit, match=r"limit of 500 turns; next is .*again\(int\)"):
        loop.run_until_idle(limit=500)
    assert loop.counters().turns == 500


def test_exactly_the_limit_is_no_error() -> None:
    loop = a_loop()
    for _ in range(500):
        loop.post(ignore, None)
    assert loop.run_until_idle(limit=500) == 500


def test_a_turn_cannot_drive_its_own_loop() -> None:
    failures: list[FailedTurn] = []
    loop = a_loop(on_error=failures.append)
    for drive in (Loop.tick, Loop.run_until_idle, Loop.run_until_quiescent):
        loop.post(drive, loop)
    loop.run_until_idle()
    assert [type(failure.error) for failure in failures] == [LoopBusy] * 3


def test_a_slice_spends_its_budget_on_system_turns_too_and_still_runs_them_first() -> None:
    loop, seen = a_loop(max_turns_per_slice=10), list[str]()
    for number in range(25):
        loop.post_system(seen.append, f"system {number}")
    loop.post(seen.append, "user")
    assert loop.run_until_idle() == 26
    assert loop.counters().slices == 3
    assert seen == [*(f"system {number}" for number in range(25)), "user"]


def test_a_system_lane_that_feeds_itself_does_not_hang_a_tick() -> None:
    loop = a_loop()

    def again(argument: object) -> None:
        loop.post_system(again, argument)

    loop.post_system(again, None)
    with pytest.raises(LoopLimit, match=r"limit of 1000000 turns; next is .*again"):
        loop.tick()
