"""The durable lane: commands that survive the node.

A command of a durable capability is written to the log before its actor can see it, and its outcome before anybody is
told. Whatever a crash leaves without an outcome is dispatched again at the next start, once, in the order of
acceptance and with its own id. Here an id is global and lasting: the same command sent again, on whatever connection,
is not run again; it gets the outcome of the first.

What its handler publishes is part of the outcome: the events and the outcome are one batch, so that after a crash both
are there or neither, and the command runs again. A handler that fails or refuses has published nothing.

A timeout or a shutdown tells the one who asked that the wait is over. It is not an outcome: the command goes on, or
goes on after the restart, and `Syscall.Outcome` has the answer then.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mainspring.errors import MainspringError
from mainspring.kernel import faults
from mainspring.kernel.faults import ErrorData
from mainspring.kernel.pending import Mail, same_content
from mainspring.log import ABSENT, Append, Batch, Log, Operation, Receipt, Refused
from mainspring.message import Message, validation_text

if TYPE_CHECKING:
    from mainspring.kernel.exchange import Exchange

logger: logging.Logger = logging.getLogger("mainspring.kernel")

SPACE: Final = "commands"
OUTCOME_TTL_MS: Final = 7 * 86_400_000  # a week: a client that comes back after a long weekend still finds its answer
_SWEEP_MS: Final = 3_600_000
_RETRY_MS: Final = 1_000
_TAKEN: Final = "this id belongs to another durable command"
_OWN_ID: Final = "give every command its own id"
_LONGEST_ID: Final = 200

Prepared = tuple[list[Operation], Callable[[Receipt], None]]
"""An event to be stored with an outcome: its operations, and whom to tell with what its appends got."""


class StoredCommand(msgspec.Struct):
    """One accepted command as the log keeps it."""

    sequence: int
    capability: str
    message: Message
    outcome: Message | None = None
    until_ms: int = 0  # epoch; when the outcome may be forgotten


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(StoredCommand).decode


class _Entry:
    __slots__ = ("accepted", "mails", "prepared", "published", "stored", "told")

    def __init__(self, mail: Mail, stored: StoredCommand) -> None:
        self.accepted = False  # until the log has it
        self.told = False
        self.mails = [mail]  # the first one is dispatched; later ones only wait for its outcome
        self.stored = stored
        self.prepared: list[Prepared] = []
        self.published = 0


class DurableLane:
    def __init__(self, log: Log, exchange: Exchange, outcome_ttl_ms: int = OUTCOME_TTL_MS) -> None:
        self._log = log
        self._exchange = exchange
        self._ttl_ms = outcome_ttl_ms
        self._open: dict[str, _Entry] = {}
        self._sequence = 0
        self._tasks: set[asyncio.Task[None]] = set()

    # --- accepting -----------------------------------------------------------------------------------------------

    def admit(self, mail: Mail) -> None:
        """Take a validated command: it is dispatched once the log has it. Called in its turn."""
        exchange, message = self._exchange, mail.message
        assert mail.origin is not None
        entry = self._open.get(message.metadata.id)
        if entry is not None:
            if same_content(entry.stored.message, message):
                exchange.open_request(mail)
                entry.mails.append(mail)
            else:
                exchange.refuse(message, mail.origin, faults.DUPLICATE_ID, 409, _TAKEN, _OWN_ID)
            return
        self._sequence += 1
        entry = _Entry(mail, StoredCommand(self._sequence, mail.slot.id, message))
        self._open[message.metadata.id] = entry
        mail.stored, mail.unrecorded = False, True
        exchange.open_request(mail)
        mail.slot.accept(mail)
        batch = Batch()
        batch.put(SPACE, message.metadata.id, _encode(entry.stored), expect=ABSENT)
        self._submit(batch, self._turn_stored, entry)

    def _turn_stored(self, item: tuple[_Entry, Any]) -> None:
        entry, result = item
        mail = entry.mails[0]
        if isinstance(result, Receipt):
            entry.accepted = True
            mail.stored = True
            mail.slot.release()
            return
        mail.slot.drop(mail)
        mail.unrecorded = False
        del self._open[mail.message.metadata.id]
        if isinstance(result, Refused):
            self._spawn(self._repeat(entry))
            return
        self._not_stored(entry)

    def _not_stored(self, entry: _Entry) -> None:
        data = ErrorData(
            503,
            "the command could not be stored, so it was not accepted",
            remedy="try again; the node's log says what is wrong with its storage",
            requestType=entry.stored.message.type,
        )
        for mail in entry.mails:
            self._exchange.conclude(mail, self._exchange.error(mail.message, faults.NOT_STORED, data))

    async def _repeat(self, entry: _Entry) -> None:
        """The log knows this id: give its outcome again, or say that the id is taken."""
        message = entry.stored.message
        try:
            record = await self._log.get(SPACE, message.metadata.id)
        except MainspringError:
            self._not_stored(entry)
            return
        stored = _decode(record.value) if record is not None else None
        for mail in entry.mails:
            if stored is not None and stored.outcome is not None and same_content(stored.message, mail.message):
                self._answer(mail, stored.outcome)
            else:
                self._exchange.conclude(mail, self._taken(mail))

    def _taken(self, mail: Mail) -> Message:
        data = ErrorData(409, _TAKEN, remedy=_OWN_ID, requestType=mail.message.type)
        return self._exchange.error(mail.message, faults.DUPLICATE_ID, data)

    # --- publishing ----------------------------------------------------------------------------------------------

    def keeps(self, cause: Message) -> bool:
        """Whether this message is a command whose outcome is still to be written."""
        entry = self._open.get(cause.metadata.id)
        return entry is not None and entry.stored.message is cause and entry.stored.outcome is None

    def event_id(self, cause: Message) -> str:
        """An id for the next event of a command's handler: the same when the command is run again."""
        entry = self._open[cause.metadata.id]
        entry.published += 1
        ident = cause.metadata.id
        if len(ident) > _LONGEST_ID:
            ident = hashlib.sha256(ident.encode()).hexdigest()
        return f"{ident}/{entry.published}"

    def publish_with_outcome(self, cause: Message, prepared: Prepared) -> None:
        """Store an event in the batch of the command's outcome."""
        self._open[cause.metadata.id].prepared.append(prepared)

    # --- finishing -----------------------------------------------------------------------------------------------

    def record(self, mail: Mail, outcome: Message) -> None:
        """Write an outcome, then tell everyone who waits for it."""
        entry = self._open.get(mail.message.metadata.id)
        if entry is None:
            self._exchange.conclude(mail, outcome)
            return
        mail.unrecorded = False
        if outcome.kind == "error":
            entry.prepared.clear()
        entry.stored.outcome = outcome
        entry.stored.until_ms = self._exchange.clock.wall_ms() + self._ttl_ms
        self._write_outcome(entry)

    def _write_outcome(self, entry: _Entry) -> None:
        batch = Batch()
        batch.put(SPACE, entry.stored.message.metadata.id, _encode(entry.stored))
        for operations, _ in entry.prepared:
            batch.operations.extend(operations)
        self._submit(batch, self._turn_recorded, entry)

    def _turn_recorded(self, item: tuple[_Entry, Any]) -> None:
        entry, result = item
        outcome = entry.stored.outcome
        assert outcome is not None
        if entry.prepared and not isinstance(result, Receipt):
            logger.warning("the outcome of a durable command and its events could not be stored; trying again")
            self._exchange.loop.schedule(_RETRY_MS, self._write_outcome, entry, ref=False)
            return
        waiting, entry.mails = entry.mails, []
        for mail in waiting:
            if entry.told:
                self._answer(mail, outcome)
            else:
                entry.told = True
                self._exchange.conclude(mail, outcome)
        if isinstance(result, Receipt):
            del self._open[entry.stored.message.metadata.id]
            return
        # The work is done and told; without its outcome in the log it would be done again after a crash. Keep trying.
        logger.warning("the outcome of a durable command could not be stored; trying again")
        self._exchange.loop.schedule(_RETRY_MS, self._write_outcome, entry, ref=False)

    def _answer(self, mail: Mail, outcome: Message) -> None:
        exchange, cause = self._exchange, mail.message
        exchange.conclude(mail, exchange.caused(cause, outcome.kind, outcome.type, outcome.raw))

    # --- recovering ----------------------------------------------------------------------------------------------

    async def recover(self) -> int:
        """Dispatch again what has no outcome; how many. Called once, before anybody can send."""
        waiting: list[StoredCommand] = []
        now = self._exchange.clock.wall_ms()
        expired = Batch()
        async for record in self._log.scan(SPACE):
            stored = _decode(record.value)
            self._sequence = max(self._sequence, stored.sequence)
            if stored.outcome is None:
                waiting.append(stored)
            elif stored.until_ms <= now:
                expired.delete(SPACE, record.key)
        if expired.operations:
            await self._log.commit(expired)
        waiting.sort(key=lambda stored: stored.sequence)
        for stored in waiting:
            self._dispatch_again(stored)
        self._exchange.loop.schedule(_SWEEP_MS, self._turn_sweep, None, ref=False)
        return len(waiting)

    def _dispatch_again(self, stored: StoredCommand) -> None:
        exchange, message = self._exchange, stored.message
        route = exchange.router.commands.get(message.type)
        if route is None or not route[1].durable:
            logger.warning("a stored command of type %s has no durable handler now; it stays in the log", message.type)
            return
        contract, slot = route
        value: Any = None
        wrong = ""
        try:
            value = contract.input.decode(message.raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            wrong = validation_text(error)
        mail = Mail(message, contract, slot, value, exchange.nobody)
        mail.unrecorded = True
        self._open[message.metadata.id] = entry = _Entry(mail, stored)
        entry.accepted = True
        exchange.witness(message)
        exchange.open_request(mail)
        if wrong:
            data = ErrorData(422, f"Schema validation failed: data: {wrong}", requestType=message.type)
            exchange.turn_outcome((mail, exchange.error(message, faults.SCHEMA_ERROR, data)))
        else:
            slot.accept(mail)

    async def outcome(self, id: str) -> Message | None:
        """The outcome of a durable command; None while it has none. Raises `KeyError` for an id never accepted."""
        entry = self._open.get(id)
        if entry is not None and entry.accepted and entry.stored.outcome is None:
            return None
        record = await self._log.get(SPACE, id)
        if record is None:
            raise KeyError(id)
        return _decode(record.value).outcome

    def _turn_sweep(self, _: Any) -> None:
        self._spawn(self._sweep())

    async def _sweep(self) -> None:
        now = self._exchange.clock.wall_ms()
        batch = Batch()
        async for record in self._log.scan(SPACE):
            stored = _decode(record.value)
            if stored.outcome is not None and stored.until_ms <= now:
                batch.delete(SPACE, record.key)
        try:
            await self._log.commit(batch)
        except MainspringError as error:
            logger.warning("old outcomes could not be removed: %s", error)
        self._exchange.loop.schedule(_SWEEP_MS, self._turn_sweep, None, ref=False)

    # --- the log -------------------------------------------------------------------------------------------------

    def _submit(self, batch: Batch, turn: Any, entry: _Entry) -> None:
        loop = self._exchange.loop

        def settled(result: Any) -> None:
            if isinstance(result, Receipt) and entry.stored.outcome is not None:
                _show(entry.prepared, result)
            loop.post(turn, (entry, result))

        try:
            self._log.submit(batch, settled)
        except MainspringError as error:
            settled(error)

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """End the lane's own reading; what was submitted to the log is the log's to finish."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _show(prepared: list[Prepared], receipt: Receipt) -> None:
    """Tell each event's own topic where it went."""
    first = 0
    for operations, stored in prepared:
        count = sum(isinstance(operation, Append) for operation in operations)
        stored(Receipt(offsets=receipt.offsets[first : first + count]))
        first += count
