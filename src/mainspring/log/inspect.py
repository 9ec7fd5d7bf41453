"""What is at an engine's address: found by looking, without making or changing anything there.

Opening a log makes what is missing, which is right for a node and wrong for somebody who asks whether it is there: a
typing error in the log's name would leave an empty log behind, and say that all is well.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec

from mainspring.log.contract import Durability, FormatError, LogUnavailable
from mainspring.log.engines.registry import DATABASE, log_file, need_jetstream, no_engine
from mainspring.log.engines.sqlite.schema import FORMAT, format_of


class Inspection(msgspec.Struct, frozen=True, kw_only=True):
    """What was found.

    `log`: whether there is one. `missing`: what `mainspring engine init` would make. `format`: the version of what is
    stored, `knows` the newest this program reads. `replicas`: how many servers keep a copy, where that can be told;
    `wanted_replicas`: how many the address asks for, where it does.
    `durability`: what an acknowledgement means, where that can be told without a log. `loss_window_s`: how many seconds
    of what was acknowledged a loss of power everywhere may take; None where nobody knows, or all may be lost.
    """

    place: str
    log: bool
    knows: int
    format: int | None = None
    missing: tuple[str, ...] = ()
    replicas: int | None = None
    wanted_replicas: int | None = None
    durability: Durability | None = None
    loss_window_s: float | None = None


async def inspect(engine: str, data_dir: str | Path, *, database: str = DATABASE) -> Inspection:
    """Look at the log that an engine of this name would open. Raises what its `open` would raise, and makes nothing."""
    if engine == "sqlite":
        return inspect_file(log_file(data_dir))
    if engine == "memory":
        return Inspection(
            place="the memory of a node",
            log=False,
            knows=FORMAT,
            durability=Durability(False, "memory: nothing survives the process"),
        )
    if engine.startswith(("mongodb://", "mongodb+srv://")):
        from mainspring.log.engines.mongo.inspect import inspect_database

        return await inspect_database(engine, database=database)
    if engine.startswith(("nats://", "tls://")):
        need_jetstream()
        from mainspring.log.engines.nats.inspect import inspect_stream

        return await inspect_stream(engine)
    raise no_engine(engine)


def inspect_file(path: Path) -> Inspection:
    """Look at the log of the sqlite engine; a node may have it open."""
    durability = Durability(True, "sqlite: an acknowledgement is on this machine's disk")
    found = _format_of(path) if path.exists() else 0
    return Inspection(
        place=str(path),
        log=found > 0,
        knows=FORMAT,
        format=found or None,
        missing=() if found else ("the file",),
        replicas=1,
        durability=durability,
        loss_window_s=0,
    )


def _format_of(path: Path) -> int:
    # A reader of a file that nobody has open would leave SQLite's helper files beside it; `immutable` leaves nothing.
    at_rest = not path.with_name(path.name + "-wal").exists()
    mode = "immutable=1" if at_rest else "mode=ro"
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?{mode}", uri=True)) as connection:
            found = format_of(connection)
    except sqlite3.Error as error:
        raise LogUnavailable(f"the log {path} cannot be read: {error}", remedy="check its owner and rights") from error
    if found > FORMAT:
        raise FormatError(
            f"the log has format {found}; this version of Mainspring knows formats up to {FORMAT}",
            remedy="use the newer version that wrote it",
        )
    return found


__all__ = ["Inspection", "inspect"]
