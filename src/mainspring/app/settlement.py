"""Acknowledging an event together with what it led to: one commit for the group's position, new runs and new events.

The position's record is written by the bus every few milliseconds, so while a settlement is under way the position is
held (as it is for a dead letter): a record without the settlement must not overtake one with it. When the commit is
durable the event is settled in memory too, its new events are shown to their groups, and its runs begin. When it fails
nothing of it happened: the event is refused and comes again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from mainspring.bus import Bus
from mainspring.bus.group import Group
from mainspring.bus.member import Member
from mainspring.bus.position import OpenEvent, Position
from mainspring.errors import MainspringError
from mainspring.log import Append, Batch, Log, Operation, Receipt, Refused
from mainspring.runs import RunConflict, RunRecord, Runtime, UnknownRun
from mainspring.runs.by_hand import beginning

logger = logging.getLogger("mainspring.app")

_TRIES = 5  # a settlement is refused when a run exists already, or when the runs' lease was just renewed
_HELD_S = 0.001  # how long to wait when a dead letter of the same partition is being written


class LeaseLost(MainspringError):
    """The event is no longer leased to this consumer, so it was not settled; it comes again."""

    code = "lease_lost"


@dataclass
class Together:
    """What belongs to one acknowledgement."""

    runs: list[RunRecord] = field(default_factory=list)
    events: list[tuple[list[Operation], Callable[[Receipt], None]]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.runs or self.events)


class Settlement:
    """Settles events of one member of a group."""

    def __init__(self, bus: Bus, log: Log, runtime: Runtime, group: Group, member: Member) -> None:
        self._bus = bus
        self._log = log
        self._runtime = runtime
        self._group = group
        self._member = member
        self._turns: dict[Position, asyncio.Lock] = {}  # one settlement of a partition at a time

    def ack(self, position: Position, offset: int) -> None:
        """Settle it alone; its position is stored within milliseconds."""
        self._group.ack(self._member, position.partition, offset)
        self._bus.delivery.wake(self._group)

    def nack(self, position: Position, offset: int, reason: str, delay_ms: int) -> None:
        now = self._bus.clock.now_ms()
        if self._group.nack(self._member, position.partition, offset, reason, delay_ms, now):
            self._bus.counters.nacks += 1
            self._bus.delivery.wake(self._group)

    async def ack_with(self, position: Position, offset: int, together: Together) -> None:
        """Settle it in one commit with its runs and events. Raises when nothing of it happened."""
        async with self._turns.setdefault(position, asyncio.Lock()):
            await self._try_with(position, offset, together)

    async def _try_with(self, position: Position, offset: int, together: Together) -> None:
        for _ in range(_TRIES):
            while position.burying:  # noqa: ASYNC110 - by a dead letter or another member: rare, and soon over
                await asyncio.sleep(_HELD_S)
            event = self._member.held.get(position.partition, {}).get(offset)
            if event is None:
                raise LeaseLost(f"event {offset} of {self._group.topic!r} is no longer leased to this consumer")
            result = await self._commit(position, event, together)
            if isinstance(result, Receipt):
                await self._runtime.durable.revive(together.runs)
                return
            if not isinstance(result, Refused):
                raise result
            together.runs = [record for record in together.runs if not await self._exists(record)]
        raise LeaseLost("the commit was refused again and again", remedy="see the node's log")

    async def _exists(self, record: RunRecord) -> bool:
        try:
            known, _ = await self._runtime.durable.store.found(record.id)
        except UnknownRun:
            return False
        if known.program != record.program:
            raise RunConflict(f"run {record.id} is a run of {known.program}", remedy="use another id")
        return True

    async def _commit(self, position: Position, event: OpenEvent, together: Together) -> Receipt | Exception:
        batch = Batch([operation for record in together.runs for operation in beginning(record)])
        for operations, _ in together.events:
            batch.operations.extend(operations)
        delivery, epoch = self._bus.delivery, position.epoch
        settled = delivery.put_position(batch, self._group, position, frozenset((event.offset,)))
        position.burying = True
        decided: asyncio.Future[Receipt | Exception] = asyncio.get_running_loop().create_future()

        def done(result: Receipt | Exception) -> None:
            position.burying = False
            if isinstance(result, Receipt):
                position.durable = max(position.durable, settled)
                position.stored = True
                _show(together, result)
                self._settled(position, event, epoch)
            if any(other.dying for other in position.open.values()):
                delivery.bury(self._group, position)
            delivery.wake(self._group)
            if not decided.done():
                decided.set_result(result)

        try:
            self._submit(batch, done, guarded=bool(together.runs))
        except MainspringError as error:
            done(error)
        return await asyncio.shield(decided)

    def _submit(self, batch: Batch, done: Callable[[Any], None], *, guarded: bool) -> None:
        """Runs are only begun by the node that has the runs' lease."""
        if guarded:
            self._runtime.durable.writer.alone(batch.operations, done)
        else:
            self._log.submit(batch, done)

    def _settled(self, position: Position, event: OpenEvent, epoch: int) -> None:
        if event.offset in self._member.held.get(position.partition, {}):
            self._group.ack(self._member, position.partition, event.offset)
        else:  # its lease ran out while the commit was under way; it is settled all the same
            self._group.buried(position, [event], epoch)


def _show(together: Together, receipt: Receipt) -> None:
    first = 0
    for operations, stored in together.events:
        count = sum(isinstance(operation, Append) for operation in operations)
        stored(Receipt(offsets=receipt.offsets[first : first + count]))
        first += count
