"""From what a user wrote (`--engine sqlite`) to an engine."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from mainspring.errors import MissingExtra, SettingError
from mainspring.log.contract import Engine
from mainspring.log.engines.memory import MemoryEngine
from mainspring.log.engines.sqlite import SqliteEngine
from mainspring.loop import Clock
from mainspring.settings import without_secrets

LOG_FILE: Final = "log.sqlite3"
DATABASE: Final = "mainspring"  # of MongoDB


def log_file(data_dir: str | Path) -> Path:
    """Where the SQLite engine keeps the log of a data directory."""
    return Path(data_dir) / LOG_FILE


def open_engine(name: str, data_dir: str | Path, clock: Clock | None = None, *, database: str = DATABASE) -> Engine:
    """The engine of that name, ready for its `open`. Raises `SettingError` for a name nobody knows.

    `clock` is for engines that wait for servers; the embedded ones never ask what time it is. `database` is MongoDB's,
    unless the address names one.
    """
    if name == "memory":
        return MemoryEngine()
    if name == "sqlite":
        return SqliteEngine(log_file(data_dir))
    if name.startswith(("nats://", "tls://")):
        return _jetstream(name, data_dir)
    if name.startswith(("mongodb://", "mongodb+srv://")):
        from mainspring.log.engines.mongo import MongoEngine  # says by itself when its package is missing

        return MongoEngine(name, database=database, clock=clock)
    raise no_engine(name)


def no_engine(name: str) -> SettingError:
    return SettingError(
        f"there is no engine {without_secrets(name)!r}",
        remedy="use sqlite (durable, in the data directory), memory, nats://HOST or mongodb://HOST",
    )


def _jetstream(address: str, data_dir: str | Path) -> Engine:
    need_jetstream()
    from mainspring.log.engines.nats import JetStreamEngine
    from mainspring.log.engines.nats.address import parse

    where = parse(address)
    return JetStreamEngine(where, Path(data_dir) / f"nats-{where.name}.sqlite3")


def need_jetstream() -> None:
    """The package for NATS is an extra: what needs it is imported only when asked for, after this."""
    try:
        import mainspring.log.engines.nats  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "nats":
            raise
        raise MissingExtra(
            "the NATS engine needs the package nats-py", remedy="pip install 'mainspring[nats]'"
        ) from error
