"""The scheduler contract as data: `conformance.json` holds cases any host can run; this file is the Python host."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mainspring.loop import VirtualClock
from mainspring.runs import (
    Cancelled,
    Effect,
    Failed,
    Later,
    NotIdle,
    Now,
    Runtime,
    Sleep,
    Value,
    end,
    resume,
    tail,
)

CASES = json.loads(Path(__file__).with_name("conformance.json").read_text())["cases"]


class Hop(Effect[int]):
    n: int


class Wait(Effect[int]):
    name: str


class Note(Effect[None], kind="tail"):
    text: str


class Host:
    """Runs one case."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.case = case
        self.log: list[str] = []
        self.failures: list[str] = []
        self.letters: dict[str, str] = {}
        self.runs: dict[str, Any] = {}
        self.waiting: dict[str, Later] = {}
        self.clock = VirtualClock(case.get("start", 0), case.get("wall"))
        budget = case.get("budget")
        self.runtime = Runtime(
            clock=self.clock,
            max_steps_per_tick=float(budget) if budget is not None else None,
            trace=True,
            on_failure=lambda error, run_id: self.failures.append(self.letters.get(run_id, "?")),
        )
        self.install(case.get("handlers", {}))

    def install(self, chosen: dict[str, str]) -> None:
        hop, note = chosen.get("hop", "answer"), chosen.get("note", "answer")
        if hop != "none":
            self.runtime.handle(Hop, lambda effect, ctx: self.hop(effect, ctx, hop), strict=hop.startswith("strict"))
        if note != "none":
            self.runtime.handle(Note, lambda effect, ctx: self.note(effect, note))
        self.runtime.handle(Wait, self.wait)

    def hop(self, effect: Hop, ctx: Any, mode: str) -> Any:
        self.log.append(f"hop:{effect.n}")
        if mode == "raise":
            raise RuntimeError("handler says no")
        if mode == "cancel-and-answer":
            ctx.run.cancel("inside")
        if mode == "cleanups":
            ctx.on_close(lambda: self.log.append("c1"))
            ctx.on_close(lambda: 1 / 0)
            ctx.on_close(lambda: self.log.append("c2"))
        answers = {"tail": tail(effect.n), "end": end(effect.n), "strict-nothing": None, "strict-number": 7}
        return answers.get(mode, resume(effect.n))

    def note(self, effect: Note, mode: str) -> Any:
        self.log.append(f"note:{effect.text}")
        return {"resume": resume(), "end": end()}.get(mode, tail())

    def wait(self, effect: Wait, ctx: Any) -> Later:
        self.log.append(f"wait:{effect.name}")
        self.waiting[effect.name] = ctx.later()
        return self.waiting[effect.name]

    def start(self, letter: str, program: list[list[Any]]) -> None:
        self.known(letter, self.runtime.start(self.program, letter, program))

    def known(self, letter: str, run: Any) -> Any:
        self.letters[run.id], self.runs[letter] = letter, run
        return run

    async def program(self, letter: str, instructions: list[list[Any]], perform: Any) -> Any:
        for name, *given in instructions:
            if name == "hop":
                assert await perform(Hop(given[0])) == given[0]
            elif name == "note":
                await perform(Note(given[0]))
            elif name == "wait":
                self.log.append(f"got:{await perform(Wait(given[0]))}")
            elif name == "sleep":
                await perform(Sleep(ms=float(given[0])))
            elif name == "now":
                self.log.append(f"now:{await perform(Now())}")
            elif name == "start":
                self.start(given[0], [["return", 1]])
                await perform(Hop(0))
            elif name == "cancel-self":
                assert self.runs[letter].cancel(given[0]) is True
            elif name == "cancel":
                assert self.runs[given[0]].cancel(given[1]) is True
            elif name == "forever":
                while True:
                    await perform(Hop(0))
            elif name == "raise":
                raise RuntimeError(given[0])
            elif name == "return":
                return given[0]
            else:
                await self.task(perform, name, *given)
        return None

    async def task(self, perform: Any, name: str, letter: str, *given: Any) -> None:
        """Instructions about children."""
        if name == "spawn":
            self.known(letter, perform.spawn(self.program, letter, *given))
        elif name == "detach":
            self.known(letter, perform.detach(self.program, letter, *given))
        elif name in ("join", "joined"):
            child = self.runs[letter] if name == "joined" else perform.spawn(self.program, letter, *given)
            kind, what = shown(await perform.join(self.known(letter, child)))
            self.log.append(f"joined:{kind} {what}")
        elif name == "after":
            async with perform.group() as group:
                self.known(letter, group.after(given[0] / 1000, self.program, letter, given[1]))
        else:
            every_ms, overlap, until_ms, callback = given
            async with perform.group() as group:
                interval = group.every(every_ms / 1000, self.program, letter, callback, overlap=overlap)
                self.known(letter, interval)
                await perform(Sleep(ms=until_ms))
                interval.cancel()

    def do(self, action: str, *given: Any) -> None:
        if action == "answer":
            self.waiting[given[0]].resume(given[1])
        elif action == "fail":
            self.waiting[given[0]].fail(RuntimeError(given[1]))
        elif action == "cancel":
            assert self.runs[given[0]].cancel(given[1]) is given[2]
        elif action == "limit":
            with pytest.raises(NotIdle, match=str(given[0])):
                self.runtime.run_until_idle(max_ticks=given[0])
        elif action == "handle":
            self.install({})
        elif action == "advance":
            self.runtime.advance(given[0])
        elif action == "tick":
            self.runtime.tick()
        else:
            self.runtime.run_until_idle()

    def notation(self) -> str:
        shown = []
        for entry in self.runtime.trace:
            kind, *rest = entry.split(" ")
            if kind == "tick":
                shown.append(f"|{rest[0]}")
            elif kind == "step":
                shown.append(self.letters.get(rest[0], "?") + rest[1])
        return " ".join(shown)


def shown(outcome: Any) -> Any:
    match outcome:
        case Value(value):
            return ["value", value]
        case Failed(error):
            return ["failed", str(error)]
        case Cancelled(reason):
            return ["cancelled", reason]
        case other:
            return other


@pytest.mark.parametrize("case", CASES, ids=[f"{case['case']} {case['title']}" for case in CASES])
def test_the_contract(case: dict[str, Any]) -> None:
    host = Host(case)
    for letter, program in case["runs"].items():
        host.start(letter, program)
    for action in case["do"]:
        host.do(*action)
    if "trace" in case:
        assert host.notation() == case["trace"]
    for letter, expected in case.get("outcomes", {}).items():
        got = shown(host.runs[letter].outcome_now())
        if expected is not None and expected[0] == "failed":
            assert got[0] == "failed"
            assert expected[1] in got[1]
        else:
            assert got == expected
    if "log" in case:
        assert [line for line in host.log if not line.startswith("got:") or case["case"] == "13"] == case["log"]
    if "failures" in case:
        assert host.failures == case["failures"]
    if "late" in case:
        assert host.runtime.late_completions == case["late"]
    if "ids" in case:
        assert [run.id for run in host.runs.values()] == case["ids"]
    if "clock" in case:
        assert [host.clock.now_ms(), host.clock.wall_ms()] == case["clock"]
