"""The log in one SQLite file.

| module | what it is |
|---|---|
| engine | `SqliteEngine`: the file's lock, the writer's thread and the readers' threads; `backup` |
| writer | the one thread that writes: from a plan to statements; what SQLite's errors mean |
| plan | deciding a commit in memory: where each partition ends, offsets, versions, refusals |
| chunks | many events in one row: how they are written, read and verified |
| reader | answering reads with a connection of its own |
| upkeep | removing events, putting small chunks together, older formats into chunks |
| rows | events of older formats, one row each |
| files | who owns the files, whether they are still there and belong together |
| wal | SQLite's write-ahead log, read without SQLite: what lies behind a damaged frame |
| recover | bringing back what a damaged write-ahead log hides |
| schema | tables, formats, checksums, how connections are set up |
| check | looking at a file: is there a log, and is every row what was written |
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from mainspring.log.contract import EngineSetup, Inspection
from mainspring.log.engines.sqlite.engine import SqliteEngine, backup
from mainspring.log.engines.sqlite.writer import SqliteWriter

LOG_FILE: Final = "log.sqlite3"


def log_file(data_dir: str | Path) -> Path:
    """Where the log of a data directory is."""
    return Path(data_dir) / LOG_FILE


class SqliteFactory:
    """The engine `sqlite`, in the data directory. See `EngineFactory`."""

    package = ""
    install = ""

    def open(self, address: str, setup: EngineSetup) -> SqliteEngine:
        return SqliteEngine(log_file(setup.data_dir))

    async def inspect(self, address: str, setup: EngineSetup) -> Inspection:
        from mainspring.log.engines.sqlite.check import inspect_file

        return inspect_file(log_file(setup.data_dir))

    async def init(self, address: str, setup: EngineSetup) -> list[str]:
        path = log_file(setup.data_dir)
        if (await self.inspect(address, setup)).log:
            return []
        engine = SqliteEngine(path)
        await engine.open()
        await engine.close()
        return ["created the file"]


__all__ = ["SqliteEngine", "SqliteFactory", "SqliteWriter", "backup", "log_file"]
