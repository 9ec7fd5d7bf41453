"""One subscription: a connection's share in a group.

The window counts events that were sent and are not settled, over all partitions. Credits are the connection's: once a
client has sent FLOW, every delivery to it costs one, and only FLOW gives more. A connection whose peer does not read is
paused; that is not the client's choice but the node's protection. There is room when all three say so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from mainspring.bus.access.access import is_reply_for
from mainspring.bus.groups.position import OpenEvent, Position
from mainspring.bus.protocol import REPLY_FOR, Filter, json_text
from mainspring.bus.topics.tail import ReadyEvent


class MemberOrigin(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who a member is, and since when (epoch ms). `program`: a consumer of the node's own program.

    `agent` is the name of the connection, proven by a token or only claimed; `address` is that of its machine.
    """

    agent: str = ""
    address: str = ""
    since: int = 0
    program: bool = False


UNKNOWN: Final = MemberOrigin()


class MemberView(MemberOrigin, frozen=True, omit_defaults=False, kw_only=True):
    """A member of a group. `node` is where it is connected; empty where there is only one node.

    `inflight` are the events it holds. Of several members at another node it is left out: what that node has is known
    of all of them together.
    """

    node: str = ""
    inflight: int | msgspec.UnsetType = msgspec.UNSET


class Gate:
    """What all subscriptions of one connection share."""

    __slots__ = ("credits", "paused")

    def __init__(self) -> None:
        self.credits: int | None = None  # None until the first FLOW
        self.paused: bool = False


class Member:
    """A live subscription. `send` takes one frame."""

    __slots__ = (
        "ack_each",
        "batch",
        "filter",
        "gate",
        "gone",
        "group_head",
        "held",
        "in_rotation",
        "inflight",
        "key_window",
        "keys",
        "origin",
        "retries",
        "send",
        "sticky",
        "unsent",
        "window",
    )

    def __init__(self, topic: str, group: str, gate: Gate, send: Callable[[bytes], None], *, pattern: str = "") -> None:
        """`pattern` is what was subscribed to, where that is not the topic; only MESSAGES frames say so."""
        self.gate: Gate = gate
        self.send: Callable[[bytes], None] = send
        self.window: int = 1
        self.ack_each: bool = False
        self.batch: int = 1
        self.sticky: bool = False
        self.key_window: int = 0  # events of one key at a time, where keys stick to members; 0: no limit
        self.filter: Filter | None = None
        self.held: dict[int, dict[int, OpenEvent]] = {}  # partition -> offset -> leased to this member
        self.inflight: int = 0
        self.retries: int = 0  # leases that are not first deliveries
        self.in_rotation: bool = False
        self.gone: bool = False
        self.keys: int = 0  # keys that stick to this member
        self.origin: MemberOrigin = UNKNOWN
        self.unsent: list[bytes] = []  # of a MESSAGES frame
        self.group_head: bytes = b'{"type":"MESSAGES","topic":%b,"group":%b,%b"messages":[' % (
            json_text(topic),
            json_text(group),
            b'"pattern":%b,' % json_text(pattern) if pattern else b"",
        )

    def view(self, node: str) -> MemberView:
        return MemberView(**msgspec.structs.asdict(self.origin), node=node, inflight=self.inflight)

    def has_room(self) -> bool:
        gate = self.gate
        return self.inflight < self.window and not gate.paused and (gate.credits is None or gate.credits > 0)

    def room(self) -> int:
        """How many events it could be given now, if its peer reads them."""
        gate = self.gate
        if gate.paused:
            return 0
        window = max(self.window - self.inflight, 0)
        return window if gate.credits is None else min(window, max(gate.credits, 0))

    def accepts(self, event: ReadyEvent) -> bool:
        return self.filter is None or accepts(self.filter, event)

    def deliver(self, position: Position, event: ReadyEvent, attempt: int) -> None:
        """Send the event, or keep it for the MESSAGES frame that `flush` sends."""
        body = event.envelope
        if attempt > 1:
            body = b'{"attempts":%d,%b' % (attempt - 1, body[1:])
        if self.batch == 1:
            self.send(b'%b%d,"attempt":%d,"envelope":%b}' % (position.head, event.offset, attempt, body))
            return
        self.unsent.append(
            b'{"partition":%d,"offset":%d,"attempt":%d,"envelope":%b}'
            % (position.partition, event.offset, attempt, body)
        )
        if len(self.unsent) >= self.batch:
            self.flush()

    def deliver_together(self, position: Position, events: list[ReadyEvent]) -> None:
        """`deliver` first attempts, not more than fit the MESSAGES frame that is being made."""
        head = b'{"partition":%d,"offset":' % position.partition
        self.unsent += [b'%b%d,"attempt":1,"envelope":%b}' % (head, event.offset, event.envelope) for event in events]
        if len(self.unsent) >= self.batch:
            self.flush()

    def flush(self) -> None:
        if self.unsent:
            self.send(b"%b%b]}" % (self.group_head, b",".join(self.unsent)))
            self.unsent.clear()


class CountingMember(Member):
    """One that is told how often a process ended that had begun with an event."""

    __slots__ = ()

    def deliver(self, position: Position, event: ReadyEvent, attempt: int) -> None:
        ended, _ = position.ends.get(event.offset, (0, 0))
        if not ended:
            super().deliver(position, event, attempt)
            return
        place = (position.partition, event.offset, attempt, ended)
        body = b'{"attempts":%d,%b' % (attempt - 1, event.envelope[1:])
        self.unsent.append(b'{"partition":%d,"offset":%d,"attempt":%d,"ended":%d,"envelope":%b}' % (*place, body))
        if len(self.unsent) >= self.batch:
            self.flush()

    def lost(self, positions: Mapping[int, Position]) -> None:
        """Its connection is gone, and nobody knows what became of what it held."""
        for partition, held in self.held.items():
            for event in held.values():
                positions[partition].note_lost(event)

    def said(self, position: Position, offset: int, *, begun: bool) -> None:
        """It has begun with an event, or refuses it: then its process has not ended with it."""
        event = self.held.get(position.partition, {}).get(offset)
        if event is not None:
            event.begun = begun
            if not begun:
                position.ends.pop(offset, None)


def accepts(wanted: Filter | None, event: ReadyEvent) -> bool:
    """Whether the filter lets the event pass; without one, everything does."""
    if wanted is None:
        return True
    if wanted.key is not None and wanted.key != event.key:
        return False
    if wanted.asker is not None and not is_reply_for(wanted.asker, event.header(REPLY_FOR)):
        return False
    return wanted.header is None or event.header(wanted.header[0]) == wanted.header[1]


def up_to(offset: int, held: dict[int, OpenEvent], *, in_order: bool) -> list[OpenEvent]:
    """What a cumulative acknowledgement settles. Where a member's events ascend, the search can stop early."""
    events = []
    for event in held.values():
        if event.offset > offset:
            if in_order:
                break
        elif not event.nacked or event.offset == offset:
            events.append(event)
    return events
