"""Queries and updates: how people outside ask a live run something, and change it.

A program declares functions for both (`perform.query`, `perform.update`) that see its variables. A query reads and is
kept nowhere. An update changes the program's variables while the program waits for an effect, so it has a place in the
journal: it is stored under the index of that effect, and when the program is executed again it is applied there, right
before the effect is answered. What an update raises is its caller's error; the run goes on.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mainspring.log import Put
from mainspring.runs.durable.records import UPDATES, update_key
from mainspring.runs.durable.store import StoredUpdate
from mainspring.runs.errors import NotExecuted, RunError, UnknownQuestion
from mainspring.runs.programs import decode_arguments
from mainspring.runs.run import Run
from mainspring.runs.values import Raw, decode, encode

if TYPE_CHECKING:
    from mainspring.runs.durable.durable_runs import DurableRuns
    from mainspring.runs.durable.state import DurableState

MOST_TURNS: Final = 10_000  # turns of the loop that a run may take before it waits for an effect
Function = Callable[..., Any]


class Answering:
    """What one run answers and lets others change. Made when its program declares the first such function."""

    __slots__ = ("queries", "updates", "validators")

    def __init__(self) -> None:
        self.queries: dict[str, Function] = {}
        self.updates: dict[str, Function] = {}
        self.validators: dict[str, Function] = {}

    def declare(self, kind: str, function: Function, validate: Function | None = None) -> None:
        """Make a function known by its name. It is a plain one: it may not wait, because the program does not."""
        name = function.__name__
        if inspect.iscoroutinefunction(function):
            raise RunError(f"the {kind} {name} is an async function", remedy="write a plain `def`: it may not wait")
        (self.queries if kind == "query" else self.updates)[name] = function
        if validate is not None:
            self.validators[name] = validate


class Questions:
    """Asks the runs that this process executes."""

    def __init__(self, durable: DurableRuns, runs: dict[str, Run[Any]]) -> None:
        self._durable = durable
        self._runs = runs

    async def query(self, run_id: str, name: str, args: list[Any]) -> Any:
        """What a query of a live run gives, as JSON has it."""
        run = await self._waiting(run_id)
        function = _named(run, "query", name)
        return decode(encode(function(*_arguments(function, args)), f"answer of {name}"))

    async def update(self, run_id: str, name: str, args: list[Any]) -> Any:
        """Change a live run; what its function gives, as JSON has it. Stored when this returns."""
        run = await self._waiting(run_id)
        state, function = _state(run), _named(run, "update", name)
        given = Raw(encode(args, "args"))
        if state.answering is not None and name in state.answering.validators:
            state.answering.validators[name](*_arguments(function, args))
        state.updated += 1
        row = StoredUpdate(name, given)
        key = update_key(run.id, state.position, state.updated)
        self._durable.writer.note(Put(UPDATES, key, msgspec.json.encode(row)))
        try:
            answer = encode(function(*_arguments(function, args)), f"answer of {name}")
        finally:
            await self._durable.commit([])  # what was noted before is stored, then
        return decode(answer)

    async def _waiting(self, run_id: str) -> Run[Any]:
        """A run of this process that waits for the answer of an effect: nothing of it moves meanwhile."""
        for _ in range(MOST_TURNS):
            run = self._runs.get(run_id)
            if run is None or run.durable is None or run.done or run.durable.misfit is not None:
                break
            if run.context is not None and run.context.performing and run.durable.entries is None:
                return run
            await asyncio.sleep(0)
        record = await self._durable.store.record(run_id)
        owner = self._durable.ownership.owner_of(record)
        if owner and not self._durable.ownership.owns(record):
            raise NotExecuted(f"run {run_id} is executed by node {owner}", remedy="ask that node", node=owner)
        raise NotExecuted(f"run {run_id} is {record.state} and cannot be asked", remedy="look at its outcome")


def apply_stored(run: Run[Any], updates: list[StoredUpdate]) -> None:
    """Apply updates again, while the program is executed again. What one raises, its caller has got."""
    state = _state(run)
    for update in updates:
        function = None if state.answering is None else state.answering.updates.get(update.name)
        if function is None:
            raise UnknownQuestion(f"run {run.id} has no update {update.name} any more", remedy="declare it again")
        try:
            function(*decode_arguments(function, update.args))
        except Exception:  # as it did when it was stored
            continue


def _named(run: Run[Any], kind: str, name: str) -> Function:
    answering = _state(run).answering or Answering()
    known = answering.queries if kind == "query" else answering.updates
    if name not in known:
        names = ", ".join(sorted(known)) or "none"
        raise UnknownQuestion(f"run {run.id} has no {kind} {name}", remedy=f"it has: {names}")
    return known[name]


def _arguments(function: Function, args: list[Any]) -> tuple[Any, ...]:
    try:
        given = decode_arguments(function, Raw(encode(args, "args")))
        inspect.signature(function).bind(*given)
    except (TypeError, msgspec.ValidationError) as error:
        raise RunError(f"the arguments do not fit {function.__name__}: {error}") from None
    return given


def _state(run: Run[Any]) -> DurableState:
    assert run.durable is not None
    return run.durable
