"""Is the replica that lies on this disk a copy of this log? If not, another one is made.

A replica can always be made again: from the stream's first message, or, when the stream was shortened, from the newest
snapshot. It is kept under another name only when it holds something the server does not have any more, because then it
may be the last copy.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
from contextlib import closing, suppress
from datetime import datetime
from pathlib import Path
from typing import Final

from mainspring.log.contract import FormatError, LogMissing, LogUnavailable
from mainspring.log.jetstream import snapshots, stream
from mainspring.log.jetstream.address import Address
from mainspring.log.jetstream.connection import ApiError, Connection, LinkLost
from mainspring.log.jetstream.following import fell_behind
from mainspring.log.jetstream.replica import Replica

FETCH_TRIES: Final = 5
_WITH_SQLITE: Final = ("", "-wal", "-shm")
_BROKEN: Final = (11, 26)  # SQLite's numbers for a damaged file and for a file that is no database

_logger = logging.getLogger(__name__)


async def open_replica(replica: Replica, connection: Connection, address: Address, found: stream.Found) -> None:
    """Returns with the replica open, of this stream, and not so old that the stream has dropped what it needs."""
    if replica.suspect.exists():
        _logger.warning("the replica %s was found damaged and is made again", replica.path)
        _remove(replica)
    try:
        await replica.open()
    except (FormatError, LogUnavailable) as error:
        if isinstance(error, LogUnavailable) and getattr(error.__cause__, "sqlite_errorcode", -1) & 0xFF not in _BROKEN:
            raise
        _logger.warning("the replica %s cannot be used and is made again: %s", replica.path, error)
        _remove(replica)
        await replica.open()
    why = await _why_another(replica, connection, address, found)
    if why:
        _logger.warning("the replica %s is put aside as %s: %s", replica.path, _aside(replica.path).name, why)
        await replica.close()
        _put_aside(replica.path)
        await replica.open()
    if replica.state.applied + 1 < found.first:
        await _start_from_snapshot(replica, connection, address, found)
    replica.writer.belong_to(found.identity)


async def _why_another(replica: Replica, connection: Connection, address: Address, found: stream.Found) -> str | None:
    state = replica.state
    if not state.applied:
        return None
    if state.stream != found.identity:
        return "it belongs to another stream of the same name"
    if state.applied > found.last:
        return f"it has seen message {state.applied}, and the stream ends at {found.last}: the server lost messages"
    if state.applied >= found.first and await _time_of(connection, address, state.applied) != state.ts:
        return f"message {state.applied} is another one than the replica has seen: the stream was set back"
    return None


async def _time_of(connection: Connection, address: Address, seq: int) -> int | None:
    """The time in ms of a message in the stream."""
    for _ in range(FETCH_TRIES):
        link = await connection.linked()
        try:
            reply = await link.api(f"STREAM.MSG.GET.{address.stream}", {"seq": seq})
            return _milliseconds(reply["message"]["time"])
        except ApiError as error:
            if error.code == stream.NO_MESSAGE:
                return None
        except (LinkLost, TimeoutError):
            pass
        await asyncio.sleep(0.3)
    raise LogUnavailable("JetStream does not answer", remedy="see the servers' logs; then start the node again")


def _milliseconds(time: str) -> int:
    """Of a time as Go writes it, with up to nine digits behind the second."""
    seconds, _, fraction = time.rstrip("Z").partition(".")
    whole = int(datetime.fromisoformat(f"{seconds}+00:00").timestamp())
    return whole * 1000 + int(fraction.ljust(3, "0")[:3])


async def _start_from_snapshot(replica: Replica, connection: Connection, address: Address, found: stream.Found) -> None:
    needed = replica.state.applied + 1
    await replica.close()
    for _ in range(FETCH_TRIES):
        link = await connection.linked()
        try:
            if not await snapshots.fetch(link, address, _fetched(replica.path)):
                raise fell_behind(needed, found.first)
            break
        except (ApiError, LinkLost, TimeoutError, OSError) as error:
            _logger.warning("fetching the snapshot did not work: %s", error or type(error).__name__)
            await asyncio.sleep(0.5)
    else:
        raise LogUnavailable("the log's snapshot cannot be fetched", remedy="see the servers' logs; then try again")
    _remove(replica)
    os.replace(_fetched(replica.path), replica.path)
    await replica.open()
    if replica.state.applied + 1 < found.first:
        raise fell_behind(replica.state.applied + 1, found.first)


def refuse_if_known(path: Path, address: Address) -> None:
    """The server has no such stream. A node that has seen it must not quietly begin an empty log."""
    if not path.exists():
        return
    with suppress(sqlite3.Error), closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as reading:
        row = reading.execute("SELECT value FROM replica WHERE name = 'applied'").fetchone()
        if row is not None and row[0]:
            raise LogMissing(
                f"the server has no stream {address.stream}, but this node has seen {row[0]} messages of it",
                remedy=f"check the address, or restore the stream from a backup; to begin an empty log, remove {path}",
            )


def _fetched(path: Path) -> Path:
    return path.with_name(path.name + ".fetched")


def _aside(path: Path) -> Path:
    return path.with_name(path.name + ".replaced")


def _put_aside(path: Path) -> None:
    for suffix in _WITH_SQLITE:
        with suppress(FileNotFoundError):
            os.replace(f"{path}{suffix}", f"{_aside(path)}{suffix}")


def _remove(replica: Replica) -> None:
    for suffix in _WITH_SQLITE:
        Path(f"{replica.path}{suffix}").unlink(missing_ok=True)
    replica.suspect.unlink(missing_ok=True)
