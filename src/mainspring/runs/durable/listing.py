"""Durable runs for people: the newest first, how many there are in each state, and what each waits for.

Records stand in the order of their ids. The newest runs are found without reading all of them: a finished run has a
mark at its end time, and no run ends before it was created. So all runs created since a moment are among those that are
unfinished or ended since that moment, and the moment is moved back until there are enough. Only a filter that fits few
runs makes it read all.
"""

from __future__ import annotations

import heapq
from collections.abc import AsyncIterator, Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mainspring.runs.durable.records import (
    DONE,
    LIVE,
    RUNS,
    UNFINISHED,
    JournaledEffect,
    RunRecord,
    decode_record,
    done_key,
)
from mainspring.runs.errors import UnknownRun

if TYPE_CHECKING:
    from mainspring.log import Log
    from mainspring.loop import Clock
    from mainspring.runs.durable.store import RunStore
    from mainspring.runs.run import Run

_FIRST_MS: Final = 60_000  # how far back the first look at finished runs goes
_WIDER: Final = 8
_MOST_LOOKED_UP: Final = 2_000  # finished runs that are read one by one, before all are read
_MOST_OF_TIME: Final = 20  # counting takes at most one in so many milliseconds


class RunSelection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which runs: those that fit every member given. `since` and `until` are about when a run was created (epoch ms).

    `text` is part of the id, the program, the error or the arguments, in any case; `ids` names them one by one.
    """

    state: str | None = None
    program: str | None = None
    prefix: str = ""
    ids: frozenset[str] | None = None
    text: str = ""
    since: int | None = None
    until: int | None = None
    ended_before: int | None = None  # only finished ones
    roots: bool = False  # only runs without a parent

    def fits(self, record: RunRecord) -> bool:
        return (
            (self.state is None or record.state == self.state)
            and (self.program is None or record.program == self.program)
            and record.id.startswith(self.prefix)
            and (self.ids is None or record.id in self.ids)
            and (self.since is None or record.created >= self.since)
            and (self.until is None or record.created < self.until)
            and (self.ended_before is None or record.updated < self.ended_before)
            and not (self.roots and record.parent is not None)
            and (not self.text or self._has_text(record))
        )

    def _has_text(self, record: RunRecord) -> bool:
        text, error = self.text.casefold(), record.error or {}
        said = (record.id, record.program, error.get("type", ""), error.get("message", ""), bytes(record.args).decode())
        return any(text in each.casefold() for each in said)

    @property
    def spaces(self) -> tuple[str, ...]:
        """Where such runs are."""
        if self.ended_before is not None:
            return () if self.state in UNFINISHED else (RUNS,)
        return (LIVE, RUNS) if self.state is None else (LIVE,) if self.state in UNFINISHED else (RUNS,)


Visible = Callable[[RunRecord], bool]


class RunListing:
    """Lists and counts the durable runs of one log."""

    def __init__(self, log: Log, store: RunStore, clock: Clock) -> None:
        self._log = log
        self._store = store
        self._clock = clock
        self._counts: dict[tuple[str, str], int] = {}  # by program and state, of all runs
        self._counted_ms = 0  # when
        self._fresh_ms = -1  # for how long that is good enough

    # -- the newest first

    async def newest(self, wanted: RunSelection, visible: Visible, *, after: str = "", limit: int) -> list[RunRecord]:
        """Those that fit, the last created first; `after` is the id of a run to go on behind."""
        place = _place(await self._store.record(after)) if after else None

        def fits(record: RunRecord) -> bool:
            return wanted.fits(record) and (place is None or _place(record) < place) and visible(record)

        if wanted.ids is not None:
            found = [record async for record in self._named(wanted.ids) if fits(record)]
            return heapq.nlargest(limit, found, _place)
        found = []
        if LIVE in wanted.spaces:
            found = [record async for record in self._all(LIVE, wanted.prefix) if fits(record)]
            found = heapq.nlargest(limit, found, _place)
        if RUNS in wanted.spaces:
            ended = None if wanted.prefix else await self._newest_ended(wanted, fits, found, limit)
            if ended is None:
                ended = [record async for record in self._all(RUNS, wanted.prefix) if fits(record)]
            found = heapq.nlargest(limit, [*found, *ended], _place)
        return found

    async def _newest_ended(
        self, wanted: RunSelection, fits: Visible, live: list[RunRecord], limit: int
    ) -> list[RunRecord] | None:
        """The finished runs among the newest that fit, and perhaps older ones; None when too many were looked at."""
        now, back, until = self._clock.wall_ms(), _FIRST_MS, ""
        looked_up, found = 0, list[RunRecord]()
        while True:
            since = max(0, now - back, wanted.since or 0)
            async for mark in self._log.scan(DONE, "", done_key(since, "")):
                if until and mark.key >= until:
                    break
                looked_up += 1
                if looked_up > _MOST_LOOKED_UP:
                    return None
                stored = await self._log.get(RUNS, mark.key.split("#", 1)[1])
                record = None if stored is None else decode_record(stored.value)
                if record is not None and mark.key == done_key(record.updated, record.id) and fits(record):
                    found.append(record)
            certain = sum(record.created >= since for record in (*live, *found))
            if certain >= limit or since == 0 or since == wanted.since:
                return found
            until, back = done_key(since, ""), back * _WIDER

    async def _named(self, ids: Iterable[str]) -> AsyncIterator[RunRecord]:
        for run_id in ids:
            try:
                yield await self._store.record(run_id)
            except UnknownRun:
                continue

    async def _all(self, space: str, prefix: str) -> AsyncIterator[RunRecord]:
        async for stored in self._log.scan(space, prefix):
            yield decode_record(stored.value)

    # -- by id

    async def page(self, wanted: RunSelection, *, after: str, limit: int) -> list[RunRecord]:
        """Those that fit, by id, behind the id `after`: what is changed meanwhile comes neither twice nor never."""
        if wanted.ids is not None:
            found = [record async for record in self._named(wanted.ids) if record.id > after and wanted.fits(record)]
            return sorted(found, key=lambda record: record.id)[:limit]
        found = []
        for space in wanted.spaces:
            count = 0
            async for stored in self._log.scan(space, wanted.prefix, after):
                record = decode_record(stored.value)
                if wanted.fits(record):
                    found.append(record)
                    count += 1
                    if count == limit:
                        break
        return sorted(found, key=lambda record: record.id)[:limit]

    # -- counting

    async def counts(self, wanted: RunSelection, visible: Visible) -> dict[tuple[str, str], int]:
        """How many there are, by program and state."""
        if wanted != RunSelection(state=wanted.state, program=wanted.program):
            return await self._count(wanted, visible)
        if self._fresh_ms < 0 or self._clock.now_ms() - self._counted_ms >= self._fresh_ms:
            began = self._clock.now_ms()
            self._counts = await self._count(RunSelection(), lambda _: True)
            self._counted_ms = self._clock.now_ms()
            self._fresh_ms = (self._counted_ms - began) * _MOST_OF_TIME
        return {
            (program, state): count
            for (program, state), count in self._counts.items()
            if wanted.program in (None, program) and wanted.state in (None, state) and visible(_example(program, state))
        }

    async def _count(self, wanted: RunSelection, visible: Visible) -> dict[tuple[str, str], int]:
        counts: dict[tuple[str, str], int] = {}
        for space in wanted.spaces:
            async for record in self._all(space, wanted.prefix):
                if wanted.fits(record) and visible(record):
                    key = (record.program, record.state)
                    counts[key] = counts.get(key, 0) + 1
        return counts

    # -- waiting

    async def waits(self, record: RunRecord, run: Run[Any] | None) -> tuple[str, int | None]:
        """What an unfinished run waits for, and until when (epoch ms); "" when that is not known.

        `run` is the run, where it is executed by this process. Of another, the log knows what has a time limit.
        """
        if run is not None:
            entry = None if run.durable is None or run.context is None else run.durable.pending(run.context.performing)
        else:
            journal = await self._store.journal(record.id)
            entry = journal[-1] if journal and not journal[-1].answered else None
        return ("", None) if entry is None else _waits_for(entry)


def _place(record: RunRecord) -> tuple[int, str]:
    return record.created, record.id


def _example(program: str, state: str) -> RunRecord:
    return RunRecord(id="", program=program, state=state)


def _waits_for(entry: JournaledEffect) -> tuple[str, int | None]:
    args, note = _object(entry.args), msgspec.json.decode(entry.note)
    until = note if isinstance(note, int) else note.get("until") if isinstance(note, dict) else None
    allowed = args.get("timeout_ms") or args.get("ms")
    if until is None and isinstance(allowed, int | float) and entry.at:
        until = entry.at + int(allowed)
    match entry.effect:
        case "WaitSignal":
            return f"signal {args.get('name', '')}", until
        case "WaitEvent":
            return f"event of {args.get('topic', '')}", until
        case "Sleep":
            return "sleep", until
        case "Join" | "Until":
            return f"run {args.get('run', '')}", until
        case "GroupEnd":
            return "its children", None
        case "Ask":
            return f"answer to {args.get('type', '')}", until
    tried = f", attempt {entry.attempts + 1}" if entry.attempts else ""
    return entry.effect + tried, None


def _object(text: msgspec.Raw) -> dict[str, Any]:
    found = msgspec.json.decode(text)
    return found if isinstance(found, dict) else {}
