"""The outbox in SQLite and PostgreSQL: its table, and every statement on it.

Claims are made one after the other: SQLite has one writer (`BEGIN IMMEDIATE`), and in PostgreSQL a lock that belongs
to the transaction says whose turn it is. `FOR UPDATE SKIP LOCKED` alone would not do: a second drainer would skip the
locked first row of a key and take the second one. A claim is two short statements, publishing it takes much longer, so
drainers do not stand in each other's way.

States: 0 waits, 1 sent, 2 set aside. The indexes hold only what waits, so the table may keep millions of sent rows.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar

from mainspring.client import BadArgument
from mainspring.errors import MainspringError
from mainspring.outbox.store import OutboxRow, OutboxUnavailable, WaitingRows

Dialect = Literal["sqlite", "postgresql"]
Parameters = Mapping[str, Any]
T = TypeVar("T")

_PARAMETER: Final = re.compile(r"(?<!:):([a-z_]+)")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?\Z", re.ASCII)
_PG_DRIVERS: Final = ("psycopg", "psycopg2")


class NoTransaction(MainspringError):
    """The connection would commit each statement by itself."""

    code = "no_transaction"


Steps = Generator[tuple[str, Parameters], int, T]  # statements, each answered with how many rows it changed


@dataclass(frozen=True, slots=True)
class Bound:
    """What a program has open (a connection or a session) as something that executes SQL.

    Statements are written once with `:name` parameters; each driver gets its own spelling. The dialect is that of the
    connection itself, so a program that moves from SQLite to PostgreSQL changes nothing here. `execute` gives how many
    rows were changed, or an awaitable of that.
    """

    dialect: Dialect
    execute: Callable[[str, Parameters], Any]
    is_async: bool = False

    def perform(self, steps: Steps[T]) -> Any:
        """Execute the statements one after the other; gives what the generator returns, or an awaitable of it."""
        return self._perform_async(steps) if self.is_async else self._perform(steps)

    def _perform(self, steps: Steps[T]) -> T:
        try:
            statement = next(steps)
            while True:
                statement = steps.send(self.execute(*statement))
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    async def _perform_async(self, steps: Steps[T]) -> T:
        try:
            statement = next(steps)
            while True:
                statement = steps.send(await self.execute(*statement))
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


def bind(target: Any, *, alone: bool = False) -> Bound:
    """The connection or session as something that executes. Raises BadArgument for what cannot.

    Raises NoTransaction unless there is a transaction or what is executed may stand `alone`.
    """
    module = type(target).__module__.partition(".")[0]
    if module == "sqlalchemy":
        if hasattr(target, "run_sync"):
            return _bind_sqlalchemy_async(target, alone)
        bound, driver = _bind_sqlalchemy(target)
        if not alone and driver is not None:
            _require_transaction(driver)
        return bound
    for kind in _KINDS:
        if kind.knows(target, module):
            if not alone and not kind.in_transaction(target):
                raise NoTransaction(
                    "the connection commits each statement by itself, so the row would not belong to your transaction",
                    remedy="begin a transaction first, or turn autocommit off",
                )
            return kind.bind(target)
    raise BadArgument(
        f"{type(target).__module__}.{type(target).__qualname__} is no connection this knows",
        remedy="give a sqlite3, aiosqlite, psycopg, asyncpg or Django connection, "
        "or a SQLAlchemy Connection or Session",
    )


@dataclass(frozen=True, slots=True)
class _Kind:
    """How one driver's connections are recognised and used."""

    knows: Callable[[Any, str], bool]
    in_transaction: Callable[[Any], bool]
    bind: Callable[[Any], Bound]


def _bind_blocking(dialect: Dialect) -> Callable[[Any], Bound]:
    def bound(connection: Any) -> Bound:
        def execute(statement: str, parameters: Parameters) -> int:
            with closing(connection.cursor()) as cursor:
                cursor.execute(spelled(statement, dialect), parameters)
                return int(cursor.rowcount)

        return Bound(dialect, execute)

    return bound


def _bind_async(dialect: Dialect) -> Callable[[Any], Bound]:
    def bound(connection: Any) -> Bound:
        async def execute(statement: str, parameters: Parameters) -> int:
            cursor = await connection.execute(spelled(statement, dialect), parameters)
            count = int(cursor.rowcount)
            await cursor.close()
            return count

        return Bound(dialect, execute, is_async=True)

    return bound


def _bind_asyncpg(connection: Any) -> Bound:
    async def execute(statement: str, parameters: Parameters) -> int:
        names: list[str] = []

        def numbered(found: re.Match[str]) -> str:
            if found[1] not in names:
                names.append(found[1])
            return f"${names.index(found[1]) + 1}"

        text = _PARAMETER.sub(numbered, statement)
        done = await connection.execute(text, *(parameters[name] for name in names))
        return int(count) if (count := done.rpartition(" ")[2]).isdigit() else 0  # "INSERT 0 1"

    return Bound("postgresql", execute, is_async=True)


def _bind_django(connection: Any) -> Bound:
    dialect = connection.vendor
    if dialect not in ("sqlite", "postgresql"):
        raise BadArgument(f"{dialect} is not supported", remedy="use SQLite or PostgreSQL")

    def execute(statement: str, parameters: Parameters) -> int:
        with connection.cursor() as cursor:
            cursor.execute(spelled(statement, "postgresql"), dict(parameters))
            return int(cursor.rowcount)

    return Bound(dialect, execute)


def _sqlite_in_transaction(connection: Any) -> bool:
    mode = getattr(connection, "autocommit", -1)  # -1, or a Python without it: `isolation_level` decides
    alone = mode is True or (mode == -1 and connection.isolation_level is None)
    return not alone or bool(connection.in_transaction)


def _libpq_in_transaction(connection: Any) -> bool:
    begun = int(connection.info.transaction_status) != 0  # 0: idle, in every binding of libpq
    return begun or not connection.autocommit


def _is_async(target: Any) -> bool:
    return type(target).__name__.startswith("Async")


_KINDS: Final = (
    _Kind(lambda it, _: isinstance(it, sqlite3.Connection), _sqlite_in_transaction, _bind_blocking("sqlite")),
    _Kind(
        lambda it, module: module == "aiosqlite" and hasattr(it, "in_transaction"),
        lambda it: bool(it.in_transaction or it.isolation_level is not None),
        _bind_async("sqlite"),
    ),
    _Kind(
        lambda it, module: module in _PG_DRIVERS and hasattr(it, "cursor") and not _is_async(it),
        _libpq_in_transaction,
        _bind_blocking("postgresql"),
    ),
    _Kind(
        lambda it, module: module == "psycopg" and hasattr(it, "cursor"),
        _libpq_in_transaction,
        _bind_async("postgresql"),
    ),
    _Kind(
        lambda it, module: module == "asyncpg" and hasattr(it, "is_in_transaction"),
        lambda it: bool(it.is_in_transaction()),
        _bind_asyncpg,
    ),
    _Kind(
        lambda it, module: module == "django" and hasattr(it, "in_atomic_block"),
        lambda it: bool(it.in_atomic_block or not it.get_autocommit()),
        _bind_django,
    ),
)


def spelled(statement: str, dialect: Dialect) -> str:
    """The statement in the driver's own spelling of parameters."""
    return statement if dialect == "sqlite" else _PARAMETER.sub(r"%(\1)s", statement)


def table_name(name: str) -> str:
    """The name, if it can stand in a statement as it is."""
    if not _NAME.match(name):
        raise BadArgument(
            f"{name!r} cannot name a table", remedy="use letters, digits and _, with a schema before a dot"
        )
    return name


def create_table(target: Any, table: str, statements: Callable[[Dialect], list[str]]) -> Any:
    """Execute the statements that make a table, in the caller's transaction, one program at a time."""
    bound = bind(target, alone=True)

    def steps() -> Steps[None]:
        if bound.dialect == "postgresql":
            yield LOCK_TABLE, {"name": table}
        for statement in statements(bound.dialect):
            yield statement, {}

    return bound.perform(steps())


def _bind_sqlalchemy(target: Any) -> tuple[Bound, Any]:
    connection = target.connection() if hasattr(target, "get_bind") else target
    if not hasattr(connection, "exec_driver_sql"):
        raise BadArgument(
            f"a SQLAlchemy {type(target).__name__} is no connection", remedy="give a Connection or Session"
        )
    dialect = connection.dialect.name
    if dialect not in ("sqlite", "postgresql"):
        raise BadArgument(f"{dialect} is not supported", remedy="use SQLite or PostgreSQL")
    from sqlalchemy import text

    def execute(statement: str, parameters: Parameters) -> int:
        return int(connection.execute(text(statement), parameters).rowcount)

    return Bound(dialect, execute), connection.connection.dbapi_connection


def _bind_sqlalchemy_async(target: Any, alone: bool) -> Bound:
    """An AsyncConnection or AsyncSession: the blocking one inside it is used in its own greenlet."""
    dialect = (target.get_bind() if hasattr(target, "get_bind") else target).dialect.name

    def execute(statement: str, parameters: Parameters) -> Any:
        return target.run_sync(lambda inside: bind(inside, alone=alone).execute(statement, parameters))

    return Bound(dialect, execute, is_async=True)


def _require_transaction(connection: Any) -> None:
    """Of a driver behind SQLAlchemy, which begins by itself unless it is told to commit each statement."""
    if isinstance(connection, sqlite3.Connection):
        begun = _sqlite_in_transaction(connection)
    elif hasattr(connection, "autocommit") and hasattr(connection, "info"):
        begun = _libpq_in_transaction(connection)
    else:
        return
    if not begun:
        raise NoTransaction(
            "the connection commits each statement by itself, so the row would not belong to your transaction",
            remedy="begin a transaction first, or turn autocommit off",
        )


_AT_ONCE: Final = 1_000  # rows of one statement of housekeeping: no transaction is long

ADD: Final = """
INSERT INTO {table} (id, topic, event_key, headers, payload, created_ms)
VALUES (:id, :topic, :key, :headers, :payload, :created_ms)"""

_TABLE: Final = """
CREATE TABLE IF NOT EXISTS {table} (
    seq {sequence},
    id TEXT NOT NULL UNIQUE,
    topic TEXT NOT NULL,
    event_key TEXT,
    headers TEXT,
    payload TEXT NOT NULL,
    created_ms BIGINT NOT NULL,
    state SMALLINT NOT NULL DEFAULT 0,
    attempts INTEGER NOT NULL DEFAULT 0,
    due_ms BIGINT NOT NULL DEFAULT 0,
    claimed_by TEXT,
    claimed_until_ms BIGINT NOT NULL DEFAULT 0,
    sent_ms BIGINT,
    place TEXT,
    error TEXT
)"""
_SEQUENCE: Final = {
    "sqlite": "INTEGER PRIMARY KEY AUTOINCREMENT",
    "postgresql": "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
}
_INDEXES: Final = (
    "CREATE INDEX IF NOT EXISTS {index}_waiting ON {table} (seq) WHERE state = 0",
    "CREATE INDEX IF NOT EXISTS {index}_keys ON {table} (topic, event_key, seq) WHERE state = 0",
    "CREATE INDEX IF NOT EXISTS {index}_sent ON {table} (sent_ms) WHERE state = 1",
)

LOCK_TABLE: Final = "SELECT pg_advisory_xact_lock(hashtextextended(:name, 7070))"

# Those of an OutboxRow, in its order.
_COLUMNS: Final = "id, topic, event_key, headers, payload, created_ms, attempts, coalesce(error, '')"
_CLAIMABLE: Final = """
SELECT seq, {columns} FROM {table} AS o
WHERE state = 0 AND due_ms <= :now AND claimed_until_ms <= :now
  AND (event_key IS NULL OR NOT EXISTS (
    SELECT 1 FROM {table} AS e
    WHERE e.state = 0 AND e.topic = o.topic AND e.event_key = o.event_key AND e.seq < o.seq
      AND (e.due_ms > :now OR e.claimed_until_ms > :now)))
ORDER BY seq LIMIT :limit"""
_CLAIM: Final = "UPDATE {table} SET claimed_by = :drainer, claimed_until_ms = :until WHERE seq IN ({numbers})"
_SENT: Final = """
UPDATE {table} SET state = 1, sent_ms = :now, place = :place, attempts = attempts + 1, claimed_by = NULL, error = NULL
WHERE id = :id AND state <> 1"""
_REFUSED: Final = """
UPDATE {table} SET attempts = attempts + 1, due_ms = :due, error = :error, claimed_by = NULL, claimed_until_ms = 0,
    state = CASE WHEN attempts + 1 >= :most THEN 2 ELSE 0 END
WHERE id = :id AND claimed_by = :drainer AND state = 0"""
_RELEASE: Final = "UPDATE {table} SET claimed_by = NULL, claimed_until_ms = 0 WHERE claimed_by = :drainer AND state = 0"
_CLEAN: Final = """
DELETE FROM {table} WHERE seq IN
    (SELECT seq FROM {table} WHERE state = 1 AND sent_ms < :before ORDER BY sent_ms LIMIT :limit)"""
_COUNT: Final = """
SELECT count(*), min(created_ms), (SELECT count(*) FROM {table} WHERE state = 2) FROM {table} WHERE state = 0"""
_ASIDE: Final = "SELECT seq, {columns} FROM {table} WHERE state = 2 ORDER BY seq LIMIT :limit"
_RETRY: Final = """
UPDATE {table} SET state = 0, attempts = 0, due_ms = 0, claimed_by = NULL, claimed_until_ms = 0 WHERE state = 2"""


def schema(table: str, dialect: Dialect) -> list[str]:
    """The statements that make the table and its indexes."""
    index = table.rpartition(".")[2]
    return [
        _TABLE.format(table=table, sequence=_SEQUENCE[dialect]),
        *(each.format(table=table, index=index) for each in _INDEXES),
    ]


class SqlStore:
    """Rows in a database. `connect` opens a connection of its own, and another one after a failure.

    For SQLite it is in autocommit mode (transactions are begun here), for PostgreSQL it is not. Use it from one thread.
    """

    def __init__(self, connect: Callable[[], Any], dialect: Dialect, table: str) -> None:
        self._connect = connect
        self._dialect: Dialect = dialect
        self._table = table_name(table)
        self._connection: Any = None

    # -- what a drainer asks for

    def claim(self, drainer: str, now_ms: int, lease_ms: int, limit: int) -> list[OutboxRow]:
        with self._transaction(turn=True):
            found = self._fetch(_CLAIMABLE, {"now": now_ms, "limit": limit})
            if found:
                numbers = ",".join(str(int(row[0])) for row in found)
                self._execute(_CLAIM, {"drainer": drainer, "until": now_ms + lease_ms}, numbers=numbers)
        return [OutboxRow(*columns) for _, *columns in found]

    def sent(self, places: Sequence[tuple[OutboxRow, str]], now_ms: int) -> None:
        with self._transaction():
            for row, place in places:
                self._execute(_SENT, {"now": now_ms, "place": place, "id": row.id})

    def refused(self, drainer: str, row: OutboxRow, error: str, due_ms: int, max_attempts: int) -> bool:
        given = {"due": due_ms, "error": error, "id": row.id, "drainer": drainer, "most": max_attempts}
        with self._transaction():
            changed = self._execute(_REFUSED, given)
        return bool(changed) and row.attempts + 1 >= max_attempts

    def release(self, drainer: str) -> int:
        with self._transaction():
            return self._execute(_RELEASE, {"drainer": drainer})

    def clean(self, before_ms: int) -> int:
        cleaned = 0
        while True:
            with self._transaction():
                count = self._execute(_CLEAN, {"before": before_ms, "limit": _AT_ONCE})
            cleaned += count
            if count < _AT_ONCE:
                return cleaned

    def count(self) -> WaitingRows:
        with self._transaction(write=False):
            ((waiting, oldest, aside),) = self._fetch(_COUNT, {})
        return WaitingRows(waiting, oldest, aside)

    def aside(self, limit: int) -> list[OutboxRow]:
        with self._transaction(write=False):
            return [OutboxRow(*columns) for _, *columns in self._fetch(_ASIDE, {"limit": limit})]

    def retry(self, ids: Sequence[str] | None) -> int:
        with self._transaction():
            if ids is None:
                return self._execute(_RETRY, {})
            return sum(self._execute(_RETRY + " AND id = :id", {"id": each}) for each in ids)

    def create(self) -> None:
        """Make the table where it is missing."""
        with self._transaction(turn=True):
            for statement in schema(self._table, self._dialect):
                self._execute(statement, {})

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    # -- statements and transactions

    def _execute(self, statement: str, parameters: Parameters, **names: str) -> int:
        with closing(self._run(statement, parameters, **names)) as cursor:
            return int(cursor.rowcount)

    def _fetch(self, statement: str, parameters: Parameters) -> list[tuple[Any, ...]]:
        with closing(self._run(statement, parameters)) as cursor:
            return list(cursor.fetchall())

    def _run(self, statement: str, parameters: Parameters, **names: str) -> Any:
        text = statement.format(table=self._table, columns=_COLUMNS, **names)
        cursor = self._connection.cursor()
        cursor.execute(spelled(text, self._dialect), parameters)
        return cursor

    @contextmanager
    def _transaction(self, *, write: bool = True, turn: bool = False) -> Iterator[None]:
        """One transaction; with `turn` only one at a time, over all drainers."""
        try:
            if self._connection is None:
                self._connection = self._connect()
            self._begin(write, turn)
            yield
            self._connection.commit()
        except Exception as error:
            self._give_up()
            if not _from_driver(error):
                raise
            why = " ".join(str(error).split())  # a driver may say it in several lines
            raise OutboxUnavailable(f"the outbox {self._table} cannot be used: {why}", remedy=_remedy(why)) from error
        except BaseException:
            self._give_up()
            raise

    def _begin(self, write: bool, turn: bool) -> None:
        if self._dialect == "sqlite":
            self._connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
            return
        # Each statement has to see what was committed while it waited for its turn.
        self._connection.cursor().execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
        if turn:
            self._execute(LOCK_TABLE, {"name": self._table})

    def _give_up(self) -> None:
        """Whatever happened, the next transaction begins on a connection that is not in one."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        with suppress(Exception):  # the connection may be what failed
            connection.rollback()
        connection.close()


def _from_driver(error: Exception) -> bool:
    return isinstance(error, sqlite3.Error | OSError) or type(error).__module__.startswith("psycopg")


def _remedy(message: str) -> str:
    lowered = message.lower()
    if "there is no file" in lowered:
        return "check --database; the program that adds rows makes the file"
    if "no such table" in lowered or "does not exist" in lowered:
        return "make the table with `mainspring outbox create`, or check --database and --table"
    if "full" in lowered or "no space" in lowered:
        return "make room on the database's disk; nothing is lost, and draining goes on by itself"
    if "locked" in lowered:
        return "another program holds the database's write lock for long; look for an open transaction"
    return "is the database running, and is --database right?"
