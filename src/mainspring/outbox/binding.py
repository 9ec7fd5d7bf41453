"""Whatever a program holds in its hand, as one small face: a DB-API connection or a SQLAlchemy session executes SQL.

Statements are written once with `:name` parameters; each driver gets its own spelling. The dialect is that of the
connection itself, so a program that moves from SQLite to PostgreSQL changes nothing here.

The point of an outbox is that its rows live and die with the program's own transaction. A connection in autocommit mode
without an open transaction would commit the row alone, and quietly lose that promise; so it is refused.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from mainspring.client.errors import BadArgument
from mainspring.errors import MainspringError

Dialect = Literal["sqlite", "postgresql"]
Parameters = Mapping[str, Any]

_PARAMETER: Final = re.compile(r"(?<!:):([a-z_]+)")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?\Z", re.ASCII)
_PG_DRIVERS: Final = ("psycopg", "psycopg2")


class NoTransaction(MainspringError):
    """The connection would commit each statement by itself."""

    code = "no_transaction"


@dataclass(frozen=True, slots=True)
class Bound:
    """A connection that executes; `execute` gives how many rows were changed."""

    dialect: Dialect
    execute: Callable[[str, Parameters], int]


def bind(target: Any, *, alone: bool = False) -> Bound:
    """The connection or session as something that executes. Raises BadArgument for what cannot.

    Raises NoTransaction unless there is a transaction or what is executed may stand `alone`.
    """
    bound, driver = _bound(target)
    if not alone and driver is not None:
        _require_transaction(driver)
    return bound


def _bound(target: Any) -> tuple[Bound, Any]:
    module = type(target).__module__.partition(".")[0]
    if module == "sqlalchemy":
        return _bind_sqlalchemy(target)
    if isinstance(target, sqlite3.Connection):
        return Bound("sqlite", _executor(target, "sqlite")), target
    if module in _PG_DRIVERS and hasattr(target, "cursor"):
        if type(target).__name__.startswith("Async"):
            raise BadArgument(
                "an async connection cannot be used here", remedy="use SQLAlchemy's run_sync, or a blocking connection"
            )
        return Bound("postgresql", _executor(target, "postgresql")), target
    raise BadArgument(
        f"{type(target).__module__}.{type(target).__qualname__} is no connection this knows",
        remedy="give a sqlite3 or psycopg connection, or a SQLAlchemy Connection or Session",
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


def _executor(connection: Any, dialect: Dialect) -> Callable[[str, Parameters], int]:
    def execute(statement: str, parameters: Parameters) -> int:
        cursor = connection.cursor()
        try:
            cursor.execute(spelled(statement, dialect), parameters)
            return int(cursor.rowcount)
        finally:
            cursor.close()

    return execute


def _bind_sqlalchemy(target: Any) -> tuple[Bound, Any]:
    if hasattr(target, "sync_session") or hasattr(target, "sync_connection"):
        raise BadArgument(
            "an async session cannot be used here",
            remedy="write: await session.run_sync(lambda session: outbox.add(session, ...))",
        )
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


def _require_transaction(connection: Any) -> None:
    """Raise NoTransaction when the driver would commit each statement by itself."""
    if isinstance(connection, sqlite3.Connection):
        mode = getattr(connection, "autocommit", -1)  # -1, or a Python without it: `isolation_level` decides
        alone = mode is True or (mode == -1 and connection.isolation_level is None)
        begun = connection.in_transaction
    elif hasattr(connection, "autocommit") and hasattr(connection, "info"):
        alone = bool(connection.autocommit)
        begun = int(connection.info.transaction_status) != 0  # 0: idle, in every binding of libpq
    else:
        return  # another driver behind SQLAlchemy, which begins by itself
    if alone and not begun:
        raise NoTransaction(
            "the connection commits each statement by itself, so the row would not belong to your transaction",
            remedy="begin a transaction first, or turn autocommit off",
        )
