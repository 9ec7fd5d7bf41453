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
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from nats.nuid import NUID

from mainspring.errors import MainspringError
from mainspring.log.contract import (
    Batch,
    Durability,
    EngineSetup,
    FormatError,
    InDoubt,
    Inspection,
    LogUnavailable,
    ReadThrough,
    Refused,
    Restorable,
    Result,
    Watched,
    groups,
)
from mainspring.log.engines.nats import encoding, stream
from mainspring.log.engines.nats.address import NatsAddress, parse
from mainspring.log.engines.nats.connection import CANCEL_SECONDS, NatsConnection, ServerLink
from mainspring.log.engines.nats.follower import StreamFollower
from mainspring.log.engines.nats.replica import ApplyOutcome, Replica, StreamMessage
from mainspring.log.engines.nats.sender import Sender, SentMessage
from mainspring.log.engines.nats.snapshots import USUAL_RULES, StreamTrimmer, TrimmingRules
from mainspring.log.engines.nats.startup import find_stream, look_for_stream, open_replica
from mainspring.loop import BackgroundTasks, reject, wake

MOST_AT_ONCE = 256  # messages handed to the replica together
STANDSTILL_SECONDS = 10.0  # without any message while the log is read at opening, it is given up
STORAGE_PAUSE = 0.5  # seconds, when the replica's disk takes nothing

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
            self.replica.writer.me = writer
            self._sender = Sender(self._connection, writer)
            self._trimmer = StreamTrimmer(
                self._connection, self.replica, found.replicas, self._sender, self._trimming_rules
            )
            await self._catch_up(self._connection, found)
        except BaseException:
            await self.close()
            raise

    async def _catch_up(self, connection: NatsConnection, found: stream.StreamInfo) -> None:
        """What the stream held when we came is applied before anything is read."""
        assert self._loop is not None
        self._goal = found.last
        self._caught_up = self._loop.create_future()
        self.applied = self.replica.state.applied
        start = self.applied + 1
        self._follower = StreamFollower(
            connection, found.identity, start, self._received, lambda: self._waiting_bytes, self._failed
        )
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

    async def durability(self) -> Durability:
        if self._connection is None:
            raise LogUnavailable("the log is not open", remedy="open it first")
        found = await look_for_stream(self._connection)
        if found is None:
            raise LogUnavailable("the log's stream is gone from the server", remedy="restore it from a backup")
        durability, _ = await stream.durability_and_window(self.address, found, self._connection.servers)
        return durability

    # -- writing

    async def commit(self, batches: Sequence[Batch]) -> list[Result]:
        sender = self._ready()
        encoded = [encoding.encode_batch(batch) for batch in batches]
        results: list[Result] = [one if isinstance(one, Refused) else LogUnavailable("not sent") for one in encoded]
        sound = [index for index, one in enumerate(encoded) if not isinstance(one, Refused)]
        bodies = [one for one in encoded if not isinstance(one, Refused)]
        under_way: list[tuple[range, SentMessage]] = []
        for group in groups(map(len, bodies), sender.limit):
            try:
                body = encoding.join_batches([bodies[index] for index in group])
                under_way.append((group, await sender.send(encoding.COMMIT, body)))
            except LogUnavailable as error:
                for index in group:
                    results[sound[index]] = error
                for index in sound[group.stop :]:
                    results[index] = LogUnavailable(f"not sent, after: {error.message}", remedy="try again")
                break
        for group, sent in under_way:
            try:
                outcome = await sender.outcome(sent)
                for index, result in zip(group, outcome.results, strict=True):
                    results[sound[index]] = result
            except LogUnavailable as error:
                for index in group:
                    results[sound[index]] = error
        return results

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
            self._apply()

    def _apply(self) -> None:
        if not self._waiting or self._connection is None:
            self._applying = False
            return
        self._applying = True
        count = min(len(self._waiting), MOST_AT_ONCE)
        messages = [self._waiting[index] for index in range(count)]
        report = bool(self._watchers) and self._caught_up is None  # what was before the opening is not reported
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
        elif isinstance(error, FormatError) or self.replica.damaged_by(error):
            self.replica.suspect.touch()
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
        self._follower.applied()
        if self._trimmer is not None and self._caught_up is None:
            self._trimmer.look()
        if self._caught_up is not None and self.applied >= self._goal:
            wake(self._caught_up)

    def _failed(self, error: MainspringError) -> None:
        """This node cannot go on. Reads are still answered; nothing is written any more."""
        self._fault = error
        _logger.error("the log cannot be followed any further: %s", error)
        if self._sender is not None:
            self._sender.give_up(InDoubt(error.message, remedy=error.remedy))
        if self._caught_up is not None:
            reject(self._caught_up, error)
        for callback in self._on_failure:
            callback(error)


def open_engine(text: str, setup: EngineSetup) -> JetStreamEngine:
    address = parse(text)
    return JetStreamEngine(address, Path(setup.data_dir) / f"nats-{address.name}.sqlite3")


async def inspect(text: str, _: EngineSetup) -> Inspection:
    """What is there. Unlike a node this changes nothing, also not the number of replicas the address asks for."""
    address = parse(text)
    place = f"{address.stream} on {', '.join(address.servers)}"
    async with _connected(address) as connection:
        found = await look_for_stream(connection)
        if found is None:
            missing = (f"the stream {address.stream}",)
            return Inspection(place=place, log=False, knows=encoding.FORMAT, missing=missing)
        durability, window = await stream.durability_and_window(address, found, connection.servers)
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


async def init(text: str, _: EngineSetup) -> list[str]:
    """Have the stream there, with as many replicas as the address asks for; what was made, in words."""
    address = parse(text)
    async with _connected(address) as connection:
        there = await look_for_stream(connection)
        await find_stream(connection)
    return [] if there is not None else [f"created the stream {address.stream}"]


@asynccontextmanager
async def _connected(address: NatsAddress) -> AsyncIterator[NatsConnection]:
    connection = NatsConnection(address, "mainspring engine")
    try:
        await connection.open(address.patience)
        yield connection
    finally:
        await connection.close()
