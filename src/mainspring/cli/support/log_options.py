"""The log of a server, for a command that is no node: it looks, and leaves nothing behind.

A node's own copy of the log, where the engine keeps one, belongs to the node; a visitor makes its own and throws it
away.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from mainspring.cli.node.settings import ConfigOption
from mainspring.errors import SettingError
from mainspring.log import Engine, Log, LogMissing, SqliteEngine, inspect_log, log_file, open_engine
from mainspring.loop import MonotonicClock
from mainspring.settings import Loaded, Settings, load_all

T = TypeVar("T")
DataOption = Annotated[Path | None, typer.Option("--data", help="The node's data directory.  [default: ./data]")]
EngineOption = Annotated[
    str | None,
    typer.Option(
        "--engine", help="sqlite, postgresql://HOST/DB, nats://HOST/LOG or mongodb://HOST/DB.  [default: sqlite]"
    ),
]


@dataclass(frozen=True)
class FileOptions:
    """Where the log of the sqlite engine is, for what works on its file."""

    data: DataOption = None
    config: ConfigOption = None

    def load(self) -> Loaded:
        return load_all(self.config, data=self.data)


@dataclass(frozen=True)
class LogOptions:
    """Where the log is, on whichever engine."""

    data: DataOption = None
    engine: EngineOption = None
    config: ConfigOption = None

    def load(self) -> Loaded:
        return load_all(self.config, data=self.data, engine=self.engine)


def stored(at: FileOptions | LogOptions) -> Settings:
    """The settings, of a log that others than its node can see."""
    settings = at.load().settings
    if settings.engine == "memory":
        raise SettingError(
            "a log in memory is seen by its node only", remedy="name another engine with --engine or MAINSPRING_ENGINE"
        )
    return settings


def existing_file(settings: Settings) -> Path:
    """The log's file in the data directory; a visitor makes none where there is none."""
    path = log_file(settings.data)
    if not path.exists():
        raise LogMissing(f"there is no log at {path}", remedy="name the node's data directory with --data")
    return path


@contextmanager
def visiting(settings: Settings, *, may_make: bool = False) -> Iterator[Engine]:
    """The engine that the settings name, not yet open. Opening it would make a log where there is none, so that is
    refused here, unless the visitor came to make one.
    """
    if not may_make:
        found = asyncio.run(inspect_log(settings.engine, settings.data, database=settings.mongo_db))
        if not found.log:
            raise LogMissing(
                f"there is no log at {found.place}", remedy="check the address; `mainspring engine init` makes a log"
            )
    with tempfile.TemporaryDirectory(prefix="mainspring-") as folder:
        yield open_engine(settings.engine, folder, MonotonicClock(), database=settings.mongo_db)


@contextmanager
def reading(settings: Settings) -> Iterator[Engine]:
    """An engine to read from, beside a running node; a log is not made where there is none."""
    if settings.engine == "sqlite":
        yield SqliteEngine(existing_file(settings), read_only=True)
    else:
        with visiting(settings) as engine:
            yield engine


def opened(what: Engine | Log, work: Coroutine[Any, Any, T]) -> T:
    """What the work gives, which is done while this is open."""

    async def run() -> T:
        await what.open()
        try:
            return await work
        finally:
            await what.close()

    try:
        return asyncio.run(run())
    finally:
        work.close()  # it was not begun, if there was nothing to open
