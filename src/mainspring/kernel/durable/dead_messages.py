"""Dead messages: what failed and reached nobody, and what was given up after its last attempt.

A message that a timer, a low-level actor or another node's end has sent has no requester: when it fails, nobody knows.
The same is true of an event whose handler fails. A message with a `retry` has a requester, who may have gone long ago
when its last attempt fails. All of them are kept with the error, in the log where the node has one, until a person
sends them back or drops them; the oldest go when there are too many.

They are written some milliseconds later and many at a time: failures come in floods, and nobody waits for the record.
A record that has kept the message until then goes in the same commit. A message that is sent back stays here until its
outcome: a reply removes it, an error takes the place of the former.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import msgspec

from mainspring.errors import MainspringError
from mainspring.kernel import errors as faults
from mainspring.kernel.mail import KeptOrigin, Mail
from mainspring.log import Batch, Log
from mainspring.loop import BackgroundTasks
from mainspring.message import Message
from mainspring.telemetry import KeptError

if TYPE_CHECKING:
    from mainspring.kernel.exchange import Exchange

logger: logging.Logger = logging.getLogger("mainspring.kernel")

SPACE: Final = "dead_messages"
MOST: Final = 10_000  # enough to find out what goes wrong
_WRITE_MS: Final = 50
_RETRY_MS: Final = 1_000

Reason = Literal["gave_up", "reached_nobody"]


class DeadMessage(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One message that failed, and its last error. `id` names the letter, not the message."""

    id: str
    at: int  # epoch ms
    reason: Reason
    message: Message
    error: str  # its type
    code: int = 0
    text: str = ""
    capability: str = ""
    failure: KeptError | None = None  # the exception of its handler


class ReplacedRecord(NamedTuple):
    """The record that has kept a message until now."""

    space: str
    key: str
    removed: Callable[[], None]


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(DeadMessage).decode


class DeadMessages:
    """The dead messages of a kernel; of all nodes, where several share the log."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._log: Log | None = None
        self._kept: dict[str, DeadMessage] = {}  # where there is no log
        self._unwritten: dict[str, DeadMessage | None] = {}  # None: to be removed
        self._replaced: list[ReplacedRecord] = []  # to be removed when those are written
        self._planned = False
        self._count = -1  # in the log; unknown
        self._sent_back: set[str] = set()
        self._tasks = BackgroundTasks(logger, "dead messages")

    def use(self, log: Log) -> None:
        """Keep them in this log."""
        self._log = log

    # --- writing -------------------------------------------------------------------------------------------------

    def add(self, message: Message, error: Message, kept: ReplacedRecord | None = None) -> None:
        """A message without a requester has failed. The record that `kept` it goes when the letter is stored."""
        if kept is not None:
            self._replaced.append(kept)
        self._add(message, error, "reached_nobody")

    def gave_up(self, message: Message, error: Message) -> None:
        """A message with a retry has failed for the last time, unless its error says that trying again is useless."""
        if error.type != faults.SHUTTING_DOWN and faults.is_passing(error.data):
            self._add(message, error, "gave_up")

    def _add(self, message: Message, error: Message, reason: Reason) -> None:
        now = self._exchange.clock.wall_ms()
        self._write(
            f"{now:015d}-{self._exchange.ids()}",
            _letter("", now, reason, message, error, self._exchange.failure_of(error)),
        )

    def _write(self, id: str, letter: DeadMessage | None) -> None:
        if letter is not None:
            letter = msgspec.structs.replace(letter, id=id)
        if self._log is None:
            if letter is None:
                self._kept.pop(id, None)
            else:
                self._kept[id] = letter
                while len(self._kept) > MOST:
                    del self._kept[next(iter(self._kept))]
            return
        self._unwritten[id] = letter
        while len(self._unwritten) > MOST:
            del self._unwritten[next(iter(self._unwritten))]
        self._plan(_WRITE_MS)

    def _plan(self, delay_ms: int) -> None:
        if not self._planned:
            self._planned = True
            self._exchange.loop.schedule(delay_ms, self._turn_write, None, ref=False)

    def _turn_write(self, _: Any) -> None:
        self._planned = False
        self._tasks.start(self._flush(), "write")

    async def _flush(self) -> None:
        """Write what waits; what cannot be written now is tried again."""
        if self._log is None or not self._unwritten:
            return
        taken, self._unwritten = self._unwritten, {}
        replaced, self._replaced = self._replaced, []
        batch = Batch()
        for kept in replaced:
            batch.delete(kept.space, kept.key)
        for id, letter in taken.items():
            if letter is None:
                batch.delete(SPACE, id)
            else:
                batch.put(SPACE, id, _encode(letter))
        try:
            await self._log.commit(batch)
            await self._remove_oldest(len(taken))
        except MainspringError as error:
            logger.warning("dead messages could not be written yet: %s", error.message)
            self._unwritten = {**taken, **self._unwritten}
            self._replaced = replaced + self._replaced
            self._plan(_RETRY_MS)
        else:
            for kept in replaced:
                kept.removed()

    async def _remove_oldest(self, added: int) -> None:
        assert self._log is not None
        self._count += added
        if self._count - added >= 0 and self._count <= MOST:
            return
        ids = [record.key async for record in self._log.scan(SPACE)]
        surplus = Batch()
        for id in ids[: max(0, len(ids) - MOST)]:
            surplus.delete(SPACE, id)
        self._count = len(ids) - len(surplus.operations)
        if surplus.operations:
            await self._log.commit(surplus)

    async def close(self) -> None:
        """Write what waits. What a log that is away does not take is lost, and was logged when it failed."""
        await self._tasks.cancel()
        await self._flush()

    # --- reading and sending back --------------------------------------------------------------------------------

    async def page(self, after: str = "", limit: int = 100) -> list[DeadMessage]:
        """Letters behind the one named `after`, oldest first."""
        found: list[DeadMessage] = []
        if self._log is None:
            return [letter for id, letter in sorted(self._kept.items()) if id > after][:limit]
        await self._flush()
        async for record in self._log.scan(SPACE, after=after):
            found.append(_decode(record.value))
            if len(found) >= limit:
                break
        return found

    def redrive(self, letters: Iterable[DeadMessage]) -> int:
        """Send messages again, with all their attempts; how many. One that is on its way is not sent twice."""
        sent = 0
        for letter in letters:
            if letter.id not in self._sent_back:
                self._sent_back.add(letter.id)
                self._exchange.loop.post(self._turn_send_back, letter)
                sent += 1
        return sent

    def drop(self, letters: Iterable[DeadMessage]) -> int:
        """Forget messages, also one that is on its way again and fails; how many."""
        dropped = 0
        for letter in letters:
            self._forget(letter.id)
            dropped += 1
        return dropped

    def _turn_send_back(self, letter: DeadMessage) -> None:
        exchange = self._exchange
        metadata = msgspec.structs.replace(letter.message.metadata, attempt=1, timestamp=exchange.clock.wall_ms())
        message = msgspec.structs.replace(letter.message, metadata=metadata)
        if message.kind == "event":
            self._forget(letter.id)  # if its handler fails again, it is a new letter
            self._send_event_back(message, letter.capability)
        else:
            outcome_came: Callable[[Message], None] = partial(self._outcome_came, letter)
            exchange.turn_request((message, KeptOrigin(outcome_came)))

    def _send_event_back(self, event: Message, capability: str) -> None:
        """Only to the capability that failed: the others have had it."""
        exchange = self._exchange
        for contract, slot in exchange.router.subscriptions.get(event.type, ()):
            if slot.id == capability:
                exchange.witness(event)
                exchange.open_events += 1
                slot.accept(Mail(event, contract, slot, contract.input.decode(event.raw), None))
                return
        exchange.turn_event((event, None))

    def _outcome_came(self, letter: DeadMessage, outcome: Message) -> None:
        if outcome.kind == "reply":
            self._forget(letter.id)
        elif outcome.type != faults.SHUTTING_DOWN and letter.id in self._sent_back:  # else it was dropped meanwhile
            now = self._exchange.clock.wall_ms()
            self._sent_back.discard(letter.id)
            self._write(
                letter.id,
                _letter(letter.id, now, letter.reason, letter.message, outcome, self._exchange.failure_of(outcome)),
            )

    def _forget(self, id: str) -> None:
        self._sent_back.discard(id)
        self._write(id, None)


def _letter(
    id: str, at: int, reason: Reason, message: Message, error: Message, failure: KeptError | None
) -> DeadMessage:
    data: Any = error.data if isinstance(error.data, dict) else {}
    code, text = data.get("code", 0), str(data.get("message", ""))
    return DeadMessage(id, at, reason, message, error.type, code, text, str(data.get("capabilityId", "")), failure)
