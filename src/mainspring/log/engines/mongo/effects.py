"""What a commit does, decided: the content of a journal entry.

An entry says results, not wishes: offsets and versions are given, refusals are left out, and of each partition it says
how it stands afterwards. So whoever puts it in place needs to know nothing, may do it twice, and two nodes that do it
at the same time write the same.
"""

from __future__ import annotations

import zlib
from typing import Final

import msgspec

from mainspring.log.contract import ABSENT, Appended, Change, FormatError, KeptRecord, Mark, Remove, StoredEvent
from mainspring.log.engines.mongo.schema import FORMAT


class Event(msgspec.Struct, array_like=True, frozen=True, gc=False):
    topic: str
    partition: int
    offset: int
    id: str
    ts: int
    payload: bytes
    key: str | None
    headers: bytes | None

    def stored(self) -> StoredEvent:
        return StoredEvent(
            self.topic, self.partition, self.offset, self.id, self.ts, self.payload, self.key, self.headers
        )


class Written(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A record as it is now. `value` is None for a deleted one; its version still orders the delete."""

    space: str
    key: str
    version: int
    value: bytes | None


class Marked(msgspec.Struct, array_like=True, frozen=True, gc=False):
    topic: str
    dedupe: str
    partition: int
    offset: int
    until: int

    def mark(self) -> Mark:
        return Mark(self.topic, self.dedupe, self.partition, self.offset, self.until)


class Removed(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Never reaches beyond the tail of its moment."""

    topic: str
    partition: int
    below: int
    offsets: tuple[int, ...]


class Standing(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A partition after the entry. Everything below `below` is gone."""

    topic: str
    partition: int
    tail: int
    events: int
    bytes: int
    below: int


class Effects(msgspec.Struct, array_like=True, gc=False):
    """What one batch does."""

    events: list[Event] = []
    records: list[Written] = []
    marks: list[Marked] = []
    removed: list[Removed] = []

    def __bool__(self) -> bool:
        return bool(self.events or self.records or self.marks or self.removed)

    def change(self, own: bool) -> Change:
        appended: list[Appended] = []
        for event in self.events:
            last = appended[-1] if appended else None
            if last and (last.topic, last.partition, last.last + 1) == (event.topic, event.partition, event.offset):
                appended[-1] = Appended(last.topic, last.partition, last.first, event.offset)
            else:
                appended.append(Appended(event.topic, event.partition, event.offset, event.offset))
        records = tuple(
            KeptRecord(r.space, r.key, b"", ABSENT)
            if r.value is None
            else KeptRecord(r.space, r.key, r.value, r.version)
            for r in self.records
        )
        removed = tuple(Remove(r.topic, r.partition, r.below, r.offsets) for r in self.removed)
        return Change(own, tuple(appended), records, removed)


class Body(msgspec.Struct, array_like=True):
    """One entry: its batches, how the partitions stand afterwards, and the last version given."""

    batches: list[Effects]
    standings: list[Standing]
    version: int


class Entry(msgspec.Struct):
    """An entry with its place in the journal. `token` is of one try of one node; `at` is that node's time of day."""

    number: int
    node: str
    token: str
    at: int
    body: Body


_SMALL: Final = 4096  # bytes
_PACKED: Final = b"z"  # no body begins so: it is an array

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Body).decode


def encode_body(body: Body) -> bytes:
    """Compressed when that pays: a large entry holds many events that look alike, and goes over the network twice."""
    data = _encode(body)
    return data if len(data) < _SMALL else _PACKED + zlib.compress(data, 1)


def decode_body(data: bytes, format: object) -> Body:
    """Raises `FormatError` for an entry that a newer version wrote, or that is none."""
    if format == FORMAT:
        try:
            return _decode(zlib.decompress(data[len(_PACKED) :]) if data.startswith(_PACKED) else data)
        except (msgspec.DecodeError, msgspec.ValidationError, zlib.error):
            pass
    raise FormatError(
        f"an entry of the journal has format {format!r} and cannot be read; this version knows {FORMAT}",
        remedy="all nodes of one log must know its format: upgrade this one",
    )
