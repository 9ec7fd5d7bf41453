"""Durable commands: they survive the node.

A command of a durable capability is written to the log before its actor can see it, and its outcome before anybody gets
it. Whatever a crash leaves without an outcome is dispatched again, once, in the order of acceptance and with its own
id: at the node's next start, or, where several nodes share the log, by a living one as soon as the lease of the node
that had it is gone. Here an id is global and lasting: the same command sent again, on whatever connection of whatever
node, is not run again; it gets the outcome of the first.

What its handler publishes is part of the outcome: the events and the outcome are one batch, so that after a crash both
are there or neither, and the command runs again. A handler that fails or refuses has published nothing.

The record of a command says which epoch has it. A node that takes it over writes the record first, and an outcome is
only stored over the record that its node wrote: a node that was stopped for too long may finish its handler, but its
outcome is not stored, and requests that wait there get the outcome that was. A node that is alone on its log does the
same, with the one epoch there is.

A timeout or a shutdown tells the requester that the wait is over. It is not an outcome: the command goes on, or goes
on after the restart, and `Syscall.Outcome` has the answer then.

The reasons are in docs/decisions/durable-commands.md.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mainspring.cluster import Cluster
from mainspring.errors import MainspringError
from mainspring.kernel import errors as faults
from mainspring.kernel.durable.record import SPACE, StoredCommand, decode_command, encode_command
from mainspring.kernel.durable.recovery import CommandRecovery
from mainspring.kernel.errors import ErrorData
from mainspring.kernel.mail import Mail, same_content
from mainspring.log import ABSENT, Batch, Change, InDoubt, Log, Prepared, Receipt, Refused, add_prepared
from mainspring.loop import BackgroundTasks, pause
from mainspring.message import Message, validation_text

if TYPE_CHECKING:
    from mainspring.kernel.exchange import Exchange

logger: logging.Logger = logging.getLogger("mainspring.kernel")

OUTCOME_TTL_MS: Final = 7 * 86_400_000  # a week: a client that comes back after a long weekend still finds its answer
_RETRY_MS: Final = 1_000
_LOOK_MS: Final = 100
_TAKEN: Final = "this id belongs to another durable command"
_OWN_ID: Final = "give every command its own id"
_LONGEST_ID: Final = 200


class CommandEntry:
    """One command that this node has, and who waits for its outcome."""

    __slots__ = ("accepted", "answered", "mails", "prepared", "published", "stored", "version")

    def __init__(self, mail: Mail, stored: StoredCommand) -> None:
        self.accepted: bool = False  # until the log has it
        self.answered: bool = False
        self.mails: list[Mail] = [mail]  # the first one is dispatched; later ones only wait for its outcome
        self.stored: StoredCommand = stored
        self.version: int = ABSENT  # of its record as this node wrote it
        self.prepared: list[Prepared] = []
        self.published: int = 0


class DurableCommands:
    """The commands of durable capabilities that this node has, from their acceptance to their outcome."""

    def __init__(self, log: Log, exchange: Exchange, outcome_ttl_ms: int, cluster: Cluster) -> None:
        self._log = log
        self._exchange = exchange
        self._ttl_ms = outcome_ttl_ms
        self._cluster = cluster
        self._open: dict[str, CommandEntry] = {}
        self._awaited: dict[str, list[Mail]] = {}  # requests here for the outcome of a command that another node has
        self.sequence: int = 0
        self._recovery = CommandRecovery(self, log, exchange, cluster)
        self._tasks = BackgroundTasks(logger, "durable commands")

    # --- accepting -----------------------------------------------------------------------------------------------

    def admit(self, mail: Mail) -> None:
        """Take a validated command: it is dispatched once the log has it. Called in its turn."""
        exchange, message = self._exchange, mail.message
        assert mail.origin is not None
        entry = self._open.get(message.metadata.id)
        if entry is not None:
            if same_content(entry.stored.message, message, mail.contract.input):
                exchange.open_request(mail)
                entry.mails.append(mail)
            else:
                exchange.refuse(message, mail.origin, faults.DUPLICATE_ID, 409, _TAKEN, _OWN_ID)
            return
        self.sequence += 1
        entry = CommandEntry(mail, StoredCommand(self.sequence, mail.slot.id, message, epoch=self._cluster.epoch))
        self._open[message.metadata.id] = entry
        mail.stored, mail.unrecorded = False, True
        exchange.open_request(mail)
        mail.slot.accept(mail)
        self._store(entry)

    def _store(self, entry: CommandEntry) -> None:
        batch = Batch()
        self._cluster.guard(batch)
        batch.put(SPACE, entry.stored.message.metadata.id, encode_command(entry.stored), expect=ABSENT)
        self._submit(batch, self._turn_stored, entry)

    def _turn_stored(self, item: tuple[CommandEntry, Any]) -> None:
        entry, result = item
        if isinstance(result, Receipt):
            self._accept(entry, result.versions[0])
        elif isinstance(result, Refused | InDoubt):
            self._tasks.start(self._repeat(entry, result), "look for an earlier command")
        else:
            self._drop(entry)
            self._not_stored(entry)

    def _accept(self, entry: CommandEntry, version: int) -> None:
        mail = entry.mails[0]
        entry.accepted, entry.version = True, version
        mail.stored = True
        mail.slot.release()

    @property
    def is_shared(self) -> bool:
        """Whether other nodes could have the commands of this one."""
        return self._log.shared

    def is_certain(self) -> bool:
        """Whether no other node can have taken this node's commands."""
        return self._cluster.in_touch

    async def may_begin(self, mail: Mail) -> bool:
        """Wait until that is so; False when another node has this command."""
        entry = self._open.get(mail.message.metadata.id)
        certain = asyncio.Event()
        self._cluster.when_in_touch(certain.set)
        await certain.wait()
        while entry is not None and entry.stored.epoch != self._cluster.epoch:  # the lease was lost
            stored = await self._stored_again(entry.stored.message.metadata.id)
            if stored is not None and (stored.outcome is not None or self._is_of_other(stored)):
                self.taken_over(entry)
                return False
            await pause(self._exchange.loop, _LOOK_MS, ref=False)
        return True

    async def _stored_again(self, id: str) -> StoredCommand | None:
        try:
            record = await self._log.get(SPACE, id)
        except MainspringError:
            return None
        return None if record is None else decode_command(record.value)

    def _is_of_other(self, stored: StoredCommand) -> bool:
        return stored.epoch != self._cluster.epoch and self._cluster.alive(stored.epoch)

    def _drop(self, entry: CommandEntry) -> None:
        mail = entry.mails[0]
        mail.slot.drop(mail)
        mail.unrecorded = False
        del self._open[mail.message.metadata.id]

    def _not_stored(self, entry: CommandEntry) -> None:
        text = "the command could not be stored, so it was not accepted"
        remedy = "try again; the node's log says what is wrong with its storage"
        for mail in entry.mails:
            self._exchange.fail(mail, faults.NOT_STORED, 503, text, remedy)

    async def _repeat(self, entry: CommandEntry, result: Refused | InDoubt) -> None:
        """The log has this id, or may: go on, give its outcome again, wait for it, or say that the id is taken."""
        id = entry.stored.message.metadata.id
        try:
            record = await self._log.get(SPACE, id)
        except MainspringError:
            record = None
        stored = None if record is None else decode_command(record.value)
        if record is not None and stored is not None and self._wrote(entry, stored):
            self._accept(entry, record.version)
            return
        if isinstance(result, InDoubt):
            self._exchange.loop.schedule(_RETRY_MS, self._store, entry, ref=False)
            return
        self._drop(entry)
        if stored is None:  # the lease was refused, or nothing can be read: the command is not there
            self._not_stored(entry)
            return
        for mail in entry.mails:
            if not same_content(stored.message, mail.message, mail.contract.input):
                self._exchange.fail(mail, faults.DUPLICATE_ID, 409, _TAKEN, _OWN_ID)
            elif stored.outcome is not None:
                self._answer(mail, stored.outcome)
            else:
                self._await_outcome(id, [mail])

    def _wrote(self, entry: CommandEntry, stored: StoredCommand) -> bool:
        """Whether the record is this entry's own, and only the log's answer got lost. No sequence comes twice."""
        return (stored.epoch, stored.sequence) == (entry.stored.epoch, entry.stored.sequence)

    # --- publishing ----------------------------------------------------------------------------------------------

    def is_open(self, cause: Message) -> bool:
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
        """Write an outcome, then give it to everyone who waits for it."""
        entry = self._open.get(mail.message.metadata.id)
        if entry is None:
            self._exchange.conclude(mail, outcome)
            return
        if outcome.kind == "error":
            entry.prepared.clear()
            if mail.message.metadata.retry is not None:
                if self._exchange.try_again(mail, outcome):
                    return
                self._exchange.dead_messages.gave_up(mail.message, outcome)
        mail.unrecorded = False
        entry.stored.outcome = outcome
        entry.stored.until_ms = self._exchange.clock.wall_ms() + self._ttl_ms
        self._write_outcome(entry)

    def replace(self, mail: Mail, next_attempt: Mail) -> None:
        """The attempt that failed is followed by another: what it publishes gets the same ids."""
        entry = self._open[mail.message.metadata.id]
        entry.mails[0] = next_attempt
        entry.stored.message = next_attempt.message
        entry.published = 0

    def _write_outcome(self, entry: CommandEntry) -> None:
        batch = Batch()
        self._cluster.guard(batch)
        batch.put(SPACE, entry.stored.message.metadata.id, encode_command(entry.stored), expect=entry.version)
        self._submit(batch, self._turn_recorded, entry, show_events=add_prepared(batch, entry.prepared))

    def _turn_recorded(self, item: tuple[CommandEntry, Any]) -> None:
        entry, result = item
        if isinstance(result, Receipt):
            self._answer_all(entry)
            self._end(entry.stored.message.metadata.id)
        else:
            self._tasks.start(self._check_outcome(entry), "check an outcome")

    async def _check_outcome(self, entry: CommandEntry) -> None:
        """An outcome was refused, could not be stored, or is in doubt: see what the log has."""
        id, own = entry.stored.message.metadata.id, entry.stored.outcome
        assert own is not None
        try:
            record = await self._log.get(SPACE, id)
        except MainspringError:
            record = None
        stored = None if record is None else decode_command(record.value)
        if record is None or stored is None or record.version == entry.version:
            # The log was away, or the lease was: the command is still this node's. The work is done; without its
            # outcome in the log it would be done again after a crash, so keep trying.
            logger.warning("the outcome of a durable command could not be stored; trying again")
            self._exchange.loop.schedule(_RETRY_MS, self._write_outcome, entry, ref=False)
        elif stored.outcome is not None and stored.outcome.metadata.id == own.metadata.id:
            self._answer_all(entry)
            self._end(id)
        else:
            self.taken_over(entry)

    def taken_over(self, entry: CommandEntry) -> None:
        """Another node has the command."""
        logger.warning("a durable command was taken over; what came of it here is not stored")
        id, mail = entry.stored.message.metadata.id, entry.mails[0]
        mail.slot.drop(mail)
        self._end(id)
        self._await_outcome(id, entry.mails)

    def has(self, id: str) -> bool:
        """Whether a command of this id is accepted here and has no outcome yet."""
        return id in self._open

    def _end(self, id: str) -> None:
        del self._open[id]
        self._recovery.ended(id)

    def _answer_all(self, entry: CommandEntry) -> None:
        outcome = entry.stored.outcome
        assert outcome is not None
        waiting, entry.mails = entry.mails, []
        for mail in waiting:
            if entry.answered:
                self._answer(mail, outcome)
            else:
                entry.answered = True
                self._exchange.conclude(mail, outcome)

    def _await_outcome(self, id: str, mails: list[Mail]) -> None:
        """Another node has the command: its outcome is the answer."""
        self._awaited.setdefault(id, []).extend(mails)
        self._tasks.start(self._look_for_outcome(id), "look for an outcome")

    async def _look_for_outcome(self, id: str) -> None:
        """The outcome may have come before anybody waited for it; a later one comes with the changes of the log."""
        try:
            outcome = (await self.find(id)).outcome
        except (KeyError, MainspringError):
            return
        if outcome is not None:
            self._outcome_came(id, outcome)

    def _outcome_came(self, id: str, outcome: Message) -> None:
        for mail in self._awaited.pop(id, ()):
            self._answer(mail, outcome)

    def _answer(self, mail: Mail, outcome: Message) -> None:
        exchange, cause = self._exchange, mail.message
        exchange.conclude(mail, exchange.caused(cause, outcome.kind, outcome.type, outcome.raw))

    # --- recovering ----------------------------------------------------------------------------------------------

    async def recover(self) -> None:
        """Find what has no outcome and no living node. Called once, before anybody can send; `go_on` begins it."""
        self._log.watch_records(self._on_change)
        await self._recovery.start()

    def go_on(self) -> None:
        """The node is up: begin again what was found."""
        self._recovery.go_on()

    def keep(self, id: str, epoch: int, version: int) -> bool:
        """A command that may be running here is this node's under another epoch and version. False: it is not."""
        entry = self._open.get(id)
        if entry is None:
            return False
        entry.stored.epoch, entry.version = epoch, version
        return True

    def _on_change(self, change: Change) -> None:
        if not self._awaited:
            return
        for record in change.records:
            if record.space == SPACE and record.key in self._awaited and record.version != ABSENT:
                outcome = decode_command(record.value).outcome
                if outcome is not None:
                    self._outcome_came(record.key, outcome)

    def hold_again(self, stored: StoredCommand, version: int) -> CommandEntry:
        """Take back a stored command that has no outcome and is this node's own; `begin_again` lets its actor see it.

        Mail that comes later for the same actor stays behind it.
        """
        exchange, message = self._exchange, stored.message
        contract, slot = exchange.router.commands[message.type]
        mail = Mail(message, contract, slot, None, exchange.no_reply)
        mail.unrecorded, mail.stored = True, False
        self._open[message.metadata.id] = entry = CommandEntry(mail, stored)
        entry.accepted, entry.version = True, version
        entry.mails += self._awaited.pop(message.metadata.id, [])
        exchange.witness(message)
        exchange.open_request(mail)
        slot.accept(mail)
        return entry

    def begin_again(self, entry: CommandEntry) -> None:
        """Let its actor see a command that was held."""
        mail = entry.mails[0]
        try:
            mail.value = mail.contract.input.decode(mail.message.raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self.refuse_again(
                entry, faults.SCHEMA_ERROR, 422, f"Schema validation failed: data: {validation_text(error)}"
            )
        else:
            mail.stored = True
            mail.slot.release()

    def refuse_again(self, entry: CommandEntry, type: str, code: int, text: str, remedy: str = "") -> Message:
        """Give a command that was held an error as its outcome, without its actor; gives that error."""
        mail = entry.mails[0]
        mail.slot.drop(mail)
        data = ErrorData(code, text, remedy=remedy, requestType=mail.message.type, capabilityId=mail.slot.id)
        error = self._exchange.error(mail.message, type, data)
        self._exchange.turn_outcome((mail, error))
        return error

    async def find(self, id: str) -> StoredCommand:
        """A durable command, with its outcome once it has one. Raises `KeyError` for an id never accepted."""
        entry = self._open.get(id)
        if entry is not None and entry.accepted and entry.stored.outcome is None:
            return entry.stored
        record = await self._log.get(SPACE, id)
        if record is None:
            raise KeyError(id)
        return decode_command(record.value)

    # --- the log -------------------------------------------------------------------------------------------------

    def _submit(
        self, batch: Batch, turn: Any, entry: CommandEntry, show_events: Callable[[Receipt], None] | None = None
    ) -> None:
        loop = self._exchange.loop

        def settled(result: Any) -> None:
            if isinstance(result, Receipt) and show_events is not None:
                show_events(result)
            loop.post(turn, (entry, result))

        self._log.submit(batch, settled)

    async def close(self) -> None:
        """End what reads the log here; what was submitted to the log is the log's to finish."""
        await self._recovery.stop()
        await self._tasks.cancel()
