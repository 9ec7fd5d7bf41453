"""Independent enzymes side by side give the same bytes as one after another."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from mainspring.beats import FATAL, Heartbeat
from tests.support import beats_enzymes as enzymes
from tests.support import beats_story as story


def journals(hb: Heartbeat) -> list[bytes]:
    return [hb.journal(beat) for beat in range(1, hb.next_beat)]


def test_threads_give_the_same_bytes() -> None:
    plain, side_by_side = Heartbeat(**story.RULES), Heartbeat(parallel="threads", workers=3, **story.RULES)
    for hb in (plain, side_by_side):
        story.install(hb)
        story.tell(hb, 30)
    assert journals(plain) == journals(side_by_side)
    side_by_side.close()


def test_processes_give_the_same_bytes_and_a_dead_process_is_one_failure() -> None:
    def told(**rules: Any) -> list[bytes]:
        hb = Heartbeat(**rules)
        hb.register("count", "/sig/*", enzymes.count)
        hb.register("log", "/sig/*", enzymes.log, after=("count",))
        for beat in range(1, 4):
            for i in range(8):
                hb.signal(f"/sig/{beat}{i}")
            hb.beat()
        hb.close()
        return journals(hb)

    assert told() == told(parallel="processes", workers=2)
    hb = Heartbeat(parallel="processes", workers=1)
    hb.register("die", "/die", enzymes.die)
    hb.register("count", "/*", enzymes.count)
    hb.register("here", "/*", lambda signal, target, stage: stage.write("/here", 1))
    hb.signal("/die")
    results = {entry.enzyme: entry.result for entry in hb.beat().agenda}
    hb.close()
    assert results == {"die": "failed", "count": "ok", "here": "failed"}, "a lambda cannot be sent"


def test_independent_enzymes_really_run_at_the_same_time_and_dependent_ones_do_not() -> None:
    hb = Heartbeat(parallel="threads", workers=4)
    meet = threading.Barrier(2)
    order: list[str] = []

    def together(signal: str | None, target: str | None, stage: Any) -> None:
        meet.wait(timeout=30)

    hb.register("a", "/sig", together)
    hb.register("b", "/sig", together)
    hb.register("first", "/order", lambda *_: order.append("first"))
    hb.register("a_second", "/order", lambda *_: order.append("second"), after=("first",))
    hb.register("a_third", "/order", lambda *_: order.append("third"), after=("a_second",))
    hb.signal("/sig")
    hb.signal("/order")
    assert {entry.result for entry in hb.beat().agenda} == {"ok"}
    assert order == ["first", "second", "third"]
    hb.close()


@pytest.mark.parametrize("rules", [{"strict": True}, {"on_fatal": "abort_beat"}])
def test_what_is_decided_is_decided_in_agenda_order(rules: dict[str, Any]) -> None:
    def told(**more: Any) -> list[Any]:
        hb = Heartbeat(**rules, **more)
        for i, name in enumerate("abcdefgh"):
            hb.register(
                name,
                "/sig/*",
                lambda signal, target, stage, i=i: stage.write("/x", i) or (FATAL if i == 5 else None),
            )
        for i in range(3):
            hb.signal(f"/sig/{i}")
        report = hb.beat()
        hb.close()
        return [report.digest, report.agenda, [(d.code, d.names) for d in report.diagnostics], hb.read("/x")]

    assert told() == told(parallel="threads")


async def test_workers_do_not_hold_up_the_loop() -> None:
    hb = Heartbeat(parallel="threads", workers=2)
    loop_goes_on = threading.Event()

    def waits(signal: str | None, target: str | None, stage: Any) -> int | None:
        stage.write("/x", 1)
        return None if loop_goes_on.wait(30) else -5

    hb.register("a", "/sig", waits)

    async def later(signal: str | None, target: str | None, stage: Any) -> None:
        stage.write("/y", 2)

    hb.register("b", "/sig", later, after=("a",))
    hb.signal("/sig")
    beat = asyncio.ensure_future(hb.abeat())
    await asyncio.sleep(0)
    loop_goes_on.set()
    report = await beat
    assert [(entry.enzyme, entry.result) for entry in report.agenda] == [("a", "ok"), ("b", "ok")]
    assert (hb.read("/x"), hb.read("/y")) == (1, 2)
    hb.close()
