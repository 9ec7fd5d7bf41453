"""An outbox by its address: `sqlite:///shop.db`, `postgresql://...`, `mongodb://.../shop`."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from mainspring.client.errors import BadArgument
from mainspring.errors import MissingExtra
from mainspring.outbox.outbox import TABLE
from mainspring.outbox.sql import SqlStore
from mainspring.outbox.store import OutboxStore

_BUSY_S: Final = 30.0  # how long to wait for another writer of the same SQLite file


def open_outbox(url: str, table: str = TABLE) -> OutboxStore:
    """The rows of the outbox at `url`; nothing is opened yet. SQLAlchemy's `postgresql+psycopg` works too."""
    scheme = urlsplit(url).scheme.partition("+")[0]
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
        f"{url.partition('://')[0]!r} is no database this knows",
        remedy="write sqlite:///file.db, postgresql://user@host/name or mongodb://host/name",
    )


def sqlite_file(url: str) -> Path:
    """The file of `sqlite:///relative.db` or `sqlite:////absolute.db`."""
    file = unquote(urlsplit(url).path)[1:]
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
    return psycopg.connect(address, connect_timeout=10)
