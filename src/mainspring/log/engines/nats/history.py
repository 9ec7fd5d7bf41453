"""Which history of the log this node has seen, and whether it is the one of the servers and of the other nodes.

A server that loses power may come back with less than it had acknowledged. If somebody writes before a node looks, the
stream is as long as the node knows it, and holds something else. So length says nothing: messages are compared.

- A message's **mark** says which message it is: its number in the stream, its time, who wrote it. Whenever the
  connection or the consumer is new, the mark of the last message received is compared with the server's message.
- A **digest** runs over the marks of all messages applied, and over what each came to (offsets and versions). Every
  message carries the digest its writer had at the last message it had applied. A node that has another digest for
  that message and a writer who has not seen the same history, or two nodes that made something else of it, are found
  out with the next message that either writes.

The digest begins anew every `RESTART` messages, so that a replica made by a version without digests has one soon.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

import msgspec

from mainspring.log.contract import Receipt, Result
from mainspring.log.engines.nats.encoding import StreamEnvelope

RESTART: Final = 4_096
REMEMBERED: Final = 1_024  # messages whose digests are kept in memory; a writer is never so far behind for long
_SEEN_BYTES: Final = 8
_RESULT_BYTES: Final = 4

_encode = msgspec.msgpack.Encoder().encode


class StreamMessage(msgspec.Struct, frozen=True, gc=False):
    """A message of the stream. `ts` is the server's time in ms. `envelope` is None when no node wrote it."""

    seq: int
    ts: int
    size: int
    envelope: StreamEnvelope | None

    @property
    def mark(self) -> str:
        """Which message it is. No two messages that were ever stored under one number have the same."""
        envelope = self.envelope
        if envelope is None:
            return f"{self.seq} at {self.ts}"
        return f"{self.seq} at {self.ts} by {envelope.writer}.{envelope.number}.{envelope.part}"


class SeenHistory:
    """The digest at the last message applied, and at those shortly before. One thread moves it, others may look."""

    def __init__(self, seq: int = 0, mark: str = "", digest: bytes = b"") -> None:
        self.seq: int = seq
        self.mark: str = mark
        self.digest: bytes = digest  # empty while it is not known
        self._recent: dict[int, tuple[str, bytes]] = {seq: (mark, digest)} if seq else {}

    def after(self, messages: Sequence[tuple[StreamMessage, Sequence[int]]]) -> list[tuple[int, str, bytes]]:
        """What it is after these: for each its number, its mark and the digest. With each comes what it came to."""
        digest = self.digest
        steps = []
        for message, came_to in messages:
            mark = message.mark
            digest = _next(digest, message.seq, mark, came_to)
            steps.append((message.seq, mark, digest))
        return steps

    def move(self, steps: list[tuple[int, str, bytes]]) -> None:
        """These were applied."""
        recent = self._recent
        for seq, mark, digest in steps:
            recent[seq] = (mark, digest)
        self.seq, self.mark, self.digest = steps[-1]
        while len(recent) > REMEMBERED:
            del recent[next(iter(recent))]

    def differs(self, envelope: StreamEnvelope | None) -> bool:
        """Whether the writer of a message has another digest than we have for the message it had applied last."""
        if envelope is None or not envelope.digest:
            return False
        _, digest = self._recent.get(envelope.seen, ("", b""))
        return bool(digest) and digest != envelope.digest

    def same_messages(self, envelope: StreamEnvelope) -> bool:
        """Whether it saw the same messages, and only came to other results."""
        _, digest = self._recent.get(envelope.seen, ("", b""))
        return digest[:_SEEN_BYTES] == envelope.digest[:_SEEN_BYTES]

    def newest_marks(self, upto: int) -> list[tuple[int, str]]:
        """The marks that are remembered, the newest first."""
        recent = list(self._recent.items())  # at once: another thread goes on with it
        return [(seq, mark) for seq, (mark, _) in reversed(recent) if mark and seq <= upto]


def numbers_of(result: Result) -> list[int]:
    """What a batch came to, in numbers: -1 if it was refused."""
    if not isinstance(result, Receipt):
        return [-1]
    offsets = [-2 - offset if duplicate else offset for _, offset, duplicate in result.offsets]
    return [*offsets, *result.versions]


def _next(digest: bytes, seq: int, mark: str, came_to: Sequence[int]) -> bytes:
    if seq % RESTART == 1:
        digest = bytes(_SEEN_BYTES + _RESULT_BYTES)
    elif not digest:
        return b""
    seen = blake2b(digest[:_SEEN_BYTES] + mark.encode(), digest_size=_SEEN_BYTES).digest()
    if not came_to:
        return seen + digest[_SEEN_BYTES:]
    results = zlib.crc32(_encode(came_to), int.from_bytes(digest[_SEEN_BYTES:], "big"))
    return seen + results.to_bytes(_RESULT_BYTES, "big")
