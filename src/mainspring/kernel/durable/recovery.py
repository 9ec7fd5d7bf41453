"""Recovery: commands without an outcome and without a living node are taken over and run again; old outcomes removed.

On a log of its own a node looks once, at its start: everything without an outcome is from its last life. On a shared
log it takes over what belongs to an epoch that is gone, at its start and whenever a node goes, if its program handles
the type. The record is written with the new epoch before anything runs, so each command has one owner at a time.

They begin when the node is up (`go_on`), in the order of their acceptance, a few at a time, and that they begin is
stored first: a handler may end the process. One that had begun again when the process ended once more is a suspect
(`cluster/suspects.py`): it begins later and alone. After `MOST_ENDS` times it gets an error as its outcome. A node that
stops in order takes back what it counted for handlers that it did not wait for.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from mainspring.cluster import MOST_ENDS, Cluster
from mainspring.errors import MainspringError
from mainspring.kernel import errors as faults
from mainspring.kernel.durable.record import NO_EPOCH, SPACE, StoredCommand, decode_command, encode_command
from mainspring.log import Batch, InDoubt, Log, Record, Refused
from mainspring.loop import BackgroundTasks, pause

if TYPE_CHECKING:
    from mainspring.kernel.durable.commands import CommandEntry, DurableCommands
    from mainspring.kernel.exchange import Exchange

logger: logging.Logger = logging.getLogger("mainspring.kernel")

_SWEEP_MS: Final = 3_600_000
_RETRY_MS: Final = 1_000
_FEW: Final = 100  # commands that are begun again together
_FEW_MS: Final = 1_000  # after which further ones begin, although those have no outcome yet


class CommandRecovery:
    """Looks for commands that nobody has, at the start and when a node is gone."""

    def __init__(self, commands: DurableCommands, log: Log, exchange: Exchange, cluster: Cluster) -> None:
        self._commands = commands
        self._log = log
        self._exchange = exchange
        self._cluster = cluster
        self._look_again = False
        self._held: deque[CommandEntry] = deque()  # to be begun, in the order of their acceptance
        self._begun: dict[str, CommandEntry] = {}  # counted in the log, without an outcome
        self._few: set[str] = set()  # those of them for which further ones wait
        self._is_up = False
        self._beginning = False
        cluster.suspects.use(lambda ms, look: exchange.loop.schedule(ms, lambda _: look(), None, ref=False))
        self._tasks = BackgroundTasks(logger, "recovery of durable commands")

    async def start(self) -> None:
        self._cluster.on_death(self._node_gone)
        await self._take_over()
        await self._sweep()

    async def stop(self) -> None:
        """End what is under way. A handler that was not waited for has not ended the process."""
        await self._tasks.cancel()
        batch = Batch()
        self._cluster.guard(batch)
        unended = [entry for entry in self._begun.values() if entry.stored.outcome is None]
        for entry in unended:
            entry.stored.begun -= 1
            self._put(batch, entry)
        if unended:
            try:
                await self._log.commit(batch)
            except MainspringError as error:
                logger.warning("durable commands that were cut short count as begun: %s", error.message)

    def _node_gone(self, _: Any) -> None:
        self._look_again = True
        self._tasks.start_unless_running(self._look, "take over")

    async def _look(self) -> None:
        while self._look_again:
            self._look_again = False
            try:
                await self._take_over()
            except MainspringError as error:
                logger.warning("commands of a node that is gone could not be taken over yet: %s", error.message)
                self._exchange.loop.schedule(_RETRY_MS, self._node_gone, None, ref=False)

    async def _take_over(self) -> None:
        waiting: list[tuple[StoredCommand, Record]] = []
        async for record in self._log.scan(SPACE):
            stored = decode_command(record.value)
            self._commands.sequence = max(self._commands.sequence, stored.sequence)
            if stored.outcome is None and self._is_orphan(stored):
                waiting.append((stored, record))
        waiting.sort(key=lambda each: each[0].sequence)
        for stored, record in waiting:
            route = self._exchange.router.commands.get(stored.message.type)
            if route is None or not route[1].durable:
                logger.warning("a stored command of type %s has no durable handler here", stored.message.type)
            elif stored.epoch == self._cluster.epoch:  # there is only one: nobody else could take it
                self._hold(stored, record.version)
            else:
                await self._claim(stored, record)

    def _is_orphan(self, stored: StoredCommand) -> bool:
        """Whether no node has it. The epoch of a node that was alone does not tell one life of it from the next."""
        return stored.epoch == NO_EPOCH or not self._cluster.alive(stored.epoch)

    async def _claim(self, stored: StoredCommand, record: Record) -> None:
        """Make a command this node's own; the first node that writes its record has it."""
        stored.epoch = self._cluster.epoch
        batch = Batch()
        self._cluster.guard(batch)
        batch.put(SPACE, record.key, encode_command(stored), expect=record.version)
        try:
            version = (await self._log.commit(batch)).versions[0]
        except Refused:
            return
        except InDoubt:
            now = await self._log.get(SPACE, record.key)
            if now is None or decode_command(now.value).epoch != stored.epoch:
                raise
            version = now.version
        # It may be running here: this node had lost its lease meanwhile, and got the command back.
        if not self._commands.keep(record.key, stored.epoch, version):
            self._hold(stored, version)

    # -- beginning again

    def _hold(self, stored: StoredCommand, version: int) -> None:
        if not stored.begun:
            self._held.append(self._commands.hold_again(stored, version))
            self._begin_more()
            return
        begun: list[CommandEntry] = []

        def begin() -> bool:
            if self._commands.has(stored.message.metadata.id):
                return False  # it came back to this node by another way
            entry = self._commands.hold_again(stored, version)
            begun.append(entry)
            if stored.begun < MOST_ENDS:
                self._tasks.start(self._begin([entry]), "begin alone")
            else:
                self._give_up(entry)
            return True

        self._cluster.suspects.add(stored.begun, begin, lambda: bool(begun) and begun[0].stored.outcome is not None)

    def go_on(self) -> None:
        """The node is up."""
        self._is_up = True
        self._begin_more()

    def _begin_more(self) -> None:
        if self._is_up and self._held and not self._few and not self._beginning:
            self._beginning = True
            self._tasks.start(self._begin_few(), "begin")

    async def _begin_few(self) -> None:
        try:
            few = [self._held.popleft() for _ in range(min(_FEW, len(self._held)))]
            self._few = {entry.stored.message.metadata.id for entry in few}
            await self._begin(few)
            self._exchange.loop.schedule(_FEW_MS, self._waited, self._few, ref=False)
        finally:
            self._beginning = False
        self._begin_more()

    async def _begin(self, entries: list[CommandEntry]) -> None:
        """Let their actors see them, once it is stored that they begin."""
        for entry in entries:
            entry.stored.begun += 1
        while True:
            batch = Batch()
            self._cluster.guard(batch)
            for entry in entries:
                self._put(batch, entry)
            try:
                versions = (await self._log.commit(batch)).versions
                break
            except MainspringError as error:
                logger.warning("durable commands cannot be begun again yet: %s", error.message)
                await pause(self._exchange.loop, _RETRY_MS, ref=False)
                entries = await self._still_ours(entries)
        for entry, version in zip(entries, versions, strict=True):
            entry.version = version
            self._begun[entry.stored.message.metadata.id] = entry
            self._commands.begin_again(entry)

    async def _still_ours(self, entries: list[CommandEntry]) -> list[CommandEntry]:
        """After a refusal or a doubt: those that are this node's, under the version that the log has."""
        ours: list[CommandEntry] = []
        for entry in entries:
            record = await self._log.get(SPACE, entry.stored.message.metadata.id)
            stored = None if record is None else decode_command(record.value)
            if (
                record is not None
                and stored is not None
                and stored.outcome is None
                and stored.epoch == entry.stored.epoch
            ):
                entry.version = record.version
                ours.append(entry)
            else:
                self._commands.taken_over(entry)
        return ours

    def _put(self, batch: Batch, entry: CommandEntry) -> None:
        batch.put(SPACE, entry.stored.message.metadata.id, encode_command(entry.stored), expect=entry.version)

    def _give_up(self, entry: CommandEntry) -> None:
        stored = entry.stored
        text = f"the process ended {stored.begun} times while this command ran"
        logger.error("%s %s gets an error: %s", stored.message.type, stored.message.metadata.id, text)
        remedy = "look for what ends the process, then send the command again under another id"
        self._exchange.counters["faults"] += 1
        error = self._commands.refuse_again(entry, faults.ACTOR_CRASH, 500, text, remedy)
        self._exchange.report_fault(error)

    def ended(self, id: str) -> None:
        """A command has its outcome, or is another node's."""
        if self._begun.pop(id, None) is not None:
            self._few.discard(id)
            self._begin_more()

    def _waited(self, few: set[str]) -> None:
        few.clear()
        self._begin_more()

    def _turn_sweep(self, _: Any) -> None:
        self._tasks.start(self._sweep(), "remove old outcomes")

    async def _sweep(self) -> None:
        now = self._exchange.clock.wall_ms()
        batch = Batch()
        try:
            async for record in self._log.scan(SPACE):
                stored = decode_command(record.value)
                if stored.outcome is not None and stored.until_ms <= now:
                    batch.delete(SPACE, record.key, expect=record.version)
            if batch.operations:
                await self._log.commit(batch)
        except MainspringError as error:
            logger.warning("old outcomes could not be removed: %s", error.message)
        self._exchange.loop.schedule(_SWEEP_MS, self._turn_sweep, None, ref=False)
