"""Inspect: a running kernel's actors, its open requests, what failed lately, what passed lately, and what caused what.

Everything here is read when somebody asks, from what the kernel keeps anyway, so being looked at costs a message
nothing. Payloads are never shown: headers, counts and the texts of the kernel's own errors are.

The exchange keeps the headers of the last messages it witnessed. From them the causation tree of any message can be
drawn: up to the first cause that is still among them, then down to everything that followed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Reversible
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from mainspring.errors import plain
from mainspring.message import Message, Metadata
from mainspring.telemetry import KeptError

if TYPE_CHECKING:
    from mainspring.kernel.kernel import Kernel
    from mainspring.kernel.supervisor import ActorSlot

Header = tuple[str, str, Metadata]  # kind, type and metadata of something that passed


class ActorView(msgspec.Struct, frozen=True):
    """One capability and its actor. `state` is running, restarting or unhealthy; `waiting` is mail not begun."""

    id: str
    description: str
    handles: list[str]
    subscribes: list[str]
    isolation: str
    durable: bool
    state: str
    restarts: int
    waiting: int
    open: int


class RequestView(msgspec.Struct, frozen=True):
    """A request without an answer. `since` is when its sender made it (epoch ms)."""

    id: str
    kind: str
    type: str
    capability: str
    since: int


class FaultView(msgspec.Struct, frozen=True):
    """An actor's fault: what it was doing, the error that its requester got, and the exception behind it."""

    id: str
    type: str
    at: int
    capability: str
    request: str
    message: str
    causation: str | None = None
    failure: KeptError | None = None


class HeaderView(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who a message was; its data is not kept."""

    id: str
    kind: str
    type: str
    timestamp: int
    correlation: str | None = None
    causation: str | None = None


class Inspector:
    """Looks at one kernel."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def actors(self) -> list[ActorView]:
        """Every capability with its actor, in the order of their registration."""
        open_by_slot: dict[ActorSlot, int] = {}
        for mail in self._kernel.exchange.pending:
            open_by_slot[mail.slot] = open_by_slot.get(mail.slot, 0) + 1
        return [_actor(slot, open_by_slot.get(slot, 0)) for slot in self._kernel.slots]

    def open_requests(self, limit: int) -> list[RequestView]:
        """Requests that wait for an answer, oldest first."""
        oldest_first = sorted(self._kernel.exchange.pending, key=lambda mail: mail.message.metadata.timestamp)
        return [
            RequestView(
                mail.message.metadata.id,
                mail.message.kind,
                mail.message.type,
                mail.slot.id,
                mail.message.metadata.timestamp,
            )
            for mail in oldest_first[:limit]
        ]

    def faults(self) -> list[FaultView]:
        """The latest faults of actors, newest first."""
        exchange = self._kernel.exchange
        return [_fault(error, exchange.failure_of(error)) for error in reversed(exchange.recent_faults)]

    def messages(
        self,
        *,
        limit: int,
        text: str = "",
        kind: str = "",
        before: str = "",
        visible: Callable[[str, str], bool] | None = None,
    ) -> list[HeaderView]:
        """Headers of messages that passed lately, newest first; `before` is the id of a message to go on behind.

        `visible` says which kinds and types are shown.
        """
        found = _matching(self._kernel.exchange.recent_headers, text.casefold(), kind, before)
        return list(islice((each for each in found if visible is None or visible(each.kind, each.type)), limit))


def _actor(slot: ActorSlot, open: int) -> ActorView:
    capability = slot.plan.capability
    return ActorView(
        slot.id,
        capability.description,
        slot.plan.handles,
        sorted(slot.plan.listeners),
        capability.isolation,
        capability.durable,
        "unhealthy" if slot.unhealthy else "restarting" if slot.actor is None else "running",
        slot.restarts,
        slot.waiting,
        open,
    )


def _fault(error: Message, failure: KeptError | None) -> FaultView:
    data, metadata = error.data, error.metadata
    return FaultView(
        metadata.id,
        error.type,
        metadata.timestamp,
        data.get("capabilityId", ""),
        data.get("requestType", ""),
        data.get("message", ""),
        metadata.causation,
        failure,
    )


def _matching(headers: Reversible[Header], text: str, kind: str, before: str) -> Iterator[HeaderView]:
    reached = not before
    for each_kind, type, metadata in reversed(headers):
        if not reached:
            reached = metadata.id == before
            continue
        if kind and each_kind != kind:
            continue
        if (
            text
            and text not in type.casefold()
            and text not in metadata.id
            and text not in (metadata.correlation or "")
        ):
            continue
        yield HeaderView(metadata.id, each_kind, type, metadata.timestamp, metadata.correlation, metadata.causation)


# --- what caused what --------------------------------------------------------------------------------------------


class CausationNode(msgspec.Struct, frozen=True, omit_defaults=True):
    """One message of a tree. `depth` is its distance from the root; a parent comes before its children."""

    id: str
    kind: str
    type: str
    timestamp: int
    depth: int
    causation: str | None = None
    correlation: str | None = None


def causation_tree(headers: Iterable[Header], id: str) -> list[CausationNode]:
    """The tree around the message `id`, root first, depth first; empty when it is not among them.

    Ids belong to connections, so two clients may have used the same one. The latest message of that id is meant.
    """
    by_id: dict[str, Header] = {}
    effects: dict[str, list[Header]] = defaultdict(list)
    for header in headers:
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
    tree: list[CausationNode] = []
    placed: set[str] = set()
    waiting = [(by_id[root], 0)]
    while waiting:
        (kind, type, metadata), depth = waiting.pop()
        if metadata.id in placed:
            continue
        placed.add(metadata.id)
        tree.append(
            CausationNode(metadata.id, kind, type, metadata.timestamp, depth, metadata.causation, metadata.correlation)
        )
        waiting += [(effect, depth + 1) for effect in reversed(effects.get(metadata.id, ()))]
    return tree


def draw_tree(tree: Iterable[CausationNode], marked: str = "") -> str:
    """The tree as text for people, one message per line; an arrow points at `marked`."""
    return "\n".join(
        plain(f"{'  ' * node.depth}{node.kind} {node.type}  {node.id}{'  <--' if node.id == marked else ''}")
        for node in tree
    )
