"""Durable timers: messages that are sent later, also when the node was stopped meanwhile.

The message is in the log before its timer has an id, and stays there until it was handled: a reply or an error removes
it, the end of the process does not. So it is sent at least once; a message that must not be done twice is a durable
command, which the log knows by its id. What fails becomes a dead message, in the commit that removes it here; a durable
command that the log did not take was not begun by anybody, and is sent again a little later.

A timer belongs to one node, whose epoch is in its record. When that node is gone, another one that shares the log takes
its timers over; a node that owns its log finds its own again at the next start. Those that were due meanwhile are sent
at once. Every node can cancel every timer: the owner sees that the record is gone.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mainspring.cluster import Cluster
from mainspring.errors import MainspringError
from mainspring.kernel import errors as faults
from mainspring.kernel.durable.dead_messages import ReplacedRecord
from mainspring.kernel.durable.record import NO_EPOCH
from mainspring.kernel.mail import KeptOrigin
from mainspring.log import ABSENT, Batch, Change, Log, Refused
from mainspring.loop import BackgroundTasks
from mainspring.message import Message, Metadata

if TYPE_CHECKING:
    from mainspring.kernel.exchange import Exchange
    from mainspring.kernel.timers import MessageTimers

logger: logging.Logger = logging.getLogger("mainspring.kernel")

SPACE: Final = "timers"
_RETRY_MS: Final = 1_000


class StoredTimer(msgspec.Struct, frozen=True, omit_defaults=True):
    """One message in the log. Its key is the timer's id."""

    deadline_ms: int  # epoch
    message: Message
    cause: Metadata
    epoch: int = NO_EPOCH  # of the node that will send it
    delay_ms: int | None = None  # as it was asked for; not in records of older versions


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(StoredTimer).decode


class DurableTimers:
    """The durable timers that this node will fire, and a look at those of others."""

    def __init__(self, log: Log, exchange: Exchange, cluster: Cluster, timers: MessageTimers) -> None:
        self._log = log
        self._exchange = exchange
        self._cluster = cluster
        self._timers = timers
        self._is_up = False
        self._found: dict[str, StoredTimer] = {}  # to be armed when the node is up
        self._mine: set[str] = set()  # records that this node owns: waiting, or sent and not removed yet
        self._tasks = BackgroundTasks(logger, "durable timers")

    async def schedule(self, delay_ms: float, message: Message, cause: Metadata) -> str:
        """Send `message` after `delay_ms`; the id is for `cancel`. It is stored when this returns."""
        id = self._exchange.ids()
        deadline_ms = self._exchange.clock.wall_ms() + int(delay_ms)
        batch = Batch()
        self._cluster.guard(batch)
        stored = StoredTimer(deadline_ms, message, cause, self._cluster.epoch, int(delay_ms))
        batch.put(SPACE, id, _encode(stored), expect=ABSENT)
        await self._log.commit(batch)
        self._arm(id, stored)
        return id

    def _arm(self, id: str, stored: StoredTimer, least_ms: int = 0) -> None:
        self._mine.add(id)
        left_ms = stored.deadline_ms - self._exchange.clock.wall_ms()
        if stored.delay_ms is not None:  # a clock that was set back meanwhile must not make it wait for longer
            left_ms = min(left_ms, stored.delay_ms)
        delay_ms = max(least_ms, left_ms)

        def on_due(due: Message) -> KeptOrigin | None:
            if due.kind in ("command", "query"):
                return KeptOrigin(lambda outcome: self._outcome_came(id, stored, due, outcome))
            self._remove(id)
            return None

        self._timers.schedule(delay_ms, stored.message, stored.cause, id=id, on_due=on_due)

    def _outcome_came(self, id: str, stored: StoredTimer, due: Message, outcome: Message) -> None:
        if outcome.kind == "error":
            if outcome.type == faults.SHUTTING_DOWN:
                return  # the next life of this node, or another node, sends it again
            if outcome.type == faults.NOT_STORED:
                if id in self._mine:  # else it was cancelled, or is another node's by now
                    self._arm(id, stored, _RETRY_MS)
                return
            # A crash between the removal and the dead message would lose both.
            self._exchange.sink(outcome, due, ReplacedRecord(SPACE, id, partial(self._mine.discard, id)))
        else:
            self._remove(id)

    def _remove(self, id: str) -> None:
        self._tasks.start(self._removing(id), "remove")

    async def _removing(self, id: str) -> None:
        batch = Batch()
        batch.delete(SPACE, id)
        try:
            await self._log.commit(batch)
        except MainspringError as error:
            logger.warning("a timer that was sent could not be removed yet: %s", error.message)
            self._exchange.loop.schedule(_RETRY_MS, self._remove, id, ref=False)
        else:
            self._mine.discard(id)

    async def cancel(self, id: str) -> bool:
        """True when the message will never be sent; another node that is about to send it may not have heard of it."""
        record = await self._log.get(SPACE, id)
        if record is None or (id in self._mine and self._timers.get(id) is None):  # it was sent
            return False
        batch = Batch()
        batch.delete(SPACE, id, expect=record.version)
        self._timers.cancel(id)  # it must not become due while the log decides
        cancelled = False
        try:
            await self._log.commit(batch)
            cancelled = True
        except Refused:
            pass
        finally:
            if cancelled:
                self._mine.discard(id)
            elif id in self._mine and not self._exchange.closing:
                self._arm(id, _decode(record.value))
        return cancelled

    async def elsewhere(self) -> list[tuple[str, StoredTimer]]:
        """Timers that other nodes will fire."""
        scan = self._log.scan(SPACE)
        return [(record.key, _decode(record.value)) async for record in scan if record.key not in self._mine]

    # --- taking over ---------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Find what no living node has: this node's own from its last life, and those of nodes that are gone."""
        self._cluster.on_death(self._node_gone)
        self._log.watch_records(self._on_change)
        await self._take_over()

    def go_on(self) -> None:
        """The node is up: arm what was found."""
        self._is_up = True
        found, self._found = self._found, {}
        for id, stored in found.items():
            self._arm(id, stored)

    def _node_gone(self, _: Any) -> None:
        self._tasks.start(self._look(), "take over")

    async def _look(self) -> None:
        try:
            await self._take_over()
        except MainspringError as error:
            logger.warning("timers of a node that is gone could not be taken over yet: %s", error.message)
            self._exchange.loop.schedule(_RETRY_MS, self._node_gone, None, ref=False)

    async def _take_over(self) -> None:
        async for record in self._log.scan(SPACE):
            stored = _decode(record.value)
            if stored.epoch != NO_EPOCH and self._cluster.alive(stored.epoch):
                continue
            if stored.epoch != self._cluster.epoch:
                stored = msgspec.structs.replace(stored, epoch=self._cluster.epoch)
                batch = Batch()
                self._cluster.guard(batch)
                batch.put(SPACE, record.key, _encode(stored), expect=record.version)
                try:
                    await self._log.commit(batch)
                except Refused:
                    continue  # another node was first
            if record.key not in self._mine:  # it is, when this node had lost its own lease
                self._found[record.key] = stored
                self._mine.add(record.key)
        if self._is_up:
            self.go_on()

    def _on_change(self, change: Change) -> None:
        """A timer was cancelled, also here by a commit that was in doubt; or another node took it over."""
        if not self._mine:
            return
        for record in change.records:
            if record.space != SPACE or record.key not in self._mine:
                continue
            if record.version == ABSENT or (not change.own and _decode(record.value).epoch != self._cluster.epoch):
                self._mine.discard(record.key)
                self._timers.cancel(record.key)

    async def close(self) -> None:
        """End what reads and writes the log here. What was not sent stays in the log."""
        await self._tasks.cancel()
