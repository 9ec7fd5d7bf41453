"""`zi_ctl`: single frames a guest exchanges with its host, outside any handle.

Two operations exist: CAPS_LIST tells which capabilities there are, HANDLE_OP does something to a handle that is no read
and no write. What is no frame, or asks for anything else, is answered with a code and not with a frame.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from mainspring.guests.errors import Code
from mainspring.guests.handles import Attached, HandleTable
from mainspring.guests.protocol import zcl1

CAPS_LIST, HANDLE_OP = 1, 4
SHUT_DOWN_WRITING = 1  # the one HANDLE_OP

CAN_OPEN, MAY_BLOCK = 0x1, 0x4  # as the ABI's header publishes them; 0x2 means pure

_NO_METADATA = zcl1.U32.pack(0)
_HANDLE_OP = struct.Struct("<IIII")  # version, handle, op, reserved


class Listing(NamedTuple):
    """A capability as guests see it. `zi_cap_get` gives this; CAPS_LIST adds the length of its metadata."""

    kind: str
    name: str
    flags: int

    def encode(self) -> bytes:
        return zcl1.text(self.kind.encode()) + zcl1.text(self.name.encode()) + zcl1.U32.pack(self.flags)


LISTINGS = (  # sorted by kind and name; all as the origin's host lists them
    Listing("event", "bus", CAN_OPEN | MAY_BLOCK),
    Listing("sys", "info", CAN_OPEN | MAY_BLOCK),
    Listing("sys", "loop", CAN_OPEN | MAY_BLOCK),
)


def control(request: bytes, cap: int, handles: HandleTable) -> bytes | int:
    """The response frame of at most `cap` bytes, or a code. Bytes behind the request's frame are ignored."""
    frame = zcl1.next_frame(request, 0)
    if not isinstance(frame, zcl1.Zcl1Frame) or frame.fault:
        return Code.INVALID
    if frame.op == CAPS_LIST:
        entries = (listing.encode() + _NO_METADATA for listing in LISTINGS)
        payload = struct.pack("<II", 1, len(LISTINGS)) + b"".join(entries)
        response = zcl1.encode(frame.op, frame.rid, payload, zcl1.OK)
    elif frame.op == HANDLE_OP:
        fault = _handle_op(frame.payload, handles)
        if fault is None:
            response = zcl1.encode(frame.op, frame.rid, b"", zcl1.OK)
        else:
            response = zcl1.encode_error(frame.op, frame.rid, *fault)
    else:
        return Code.NOSYS
    return response if len(response) <= cap else Code.BOUNDS


def _handle_op(payload: bytes, handles: HandleTable) -> tuple[str, str] | None:
    """Where and why it failed, or None."""
    if len(payload) < _HANDLE_OP.size:
        return "t_ctl_bad_handle_op", "short payload"
    version, number, op, _ = _HANDLE_OP.unpack_from(payload)
    if version != 1:
        return "t_ctl_bad_handle_op", "bad version"
    entry = handles.get(number)
    if entry is None:
        return "t_ctl_bad_handle", "unknown handle"
    code = entry.shut_down_writing() if op == SHUT_DOWN_WRITING and isinstance(entry, Attached) else Code.NOSYS
    if code == Code.NOSYS:
        return "t_ctl_nosys", "handle op not supported"
    if code != Code.OK:
        return "t_ctl_handle_op_failed", f"handle op failed: {int(code)}"
    return None
