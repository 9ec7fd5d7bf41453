"""Reading durable runs: one, many, and everything needed to go on with one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec

from mainspring.log import Batch, Delete, Log
from mainspring.runs.errors import RunError
from mainspring.runs.journal import (
    DONE,
    JOURNAL,
    RUNS,
    SIGNALS,
    Entry,
    RunRecord,
    child_id,
    decode_entry,
    decode_record,
)

_CHILD_MARK = child_id("", 0)[:-1]


class UnknownRun(RunError):
    """No durable run has this id."""

    code = "unknown_run"


class Loaded(msgspec.Struct):
    """What the log knows about a run: enough to go on with it."""

    record: RunRecord
    entries: list[Entry]
    signals: list[tuple[str, str, Any]]  # key of the record, name, value
    children: dict[str, Loaded]


class History(msgspec.Struct):
    """A run and its journal, for people and for checking."""

    run: RunRecord
    journal: list[Entry]


class Store:
    """The durable runs in one log."""

    def __init__(self, log: Log) -> None:
        self._log = log

    async def record(self, run_id: str) -> RunRecord:
        found = await self._log.get(RUNS, run_id)
        if found is None:
            raise UnknownRun(f"no durable run has the id {run_id!r}", remedy="`mainspring runs list` shows all")
        return decode_record(found.value)

    async def journal(self, run_id: str) -> list[Entry]:
        """The entries of a run in order."""
        return [decode_entry(record.value) async for record in self._log.scan(JOURNAL, f"{run_id}#")]

    async def history(self, run_id: str) -> History:
        return History(await self.record(run_id), await self.journal(run_id))

    async def signals(self, run_id: str) -> list[tuple[str, str, Any]]:
        """The signals nobody received yet, oldest first for each name."""
        return [
            (record.key, record.key.split("#")[1], msgspec.json.decode(record.value))
            async for record in self._log.scan(SIGNALS, f"{run_id}#")
        ]

    async def load(self, record: RunRecord) -> Loaded:
        """A run with everything that belongs to it, its children included."""
        children = {}
        async for found in self._log.scan(RUNS, record.id + _CHILD_MARK):
            child = decode_record(found.value)
            children[child.id] = await self._alone(child)
        loaded = await self._alone(record)
        loaded.children = children
        return loaded

    async def _alone(self, record: RunRecord) -> Loaded:
        if record.state != "running":
            return Loaded(record, [], [], {})
        return Loaded(record, await self.journal(record.id), await self.signals(record.id), {})

    async def list(
        self, *, state: str | None = None, prefix: str = "", after: str = "", limit: int | None = None
    ) -> list[RunRecord]:
        """Runs by id, optionally only those in one state."""
        found: list[RunRecord] = []
        async for record in self._log.scan(RUNS, prefix, after):
            run = decode_record(record.value)
            if state is None or run.state == state:
                found.append(run)
                if limit is not None and len(found) >= limit:
                    break
        return found

    async def ended_before(self, wall_ms: int) -> AsyncIterator[tuple[str, str]]:
        """Finished runs, the oldest first: the key of their mark, and their id."""
        async for mark in self._log.scan(DONE):
            ended, run_id = mark.key.split("#", 1)
            if int(ended) >= wall_ms:
                return
            yield mark.key, run_id

    async def forget(self, mark: str, run_id: str) -> None:
        """Remove a finished run and all it left."""
        batch = Batch([Delete(DONE, mark)])
        found = await self._log.get(RUNS, run_id)
        record = None if found is None else decode_record(found.value)
        if record is not None and record.state != "running" and mark == f"{record.updated:015d}#{run_id}":
            batch.delete(RUNS, run_id)
            for space in (JOURNAL, SIGNALS):
                async for entry in self._log.scan(space, f"{run_id}#"):
                    batch.delete(space, entry.key)
        await self._log.commit(batch)
