"""The supply of a node that owns its log: events straight from the log, positions written a few ms after they changed.

All positions that changed share the log's next commit with the events published at that time. No other node writes
them, so a record says what is in memory and needs no version.

The log may have been shared by several nodes before. Then their claims are still there; what they held waits to be
delivered again, and the claims go.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Final

from mainspring.bus.groups.delivery import Delivery
from mainspring.bus.groups.group import RETRY_MS, Group, LeaseView
from mainspring.bus.groups.member import MemberView
from mainspring.bus.groups.position import (
    COPIES,
    SPACE,
    SUSPECT,
    OpenEvent,
    Position,
    PositionWrite,
    decode_position,
    encode_position,
    record_key,
)
from mainspring.bus.groups.registry import GroupRegistry
from mainspring.bus.groups.shared.records import CLAIMS, ClaimRecord, claim_key, decode_claim, parts_of, with_claims
from mainspring.bus.groups.supply import OnRecordChanged, Reopening, Starts
from mainspring.bus.topics.tail import ReadyEvent
from mainspring.cluster import Suspects
from mainspring.errors import MainspringError
from mainspring.log import Batch, Log, Receipt, Result
from mainspring.loop import Clock, Loop, reject, resolve

RUNNING: Final = ("running", "bus")  # a record while a node with functions that consume runs


logger: logging.Logger = logging.getLogger("mainspring.bus")


class LocalSupply:
    """The only node on its log."""

    takes_unclaimed = True

    def __init__(self, log: Log, clock: Clock, loop: Loop, suspects: Suspects) -> None:
        self._log = log
        self._clock = clock
        self._loop = loop
        self._suspects = suspects
        self._storing = 0  # batches of positions under way
        self._stored = asyncio.Event()
        self._ended: list[Position] = []  # those whose events the process before this one may have had when it ended

    def attach(self, delivery: Delivery) -> None:
        self._delivery = delivery

    # -- life

    def listen(self, listeners: Mapping[str, OnRecordChanged]) -> None:
        """No other node writes records."""

    async def load(self, registry: GroupRegistry) -> None:
        self._registry = registry
        to_wall = self._clock.wall_ms() - self._clock.now_ms()
        claims = await self._claims_of_former_nodes()
        async for record in self._log.scan(SPACE):
            stored = with_claims(decode_position(record.value), claims.get(record.key, []))
            group = registry.find_or_make(stored.topic, stored.group)
            if stored.partition in group.positions:
                set_back = max(0, stored.updated_ts - self._clock.wall_ms())
                group.positions[stored.partition].restore(stored, to_wall, set_back)
        async for record in self._log.scan(COPIES):
            topic, name, (partition, offset) = parts_of(record.key)
            found = registry.find(topic, name)
            if found is not None and partition in found.positions:
                found.positions[partition].copies.add(offset)
        await registry.load_topics()
        if registry.has_consumers:
            await self._note_end(registry)
        for group in registry.all():
            group.on_restored(self._clock.now_ms())
        if claims:
            await self._take_over(registry, claims)

    async def _note_end(self, registry: GroupRegistry) -> None:
        """Find out whether the process before this one was stopped, and leave the mark by which the next one will know.

        If it was not, a function may have ended it. An event with which it ended more than once is held back until
        nothing else is handled with which it ended, and is then handled alone: so only the event that does it has its
        attempts used up.
        """
        if await self._log.get(*RUNNING) is not None:
            groups = [group for group in registry.all() if registry.is_in_process(group)]
            self._ended = [each for group in groups for each in group.positions.values()]
            self._suspects.use(lambda ms, look: self._loop.schedule(ms, lambda _: look(), None, ref=False))
            self._suspects.wait_for(lambda: any(position.handles_suspect() for position in self._ended))
            for position in self._ended:
                position.note_end()
                suspects = [offset for offset, (ended, _) in position.ends.items() if ended >= SUSPECT]
                position.unread += suspects  # later events of their keys wait for them
                for offset in suspects:
                    self._delivery.hold_suspect(self._suspects, position, position.open[offset])
        batch = Batch()
        batch.put(*RUNNING, b"{}")
        await self._log.commit(batch)

    async def _claims_of_former_nodes(self) -> dict[str, list[ClaimRecord]]:
        """What nodes held when the log was still shared by several; by the key of the position."""
        claims: dict[str, list[ClaimRecord]] = {}
        async for record in self._log.scan(CLAIMS):
            claim = decode_claim(record.value)
            claims.setdefault(record_key(claim.topic, claim.group, claim.partition), []).append(claim)
        return claims

    async def _take_over(self, registry: GroupRegistry, claims: dict[str, list[ClaimRecord]]) -> None:
        batch = Batch()
        for claim in [claim for of_position in claims.values() for claim in of_position]:
            batch.delete(CLAIMS, claim_key(claim.topic, claim.group, claim.partition, claim.epoch))
        for group in registry.all():
            for position in group.positions.values():
                if position.key in claims:
                    self.put_position(batch, position)
        await self._log.commit(batch)

    async def catch_up(self) -> None:
        """No other node writes records."""

    async def stop(self) -> None:
        """Store every changed position, and wait until it is. The next process knows then that this one was stopped."""
        delivery = self._delivery
        while delivery.has_changes or self._storing:
            delivery.store_changed(True)
            if self._storing:
                self._stored.clear()
                await self._stored.wait()
            elif delivery.has_changes:  # only positions whose write lock is held are left
                await asyncio.sleep(0.001)
        if self._registry.has_consumers:
            batch = Batch()
            batch.delete(*RUNNING)
            try:
                await self._log.commit(batch)
            except MainspringError as error:
                logger.warning("the next start will be careful: %s", error.message)

    # -- delivering

    def add_position(self, position: Position) -> None:
        """A position needs nothing more."""

    def deliver(self, group: Group, now: int) -> None:
        """What waits, then new events straight from the partitions, which take turns."""
        choice = group.choice
        if not choice.someone_has_room:
            return
        group.deliver_again(now)
        turns = group.turns
        idle = 0
        while choice.someone_has_room and idle < len(turns):
            position = turns[0]
            turns.rotate(-1)
            # What waits in a partition and could not go yet goes before anything new of it.
            ready = position.cursor <= position.tail.offset and not position.waiting and not group.lacks_keys(position)
            idle = 0 if ready and group.deliver_new(position, now) else idle + 1
        group.flush()

    def may_redeliver(self, position: Position, event: OpenEvent) -> bool:
        return True

    async def before_attempt(self, position: Position) -> None:
        """What the function of an event does may end the process: the attempt is stored before."""
        await self._delivery.store_now(position)

    def on_members_changed(self, group: Group) -> None:
        self._registry.on_members_changed(group)

    def on_fetched(self, position: Position, present: Mapping[int, ReadyEvent], start: int, end: int) -> None:
        """The group keeps what it needs."""

    def accepted_remotely(self, group: Group, ready: ReadyEvent) -> bool:
        return False

    def return_unplaced(self, position: Position, event: OpenEvent, ready: ReadyEvent) -> bool:
        return False

    # -- storing

    def store(self, positions: Sequence[Position]) -> None:
        batch = Batch()
        writes = [self.put_position(batch, position) for position in positions]

        def decided(result: Result) -> None:
            self._storing -= 1
            for write in writes:
                if isinstance(result, Receipt):
                    write.stored()
                else:
                    self._loop.schedule(RETRY_MS, self._delivery.changed, write.position, ref=False)
            self._stored.set()

        self._storing += 1
        self._log.submit(batch, decided)

    def put_position(self, batch: Batch, position: Position, settles: frozenset[int] = frozenset()) -> PositionWrite:
        return self._put(batch, position, settles, ())

    def _put(
        self, batch: Batch, position: Position, settles: frozenset[int], reopened: Collection[int]
    ) -> PositionWrite:
        wall, now = self._clock.wall_ms(), self._clock.now_ms()
        text = encode_position(position.record(wall, wall - now, settles, reopened))
        position.written(now, len(text))
        batch.put(SPACE, position.key, text)
        copies: Collection[int] = ()
        if position.copies:
            copies = position.copies - (position.open.keys() - settles) - set(reopened)
            for offset in copies:
                batch.delete(COPIES, position.copy_key(offset))
        return PositionWrite(position, position.settled(settles), copies)

    # -- groups

    async def store_group(self, group: Group) -> None:
        """Write the positions now; one whose write lock is held becomes durable with the batch that holds it."""
        batch = Batch()
        positions = [position for position in group.positions.values() if not position.write_locked]
        writes = [self.put_position(batch, position) for position in positions]
        await self._log.commit(batch)
        for write in writes:
            write.stored()

    async def move(self, group: Group, starts: Starts) -> None:
        for partition, (cursor, skip_before) in starts.items():
            position = group.positions[partition]
            group.end_leases(position)
            position.move(cursor, skip_before)
            self._delivery.changed(position)

    async def is_open(self, position: Position, offset: int) -> bool:
        return offset >= position.cursor or offset in position.open

    async def reopen(self, position: Position, prepare: Callable[[], Awaitable[Reopening | None]]) -> bool:
        await self._delivery.lock(position)
        try:
            reopening = await prepare()
        except BaseException:
            self._delivery.unlock(position)
            raise
        if reopening is None:
            self._delivery.unlock(position)
            return False
        write = self._put(reopening.batch, position, frozenset(), reopening.offsets)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def decided(result: Result) -> None:
            if isinstance(result, Receipt):
                write.stored()
                position.copies.update(reopening.offsets)
                # A seek may have come in between: what is not below the cursor comes by itself.
                position.group.reopen(position, [offset for offset in reopening.offsets if offset < position.cursor])
                resolve(done, None)
            else:
                reject(done, result)
            self._delivery.unlock(position)

        self._log.submit(reopening.batch, decided)
        await done
        return True

    async def delete(self, group: Group) -> None:
        self._registry.remove(group)
        batch = Batch()
        for position in group.positions.values():
            batch.delete(SPACE, position.key)
            for offset in position.copies:
                batch.delete(COPIES, position.copy_key(offset))
        try:
            await self._log.commit(batch)
        except MainspringError:
            self._registry.keep(group)
            raise

    def member_count(self, group: Group) -> int:
        return len(group.members)

    def members(self, group: Group) -> list[MemberView]:
        return [member.view("") for member in group.members]

    def remote_inflight(self, position: Position) -> int:
        return 0

    def remote_leases(self, position: Position, wall_ms: int) -> list[LeaseView]:
        return []
