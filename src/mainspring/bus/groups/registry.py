"""Groups: where they start, where they are sent, what is known of them.

A group exists from its first SUBSCRIBE on, in every partition, and its start is durable before the OK: a node that dies
right after it does not move the start of a group that asked for `latest`.

    from            group exists                          group is new
    absent          goes on                               the beginning
    latest          goes on                               behind the tail
    offset 0        goes on                               the beginning
    offset v        moves to v                            v (beyond the tail: waits)
    timestamp v     moves to the first event not older    the same

A move concerns the whole group, also its other members: what they hold is taken from them. Moving forward settles what
is skipped, moving backward never lowers the commit.
"""

from __future__ import annotations

from mainspring.bus.audit import Audit
from mainspring.bus.errors import BadOffset, Conflict, Unavailable, UnknownGroup
from mainspring.bus.groups.delivery import Delivery
from mainspring.bus.groups.group import Group
from mainspring.bus.groups.position import SPACE, Position, decode_position, record_key
from mainspring.bus.groups.shared.records import CLAIMS, ClaimRecord, claim_key, decode_claim, with_claims
from mainspring.bus.names import check_name
from mainspring.bus.protocol import Start
from mainspring.bus.results import GroupInfo, GroupOffsets, PartitionOffsets
from mainspring.bus.topics.registry import TopicRegistry
from mainspring.bus.topics.topic import Topic
from mainspring.errors import MainspringError
from mainspring.log import Batch, Log
from mainspring.loop import Clock


class GroupTable:
    """Makes, finds, moves and deletes groups."""

    def __init__(self, log: Log, clock: Clock, topics: TopicRegistry, delivery: Delivery, audit: Audit) -> None:
        self._log = log
        self._clock = clock
        self._topics = topics
        self._delivery = delivery
        self._audit = audit

    async def start(self) -> None:
        """Bring back every group as it was stored."""
        to_wall = self._clock.wall_ms() - self._clock.now_ms()
        left = await self._left_by_nodes()
        async for record in self._log.scan(SPACE):
            stored = with_claims(decode_position(record.value), left.get(record.key, []))
            topic = self._topics.found(stored.topic)
            group = topic.groups.get(stored.group)
            if group is None:
                group = self._make(topic, stored.group, {})
            if stored.partition in group.positions:
                group.positions[stored.partition].restore(stored, to_wall)
        for topic in self._topics.all():
            if topic.groups:
                await self._topics.load(topic)
                for group in topic.groups.values():
                    group.restored(self._clock.now_ms())
        if left:
            await self._take_over(left)

    async def _left_by_nodes(self) -> dict[str, list[ClaimRecord]]:
        """What nodes held when the log was still shared by several; by the key of the position."""
        left: dict[str, list[ClaimRecord]] = {}
        async for record in self._log.scan(CLAIMS):
            claim = decode_claim(record.value)
            left.setdefault(record_key(claim.topic, claim.group, claim.partition), []).append(claim)
        return left

    async def _take_over(self, left: dict[str, list[ClaimRecord]]) -> None:
        batch = Batch()
        for claim in [claim for claims in left.values() for claim in claims]:
            batch.delete(CLAIMS, claim_key(claim.topic, claim.group, claim.partition, claim.epoch))
        for topic in self._topics.all():
            for group in topic.groups.values():
                for position in group.positions.values():
                    if record_key(topic.name, group.name, position.partition) in left:
                        self._delivery.put_position(batch, group, position)
        await self._log.commit(batch)

    def _new(self, topic: Topic, name: str) -> Group:
        return Group(topic.name, name, self._delivery, ack_timeout_ms=1, max_attempts=0)

    def _make(self, topic: Topic, name: str, starts: dict[int, tuple[int, int]]) -> Group:
        group = self._new(topic, name)
        self._topics.apply(topic, group)
        self._delivery.adopt(topic)
        for tail in topic.tails:
            cursor, skip_before = starts.get(tail.partition, (1, 0))
            group.add_position(tail, cursor).skip_before = skip_before
        topic.groups[name] = group
        return group

    async def begin(self, topic: Topic, name: str, start: Start | None) -> tuple[Group, bool]:
        """The group for a new subscription, and whether its position must be stored before anyone relies on it."""
        check_name("group", name)
        await self._topics.load(topic)
        found = await self._by_time(topic, start)
        group = topic.groups.get(name)
        if group is None:
            return self._make(topic, name, found or self._by_place(topic, start)), True
        if found:
            await self._move(topic, group, found)
        elif start is not None and start.kind == "offset" and start.value:
            await self._move(topic, group, self._by_place(topic, start))
        else:
            return group, not all(position.stored for position in group.positions.values())
        return group, True

    async def _by_time(self, topic: Topic, start: Start | None) -> dict[int, tuple[int, int]]:
        """For a timestamp: cursor of each partition, and the time below which later events are skipped."""
        if start is None or start.kind != "timestamp":
            return {}
        ts = start.checked().value or 0
        found = {}
        for tail in topic.tails:
            cursor = await self._log.offset_at(topic.name, tail.partition, ts)
            found[tail.partition] = (cursor, ts)
        return found

    def _by_place(self, topic: Topic, start: Start | None) -> dict[int, tuple[int, int]]:
        if start is None:
            return {}
        if start.kind == "latest":
            return {tail.partition: (tail.offset + 1, 0) for tail in topic.tails}
        return {tail.partition: (max(1, start.value or 0), 0) for tail in topic.tails}

    async def _move(self, topic: Topic, group: Group, starts: dict[int, tuple[int, int]]) -> None:
        for partition, (cursor, skip_before) in starts.items():
            group.seek(group.positions[partition], cursor, skip_before)
            self._audit.note("seek", topic, partition, cursor, 1, group.name)
        self._delivery.wake(group)

    async def store(self, group: Group) -> None:
        """Make the group's positions durable now."""
        batch = Batch()
        stored = [
            (position, self._delivery.put_position(batch, group, position))
            for position in group.positions.values()
            if not position.burying
        ]
        try:
            await self._log.commit(batch)
        except MainspringError as error:
            raise Unavailable(f"the group could not be stored: {error.message}", remedy=error.remedy) from error
        for position, written in stored:
            position.durable = max(position.durable, written.settled)
            position.stored = True

    # -- from outside

    async def seek(self, topic: Topic, name: str, start: Start, partition: int | None) -> Group:
        group = self.get(topic, name)
        await self._topics.load(topic)
        if partition is not None and partition not in group.positions:
            raise BadOffset(f"topic {topic.name!r} has no partition {partition}")
        starts = await self._by_time(topic, start) or self._by_place(topic, start)
        if partition is not None:
            starts = {partition: starts[partition]}
        await self._move(topic, group, starts)
        await self.store(group)
        return group

    async def delete(self, topic: Topic, name: str) -> None:
        group = self.get(topic, name)
        if group.members:
            raise Conflict(
                f"group {name!r} of {topic.name!r} has {len(group.members)} members",
                remedy="stop its consumers first",
            )
        del topic.groups[name]
        group.deleted = True
        self._delivery.forget(group)
        batch = Batch()
        for partition in group.positions:
            batch.delete(SPACE, record_key(topic.name, name, partition))
        try:
            await self._log.commit(batch)
        except MainspringError as error:
            self.keep(topic, group)
            raise Unavailable(f"the group could not be deleted: {error.message}", remedy=error.remedy) from error

    def keep(self, topic: Topic, group: Group) -> Group:
        """The group of that name now; one that was deleted while somebody was about to join it is there again."""
        current = topic.groups.setdefault(group.name, group)
        if current is group and group.deleted:
            group.deleted = False
            self._delivery.run(self.store(group))
        return current

    def get(self, topic: Topic, name: str) -> Group:
        group = topic.groups.get(name)
        if group is None:
            raise UnknownGroup(f"topic {topic.name!r} has no group {name!r}", remedy="subscribe to make one")
        return group

    def infos(self, topic: str | None = None) -> list[GroupInfo]:
        """The groups of one topic, or of all. Raises UnknownTopic."""
        topics = self._topics.all() if topic is None else [self._topics.get(topic)]
        return [self.info(group) for each in topics for group in each.groups.values()]

    def info(self, group: Group) -> GroupInfo:
        return GroupInfo(
            topic=group.topic,
            group=group.name,
            members=len(group.members),
            partitions={position.partition: self._offsets(position) for position in group.positions.values()},
        )

    async def offsets(self, topic: Topic) -> list[PartitionOffsets]:
        await self._topics.load(topic)
        heads = {bounds.partition: bounds.head for bounds in await self._log.bounds(topic.name)}
        return [
            PartitionOffsets(
                partition=tail.partition,
                head=heads.get(tail.partition, tail.offset + 1),
                tail=tail.offset,
                groups={name: self._offsets(group.positions[tail.partition]) for name, group in topic.groups.items()},
            )
            for tail in topic.tails
        ]

    def _offsets(self, position: Position) -> GroupOffsets:
        committed = position.committed()
        return GroupOffsets(
            last_committed=committed,
            lag=max(0, position.tail.offset - committed),
            inflight=position.inflight(),
        )
