"""Frames: what a node and an actor in another process send to each other, over a socket pair.

Each frame is four bytes of length and a msgpack array. Data stays JSON text inside, so that nothing is decoded only to
be passed on. One mail is under way at a time; `number` says which one a frame is about.
"""

from __future__ import annotations

import asyncio
import struct
from typing import Final

import msgspec

from mainspring.kernel.processes.locate import FunctionLocation
from mainspring.message import Retry

MAX_FRAME_BYTES: Final = 256 << 20  # far beyond any message; more is a broken stream
_LENGTH: Final = struct.Struct("!I")


class ProcessFrame(msgspec.Struct, array_like=True, omit_defaults=True):
    """One step of the conversation.

    From the node: `start` (text: the job as JSON), `mail` (raw: a message line; ask: which of several listeners),
    `post` (the same, for a low-level actor), `answer` (ask: of which ask). From the actor: `ready`, `broken`, `reply`,
    `refused`, `fault`, `crash`, `emit`, `ask`, `after`, `publish`, and from low-level ones `said` and `error`.
    """

    op: str
    number: int = 0
    kind: str = ""
    type: str = ""
    raw: bytes = b""
    text: str = ""
    ask: int = 0
    amount: float | None = None
    retry: Retry | None = None


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(ProcessFrame).decode


def packed(frame: ProcessFrame) -> bytes:
    body = _encode(frame)
    return _LENGTH.pack(len(body)) + body


async def next_frame(reader: asyncio.StreamReader) -> ProcessFrame | None:
    """The next frame; None when the other side is gone."""
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        if length > MAX_FRAME_BYTES:
            return None
        return _decode(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, ConnectionError, msgspec.DecodeError):
        return None


class Job(msgspec.Struct):
    """What an actor's process has to run: the functions of a declared capability, or one spawn."""

    capability: str
    path: list[str]
    handlers: list[tuple[str, str, FunctionLocation]] = []  # kind, type and where its function is
    spawn: FunctionLocation | None = None
    blob_folder: str = ""
    memory_mb: int | None = None
    logs: tuple[str, str] = ("info", "text")  # level and format of its lines
