"""The address of a log in PostgreSQL, the connections of a node, and what the driver's errors mean.

A node has one connection that commits, one that listens for other nodes' commits, and a few that read. Each is made
when it is needed and made again after it broke. The address may name several hosts; only the one that takes writes is
used, so that a failover is found by trying.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext
from hashlib import sha256
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl, urlencode

import asyncpg  # type: ignore[import-untyped]
import msgspec

from mainspring.errors import MainspringError, SettingError
from mainspring.log.contract import Durability, FormatError, LogAccess, LogGone, LogUnavailable
from mainspring.loop import Clock
from mainspring.retries import Backoff

SCHEMES: Final = ("postgresql://", "postgres://")
DEFAULT_SCHEMA: Final = "mainspring"
OLDEST_SERVER: Final = 12
_CONNECT_S: Final = 5.0
_MOST_READERS: Final = 4
_MOST_LENT: Final = 16  # connections kept for programs
_AGAIN: Final = Backoff(first_ms=20, longest_ms=500)
_NAME: Final = re.compile(r"[a-z_][a-z0-9_]{0,50}")
_HOST: Final = re.compile(r"(?:\[[^\]]*\]|[^:\[\]]*)(?::(\d{1,5}))?")
_OWN: Final = ("patience_ms", "poll_ms", "keep_ms", "held_ms")

# What the driver raises: the server's refusals, its own, and those of the operating system.
DRIVER_ERRORS: Final = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
)

_NOTHING: Final = nullcontext()

T = TypeVar("T")


# -- the address


class PostgresAddress(msgspec.Struct, frozen=True):
    """`url` is for the driver. `shown` is for people: it holds no password."""

    url: str
    schema: str
    shown: str
    patience_ms: int = 10_000  # how long a commit or a read goes on trying while the server is away
    poll_ms: int = 100  # the pause between two looks where the server cannot notify (behind a pooler)
    keep_ms: int = 600_000  # how long a commit's news stay for nodes that fell behind
    held_ms: int = 5_000  # a node that stands still in the middle of a commit loses the lock after this

    @property
    def lock(self) -> int:
        """The number of the advisory lock that gives all commits of this log their order."""
        return int.from_bytes(sha256(f"mainspring log {self.schema}".encode()).digest()[:8], "big", signed=True)

    @property
    def channel(self) -> str:
        """Where a commit is announced."""
        return f"{self.schema}_commits"

    @property
    def outgoing_channel(self) -> str:
        """Where an event that a program stored in its own transaction is announced."""
        return f"{self.schema}_outgoing"


def parse_address(text: str, schema: str = DEFAULT_SCHEMA) -> PostgresAddress:
    """Raises `SettingError` for what can be no address. `schema` is for addresses that name none."""
    scheme = next((scheme for scheme in SCHEMES if text.startswith(scheme)), None)
    if scheme is None:
        raise SettingError("this is not a PostgreSQL address", remedy="write postgresql://USER@HOST:PORT/DATABASE")
    base, _, query = text[len(scheme) :].partition("?")
    _check_place(base)
    passed: list[tuple[str, str]] = []
    own: dict[str, int] = {}
    for key, value in parse_qsl(query, keep_blank_values=True):
        if key == "schema":
            schema = value
        elif key in _OWN:
            own[key] = _milliseconds(key, value)
        else:
            passed.append((key, value))
    if not _NAME.fullmatch(schema):
        raise SettingError(
            f"{schema!r} cannot name the log's schema",
            remedy="use lower-case letters, digits and _, at most 51: ?schema=shop_log",
        )
    if not any(key == "target_session_attrs" for key, _ in passed):
        passed.append(("target_session_attrs", "read-write"))
    shown_base = base.rpartition("@")[2]
    url = f"postgresql://{base}?{urlencode(passed)}"
    return PostgresAddress(url, schema, f"postgresql://{shown_base} (schema {schema})", **own)


def _check_place(base: str) -> None:
    """What the driver could not read, and would repeat with a part of the password."""
    place, _, database = base.partition("/")
    hosts = [_HOST.fullmatch(each) for each in place.rpartition("@")[2].split(",")]
    if ("@" in database and "@" not in place) or not all(host and int(host[1] or 0) < 65_536 for host in hosts):
        raise SettingError(
            "this is not a PostgreSQL address: host and port cannot be read",
            remedy="write postgresql://USER:PASSWORD@HOST:PORT/DATABASE, in a password %2F for /, %40 for @, %3F for ?",
        )


def _milliseconds(key: str, value: str) -> int:
    if not value.isascii() or not value.isdigit() or not 1 <= int(value) <= 86_400_000:
        raise SettingError(f"{key} in the address is {value!r}", remedy="write whole milliseconds, at most a day")
    return int(value)


# -- from what the driver reports to what Mainspring says

_MAY_PASS: Final = (
    asyncpg.PostgresConnectionError,
    asyncpg.TransactionRollbackError,  # serialization failures and deadlocks
    asyncpg.InsufficientResourcesError,  # a full disk, too many connections
    asyncpg.OperatorInterventionError,  # shut down, crashed, cancelled, a statement's timeout
    asyncpg.LockNotAvailableError,
    asyncpg.ReadOnlySQLTransactionError,  # it became a standby
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.InFailedSQLTransactionError,
    asyncpg.InternalClientError,  # no server takes writes; or the connection broke at a bad moment
    asyncpg.InterfaceError,
    OSError,
    TimeoutError,
)
_ACCESS: Final = (
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InsufficientPrivilegeError,
    asyncpg.InvalidCatalogNameError,
)


def may_pass(error: BaseException) -> bool:
    """Whether trying again later may help."""
    return isinstance(error, _MAY_PASS) and not isinstance(error, _ACCESS)


def translated(error: BaseException, shown: str) -> MainspringError:
    """What to raise for it; `shown` is the address without its password."""
    reason = (str(error) or type(error).__name__)[:300]
    if isinstance(error, _ACCESS):
        return LogAccess(
            f"PostgreSQL at {shown} refuses this user: {reason}",
            remedy="check user, password and database in the address, and that the user may create or use the schema",
        )
    if isinstance(error, asyncpg.DiskFullError):
        return LogUnavailable(f"the disk of PostgreSQL at {shown} is full: {reason}", remedy="make room there")
    if isinstance(error, asyncpg.LockNotAvailableError):
        return LogUnavailable(
            f"the lock of the log at {shown} could not be had in time", remedy="is the server overloaded? try again"
        )
    if isinstance(error, asyncpg.UndefinedTableError | asyncpg.InvalidSchemaNameError):
        return LogGone(
            f"the log at {shown} is gone, or lacks tables: {reason}",
            remedy="restore the schema from a backup; `mainspring engine recover` publishes what nodes have kept; "
            "`mainspring engine init --begin-anew` begins an empty log",
        )
    if may_pass(error):
        return LogUnavailable(
            f"PostgreSQL at {shown} cannot be used now: {reason}", remedy="is it running, and is the address right?"
        )
    return LogUnavailable(f"PostgreSQL at {shown} failed: {reason}", remedy="see the server's log; then try again")


# -- connections


class PostgresConnections:
    """All connections of one node to one server. `pooled`: something between this node and the server shares sessions.

    A pooler such as PgBouncer may give each transaction another session. Then nothing that belongs to a session can be
    used: no LISTEN, no prepared statements, and settings are made again in each transaction.
    """

    def __init__(self, address: PostgresAddress, clock: Clock) -> None:
        self.address: PostgresAddress = address
        self.pooled: bool = False
        self.reconnects: int = 0
        self._clock = clock
        self._writer: Any = None
        self._idle: list[Any] = []
        self._lent: list[Any] = []  # connections for programs that none of them has now
        self._readers = asyncio.Semaphore(_MOST_READERS)
        self._opened: set[Any] = set()
        self._closed = False

    async def probe(self) -> None:
        """Look what kind of server answers; before anything else."""
        connection = await self._connect(kept=0)
        try:
            version = connection.get_server_version().major
            if version < OLDEST_SERVER:
                raise FormatError(
                    f"the server is PostgreSQL {version}", remedy=f"use PostgreSQL {OLDEST_SERVER} or later"
                )
            await connection.execute(f"BEGIN;{self.session_settings(local=True)}")
            pid = await connection.fetchval("SELECT pg_backend_pid()")
            self.pooled = pid != connection.get_server_pid()  # a pooler gives out numbers of its own
        finally:
            connection.terminate()

    def _connect(self, kept: int) -> Any:
        timeout = min(_CONNECT_S, self.address.patience_ms / 1000)
        return asyncpg.connect(self.address.url, timeout=timeout, statement_cache_size=kept)

    async def connect(self) -> Any:
        """A new connection. Raises what the driver raises."""
        connection = await self._connect(kept=0 if self.pooled else 256)
        try:
            if self._closed:
                raise LogUnavailable("the log is closed", remedy="open it first")
            if not self.pooled:
                await connection.execute(self.session_settings(local=False))
        except BaseException:
            connection.terminate()
            raise
        self._opened.add(connection)
        return connection

    def session_settings(self, *, local: bool) -> str:
        """What a server's or a role's defaults must not decide for us, as statements."""
        scope = "LOCAL" if local else "SESSION"
        wanted = {
            "statement_timeout": 0,
            "lock_timeout": self.address.patience_ms,
            "idle_in_transaction_session_timeout": self.address.held_ms,
        }
        return ";".join(f"SET {scope} {name} = {value}" for name, value in wanted.items())

    @property
    def begin(self) -> str:
        """Statements that begin a commit: a transaction that has the log's lock."""
        settings = f"{self.session_settings(local=True)};" if self.pooled else ""
        return (
            f"BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;{settings}"
            f"SELECT pg_advisory_xact_lock({self.address.lock})"
        )

    @property
    def lock(self) -> str:
        """Statements that take the log's lock in a transaction that a program began."""
        return f"{self.session_settings(local=True)};SELECT pg_advisory_xact_lock({self.address.lock})"

    @property
    def patient(self) -> str:
        """A statement for a transaction in which a program works: it may take its time."""
        return "SET LOCAL idle_in_transaction_session_timeout = 0"

    async def lend(self) -> Any:
        """A connection for a program. Give it back with `take_back`."""
        while self._lent:
            connection = self._lent.pop()
            if not connection.is_closed():
                return connection
            self.discard(connection)
        return await self.connect()

    def take_back(self, connection: Any) -> None:
        """It is kept for the next program, unless it is still in a transaction."""
        if connection.is_closed() or connection.is_in_transaction() or len(self._lent) >= _MOST_LENT:
            self.discard(connection)
        else:
            self._lent.append(connection)

    async def writer(self) -> Any:
        """The connection that commits."""
        if self._writer is None or self._writer.is_closed():
            again = self._writer is not None
            self.discard(self._writer)
            self._writer = await self.connect()
            self.reconnects += again
        return self._writer

    def drop_writer(self) -> None:
        """Whatever it was doing: it is of no use any more."""
        self.discard(self._writer)

    def discard(self, connection: Any) -> None:
        """Whatever it was doing: it is of no use any more."""
        if connection is not None:
            self._opened.discard(connection)
            connection.terminate()

    @asynccontextmanager
    async def reader(self) -> AsyncIterator[Any]:
        """A connection for reading."""
        async with self._readers:
            connection = self._idle.pop() if self._idle else None
            if connection is None or connection.is_closed():
                self.discard(connection)
                connection = await self.connect()
            try:
                yield connection
            except BaseException:
                self.discard(connection)
                raise
            self._idle.append(connection)

    def whole(self, connection: Any) -> Any:
        """What several exchanges with the server must share when a pooler is between: one transaction."""
        return connection.transaction() if self.pooled else _NOTHING

    async def read(self, work: Callable[[Any], Awaitable[T]]) -> T:
        """What `work` gives with a connection, tried again while the server is away. Only for what may be done twice.

        Raises `LogUnavailable`, `LogAccess` or `FormatError`.
        """
        deadline = self.deadline_ms()
        pauses = _AGAIN.series()
        while True:
            try:
                left_s = max(deadline - self._clock.now_ms(), 1) / 1000
                async with asyncio.timeout(left_s), self.reader() as connection, self.whole(connection):
                    return await work(connection)
            except DRIVER_ERRORS as error:
                if not may_pass(error) or self._clock.now_ms() >= deadline:
                    raise translated(error, self.address.shown) from error
            await asyncio.sleep(pauses.failed() / 1000)

    def deadline_ms(self) -> int:
        return self._clock.now_ms() + self.address.patience_ms

    async def close(self) -> None:
        self._closed = True
        for connection in list(self._opened):
            self.discard(connection)


# -- what an acknowledgement means

_ASK: Final = """
SELECT current_setting('fsync') AS fsync, current_setting('synchronous_commit') AS waits,
  current_setting('full_page_writes') AS pages, current_setting('synchronous_standby_names') AS standbys,
  (SELECT count(*) FROM pg_stat_replication) AS connected, pg_is_in_recovery() AS standby
"""


async def ask_durability(connection: Any) -> tuple[Durability, int]:
    """What an acknowledgement of this server means now, and how many servers keep a copy."""
    (row,) = await connection.fetch(_ASK)
    return describe(dict(row)), 1 + row["connected"]


def describe(found: dict[str, Any]) -> Durability:
    """From the server's settings to what they mean."""
    waits, standbys = found["waits"], found["standbys"]
    if found["fsync"] != "on" or found["pages"] != "on":
        name = "fsync" if found["fsync"] != "on" else "full_page_writes"
        return Durability(
            durable=False, statement=f"PostgreSQL runs with {name}=off: a loss of power can destroy the whole log"
        )
    if waits == "off":
        return Durability(
            durable=False,
            statement="PostgreSQL acknowledges before it writes (synchronous_commit=off): "
            "a loss of power loses what it acknowledged last; set it to on, for this role or in the address",
        )
    if not standbys or waits == "local":
        also = f"; {found['connected']} standbys follow without being waited for" if found["connected"] else ""
        return Durability(
            durable=True,
            statement="one PostgreSQL server: an acknowledged commit is on its disk: "
            f"it outlives power, not the disk{also}",
        )
    what = {"remote_write": "received", "remote_apply": "applied"}.get(waits, "written to disk")
    return Durability(
        durable=True,
        statement=f"PostgreSQL with synchronous standbys ({standbys}): they have {what} an acknowledged commit too",
    )
