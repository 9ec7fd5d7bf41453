"""A process whose disk fails where it is told to: `python -m tests.support.disk_faults FOLDER`.

It runs with `file_recorder.c` preloaded. Each story is a log with something in it and one more batch; it is told again
for every write and every sync that storing the batch takes, and that one fails, or it and all behind it. A batch that
is refused is submitted again, at once and when the disk works again. What happened is printed, a JSON line for each.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import json
import shutil
import sqlite3
import sys
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from mainspring.log import Append, Batch, Delete, Log, LogUnavailable, Put, Receipt, Remove, SqliteEngine
from mainspring.log.engines.sqlite import engine
from tests.support.log_file import stored_events

Contents = dict[str, list[Any]]
LASTING = 10_000  # operations: until the disk works again

STORIES: dict[str, list[Any]] = {
    "an event": [Append("t", 0, "new", 1, b"1")],
    "an event with an id": [Append("t", 0, "new", 1, b"1", dedupe="new", dedupe_until=10)],
    "a step of a run": [Put("journal", "1", b"x" * 5_000), Append("new", 0, "new", 1, b'"%b"' % (b"x" * 5_000))],
    "a record": [Put("s", "k", b"2")],
    "a record is deleted": [Delete("s", "k")],
    "events are removed": [Remove("t", 0, below=3)],
}
FAULTS = [
    ("w", 1, errno.ENOSPC),
    ("w", 1, errno.EIO),
    ("s", 1, errno.EIO),
    ("s", LASTING, errno.EIO),
    ("ws", LASTING, errno.EIO),
    ("ws", LASTING, errno.ENOSPC),
]


def contents(path: Path) -> Contents:
    """What a node finds there."""
    with closing(sqlite3.connect(path)) as database:
        ask = database.execute
        return {
            "events": [(event.topic, event.offset, event.id) for event in stored_events(path)],
            "records": sorted(ask("SELECT space, key, length(value), value = x'32' FROM records").fetchall()),
            "marks": sorted(ask("SELECT topic, dedupe FROM marks").fetchall()),
        }


def copied(path: Path, to: Path) -> Path:
    """The files as a process that is killed now leaves them."""
    to.mkdir()
    for suffix in ("", "-wal"):
        with suppress(FileNotFoundError):
            shutil.copy(path.with_name(path.name + suffix), to / (path.name + suffix))
    return to / path.name


async def tell(folder: Path, story: str, fault: tuple[str, int, int], at: int, *, read: bool) -> int:
    """How many operations failed."""
    disk: Any = ctypes.CDLL(None)
    which, count, error = fault
    path = folder / "log.sqlite3"
    log = Log(SqliteEngine(path))
    await log.open()
    for n in range(1, 5):
        await log.commit(Batch([Append("t", 0, f"{n}", 1, b"1"), Put("s", "k", b"1")]))
    await log.commit(Batch())  # what the writer does of its own accord after its first commit is done
    if read:
        await log.read("t", 0, 1, 10)
    before = contents(copied(path, folder / "before"))
    batch = Batch(list(STORIES[story]))
    disk.fail_files(which.encode(), at, count, error)
    answer = await submitted(log, batch)
    says = str(answer)
    if count == LASTING and not isinstance(answer, Receipt):
        answer = await submitted(log, batch)
    failed = int(disk.files_failed())
    disk.fail_files(b"", 1, 0, 0)
    killed = contents(copied(path, folder / "killed"))
    (folder / "acks").write_text("answered")
    again = answer if isinstance(answer, Receipt) else await submitted(log, batch)
    (folder / "acks").write_text("answered again")
    await log.close()
    said = {
        "story": story,
        "fault": fault,
        "at": at,
        "read": read,
        "failed": failed,
        "stored": isinstance(answer, Receipt),
        "in_the_end": isinstance(again, Receipt),
        "says": says,
        "before": before,
        "killed": killed,
        "after": contents(path),
        "folder": folder.name,
    }
    print(json.dumps(said), flush=True)
    return failed


async def submitted(log: Log, batch: Batch) -> Receipt | LogUnavailable:
    try:
        return await log.commit(batch)
    except LogUnavailable as error:
        return error


async def main(folder: Path) -> None:
    number = 0
    for story in STORIES:
        for read in (False, True):
            for fault in FAULTS:
                at, failed = 1, 1
                while failed:
                    place = folder / f"{number:05}"
                    place.mkdir()
                    failed = await tell(place, story, fault, at, read=read)
                    at, number = at + 1, number + 1


if __name__ == "__main__":
    engine.LOOKED_AT_BYTES = -1  # as with a large log: nothing is read at boot, so the writer is alone with the file
    asyncio.run(main(Path(sys.argv[1])))
