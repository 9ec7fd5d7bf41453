"""Looking at a running kernel: its actors, what is asked and not answered, what failed lately, what passed lately.

Everything here is read when somebody asks, from what the kernel keeps anyway, so being looked at costs a message
nothing. Payloads are never shown: headers, counts and the texts of the kernel's own errors are.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from mainspring.kernel.supervisor import Slot

if TYPE_CHECKING:
    from mainspring.kernel.kernel import Kernel


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
    """An actor's fault: what it was doing, and what the kernel told whoever asked."""

    id: str
    type: str
    at: int
    capability: str
    request: str
    message: str
    causation: str | None = None


class HeaderView(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who a message was; its data is not kept."""

    id: str
    kind: str
    type: str
    timestamp: int
    correlation: str | None = None
    causation: str | None = None


def actors(kernel: Kernel) -> list[ActorView]:
    """Every capability with its actor, in the order of their registration."""
    open_by_slot: dict[Slot, int] = {}
    for mail in kernel.exchange.pending:
        open_by_slot[mail.slot] = open_by_slot.get(mail.slot, 0) + 1
    return [_actor(slot, open_by_slot.get(slot, 0)) for slot in kernel.slots]


def _actor(slot: Slot, open: int) -> ActorView:
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


def open_requests(kernel: Kernel, limit: int) -> list[RequestView]:
    """What waits for an answer, oldest first."""
    found = sorted(kernel.exchange.pending, key=lambda mail: mail.message.metadata.timestamp)
    return [
        RequestView(
            mail.message.metadata.id,
            mail.message.kind,
            mail.message.type,
            mail.slot.id,
            mail.message.metadata.timestamp,
        )
        for mail in found[:limit]
    ]


def faults(kernel: Kernel) -> list[FaultView]:
    """The latest faults of actors, newest first."""
    return [_fault(error.data, error.metadata, error.type) for error in reversed(kernel.exchange.faults_lately)]


def _fault(data: dict[str, Any], metadata: Any, type: str) -> FaultView:
    return FaultView(
        metadata.id,
        type,
        metadata.timestamp,
        data.get("capabilityId", ""),
        data.get("requestType", ""),
        data.get("message", ""),
        metadata.causation,
    )


def passed(kernel: Kernel, *, limit: int, text: str = "", kind: str = "", before: str = "") -> list[HeaderView]:
    """Headers of messages that passed lately, newest first; `before` is the id of a message to go on behind."""
    return list(islice(_matching(kernel, text.casefold(), kind, before), limit))


def _matching(kernel: Kernel, text: str, kind: str, before: str) -> Iterator[HeaderView]:
    reached = not before
    for said, type, metadata in reversed(kernel.exchange.lineage):
        if not reached:
            reached = metadata.id == before
            continue
        if kind and said != kind:
            continue
        if (
            text
            and text not in type.casefold()
            and text not in metadata.id
            and text not in (metadata.correlation or "")
        ):
            continue
        yield HeaderView(metadata.id, said, type, metadata.timestamp, metadata.correlation, metadata.causation)
