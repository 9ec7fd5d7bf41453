"""What people do to durable runs: try a failed one again, branch off from an old one, forget what is over.

A retry keeps the journal: what was answered stays answered, the effect that failed is performed again, and the program
may have been repaired meanwhile. Children whose end was the run's own end are tried again with it: else a run that
failed because of a child could only fail again. A fork copies the first answers of another run into a new one, and the
children those answers rest on, and goes on from there; the old run stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mainspring.log import ABSENT, Delete, Operation, Put, Refused
from mainspring.runs.durable.records import (
    DONE,
    JOURNAL,
    LIVE,
    RUNS,
    UNFINISHED,
    UPDATES,
    JournaledEffect,
    RunRecord,
    beginning,
    check_id,
    child_id,
    child_number,
    done_key,
    encode_record,
    entry_key,
    note_key,
)
from mainspring.runs.durable.writer import taken_over
from mainspring.runs.errors import NotFinished, RunConflict, RunError
from mainspring.runs.run import Run
from mainspring.runs.tree import taken_along_by
from mainspring.runs.values import Raw, decode, encode, reason_json

if TYPE_CHECKING:
    from mainspring.runs.durable.blocked import Keep
    from mainspring.runs.durable.durable_runs import DurableRuns


_ABOUT_RUNS: Final = frozenset({"Join", "HasEnded", "Until"})


async def retry(durable: DurableRuns, run_id: str, keep: Keep) -> Run[Any]:
    """Go on with a run that failed or was cancelled, and with the children that ended with it."""
    record, version = await durable.store.record_with_version(run_id)
    if record.state not in ("failed", "cancelled"):
        raise NotFinished(
            f"run {run_id} is {record.state}", remedy="only failed, cancelled and blocked runs are retried"
        )
    _check_whole(record)
    if keep == "fitting":
        raise NotFinished(f"run {run_id} is {record.state}, not blocked", remedy="retry it with its whole journal")
    if keep == "nothing":
        return await _restart(durable, record, version)
    durable.ownership.require_program(record.program)
    operations: list[Operation] = []
    agains = []
    for each, known in await _with_its_children(durable, record, version):
        agains.append(_once_more(durable, each))
        agains[0].attached = False  # a run that is tried again by hand stands on its own
        operations += [Put(LIVE, each.id, encode_record(agains[-1]), ABSENT), Delete(RUNS, each.id, known)]
        if each.state == "failed":
            operations += await _forget_failure(durable, each.id)
    if not await _was_stored(durable, operations):
        raise NotFinished(f"run {run_id} changed meanwhile", remedy="look at it again")
    tried = {again.id for again in agains}
    return await durable.go_on_with(agains[0], *(each for each in agains[1:] if each.parent not in tried))


async def _was_stored(durable: DurableRuns, operations: list[Operation]) -> bool:
    """False: the runs are not as they were read. Raises TakenOver when it was this node's lease that was over."""
    times_lost = durable.ownership.times_lost
    if await durable.commit(operations):
        return True
    if not await durable.ownership.still_entitled() or durable.ownership.times_lost != times_lost:
        raise taken_over()
    return False


async def _restart(durable: DurableRuns, record: RunRecord, version: int) -> Run[Any]:
    """Go on with a finished run as if it had never taken a step: its journal and its children are removed."""
    durable.ownership.require_program(record.program)
    again = _once_more(durable, record)
    again.attached = False
    operations: list[Operation] = [Put(LIVE, record.id, encode_record(again), ABSENT), Delete(RUNS, record.id, version)]
    operations += [each async for each in durable.blocked.forgetting(record.id, 0, 0)]
    if not await _was_stored(durable, operations):
        raise NotFinished(f"run {record.id} changed meanwhile", remedy="look at it again")
    return await durable.go_on_with(again)


async def _forget_failure(durable: DurableRuns, run_id: str) -> list[Operation]:
    """The effect that a run failed with is performed again, and its attempts are counted from the first again."""
    journal = await durable.store.journal(run_id)
    if not journal or not (journal[-1].error or (journal[-1].attempts and not journal[-1].answered)):
        return []
    last, index = journal[-1], len(journal) - 1
    if last.answered:
        return [Delete(JOURNAL, entry_key(run_id, index))]
    key = (note_key if durable.ownership.keeps_notes_apart else entry_key)(run_id, index)
    return [Put(JOURNAL, key, encode_record(msgspec.structs.replace(last, attempts=0, failures=[])))]


def _once_more(durable: DurableRuns, record: RunRecord) -> RunRecord:
    """A finished run as an unfinished one, with what it came from."""
    again = durable.new_record(record.id, record.program, record.args)
    again.created, again.retries = record.created, record.retries + 1
    again.parent, again.attached = record.parent, record.attached
    again.has_children = again.has_children or record.has_children
    again.forked_from, again.forked_at = record.forked_from, record.forked_at
    again.causation, again.correlation, again.traceparent = record.causation, record.correlation, record.traceparent
    return again


async def _with_its_children(durable: DurableRuns, record: RunRecord, version: int) -> list[tuple[RunRecord, int]]:
    """A run, and those below it whose end was its own: the ones that failed it, and the ones it took along."""
    found = [(record, version)]
    if not record.has_children:
        return found
    joined = {record.id: _joined(await durable.store.journal(record.id))}
    parents = {record.id: record}
    async for child, known in durable.store.ended_below(record.id):
        parent = parents.get(child.parent or "")
        if parent is None:  # it ended well: below it only what was detached, and so the root's, ended with the root
            together = child.state == "cancelled" and _was_taken_along(child, None, record)
        else:
            together = child.id not in joined[parent.id] and _ended_together(child, parent, record)
        if together:
            found.append((child, known))
            parents[child.id] = child
            joined[child.id] = _joined(await durable.store.journal(child.id)) if child.has_children else set()
    return found


def _ended_together(child: RunRecord, owner: RunRecord, root: RunRecord) -> bool:
    if child.state != "cancelled":
        return child.state == "failed"
    return _was_taken_along(child, owner, root)


def _was_taken_along(child: RunRecord, owner: RunRecord | None, root: RunRecord) -> bool:
    """Whether a cancelled child ended because its owner or the root did.

    Records of former versions do not say; there the reason is compared with the one that such children got.
    """
    if child.ended_with is not None:
        return child.ended_with == root.id or (owner is not None and child.ended_with == owner.id)
    reason = bytes(child.reason)
    return (owner is not None and reason == _reason_of_children(owner)) or (
        reason == _reason_of_children(root) != b"null"
    )


def _reason_of_children(owner: RunRecord) -> bytes:
    """The reason that children get which an owner takes along."""
    return bytes(owner.reason if owner.state == "cancelled" else reason_json(taken_along_by(owner.id)))


def _joined(journal: Iterable[JournaledEffect]) -> set[str]:
    """The runs whose outcomes a journal knows."""
    return {decode(entry.args)["run"] for entry in journal if entry.effect == "Join" and entry.answered}


async def fork(durable: DurableRuns, run_id: str, at: int, new_id: str | None) -> Run[Any]:
    """Start a new run with the first answers of another, and with what its children had given by then."""
    history = await durable.store.history(run_id)
    _check_whole(history.run)
    known = [entry for entry in history.journal if entry.answered]
    if not 0 <= at <= len(known):
        raise RunError(f"run {run_id} has {len(known)} answered effects, not {at}", remedy="choose a step it took")
    new_id = check_id(new_id) if new_id is not None else durable.fresh_id()
    record = durable.new_record(new_id, history.run.program, history.run.args)
    record.forked_from, record.forked_at = run_id, at
    durable.ownership.require_program(record.program)
    copies: list[Operation] = []
    for index, entry in enumerate(known[:at]):
        copies.append(Put(JOURNAL, entry_key(new_id, index), encode_record(_renamed(entry, run_id, new_id))))
    copies += [
        Put(UPDATES, new_id + row.key[len(run_id) :], row.value)
        async for row in durable.log.scan(UPDATES, f"{run_id}#")
        if row.key < entry_key(run_id, at)
    ]
    if at and history.run.has_children:
        joined, last = _joined(known[:at]), known[at - 1].at
        async for child, _ in durable.store.ended_children(run_id):
            if child.id in joined or (child.state == "done" and child.created <= last):
                record.has_children = True
                copies += _copied(child, new_id)
    if not await _was_stored(durable, [*beginning(record), *copies]):
        raise RunConflict(f"the id {new_id!r} is taken", remedy="choose another id")
    return await durable.go_on_with(record)


def _renamed(entry: JournaledEffect, old_id: str, new_id: str) -> JournaledEffect:
    """An entry about a child of one run as an entry about the same child of another."""
    arguments = decode(entry.args)
    about = arguments.get("run") if isinstance(arguments, dict) else None
    number = child_number(about, old_id) if isinstance(about, str) else None
    if entry.effect not in _ABOUT_RUNS or number is None:
        return entry
    renamed = {**arguments, "run": child_id(new_id, number)}
    return msgspec.structs.replace(entry, args=Raw(encode(renamed, entry.effect)))


def _copied(child: RunRecord, new_parent: str) -> list[Operation]:
    """A finished child, for another parent: what it did is not done again."""
    number = child_number(child.id, child.parent or "")
    assert number is not None
    copy = msgspec.structs.replace(
        child, id=child_id(new_parent, number), parent=new_parent, has_children=False, forked_from=child.id
    )
    return [Put(RUNS, copy.id, encode_record(copy), ABSENT), Put(DONE, done_key(copy.updated, copy.id), b"null")]


def _check_whole(record: RunRecord) -> None:
    if record.forgotten:
        raise NotFinished(f"run {record.id} is being forgotten", remedy="start a new run")


async def forget(durable: DurableRuns, run_id: str) -> int:
    """Remove a finished run, what it left, and the finished runs below it; how many runs."""
    record = await durable.store.record(run_id)
    if record.state in UNFINISHED:
        raise RunConflict(f"run {run_id} is {record.state}", remedy="cancel it first")
    below = [child.id async for child, _ in durable.store.ended_below(run_id)]
    try:
        if not await durable.store.forget(run_id):
            raise RunConflict(f"run {run_id} belongs to {record.parent}, which is not over", remedy="cancel that first")
        return 1 + sum([await durable.store.forget(child) for child in below])
    except Refused:
        raise RunConflict(f"run {run_id} changed meanwhile", remedy="look at it again") from None
