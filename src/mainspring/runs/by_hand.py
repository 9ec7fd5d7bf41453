"""What people do to durable runs: try a failed one again, and branch off from an old one.

A retry keeps the journal: what was answered stays answered, the effect that failed is performed again, and the program
may have been repaired meanwhile. A fork copies the first answers of another run into a new one and goes on from there;
the old run stays as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mainspring.log import ABSENT, Delete, Guard, Operation, Put
from mainspring.runs.errors import RunError
from mainspring.runs.journal import JOURNAL, LIVE, RUNS, RunRecord, check_id, encode_record, entry_key
from mainspring.runs.run import Run

if TYPE_CHECKING:
    from mainspring.runs.durable_runs import DurableRuns


class RunConflict(RunError):
    """The id belongs to another run, or to a run of another program."""

    code = "run_conflict"


class NotFinished(RunError):
    """Only a finished run can be retried."""

    code = "not_finished"


def beginning(record: RunRecord) -> list[Operation]:
    """What must be stored for a new run: its record, if the id was never used."""
    return [Guard(RUNS, record.id, ABSENT), Put(LIVE, record.id, encode_record(record), ABSENT)]


async def retry(durable: DurableRuns, run_id: str) -> Run[Any]:
    """Go on with a run that failed or was cancelled."""
    record, version = await durable.store.found(run_id)
    if record.state not in ("failed", "cancelled"):
        raise NotFinished(f"run {run_id} is {record.state}", remedy="only failed and cancelled runs are retried")
    durable.programs.get(record.program)
    again = durable.new_record(record.id, record.program, record.args)
    again.created, again.retries = record.created, record.retries + 1
    again.parent, again.has_children = record.parent, record.has_children
    again.forked_from, again.forked_at = record.forked_from, record.forked_at
    if not await durable.commit([Delete(RUNS, run_id, version), Put(LIVE, run_id, encode_record(again), ABSENT)]):
        raise NotFinished(f"run {run_id} changed meanwhile", remedy="look at it again")
    return (await durable.revive([again]))[0]


async def fork(durable: DurableRuns, run_id: str, at: int, new_id: str | None) -> Run[Any]:
    """Start a new run with the first answers of another."""
    history = await durable.store.history(run_id)
    known = [entry for entry in history.journal if entry.answered]
    if not 0 <= at <= len(known):
        raise RunError(f"run {run_id} has {len(known)} answered effects, not {at}", remedy="choose a step it took")
    new_id = check_id(new_id) if new_id is not None else durable.fresh_id()
    record = durable.new_record(new_id, history.run.program, history.run.args)
    record.forked_from, record.forked_at = run_id, at
    durable.programs.get(record.program)
    copies = [Put(JOURNAL, entry_key(new_id, i), encode_record(entry)) for i, entry in enumerate(known[:at])]
    if not await durable.commit([*beginning(record), *copies]):
        raise RunConflict(f"the id {new_id!r} is taken", remedy="choose another id")
    return (await durable.revive([record]))[0]
