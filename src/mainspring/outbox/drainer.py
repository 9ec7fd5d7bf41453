"""The drainer: carries rows from an outbox to the bus, in order, and never says "sent" before the node did.

One round claims the oldest rows, publishes them (all rows of one topic in one request, which the node stores entirely
or not at all), and stamps them. What can go wrong falls into three kinds:

- The node is away, full or overloaded, or does not know the drainer's token. No row is to blame: all are given back
  uncounted, and the drainer waits longer and longer. An hour without a node costs nothing but the hour.
- The node refuses one row. Its topic's rows are sent one by one, the bad one waits and is tried again later, and later
  rows of its key wait behind it. After `max_attempts` it is set aside, with the reason, and its key goes on.
- The drainer dies. Its claim ends by itself, another drainer sends the rows again with the same ids, and the node
  stores each once.

A claim that has nearly ended is not published any more: somebody else may be at it.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import msgspec

from mainspring.client import NDJSON, BadArgument, CannotConnect, NodeConnection, NodeRefused, path
from mainspring.errors import MissingExtra
from mainspring.loop import Clock
from mainspring.outbox.sql import SqlStore
from mainspring.outbox.store import TABLE, OutboxRow, OutboxStore, OutboxUnavailable
from mainspring.retries import Backoff

logger: logging.Logger = logging.getLogger("mainspring.outbox")

ID_HEADER: Final = "x-outbox-id"
_REQUEST_BYTES: Final = 4 << 20  # a quarter of what the node takes
_NOT_THE_ROW: Final = frozenset({"unavailable", "log_unavailable", "rate_limited", "unauthorized"})
_RETRY: Final = Backoff(500, 10_000)  # as the clients do
_CLEAN_EVERY_MS: Final = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainOptions:
    """What a drainer can be told."""

    batch: int = 100  # rows of one claim
    lease_ms: int = 60_000  # how long a dead drainer holds its rows; twice what a request may take
    max_attempts: int = 10  # refusals before a row is set aside
    retry_first_ms: int = 1_000  # wait after the first refusal; doubles
    retry_last_ms: int = 60_000
    poll_ms: int = 500  # wait when nothing was there
    keep_ms: int = 7 * 86_400_000  # sent rows are kept so long, to look at; 0: for ever


@dataclass(slots=True)
class Drained:
    """What one round did. `held` rows were given back because an earlier row of their key was refused."""

    sent: int = 0
    refused: int = 0
    set_aside: int = 0
    held: int = 0
    cleaned: int = 0

    def __add__(self, other: Drained) -> Drained:
        return Drained(*(mine + others for mine, others in zip(astuple(self), astuple(other), strict=True)))

    @property
    def rows(self) -> int:
        """How many rows were claimed."""
        return self.sent + self.refused + self.held


@dataclass(slots=True)
class Drainer:
    """Drains one outbox to one node. `name` is unlike any other drainer's; `random` gives numbers from 0 to 1."""

    store: OutboxStore
    node: NodeConnection
    name: str
    clock: Clock
    random: Callable[[], float]
    options: DrainOptions = field(default_factory=DrainOptions)
    _cleaned_ms: int | None = None

    def drain_once(self) -> Drained:
        """One round. Raises CannotConnect or NodeRefused when the node is to blame, OutboxUnavailable otherwise."""
        options = self.options
        begun_ms = self.clock.now_ms()
        rows = self.store.claim(self.name, self.clock.wall_ms(), options.lease_ms, options.batch)
        drained = Drained()
        if not rows:
            return drained
        try:
            for part in _requests(rows):
                if self.clock.now_ms() - begun_ms > options.lease_ms // 2:
                    logger.warning("the claim of %s has half ended; giving the rest back", self.name)
                    drained.held += len(part)
                else:
                    drained += self._publish(part, begun_ms)
        except BaseException:
            self._release()
            raise
        if drained.held:
            self.store.release(self.name)
        return drained

    def drain_all(self) -> Drained:
        """Rounds until nothing is left that may be sent now."""
        total = Drained()
        while (drained := self.drain_once()).rows:
            total += drained
        return total

    def run(self, stop: Callable[[float], bool], on_round: Callable[[Drained], object] = lambda _: None) -> None:
        """Drain until `stop(seconds)` is true: it waits at most so long, as `threading.Event.wait` does.

        Troubles are logged and waited out. What is claimed at the end is given back.
        """
        retries = _RETRY.series(self.random)
        wait_ms = 0
        while not stop(wait_ms / 1000):
            try:
                drained = self.drain_once()
                drained.cleaned = self._clean()
            except (CannotConnect, NodeRefused, OutboxUnavailable) as error:
                wait_ms = retries.failed()
                logger.warning("%s; trying again in %d ms", error, wait_ms)
                continue
            retries.succeeded()
            on_round(drained)
            wait_ms = 0 if drained.rows >= self.options.batch else self.options.poll_ms
        self._release()

    def close(self) -> None:
        """Close the database and the connection to the node."""
        self.store.close()
        self.node.close()

    # -- publishing

    def _publish(self, rows: Sequence[OutboxRow], begun_ms: int) -> Drained:
        """Rows of one topic: at once, or one by one when the node refuses that."""
        try:
            self._send(rows)
            return Drained(sent=len(rows))
        except NodeRefused as error:
            if error.code in _NOT_THE_ROW:
                raise
        drained = Drained()
        stuck: set[tuple[str, str]] = set()
        for row in rows:
            if row.lane in stuck or self.clock.now_ms() - begun_ms > self.options.lease_ms // 2:
                drained.held += 1
            else:
                try:
                    self._send([row])
                    drained.sent += 1
                    continue
                except NodeRefused as error:
                    if error.code in _NOT_THE_ROW:
                        raise
                    drained.refused += 1
                    drained.set_aside += self._refuse(row, error)
            if row.lane is not None:
                stuck.add(row.lane)
        return drained

    def _send(self, rows: Sequence[OutboxRow]) -> None:
        """Publish, then stamp; in between they are durable twice, which the ids make harmless."""
        body = b"\n".join(_event(row) for row in rows)
        answer = self.node.call("POST", path("topics", rows[0].topic, "events"), body, content_type=NDJSON)
        places = [f"{partition}:{offset}" for partition, offset in answer["offsets"]]
        self.store.sent(list(zip(rows, places, strict=True)), self.clock.wall_ms())

    def _refuse(self, row: OutboxRow, error: NodeRefused) -> bool:
        options = self.options
        retry = Backoff(options.retry_first_ms, options.retry_last_ms)
        due_ms = self.clock.wall_ms() + retry.delay_ms(row.attempts + 1, self.random)
        aside = self.store.refused(self.name, row, f"{error.code}: {error.message}", due_ms, options.max_attempts)
        outcome = "set aside" if aside else "trying later"
        logger.warning("row %s for %s was refused (%s); %s", row.id, row.topic, error.code, outcome)
        return aside

    def _release(self) -> None:
        """Give everything back, if the database lets us; if not, the claim ends by itself."""
        try:
            self.store.release(self.name)
        except OutboxUnavailable as error:
            logger.warning("%s", error)

    def _clean(self) -> int:
        """Now and then, forget what was sent long ago."""
        now_ms = self.clock.now_ms()
        if not self.options.keep_ms or (self._cleaned_ms is not None and now_ms - self._cleaned_ms < _CLEAN_EVERY_MS):
            return 0
        self._cleaned_ms = now_ms
        return self.store.clean(self.clock.wall_ms() - self.options.keep_ms)


def _requests(rows: Sequence[OutboxRow]) -> Iterator[list[OutboxRow]]:
    """The rows topic by topic, each in its order, in parts the node takes."""
    topics: dict[str, list[OutboxRow]] = {}
    for row in rows:
        topics.setdefault(row.topic, []).append(row)
    for of_topic in topics.values():
        part: list[OutboxRow] = []
        size = 0
        for row in of_topic:
            if part and size + len(row.payload) > _REQUEST_BYTES:
                yield part
                part, size = [], 0
            part.append(row)
            size += len(row.payload)
        yield part


def _event(row: OutboxRow) -> bytes:
    headers: dict[str, str] = {**msgspec.json.decode(row.headers or "{}"), ID_HEADER: row.id}
    event: dict[str, Any] = {"id": row.id, "headers": headers, "payload": msgspec.Raw(row.payload.encode())}
    if row.key is not None:
        event["key"] = row.key
    return msgspec.json.encode(event)


_BUSY_S: Final = 30.0  # how long to wait for another writer of the same SQLite file


def open_outbox(url: str, table: str = TABLE) -> OutboxStore:
    """The rows of the outbox at `url`; nothing is opened yet. SQLAlchemy's `postgresql+psycopg` works too."""
    scheme = url.partition("://")[0].partition("+")[0].lower()
    if scheme == "sqlite":
        file = sqlite_file(url)
        return SqlStore(lambda: _open_sqlite(file), "sqlite", table)
    if scheme in ("postgresql", "postgres"):
        address = f"postgresql://{url.partition('://')[2]}"
        return SqlStore(lambda: _open_postgresql(address), "postgresql", table)
    if scheme == "mongodb":
        from mainspring.outbox.mongo import open_mongo

        return open_mongo(url, table)
    raise BadArgument(
        f"{scheme!r} is no database this knows" if "://" in url else "the address does not say what kind of database",
        remedy="write sqlite:///file.db, postgresql://user@host/name or mongodb://host/name",
    )


def sqlite_file(url: str) -> Path:
    """The file of `sqlite:///relative.db` or `sqlite:////absolute.db`."""
    file = unquote(url.partition("://")[2].partition("?")[0].partition("/")[2])
    if not file:
        raise BadArgument("the address names no file", remedy="write sqlite:///file.db, or sqlite:////folder/file.db")
    return Path(file)


def _open_sqlite(file: Path) -> sqlite3.Connection:
    if not file.exists():
        raise sqlite3.OperationalError(f"there is no file {file}")  # opening would make an empty one
    connection = sqlite3.connect(file, timeout=_BUSY_S, isolation_level=None)
    connection.execute("PRAGMA synchronous = FULL")
    return connection


def _open_postgresql(address: str) -> Any:
    try:
        import psycopg
    except ImportError:
        raise MissingExtra(
            "PostgreSQL needs the package psycopg", remedy="pip install 'mainspring[postgres]'"
        ) from None
    try:
        return psycopg.connect(address, connect_timeout=10)
    except psycopg.ProgrammingError:  # its text repeats the address, with the password
        raise BadArgument(
            "the address of the PostgreSQL database cannot be read",
            remedy="write postgresql://user:password@host/name, with %20 for a space and so on for other signs",
        ) from None
