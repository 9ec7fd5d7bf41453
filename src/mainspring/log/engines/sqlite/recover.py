"""Bringing back the commits that a damaged write-ahead log hides from SQLite.

What can be told from the checksums is put right (see `wal`), and the write-ahead log is written again as one commit
that SQLite reads. A page whose newest content is damaged beyond that is taken as it lies there or as it was before,
whichever leaves fewer faults; the checksums of events and records say what is wrong in it. Offsets that were given are
not given again, also where their events are lost.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from queue import SimpleQueue
from typing import Final

import msgspec

from mainspring.log.contract import KeptTail, Progress, Restorable, silent
from mainspring.log.engines.sqlite.check import CheckReport, check
from mainspring.log.engines.sqlite.files import FileLock, files_of, look_at_wal, write_wal
from mainspring.log.engines.sqlite.schema import OFFSET_BITS
from mainspring.log.engines.sqlite.wal import Wal, wal_of
from mainspring.log.engines.sqlite.writer import SqliteWriter
from mainspring.private_files import make_private_folder, open_private, sync_path

ASIDE: Final = "before-recovery"


class Recovery(msgspec.Struct, frozen=True):
    """What was done. `commits` were hidden and are back, or are given up (`discarded`); `kept` has the files before."""

    commits: int
    discarded: bool
    damage: list[str]
    kept: str
    report: CheckReport


def recover(path: Path, *, discard: bool = False, progress: Progress = silent) -> Recovery | None:
    """Make the log at `path` whole again; None when nothing is hidden. No node may have it open.

    `discard` gives the hidden commits up instead, and keeps only their offsets from being given again.
    """
    owner = FileLock(files_of(path)[-1])
    try:
        wal = look_at_wal(path)
        if wal is None or not wal.hidden_commits:
            return None
        kept = _copy_aside(path, progress)
        if discard:
            report = _attempt(path, kept, wal, None, progress)
        else:
            report = _attempt(path, kept, wal, True, progress)
            if report.problems and not all(frame.is_sound for frame in wal.frames):
                other = _attempt(path, kept, wal, False, progress)
                better = len(other.problems) < len(report.problems)
                report = other if better else _attempt(path, kept, wal, True, progress)
        return Recovery(wal.hidden_commits, discard, wal.faults, str(kept), report)
    finally:
        owner.release()


def _copy_aside(path: Path, progress: Progress) -> Path:
    """The files as they are, in a folder of their own."""
    progress("copy", 0, 0)
    number = 1
    while (kept := path.with_name(f"{ASIDE}-{number}")).exists():
        number += 1
    make_private_folder(kept)
    for each in (path, wal_of(path)):
        _copy(each, kept / each.name)
    sync_path(kept)
    return kept


def _copy(source: Path, target: Path) -> None:
    with source.open("rb") as reading, open(target, "wb", opener=open_private) as writing:
        shutil.copyfileobj(reading, writing, 1 << 20)
        writing.flush()
        os.fsync(writing.fileno())


def _attempt(path: Path, kept: Path, wal: Wal, trust_damaged: bool | None, progress: Progress) -> CheckReport:
    """Begin with the files as they were; None: without the hidden commits."""
    place = wal_of(path)
    _, _, index, _ = files_of(path)
    index.unlink(missing_ok=True)
    _copy(kept / path.name, path)
    _copy(kept / place.name, place)
    if trust_damaged is not None:
        write_wal(place, wal.rewritten(trust_damaged=trust_damaged))
    sync_path(path.parent)
    _fold(path, wal.last_offsets())
    return check(path, progress)


def _fold(path: Path, last_offsets: dict[int, int]) -> None:
    """Let SQLite put the commits into the database; what was given out once stays given."""
    writer = SqliteWriter(path)
    try:
        tails: list[Restorable] = []
        for number, offset in last_offsets.items():
            state = writer.log_state.partition_at(number << OFFSET_BITS)
            if state is not None and state.tail < offset:
                tails.append(KeptTail(state.topic, state.partition, offset))
        if tails:
            answer: SimpleQueue[object] = SimpleQueue()
            writer.call(lambda writing: writing.restore(tails), answer.put)
            result = answer.get()
            if isinstance(result, Exception):
                raise result
    finally:
        writer.stop()
