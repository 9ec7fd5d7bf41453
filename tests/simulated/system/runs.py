"""What clients do to runs: cancel, try again, forget them, change them while they wait, and many of them at once.

A part of the scenario in `promises`.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import msgspec

from mainspring import App, Effect, Fail, Sleep, WaitSignal, resume
from mainspring.client import CannotConnect, Client
from mainspring.log import Append
from mainspring.runs import Value
from mainspring.testing.simulation import PlannedStep, Rest, operation
from tests.simulated.system.verbs import Verbs

ELSEWHERE = 409  # the run is executed by another node, or not at all at the moment


class Note(Effect[int]):
    """An effect that writes an event together with its answer."""

    run: str
    number: int


class RunVerbs(Verbs):
    def __init__(self) -> None:
        super().__init__()
        self.outcomes: dict[str, str] = {}  # what a client was told
        self.mended: set[str] = set()
        self.forgotten: set[str] = set()
        self.booked: dict[str, dict[str, int]] = {}  # of a run: the entries that it was told are stored, and as which

    def declare_verbs(self, app: App) -> None:
        super().declare_verbs(app)

        @app.handles(Note)
        def note(effect: Note, ctx: Any) -> Any:
            payload = msgspec.json.encode({"run": effect.run, "step": effect.number})
            ctx.batch.append(Append("steps", 0, self._new_id(), ctx.wall_ms(), payload))
            return resume(effect.number)

        @app.run
        async def job(name: str, waits: bool, perform: Any) -> list[int]:
            answers = [await perform(Note(name, 1))]
            await perform(Sleep(ms=200))
            answers.append(await perform(WaitSignal("go")) if waits else 0)
            answers.append(await perform(Note(name, 2)))
            return answers

        @app.run
        async def fragile(name: str, perform: Any) -> int:
            number = await perform(Note(name, 1))
            if name not in self.mended:
                raise ValueError("not yet")
            return int(number)

        @app.run
        async def account(perform: Any) -> list[str]:
            entries: list[str] = []

            @perform.update
            def book(entry: str) -> int:
                entries.append(entry)
                return len(entries)

            await perform(Sleep(ms=300))
            await perform(WaitSignal("close"))
            return entries

    # -- cancelled, or failed and tried again

    @operation
    async def cancel_run(self, client: Client, step: PlannedStep) -> None:
        id = f"c-{step.id}"
        await self._insist(client, lambda: client.start_run("job", id, True, id=id))
        await asyncio.sleep(step.random.uniform(0, 1))
        if step.random.random() < 0.3:
            await self._insist(client, lambda: client.signal(id, "go", 7))
        await self._insist(client, lambda: client.cancel(id, "no longer needed"))
        self.outcomes[id] = await self._ask_outcome(client, id)

    @operation
    async def mend_run(self, client: Client, step: PlannedStep) -> None:
        id, tries = f"m-{step.id}", itertools.count()

        async def start() -> None:
            next(tries)
            await client.command("Run.Start", {"program": "fragile", "args": [id], "id": id}, timeout=30)

        await self._insist(client, start)
        assert await self._ask_outcome(client, id) == "failed"
        self.mended.add(id)
        try:
            await self._insist(client, lambda: client.retry_run(id))
        except Fail as error:
            if error.code != 409:  # an answer that was lost: it goes on already, or is over
                raise
        self.outcomes[id] = await self._ask_outcome(client, id)
        assert self.outcomes[id] == "done"
        if next(tries) == 1 and step.random.random() < 0.5:  # else the first try may come when the id is free again
            await self._forget(client, id)

    async def _forget(self, client: Client, id: str) -> None:
        del self.outcomes[id]
        try:
            await self._insist(client, lambda: client.forget_run(id))
        except Fail as error:
            if error.code != 404:  # an answer that was lost: it is gone already
                raise
        self.forgotten.add(id)

    async def _ask_outcome(self, client: Client, id: str) -> str:
        outcome = await self._insist(client, lambda: client.outcome(id))
        return "done" if isinstance(outcome, Value) else type(outcome).__name__.lower()

    # -- many at once

    @operation
    async def change_runs(self, client: Client, step: PlannedStep) -> None:
        """All runs in a state: those that failed go on, or those that wait are cancelled."""
        ids, retries = [f"b-{step.id}-{n}" for n in range(2)], step.random.random() < 0.5
        for id in ids:
            args = ("fragile", id) if retries else ("job", id, True)
            await self._insist(client, lambda args=args, id=id: client.start_run(*args, id=id))  # type: ignore[misc]
        if retries:
            assert [await self._ask_outcome(client, id) for id in ids] == ["failed", "failed"]
            self.mended.update(ids)
        action, state = ("retry", "failed") if retries else ("cancel", "running")
        changing: dict[str, Any] = {"state": state, "prefix": f"b-{step.id}-"}
        await self._insist(client, lambda: client.change_runs(action, **changing))  # type: ignore[arg-type]
        wanted = "done" if retries else "cancelled"
        for id in ids:
            self.outcomes[id] = await self._ask_outcome(client, id)
            assert self.outcomes[id] == wanted, f"{action} of all runs: {id} is {self.outcomes[id]}"

    # -- changed while it waits

    @operation(weight=2)
    async def update_run(self, client: Client, step: PlannedStep) -> None:
        id = f"u-{step.id}"
        await self._insist(client, lambda: client.start_run("account", id=id))
        for n in range(step.random.randint(1, 4)):
            await asyncio.sleep(step.random.uniform(0, 0.4))
            entry = f"{id}.{n}"
            try:
                number = await client.update_run(id, "book", entry)
            except CannotConnect:
                continue  # it may be stored
            except Fail as error:
                if error.code not in (ELSEWHERE, 503, 504):
                    raise
            else:
                self.booked.setdefault(id, {})[entry] = number
        await asyncio.sleep(step.random.uniform(0, 3))
        await self._insist(client, lambda: client.signal(id, "close"))
        self.outcomes[id] = await self._ask_outcome(client, id)

    # -- what must be true

    async def check_verbs(self, end: Rest) -> None:
        await super().check_verbs(end)
        store = end.nodes[0].runtime.durable.store
        for id, outcome in self.outcomes.items():
            record = await store.record(id)
            end.require(record.state == outcome, f"run {id} was told to be {outcome} and is {record.state}")
        for id in self.forgotten:
            left = [each.id for each in await store.runs() if each.id == id], await store.journal(id)
            end.require(left == ([], []), f"of run {id}, which was forgotten, there is {left}")
        for id, booked in self.booked.items():
            entries = msgspec.json.decode((await store.record(id)).value)
            end.require(len(set(entries)) == len(entries), f"run {id} has entries twice: {entries}")
            told = {entry: entries.index(entry) + 1 if entry in entries else 0 for entry in booked}
            end.require(told == booked, f"run {id} told {booked}, and ended with {entries}")
