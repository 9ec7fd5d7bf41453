"""Recovery: commands without an outcome and without a living node are taken over and run again; old outcomes removed.

On a log of its own a node looks once, at its start: everything without an outcome is from its last life. On a shared
log it takes over what belongs to an epoch that is gone, at its start and whenever a node goes, if its program handles
the type. The record is written with the new epoch before anything runs, so each command has one owner at a time.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from mainspring.cluster import Cluster
from mainspring.errors import MainspringError
from mainspring.kernel.durable.record import NO_EPOCH, SPACE, StoredCommand, decode_command, encode_command
from mainspring.log import Batch, InDoubt, Log, Record, Refused
from mainspring.loop import BackgroundTasks

if TYPE_CHECKING:
    from mainspring.kernel.durable.commands import DurableCommands
    from mainspring.kernel.exchange import Exchange

logger: logging.Logger = logging.getLogger("mainspring.kernel")

_SWEEP_MS: Final = 3_600_000
_RETRY_MS: Final = 1_000


class CommandRecovery:
    """Looks for commands that nobody has, at the start and when a node is gone."""

    def __init__(self, commands: DurableCommands, log: Log, exchange: Exchange, cluster: Cluster) -> None:
        self._commands = commands
        self._log = log
        self._exchange = exchange
        self._cluster = cluster
        self._look_again = False
        self._tasks = BackgroundTasks(logger, "recovery of durable commands")

    async def start(self) -> None:
        self._cluster.on_death(self._node_gone)
        await self._take_over()
        await self._sweep()

    async def stop(self) -> None:
        await self._tasks.cancel()

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
                self._commands.dispatch_again(stored, record.version)
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
            self._commands.dispatch_again(stored, version)

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
