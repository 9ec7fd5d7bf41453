"""Who is in a group on the other nodes: how many members, and what they want.

Each node says so in a record of its own, under its lease. The others hear of it, and use it for three things: an event
that nobody here accepts is settled only if nobody elsewhere does either; a group in which keys stick to members is
worked on by one node per partition; and a group with members anywhere is not deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from mainspring.bus.groups.group import RETRY_MS, Group
from mainspring.bus.groups.member import accepts
from mainspring.bus.groups.shared.records import (
    MEMBERS,
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

Name = tuple[str, str]  # topic, group


class Presence:
    """This node's members told to the others, and theirs as they tell them."""

    def __init__(self, log: Log, loop: Loop, cluster: Cluster, said: Callable[[str, str], int]) -> None:
        """`said` gives what this node's own consumer says about a group's `max_attempts`; 0: nothing."""
        self._log = log
        self._loop = loop
        self._cluster = cluster
        self._said = said
        self._known: dict[Name, dict[int, tuple[int, PresenceRecord]]] = {}
        self._own: dict[Group, PresenceRecord] = {}
        self._writing: set[Group] = set()
        self._closed = False

    @property
    def epoch(self) -> int:
        return self._cluster.epoch

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
        batch, key = Batch(), presence_key(group.topic, group.name, record.epoch)
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
            topic=group.topic,
            group=group.name,
            epoch=self._cluster.epoch,
            members=len(members),
            sticky=any(member.sticky for member in members),
            filters=tuple(filters),
            max_attempts=self._said(group.topic, group.name),
        )

    def fenced(self) -> None:
        """This node has a new epoch: say everything again."""
        groups, self._own = list(self._own), {}
        for group in groups:
            self.changed(group)

    async def leave(self) -> None:
        """The node stops: nobody is here any more."""
        self._closed = True
        batch = Batch()
        self._cluster.guard(batch)
        for group, record in self._own.items():
            batch.delete(MEMBERS, presence_key(group.topic, group.name, record.epoch))
        if self._own:
            try:
                await self._log.commit(batch)
            except MainspringError as error:
                logger.warning("the others learn later that no member is here any more: %s", error.message)

    # -- the others'

    def heard(self, record: KeptRecord) -> Name | None:
        """Someone's members changed; of which group."""
        topic, group, epoch = parts_of(record.key)
        known = self._known.setdefault((topic, group), {})
        if record.version == ABSENT:
            known.pop(epoch, None)
        elif epoch not in known or known[epoch][0] < record.version:
            known[epoch] = (record.version, decode_presence(record.value))
        return (topic, group)

    def groups_of(self, epoch: int) -> list[Name]:
        """The groups a node has, or had, members in."""
        return [name for name, known in self._known.items() if epoch in known]

    def left_by_the_dead(self) -> list[str]:
        """The keys of what nodes that are gone have said."""
        return [
            presence_key(topic, group, epoch)
            for (topic, group), known in self._known.items()
            for epoch in known
            if not self._cluster.alive(epoch)
        ]

    def others(self, group: Group) -> list[PresenceRecord]:
        """The members of other living nodes."""
        known = self._known.get((group.topic, group.name))
        if not known:
            return []
        own = self._cluster.epoch
        return [record for epoch, (_, record) in known.items() if epoch != own and self._cluster.alive(epoch)]

    def count(self, group: Group) -> int:
        """Members on all nodes."""
        return len(group.members) + sum(record.members for record in self.others(group))

    def someone_else_accepts(self, group: Group, ready: ReadyEvent) -> bool:
        return any(accepts(wanted, ready) for record in self.others(group) for wanted in record.filters)

    def may_take(self, group: Group, partition: int, sticky: bool) -> bool | None:
        """Whether this node works on the partition alone (True) or not at all (False); None: together with others.

        Only groups with sticky members are divided. With filters among them they are not: an event must reach whoever
        accepts it, wherever that is.
        """
        others = self.others(group)
        if not (sticky or any(record.sticky for record in others)):
            return None
        if any(member.filter is not None for member in group.members):
            return None
        if any(wanted is not None for record in others for wanted in record.filters):
            return None
        here = [self._cluster.epoch] if group.members else []
        nodes = sorted([*here, *(record.epoch for record in others)])
        return bool(here) and nodes[partition % len(nodes)] == self._cluster.epoch

    def max_attempts(self, topic: str, group: str) -> int:
        """What consumers on other nodes say."""
        known = self._known.get((topic, group), {})
        said = [record.max_attempts for epoch, (_, record) in known.items() if self._cluster.alive(epoch)]
        return max(said, default=0)
