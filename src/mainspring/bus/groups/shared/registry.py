"""Groups on a log that several nodes share: where they start, where they are sent, what is known of them.

The rules are those of `groups.py`. What differs is who decides: the shared record does, and a node that was too
late takes what the first one stored. A group that another node makes, moves or deletes appears, moves or goes here with
the log's news; members here keep their subscription and lose what they held.
"""

from __future__ import annotations

import asyncio
import logging

from mainspring.bus.audit import Audit
from mainspring.bus.errors import Conflict, Unavailable
from mainspring.bus.groups.group import RETRY_MS, Group
from mainspring.bus.groups.position import SPACE, Position, PositionRecord, decode_position, encode_position, record_key
from mainspring.bus.groups.registry import GroupTable
from mainspring.bus.groups.shared.delivery import ClaimingDelivery
from mainspring.bus.groups.shared.group import SharedGroup
from mainspring.bus.groups.shared.position import SharedPosition
from mainspring.bus.groups.shared.presence import Presence
from mainspring.bus.groups.shared.records import CLAIMS, MEMBERS, ClaimRecord, claim_key, decode_claim, encode, parts_of
from mainspring.bus.results import GroupInfo, GroupOffsets
from mainspring.bus.topics.registry import TopicRegistry
from mainspring.bus.topics.topic import Topic
from mainspring.cluster import Cluster
from mainspring.errors import MainspringError
from mainspring.log import ABSENT, Batch, InDoubt, KeptRecord, Log, Record, Refused
from mainspring.loop import Clock, Loop

logger: logging.Logger = logging.getLogger("mainspring.bus")

TRIES = 200  # of a move, while other nodes take events of the same partition
PAUSE_S = 0.005  # between them
STAGGER_MS = 100  # between the nodes that could take over from a dead one: one of them is enough


class SharedGroups(GroupTable):
    """Makes, finds, moves and deletes groups together with other nodes."""

    def __init__(
        self,
        log: Log,
        clock: Clock,
        loop: Loop,
        topics: TopicRegistry,
        delivery: ClaimingDelivery,
        audit: Audit,
        presence: Presence,
        cluster: Cluster,
    ) -> None:
        super().__init__(log, clock, topics, delivery, audit)
        self._loop = loop
        self._claiming = delivery
        self._presence = presence
        self._cluster = cluster
        self._touched: dict[SharedPosition, SharedGroup] = {}
        self._landed: dict[SharedPosition, int] = {}
        self._orphans_planned = False

    def _new(self, topic: Topic, name: str) -> Group:
        return SharedGroup(topic.name, name, self._claiming, self._presence)

    async def start(self) -> None:
        """Read every group; `after` makes sense of it when the news of this time are known, too."""
        for space, heard in ((SPACE, self.heard), (CLAIMS, self.heard_claim), (MEMBERS, self.heard_members)):
            async for record in self._log.scan(space):
                heard(KeptRecord(space, record.key, record.value, record.version))
        for topic in self._topics.all():
            if topic.groups:
                await self._topics.load(topic)
        self._cluster.on_death(self._died)
        self._cluster.on_fenced(self._fenced)

    def begin_work(self) -> None:
        """Everything is known: see to what nodes that are gone have left."""
        self._see_to_orphans(None)

    # -- news

    def heard(self, record: KeptRecord) -> None:
        """A shared record was written or deleted."""
        topic_name, name, partition = parts_of(record.key)
        if record.version == ABSENT:
            self._deleted(topic_name, name, partition)
            return
        group = self._known(topic_name, name)
        position = group.positions.get(partition)
        if isinstance(position, SharedPosition) and position.saw_shared(decode_position(record.value), record.version):
            self._touched[position] = group

    def heard_claim(self, record: KeptRecord) -> None:
        """A node's claim was written or deleted."""
        *_, number, epoch_text = record.key.split("|")
        topic_name, name, _ = parts_of(record.key)
        epoch = int(epoch_text)
        topic = self._topics.find(topic_name)
        group = None if topic is None else topic.groups.get(name)
        position = None if group is None else group.positions.get(int(number))
        if not isinstance(group, SharedGroup) or not isinstance(position, SharedPosition):
            return  # of a group that is gone
        own = epoch == self._cluster.epoch
        if record.version == ABSENT:
            known = position.claims.pop(epoch, None)
            position.moved = position.moved or (own and known is not None)
        else:
            claim = decode_claim(record.value)
            if position.saw_claim(epoch, claim, record.version) and own and claim.number:
                self._landed[position] = claim.number
        self._touched[position] = group

    def heard_members(self, record: KeptRecord) -> None:
        """Members of a node came or went."""
        name = self._presence.heard(record)
        if name is not None:
            self._members_changed(*name)

    def _members_changed(self, topic_name: str, name: str) -> None:
        topic = self._topics.find(topic_name)
        group = None if topic is None else topic.groups.get(name)
        if topic is not None and group is not None:
            self._topics.apply(topic, group)
            self._delivery.wake(group)

    def after(self) -> None:
        """All records of a commit were told: see where the groups stand, and go on from there."""
        touched, self._touched = self._touched, {}
        landed, self._landed = self._landed, {}
        now = self._clock.now_ms()
        for position, group in touched.items():
            position.look()
            if position.moved:
                group.lost(position)
            elif position in landed:
                group.landed(position, landed[position], now)
            own = position.claims.get(self._cluster.epoch)
            if own is not None and own.lowest is None and position.last_committed < position.committed():
                self._claiming.commit_moved(group, position)
            if len(position.bodies) > len(position.open) + len(position.free):
                position.forget_bodies()
            if group.members or position.leaving:
                self._delivery.wake(group)

    def _known(self, topic_name: str, name: str) -> SharedGroup:
        topic = self._topics.found(topic_name)
        group = topic.groups.get(name)
        if group is None:
            group = self._make(topic, name, {})
            if not topic.loaded:
                self._delivery.run(self._topics.load(topic))
        assert isinstance(group, SharedGroup)
        return group

    def _deleted(self, topic_name: str, name: str, partition: int) -> None:
        topic = self._topics.find(topic_name)
        group = None if topic is None else topic.groups.get(name)
        if topic is None or not isinstance(group, SharedGroup):
            return
        position = group.positions.get(partition)
        if isinstance(position, SharedPosition):
            position.saw_shared_deleted()
            self._touched[position] = group
        if not group.members and not any(each.version for each in group.shared_positions()):
            del topic.groups[name]
            group.deleted = True
            self._delivery.forget(group)

    # -- other nodes

    def _died(self, epoch: int) -> None:
        for topic, name in self._presence.groups_of(epoch):
            self._members_changed(topic, name)
        if not self._orphans_planned:
            self._orphans_planned = True
            self._loop.schedule(self._rank() * STAGGER_MS, self._see_to_orphans, None, ref=False)

    def _fenced(self, former: int) -> None:
        """What this node had belongs to whoever takes it."""
        for group, position in self._claiming.positions():
            group.lost(position)
            self._delivery.wake(group)
        self._presence.fenced()

    def _rank(self) -> int:
        """How many living nodes come before this one."""
        return sum(1 for node in self._cluster.nodes() if node.epoch < self._cluster.epoch)

    def _see_to_orphans(self, _: None) -> None:
        """Take over what nodes that are gone have left; until nothing is left of it."""
        self._orphans_planned = False
        left = False
        for group, position in self._claiming.positions():
            if any(epoch != self._cluster.epoch and not self._cluster.alive(epoch) for epoch in position.claims):
                left = True
                self._claiming.changed(group, position)
        said = self._presence.left_by_the_dead()
        if said:
            left = True
            batch = Batch()
            self._cluster.guard(batch)
            for key in said:
                batch.delete(MEMBERS, key)
            self._log.submit(batch, lambda _: None)
        if left and not self._orphans_planned:
            self._orphans_planned = True
            self._loop.schedule(RETRY_MS, self._see_to_orphans, None, ref=False)

    # -- where groups start and go

    async def store(self, group: Group) -> None:
        """Make sure that the group is in the log; where another node was faster, its start stands."""
        assert isinstance(group, SharedGroup)
        while True:
            batch = Batch()
            for position in group.shared_positions():
                if position.version == ABSENT:
                    self._put_start(batch, group, position)
            if not batch.operations:
                return
            try:
                await self._log.commit(batch)
            except Refused:
                await self._read_again(group)
            except MainspringError as error:
                raise Unavailable(f"the group could not be stored: {error.message}", remedy=error.remedy) from error

    async def _read_again(self, group: SharedGroup) -> None:
        for position in group.shared_positions():
            if position.version == ABSENT:
                record = await self._log.get(SPACE, record_key(group.topic, group.name, position.partition))
                if record is not None:
                    self.heard(_kept(SPACE, record))
        self.after()

    def _put_start(self, batch: Batch, group: SharedGroup, position: SharedPosition) -> None:
        record = PositionRecord(
            topic=group.topic,
            group=group.name,
            partition=position.partition,
            last_committed=max(0, min(position.cursor - 1, position.tail.offset)),
            updated_ts=self._clock.wall_ms(),
            cursor=position.cursor,
            skip_before=position.skip_before,
        )
        key = record_key(group.topic, group.name, position.partition)
        batch.put(SPACE, key, encode_position(record), expect=ABSENT)

    async def _move(self, topic: Topic, group: Group, starts: dict[int, tuple[int, int]]) -> None:
        assert isinstance(group, SharedGroup)
        await self.store(group)
        moves = []
        for partition, (cursor, skip_before) in starts.items():
            position = group.positions[partition]
            assert isinstance(position, SharedPosition)
            moves.append(self._move_one(group, position, cursor, skip_before))
            self._audit.note("seek", topic, partition, cursor, 1, group.name)
        await asyncio.gather(*moves)
        self._delivery.wake(group)

    async def _move_one(self, group: SharedGroup, position: SharedPosition, cursor: int, skip_before: int) -> None:
        wanted = None
        for _ in range(TRIES):
            if wanted is not None and (position.generation, position.next_offset) == wanted:
                return  # the answer was lost, but it has happened
            await self._claiming.hold(position)
            try:
                batch = self._moving(group, position, cursor, skip_before)
                wanted = (position.generation + 1, cursor)
                await self._log.commit(batch)
                return
            except (Refused, InDoubt):
                pass  # the news say how things stand
            except MainspringError as error:
                raise Unavailable(f"the group could not be moved: {error.message}", remedy=error.remedy) from error
            finally:
                self._claiming.release(group, position)
            await asyncio.sleep(PAUSE_S)
        raise Unavailable(f"group {group.name!r} is too busy to be moved", remedy="try again")

    def _moving(self, group: SharedGroup, position: SharedPosition, cursor: int, skip_before: int) -> Batch:
        """Take everything from everybody, and begin anew. A claim that is written meanwhile is taken back all the same:
        whoever wrote it has touched the shared record, or has only settled what it had."""
        batch = Batch()
        generation = position.generation + 1
        record = PositionRecord(
            topic=group.topic,
            group=group.name,
            partition=position.partition,
            last_committed=position.committed(),
            updated_ts=self._clock.wall_ms(),
            cursor=cursor,
            skip_before=skip_before,
            generation=generation,
        )
        key = record_key(group.topic, group.name, position.partition)
        batch.put(SPACE, key, encode_position(record), expect=position.version)
        for epoch in position.claims:
            key = claim_key(group.topic, group.name, position.partition, epoch)
            if self._cluster.alive(epoch):
                empty = ClaimRecord(group.topic, group.name, position.partition, epoch, generation)
                batch.put(CLAIMS, key, encode(empty))
            else:
                batch.delete(CLAIMS, key)
        return batch

    async def delete(self, topic: Topic, name: str) -> None:
        group = self.get(topic, name)
        assert isinstance(group, SharedGroup)
        members = self._presence.count(group)
        if members:
            raise Conflict(f"group {name!r} of {topic.name!r} has {members} members", remedy="stop its consumers first")
        batch = Batch()
        self._cluster.guard(batch)
        for position in group.shared_positions():
            batch.delete(SPACE, record_key(topic.name, name, position.partition))
            for epoch in position.claims:
                batch.delete(CLAIMS, claim_key(topic.name, name, position.partition, epoch))
        try:
            await self._log.commit(batch)
        except MainspringError as error:
            raise Unavailable(f"the group could not be deleted: {error.message}", remedy=error.remedy) from error

    # -- what is known

    def info(self, group: Group) -> GroupInfo:
        return GroupInfo(
            topic=group.topic,
            group=group.name,
            members=self._presence.count(group),
            partitions={position.partition: self._offsets(position) for position in group.positions.values()},
        )

    def _offsets(self, position: Position) -> GroupOffsets:
        known = super()._offsets(position)
        assert isinstance(position, SharedPosition)
        elsewhere = position.taken_elsewhere(self._cluster.epoch)
        return GroupOffsets(known.last_committed, known.lag, known.inflight + elsewhere)


def _kept(space: str, record: Record) -> KeptRecord:
    return KeptRecord(space, record.key, record.value, record.version)
