"""Reading durable runs: one, many, and everything needed to go on with them.

A node that starts may find ten thousand unfinished runs among a million finished ones. Their journals are looked up
together: one pass over the keys of all of them, in order, that jumps ahead when it meets too many rows of others. So
recovery costs a few reads for neighbours and one read for a run that stands alone, and nothing for finished runs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from mainspring.log import (
    ABSENT,
    ANY_VERSION,
    Batch,
    DamagedRecord,
    Delete,
    Guard,
    Log,
    Operation,
    Put,
    Receipt,
    Record,
    Refused,
)
from mainspring.runs.durable.records import (
    DONE,
    JOURNAL,
    JOURNAL_READERS,
    LIVE,
    NOTE,
    PROGRESS,
    RECEIVED,
    RUNS,
    SIGNALS,
    UNFINISHED,
    UPDATES,
    JournaledEffect,
    RunRecord,
    child_id,
    decode_entry,
    decode_record,
    done_key,
    encode_record,
)
from mainspring.runs.errors import UnknownRun
from mainspring.runs.values import NULL, Raw

DAMAGED: Final = b"\xff"  # stands for a value whose bytes are not what was written
CHILD_MARK: Final = child_id("", 0)[:-1]
REMOVED_AT_ONCE: Final = 1_000  # records of one commit, which all writers behind it wait for
AddGuard = Callable[[Batch], None]
_PATIENCE: Final = 64  # rows of others that are read before jumping to the next wanted run


class StoredUpdate(msgspec.Struct):
    """One update, and its arguments as a JSON array."""

    name: str
    args: Raw


class LoadedRun(msgspec.Struct):
    """What the log knows about a run: enough to go on with it."""

    record: RunRecord
    entries: list[JournaledEffect]
    signals: list[tuple[str, str, Any]]  # key of the record, name, value
    children: dict[str, LoadedRun]
    version: int = ANY_VERSION  # of its record
    updates: dict[int, list[StoredUpdate]] | None = None  # by the index of the effect
    noted: int = ABSENT  # of a note that stands where the answer comes: from a log that was not shared
    damage: str = ""  # what of it cannot be read: then it cannot be executed


class History(msgspec.Struct):
    """A run and its journal, for people and for checking."""

    run: RunRecord
    journal: list[JournaledEffect]
    progress: Raw = NULL
    updates: dict[int, list[StoredUpdate]] = {}


class RunStore:
    """The durable runs in one log."""

    def __init__(self, log: Log) -> None:
        self._log = log

    # -- one run

    async def record_with_version(self, run_id: str) -> tuple[RunRecord, int]:
        """A run's record and its version; UnknownRun when there is none."""
        stored = await self._first(run_id, LIVE, RUNS)
        if stored is None:
            raise UnknownRun(f"no durable run has the id {run_id!r}", remedy="`mainspring runs list` shows all")
        return decode_record(stored.value), stored.version

    async def live(self, run_id: str) -> Record | None:
        """The record of an unfinished run, with its version; None when there is no such run."""
        return await self._first(run_id, LIVE)

    async def _first(self, run_id: str, *spaces: str) -> Record | None:
        """The record of a run in the first of these spaces that has one."""
        for space in spaces:
            stored = await self._log.get(space, run_id)
            if stored is not None:
                return stored
        return None

    async def record(self, run_id: str) -> RunRecord:
        return (await self.record_with_version(run_id))[0]

    async def journal(self, run_id: str) -> list[JournaledEffect]:
        """The entries of a run in order."""
        entries: list[JournaledEffect] = []
        before = ""
        async for record in self._log.scan(JOURNAL, f"{run_id}#"):
            try:
                before = _add(entries, record, before)
            except msgspec.DecodeError:
                raise DamagedRecord(JOURNAL, record.key, record.version) from None
        return entries

    async def history(self, run_id: str) -> History:
        record, journal, progress = await self.record(run_id), await self.journal(run_id), await self.progress(run_id)
        return History(record, journal, progress, (await self._updates([run_id])).get(run_id, {}))

    async def progress(self, run_id: str) -> Raw:
        """What the run published last with `perform.progress`; null when it did not."""
        stored = await self._log.get(PROGRESS, run_id)
        return NULL if stored is None else Raw(stored.value)

    # -- many runs

    async def runs(
        self,
        *,
        state: str | None = None,
        program: str | None = None,
        prefix: str = "",
        after: str = "",
        limit: int | None = None,
    ) -> list[RunRecord]:
        """Runs by id, optionally only those in one state or of one program."""
        found: list[RunRecord] = []
        for space in (LIVE, RUNS):
            if state is None or (state in UNFINISHED) == (space == LIVE):
                count = 0
                async for stored in self._log.scan(space, prefix, after):
                    record = decode_record(stored.value)
                    if state in (None, record.state) and program in (None, record.program):
                        found.append(record)
                        count += 1
                        if count == limit:
                            break
        return sorted(found, key=lambda record: record.id)[:limit]

    async def load(self, records: Iterable[RunRecord], versions: Mapping[str, int] | None = None) -> list[LoadedRun]:
        """Unfinished runs with everything that belongs to them, their children included.

        `versions` has those of the runs' records, for a log on which other nodes could change them.
        """
        versions = versions or {}
        roots = [LoadedRun(record, [], [], {}, versions.get(record.id, ANY_VERSION)) for record in records]
        loaded = {root.record.id: root for root in roots}
        for root in roots:
            if root.record.has_children:
                async for child in self._children(root.record):
                    # A detached one whose parent is over is a root of its own here: both are the same run.
                    root.children[child.record.id] = loaded.setdefault(child.record.id, child)
        unfinished = [run_id for run_id, each in loaded.items() if each.record.state in UNFINISHED]
        before = ""
        async for run_id, stored in self._of_runs(JOURNAL, unfinished):
            if self._is_readable(loaded[run_id], JOURNAL, stored):
                before = _add(loaded[run_id].entries, stored, before)
                if not (stored.key.endswith(NOTE) or loaded[run_id].entries[-1].answered):
                    loaded[run_id].noted = stored.version
        signals: list[tuple[int, str, Record]] = []
        async for run_id, stored in self._of_runs(SIGNALS, unfinished):
            if stored.value != RECEIVED and self._is_readable(loaded[run_id], SIGNALS, stored):
                signals.append((stored.version, run_id, stored))
        for _, run_id, stored in sorted(signals, key=lambda each: each[0]):  # in the order they came
            name = stored.key.split("#", 2)[1]
            loaded[run_id].signals.append((stored.key, name, msgspec.json.decode(stored.value)))
        async for run_id, stored in self._of_runs(UPDATES, unfinished):
            self._is_readable(loaded[run_id], UPDATES, stored)
        for run_id, updates in (await self._updates(run for run in unfinished if not loaded[run].damage)).items():
            loaded[run_id].updates = updates
        return roots

    def _is_readable(self, run: LoadedRun, space: str, stored: Record) -> bool:
        """Whether a record that belongs to a run can be read; if not, the run says so."""
        if not is_readable(space, stored):
            run.damage = run.damage or f"the record {stored.key!r} in {space!r} cannot be read"
        return not run.damage

    async def _updates(self, run_ids: Iterable[str]) -> dict[str, dict[int, list[StoredUpdate]]]:
        """The updates of these runs, by the index of the effect during which each was made."""
        found: dict[str, dict[int, list[StoredUpdate]]] = {}
        async for run_id, stored in self._of_runs(UPDATES, run_ids):
            index, update = int(stored.key.split("#", 2)[1]), msgspec.json.decode(stored.value, type=StoredUpdate)
            found.setdefault(run_id, {}).setdefault(index, []).append(update)
        return found

    async def _children(self, root: RunRecord) -> AsyncIterator[LoadedRun]:
        for space in (LIVE, RUNS):
            async for stored in self._log.scan(space, root.id + CHILD_MARK):
                yield LoadedRun(decode_record(stored.value), [], [], {}, stored.version)

    async def ended_children(self, run_id: str) -> AsyncIterator[tuple[RunRecord, int]]:
        """The finished children of a run, without theirs; each with the version of its record."""
        async for record, version in self.ended_below(run_id):
            if record.parent == run_id:
                yield record, version

    async def ended_below(self, run_id: str) -> AsyncIterator[tuple[RunRecord, int]]:
        """Every finished run below another, parents before their children; each with the version of its record."""
        async for stored in self._log.scan(RUNS, run_id + CHILD_MARK):
            yield decode_record(stored.value), stored.version

    async def _of_runs(self, space: str, run_ids: Iterable[str]) -> AsyncIterator[tuple[str, Record]]:
        """The records `id#...` of all these runs, in the order of their keys, with the id of each."""
        wanted = sorted(f"{run_id}#" for run_id in run_ids)
        prefixes = set(wanted)
        place = 0
        while place < len(wanted):
            others, last = 0, wanted[place]
            place = len(wanted)
            async for stored in self.rows(space, "", last):
                owner = stored.key[: stored.key.find("#") + 1]
                if owner in prefixes:
                    others = 0
                    yield owner[:-1], stored
                    continue
                others += 1
                if stored.key > wanted[-1] or others > _PATIENCE:
                    place = bisect_right(wanted, stored.key)
                    break

    async def rows(self, space: str, prefix: str, after: str = "") -> AsyncIterator[Record]:
        """The records of a space, damaged ones too: no reader can read their value."""
        while True:
            try:
                async for stored in self._log.scan(space, prefix, after):
                    after = stored.key
                    yield stored
                return
            except DamagedRecord as damage:
                after = damage.key
                yield Record(damage.key, DAMAGED, damage.version)

    # -- forgetting

    async def ended_before(self, wall_ms: int, after: str = "") -> AsyncIterator[tuple[str, str]]:
        """Finished runs, the oldest first, behind the mark `after`: the key of their mark, and their id."""
        async for mark in self._log.scan(DONE, "", after):
            ended, run_id = mark.key.split("#", 1)
            if int(ended) >= wall_ms:
                return
            yield mark.key, run_id

    async def forget_old(self, mark: str, run_id: str, guard: AddGuard) -> bool:
        """Remove the run of a mark; whether it was. A mark of a run that went on meanwhile is only removed itself."""
        found = await self._log.get(RUNS, run_id)
        if found is None or mark != done_key(decode_record(found.value).updated, run_id):
            batch = Batch()
            guard(batch)
            batch.delete(DONE, mark)
            await self._log.commit(batch)
            return False
        return await self.forget(run_id, guard)

    async def forget(self, run_id: str, guard: AddGuard = lambda _: None) -> bool:
        """Remove a finished run and all it left; False when it is not there, or not to be removed.

        A child stays as long as its parent is unfinished: a parent that is executed again must find it, or it would do
        its work a second time. A long journal goes in steps, so that nobody waits for it; the run cannot be retried
        from the first of them on. Raises Refused when the run changes meanwhile.
        """
        found = await self._log.get(RUNS, run_id)
        if found is None:
            return False
        record, version = decode_record(found.value), found.version
        if record.parent is not None and await self._log.get(LIVE, record.parent) is not None:
            return False
        left: list[Operation] = [Delete(PROGRESS, run_id)]
        for space in (JOURNAL, SIGNALS, UPDATES):
            left += [Delete(space, entry.key) async for entry in self.rows(space, f"{run_id}#")]
        if len(left) > REMOVED_AT_ONCE:
            forgotten = encode_record(msgspec.structs.replace(record, forgotten=True))
            version = (await self._remove([Put(RUNS, run_id, forgotten, version)], guard)).versions[0]
        while len(left) > REMOVED_AT_ONCE:
            await self._remove([Guard(RUNS, run_id, version), *left[-REMOVED_AT_ONCE:]], guard)
            del left[-REMOVED_AT_ONCE:]
        mark = Delete(DONE, done_key(record.updated, run_id))
        await self._remove([Delete(RUNS, run_id, version), mark, *left], guard)
        return True

    async def _remove(self, operations: list[Operation], guard: AddGuard) -> Receipt:
        batch = Batch()
        guard(batch)
        batch.operations.extend(operations)
        return await self._log.commit(batch)


class SharedRunStore(RunStore):
    """The durable runs in a log that several nodes share: a run that is not found is looked for with certainty.

    What another node wrote can be read here a moment later. A run that another node has just answered for must not be
    unknown here, so first the log is asked whether it is absent.
    """

    async def _first(self, run_id: str, *spaces: str) -> Record | None:
        stored = await super()._first(run_id, *spaces)
        if stored is not None:
            return stored
        try:
            await self._log.commit(Batch([Guard(space, run_id, ABSENT) for space in spaces]))
        except Refused:
            return await super()._first(run_id, *spaces)
        return None


def is_readable(space: str, stored: Record) -> bool:
    """Whether a record that belongs to the journal of a run can be read."""
    try:
        JOURNAL_READERS[space](stored.key, stored.value)
    except Exception:  # whatever is wrong with it
        return False
    return True


def _add(entries: list[JournaledEffect], stored: Record, before: str) -> str:
    """Add a row of a journal to its entries, unless it is the note of an effect whose answer came right before."""
    if stored.key != before + NOTE:
        entries.append(decode_entry(stored.value))
    return stored.key
