"""Snapshots: whole replicas in the JetStream object store, so that the stream need not hold everything for ever.

When the stream has grown by more than the last snapshot's size, one node copies its replica into the object store, and
once that is old enough, the messages before it are dropped. A new node starts from the snapshot and follows the stream
from there. The work over time is proportional to what is written: a snapshot of n bytes is made after n bytes came.

Who makes it is decided in the log itself: a node sends a claim, every node sees the first of several claims granted,
and a claim that leads to nothing lapses. There is one object, replaced by the next; the messages it replaces are
dropped only while it is there.

Every node looks whether something is due, after what it applied; nothing here needs a clock, because the messages carry
the server's time. What goes wrong here does no harm: it is tried again later, by this node or another.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

import msgspec
import nats.errors
import nats.js.errors
from nats.js.api import ObjectMeta, ObjectStoreConfig
from nats.js.object_store import ObjectStore

from mainspring.log.contract import LogUnavailable
from mainspring.log.engines.nats import encoding, stream
from mainspring.log.engines.nats.address import NatsAddress
from mainspring.log.engines.nats.connection import CANCEL_SECONDS, ApiError, LinkLost, NatsConnection, ServerLink
from mainspring.log.engines.nats.encoding import Snapshot
from mainspring.log.engines.nats.messages import Sender
from mainspring.log.engines.nats.replica import Replica
from mainspring.log.engines.nats.stream import StreamInfo
from mainspring.log.engines.sqlite.check import check
from mainspring.loop import BackgroundTasks
from mainspring.private_files import make_private_file

OBJECT: Final = "replica"
AGAIN_SECONDS: Final = 30.0  # after a failure

_logger = logging.getLogger(__name__)


class TrimmingRules(msgspec.Struct, frozen=True):
    """When snapshots are made and messages dropped."""

    grown_bytes: int = 64 << 20  # less than that is read again by a new node in a second or two
    keep_ms: int = 600_000  # a node that was away for less finds everything it missed in the stream
    claim_ms: int = 600_000  # a node that has not made its snapshot by then has died meanwhile


USUAL_RULES: Final = TrimmingRules()


def copy(replica: Path, target: Path) -> Snapshot:
    """A compact copy of the replica from one moment in time. Raises `OSError` when it is not sound."""
    target.unlink(missing_ok=True)
    make_private_file(target)
    with closing(sqlite3.connect(f"{replica.resolve().as_uri()}?mode=ro", uri=True)) as reading:
        reading.execute("VACUUM INTO ?", (str(target),))
    report = check(target)
    if report.problems:
        raise OSError(f"the replica is damaged: {report.problems[0].detail}")
    with closing(sqlite3.connect(target)) as reading:
        kept = dict(reading.execute("SELECT name, value FROM replica WHERE name IN ('applied', 'ts')").fetchall())
    return Snapshot(kept["applied"], kept["ts"], target.stat().st_size)


async def upload(link: ServerLink, address: NatsAddress, replicas: int, source: Path, made: Snapshot) -> None:
    """Put the copy into the object store, in place of the last one."""
    bucket = await make_bucket(link, address, replicas)
    await _set_replicas(link, address, replicas)
    meta = ObjectMeta(name=OBJECT, description=msgspec.json.encode(made).decode())
    with source.open("rb") as file:
        await _unless_lost(link, bucket.put(OBJECT, file, meta))


async def make_bucket(link: ServerLink, address: NatsAddress, replicas: int) -> ObjectStore:
    """The object store, made if there is none. It outlives the stream: whoever finds it alone knows of a loss."""
    bucket = await _bucket(link, address)
    if bucket is None:
        config = ObjectStoreConfig(description="Snapshots of a log of Mainspring", replicas=replicas)
        bucket = await link.client.jetstream().create_object_store(address.bucket, config)
    return bucket


async def has_bucket(link: ServerLink, address: NatsAddress) -> bool:
    return await _bucket(link, address) is not None


async def delete_bucket(link: ServerLink, address: NatsAddress) -> None:
    with suppress(nats.js.errors.NotFoundError):
        await link.client.jetstream().delete_object_store(address.bucket)


async def stored(link: ServerLink, address: NatsAddress) -> Snapshot | None:
    """Which snapshot is in the object store."""
    bucket = await _bucket(link, address)
    if bucket is None:
        return None
    try:
        info = await bucket.get_info(OBJECT)
        return msgspec.json.decode(info.description or "", type=Snapshot)
    except (nats.js.errors.NotFoundError, msgspec.DecodeError):
        return None


class Download:
    """Brings the snapshot to `target`, piece by piece. After a lost link it goes on with the piece that is missing."""

    def __init__(self, address: NatsAddress, target: Path) -> None:
        self._address = address
        self._target = target
        self._object = ""  # which one: a node may replace it meanwhile
        self._next = 1  # number in the object store's stream from which to look for the next piece
        self.bytes: int = 0

    async def go_on(self, link: ServerLink) -> bool:
        """True when all of it is there; False when there is no snapshot. What arrived is compared with its digest."""
        bucket = await _bucket(link, self._address)
        if bucket is None or await stored(link, self._address) is None:
            return False
        info = await bucket.get_info(OBJECT)
        if info.nuid != self._object:
            make_private_file(self._target)
            self._target.write_bytes(b"")
            self._object, self._next, self.bytes = info.nuid or "", 1, 0
        with self._target.open("ab") as file:
            while self.bytes < (info.size or 0):
                piece = await self._piece(link)
                file.write(piece)
                self.bytes += len(piece)
        await asyncio.to_thread(self._check, info.digest or "")
        return True

    async def _piece(self, link: ServerLink) -> bytes:
        wanted = {"seq": self._next, "next_by_subj": f"$O.{self._address.bucket}.C.{self._object}"}
        try:
            message = (await link.api(f"STREAM.MSG.GET.OBJ_{self._address.bucket}", wanted))["message"]
        except ApiError as error:
            if error.code == stream.NO_MESSAGE:
                self._object = ""  # it was replaced: begin again
            raise
        self._next = message["seq"] + 1
        return base64.b64decode(message["data"])

    def _check(self, digest: str) -> None:
        with self._target.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").digest()
        if digest != f"SHA-256={base64.urlsafe_b64encode(found).decode()}":
            self._object = ""
            raise OSError("the snapshot did not arrive as it was stored")


async def drop_before(link: ServerLink, address: NatsAddress, made: Snapshot) -> bool:
    """Drop the messages the snapshot replaces, if it is there; whether it is."""
    there = await stored(link, address)
    if there is None or there.seq < made.seq:
        return False
    found = await stream.find(link, address)
    if found is not None and found.first <= made.seq:
        await link.api(f"STREAM.PURGE.{address.stream}", {"seq": made.seq + 1})
        _logger.info("the stream %s now begins behind message %d", address.stream, made.seq)
    return True


async def _bucket(link: ServerLink, address: NatsAddress) -> ObjectStore | None:
    try:
        return await link.client.jetstream().object_store(address.bucket)
    except nats.js.errors.NotFoundError:
        return None


async def _set_replicas(link: ServerLink, address: NatsAddress, replicas: int) -> None:
    """Snapshots are kept as safely as the stream itself, also when that has got more replicas since."""
    name = f"OBJ_{address.bucket}"
    config = (await link.api(f"STREAM.INFO.{name}"))["config"]
    if config.get("num_replicas", 1) != replicas:
        await link.api(f"STREAM.UPDATE.{name}", config | {"num_replicas": replicas})


async def _unless_lost(link: ServerLink, work: object) -> None:
    """Do the work while the link lasts."""
    assert asyncio.iscoroutine(work)
    task: asyncio.Task[object] = asyncio.get_running_loop().create_task(work)
    lost = asyncio.get_running_loop().create_task(link.lost.wait())
    try:
        await asyncio.wait({task, lost}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise LinkLost
        await task
    finally:
        for one in (task, lost):
            one.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await one


class StreamTrimmer:
    """Makes snapshots and drops messages when they are due. `look` after applying; the work is done in a task."""

    def __init__(
        self, connection: NatsConnection, replica: Replica, replicas: int, sender: Sender, rules: TrimmingRules
    ) -> None:
        self._connection = connection
        self._address = connection.address
        self._replica = replica
        self._replicas = replicas
        self._sender = sender
        self._rules = rules
        self._tasks = BackgroundTasks(_logger, "keeping the stream short")
        self._not_before = 0.0
        self._dropped = 0  # the snapshot before which all messages are gone
        self._copied: Snapshot | None = None  # made, and not stored yet

    def look(self) -> None:
        due = not self._tasks and (self._may_drop() or self._should_make())
        if due and asyncio.get_running_loop().time() >= self._not_before:
            self._tasks.start(self._work(), "trim")

    def mend(self, found: StreamInfo) -> None:
        """Somebody else shortened the stream: store a snapshot, or no new node could join."""
        state = self._replica.state
        if found.first > (0 if state.snapshot is None else state.snapshot.seq) + 1 and state.applied + 1 >= found.first:
            _logger.error(
                "the stream %s begins at message %d, and no snapshot holds what was before: somebody removed messages; "
                "storing a snapshot",
                self._address.stream,
                found.first,
            )
            self._tasks.start_unless_running(self._make_again, "trim")

    async def close(self) -> None:
        await self._tasks.cancel(repeat_s=CANCEL_SECONDS)
        self._replica.path.with_name(self._replica.path.name + ".snapshot").unlink(missing_ok=True)

    async def _make_again(self) -> None:
        try:
            await self._make()
        except Exception as error:  # the next look tries again
            _logger.warning("storing a snapshot did not work: %s: %s", type(error).__name__, error)

    def _may_drop(self) -> bool:
        state = self._replica.state
        made = state.snapshot
        return made is not None and made.seq > self._dropped and state.ts - made.ts >= self._rules.keep_ms

    def _should_make(self) -> bool:
        state = self._replica.state
        made = state.snapshot
        if state.claimed and state.ts - state.claimed < self._rules.claim_ms and self._copied is None:
            return False
        if made is None:
            return state.grown > self._rules.grown_bytes
        return state.grown > max(self._rules.grown_bytes, made.bytes) and state.ts - made.ts >= self._rules.keep_ms

    async def _work(self) -> None:
        try:
            if self._may_drop():
                await self._drop()
            if self._should_make():
                await self._make()
        except Exception as error:  # servers away, a full disk: the next look tries again
            _logger.warning("keeping the log short did not work: %s: %s", type(error).__name__, error)
            self._not_before = asyncio.get_running_loop().time() + AGAIN_SECONDS

    async def _drop(self) -> None:
        made = self._replica.state.snapshot
        assert made is not None
        link = await self._connection.checked()
        if await drop_before(link, self._address, made):
            self._dropped = made.seq
        else:
            raise LookupError("the snapshot is not in the object store")

    async def _make(self) -> None:
        claim = await self._sender.send(encoding.CLAIM, encoding.encode(self._rules.claim_ms))
        if (await self._sender.outcome(claim)).value is not True:
            return
        renewing = asyncio.create_task(self._renew_claim(), name="renew the claim of a snapshot")
        target = self._replica.path.with_name(self._replica.path.name + ".snapshot")
        try:
            if self._copied is None:
                loop = asyncio.get_running_loop()
                self._copied = await loop.run_in_executor(None, copy, self._replica.path, target)
            made, newest = self._copied, self._replica.state.snapshot
            if newest is None or made.seq > newest.seq:
                link = await self._connection.checked()
                await upload(link, self._address, self._replicas, target, made)
                noted = await self._sender.send(encoding.SNAPSHOT, encoding.encode(made))
                await self._sender.outcome(noted)
            self._copied = None
        finally:
            renewing.cancel()
            if self._copied is None:  # else the next try goes on with it
                target.unlink(missing_ok=True)

    async def _renew_claim(self) -> None:
        """A copy of a large log takes longer than a claim lasts."""
        while True:
            await asyncio.sleep(self._rules.claim_ms / 3_000)
            with suppress(LogUnavailable):
                await self._sender.send(encoding.CLAIM, encoding.encode(self._rules.claim_ms))
