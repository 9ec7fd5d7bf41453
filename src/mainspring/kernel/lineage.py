"""Lineage: what caused what, of the messages that passed lately.

The exchange keeps the headers of the last messages it witnessed. From them the causation tree of any message can be
drawn: up to the first cause that is still known, then down to everything that followed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

import msgspec

from mainspring.message import Metadata
from mainspring.telemetry.log_lines import CORRELATION

CAUSATION: Final = "x-causation"  # header of an event: the id of what led to it


def lineage_headers(causation: str, correlation: str | None) -> dict[str, str]:
    """What an event carries into the log, so that its origin can be read there long after the message is forgotten."""
    return {CAUSATION: causation} if correlation is None else {CAUSATION: causation, CORRELATION: correlation}


class Node(msgspec.Struct, frozen=True, omit_defaults=True):
    """One message of a tree. `depth` is its distance from the root; a parent comes before its children."""

    id: str
    kind: str
    type: str
    timestamp: int
    depth: int
    causation: str | None = None
    correlation: str | None = None


def causation_tree(witnessed: Iterable[tuple[str, str, Metadata]], id: str) -> list[Node]:
    """The tree around the message `id`, root first, depth first; empty when it is not known.

    Ids belong to connections, so two clients may have used the same one. The latest message of that id is meant.
    """
    by_id: dict[str, tuple[str, str, Metadata]] = {}
    effects: dict[str, list[tuple[str, str, Metadata]]] = defaultdict(list)
    for header in witnessed:
        metadata = header[2]
        by_id[metadata.id] = header
        if metadata.causation is not None:
            effects[metadata.causation].append(header)
    if id not in by_id:
        return []
    root, seen = id, {id}
    while (parent := by_id[root][2].causation) is not None and parent in by_id and parent not in seen:
        root = parent
        seen.add(parent)
    tree: list[Node] = []
    drawn: set[str] = set()
    waiting = [(by_id[root], 0)]
    while waiting:
        (kind, type, metadata), depth = waiting.pop()
        if metadata.id in drawn:
            continue
        drawn.add(metadata.id)
        tree.append(Node(metadata.id, kind, type, metadata.timestamp, depth, metadata.causation, metadata.correlation))
        waiting += [(effect, depth + 1) for effect in reversed(effects.get(metadata.id, ()))]
    return tree


def drawn(tree: Iterable[Node], marked: str = "") -> str:
    """The tree as text for people, one message per line; `marked` is pointed at."""
    return "\n".join(
        f"{'  ' * node.depth}{node.kind} {node.type}  {node.id}{'  <--' if node.id == marked else ''}" for node in tree
    )
