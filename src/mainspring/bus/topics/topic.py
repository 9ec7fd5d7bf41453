"""A topic as the node keeps it in memory: its settings, tails, groups and counters.

Made for every stored topic at start, and for a new one when someone first names it. The offsets of its tails are not
loaded until someone needs them: publishing does not, so a topic that is only written to is never read.
"""

from __future__ import annotations

import asyncio
from dataclasses import KW_ONLY, InitVar, dataclass, field
from typing import TYPE_CHECKING

from mainspring.bus.names import DEAD_LETTERS, SYSTEM
from mainspring.bus.protocol import json_text
from mainspring.bus.publishing.rate_limit import TokenBucket, bucket
from mainspring.bus.schemas.upcasting import Upcaster
from mainspring.bus.topics.config import TopicConfig
from mainspring.bus.topics.tail import UNKNOWN, PartitionTail, TailBudget
from mainspring.log import ABSENT, Bounds

if TYPE_CHECKING:
    from mainspring.bus.groups.group import Group


@dataclass(slots=True, eq=False)
class Topic:
    """One topic. `active` are the groups with members: the only ones a published event has to be shown to."""

    config: TopicConfig
    budget: TailBudget
    now_ms: InitVar[int]
    _: KW_ONLY
    stored: bool
    make_tail: type[PartitionTail]
    name: str = field(init=False)
    json: bytes = field(init=False)
    audited: bool = field(init=False)
    version: int = ABSENT  # of its record; only kept where other nodes write it too
    loaded: bool = False
    tails: list[PartitionTail] = field(default_factory=list)
    groups: dict[str, Group] = field(default_factory=dict)
    active: dict[Group, None] = field(default_factory=dict)
    followers: set[asyncio.Event] = field(default_factory=set)
    published: int = 0
    delivered: int = 0
    bucket: TokenBucket | None = None
    upcaster: Upcaster | None = None

    def __post_init__(self, now_ms: int) -> None:
        self.name = self.config.topic
        self.json = json_text(self.name)
        self.configure(self.config, now_ms)

    def configure(self, config: TopicConfig, now_ms: int) -> None:
        """Take new settings. New partitions start at 1 for the groups that exist."""
        self.config = config
        self.audited = config.audit and not self.is_system
        self.bucket = bucket(config.rate_per_second, config.rate_burst, now_ms)
        for partition in range(len(self.tails), config.partitions):
            tail = self.make_tail(self.name, partition, self.budget)
            tail.upcast = self.upcaster
            self.tails.append(tail)
            if self.loaded:
                tail.offset = 0
            for group in self.groups.values():
                group.add_position(tail)

    def read_with(self, upcaster: Upcaster) -> None:
        """Show old events in today's shape. What is in memory is forgotten: it has the shape of before."""
        self.upcaster = upcaster
        for tail in self.tails:
            tail.upcast = upcaster
            tail.forget()

    def has_expiring_events(self) -> None:
        """An event with a time limit is stored: from now on groups look at the time."""
        for tail in self.tails:
            tail.expiring = True

    def set_bounds(self, bounds: list[Bounds]) -> None:
        """The tails as the log has them; never older than what was published meanwhile."""
        for each in bounds:
            if each.partition < len(self.tails):
                tail = self.tails[each.partition]
                tail.offset = max(tail.offset, each.tail)
                tail.kept_from = each.head
        for tail in self.tails:
            if tail.offset == UNKNOWN:
                tail.offset = 0
        self.loaded = True

    def retire(self) -> None:
        """The topic is deleted. Whoever still has this object, and publishes, makes a new one with default settings."""
        self.stored, self.version, self.published, self.delivered = False, ABSENT, 0, 0
        del self.tails[1:]
        self.config = TopicConfig(topic=self.name)
        self.audited, self.bucket = self.config.audit and not self.is_system, None
        self.tails[0].forget()

    @property
    def exists(self) -> bool:
        """Whether someone created it, published to it or subscribed to it; not when it was only asked for."""
        return self.stored or bool(self.published or self.groups)

    @property
    def is_system(self) -> bool:
        return self.name.startswith(SYSTEM)

    @property
    def has_dead_letters(self) -> bool:
        """A topic of dead letters, or of the system, has none of its own: its events come again until acknowledged."""
        return not self.is_system and not self.name.endswith(DEAD_LETTERS)

    def deactivate(self, group: Group) -> None:
        """The group has no members any more. What no group waits for is not kept in memory."""
        self.active.pop(group, None)
        if not self.active:
            for tail in self.tails:
                tail.forget()
