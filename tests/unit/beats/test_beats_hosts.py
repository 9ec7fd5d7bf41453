"""Where a beat runs: with and without a loop, beside other tasks and threads, cancelled, and for too long."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import pytest

from mainspring.beats import RETRY, BeatReport, Heartbeat
from mainspring.beats.errors import RunningLoop


def ok(signal: str | None, target: str | None, stage: Any) -> None:
    """Does nothing."""


def ran(report: BeatReport) -> list[str]:
    return [entry.enzyme for entry in report.agenda if entry.result != "duplicate"]


def notes(report: BeatReport, code: str) -> list[Any]:
    return [note for note in report.diagnostics if note.code == code]


# --- hosts ------------------------------------------------------------------------------------------------------------


async def test_inside_a_running_loop_async_enzymes_need_abeat() -> None:
    hb = Heartbeat()

    async def work(signal: str | None, target: str | None, stage: Any) -> None:
        await asyncio.sleep(0)
        stage.write("/x", 1)

    hb.register("plain", "/sig", ok)
    hb.register("work", "/sig", work)
    hb.signal("/sig")
    with pytest.raises(RunningLoop):
        hb.beat()
    assert (hb.next_beat, hb.waiting) == (1, 1), "rolled back"
    assert ran(await hb.abeat()) == ["plain", "work"]
    assert hb.read("/x") == 1
    hb.unregister("work")
    hb.signal("/sig")
    assert ran(hb.beat()) == ["plain"], "without async enzymes beat is fine"


async def test_what_arrives_while_a_beat_runs_lands_in_the_next() -> None:
    hb = Heartbeat()
    gate = asyncio.Event()

    async def wait(signal: str | None, target: str | None, stage: Any) -> None:
        stage.signal("/emitted")
        await gate.wait()

    hb.register("wait", "/sig", wait)
    hb.register("rest", "/*", ok)
    hb.signal("/sig")
    beat = asyncio.ensure_future(hb.abeat())
    await asyncio.sleep(0)
    assert hb.signal("/outside") == 2
    hb.register("late", "/sig", ok)
    hb.bind("/t", "late")
    assert (hb.resolve("/sig"), hb.resolve(None, "/t")) == (["wait", "rest"], [])
    gate.set()
    assert ran(await beat) == ["wait", "rest"]
    assert hb.resolve("/sig") == ["late", "wait", "rest"]
    assert [entry.signal for entry in (await hb.abeat()).agenda] == ["/emitted", "/outside"]


async def test_a_long_beat_lets_others_have_their_turn() -> None:
    hb = Heartbeat()
    turns: list[int] = []
    hb.register("a", "/sig/*", lambda *_: None)
    for i in range(2_000):
        hb.signal(f"/sig/{i}")
    beat = asyncio.ensure_future(hb.abeat())
    while not beat.done():
        await asyncio.sleep(0)
        turns.append(hb.signal("/during"))
    assert turns.count(2) > 5, "while beat 1 was under way"
    assert len((await beat).agenda) == 2_000


@pytest.mark.parametrize("awaited", [False, True])
async def test_a_cancellation_nobody_asked_for_is_the_enzymes_failure(awaited: bool) -> None:
    hb = Heartbeat()

    async def waits_for_a_cancelled_task(signal: str | None, target: str | None, stage: Any) -> None:
        task = asyncio.ensure_future(asyncio.sleep(60))
        task.cancel()
        await task

    hb.register("gone", "/sig", waits_for_a_cancelled_task)
    hb.register("next", "/sig", ok, after=["gone"])
    hb.signal("/sig")
    report = await hb.abeat() if awaited else await asyncio.to_thread(hb.beat)
    assert [(entry.enzyme, entry.result) for entry in report.agenda] == [("gone", "failed"), ("next", "ok")]


async def test_a_cancelled_beat_has_not_happened_and_others_wait_their_turn() -> None:
    hb = Heartbeat()
    gate = asyncio.Event()

    async def wait(signal: str | None, target: str | None, stage: Any) -> None:
        stage.write("/x", 1)
        await gate.wait()

    hb.register("wait", "/sig", wait)
    hb.signal("/sig")
    first = asyncio.ensure_future(hb.abeat())
    await asyncio.sleep(0)
    second = asyncio.ensure_future(hb.abeat())
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    gate.set()
    assert (await second).beat == 1
    assert hb.read("/x") == 1


def test_signals_may_come_from_many_threads() -> None:
    hb = Heartbeat()
    hb.register("a", "/sig/*/*", lambda signal, target, stage: stage.write(f"/got{signal}", stage.beat))
    beats = 0

    def send(me: int) -> None:
        for i in range(200):
            hb.signal(f"/sig/{me}/{i}")

    threads = [threading.Thread(target=send, args=(me,)) for me in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads) or hb.waiting:
        hb.beat()
        beats += 1
    hb.beat()
    assert len(hb.paths("/got")) == 800
    assert hb.replay().identical


def test_a_call_that_takes_too_long_is_reported_while_it_lasts(caplog: pytest.LogCaptureFixture) -> None:
    hb = Heartbeat(slow_enzyme_ms=1)
    reported = threading.Event()

    class Told(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            reported.set()

    handler = Told()
    logging.getLogger("mainspring.beats").addHandler(handler)
    try:
        hb.register("slow", "/sig", lambda *_: None if reported.wait(30) else -5)
        hb.signal("/sig")
        assert [entry.result for entry in hb.beat().agenda] == ["ok"]
    finally:
        logging.getLogger("mainspring.beats").removeHandler(handler)
    assert "enzyme 'slow' of beat 1" in caplog.text


def test_callable_objects_and_functions_that_return_coroutines_are_enzymes_too() -> None:
    class Enzyme:
        async def __call__(self, signal: str | None, target: str | None, stage: Any) -> int:
            stage.write("/object", 1)
            return RETRY

    async def inner(stage: Any) -> None:
        stage.write("/lambda", 1)

    for parallel in (None, "threads"):
        hb = Heartbeat(parallel=parallel)
        hb.register("object", "/sig", Enzyme())
        hb.register("lambda", "/sig", lambda signal, target, stage: inner(stage))
        hb.signal("/sig")
        assert {entry.enzyme: entry.result for entry in hb.beat().agenda} == {"object": "retry", "lambda": "ok"}
        assert (hb.read("/object"), hb.read("/lambda")) == (1, 1)
        hb.close()


def test_a_heartbeat_may_be_used_by_one_asyncio_loop_after_another() -> None:
    hb = Heartbeat()

    async def slow(signal: Any, target: Any, stage: Any) -> None:
        await asyncio.sleep(0)

    async def two_at_once() -> list[int]:
        hb.signal("/go")
        hb.signal("/go", beat=hb.next_beat + 1)
        return [report.beat for report in await asyncio.gather(hb.abeat(), hb.abeat())]

    hb.register("slow", "/go", slow)
    assert [asyncio.run(two_at_once()) for _ in range(3)] == [[1, 2], [3, 4], [5, 6]]
