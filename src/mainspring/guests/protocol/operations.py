"""The five operations of `sys/loop@v1`: their numbers, bits and byte layouts, for both sides of the wire."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from enum import IntEnum, IntFlag
from typing import NamedTuple

from mainspring.guests.protocol import zcl1


class Op(IntEnum):
    """Operations of the loop. HANDLE_END is only for the loop socket, where there is no other way to end a handle."""

    WATCH = 1
    UNWATCH = 2
    TIMER_ARM = 3
    TIMER_CANCEL = 4
    POLL = 5
    HANDLE_END = 1000


class Readiness(IntFlag):
    """What a watch asks for and a READY event reports."""

    READABLE = 0x1
    WRITABLE = 0x2
    HUP = 0x4
    ERROR = 0x8


READY, TIMER = 1, 2  # kinds of events
RELATIVE = 0x1  # the one flag of TIMER_ARM
MORE = 0x1  # the one flag of a POLL response
FOREVER = 0xFFFFFFFF  # the POLL timeout that never elapses
MAX_U64 = 2**64 - 1  # where deadlines saturate: some 584 years

LAYOUTS = {  # of the payloads of requests
    Op.WATCH: struct.Struct("<IIQI"),  # handle, events, watch id, flags
    Op.UNWATCH: struct.Struct("<Q"),  # watch id
    Op.TIMER_ARM: struct.Struct("<QQQI"),  # timer id, due, interval, flags
    Op.TIMER_CANCEL: struct.Struct("<Q"),  # timer id
    Op.POLL: struct.Struct("<II"),  # max events, timeout in ms
    Op.HANDLE_END: struct.Struct("<I"),  # handle
}
POLL_HEAD = struct.Struct("<IIII")  # version, flags, count, reserved
EVENT = struct.Struct("<IIIIQQ")  # kind, events, handle, reserved, id, data

POLL_OVERHEAD = zcl1.HEADER.size + POLL_HEAD.size
MAX_EVENTS = (zcl1.MAX_FRAME - POLL_OVERHEAD) // EVENT.size  # what one response frame can hold: 2046


class Event(NamedTuple):
    """One entry of a POLL response: READY (handle, events) or TIMER (data is the monotonic instant of delivery)."""

    kind: int
    events: int
    handle: int
    id: int
    data: int


class Poll(NamedTuple):
    """A POLL response. With `more` set, something was ready that did not fit."""

    events: list[Event]
    more: bool


def encode_poll(entries: Iterable[bytes], count: int, more: bool) -> bytes:
    """The payload of a POLL response from packed entries."""
    return POLL_HEAD.pack(1, MORE if more else 0, count, 0) + b"".join(entries)


def decode_poll(payload: bytes) -> Poll:
    """The content of a POLL response payload."""
    _, flags, count, _ = POLL_HEAD.unpack_from(payload)
    rows = EVENT.iter_unpack(payload[POLL_HEAD.size : POLL_HEAD.size + count * EVENT.size])
    events = [Event(kind, bits, handle, ident, data) for kind, bits, handle, _, ident, data in rows]
    return Poll(events, bool(flags & MORE))
