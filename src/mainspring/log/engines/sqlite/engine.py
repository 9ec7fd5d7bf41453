"""`SqliteEngine`: the log in one SQLite file, written by one thread, read by a few others.

The event loop's thread never touches the disk. Commits go to the writer's thread by a queue; reads are answered by two
reader threads with connections of their own, which WAL lets go on while the writer writes. Nothing is cached here
beyond SQLite's pages: who reads the newest events again and again (the bus does) keeps them in the form it needs.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Final, TypeVar

from mainspring.errors import MainspringError
from mainspring.log.contract import (
    Batch,
    Bounds,
    Durability,
    FormatError,
    LogExists,
    LogUnavailable,
    Mark,
    Outline,
    Progress,
    Record,
    Restorable,
    Result,
    Room,
    StoredEvent,
    silent,
)
from mainspring.log.engines.sqlite.files import (
    FileLock,
    look_at_wal,
    make_private,
    refuse_foreign_wal,
    refuse_hidden_commits,
)
from mainspring.log.engines.sqlite.plan import lost_events
from mainspring.log.engines.sqlite.reader import SqliteReader
from mainspring.log.engines.sqlite.schema import check_format, connect_reader
from mainspring.log.engines.sqlite.writer import SqliteWriter, unavailable
from mainspring.loop import resolve, time_stands_still
from mainspring.private_files import make_private_file, make_private_folder, sync_path

T = TypeVar("T")

logger: logging.Logger = logging.getLogger("mainspring.log")

READER_THREADS = 2
LOOKED_AT_BYTES: Final = 64 << 20  # a file up to this size is verified at each boot, in some tenths of a second
DURABILITY: Final = Durability(True, "sqlite: an acknowledgement is on this machine's disk")


class SqliteEngine:
    """A log at `path`, made when absent. Exclusive: a second engine on the same file is refused with `LogLocked`.

    With `read_only=True` the file must exist, nothing can be written, and a serving node may own it at the same time.
    """

    name = "sqlite"
    takes_many = True

    def __init__(self, path: str | Path, *, read_only: bool = False) -> None:
        self.path: Path = Path(path)
        self.read_only = read_only
        self._lock: FileLock | None = None
        self._writer: SqliteWriter | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._mine = threading.local()
        self._readers: list[SqliteReader] = []
        self._on_failure: list[Callable[[MainspringError], object]] = []

    # -- opening and closing

    async def open(self) -> None:
        if self._pool is not None:
            return
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self._open)
        if self._writer is not None:
            self._writer.on_gone = lambda error: loop.is_closed() or loop.call_soon_threadsafe(self._failed, error)

    def _open(self) -> None:
        try:
            if self.read_only:
                check_format(self.path)
            else:
                make_private_folder(self.path.parent)
                self._lock = FileLock(self.path.with_name(self.path.name + ".lock"))
                self._look_before_opening()
                make_private(self.path)
                self._writer = self._make_writer()
        except (sqlite3.Error, OSError) as error:
            self._release()
            raise unavailable(error) from error
        except BaseException:
            self._release()
            raise
        self._pool = ThreadPoolExecutor(READER_THREADS, thread_name_prefix="mainspring-log-reader")
        if self._writer is not None and self.path.stat().st_size <= LOOKED_AT_BYTES:
            self._pool.submit(self._look_at_structure)

    def _look_before_opening(self) -> None:
        """Raise `LogDamaged` when SQLite would take files for whole that are not."""
        wal = look_at_wal(self.path)
        refuse_foreign_wal(self.path, wal)
        refuse_hidden_commits(self.path, wal)

    def _make_writer(self) -> SqliteWriter:
        return SqliteWriter(self.path)

    def on_failure(self, callback: Callable[[MainspringError], object]) -> None:
        """Call when the files are gone; at once if they are. See `FallibleEngine`."""
        self._on_failure.append(callback)
        if self._writer is not None and self._writer.gone is not None:
            callback(self._writer.gone)

    def _failed(self, error: MainspringError) -> None:
        for callback in self._on_failure:
            callback(error)

    def _look_at_structure(self) -> None:
        """Beside the boot: what SQLite can find without comparing checksums."""
        try:
            for problem in self._with_reader(SqliteReader.problems):
                logger.error("the log's file %s is damaged: %s; run `mainspring log check`", self.path, problem)
        except MainspringError as error:
            logger.error("the log's file %s cannot be verified: %s", self.path, error)

    async def durability(self) -> Durability:
        return DURABILITY

    async def close(self) -> None:
        if self._pool is not None:
            pool, self._pool = self._pool, None
            await asyncio.get_running_loop().run_in_executor(None, self._close, pool)

    def _close(self, pool: ThreadPoolExecutor) -> None:
        pool.shutdown()
        for reader in self._readers:
            reader.close()
        self._readers.clear()
        self._mine = threading.local()
        if self._writer is not None:
            self._writer.stop()  # last: the connection that closes last folds the WAL into the file
            self._writer = None
        self._on_failure.clear()
        self._release()

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    # -- writing

    async def commit(self, batches: Sequence[Batch]) -> list[Result]:
        return await _answer_from_thread(lambda done: self.submit(batches, done))

    def submit(self, batches: Sequence[Batch], done: Callable[[list[Result]], None]) -> None:
        self._writing().submit(batches, done)

    def _writing(self) -> SqliteWriter:
        if self._writer is None:
            why = "open for reading only" if self.read_only else "not open"
            raise LogUnavailable(f"the log at {self.path} is {why}", remedy="open it for writing")
        return self._writer

    async def _write(self, work: Callable[[SqliteWriter], object]) -> object:
        result: object = await _answer_from_thread(lambda done: self._writing().call(work, done))
        if isinstance(result, Exception):
            raise result
        return result

    async def forget_dedupe(self, now: int) -> int:
        count = await self._write(lambda writer: writer.forget_marks(now))
        assert isinstance(count, int)
        return count

    async def restore(self, items: Sequence[Restorable]) -> None:
        await self._write(lambda writer: writer.restore(items))

    # -- reading

    async def read(
        self, topic: str, partition: int, start: int, limit: int, max_bytes: int = 4 << 20
    ) -> list[StoredEvent]:
        if self._writer is not None:
            state = self._writer.log_state.partitions.get((topic, partition))
            if state is None or start > state.durable_tail:
                if state is not None and state.lost and not state.tail:
                    raise lost_events(state)
                return []
        return await self._read(lambda reader: reader.events(topic, partition, start, limit, max_bytes))

    async def outline(self, topic: str, partition: int, start: int, limit: int) -> list[Outline]:
        return await self._read(lambda reader: reader.outline(topic, partition, start, limit))

    async def topics(self) -> list[str]:
        return await self._read(SqliteReader.topics)

    async def bounds(self, topic: str) -> list[Bounds]:
        return await self._read(lambda reader: reader.bounds(topic))

    async def offset_at(self, topic: str, partition: int, ts: int) -> int:
        return await self._read(lambda reader: reader.offset_at(topic, partition, ts))

    async def get(self, space: str, key: str) -> Record | None:
        return await self._read(lambda reader: reader.record(space, key))

    async def scan(self, space: str, prefix: str = "", after: str = "") -> AsyncIterator[Record]:
        while page := await self._read(lambda reader, last=after: reader.records(space, prefix, last)):  # type: ignore[misc]
            for record in page:
                yield record
            after = page[-1].key

    async def spaces(self) -> list[str]:
        return await self._read(SqliteReader.spaces)

    async def room(self) -> Room:
        """Of the file system that the log's file is in."""
        disk = os.statvfs(self.path.parent)
        sizes = [Path(f"{self.path}{suffix}") for suffix in ("", "-wal")]
        return Room(
            total=disk.f_blocks * disk.f_frsize,
            free=disk.f_bavail * disk.f_frsize,
            size=sum(each.stat().st_size for each in sizes if each.exists()),
            reusable=await self._read(lambda reader: reader.unused_bytes()),
        )

    async def marks(self) -> AsyncIterator[Mark]:
        after = ("", "")
        while page := await self._read(lambda reader, last=after: reader.marks(last)):  # type: ignore[misc]
            for mark in page:
                yield mark
            after = (page[-1].topic, page[-1].dedupe)

    async def _read(self, work: Callable[[SqliteReader], T]) -> T:
        if self._pool is None:
            raise LogUnavailable(f"the log at {self.path} is not open", remedy="open it first")
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._with_reader, work)

    def _with_reader(self, work: Callable[[SqliteReader], T]) -> T:
        try:
            reader: SqliteReader | None = getattr(self._mine, "reader", None)
            if reader is None:
                reader = self._mine.reader = SqliteReader(self.path)
                self._readers.append(reader)
            return work(reader)
        except MainspringError:
            raise
        except sqlite3.Error as error:
            raise unavailable(error) from error


async def _answer_from_thread(ask: Callable[[Callable[[T], None]], None]) -> T:
    """What another thread answers."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def done(result: T) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(resolve, answer, result)

    with time_stands_still(loop):
        ask(done)
        return await answer


# -- a backup of a log that is being written
#
# It is SQLite's own online backup, from one moment in time. The copy is read inside one read transaction, so what the
# node writes meanwhile is not in it and the backup never has to start again. It is written under another name, made
# durable, and only then given its own: a file with the name asked for is a whole backup. While it runs, the node's WAL
# cannot be folded back and grows by what is published meanwhile.

PAGES_PER_STEP = 2_000


def backup(source: Path, target: Path, progress: Progress = silent) -> int:
    """Copy the log at `source` to `target`, which must not exist; the copy's size in bytes."""
    if target.exists():
        raise LogExists(f"{target} exists already", remedy="name a file that does not exist yet")
    partial = target.with_name(target.name + ".partial")
    try:
        check_format(source)
        partial.unlink(missing_ok=True)
        make_private_file(partial)
        _copy(source, partial, progress)
        sync_path(partial)
        os.replace(partial, target)
        sync_path(target.parent)
    except (sqlite3.Error, OSError) as error:
        partial.unlink(missing_ok=True)
        raise unavailable(error) from error
    except FormatError:
        partial.unlink(missing_ok=True)
        raise
    return target.stat().st_size


def _copy(source: Path, partial: Path, progress: Progress) -> None:
    def step(status: int, remaining: int, total: int) -> None:
        progress("pages", total - remaining, total)

    with closing(connect_reader(source)) as reading, closing(sqlite3.connect(partial)) as writing:
        reading.execute("BEGIN")
        reading.execute("SELECT count(*) FROM format").fetchone()  # the moment in time begins with the first read
        reading.backup(writing, pages=PAGES_PER_STEP, progress=step)
        reading.execute("COMMIT")
