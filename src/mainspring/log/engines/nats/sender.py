"""Storing one message for certain, or saying exactly what is known.

A message is sent until the server says that it has it, under one `Nats-Msg-Id`, so that however many of the tries
arrive, it is stored once. When patience ends there are two cases. If every try was answered with a refusal, or none
was ever sent, nothing was stored and `LogUnavailable` says so. If a try was left without an answer, it may have been
stored: `InDoubt`.

One message is under way at a time, so that messages of one writer are stored in the order of their numbers.
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

import nats.errors

from mainspring.log.contract import InDoubt, LogUnavailable
from mainspring.log.engines.nats import encoding
from mainspring.log.engines.nats.connection import ApiError, LinkLost, NatsConnection
from mainspring.log.engines.nats.encoding import StreamEnvelope
from mainspring.log.engines.nats.replica import ApplyOutcome
from mainspring.loop import reject, resolve

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

    def __init__(self, connection: NatsConnection, writer: str) -> None:
        self._connection = connection
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
                    envelope = StreamEnvelope(self.writer, number, kind, piece, part, len(parts))
                    await self._store(f"{self.writer}.{number}.{part}", encoding.encode_envelope(envelope), deadline)
            except BaseException:
                self.forget(number)
                raise
            return SentMessage(applied, max(deadline, loop.time() + APPLY_SECONDS))

    async def outcome(self, sent: SentMessage) -> ApplyOutcome:
        """Wait until the message is applied here. Raises `InDoubt` when that takes too long."""
        try:
            async with asyncio.timeout_at(sent.deadline):
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
        envelope = outcome.message.envelope
        if envelope is None or envelope.writer != self.writer or envelope.part < envelope.parts - 1:
            return
        applied = self._applied.pop(envelope.number, None)
        if applied is not None:
            resolve(applied, outcome)

    def forget(self, number: int) -> None:
        applied = self._applied.pop(number, None)
        if applied is not None:
            applied.cancel()

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
                    link = await self._connection.linked()
            except TimeoutError:
                trouble = self._connection.trouble
                break
            try:
                await link.ask(self._subject, payload, headers=headers, seconds=min(left, TRY_SECONDS))
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
