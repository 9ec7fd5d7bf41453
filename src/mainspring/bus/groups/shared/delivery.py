"""Positions of a node that shares its log: taking events, settling them, giving them back.

Each position has at most one write under way. It carries everything that came up since the last one: what members
settled, what this node takes and gives back, and the claims of nodes that are gone. What was only settled touches this
node's own claim and nothing else, so acknowledgements on different nodes never stand in each other's way; whatever
moves events between nodes also writes the shared record, and is refused when another node was faster. Then the log's
news say how things stand, and the write is made again from there. Nothing is concluded from an answer, and least of all
from a missing one.

A write carries the node's lease: once that is taken away, nothing this node still believes can be stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from mainspring.bus.groups.delivery import Delivery, Written
from mainspring.bus.groups.group import RETRY_MS, Group
from mainspring.bus.groups.local_supply import BYTES_PER_MS, STORE_AT_MOST_MS, STORE_MS
from mainspring.bus.groups.position import SPACE, Position, PositionRecord, encode_position, record_key
from mainspring.bus.groups.shared.group import Exchange, SharedGroup
from mainspring.bus.groups.shared.position import Intent, SharedPosition
from mainspring.bus.groups.shared.records import CLAIMS, ClaimRecord, claim_key, encode
from mainspring.bus.groups.unsettled import Packed
from mainspring.cluster import Cluster
from mainspring.errors import MainspringError
from mainspring.log import Batch, InDoubt, Receipt, Refused, Result

COMMIT_MS: Final = 1_000  # how old the commit in the shared record may be; the nodes know it from all the records
FIRST_RETRY_MS: Final = 5  # after a refusal that the news do not explain yet
TRIES_AT_THE_END: Final = 20


class ClaimingDelivery(Delivery):
    """Delivery on an engine that other nodes use as well."""

    def __init__(self, *arguments: Any, cluster: Cluster) -> None:
        super().__init__(*arguments)
        self._cluster = cluster
        self._dirty: dict[SharedPosition, SharedGroup] = {}
        self._store_planned = False
        self._behind: dict[SharedPosition, SharedGroup] = {}
        self._number = 0

    def to_wall(self) -> int:
        return self._clock.wall_ms() - self._clock.now_ms()

    def positions(self) -> Iterator[tuple[SharedGroup, SharedPosition]]:
        """Every position of every group."""
        for topic in list(self._topics.values()):
            for group in list(topic.groups.values()):
                if isinstance(group, SharedGroup):
                    for position in group.shared_positions():
                        yield group, position

    def forget(self, group: Group) -> None:
        super().forget(group)
        for position in group.positions.values():
            if isinstance(position, SharedPosition):
                self._dirty.pop(position, None)
                position.dirty = False

    # -- when to write

    def changed(self, group: Group, position: Position) -> None:
        if position.dirty or not isinstance(position, SharedPosition) or not isinstance(group, SharedGroup):
            return
        position.dirty = True
        self._dirty[position] = group
        if not self._store_planned and not self._closed:
            self._store_planned = True
            self._loop.schedule(STORE_MS, self._store_all, None, ref=False)

    def _store_all(self, _: None) -> None:
        self._store_planned = False
        now = self._clock.now_ms()
        dirty, self._dirty = self._dirty, {}
        for position, group in dirty.items():
            position.dirty = False
            if position.burying or now < max(position.store_after, position.wait_until):
                self.changed(group, position)
            else:
                self.exchange(group, position, Exchange(position))

    def exchange(self, group: SharedGroup, position: SharedPosition, wanted: Exchange) -> None:
        former = self._number
        batch = self._batch(group, position, wanted)
        if batch is None:
            return
        number = self._number if self._number != former else 0  # 0: the claim is not part of it
        before = (position.version, position.claim_version(self._cluster.epoch))
        position.burying = True

        def decided(result: Result) -> None:
            self._decided(group, position, number, before, result)

        self._log.submit(batch, decided)

    def _decided(
        self,
        group: SharedGroup,
        position: SharedPosition,
        number: int,
        before: tuple[int, int],
        result: Result,
    ) -> None:
        if isinstance(result, Receipt) or (isinstance(result, InDoubt) and number and number not in position.intents):
            position.tries = 0
        else:
            if not isinstance(result, InDoubt):
                position.intents.pop(number, None)
            known = (position.version, position.claim_version(self._cluster.epoch))
            if not (isinstance(result, Refused) and known != before):
                self._later(group, position, refused=isinstance(result, Refused))
            self.changed(group, position)
        self.release(group, position)
        self.wake(group)

    def commit_moved(self, group: SharedGroup, position: SharedPosition) -> None:
        """The shared record says less than is settled: for those who look into the log, write it once in a while."""
        if not self._behind and not self._closed:
            self._loop.schedule(COMMIT_MS, self._write_commits, None, ref=False)
        self._behind[position] = group

    def _write_commits(self, _: None) -> None:
        behind, self._behind = self._behind, {}
        for position, group in behind.items():
            if position.committed() <= position.last_committed or group.deleted:
                continue
            if position.burying:
                self.commit_moved(group, position)
            else:
                self.exchange(group, position, Exchange(position, commit=True))

    def _later(self, group: SharedGroup, position: SharedPosition, *, refused: bool) -> None:
        """Nothing is known that would make another try succeed: wait, longer each time."""
        wait = min(FIRST_RETRY_MS << min(position.tries, 10), RETRY_MS) if refused else RETRY_MS
        position.tries += 1
        position.wait_until = self._clock.now_ms() + wait
        if not self._closed:
            self._loop.schedule(wait, self.wake, group, ref=False)

    # -- what to write

    def _batch(
        self, group: SharedGroup, position: SharedPosition, wanted: Exchange, *, last: bool = False
    ) -> Batch | None:
        """Everything there is to write about the position; None: nothing. `last`: the node has nothing more."""
        dead = self._dead(position)
        batch = Batch()
        self._cluster.guard(batch)
        shared = bool(dead) or wanted.says_something(position)
        if shared:
            free = position.free_after(self.to_wall(), wanted.taken, wanted.passed, [record for _, _, record in dead])
            self._put_shared(batch, group, position, wanted.cursor, wanted.skip_before, free)
            for epoch, version, _ in dead:
                batch.delete(CLAIMS, claim_key(group.topic, group.name, position.partition, epoch), expect=version)
        held = position.held(self.to_wall(), taken=wanted.taken)
        if last:
            key = claim_key(group.topic, group.name, position.partition, self._cluster.epoch)
            batch.delete(CLAIMS, key, expect=position.claim_version(self._cluster.epoch))
        elif wanted.taken or position.leaving or position.intents or held != self._last_held(position):
            # Also when a write is in doubt and nothing is new: this one, or its refusal, makes that certain.
            intent = Intent(dict(wanted.taken), tuple(position.leaving))
            self._put_claim(batch, group, position, held, intent)
        elif not shared:
            return None
        return batch

    def _dead(self, position: SharedPosition) -> list[tuple[int, int, ClaimRecord]]:
        """Claims of nodes that are gone: epoch, version and content."""
        own = self._cluster.epoch
        return [
            (epoch, claim.version, claim.record)
            for epoch, claim in position.claims.items()
            if epoch != own and not self._cluster.alive(epoch)
        ]

    def _last_held(self, position: SharedPosition) -> Packed:
        claim = position.claims.get(self._cluster.epoch)
        if claim is None:
            return Packed()
        return Packed(claim.record.fresh, claim.record.open, claim.record.retried)

    def _put_shared(
        self,
        batch: Batch,
        group: SharedGroup,
        position: SharedPosition,
        cursor: int,
        skip_before: int,
        free: Packed,
    ) -> None:
        record = PositionRecord(
            topic=group.topic,
            group=group.name,
            partition=position.partition,
            last_committed=position.committed(),
            updated_ts=self._clock.wall_ms(),
            cursor=max(cursor, position.next_offset),
            open=free.open,
            retried=free.retried,
            skip_before=skip_before,
            generation=position.generation,
            fresh=free.fresh,
        )
        key = record_key(group.topic, group.name, position.partition)
        batch.put(SPACE, key, encode_position(record), expect=position.version)

    def _put_claim(
        self, batch: Batch, group: SharedGroup, position: SharedPosition, held: Packed, intent: Intent
    ) -> None:
        self._number += 1
        epoch = self._cluster.epoch
        text = encode(
            ClaimRecord(
                topic=group.topic,
                group=group.name,
                partition=position.partition,
                epoch=epoch,
                generation=position.generation,
                number=self._number,
                fresh=held.fresh,
                open=held.open,
                retried=held.retried,
            )
        )
        position.store_after = self._clock.now_ms() + min(len(text) // BYTES_PER_MS, STORE_AT_MOST_MS)
        position.intents[self._number] = intent
        position.own_epoch = epoch
        key = claim_key(group.topic, group.name, position.partition, epoch)
        batch.put(CLAIMS, key, text, expect=position.claim_version(epoch))

    def put_position(
        self, batch: Batch, group: Group, position: Position, without: frozenset[int] = frozenset()
    ) -> Written:
        """This node's claim without what the batch settles. Whether it is stored is learnt from the log's news."""
        assert isinstance(position, SharedPosition)
        assert isinstance(group, SharedGroup)
        self._cluster.guard(batch)
        held = position.held(self.to_wall(), without=without, leaving=position.leaving)
        intent = Intent({}, settled=without)
        self._put_claim(batch, group, position, held, intent)
        return intent.written

    # -- the end

    async def flush(self) -> None:
        """Give back everything, so that nobody has to wait until this node's lease is over."""
        for group, position in list(self.positions()):
            if position.claim_version(self._cluster.epoch):
                await self._end(group, position)

    async def _end(self, group: SharedGroup, position: SharedPosition) -> None:
        for _ in range(TRIES_AT_THE_END):
            await self.hold(position)
            group.surrender(position)
            batch = self._batch(group, position, Exchange(position), last=True)
            try:
                if batch is not None:
                    await self._log.commit(batch)
                return
            except Refused:
                continue
            except MainspringError:
                return  # the others take it when the lease is over
            finally:
                self.release(group, position)
