"""Who is in a group on the other nodes: how many members, and what they want.

Each node says so in a record of its own, under its lease. The others are shown it, and use it for four things: an
event that no member here accepts is settled only if no remote member does either; a group in which keys stick to
members is worked on by one node per partition; a group with members anywhere is not deleted;
and where several nodes could take the same events, one tries first, so that the others need not write what is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import Enum
from hashlib import blake2b

from msgspec import UNSET
from msgspec.structs import asdict

from mainspring.bus.groups.group import RETRY_MS, Group
from mainspring.bus.groups.member import UNKNOWN, MemberView, accepts
from mainspring.bus.groups.shared.records import (
    MEMBERS,
    MOST_ORIGINS,
    PresenceRecord,
    decode_presence,
    encode,
    parts_of,
    presence_key,
)
from mainspring.bus.topics.tail import ReadyEvent
from mainspring.cluster import Cluster
from mainspring.errors import MainspringError
from mainspring.log import ABSENT, Batch, KeptRecord, Log, Receipt, Result
from mainspring.loop import Loop

logger: logging.Logger = logging.getLogger("mainspring.bus")

GroupName = tuple[str, str]  # topic, group


class Division(Enum):
    """Which nodes work on a partition of a group."""

    TOGETHER = "all nodes with members"
    LOCAL = "this node alone"
    REMOTE = "another node alone"


class Presence:
    """This node's members as it tells them to the others, and those of the others."""

    def __init__(self, log: Log, loop: Loop, cluster: Cluster, declared: Callable[[str, str], int]) -> None:
        """`declared` gives what this node's own consumer declares as a group's `max_attempts`; 0: nothing."""
        self._log = log
        self._loop = loop
        self._cluster = cluster
        self._declared = declared
        self._records: dict[GroupName, dict[int, tuple[int, PresenceRecord]]] = {}  # by epoch, with their versions
        self._own: dict[Group, PresenceRecord] = {}
        self._writing: set[Group] = set()
        self._closed = False

    # -- this node's members

    def changed(self, group: Group) -> None:
        """A member came, went, or wants something else."""
        if group not in self._writing and not self._closed:
            self._write(group)

    def _write(self, group: Group) -> None:
        record = self._record(group)
        former = self._own.get(group)
        if record == former or (former is None and not record.members):
            return
        self._writing.add(group)
        batch, key = Batch(), presence_key(group.topic.name, group.name, record.epoch)
        self._cluster.guard(batch)
        if record.members:
            batch.put(MEMBERS, key, encode(record))
        else:
            batch.delete(MEMBERS, key)

        def decided(result: Result) -> None:
            self._writing.discard(group)
            if isinstance(result, Receipt):
                self._own[group] = record
                self.changed(group)
            else:  # this node has a new epoch soon, or the log is there again
                self._loop.schedule(RETRY_MS, self.changed, group, ref=False)

        self._log.submit(batch, decided)

    def _record(self, group: Group) -> PresenceRecord:
        members = group.members
        filters = dict.fromkeys(member.filter for member in members)
        return PresenceRecord(
            topic=group.topic.name,
            group=group.name,
            epoch=self._cluster.epoch,
            members=len(members),
            sticky=any(member.sticky for member in members),
            filters=tuple(filters),
            max_attempts=self._declared(group.topic.name, group.name),
            room=sum(member.window for member in members),
            origins=tuple(member.origin for member in members[:MOST_ORIGINS]),
        )

    def on_fenced(self) -> None:
        """This node has a new epoch: say everything again."""
        groups, self._own = list(self._own), {}
        for group in groups:
            self.changed(group)

    async def leave(self) -> None:
        """The node stops: it has no members any more."""
        self._closed = True
        batch = Batch()
        self._cluster.guard(batch)
        for group, record in self._own.items():
            batch.delete(MEMBERS, presence_key(group.topic.name, group.name, record.epoch))
        if self._own:
            try:
                await self._log.commit(batch)
            except MainspringError as error:
                logger.warning("the others learn later that no member is here any more: %s", error.message)

    # -- the others'

    def on_changed(self, record: KeptRecord) -> GroupName:
        """A node's members changed; of which group."""
        topic, group, (epoch,) = parts_of(record.key)
        records = self._records.setdefault((topic, group), {})
        if record.version == ABSENT:
            records.pop(epoch, None)
        elif epoch not in records or records[epoch][0] < record.version:
            records[epoch] = (record.version, decode_presence(record.value))
        return (topic, group)

    def groups_of(self, epoch: int) -> list[GroupName]:
        """The groups a node has, or had, members in."""
        return [name for name, records in self._records.items() if epoch in records]

    def orphans(self) -> list[str]:
        """The keys of records of nodes that are gone."""
        return [
            presence_key(topic, group, epoch)
            for (topic, group), records in self._records.items()
            for epoch in records
            if not self._cluster.alive(epoch)
        ]

    def _others(self, group: Group) -> list[PresenceRecord]:
        """The members of other living nodes."""
        records = self._records.get((group.topic.name, group.name))
        if not records:
            return []
        own = self._cluster.epoch
        return [record for epoch, (_, record) in records.items() if epoch != own and self._cluster.alive(epoch)]

    def count(self, group: Group) -> int:
        """Members on all nodes."""
        return len(group.members) + sum(record.members for record in self._others(group))

    def members(self, group: Group, held: Callable[[int], int]) -> list[MemberView]:
        """Members on all nodes, those here first; `held` gives what the node of an epoch has."""
        views = [member.view(self._cluster.node) for member in group.members]
        names = {node.epoch: node.name for node in self._cluster.nodes()}
        for record in self._others(group):
            name, inflight = names.get(record.epoch, ""), held(record.epoch) if record.members == 1 else UNSET
            known = record.origins or (UNKNOWN,) * record.members  # an older version does not say who they are
            views += [MemberView(**asdict(origin), node=name, inflight=inflight) for origin in known]
        return views

    def accepted_remotely(self, group: Group, ready: ReadyEvent) -> bool:
        return any(accepts(wanted, ready) for record in self._others(group) for wanted in record.filters)

    def anyone_accepts(self, group: Group, ready: ReadyEvent) -> bool:
        """Whether a member on any node accepts the event."""
        return group.choice.anyone_accepts(ready) or self.accepted_remotely(group, ready)

    def division(self, group: Group, partition: int) -> Division:
        """Which nodes work on the partition.

        Only groups with sticky members are divided. With filters among them they are not: an event must reach a member
        that accepts it, wherever that is.
        """
        others = self._others(group)
        if not (group.choice.owners.active or any(record.sticky for record in others)):
            return Division.TOGETHER
        if any(member.filter is not None for member in group.members):
            return Division.TOGETHER
        if any(wanted is not None for record in others for wanted in record.filters):
            return Division.TOGETHER
        own = self._cluster.epoch
        nodes = sorted([*([own] if group.members else []), *(record.epoch for record in others)])
        return Division.LOCAL if nodes and nodes[partition % len(nodes)] == own else Division.REMOTE

    def ahead(self, group: Group, version: int, held: Callable[[int], int]) -> int:
        """How many other nodes should try before this one to take what is there at this version of the shared record.

        All nodes come to the same order, another one for each version. Only nodes count that have room for more, as far
        as the log shows: `held` gives what the node of an epoch has. With filters among the members there is no order:
        who is first may want none of it.
        """
        if group.choice.selective:
            return 0
        own, ahead = None, 0
        for record in self._others(group):
            if record.filters != (None,):
                return 0
            if not record.room or held(record.epoch) < record.room:
                own = own or _lot(self._cluster.epoch, version)
                ahead += _lot(record.epoch, version) < own
        return ahead

    def max_attempts(self, topic: str, group: str) -> int:
        """What consumers of living nodes declare."""
        records = self._records.get((topic, group), {})
        return max((r.max_attempts for epoch, (_, r) in records.items() if self._cluster.alive(epoch)), default=0)


def _lot(epoch: int, version: int) -> bytes:
    return blake2b(b"%d %d" % (epoch, version), digest_size=8).digest()
