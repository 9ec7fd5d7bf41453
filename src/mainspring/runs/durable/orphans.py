"""Runs that are unfinished although their parent is over.

A parent ends after its attached children, or takes them along. But each ending is written down by itself, so a process
can die when that of the parent is stored and that of a child is not. Whoever takes up unfinished runs ends such a child
then: without its parent, nobody else would. A detached one has outlived its parent rightfully and goes on; it belongs
to the root of its tree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from mainspring.runs.durable.records import LIVE, RunRecord, decode_record, root_id
from mainspring.runs.durable.store import CHILD_MARK, UnknownRun
from mainspring.runs.outcome import Cancelled
from mainspring.runs.run import Run
from mainspring.runs.tree import adopt, taken_along_by

if TYPE_CHECKING:
    from mainspring.runs.durable.durable_runs import DurableRuns


async def end_attached(durable: DurableRuns, records: Iterable[RunRecord]) -> list[RunRecord]:
    """End those that should have ended with their parent, and what is attached to them; the others are given back."""
    rightful: list[RunRecord] = []
    for record in records:
        if record.parent is None or not record.attached:
            rightful.append(record)
        else:
            await _end(durable, record, await _reason(durable, record.parent))
    return rightful


async def _end(durable: DurableRuns, record: RunRecord, reason: Any) -> None:
    for loaded in await durable.load([record]):
        if durable.has(loaded) and not durable.executes(record.id):
            durable.end_at_once(loaded, Cancelled(reason))
    async for stored in durable.log.scan(LIVE, record.id + CHILD_MARK):
        child = decode_record(stored.value)
        if child.parent == record.id and child.attached:
            await _end(durable, child, reason)


async def _reason(durable: DurableRuns, parent: str) -> Any:
    try:
        outcome = (await durable.store.record(parent)).outcome()
    except UnknownRun:  # forgotten meanwhile
        outcome = None
    return outcome.reason if isinstance(outcome, Cancelled) else taken_along_by(parent)


def adopt_detached(runs: Iterable[Run[Any]], live: Mapping[str, Run[Any]]) -> None:
    """Runs that are executed again without their parent belong to their root, if that is executed here."""
    for run in runs:
        root = live.get(root_id(run.id))
        if root is not None and root is not run:
            adopt(root, run, detached=True)
