"""Answers to readers, from the tables. Nothing of it is kept.

A row that no node can have written (a name that is not text, a partition below zero) is passed over, and the node's
log names it: one such row keeps no node from working.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Any, Final

from mainspring.log.contract import (
    Bounds,
    DamagedEvent,
    DamagedRecord,
    LogUnavailable,
    Mark,
    Outline,
    Place,
    Record,
    StoredEvent,
    end_of_prefix,
    event_bytes,
    outline_of,
    within_bytes,
)
from mainspring.log.engines.postgres.connection import PostgresConnections
from mainspring.log.engines.postgres.plan import Partition
from mainspring.log.engines.postgres.tables import chunk_events, record_crc
from mainspring.loop import BackgroundTasks

logger: logging.Logger = logging.getLogger("mainspring.log")

PAGE: Final = 1_000  # records or marks asked for at once
OUTGOING_PAGE: Final = 100  # of what programs stored; each may be a megabyte
_MOST_CHUNKS: Final = 256  # asked for at once
_MAX_OFFSET: Final = (1 << 63) - 1
_RECORDS: Final = 64  # single ones that are asked for together; each may be a megabyte
_EXCHANGES: Final = 2  # of them at a time, so that one slow answer does not hold up all


class PostgresReader:
    """Each method takes the connection to ask with."""

    def __init__(self, schema: str) -> None:
        self._bounds = f"""
            SELECT p.partition, p.tail, p.events, p.bytes, (SELECT c.first FROM {schema}.chunks c
              WHERE c.topic = p.topic AND c.partition = p.partition ORDER BY c.last LIMIT 1) AS head
            FROM {schema}.partitions p WHERE p.topic = $1 AND p.partition >= 0 AND p.tail >= 0 ORDER BY p.partition"""
        self._chunks = f"""
            SELECT first, last, body FROM (
              SELECT first, last, body, sum(events) OVER w - events AS events, sum(bytes) OVER w - bytes AS bytes
              FROM {schema}.chunks WHERE topic = $1 AND partition = $2 AND last >= $3
              WINDOW w AS (ORDER BY last ROWS UNBOUNDED PRECEDING) ORDER BY last LIMIT {_MOST_CHUNKS}) AS near
            WHERE events < $4 AND bytes < $5 ORDER BY last"""
        self._since = f"""
            SELECT first, last, body FROM {schema}.chunks
            WHERE topic = $1 AND partition = $2 AND last >= $3 AND newest >= $4 ORDER BY last LIMIT 1"""
        self._topics = (
            f"SELECT DISTINCT topic FROM {schema}.partitions WHERE partition >= 0 AND tail >= 0 ORDER BY topic"
        )
        self._tails = f"SELECT topic, partition, tail FROM {schema}.partitions WHERE partition >= 0 AND tail >= 0"
        self._records = f"""
            SELECT w.place, r.space, r.key, r.value, r.version, r.crc
            FROM unnest($1::bytea[], $2::bytea[]) WITH ORDINALITY AS w (space, key, place)
            JOIN {schema}.records r ON r.space = w.space AND r.key = w.key"""
        self._page = f"""
            SELECT key, value, version, crc FROM {schema}.records
            WHERE space = $1 AND key > $2 AND key >= $3 AND ($4::bytea IS NULL OR key < $4) ORDER BY key LIMIT {PAGE}"""
        self._spaces = f"SELECT DISTINCT space FROM {schema}.records ORDER BY space"
        self._versions = f"""
            SELECT r.space, r.key, r.version FROM unnest($1::bytea[], $2::bytea[]) AS w (space, key)
            JOIN {schema}.records r ON r.space = w.space AND r.key = w.key"""
        self._marks = f"""
            SELECT m.topic, m.dedupe, m.partition, m.place, m.until
            FROM unnest($1::bytea[], $2::bytea[]) AS w (topic, dedupe)
            JOIN {schema}.marks m ON m.topic = w.topic AND m.dedupe = w.dedupe"""
        self._mark_page = f"""
            SELECT topic, dedupe, partition, place, until FROM {schema}.marks
            WHERE (topic, dedupe) > ($1, $2) ORDER BY topic, dedupe LIMIT {PAGE}"""

    # -- events

    async def events(
        self, ask: Any, topic: str, partition: int, start: int, limit: int, max_bytes: int
    ) -> list[StoredEvent]:
        """Raises `DamagedEvent`."""
        found: list[StoredEvent] = []
        position, name = min(start, _MAX_OFFSET), topic.encode()
        while len(found) < limit and max_bytes > 0:
            rows = await ask.fetch(self._chunks, name, partition, position, limit - len(found), max_bytes)
            if not rows:
                break
            for row in rows:
                events = chunk_events(topic, partition, row["first"], row["body"])
                if events is None:
                    if found:
                        return found
                    raise DamagedEvent(topic, partition, max(position, row["first"]))
                wanted = events if row["first"] >= start else [event for event in events if event.offset >= start]
                taken = wanted[: limit - len(found)]
                fitting = within_bytes(taken, max_bytes)
                if found and fitting and event_bytes(fitting[0]) > max_bytes:
                    return found
                found += fitting
                if len(fitting) < len(wanted):
                    return found
                max_bytes -= sum(map(event_bytes, fitting))
                position = row["last"] + 1
        return found

    async def outline(self, ask: Any, topic: str, partition: int, start: int, limit: int) -> list[Outline]:
        events = await self.events(ask, topic, partition, start, limit, _MAX_OFFSET)
        return [outline_of(event) for event in events]

    async def offset_at(self, ask: Any, topic: str, partition: int, ts: int) -> int | None:
        """None when no event is so young."""
        position, name = 1, topic.encode()
        while rows := await ask.fetch(self._since, name, partition, position, ts):
            (row,) = rows
            events = chunk_events(topic, partition, row["first"], row["body"])
            for event in events or ():
                if event.ts >= ts:
                    return event.offset
            position = row["last"] + 1
        return None

    async def topics(self, ask: Any) -> list[str]:
        return [row["topic"].decode() for row in await ask.fetch(self._topics) if _is_text("partitions", row["topic"])]

    async def tails(self, ask: Any) -> dict[Partition, int]:
        return {
            (row["topic"].decode(), row["partition"]): row["tail"]
            for row in await ask.fetch(self._tails)
            if _is_text("partitions", row["topic"])
        }

    async def bounds(self, ask: Any, topic: str) -> list[Bounds]:
        return [
            Bounds(row["partition"], row["head"] or row["tail"] + 1, row["tail"], row["events"], row["bytes"])
            for row in await ask.fetch(self._bounds, topic.encode())
        ]

    # -- records

    async def records(self, ask: Any, places: Sequence[Place]) -> list[Record | DamagedRecord | None]:
        """In the order of the places."""
        found: list[Record | DamagedRecord | None] = [None] * len(places)
        for row in await ask.fetch(self._records, *_columns(places)):
            try:
                found[row["place"] - 1] = _record(row["space"], row["key"], row)
            except DamagedRecord as damage:
                found[row["place"] - 1] = damage
        return found

    async def page(self, ask: Any, space: str, prefix: str, after: bytes) -> list[Any]:
        """The next rows of a scan."""
        end = end_of_prefix(prefix)
        found: list[Any] = await ask.fetch(
            self._page, space.encode(), after, prefix.encode(), None if end is None else end.encode()
        )
        return found

    async def spaces(self, ask: Any) -> list[str]:
        return [row["space"].decode() for row in await ask.fetch(self._spaces) if _is_text("records", row["space"])]

    async def versions(self, ask: Any, places: Iterable[Place]) -> dict[Place, int]:
        """Of those that exist."""
        rows = await ask.fetch(self._versions, *_columns(places))
        return {(row["space"].decode(), row["key"].decode()): row["version"] for row in rows}

    # -- marks

    async def marks(self, ask: Any, places: Iterable[Place]) -> dict[Place, Mark]:
        rows = await ask.fetch(self._marks, *_columns(places))
        return {(mark.topic, mark.dedupe): mark for mark in map(_mark, rows)}

    async def mark_page(self, ask: Any, after: tuple[bytes, bytes]) -> list[Any]:
        """The next rows behind this topic and text."""
        found: list[Any] = await ask.fetch(self._mark_page, *after)
        return found


_Request = tuple[Place, "asyncio.Future[Record | None]"]


class RecordRequests:
    """Gets that come while others are under way are asked together, in one exchange with the server."""

    def __init__(self, reader: PostgresReader, tasks: BackgroundTasks) -> None:
        self._reader = reader
        self._tasks = tasks
        self._under_way = 0
        self._waiting: list[_Request] = []

    async def get(self, place: Place, connections: PostgresConnections) -> Record | None:
        """Raises `DamagedRecord`."""
        future: asyncio.Future[Record | None] = asyncio.get_running_loop().create_future()
        self._waiting.append((place, future))
        if self._under_way < _EXCHANGES:
            self._begin(connections)
        return await future

    def _begin(self, connections: PostgresConnections) -> None:
        self._under_way += 1
        task = self._tasks.start(self._ask(connections), "get")
        task.add_done_callback(lambda task: self._ended(task, connections))

    async def _ask(self, connections: PostgresConnections) -> None:
        while self._waiting:
            asked, self._waiting = self._waiting[:_RECORDS], self._waiting[_RECORDS:]
            places = [place for place, _ in asked]
            try:
                found = await connections.read(lambda ask: self._reader.records(ask, places))  # noqa: B023 (awaited here)
            except BaseException as error:
                self._refuse(asked, error)
                if not isinstance(error, Exception):
                    raise
                continue
            for (_, future), each in zip(asked, found, strict=True):
                if future.done():
                    continue  # nobody waits for it any more
                if isinstance(each, DamagedRecord):
                    future.set_exception(each)
                else:
                    future.set_result(each)

    def _ended(self, task: asyncio.Task[None], connections: PostgresConnections) -> None:
        self._under_way -= 1
        if task.cancelled():
            waiting, self._waiting = self._waiting, []
            self._refuse(waiting, asyncio.CancelledError())
        elif self._waiting:  # asked for after the task's last look, and before this
            self._begin(connections)

    @staticmethod
    def _refuse(asked: list[_Request], error: BaseException) -> None:
        if not isinstance(error, Exception):
            error = LogUnavailable("the log was closed", remedy="open it first")
        for _, future in asked:
            if not future.done():
                future.set_exception(error)


def record_of(space: str, row: Any) -> Record | None:
    """Of a row of a page; None for one that no node has written. Raises `DamagedRecord`."""
    return _record(space.encode(), row["key"], row) if _is_text("records", row["key"]) else None


def mark_of(row: Any) -> Mark | None:
    """Of a row of a page; None for one that no node has written."""
    return _mark(row) if _is_text("marks", row["topic"]) and _is_text("marks", row["dedupe"]) else None


def _is_text(table: str, name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        logger.error("a row of %s was written by no node and is passed over: %r is not UTF-8", table, name[:100])
        return False
    return True


def _record(space: bytes, key: bytes, row: Any) -> Record:
    if record_crc(space, key, row["value"]) != row["crc"]:
        raise DamagedRecord(space.decode(), key.decode(), row["version"])
    return Record(key.decode(), row["value"], row["version"])


def _mark(row: Any) -> Mark:
    return Mark(row["topic"].decode(), row["dedupe"].decode(), row["partition"], row["place"], row["until"])


def _columns(places: Iterable[Place]) -> tuple[list[bytes], list[bytes]]:
    pairs = [(first.encode(), second.encode()) for first, second in places]
    return [first for first, _ in pairs], [second for _, second in pairs]
