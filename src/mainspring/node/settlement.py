"""Acknowledging an event together with what it led to: one commit for the group's position, new runs and new events.

The position's record is written by the bus every few milliseconds, so while a settlement is under way the position is
held (as it is for a dead letter): a record without the settlement must not overtake one with it. When the commit is
durable the event is settled in memory too, its new events are shown to their groups, and its runs begin. When it is
refused nothing of it happened: the event is refused, too, and comes again. While the log cannot be reached the
settlement waits for it, as long as the event is leased: the function has done its work, and an outage must not turn
events into dead letters.

Settlements of one partition that wait for the one under way share the next commit. Only when that one is refused (a run
exists already) is each tried alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from mainspring.bus import Bus
from mainspring.bus.groups import Group, Member, Position, PositionWrite
from mainspring.errors import MainspringError
from mainspring.log import (
    Batch,
    EngineTransaction,
    InDoubt,
    Log,
    LogUnavailable,
    Prepared,
    Receipt,
    Refused,
    Result,
    add_prepared,
)
from mainspring.loop import reject, resolve
from mainspring.runs import RunRecord, Runtime, UnknownRun

logger: logging.Logger = logging.getLogger("mainspring.app")

_DOUBT_S = 0.05  # between two looks whether a lost answer is found out
_AWAY_S = 0.5  # between two tries while the log cannot be reached
_TRIES = 5  # a settlement is refused when a run exists already, or when the node's lease was lost


class LeaseLost(MainspringError, code="lease_lost"):
    """The event is no longer leased to this consumer, so it was not settled; it comes again."""


@dataclass
class Together:
    """What belongs to one acknowledgement."""

    runs: list[RunRecord] = field(default_factory=list)
    events: list[Prepared] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.runs or self.events)


@dataclass(eq=False)
class _Waiting:
    """An acknowledgement on its way."""

    offset: int
    together: Together
    decided: asyncio.Future[None]

    def settle(self, error: Exception | None = None) -> None:
        if error is None:
            resolve(self.decided, None)
        else:
            reject(self.decided, error)


class Settlement:
    """Settles events of one member of a group."""

    def __init__(self, bus: Bus, log: Log, runtime: Runtime, group: Group, member: Member) -> None:
        self._bus = bus
        self._log = log
        self._runtime = runtime
        self._group = group
        self._member = member
        self._queues: dict[Position, list[_Waiting]] = {}  # one commit of a partition at a time
        self._busy: set[Position] = set()

    def ack(self, position: Position, offset: int) -> None:
        """Settle it alone; its position is stored within milliseconds."""
        self._group.ack(self._member, position.partition, offset)
        self._bus.delivery.wake(self._group)

    def nack(
        self, position: Position, offset: int, reason: str, delay_ms: int | None, failure: BaseException | None = None
    ) -> None:
        """Refuse it; it comes again after `delay_ms`. None: it does not, but is a dead letter."""
        now = self._bus.clock.now_ms()
        if self._group.nack(self._member, position.partition, offset, reason, delay_ms, now, failure):
            self._bus.counters.nacks += 1
            self._bus.delivery.wake(self._group)

    async def may_begin(self, position: Position, offset: int) -> bool:
        """Wait until the function may be called with the event; False: its lease was lost meanwhile."""
        while offset in self._member.held.get(position.partition, {}):
            try:
                await self._bus.delivery.before_attempt(position)
            except LogUnavailable:
                await asyncio.sleep(_AWAY_S)
            except Refused:  # another node moved the group, or was faster; the change feed says so in a moment
                await asyncio.sleep(_DOUBT_S)
            else:
                return offset in self._member.held.get(position.partition, {})
        return False

    async def ack_with(self, position: Position, offset: int, together: Together) -> None:
        """Settle it in one commit with its runs and events. Raises when nothing of it happened."""
        while True:
            try:
                await self._try_ack(position, offset, together)
                return
            except LogUnavailable as error:
                logger.info("settling %s %d waits for the log: %s", self._group.topic.name, offset, error.message)
                await asyncio.sleep(_AWAY_S)

    async def ack_in(self, position: Position, offset: int, together: Together, transaction: EngineTransaction) -> None:
        """Settle it in one commit with what was done in the transaction. Raises when nothing of it happened."""
        delivery = self._bus.delivery
        await delivery.lock(position)
        try:
            if offset not in self._member.held.get(position.partition, {}):
                raise LeaseLost(f"event {offset} of {self._group.topic.name!r} is no longer leased to this consumer")
            batch = Batch()
            show_events = add_prepared(batch, together.events)
            resets, settles = position.resets, frozenset((offset,))
            write = delivery.put_position(batch, position, settles)
            result: Result
            try:
                result = await transaction.commit(batch)
            except InDoubt as error:
                result = error
            if isinstance(result, Receipt):
                write.stored()
                show_events(result)
                self._group.settle(position, settles, resets)
        finally:
            delivery.unlock(position)
            delivery.wake(self._group)
        if isinstance(result, InDoubt):
            await self._found_out(write)
        if not isinstance(result, Receipt) and not write.happened:
            raise result

    async def ack_all(self, items: Sequence[tuple[Position, int, Together]]) -> list[BaseException | None]:
        """Settle them with their runs and events, those of a partition in one commit; the error of each, or None."""
        return await asyncio.gather(*(self.ack_with(*each) for each in items), return_exceptions=True)

    async def _try_ack(self, position: Position, offset: int, together: Together) -> None:
        waiting = _Waiting(offset, together, asyncio.get_running_loop().create_future())
        self._queues.setdefault(position, []).append(waiting)
        if position not in self._busy:
            self._busy.add(position)
            self._bus.delivery.run(self._work(position))
        await waiting.decided

    async def _work(self, position: Position) -> None:
        """Settle what waits, as long as something does."""
        queue: list[_Waiting] = []
        try:
            while queue := self._queues.pop(position, []):
                if await self._settle(position, queue) is not None:
                    for each in queue:
                        await self._settle_alone(position, each)
        except Exception as error:
            for each in queue:
                each.settle(error)
        finally:
            self._busy.discard(position)

    async def _settle_alone(self, position: Position, waiting: _Waiting) -> None:
        together, refused = waiting.together, None
        try:
            for _ in range(_TRIES):
                together.runs = [record for record in together.runs if not await self._exists(record)]
                refused = await self._settle(position, [waiting])
                if refused is None:
                    return
        except MainspringError as error:
            refused = error
        waiting.settle(refused)

    async def _settle(self, position: Position, queue: list[_Waiting]) -> Exception | None:
        """One commit for all of them. Everybody is told, unless an expectation did not hold: then it is given back."""
        await self._bus.delivery.lock(position)
        held = self._member.held.get(position.partition, {})
        for each in queue:
            if each.offset not in held:
                where = f"event {each.offset} of {self._group.topic.name!r}"
                each.settle(LeaseLost(f"{where} is no longer leased to this consumer"))
        queue = [each for each in queue if not each.decided.done()]
        if not queue:
            self._bus.delivery.unlock(position)
            return None
        result, write = await self._commit(position, queue)
        if isinstance(result, InDoubt):
            await self._found_out(write)
        stored = isinstance(result, Receipt) or write.happened
        if isinstance(result, Refused) and not stored:
            return result
        if stored:
            await self._runtime.durable.revive([record for each in queue for record in each.together.runs])
        for each in queue:
            each.settle(None if stored or isinstance(result, Receipt) else result)
        return None

    async def _found_out(self, write: PositionWrite) -> None:
        """The answer was lost. The position is written again; the log takes one of the two, and reports which."""
        while write.happened is None:
            self._bus.delivery.changed(write.position)
            await asyncio.sleep(_DOUBT_S)

    async def _exists(self, record: RunRecord) -> bool:
        try:
            known, _ = await self._runtime.durable.store.record_with_version(record.id)
        except UnknownRun:
            return False
        self._runtime.durable.starting.require_same(known, record.program, record.args)
        return True

    async def _commit(self, position: Position, queue: list[_Waiting]) -> tuple[Receipt | Exception, PositionWrite]:
        batch = Batch()
        show_events = add_prepared(batch, (prepared for each in queue for prepared in each.together.events))
        delivery, resets = self._bus.delivery, position.resets
        offsets = frozenset(each.offset for each in queue)
        write = delivery.put_position(batch, position, offsets)
        decided: asyncio.Future[Receipt | Exception] = asyncio.get_running_loop().create_future()

        def done(result: Receipt | Exception) -> None:
            if isinstance(result, Receipt):
                write.stored()
                show_events(result)
                self._group.settle(position, offsets, resets)
            delivery.unlock(position)
            delivery.wake(self._group)
            resolve(decided, result)

        runs = [record for each in queue for record in each.together.runs]
        if runs:
            self._runtime.durable.submit(runs, batch, done)
        else:
            self._log.submit(batch, done)
        return await decided, write
