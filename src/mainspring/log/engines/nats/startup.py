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
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from datetime import datetime
from pathlib import Path
from typing import Final, TypeVar

import nats.errors

from mainspring.log.contract import FormatError, LogMissing, LogUnavailable
from mainspring.log.engines.nats import snapshots, stream
from mainspring.log.engines.nats.address import NatsAddress
from mainspring.log.engines.nats.connection import ApiError, LinkLost, NatsConnection, ServerLink
from mainspring.log.engines.nats.follower import BELIEVE_SECONDS, fell_behind
from mainspring.log.engines.nats.replica import Replica
from mainspring.log.engines.nats.stream import StreamInfo

AGAIN_SECONDS: Final = 0.3
_WITH_SQLITE: Final = ("", "-wal", "-shm")

_logger = logging.getLogger(__name__)

T = TypeVar("T")


async def look_for_stream(connection: NatsConnection) -> StreamInfo | None:
    """The log's stream as it is, or None; nothing is made or changed."""
    return await _patiently(connection, lambda link, _: stream.find(link, connection.address))


async def find_stream(connection: NatsConnection, replica: Path | None = None) -> StreamInfo:
    """The log's stream, made if there is none and this node, which would have this replica, has never seen one."""
    address = connection.address

    async def find(link: ServerLink, left: float) -> StreamInfo:
        found = await stream.find(link, address)
        if found is None:
            if replica is not None:
                _refuse_if_known(replica, address)
            found = await stream.make(link, address, patient=left > 1)
        if address.replicas not in (0, found.replicas):
            found = await stream.set_replicas(link, address)
        return found

    return await _patiently(connection, find)


async def _patiently(
    connection: NatsConnection,
    ask: Callable[[ServerLink, float], Awaitable[T]],
    trouble: str = "JetStream does not answer",
) -> T:
    """Ask again and again while patience lasts; `ask` gets the seconds left. Raises `LogUnavailable` in the end."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + connection.address.patience
    while True:
        try:
            async with asyncio.timeout_at(deadline + AGAIN_SECONDS):
                link = await connection.linked()
            return await ask(link, deadline - loop.time())
        except (ApiError, LinkLost, OSError, LogUnavailable, nats.errors.Error) as error:
            if loop.time() > deadline:
                if isinstance(error, LogUnavailable):
                    raise
                raise LogUnavailable(
                    f"{trouble}: {str(error) or type(error).__name__}", remedy="see the servers' logs; then try again"
                ) from error
        await asyncio.sleep(AGAIN_SECONDS)


async def open_replica(replica: Replica, connection: NatsConnection, found: StreamInfo) -> StreamInfo:
    """Returns with the replica open, of this stream, and not so old that the stream has dropped what it needs.

    What it returns is the stream as it was seen last.
    """
    if replica.suspect.exists():
        _logger.warning("the replica %s was found damaged and is made again", replica.path)
        _remove(replica)
    try:
        await replica.open()
    except (FormatError, LogUnavailable) as error:
        if isinstance(error, LogUnavailable) and not replica.damaged_by(error):
            raise
        _logger.warning("the replica %s cannot be used and is made again: %s", replica.path, error)
        _remove(replica)
        await replica.open()
    found = await _seen_to_its_end(replica, connection, found)
    why = await _why_another(replica, connection, found)
    if why:
        _logger.warning("the replica %s is put aside as %s: %s", replica.path, _aside(replica.path).name, why)
        await replica.close()
        _put_aside(replica.path)
        await replica.open()
    if replica.state.applied + 1 < found.first:
        await _start_from_snapshot(replica, connection, found)
    replica.writer.belong_to(found.identity)
    return found


async def _seen_to_its_end(replica: Replica, connection: NatsConnection, found: StreamInfo) -> StreamInfo:
    """A server that has just become the leader may not know the newest messages yet: it is given some time."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + BELIEVE_SECONDS
    state = replica.state
    while state.stream == found.identity and state.applied > found.last and loop.time() < deadline:
        await asyncio.sleep(AGAIN_SECONDS)
        with suppress(LogUnavailable):
            found = await look_for_stream(connection) or found
    return found


async def _why_another(replica: Replica, connection: NatsConnection, found: StreamInfo) -> str | None:
    state = replica.state
    if not state.applied:
        return None
    if state.stream != found.identity:
        return "it belongs to another stream of the same name"
    if state.applied > found.last:
        return f"it has seen message {state.applied}, and the stream ends at {found.last}: the server lost messages"
    if state.applied >= found.first and await _time_of(connection, state.applied) != state.ts:
        return f"message {state.applied} is another one than the replica has seen: the stream was set back"
    return None


async def _time_of(connection: NatsConnection, seq: int) -> int | None:
    """The time in ms of a message in the stream."""

    async def ask(link: ServerLink, _: float) -> int | None:
        try:
            reply = await link.api(f"STREAM.MSG.GET.{connection.address.stream}", {"seq": seq})
        except ApiError as error:
            if error.code == stream.NO_MESSAGE:
                return None
            raise
        return _milliseconds(reply["message"]["time"])

    return await _patiently(connection, ask)


def _milliseconds(time: str) -> int:
    """Of a time as Go writes it, with up to nine digits behind the second."""
    seconds, _, fraction = time.rstrip("Z").partition(".")
    whole = int(datetime.fromisoformat(f"{seconds}+00:00").timestamp())
    return whole * 1000 + int(fraction.ljust(3, "0")[:3])


async def _start_from_snapshot(replica: Replica, connection: NatsConnection, found: StreamInfo) -> None:
    needed = replica.state.applied + 1
    await replica.close()
    fetched = replica.path.with_name(replica.path.name + ".fetched")

    async def fetch(link: ServerLink, _: float) -> bool:
        return await snapshots.download(link, connection.address, fetched)

    if not await _patiently(connection, fetch, "the log's snapshot cannot be fetched"):
        raise fell_behind(needed, found.first)
    _remove(replica)
    os.replace(fetched, replica.path)
    await replica.open()
    if replica.state.applied + 1 < found.first:
        raise fell_behind(replica.state.applied + 1, found.first)


def _refuse_if_known(path: Path, address: NatsAddress) -> None:
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
