"""How a commit looks in the stream.

A message begins with three letters and the number of its format, so that a node of an older version stops with a clear
error instead of misreading what a newer one wrote. Behind them is one MessagePack array, the `Envelope`. Its body is
encoded on its own: a big one is cut into parts that follow each other as messages and are put together again when
the last is applied.

The body of a commit is an array of its batches, each an array of operations and encoded for itself. A batch whose
values have the wrong types is then refused by every node alike when it is decoded, and its neighbours stand. In the
place of many batches that only append stands one map, an `AppendRun`: their events in the chunks they become. Format 1
had none; what its writers decided travelled in the envelope, and is passed over.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from mainspring.log.contract import MAX_INT, Batch, FormatError, Operation, Refused, Restorable, bad_text
from mainspring.log.engines.sqlite.appends import AppendRun

MAGIC: Final = b"MSJ"
FORMAT: Final = 2
ENVELOPE_BYTES: Final = 512  # what the envelope, its headers and their framing take at most
MOST_BATCH_BYTES: Final = 256 << 20  # every node holds a batch in memory while it is applied

COMMIT: Final = "commit"
FORGET: Final = "forget"  # body: the time
RESTORE: Final = "restore"  # body: restorables
CLAIM: Final = "claim"  # the writer wants to make a snapshot
SNAPSHOT: Final = "snapshot"  # body: what was made


class StreamEnvelope(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """`writer` is one engine from its opening to its closing; `number` counts what it sent, from 1.

    `seen` is the message it had applied last, and `digest` its history up to there; an older version says neither.
    """

    writer: str
    number: int
    kind: str
    body: bytes
    part: int = 0
    parts: int = 1
    seen: int = 0
    digest: bytes = b""


class Snapshot(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A snapshot that holds everything up to the message `seq`, which has the time `ts`."""

    seq: int
    ts: int
    bytes: int


encode: Final = msgspec.msgpack.Encoder().encode  # of a time, a snapshot
_envelope = msgspec.msgpack.Decoder(StreamEnvelope)
_raw_items = msgspec.msgpack.Decoder(list[msgspec.Raw])
_item: msgspec.msgpack.Decoder[list[Operation] | AppendRun] = msgspec.msgpack.Decoder(list[Operation] | AppendRun)
_items = msgspec.msgpack.Decoder(list[list[Operation] | AppendRun])
decode_restorables: Final = msgspec.msgpack.Decoder(list[Restorable]).decode
decode_snapshot: Final = msgspec.msgpack.Decoder(Snapshot).decode
decode_time: Final = msgspec.msgpack.Decoder(int).decode


def encode_envelope(envelope: StreamEnvelope) -> bytes:
    return MAGIC + bytes((FORMAT,)) + encode(envelope)


def decode_envelope(payload: bytes) -> StreamEnvelope | None:
    """None for a message that no node wrote. Raises `FormatError` when a newer version wrote it.

    Whatever the version, an envelope begins with its writer and its number: anything else is a stray message.
    """
    if payload[:3] != MAGIC or len(payload) < 5:
        return None
    if payload[3] > FORMAT:
        if not _is_envelope(payload):
            return None
        raise FormatError(
            f"the log holds messages of format {payload[3]}; this version of Mainspring knows formats up to {FORMAT}",
            remedy="bring this node to the version of the newest node",
        )
    try:
        envelope = _envelope.decode(memoryview(payload)[4:])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    fits = 0 < envelope.number <= MAX_INT and 0 <= envelope.part < envelope.parts <= MAX_INT
    return envelope if fits else None


def _is_envelope(payload: bytes) -> bool:
    try:
        members = msgspec.msgpack.decode(memoryview(payload)[4:], type=list)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return len(members) >= 4 and [type(each) for each in members[:3]] == [str, int, str]


def encode_batch(batch: Batch) -> bytes | Refused:
    """The batch's bytes, or why no engine could ever store it."""
    try:
        encoded = encode(batch.operations)
    except UnicodeEncodeError:
        return bad_text()
    except (TypeError, OverflowError, ValueError) as error:
        return Refused(f"an operation holds a value of the wrong type: {error}", code="bad_operation")
    if len(encoded) > MOST_BATCH_BYTES:
        return Refused(
            f"the batch has {len(encoded)} bytes; at most {MOST_BATCH_BYTES} can be stored together",
            remedy="publish in smaller batches",
            code="too_big",
        )
    return encoded


CommitItem = list[Operation] | AppendRun | Refused


def encode_commit(items: Sequence[bytes | AppendRun]) -> bytes:
    """The body of a commit, of batches that are encoded and of runs."""
    return encode([msgspec.Raw(item) if isinstance(item, bytes) else item for item in items])


def decode_commit(envelope: StreamEnvelope) -> Sequence[CommitItem]:
    """The batches and runs of a commit. What cannot be read is a refusal, the same on every node."""
    try:
        return _items.decode(envelope.body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    try:
        return [_decode_item(raw) for raw in _raw_items.decode(envelope.body)]
    except msgspec.DecodeError:
        return ()


def _decode_item(raw: msgspec.Raw) -> CommitItem:
    try:
        return _item.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return Refused(f"an operation holds a value of the wrong type: {error}", code="bad_operation")


def encode_restorables(items: Sequence[Restorable]) -> bytes:
    try:
        return encode(list(items))
    except UnicodeEncodeError as error:
        raise bad_text() from error


def parts_of(body: bytes, limit: int) -> Iterator[bytes]:
    """The body in parts of at most `limit` bytes; an empty body is one empty part."""
    for start in range(0, max(len(body), 1), limit):
        yield body[start : start + limit]
