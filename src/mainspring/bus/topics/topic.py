"""A topic as the node keeps it in memory: its settings, tails, groups and counters.

Made for every stored topic at start, and for a new one when someone first names it. The offsets of its tails are not
loaded until someone needs them: publishing does not, so a topic that is only written to is never read.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from mainspring.bus.names import DEAD_LETTERS
from mainspring.bus.protocol import json_text
from mainspring.bus.publishing.rate_limit import TokenBucket, bucket
from mainspring.bus.schemas.upcasting import Upcaster
from mainspring.bus.topics.config import TopicConfig
from mainspring.bus.topics.tail import UNKNOWN, PartitionTail, TailBudget
from mainspring.log import ABSENT, Bounds

if TYPE_CHECKING:
    from mainspring.bus.groups.group import Group

SYSTEM: Final = "system."


class Topic:
    """One topic. `active` are the groups with members: the only ones a published event has to be shown to."""

    __slots__ = (
        "active",
        "audited",
        "bucket",
        "budget",
        "config",
        "delivered",
        "followers",
        "groups",
        "json",
        "loaded",
        "make_tail",
        "name",
        "published",
        "stored",
        "tails",
        "upcaster",
        "version",
    )

    def __init__(
        self,
        config: TopicConfig,
        budget: TailBudget,
        now_ms: int,
        *,
        stored: bool,
        make_tail: type[PartitionTail],
    ) -> None:
        self.name: str = config.topic
        self.json: bytes = json_text(config.topic)
        self.budget: TailBudget = budget
        self.stored: bool = stored
        self.version: int = ABSENT  # of its record; only kept where other nodes write it too
        self.make_tail: type[PartitionTail] = make_tail
        self.loaded: bool = False
        self.tails: list[PartitionTail] = []
        self.groups: dict[str, Group] = {}
        self.active: dict[Group, None] = {}
        self.followers: set[asyncio.Event] = set()
        self.published: int = 0
        self.delivered: int = 0
        self.bucket: TokenBucket | None = None
        self.upcaster: Upcaster | None = None
        self.configure(config, now_ms)

    def configure(self, config: TopicConfig, now_ms: int) -> None:
        """Take new settings. New partitions start at 1 for the groups that exist."""
        self.config: TopicConfig = config
        self.audited: bool = config.audit and not self.is_system
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

    def set_bounds(self, bounds: list[Bounds]) -> None:
        """The tails as the log has them; never older than what was published meanwhile."""
        for each in bounds:
            if each.partition < len(self.tails):
                tail = self.tails[each.partition]
                tail.offset = max(tail.offset, each.tail)
        for tail in self.tails:
            if tail.offset == UNKNOWN:
                tail.offset = 0
        self.loaded = True

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
