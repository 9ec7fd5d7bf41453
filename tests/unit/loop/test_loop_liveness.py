"""Liveness: what keeps a loop alive, and when it is quiescent."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.loop import Hold, Loop, VirtualClock, run_virtual


def ignore(argument: object) -> None:
    """A turn that does nothing."""


def test_a_new_loop_is_quiescent() -> None:
    loop = Loop(VirtualClock())
    assert not loop.alive
    assert loop.why_alive() == {}


@pytest.mark.parametrize("reason", ["input", "request in flight", "unwritten bytes"])
def test_a_hold_keeps_the_loop_alive_until_it_is_released(reason: str) -> None:
    loop = Loop(VirtualClock())
    first, second = loop.hold(reason), loop.hold(reason)
    assert loop.why_alive() == {reason: 2}
    first.release()
    first.release()
    assert loop.why_alive() == {reason: 1}
    assert loop.alive
    second.release()
    assert not loop.alive
    assert loop.why_alive() == {}


def test_pending_timers_and_ready_turns_keep_the_loop_alive() -> None:
    loop = Loop(VirtualClock())
    timer = loop.schedule(1000, ignore, None)
    assert loop.why_alive() == {"timers": 1}
    loop.post(ignore, None)
    loop.complete(ignore, None)
    assert loop.why_alive() == {"timers": 1, "ready": 2}
    loop.run_until_idle()
    assert loop.alive
    loop.cancel(timer)
    assert not loop.alive


def test_a_timer_can_be_told_not_to_keep_the_loop_alive() -> None:
    loop, seen = Loop(VirtualClock()), list[str]()
    health = loop.schedule(50, seen.append, "health", ref=False)
    assert not loop.alive
    loop.schedule(100, seen.append, "work")
    loop.run_until_quiescent()
    assert seen == ["health", "work"], "while something else keeps the loop alive it fires like any other"
    assert not loop.alive
    assert not loop.cancel(health)

    other = loop.schedule(50, seen.append, "health", ref=False)
    assert loop.run_until_quiescent() == 0
    assert loop.cancel(other)
    loop.schedule(10, seen.append, "work")
    assert loop.alive


@given(st.lists(st.sampled_from(["hold", "release", "timer", "unref", "cancel", "post", "run"])))
def test_a_loop_is_quiescent_exactly_when_all_conditions_are_false(steps: list[str]) -> None:
    loop = Loop(VirtualClock())
    holds: list[Hold] = []
    timers: list[object] = []
    unref: list[object] = []
    posted = 0
    for step in steps:
        if step == "hold":
            holds.append(loop.hold("input"))
        elif step == "release" and holds:
            holds.pop(0).release()
        elif step == "timer":
            timers.append(loop.schedule(1000, ignore, None))
        elif step == "unref":
            unref.append(loop.schedule(1000, ignore, None, ref=False))
        elif step == "cancel" and (timers or unref):
            assert loop.cancel((timers or unref).pop())  # type: ignore[arg-type]
        elif step == "post":
            loop.post(ignore, None)
            posted += 1
        elif step == "run":
            assert loop.run_until_idle() == posted
            posted = 0
        assert loop.alive == bool(holds or timers or posted)
        assert loop.alive == bool(loop.why_alive())
        assert loop.counters().holds == len(holds)


def test_quiescence_can_be_awaited_and_a_release_is_noticed() -> None:
    clock = VirtualClock()
    seen: list[int] = []

    async def main() -> None:
        with Loop(clock).hosted() as loop:
            hold = loop.hold("input")
            loop.schedule(50, lambda _: hold.release(), None)
            loop.schedule(1000, ignore, None, ref=False)
            await loop.quiescent()
            seen.append(clock.now_ms())
            await loop.quiescent()

    run_virtual(main(), clock=clock)
    assert seen == [50]
