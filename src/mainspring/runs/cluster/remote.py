"""Handles of runs that are not executed here: how they learn the outcome.

Everything goes through the log; nodes need no connection to each other. A handle of a run that another node executes,
or that waits until its program is registered here, gets its outcome when the run's record says how it ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mainspring.log import ABSENT, KeptRecord
from mainspring.runs.durable.records import RUNS, decode_record
from mainspring.runs.run import Outcome, Run

if TYPE_CHECKING:
    from mainspring.runs.durable.durable_runs import DurableRuns


class RemoteRuns:
    """The handles that wait for a record, by the id of their run."""

    def __init__(self, durable: DurableRuns) -> None:
        self._durable = durable
        self._watched: dict[str, list[Run[Any]]] = {}
        self._looking: set[str] = set()

    def watch(self, handle: Run[Any], *, look: bool = True) -> None:
        """Conclude this handle when the run has ended; `look` whether it has already."""
        self._watched.setdefault(handle.id, []).append(handle)
        if look and handle.id not in self._looking:
            self._looking.add(handle.id)
            self._durable.in_background(self._look_at(handle.id), f"look at run {handle.id}")

    async def _look_at(self, run_id: str) -> None:
        found = await self._durable.ownership.read(lambda: self._durable.log.get(RUNS, run_id))
        self._looking.discard(run_id)
        if found is not None:
            self._finished(run_id, found.value)

    def on_finished(self, record: KeptRecord) -> None:
        """The record of a finished run was written, or removed."""
        if record.key in self._watched and record.version != ABSENT:
            self._finished(record.key, record.value)

    def _finished(self, run_id: str, record: bytes) -> None:
        outcome = self._durable.outcome_of(decode_record(record))
        if outcome is not None:
            self.conclude(run_id, outcome)

    def conclude(self, run_id: str, outcome: Outcome[Any]) -> None:
        """Give the outcome of a run to all handles of it."""
        for handle in self._watched.pop(run_id, ()):
            self._durable.scheduler.conclude(handle, outcome)
