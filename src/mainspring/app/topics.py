"""What a program says about its topics and its pages: plain data, put into effect when the node boots.

A topic's settings belong to whoever runs the node as much as to the program. So the program changes what it says and
leaves the rest: access lists that were set by hand outlive every boot, and partitions only grow, whoever added them.
While an older and a newer program run side by side, the newer one decides about what both of them mention.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from mainspring.bus import Bus, TopicConfig
from mainspring.bus.topics import topic_from
from mainspring.cluster import DeclarationsInForce


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


def declared_topics(declared: Iterable[DeclaredTopic]) -> dict[str, dict[str, Any]]:
    """What a program says about topics as other nodes read it, by topic."""
    said: dict[str, dict[str, Any]] = {}
    for each in declared:
        said[each.topic] = {**said.get(each.topic, {}), **each.settings}
    return said


async def configure_topics(in_force: DeclarationsInForce, own: Iterable[DeclaredTopic], bus: Bus) -> None:
    """Create this program's topics, or change them where they differ from what is in force for them."""
    everything = in_force.of("topics")
    for topic in declared_topics(own):
        each = DeclaredTopic(topic, {key: value for said in everything[topic] for key, value in said.items()})
        state = bus.topics.open(each.topic)
        wanted = each.over(state.config)
        if not state.stored or wanted != state.config:
            await bus.put_topic(wanted)
