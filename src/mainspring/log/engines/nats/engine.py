"""`JetStreamEngine`: the log in one JetStream stream, and a replica of it on every node.

A commit is one message in the stream. The server gives all messages of all nodes one order and keeps them safe; every
node applies them in that order to its own replica, from which it reads. So reads never wait for the network, a commit
costs one round trip whatever it holds, and batches are atomic over everything the log has.

A commit is acknowledged when the server has stored its message and this node has applied it.

The reasons are in docs/decisions/nats-engine.md.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Final, TypeVar

import nats.errors
from nats.nuid import NUID

from mainspring.errors import MainspringError
from mainspring.log.contract import (
    Batch,
    Durability,
    EngineSetup,
    FormatError,
    InDoubt,
    Inspection,
    LogGone,
    LogUnavailable,
    ReadThrough,
    Refused,
    Restorable,
    Result,
    Room,
    Watched,
    groups,
    log_gone,
)
from mainspring.log.engines.history import SQLITE_FILES, OtherHistory, move_aside, other_history
from mainspring.log.engines.nats import encoding, snapshots, stream
from mainspring.log.engines.nats.address import NatsAddress, parse
from mainspring.log.engines.nats.connection import CANCEL_SECONDS, ApiError, LinkLost, NatsConnection, ServerLink
from mainspring.log.engines.nats.history import StreamMessage
from mainspring.log.engines.nats.messages import BELIEVE_SECONDS, Sender, SentMessage, StreamFollower, fell_behind
from mainspring.log.engines.nats.replica import ApplyOutcome, Replica
from mainspring.log.engines.nats.snapshots import USUAL_RULES, StreamTrimmer, TrimmingRules
from mainspring.log.engines.nats.stream import StreamInfo
from mainspring.log.engines.sqlite.appends import AppendDecider, AppendRun
from mainspring.loop import BackgroundTasks, reject, wake
from mainspring.private_files import FILE_MODE

MOST_AT_ONCE = 256  # messages handed to the replica together
STANDSTILL_SECONDS = 10.0  # without any message while the log is read at opening, it is given up
STORAGE_PAUSE = 0.5  # seconds, when the replica's disk takes nothing
AGAIN_SECONDS: Final = 0.3
MENDED_SECONDS: Final = 15.0  # somebody shortened the stream: a running node notices and stores a snapshot by then
MENDING_PAUSE: Final = 1.0

_SHORTENED: Final = (
    "the stream {} begins at message {}, and no snapshot holds what was before: somebody removed messages. A node that "
    "was up to date stores a snapshot within seconds of its start; without one, restore the log from a backup"
)

T = TypeVar("T")

_logger = logging.getLogger(__name__)


class JetStreamEngine(ReadThrough, Watched):
    """A log that several nodes share. `replica` is the file of this node's copy; it can be removed at any time."""

    name = "nats"

    def __init__(
        self, address: str | NatsAddress, replica: str | Path, *, trimming_rules: TrimmingRules = USUAL_RULES
    ) -> None:
        self.address: NatsAddress = parse(address) if isinstance(address, str) else address
        self.replica: Replica = Replica(replica)
        ReadThrough.__init__(self, self.replica)
        Watched.__init__(self)
        self._trimming_rules = trimming_rules
        self._connection: NatsConnection | None = None
        self._sender: Sender | None = None
        self._follower: StreamFollower | None = None
        self._trimmer: StreamTrimmer | None = None
        self._tasks = BackgroundTasks(_logger, "the NATS engine")
        self._waiting: deque[StreamMessage] = deque()
        self._waiting_bytes = 0
        self._applying = False
        self._fault: MainspringError | None = None
        self._on_failure: list[Callable[[MainspringError], object]] = []
        self._caught_up: asyncio.Future[None] | None = None
        self._goal = 0
        self.applied: int = 0  # the last message of the stream that was reported to watchers and writers
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def reconnects(self) -> int:
        """How often a server was found again since the log was opened."""
        return 0 if self._connection is None else self._connection.reconnects

    # -- opening and closing

    async def open(self) -> None:
        if self._connection is not None:
            return
        self._loop = asyncio.get_running_loop()
        self._fault = None
        writer = NUID().next().decode()
        self._connection = NatsConnection(self.address, f"mainspring {writer}")
        try:
            await self._connection.open(self.address.patience)
            found = await find_stream(self._connection, self.replica.path)
            found = await open_replica(self.replica, self._connection, found)
            self.replica.on_failure(self._failed)
            self.replica.writer.me = writer
            history = self.replica.writer.history
            self._sender = Sender(self._connection, writer, (history.seq, history.digest))
            self._trimmer = StreamTrimmer(
                self._connection, self.replica, found.replicas, self._sender, self._trimming_rules
            )
            await self._catch_up(self._connection, found)
        except BaseException:
            await self.close()
            raise

    async def _catch_up(self, connection: NatsConnection, found: StreamInfo) -> None:
        """What the stream held when we came is applied before anything is read."""
        assert self._loop is not None
        self._goal = found.last
        self._caught_up = self._loop.create_future()
        self.applied = self.replica.state.applied
        last = (self.applied, self.replica.state.mark)
        self._follower = StreamFollower(
            connection, found.identity, last, self._received, lambda: self._waiting_bytes, self._failed
        )
        self._follower.may_rest = self._may_rest
        self._tasks.start(self._follower.run(), "follow")
        while self.applied < self._goal:
            before = self.applied
            await asyncio.wait({self._caught_up}, timeout=max(self.address.patience, STANDSTILL_SECONDS))
            if self._caught_up.done():
                self._caught_up.result()
            elif self.applied == before:
                raise LogUnavailable(
                    f"the log can be read up to message {self.applied} of {self._goal} only",
                    remedy="see the servers' logs; then try again",
                )
        self._caught_up = None

    async def close(self) -> None:
        """Idempotent."""
        if self._trimmer is not None:
            await self._trimmer.close()
            self._trimmer = None
        await self._tasks.cancel(repeat_s=CANCEL_SECONDS)
        if self._sender is not None:
            self._sender.give_up(InDoubt("the log was closed before the batch was applied here"))
            self._sender = None
        if self._connection is not None:
            connection, self._connection = self._connection, None
            await connection.close()
        self._waiting.clear()
        self._waiting_bytes = 0
        self._watchers.clear()
        self._on_failure.clear()
        await self.replica.close()
        self._applying = False

    @property
    def connected(self) -> bool:
        return self._connection is not None and self._connection.link is not None

    @property
    def link(self) -> ServerLink:
        """The connection as it is now, for asking the server other things. Raises `LogUnavailable` without one."""
        link = self._connection.link if self._connection is not None else None
        if link is None:
            raise LogUnavailable("there is no connection to a NATS server now", remedy="try again")
        return link

    def on_failure(self, callback: Callable[[MainspringError], object]) -> None:
        """Call with the reason when this node can follow the log no further; at once if that is so already.

        Nothing is written from then on, and what is read grows old: the node has to be started again.
        """
        self._on_failure.append(callback)
        if self._fault is not None:
            callback(self._fault)

    async def room(self) -> Room:
        """Of the file system that this node's copy of the log is in; that of the servers is theirs to watch."""
        return await self.replica.room()

    async def durability(self) -> Durability:
        if self._connection is None:
            raise LogUnavailable("the log is not open", remedy="open it first")
        found = await look_for_stream(self._connection)
        if found is None:
            return Durability(False, stream.GONE)
        if self._trimmer is not None:
            self._trimmer.mend(found)
        durability, _ = await stream.durability_and_window(self.address, found, self._connection.servers)
        return durability

    async def time_ms(self) -> int:
        try:
            return await stream.time_ms(self.link, self.address)
        except (ApiError, LinkLost, TimeoutError, nats.errors.Error) as error:
            raise LogUnavailable(f"the server does not say what time it is: {error}", remedy="try again") from error

    # -- writing

    async def commit(self, batches: Sequence[Batch]) -> list[Result]:
        sender = self._ready()
        results: list[Result] = [LogUnavailable("not sent")] * len(batches)
        under_way: list[tuple[Sequence[int], SentMessage]] = []
        commits = self._messages(batches, results, sender.limit)
        for group, body in commits:
            try:
                under_way.append((group, await sender.send(encoding.COMMIT, body)))
            except LogUnavailable as error:
                for index in group:
                    results[index] = error
                for group, _ in commits:
                    for index in group:
                        results[index] = LogUnavailable(f"not sent, after: {error.message}", remedy="try again")
        for group, sent in under_way:
            try:
                outcome = await sender.outcome(sent)
                for index, result in zip(group, outcome.results, strict=True):
                    results[index] = result
            except LogUnavailable as error:
                for index in group:
                    results[index] = error
        return results

    def _messages(
        self, batches: Sequence[Batch], results: list[Result], limit: int
    ) -> Iterator[tuple[Sequence[int], bytes]]:
        """The bodies of the messages that hold the batches, and the indexes of these. What is refused has its result.

        What only appends is packed here; everything else is encoded as it is.
        """
        decider = AppendDecider(self.replica.writer.log_state)
        sound: list[int] = []
        sizes: list[int] = []
        encoded: dict[int, bytes] = {}
        for index, batch in enumerate(batches):
            size = decider.size_in_run(batch.operations)
            if not 0 < size <= limit:
                one = encoding.encode_batch(batch)
                if isinstance(one, Refused):
                    results[index] = one
                    continue
                encoded[index] = one
                size = len(one)
            sound.append(index)
            sizes.append(size)
        for together in groups(sizes, limit):
            group = sound[together.start : together.stop]
            operations = [batches[index].operations for index in group]
            items: list[bytes | AppendRun] = []
            for item in decider.decide(operations, [index not in encoded for index in group]):
                if isinstance(item, AppendRun):
                    items.append(item)
                else:
                    items.append(encoded.get(group[item]) or encoding.encode(operations[item]))
            yield group, encoding.encode_commit(items)

    async def forget_dedupe(self, now: int) -> int:
        count = await self._do(encoding.FORGET, encoding.encode(now))
        assert isinstance(count, int)
        return count

    async def restore(self, items: Sequence[Restorable]) -> None:
        await self._do(encoding.RESTORE, encoding.encode_restorables(items))

    async def _do(self, kind: str, body: bytes) -> object:
        sender = self._ready()
        outcome = await sender.outcome(await sender.send(kind, body))
        if isinstance(outcome.value, MainspringError):
            raise outcome.value
        return outcome.value

    def _ready(self) -> Sender:
        if self._fault is not None:
            raise LogUnavailable(self._fault.message, remedy=self._fault.remedy) from self._fault
        if self._sender is None:
            raise LogUnavailable("the log is not open", remedy="open it first")
        return self._sender

    # -- applying what comes

    def _received(self, message: StreamMessage) -> None:
        self._waiting.append(message)
        self._waiting_bytes += message.size
        if not self._applying:
            self._applying = True
            assert self._loop is not None
            self._loop.call_soon(self._apply)  # with what was read together with it

    def _may_rest(self) -> bool:
        """Whether nothing here waits for the next message."""
        return self._sender is not None and not self._sender.waits and self._caught_up is None

    def _apply(self) -> None:
        if not self._waiting or self._connection is None:
            self._applying = False
            return
        self._applying = True
        count = min(len(self._waiting), MOST_AT_ONCE)
        messages = [self._waiting[index] for index in range(count)]
        # What was before the opening is not reported. Everything else is, also while nobody watches: who begins to
        # before this is applied may read the log as it was.
        report = self._caught_up is None or messages[-1].seq > self._goal
        self.replica.writer.apply(messages, report=report, done=self._applied_in_thread)

    def _applied_in_thread(self, outcomes: list[ApplyOutcome], error: MainspringError | None) -> None:
        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._applied, outcomes, error)

    def _applied(self, outcomes: list[ApplyOutcome], error: MainspringError | None) -> None:
        if self._connection is None or self._sender is None or self._follower is None:
            return
        for _ in outcomes:
            self._waiting_bytes -= self._waiting.popleft().size
        if error is None:
            self._apply()  # the disk works while the changes are reported
        elif isinstance(error, LogGone):
            self._failed(error)
        elif isinstance(error, FormatError) or self.replica.damaged_by(error):
            self.replica.suspect.touch(FILE_MODE)
            self._failed(error)
        else:
            _logger.error("the replica cannot be written; trying again: %s", error)
            assert self._loop is not None
            self._loop.call_later(STORAGE_PAUSE, self._apply)
        for outcome in outcomes:
            for change in outcome.changes:
                self._report(change)
            self.applied = outcome.message.seq
            self._sender.settle(outcome)
            if outcome.doubted and self._fault is None:
                self._doubt(outcome.message)
        self._follower.applied()
        if self._trimmer is not None and self._caught_up is None:
            self._trimmer.look()
        if self._caught_up is not None and self.applied >= self._goal:
            wake(self._caught_up)

    def _doubt(self, message: StreamMessage) -> None:
        """The writer of this message has another history. Whose is that of the servers? Until then nothing is sent."""
        assert message.envelope is not None
        if self.replica.writer.history.same_messages(message.envelope):
            self._failed(
                FormatError(
                    f"this node and {message.envelope.writer} (message {message.seq}) made something else of the same "
                    f"messages up to {message.envelope.seen}",
                    remedy="bring all nodes to one version, remove the replica of the one that is wrong "
                    "(`mainspring engine compare` shows where they differ), and restart it",
                )
            )
        else:
            self._tasks.start_unless_running(lambda: self._compare_with_server(message), "compare")

    async def _compare_with_server(self, doubtful: StreamMessage) -> None:
        assert self._connection is not None
        link = await self._connection.linked()
        link.checked.clear()
        try:
            for seq, mark in self.replica.writer.history.newest_marks(doubtful.seq):
                there = await stream.message_at(link, self.address, seq)
                if there is not None and there.mark != mark:
                    self._failed(other_history(f"message {seq}", mark, there.mark))
                    return
        except (ApiError, LinkLost, TimeoutError) as error:
            _logger.warning("the history could not be compared with the server's: %s", error)
        else:
            _logger.error("message %s was written on another history than the servers have", doubtful.mark)
        link.checked.set()

    def _failed(self, error: MainspringError) -> None:
        """This node cannot go on. Reads are still answered; nothing is written any more."""
        if self._fault is not None:
            return
        self._fault = error
        _logger.error("the log cannot be followed any further: %s", error)
        if isinstance(error, OtherHistory):
            with suppress(OSError):
                self.replica.diverged.write_text(error.message)
        if self._sender is not None:
            self._sender.give_up(InDoubt(error.message, remedy=error.remedy))
        if self._caught_up is not None:
            reject(self._caught_up, error)
        for callback in self._on_failure:
            callback(error)


# -- finding the stream, and having a replica of it
#
# A replica can always be made again: from the stream's first message, or, when the stream was shortened, from the
# newest snapshot. It is kept under another name only when it holds something the server does not have any more, because
# then it may be the last copy.


async def look_for_stream(connection: NatsConnection) -> StreamInfo | None:
    """The log's stream as it is, or None; nothing is made or changed."""
    return await _patiently(connection, lambda link, _: stream.find(link, connection.address))


async def find_stream(connection: NatsConnection, replica: Path, *, begin_anew: bool = False) -> StreamInfo:
    """The log's stream, made if there never was one, as far as the server and this replica know, or `begin_anew`."""
    address = connection.address

    async def find(link: ServerLink, left: float) -> StreamInfo:
        found = await stream.find(link, address)
        if found is None and begin_anew:
            await snapshots.delete_bucket(link, address)
            if replica.exists():
                _logger.warning("the replica of the log of before is kept as %s", move_aside(replica))
        elif found is None and (why := await _trace_of_log(link, address, replica)):
            found = await stream.find(link, address)  # another node may have just made it
            if found is None:
                raise log_gone(why)
        if found is None:
            found = await stream.make(link, address, patient=left > 1)
        with suppress(ApiError, TimeoutError, nats.errors.Error):  # it is a trace for later, and needed for nothing now
            await snapshots.make_bucket(link, address, found.replicas)
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
        await replica.close()
        aside = move_aside(replica.path)
        replica.diverged.unlink(missing_ok=True)
        _logger.error(
            "the replica %s is put aside as %s, which holds what only this node has seen; `mainspring engine compare` "
            "shows it: %s",
            replica.path,
            aside.name,
            why,
        )
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
    if replica.diverged.exists():
        return replica.diverged.read_text()
    if state.applied >= found.first:
        there = await _patiently(connection, lambda link, _: stream.message_at(link, connection.address, state.applied))
        if there is None or there.ts != state.ts or state.mark not in ("", there.mark):
            return f"message {state.applied} is another one than the replica has seen: the stream was set back"
    return None


async def _start_from_snapshot(replica: Replica, connection: NatsConnection, found: StreamInfo) -> None:
    needed = replica.state.applied + 1
    if not await _has_snapshot(connection, found.first):
        raise fell_behind(needed, found.first)
    await replica.close()
    fetched = replica.path.with_name(replica.path.name + ".fetched")
    download = snapshots.Download(connection.address, fetched)
    while True:
        before = download.bytes
        try:
            there = await _patiently(
                connection, lambda link, _: download.go_on(link), "the log's snapshot cannot be fetched"
            )
            break
        except LogUnavailable:
            if download.bytes == before:
                raise  # it stands still
    if not there:
        raise fell_behind(needed, found.first)
    _remove(replica)
    os.replace(fetched, replica.path)
    await replica.open()
    if replica.state.applied + 1 < found.first:
        raise fell_behind(replica.state.applied + 1, found.first)


async def _has_snapshot(connection: NatsConnection, first: int) -> bool:
    """Whether a snapshot holds all before a message; where somebody shortened the stream, soon."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + MENDED_SECONDS
    while True:
        made = await _patiently(connection, lambda link, _: snapshots.stored(link, connection.address))
        if made is not None and made.seq + 1 >= first:
            return True
        if loop.time() > deadline:
            return False
        _logger.warning("no snapshot of the log reaches to message %d: waiting for one of a running node", first)
        await asyncio.sleep(MENDING_PAUSE)


async def _trace_of_log(link: ServerLink, address: NatsAddress, replica: Path) -> str:
    """What shows that there was a log, when the server has no stream; empty when nothing does."""
    if replica.exists():
        place = f"{replica.resolve().as_uri()}?mode=ro"
        with suppress(sqlite3.Error), closing(sqlite3.connect(place, uri=True)) as reading:
            row = reading.execute("SELECT value FROM replica WHERE name = 'applied'").fetchone()
            if row is not None and row[0]:
                return f"the server has no stream {address.stream}, but this node has seen {row[0]} messages of it"
    if await snapshots.has_bucket(link, address):
        return f"the server has no stream {address.stream}, but the store of its snapshots: the stream was deleted"
    return ""


def _remove(replica: Replica) -> None:
    for suffix in SQLITE_FILES:
        Path(f"{replica.path}{suffix}").unlink(missing_ok=True)
    replica.suspect.unlink(missing_ok=True)


# -- looking at the stream without being a node, and preparing it


def open_engine(text: str, setup: EngineSetup) -> JetStreamEngine:
    address = parse(text)
    return JetStreamEngine(address, replica_file(address, setup))


def replica_file(address: NatsAddress, setup: EngineSetup) -> Path:
    return Path(setup.data_dir) / f"nats-{address.name}.sqlite3"


async def inspect(text: str, setup: EngineSetup) -> Inspection:
    """What is there. Unlike a node this changes nothing, also not the number of replicas the address asks for."""
    address = parse(text)
    place = f"{address.stream} on {', '.join(address.servers)}"
    async with _connected(address) as connection:
        found = await look_for_stream(connection)
        if found is None:
            missing = (f"the stream {address.stream}",)
            link = await connection.linked()
            gone = bool(await _trace_of_log(link, address, replica_file(address, setup)))
            return Inspection(place=place, log=False, knows=encoding.FORMAT, missing=missing, gone=gone)
        durability, window = await stream.durability_and_window(address, found, connection.servers)
        if not await _is_whole(connection, found):
            durability, window = Durability(False, _SHORTENED.format(address.stream, found.first)), None
    return Inspection(
        place=place,
        log=True,
        knows=encoding.FORMAT,
        format=found.format,
        replicas=found.replicas,
        wanted_replicas=address.replicas or None,
        durability=durability,
        loss_window_s=window,
    )


async def _is_whole(connection: NatsConnection, found: StreamInfo) -> bool:
    """Whether all of the log is in the stream and the newest snapshot; not when somebody else removed messages."""
    if found.first <= 1:
        return True
    made = await _patiently(connection, lambda link, _: snapshots.stored(link, connection.address))
    return made is not None and made.seq + 1 >= found.first


async def init(text: str, setup: EngineSetup) -> list[str]:
    """Have the stream there, with as many replicas as the address asks for; what was made, in words."""
    address = parse(text)
    async with _connected(address) as connection:
        there = await look_for_stream(connection)
        await find_stream(connection, replica_file(address, setup), begin_anew=setup.begin_anew)
    return [] if there is not None else [f"created the stream {address.stream}"]


@asynccontextmanager
async def _connected(address: NatsAddress) -> AsyncIterator[NatsConnection]:
    connection = NatsConnection(address, "mainspring engine")
    try:
        await connection.open(address.patience)
        yield connection
    finally:
        await connection.close()
