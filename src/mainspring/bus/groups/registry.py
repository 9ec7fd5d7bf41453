"""All groups: where they start, where they are moved to, and how they are listed.

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

A group belongs to the agent whose token made it (`OWNERS`, a record of its own), until it is deleted: others need a
right on it by name. One that was made where nothing proved who made it belongs to the first who joins it with a token.

A group may be made with a time to live (`TTLS`, a record of its own, stored before the group): it goes when it had no
member on any node for so long. A restart of the node counts as a use. A group that was made without one is data and
never gets one.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from contextlib import suppress

from mainspring.bus.access.access import NO_OWNER, PROGRAM, Caller
from mainspring.bus.audit import Audit
from mainspring.bus.errors import (
    BadOffset,
    BusError,
    Conflict,
    Forbidden,
    LimitReached,
    RateLimited,
    Unavailable,
    UnknownGroup,
)
from mainspring.bus.groups.delivery import Delivery
from mainspring.bus.groups.group import MAX_OPEN, Group
from mainspring.bus.groups.member import MemberView
from mainspring.bus.groups.position import SPACE, Position, decode_position
from mainspring.bus.groups.supply import Starts, Supply
from mainspring.bus.names import SEPARATOR, check_name
from mainspring.bus.protocol import Start
from mainspring.bus.quotas import UNLIMITED, Quota
from mainspring.bus.results import GroupInfo, GroupOffsets, PartitionOffsets
from mainspring.bus.topics.registry import TopicRegistry
from mainspring.bus.topics.topic import Topic
from mainspring.cluster import Role
from mainspring.errors import MainspringError
from mainspring.log import ABSENT, Batch, DamagedEvent, KeptRecord, Log, Refused
from mainspring.loop import Loop

logger: logging.Logger = logging.getLogger("mainspring.bus")

OWNERS = "group_owners"
TTLS = "group_ttls"


class GroupRegistry:
    """Makes, finds, moves and deletes groups. They are kept with their topics (`Topic.groups`)."""

    def __init__(
        self, log: Log, loop: Loop, topics: TopicRegistry, delivery: Delivery, supply: Supply, audit: Audit, role: Role
    ) -> None:
        """`role`: the node that has it deletes the groups whose time is over."""
        self._log = log
        self._loop = loop
        self._role = role
        self._topics = topics
        self._delivery = delivery
        self._supply = supply
        self._audit = audit
        self._owners: dict[str, str] = {}  # agents by topic and group
        self._ttls: dict[str, int] = {}  # ms, by topic and group
        self._unused_since: dict[str, int] = {}  # of those, the ones without a member
        self._makers: dict[Group, tuple[Quota, int]] = {}  # in whose quota a group counts, and with how many positions
        self._used_ms: dict[tuple[str, str], int] = {}  # when a group was last seen with a member; epoch ms
        self.has_consumers: bool = False  # functions of this node's own program get events

    async def start(self) -> None:
        """Bring back every group as it was stored."""
        async for record in self._log.scan(OWNERS):
            self._owners[record.key] = record.value.decode()
        async for record in self._log.scan(TTLS):
            self._ttls[record.key] = int(record.value)
        await self._supply.load(self)
        for key in self._ttls:
            self._watch(key)

    # -- finding and making

    def all(self) -> list[Group]:
        return [group for topic in self._topics.all() for group in topic.groups.values()]

    def is_in_process(self, group: Group) -> bool:
        """Whether a function of this node's own program gets its events."""
        return self._topics.declared(group.topic.name, group.name).in_process

    def get(self, topic: str, name: str) -> Group:
        """The group. Raises UnknownTopic and UnknownGroup."""
        group = self._topics.get(topic).groups.get(name)
        if group is None:
            raise UnknownGroup(f"topic {topic!r} has no group {name!r}", remedy="subscribe to make one")
        return group

    def find(self, topic_name: str, name: str) -> Group | None:
        topic = self._topics.find(topic_name)
        return None if topic is None else topic.groups.get(name)

    def find_or_make(self, topic_name: str, name: str) -> Group:
        """A group that is in the log."""
        topic = self._topics.find_or_add(topic_name)
        return topic.groups.get(name) or self._make(topic, name, {})

    def _make(self, topic: Topic, name: str, starts: Starts) -> Group:
        group = Group(topic, name, self._delivery, self._supply)
        self._topics.apply(topic, group)
        for tail in topic.tails:
            cursor, skip_before = starts.get(tail.partition, (1, 0))
            group.add_position(tail, cursor).skip_before = skip_before
        topic.groups[name] = group
        return group

    async def load_topics(self) -> None:
        """Make sure that the tails of all topics with groups are loaded."""
        for topic in self._topics.all():
            if topic.groups:
                await self._topics.load(topic)

    def remove(self, group: Group) -> None:
        """The group is deleted. Its records are the supply's business."""
        del group.topic.groups[group.name]
        group.deleted = True
        self._delivery.forget(group)
        if group in self._makers:
            quota, positions = self._makers.pop(group)
            quota.give_back("groups")
            quota.give_back("positions", positions)

    def keep(self, group: Group) -> Group:
        """The group of that name now; one that was deleted while a member was about to join it is there again."""
        current = group.topic.groups.setdefault(group.name, group)
        if current is group and group.deleted:
            group.deleted = False
            self._delivery.run(self.store(group))
        return current

    # -- whose a group is

    def owner_of(self, topic: str, name: str) -> str | None:
        """The agent a group belongs to, PROGRAM or NO_OWNER; None: there is no such group."""
        owner = self._owners.get(_owner_key(topic, name))
        if owner is not None:
            return owner
        group = self.find(topic, name)
        if group is None:
            return None
        return PROGRAM if self.is_in_process(group) else NO_OWNER

    async def claim(self, group: Group, caller: Caller) -> None:
        """The caller joins: a group that is new, or nobody's, is its agent's. Raises Forbidden: another was faster."""
        assert caller.scopes is not None
        key, may_use_any = _owner_key(group.topic.name, group.name), caller.scopes.allow("group", group.name)
        is_new = not any(position.stored for position in group.positions.values())
        if self.owner_of(group.topic.name, group.name) != NO_OWNER or (may_use_any and not is_new):
            return
        batch = Batch()
        batch.put(OWNERS, key, (caller.agent or "").encode(), expect=ABSENT)
        self._owners[key] = caller.agent or ""  # at once: it may delete the group before this is stored
        try:
            await self._log.commit(batch)
        except Refused:
            record = await self._log.get(OWNERS, key)
            if record is not None:
                self._owners[key] = record.value.decode()
            if record is not None and record.value.decode() != caller.agent and not may_use_any:
                text = f"the group {group.name!r} belongs to somebody else"
                raise Forbidden(text, remedy="use a group of your own") from None
        except MainspringError as error:
            self._owners.pop(key, None)
            raise Unavailable(f"the group could not be stored: {error.message}", remedy=error.remedy) from error

    def on_owner_changed(self, record: KeptRecord) -> None:
        """A group got an owner or lost it, here or on another node."""
        if record.version == ABSENT:
            self._owners.pop(record.key, None)
        else:
            self._owners[record.key] = record.value.decode()

    async def _forget_owner(self, topic: str, name: str) -> None:
        """And the time to live."""
        key = _owner_key(topic, name)
        if key in self._owners or key in self._ttls:
            batch = Batch()
            batch.delete(OWNERS, key)
            batch.delete(TTLS, key)
            await self._log.commit(batch)
            self._owners.pop(key, None)
            self._ttls.pop(key, None)
            self._unused_since.pop(key, None)

    # -- groups that go by themselves

    def ttl_of(self, group: Group) -> int:
        """After how many ms without a member the group goes; 0: it stays."""
        return self._ttls.get(_owner_key(group.topic.name, group.name), 0)

    async def set_ttl(self, group: Group, ttl_ms: int, *, again: bool = False) -> None:
        """Let a new group go when it had no member for so long; one that stays is left as it is.

        `again`: it was made with a time to live, and was deleted while a member was about to join it.
        """
        key = _owner_key(group.topic.name, group.name)
        is_new = again or not any(position.stored for position in group.positions.values())
        if self._ttls.get(key) == ttl_ms or (key not in self._ttls and not is_new):
            return
        batch = Batch()
        batch.put(TTLS, key, b"%d" % ttl_ms)
        try:
            await self._log.commit(batch)
        except MainspringError as error:
            raise Unavailable(f"the group could not be stored: {error.message}", remedy=error.remedy) from error
        self._ttls[key] = ttl_ms
        self._watch(key)

    def on_ttl_changed(self, record: KeptRecord) -> None:
        """A group got a time to live, or is gone, here or on another node."""
        if record.version == ABSENT:
            self._ttls.pop(record.key, None)
            self._unused_since.pop(record.key, None)
        else:
            self._ttls[record.key] = int(record.value)
            self._watch(record.key)

    def on_members_changed(self, group: Group) -> None:
        """Members of a group came or went, here or on another node."""
        if self._ttls:
            key = _owner_key(group.topic.name, group.name)
            if key in self._ttls:
                self._watch(key)

    def _watch(self, key: str) -> None:
        group = self.find(*key.split(SEPARATOR))
        if group is not None and self._supply.member_count(group):
            self._unused_since.pop(key, None)
        elif key not in self._unused_since:
            self._unused_since[key] = self._loop.clock.now_ms()
            self._loop.schedule(self._ttls[key], self._begin_expiry, None, ref=False)

    def _begin_expiry(self, _: None) -> None:
        if self._role.held and not self._delivery.closed:
            self._delivery.run(self.end_unused())

    async def end_unused(self) -> None:
        """Delete the groups that had no member for their time to live."""
        now = self._loop.clock.now_ms()
        for key, since in list(self._unused_since.items()):
            if key not in self._ttls or now - since < self._ttls[key]:
                continue
            topic, name = key.split(SEPARATOR)
            try:
                if self.find(topic, name) is None:  # its subscriber was gone before it was stored
                    await self._forget_owner(topic, name)
                else:
                    await self.delete(topic, name)
                    self._audit.did("deleted", None, f"group {name}", topic=topic, reason="its time to live is over")
            except (Conflict, UnknownGroup):  # somebody has joined, or deleted it
                self._unused_since.pop(key, None)
            except MainspringError as error:  # the next round tries again
                logger.warning("group %r of %r, whose time is over, could not be deleted: %s", name, topic, error)

    # -- where a group starts and goes

    async def begin(self, topic: Topic, name: str, start: Start | None, quota: Quota = UNLIMITED) -> tuple[Group, bool]:
        """The group for a new subscription, and whether its position must be stored before anyone relies on it.

        A new one counts in the quota of who subscribes. Raises RateLimited, and LimitReached for a topic with many.
        """
        check_name("group", name)
        await self._topics.load(topic)
        starts = await self._by_time(topic, start)
        group = topic.groups.get(name)
        if group is None:
            if (len(topic.groups) + 1) * len(topic.tails) > self._topics.max_positions:
                raise LimitReached(
                    f"topic {topic.name!r} has {len(topic.groups)} groups, as many as it may",
                    remedy="delete groups that nobody needs, or raise max_positions",
                )
            positions = len(topic.tails)
            quota.take("groups")
            try:
                quota.take("positions", positions)
            except RateLimited:
                quota.give_back("groups")
                raise
            group = self._make(topic, name, starts or self._by_place(topic, start))
            self._makers[group] = quota, positions
            return group, True
        if starts:
            await self._move(group, starts)
        elif start is not None and start.kind == "offset" and start.value:
            await self._move(group, self._by_place(topic, start))
        else:
            return group, not all(position.stored for position in group.positions.values())
        return group, True

    async def _by_time(self, topic: Topic, start: Start | None) -> dict[int, tuple[int, int]]:
        """For a timestamp: cursor of each partition, and the time below which later events are skipped."""
        if start is None or start.kind != "timestamp":
            return {}
        ts = start.checked().value or 0
        return {tail.partition: (await self._log.offset_at(topic.name, tail.partition, ts), ts) for tail in topic.tails}

    def _by_place(self, topic: Topic, start: Start | None) -> dict[int, tuple[int, int]]:
        if start is None:
            return {}
        if start.kind == "latest":
            return {tail.partition: (tail.offset + 1, 0) for tail in topic.tails}
        return {tail.partition: (max(1, start.value or 0), 0) for tail in topic.tails}

    async def _move(self, group: Group, starts: Starts) -> None:
        for partition, (cursor, _) in starts.items():
            self._audit.note("seek", group.topic, partition, cursor, 1, group.name)
        await _or_unavailable("moved", self._supply.move(group, starts))
        self._delivery.wake(group)

    async def store(self, group: Group) -> None:
        """Make sure that the group is durable where it stands."""
        await _or_unavailable("stored", self._supply.store_group(group))

    async def seek(self, topic_name: str, name: str, start: Start, *, partition: int | None = None) -> GroupInfo:
        """Move a group (all partitions, or one); what it held is given back. Raises UnknownGroup."""
        start.checked()
        group = self.get(topic_name, name)
        topic = group.topic
        await self._topics.load(topic)
        if partition is not None and partition not in group.positions:
            raise BadOffset(f"topic {topic.name!r} has no partition {partition}")
        starts = await self._by_time(topic, start) or self._by_place(topic, start)
        if partition is not None:
            starts = {partition: starts[partition]}
        await self._move(group, starts)
        await self.store(group)
        return self.info(group)

    async def delete(self, topic: str, name: str) -> None:
        """Delete a group. Raises UnknownGroup, and Conflict while it has members."""
        group = self.get(topic, name)
        self._check_unused(group)
        await _or_unavailable("deleted", self._supply.delete(group))
        await _or_unavailable("deleted", self._forget_owner(topic, name))

    async def expire(self, wall_ms: int, unused_ms: int) -> None:
        """Delete groups that nobody has used for so long: no member, and no position written.

        When a group last had a member is known since this node runs, so no group expires sooner than that.
        """
        moved: dict[tuple[str, str], int] = {}
        async for record in self._log.scan(SPACE):
            position = decode_position(record.value)
            place = (position.topic, position.group)
            moved[place] = max(position.updated_ts, moved.get(place, 0))
        for place, written_ms in moved.items():
            group = self.find(*place)
            used_ms = max(written_ms, self._used_ms.setdefault(place, wall_ms))
            if group is None or self.is_in_process(group) or self._supply.member_count(group):
                self._used_ms[place] = wall_ms
            elif wall_ms - used_ms >= unused_ms:
                del self._used_ms[place]
                with suppress(Conflict, UnknownGroup):  # somebody has joined, or deleted it
                    await self.delete(*place)
                    self._audit.did("deleted", None, place[1], topic=place[0], reason="nobody used the group")

    def check_unused(self, topic: Topic) -> None:
        """Raise Conflict while a group of the topic has members."""
        for group in topic.groups.values():
            self._check_unused(group)

    def _check_unused(self, group: Group) -> None:
        members = self._supply.member_count(group)
        if members:
            has = "a member" if members == 1 else f"{members} members"
            raise Conflict(f"group {group.name!r} of {group.topic.name!r} has {has}", remedy="stop its consumers first")

    # -- looking at groups

    def infos(self, topic: str | None = None) -> list[GroupInfo]:
        """The groups of one topic, or of all. Raises UnknownTopic."""
        groups = self.all() if topic is None else self._topics.get(topic).groups.values()
        return [self.info(group) for group in groups]

    def info(self, group: Group) -> GroupInfo:
        return GroupInfo(
            topic=group.topic.name,
            group=group.name,
            members=self._supply.member_count(group),
            partitions={position.partition: self._offsets(position) for position in group.positions.values()},
            ttl_ms=self.ttl_of(group),
        )

    def members(self, topic: str, name: str) -> list[MemberView]:
        """Who is in a group, on all nodes. Raises UnknownTopic and UnknownGroup."""
        return self._supply.members(self.get(topic, name))

    async def offsets(self, topic_name: str) -> list[PartitionOffsets]:
        """Head, tail and groups of each partition, ascending. Raises UnknownTopic."""
        topic = self._topics.get(topic_name)
        await self._topics.load(topic)
        heads = {bounds.partition: bounds.head for bounds in await self._log.bounds(topic.name)}
        for tail in topic.tails:
            tail.kept_from = heads.get(tail.partition, tail.offset + 1)
        return [
            PartitionOffsets(
                partition=tail.partition,
                head=tail.kept_from,
                tail=tail.offset,
                groups={name: self._offsets(group.positions[tail.partition]) for name, group in topic.groups.items()},
            )
            for tail in topic.tails
        ]

    async def oldest_unsettled(self, info: GroupInfo) -> int | None:
        """When the oldest event was stored that the group has not settled: epoch ms; None where nothing waits."""
        found: list[int] = []
        for partition, place in info.partitions.items():
            if place.lag:
                try:
                    outlines = await self._log.outline(info.topic, partition, place.last_committed + 1, 1)
                except DamagedEvent:
                    continue
                found += [each.ts for each in outlines]
        return min(found, default=None)

    def is_waiting(self, topic: str, name: str, *, busy: bool) -> bool:
        """Whether the group has events that nobody works on, though they could be; `busy`: or that somebody works on.

        What is delayed until later does not count.
        """
        group = self.find(topic, name)
        if group is None:
            return False
        if any(position.cursor <= position.tail.offset for position in group.positions.values()):
            return True
        states = {each.state for each in group.leases(self._loop.clock, MAX_OPEN)}
        return bool(states - ({"delayed"} if busy else {"delayed", "leased"}))

    async def unsettled(self, topic_name: str) -> str:
        """A sentence about a group of the topic that has events to settle; "" when none has."""
        if self._topics.find(topic_name) is None:
            return ""
        for partition in await self.offsets(topic_name):
            for name, each in partition.groups.items():
                if each.lag:
                    return f"group {name!r} has {each.lag} events to settle"
        return ""

    def _offsets(self, position: Position) -> GroupOffsets:
        committed, tail = position.committed(), position.tail
        return GroupOffsets(
            last_committed=committed,
            lag=max(0, tail.offset - max(committed, tail.kept_from - 1)),  # what is gone can no longer be settled
            inflight=position.inflight() + self._supply.remote_inflight(position),
        )


def _owner_key(topic: str, name: str) -> str:
    return f"{topic}{SEPARATOR}{name}"


async def _or_unavailable(done: str, work: Awaitable[None]) -> None:
    try:
        await work
    except BusError:
        raise
    except MainspringError as error:
        raise Unavailable(f"the group could not be {done}: {error.message}", remedy=error.remedy) from error
