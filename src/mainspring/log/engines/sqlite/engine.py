"""`SqliteEngine`: the log in one SQLite file, written by one thread, read by a few others.

The event loop's thread never touches the disk. Commits go to the writer's thread by a queue; reads are answered by two
reader threads with connections of their own, which WAL lets go on while the writer writes. Nothing is cached here
beyond SQLite's pages: who reads the newest events again and again (the bus does) keeps them in the form it needs.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from mainspring.errors import MainspringError
from mainspring.log.contract import (
    Batch,
    Bounds,
    LogUnavailable,
    Mark,
    Outline,
    Record,
    Restorable,
    Result,
    StoredEvent,
)
from mainspring.log.engines.sqlite.connection import check_format
from mainspring.log.engines.sqlite.faults import unavailable
from mainspring.log.engines.sqlite.file_lock import Ownership
from mainspring.log.engines.sqlite.known_state import Ledger
from mainspring.log.engines.sqlite.reader import Reader
from mainspring.log.engines.sqlite.restore import restore
from mainspring.log.engines.sqlite.writer import Writer
from mainspring.loop import time_stands_still

T = TypeVar("T")

READER_THREADS = 2


class SqliteEngine:
    """A log at `path`, made when absent. Exclusive: a second engine on the same file is refused with `LogLocked`.

    With `read_only=True` the file must exist, nothing can be written, and a serving node may own it at the same time.
    """

    name = "sqlite"

    def __init__(self, path: str | Path, *, read_only: bool = False) -> None:
        self.path: Path = Path(path)
        self.read_only = read_only
        self._ownership: Ownership | None = None
        self._writer: Writer | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._mine = threading.local()
        self._readers: list[Reader] = []

    # -- opening and closing

    async def open(self) -> None:
        if self._pool is not None:
            return
        await asyncio.get_running_loop().run_in_executor(None, self._open)

    def _open(self) -> None:
        try:
            if self.read_only:
                check_format(self.path)
            else:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._ownership = Ownership(self.path.with_name(self.path.name + ".lock"))
                self._writer = self._make_writer()
        except (sqlite3.Error, OSError) as error:
            self._release()
            raise unavailable(error) from error
        except BaseException:
            self._release()
            raise
        self._pool = ThreadPoolExecutor(READER_THREADS, thread_name_prefix="mainspring-log-reader")

    def _make_writer(self) -> Writer:
        return Writer(self.path)

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
        self._release()

    def _release(self) -> None:
        if self._ownership is not None:
            self._ownership.release()
            self._ownership = None

    # -- writing

    async def commit(self, batches: Sequence[Batch]) -> list[Result]:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[list[Result]] = loop.create_future()
        with time_stands_still(loop):
            self.submit(batches, lambda results: _tell(loop, answer, results))
            return await answer

    def submit(self, batches: Sequence[Batch], done: Callable[[list[Result]], None]) -> None:
        self._writing().submit(batches, done)

    def _writing(self) -> Writer:
        if self._writer is None:
            why = "open for reading only" if self.read_only else "not open"
            raise LogUnavailable(f"the log at {self.path} is {why}", remedy="open it for writing")
        return self._writer

    async def _write(self, work: Callable[[sqlite3.Connection, Ledger], object]) -> object:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[object] = loop.create_future()
        with time_stands_still(loop):
            self._writing().call(work, lambda result: _tell(loop, answer, result))
            result = await answer
        if isinstance(result, Exception):
            raise result
        return result

    async def forget_dedupe(self, now: int) -> int:
        def forget(connection: sqlite3.Connection, _: Ledger) -> object:
            return connection.execute("DELETE FROM marks WHERE until < ?", (now,)).rowcount

        count = await self._write(forget)
        assert isinstance(count, int)
        return count

    async def restore(self, items: Sequence[Restorable]) -> None:
        await self._write(lambda connection, ledger: restore(connection, ledger, items))

    # -- reading

    async def read(
        self, topic: str, partition: int, start: int, limit: int, max_bytes: int = 4 << 20
    ) -> list[StoredEvent]:
        if self._writer is not None:
            slot = self._writer.ledger.slots.get((topic, partition))
            if slot is None or start > slot.durable_tail:
                return []
        return await self._read(lambda reader: reader.events(topic, partition, start, limit, max_bytes))

    async def outline(self, topic: str, partition: int, start: int, limit: int) -> list[Outline]:
        return await self._read(lambda reader: reader.outline(topic, partition, start, limit))

    async def topics(self) -> list[str]:
        return await self._read(Reader.topics)

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
        return await self._read(Reader.spaces)

    async def marks(self) -> AsyncIterator[Mark]:
        after = ("", "")
        while page := await self._read(lambda reader, last=after: reader.marks(last)):  # type: ignore[misc]
            for mark in page:
                yield mark
            after = (page[-1].topic, page[-1].dedupe)

    async def _read(self, work: Callable[[Reader], T]) -> T:
        if self._pool is None:
            raise LogUnavailable(f"the log at {self.path} is not open", remedy="open it first")
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._with_reader, work)

    def _with_reader(self, work: Callable[[Reader], T]) -> T:
        try:
            reader: Reader | None = getattr(self._mine, "reader", None)
            if reader is None:
                reader = self._mine.reader = Reader(self.path)
                self._readers.append(reader)
            return work(reader)
        except MainspringError:
            raise
        except sqlite3.Error as error:
            raise unavailable(error) from error


def _tell(loop: asyncio.AbstractEventLoop, answer: asyncio.Future[T], result: T) -> None:
    def settle() -> None:
        if not answer.done():
            answer.set_result(result)

    if not loop.is_closed():
        loop.call_soon_threadsafe(settle)
