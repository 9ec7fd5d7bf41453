"""What a program says about its topics and its pages: plain data, put into effect when the node boots.

A topic's settings belong to whoever runs the node as much as to the program. So the program changes what it says and
leaves the rest: access lists that were set by hand outlive every boot, and partitions only grow, whoever added them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from mainspring.bus import Bus, TopicConfig
from mainspring.bus.topics import topic_from


@dataclass(frozen=True, slots=True)
class DeclaredTopic:
    """A topic and those of its settings that the program cares about, by their names in `TopicConfig`."""

    topic: str
    settings: Mapping[str, Any]

    def over(self, known: TopicConfig) -> TopicConfig:
        """The settings as they shall be, given those there are. Raises BadFrame."""
        changed = msgspec.structs.replace(known, **self.settings)
        wanted = topic_from(msgspec.to_builtins(changed))  # a replaced member is not checked; one read from data is
        return msgspec.structs.replace(wanted, partitions=max(known.partitions, wanted.partitions))


@dataclass(frozen=True, slots=True)
class DeclaredPages:
    """A folder of files for browsers, and where the node serves them. `policy` None: the node's own."""

    path: str
    folder: Path
    policy: str | None = None


async def configure_topics(declared: Iterable[DeclaredTopic], bus: Bus) -> None:
    """Create the topics, or change them where they differ."""
    for each in declared:
        state = bus.topic_table.open(each.topic)
        wanted = each.over(state.config)
        if not state.stored or wanted != state.config:
            await bus.put_topic(wanted)
