"""Events as the file keeps them: many in one row.

A chunk holds events of one partition that were committed together, or were put together later because they were few
(`upkeep`). One row for each event costs SQLite a step, a binding for each column and a place in the b-tree; a chunk
costs that once. Its `data` is one msgpack value:

    [time, prefix, [[offset, time, id, payload, key, headers], ...]]

The offset of an event is counted from the chunk's first one, its time from that of the chunk, and its id begins with
the prefix, which is what all ids of the chunk have in common.

Every byte is covered by a checksum. `crc` is that of the data; where it fits, nothing else is looked at. Where it does
not, `sums` tells which event is damaged: it has the length and the checksum of each one, and once more what is needed
to read them alone. So a flipped bit costs one event at most. `head_crc` covers the numbers that are read without the
data. All begin with the row's key, so that nothing is taken for what belongs elsewhere.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, repeat
from typing import Final, NamedTuple
from zlib import crc32

import msgspec

from mainspring.log.contract import StoredEvent
from mainspring.log.engines.sqlite.schema import MAX_OFFSET

MOST_EVENTS: Final = 512
MOST_BYTES: Final = 256 << 10  # of a chunk with more than one event

EventRow = tuple[int, int, str, bytes, str | None, bytes | None]  # offset, time, id, payload, key, headers
ChunkValues = tuple[int, int, int, int, int, int, int, int, bytes, bytes]  # as `COLUMNS` says

COLUMNS: Final = ("pos", "last", "events", "bytes", "total", "high_ts", "head_crc", "crc", "sums", "data")

# In SQL. A damaged row may say that a number or a text is in the place of the bytes.
SELECT_HEAD: Final = ", ".join(COLUMNS[:7])
SELECT_REST: Final = "crc, ifnull(CAST(sums AS BLOB), x''), ifnull(CAST(data AS BLOB), x'')"

_encode: Final = msgspec.msgpack.Encoder().encode
_decode_row: Final = msgspec.msgpack.Decoder(EventRow).decode
_decode_data: Final = msgspec.msgpack.Decoder(tuple[int, str, list[EventRow]]).decode
_decode_sums: Final = msgspec.msgpack.Decoder(tuple[int, str, bytes, bytes, bytes]).decode


class ChunkHead(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What is known of a chunk without its data.

    `total` and `high_ts` count from the partition's beginning: the bytes ever appended to it, and the highest time, up
    to the end of this chunk.
    """

    pos: int
    last: int
    events: int
    bytes: int
    total: int
    high_ts: int
    head_crc: int

    @property
    def first(self) -> int:
        return self.pos & MAX_OFFSET

    def is_sound(self) -> bool:
        return self.head_crc == _head_checksum(self.pos, self.last, self.events, self.bytes, self.total, self.high_ts)


class PackedEvents(NamedTuple):
    """Events as a chunk holds them, and all that does not depend on what the partition had before."""

    first: int
    last: int
    events: int
    size: int  # what `row_bytes` says of them
    newest: int  # the highest time
    crc: int
    sums: bytes
    data: bytes


class EventPart(msgspec.Struct, frozen=True, gc=False):
    """The bytes of one event in a chunk."""

    offset: int
    row: EventRow | None  # None: they are damaged
    remains: EventRow  # what can be read of them; none of it is certain if they are damaged


class Chunk(msgspec.Struct, frozen=True, gc=False):
    """A row of the table, believed in nothing."""

    pos: int
    crc: int
    sums: bytes
    data: bytes

    @property
    def first(self) -> int:
        return self.pos & MAX_OFFSET

    def is_sound(self) -> bool:
        """Whether the data is what was written."""
        return crc32(self.data, _seed(self.pos)) == self.crc

    def rows(self) -> list[EventRow]:
        """The events of sound data."""
        ts, prefix, rows = _decode_data(self.data)
        first = self.first
        return [
            (first + offset, ts + after, prefix + id, payload, key, headers)
            for offset, after, id, payload, key, headers in rows
        ]

    def events(self, topic: str, partition: int, start: int, limit: int) -> list[StoredEvent] | None:
        """The events from an offset on, at most `limit`; None when any of these may be damaged."""
        if not self.is_sound():
            return None
        first = self.first
        about = len(self.sums) // 6  # events
        before = max(0, start - first)
        unwanted = before + max(0, about - before - limit)
        ts, prefix, rows = _decode_data(self._section(start, limit) if unwanted * 4 > about else self.data)
        found = [
            StoredEvent(topic, partition, first + offset, prefix + id, ts + after, payload, key, headers)
            for offset, after, id, payload, key, headers in rows
        ]
        if found and found[0].offset < start:
            found = [event for event in found if event.offset >= start]
        return found[:limit] if len(found) > limit else found

    def _section(self, start: int, limit: int) -> bytes:
        """Sound data with the wanted events alone."""
        if not self.sums or not self.sums_are_sound():
            return self.data
        ts, prefix, sizes, _, places = self._sums()
        begin = min(bisect_left(places, start - self.first), len(places))
        ends = list(accumulate(sizes, initial=len(self.data) - sum(sizes)))
        section = self.data[ends[begin] : ends[min(begin + limit, len(sizes))]]
        return b"".join((_data_header(ts, prefix, min(limit, len(sizes) - begin)), section))

    def _sums(self) -> tuple[int, str, Sequence[int], Sequence[int], Sequence[int]]:
        """Time and prefix; lengths, checksums and offsets of the events."""
        ts, prefix, lengths, checksums, offsets = _decode_sums(self.sums[:-4])
        crcs = _numbers(checksums, 4)
        return ts, prefix, _numbers(lengths, len(lengths) // len(crcs)), crcs, _numbers(offsets, 4) or range(len(crcs))

    def sums_are_sound(self) -> bool:
        return not self.sums or crc32(self.sums[:-4], _seed(self.pos)) == int.from_bytes(self.sums[-4:], "little")

    def parts(self) -> list[EventPart]:
        """Each event by itself, where the data as a whole is not sound. Empty: not even their number is certain."""
        if not self.sums:  # there is one
            return [EventPart(self.first, None, _remains(self.data, self.first))]
        if not self.sums_are_sound():
            return []
        ts, prefix, sizes, crcs, places = self._sums()
        seed, found = _seed(self.pos), []
        begin = len(self.data) - sum(sizes)
        for after, size, end, crc in zip(places, sizes, accumulate(sizes), crcs, strict=True):
            raw = self.data[begin + end - size : begin + end]
            offset = self.first + after
            if crc32(raw, seed) == crc:
                _, later, id, payload, key, headers = _decode_row(raw)
                row = (offset, ts + later, prefix + id, payload, key, headers)
                found.append(EventPart(offset, row, row))
            else:
                found.append(EventPart(offset, None, _remains(raw, offset, ts, prefix)))
        return found


def _remains(raw: bytes, offset: int, ts: int = 0, prefix: str = "") -> EventRow:
    """What can be read of damaged bytes."""
    try:
        _, after, id, payload, key, headers = _decode_row(raw)
        return offset, ts + after, prefix + id, payload, key, headers
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeError):
        pass
    try:
        ts, prefix, rows = _decode_data(raw)
        _, after, id, payload, key, headers = rows[0]
        return offset, ts + after, prefix + id, payload, key, headers
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeError, IndexError):
        return offset, ts, prefix, raw, None, None


def as_event(topic: str, partition: int, row: EventRow) -> StoredEvent:
    offset, ts, id, payload, key, headers = row
    return StoredEvent(topic, partition, offset, id, ts, payload, key, headers)


def as_row(event: StoredEvent) -> EventRow:
    return event.offset, event.ts, event.id, event.payload, event.key, event.headers


def row_bytes(rows: Iterable[EventRow]) -> int:
    """The sum of what `contract.event_bytes` counts."""
    _, _, ids, payloads, keys, headers = zip(*rows, strict=True)
    size = sum(map(len, payloads)) + _text_bytes(ids)
    if keys.count(None) < len(keys):
        size += _text_bytes([key for key in keys if key is not None])
    if headers.count(None) < len(headers):
        size += sum(len(each) for each in headers if each is not None)
    return size


def _text_bytes(texts: Sequence[str]) -> int:
    joined = "".join(texts)
    return len(joined) if joined.isascii() else len(joined.encode())


# -- making chunks


def check_types(id: str, key: str | None, headers: bytes | None, payload: bytes) -> None:
    """Raise TypeError, AttributeError or UnicodeEncodeError for values that a chunk cannot hold."""
    if not str.isascii(id):
        id.encode()
    if key is not None and not str.isascii(key):
        key.encode()
    if type(payload) is not bytes:
        memoryview(payload)
    if headers is not None and type(headers) is not bytes:
        memoryview(headers)


def pieces(rows: Sequence[EventRow]) -> Iterator[Sequence[EventRow]]:
    """The events of a partition, ascending, cut so that none is larger than a chunk may be."""
    for start in range(0, len(rows), MOST_EVENTS):
        some = rows[start : start + MOST_EVENTS] if len(rows) > MOST_EVENTS else rows
        is_small = sum([len(row[3]) for row in some]) < MOST_BYTES >> 1  # ids, keys and headers come on top
        if is_small and some[-1][0] - some[0][0] < len(some):
            yield some
        else:
            yield from _smaller_pieces(some)


def _smaller_pieces(rows: Sequence[EventRow]) -> Iterator[Sequence[EventRow]]:
    start = size = 0
    for at, row in enumerate(rows):
        _, _, id, payload, key, headers = row
        more = len(payload) + len(id) + len(key or "") + len(headers or b"")
        far = row[0] - rows[start][0] > 0xFFFFFFFF
        if at > start and (size + more > MOST_BYTES or far):
            yield rows[start:at]
            start, size = at, 0
        size += more
    yield rows[start:]


def pack_events(base: int, rows: Sequence[EventRow]) -> PackedEvents:
    """`base` is the key before that of the partition's first event."""
    first, ts, prefix, *_ = rows[0]
    count = len(rows)
    size, newest = row_bytes(rows), max([row[1] for row in rows])
    seed = _seed(base + first)
    if count == 1:
        data = _encode((ts, prefix, [(0, 0, "", *rows[0][3:])]))
        return PackedEvents(first, first, 1, size, newest, crc32(data, seed), b"", data)
    # By columns, and without a line of Python for each event: this is most of what a publish costs this thread.
    last = rows[-1][0]
    offsets, times, ids, payloads, keys, headers = zip(*rows, strict=True)
    is_gapless = last - first == count - 1
    places = range(count) if is_gapless else [offset - first for offset in offsets]
    ts = min(times)
    prefix = _common_prefix(min(ids), max(ids))
    cut = len(prefix)
    ends = [id[cut:] for id in ids] if cut else ids
    later = repeat(0, count) if ts == newest else [each - ts for each in times]
    raw = list(map(_encode, zip(places, later, ends, payloads, keys, headers, strict=True)))
    data = b"".join((_data_header(ts, prefix, count), *raw))
    lengths = list(map(len, raw))
    sums = _encode(
        (
            ts,
            prefix,
            struct.pack(f"<{count}{'H' if max(lengths) < 1 << 16 else 'I'}", *lengths),
            struct.pack(f"<{count}I", *map(crc32, raw, repeat(seed))),
            b"" if is_gapless else struct.pack(f"<{count}I", *places),
        )
    )
    sums += crc32(sums, seed).to_bytes(4, "little")
    return PackedEvents(first, last, count, size, newest, crc32(data, seed), sums, data)


def pack_pieces(base: int, rows: Sequence[EventRow]) -> list[PackedEvents]:
    """The events of a partition, ascending, for as many chunks as they need."""
    return [pack_events(base, piece) for piece in pieces(rows)]


def pack(base: int, packed: PackedEvents, total: int, high_ts: int) -> ChunkValues:
    """The row of a chunk; see `ChunkHead`."""
    first, last, events, size, _, crc, sums, data = packed
    head = _head_checksum(base + first, last, events, size, total, high_ts)
    return base + first, last, events, size, total, high_ts, head, crc, sums, data


def pack_all(
    base: int, packed: Iterable[PackedEvents], total: int, high_ts: int | None
) -> tuple[list[ChunkValues], int, int | None]:
    """The rows of chunks behind such a total and highest time, and what these come to."""
    made: list[ChunkValues] = []
    for each in packed:
        total += each.size
        high_ts = each.newest if high_ts is None or each.newest > high_ts else high_ts
        made.append(pack(base, each, total, high_ts))
    return made, total, high_ts


def _common_prefix(lowest: str, highest: str) -> str:
    """What two texts begin with, and so every text between them."""
    for at, (one, other) in enumerate(zip(lowest, highest, strict=False)):
        if one != other:
            return lowest[:at]
    return lowest


def _data_header(ts: int, prefix: str, count: int) -> bytes:
    """What stands before the events."""
    array = bytes((0x90 | count,)) if count < 16 else b"\xdc" + count.to_bytes(2, "big")
    return b"".join((b"\x93", _encode(ts), _encode(prefix), array))


def _numbers(packed: bytes, width: int) -> tuple[int, ...]:
    return struct.unpack(f"<{len(packed) // width}{'H' if width == 2 else 'I'}", packed)


def _seed(pos: int) -> int:
    return crc32(pos.to_bytes(8, "little"))


def _head_checksum(pos: int, last: int, events: int, bytes: int, total: int, high_ts: int) -> int:
    return crc32(f"{pos} {last} {events} {bytes} {total} {high_ts}".encode())
