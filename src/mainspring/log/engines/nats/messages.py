"""Messages of the stream: storing one for certain, or saying exactly what is known; receiving all, each once, in order.

**Sending.** A message is sent until the server says that it has it, under one `Nats-Msg-Id`, so that however many of
the tries arrive, it is stored once. When patience ends there are two cases. If every try was answered with a refusal,
or none was ever sent, nothing was stored and `LogUnavailable` says so. If a try was left without an answer, it may have
been stored: `InDoubt`. One message is under way at a time, so that messages of one writer are stored in the order of
their numbers.

**Following.** The server keeps a short-lived consumer for us that starts at the message we need next. It lives in one
server's memory and needs no acknowledgements; when it is lost, or silent, or skips a message, another one is made that
starts where we are. So it is when the consumer's server is behind the others: after a split a server may take minutes
to catch up, and what the others have stored for us meanwhile would not come. Messages are pulled, not pushed, so that a
node which is slow to apply them is never flooded.

Waking up for a message, and a transaction for it, cost more than the message. A node that only follows, while others
write hundreds of small commits a second, reads nothing for some milliseconds after each message, and then what has
come together. As soon as it writes something itself it reads on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple

import msgspec
import nats.errors
from nats.aio.msg import Msg

from mainspring.errors import MainspringError
from mainspring.log.contract import FormatError, InDoubt, LogUnavailable
from mainspring.log.engines.history import other_history
from mainspring.log.engines.nats import encoding, stream
from mainspring.log.engines.nats.connection import (
    ASK_SECONDS,
    ApiError,
    DirectClient,
    LinkLost,
    NatsConnection,
    ServerLink,
)
from mainspring.log.engines.nats.encoding import StreamEnvelope
from mainspring.log.engines.nats.history import StreamMessage
from mainspring.log.engines.nats.replica import ApplyOutcome
from mainspring.loop import reject, resolve, time_limit

PULL: Final = 128  # messages asked for at a time
PULL_BYTES: Final = 16 << 20  # and of no more than that, so that big messages do not fill the memory
MOST_WAITING: Final = 32 << 20  # bytes received and not yet applied, beyond which no more messages are asked for
EXPIRES_SECONDS: Final = 30.0
HEARTBEAT_SECONDS: Final = 1.0
AGAIN_SECONDS: Final = 0.2
SILENT_SECONDS: Final = 3.5
BEHIND_SECONDS: Final = 3.0  # a message that is stored is sent by then, or by another server
PLACES: Final = 5  # a consumer is made so often to have it on another server than before
BELIEVE_SECONDS: Final = 15.0  # a new leader may for a moment not know the newest messages; after that it lost them
INACTIVE_SECONDS: Final = 30.0
REST_GAP_SECONDS: Final = 0.005  # where more than 200 messages a second come, they are read together
REST_MESSAGES: Final = 8  # about so many, if they come within
REST_SECONDS: Final = 0.025
_NANOSECONDS: Final = 1_000_000_000

_logger = logging.getLogger(__name__)


class _Gap(Exception):
    """A message was skipped."""


class _Behind(Exception):
    """A message is in the stream, and the server that should send it does not have it yet."""


class StreamFollower:
    """Calls `on_message` with each message behind `last`, and `failed` once when it cannot go on.

    `last` is the number of a message and its mark: before anything else, the server's message is compared with it.
    `waiting` gives the bytes that were received and are not applied yet.
    """

    def __init__(
        self,
        connection: NatsConnection,
        identity: str,
        last: tuple[int, str],
        on_message: Callable[[StreamMessage], None],
        waiting: Callable[[], int],
        failed: Callable[[MainspringError], None],
    ) -> None:
        self._connection = connection
        self._address = connection.address
        self._identity = identity
        self._next = last[0] + 1
        self._mark = last[1]  # of the message before; empty while it is not known
        self._on_message = on_message
        self._waiting = waiting
        self._failed = failed
        self._wake = asyncio.Event()
        self._asked = 0  # messages the server may still send us
        self._subject = ""
        self._trouble: Exception | None = None
        self._last_heard = 0.0
        self._gaps: tuple[int, int] = (0, 0)  # the message that was skipped, and how often
        self._missing_since: float | None = None
        self._overdue: tuple[int, float] = (0, 0.0)  # a message that should have come, and since when
        self._behind = ""  # the server that was behind
        self._said = ""  # why the log could not be followed, last
        self._gone = False
        self._client: DirectClient | None = None
        self._gap_s = 1.0  # between the last messages, on average
        self.may_rest: Callable[[], bool] = lambda: False  # whether nothing here waits for the next message

    async def run(self) -> None:
        """Until it is cancelled, or cannot go on."""
        try:
            while True:
                link = await self._connection.linked()
                try:
                    await self._follow(link)
                except _Gap:
                    self._count_gap()
                except Exception as error:
                    if isinstance(error, MainspringError) and not isinstance(error, LogUnavailable):
                        raise
                    self._say_interrupted(error)
                    await asyncio.sleep(AGAIN_SECONDS)
        except MainspringError as error:
            self._failed(error)

    def _say_interrupted(self, error: Exception) -> None:
        """Once for each reason, however often it is met before the log can be followed again."""
        said, self._said = self._said, f"{type(error).__name__}: {error}"
        if said != self._said:
            level = logging.WARNING if isinstance(error, _Behind) else logging.INFO
            _logger.log(level, "following the log is interrupted: %s", self._said)

    def applied(self) -> None:
        """Some of what was received is applied: there may be room for more."""
        if self._asked <= PULL // 2:
            self._wake.set()

    async def _follow(self, link: ServerLink) -> None:
        link.checked.clear()
        await self._check(link)
        link.checked.set()
        name, server = await self._make_consumer(link)
        self._said = ""
        self._subject = f"$JS.API.CONSUMER.MSG.NEXT.{self._address.stream}.{name}"
        self._trouble, self._asked = None, 0
        loop = asyncio.get_running_loop()
        self._last_heard = loop.time()
        inbox = link.client.new_inbox()
        link.client.receive_from(self._address.stream, name, self._received)
        self._client = link.client
        subscription = await link.client.subscribe(inbox, cb=self._received_by_task, pending_bytes_limit=0)
        try:
            while True:
                if self._asked <= PULL // 2 and self._waiting() < MOST_WAITING:
                    await self._pull(link, inbox)
                self._wake.clear()
                with suppress(TimeoutError):
                    async with time_limit(HEARTBEAT_SECONDS):
                        await self._wake.wait()
                if link.lost.is_set():
                    raise LinkLost
                if self._trouble is not None:
                    raise self._trouble
                if self._asked and loop.time() - self._last_heard > SILENT_SECONDS:
                    raise TimeoutError("the server sends no heartbeats")
                if self._is_overdue(link, loop.time()):
                    self._behind = server
                    raise _Behind(f"{server} does not have message {self._next} yet; reading from another server")
        finally:
            if not link.lost.is_set():
                with suppress(Exception):
                    await subscription.unsubscribe()
                    await self._delete_consumer(link, name)

    async def _make_consumer(self, link: ServerLink) -> tuple[str, str]:
        """Its name, and that of its server, which the cluster chooses by chance; not the one that was behind."""
        for _ in range(PLACES):
            reply = await link.api(f"CONSUMER.CREATE.{self._address.stream}", self._consumer(), seconds=ASK_SECONDS)
            name, server = reply["name"], (reply.get("cluster") or {}).get("leader", "")
            if not server or server != self._behind:
                break
            await self._delete_consumer(link, name)
        self._behind = ""
        return name, server

    async def _delete_consumer(self, link: ServerLink, name: str) -> None:
        await link.client.publish(f"$JS.API.CONSUMER.DELETE.{self._address.stream}.{name}")

    def _is_overdue(self, link: ServerLink, now: float) -> bool:
        """Whether the next message is in the stream, was asked for, and has not come since it was last looked for."""
        if not self._asked or link.stored < self._next:
            self._overdue = (0, now)
        elif self._overdue[0] != self._next:
            self._overdue = (self._next, now)
        return self._overdue[0] > 0 and now - self._overdue[1] > BEHIND_SECONDS

    async def _pull(self, link: ServerLink, inbox: str) -> None:
        request = {
            "batch": PULL,
            "max_bytes": max(PULL_BYTES, 2 * link.client.max_payload),
            "expires": int(EXPIRES_SECONDS * _NANOSECONDS),
            "idle_heartbeat": int(HEARTBEAT_SECONDS * _NANOSECONDS),
        }
        self._last_heard = asyncio.get_running_loop().time()
        self._asked += PULL
        await link.client.publish(self._subject, msgspec.json.encode(request), reply=inbox)

    def _consumer(self) -> dict[str, object]:
        config = {
            "ack_policy": "none",
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": self._next,
            "replay_policy": "instant",
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": int(INACTIVE_SECONDS * _NANOSECONDS),
        }
        return {"stream_name": self._address.stream, "config": config}

    def _received(self, reply: str, data: bytes) -> None:
        before, self._last_heard = self._last_heard, asyncio.get_running_loop().time()
        if self._trouble is not None:
            return
        self._gap_s += (min(self._last_heard - before, 1.0) - self._gap_s) / 16
        seq, ts = place(reply)
        if seq < self._next:
            return
        try:
            if seq > self._next:
                raise _Gap
            envelope = encoding.decode_envelope(data)
        except (_Gap, FormatError) as error:
            self._trouble = error
            self._wake.set()
            return
        if envelope is None:
            _logger.warning(
                "message %d of the stream %s was written by no node; passed over", seq, self._address.stream
            )
        received = StreamMessage(seq, ts, len(data), envelope)
        self._next += 1
        self._mark = received.mark
        self._asked -= 1
        self._on_message(received)
        if self._asked <= PULL // 2:
            self._wake.set()
        if self._gap_s < REST_GAP_SECONDS and self._client is not None and self.may_rest():
            self._client.rest(min(REST_SECONDS, REST_MESSAGES * self._gap_s))

    async def _received_by_task(self, message: Msg) -> None:
        """What the client did not hand over directly."""
        if message.reply.startswith("$JS.ACK"):
            self._received(message.reply, message.data)
        elif self._trouble is None:
            self._last_heard = asyncio.get_running_loop().time()
            self._status(message)

    def _status(self, message: Msg) -> None:
        """A heartbeat, the end of a request (it lapsed, or was answered in full), or the end of the consumer."""
        status = (message.headers or {}).get("Status", "")
        description = (message.headers or {}).get("Description", "")
        if status == "100" or description == "Batch Completed":
            return
        if status == "408" or "MaxBytes" in description:
            self._asked = 0
        else:
            self._trouble = ApiError(int(status) if status.isdecimal() else 0, 0, description or "the consumer ended")
        self._wake.set()

    # -- is it still the log we know?

    async def _check(self, link: ServerLink) -> None:
        found = await stream.find(link, self._address)
        if found is None:
            if not self._gone:
                _logger.error("%s", stream.GONE)
            self._gone = True
            self._connection.trouble = stream.GONE
            raise LogUnavailable(stream.GONE, remedy="`mainspring engine recover` makes a log of a replica")
        self._gone = False
        if found.identity != self._identity:
            raise FormatError(
                f"the stream {self._address.stream} was deleted and made anew",
                remedy="restart the node: it begins with what the new stream holds",
            )
        if found.first > self._next:
            raise fell_behind(self._next, found.first)
        if found.last >= self._next - 1:
            self._missing_since = None
            await self._compare(link, found.first)
            return
        now = asyncio.get_running_loop().time()
        if self._missing_since is None:
            self._missing_since = now
        if now - self._missing_since < BELIEVE_SECONDS:
            raise LogUnavailable(f"the stream ends at {found.last}; this node has seen {self._next - 1}")
        raise FormatError(
            f"the server lost what it had acknowledged: its stream ends at {found.last}, this node has seen "
            f"{self._next - 1}",
            remedy="restart the node: it goes back to what the server has; set sync_interval: always on the servers",
        )

    async def _compare(self, link: ServerLink, first: int) -> None:
        """The stream is long enough. Is its message the one we have seen?"""
        seq = self._next - 1
        if self._mark and seq >= first:
            there = await stream.message_at(link, self._address, seq)
            if there is None or there.mark != self._mark:
                raise other_history(f"message {seq}", self._mark, "gone" if there is None else there.mark)

    def _count_gap(self) -> None:
        times = self._gaps[1] + 1 if self._gaps[0] == self._next else 1
        self._gaps = (self._next, times)
        if times > 5:
            raise FormatError(
                f"message {self._next} of the stream {self._address.stream} is missing",
                remedy="restore the stream from a backup, or remove the node's replica and restart it",
            )


def fell_behind(next: int, first: int) -> FormatError:
    return FormatError(
        f"this node fell behind: it needs message {next} of the log, and the server has dropped all before {first}",
        remedy="restart the node: it starts again from the newest snapshot; if there is none, somebody shortened the "
        "stream, and a node that still runs stores one within seconds",
    )


def place(reply: str) -> tuple[int, int]:
    """A delivered message's number in the stream and its time in ms, from its reply subject."""
    tokens = reply.split(".")
    shift = 0 if len(tokens) == 9 else 2  # newer servers name the domain and the account as well
    return int(tokens[5 + shift]), int(tokens[7 + shift]) // 1_000_000


# -- sending

TRY_SECONDS: Final = 3.0  # without an answer for that long, ask again: the leader may have changed
PAUSE_SECONDS: Final = 0.1
USUAL_MAX_PAYLOAD: Final = 1 << 20
APPLY_SECONDS: Final = 1.0  # what a message that was stored in the last moment is given to come back


class SentMessage(NamedTuple):
    """A message the server has. `applied` gets its outcome once it is applied here; `deadline` is the loop's time."""

    applied: asyncio.Future[ApplyOutcome]
    deadline: float


class Sender:
    """Writes to the stream under one name, and knows who waits for which message to be applied here."""

    def __init__(self, connection: NatsConnection, writer: str, seen: tuple[int, bytes]) -> None:
        self._connection = connection
        self._seen = seen  # the message applied last, and the digest of the history up to there
        address = connection.address
        self._patience = address.patience
        self._stream, self._subject = address.stream, address.subject
        self.writer = writer
        self._number = 0
        self._one_at_a_time = asyncio.Lock()
        self._applied: dict[int, asyncio.Future[ApplyOutcome]] = {}
        self._max_payload = USUAL_MAX_PAYLOAD  # until a server has announced its own

    @property
    def limit(self) -> int:
        """The most bytes a body may have in one message."""
        link = self._connection.link
        if link is not None:
            self._max_payload = link.client.max_payload
        return max(1, self._max_payload - encoding.ENVELOPE_BYTES)

    @property
    def waits(self) -> bool:
        """Whether somebody here waits for a message to be applied."""
        return bool(self._applied)

    async def send(self, kind: str, body: bytes) -> SentMessage:
        """Returns when the server has it."""
        async with self._one_at_a_time:
            self._number += 1
            number = self._number
            loop = asyncio.get_running_loop()
            applied: asyncio.Future[ApplyOutcome] = loop.create_future()
            self._applied[number] = applied
            try:
                parts = list(encoding.parts_of(body, self.limit))
                for part, piece in enumerate(parts):
                    deadline = loop.time() + self._patience
                    envelope = StreamEnvelope(self.writer, number, kind, piece, part, len(parts), *self._seen)
                    await self._store(f"{self.writer}.{number}.{part}", encoding.encode_envelope(envelope), deadline)
            except BaseException:
                self._applied.pop(number, None)
                applied.cancel()
                raise
            return SentMessage(applied, max(deadline, loop.time() + APPLY_SECONDS))

    async def outcome(self, sent: SentMessage) -> ApplyOutcome:
        """Wait until the message is applied here. Raises `InDoubt` when that takes too long."""
        try:
            async with time_limit(sent.deadline - asyncio.get_running_loop().time()):
                outcome = await asyncio.shield(sent.applied)
        except TimeoutError:
            raise InDoubt(
                "the server has stored the batch, but this node could not yet apply it",
                remedy="what came of it will be known when the node has caught up with the log",
            ) from None
        if outcome.passed_over:
            raise LogUnavailable("the batch came too late and was not stored", remedy="try again")
        return outcome

    def settle(self, outcome: ApplyOutcome) -> None:
        """A message was applied; if it was ours, the one that waits for it gets the outcome."""
        self._seen = (outcome.message.seq, outcome.digest)
        envelope = outcome.message.envelope
        if envelope is None or envelope.writer != self.writer or envelope.part < envelope.parts - 1:
            return
        applied = self._applied.pop(envelope.number, None)
        if applied is not None:
            resolve(applied, outcome)

    def give_up(self, error: LogUnavailable) -> None:
        """Nothing more will be applied: all that wait get this error."""
        waiting, self._applied = self._applied, {}
        for applied in waiting.values():
            reject(applied, error, may_go_unseen=True)

    async def _store(self, message_id: str, payload: bytes, deadline: float) -> None:
        loop = asyncio.get_running_loop()
        headers = {"Nats-Msg-Id": message_id, "Nats-Expected-Stream": self._stream}
        in_doubt = False
        trouble = self._connection.trouble
        while (left := deadline - loop.time()) > 0:
            try:
                async with asyncio.timeout(left):
                    link = await self._connection.checked()
            except TimeoutError:
                trouble = self._connection.trouble
                break
            try:
                reply = await link.ask(self._subject, payload, headers=headers, seconds=min(left, TRY_SECONDS))
                link.stored = max(link.stored, reply["seq"])
                return
            except ApiError as error:
                trouble = str(error)
            except nats.errors.MaxPayloadError:
                trouble = f"the message is bigger than the server's max_payload of {link.client.max_payload} bytes"
            except LinkLost:
                in_doubt, trouble = True, "the connection broke before the answer came"
            except TimeoutError:
                in_doubt, trouble = True, "the server did not answer in time"
            except Exception as error:  # an answer that cannot be understood is none
                in_doubt, trouble = True, f"{type(error).__name__}: {error}"
            await asyncio.sleep(min(PAUSE_SECONDS, max(0.0, deadline - loop.time())))
        if in_doubt:
            raise InDoubt(
                f"the NATS server may have stored the batch, but did not say so: {trouble}",
                remedy="try again so that a second storing is harmless: with a dedupe, or an expected version",
            )
        raise LogUnavailable(
            f"the NATS server took nothing for {self._patience:g} s: {trouble}",
            remedy="try again; the node connects again by itself",
        )
