"""ZCL1 frames: a header of 24 bytes, then the payload; little-endian, the same layout both ways.

    magic "ZCL1" | u16 version | u16 op | u32 rid | u32 status | u32 reserved | u32 payload length

Reading is pulled, not pushed: `next_frame` looks at a buffer that may hold half a frame, one, or many, and says which.
Whether a wrong header ends the stream depends on one question only: is it known where the next frame begins? With the
magic, version and length of a frame in doubt it is not, and everything behind it would be guesswork. A reserved field
that is not zero is wrong too, but the frame has a known end, so it is refused alone.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

MAGIC = b"ZCL1"
VERSION = 1
HEADER = struct.Struct("<4sHHIIII")
MAX_FRAME = 65536  # header included; bounds what a guest can make a host buffer
MAX_PAYLOAD = MAX_FRAME - HEADER.size
ERROR, OK = 0, 1  # the status of a response

U32 = struct.Struct("<I")


class Zcl1Frame(NamedTuple):
    """One whole frame. `fault` says why it must be refused although its borders are known; it is empty otherwise."""

    op: int
    rid: int
    status: int
    payload: bytes
    end: int  # where the next frame begins in the buffer it was read from
    fault: str = ""


class Broken(NamedTuple):
    """Bytes that are no frame: nothing behind them can be trusted."""

    op: int
    rid: int
    fault: str


class ErrorText(NamedTuple):
    """The three texts of an error frame."""

    trace: str
    message: str
    detail: str


def next_frame(buffer: bytes | bytearray, start: int) -> Zcl1Frame | Broken | None:
    """The frame that begins at `start`; None while more bytes are needed.

    A wrong magic is known from its first wrong byte, however the bytes were cut into pieces; it is answered with op and
    rid 0, because in bytes that are not ZCL1 these fields mean nothing.
    """
    available = len(buffer) - start
    if available < HEADER.size:
        head = buffer[start : start + 4]
        return None if MAGIC.startswith(head) else Broken(0, 0, "bad magic")
    magic, version, op, rid, status, reserved, length = HEADER.unpack_from(buffer, start)
    if magic != MAGIC:
        return Broken(0, 0, "bad magic")
    if version != VERSION:
        return Broken(op, rid, "unsupported version")
    if length > MAX_PAYLOAD:
        return Broken(op, rid, "frame too large")
    if available < HEADER.size + length:
        return None
    begin = start + HEADER.size
    end = begin + length
    return Zcl1Frame(op, rid, status, bytes(buffer[begin:end]), end, "reserved must be 0" if reserved else "")


def encode(op: int, rid: int, payload: bytes = b"", status: int = ERROR) -> bytes:
    """A frame; requests carry status 0."""
    return HEADER.pack(MAGIC, VERSION, op, rid, status, 0, len(payload)) + payload


def encode_error(op: int, rid: int, trace: str, message: str) -> bytes:
    """An error response: three length-prefixed texts (where, what, detail), the last one empty."""
    return encode(op, rid, b"".join(map(text, (trace.encode(), message.encode(), b""))), ERROR)


def text(content: bytes) -> bytes:
    """Bytes with their length before them, as all payloads hold texts."""
    return U32.pack(len(content)) + content


def decode_error(payload: bytes) -> ErrorText:
    """The texts of an error payload. Bytes behind them are ignored: some hosts send four too many."""
    texts, at = [], 0
    for _ in range(3):
        size = int.from_bytes(payload[at : at + 4], "little")
        texts.append(payload[at + 4 : at + 4 + size].decode("utf-8", "replace"))
        at += 4 + size
    return ErrorText(*texts)
