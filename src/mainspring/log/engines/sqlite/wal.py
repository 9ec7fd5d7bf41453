"""SQLite's write-ahead log, read without SQLite: what it holds behind a damaged frame.

SQLite reads frames up to the first one whose checksum does not fit, and believes that the log ends there. After a loss
of power that is right: the last commit may be half written. When a byte has rotted it is not: commits that were
acknowledged long ago lie behind it, and SQLite would write over them.

A frame's checksum is computed from the frame and from the checksum before it. Both are stored, so each frame can be
verified from the stored checksum of the one before, also behind a damaged one. And because the checksum is a sum, one
that does not fit says what the difference is: damage inside a single 32-bit word can be undone. Mostly one word alone
explains the difference. For the highest bits of a word several do; then the page as it was before and the checksums of
the rows in it decide, and if they cannot, the frame stays damaged.

The format is described on https://www.sqlite.org/fileformat2.html#walformat.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from operator import ne
from pathlib import Path
from typing import Any, Final

import msgspec

from mainspring.log.engines.sqlite.chunks import COLUMNS, Chunk, ChunkHead
from mainspring.log.engines.sqlite.schema import (
    MAX_OFFSET,
    OFFSET_BITS,
    event_checksum,
    is_sound_mark,
    record_checksum,
)

HEADER_BYTES: Final = 32
FRAME_BYTES: Final = 24
_MAGIC: Final = 0x377F0682  # with the lowest bit set: checksums of big-endian words
_VERSION: Final = 3_007_000
_MASK: Final = 0xFFFFFFFF
_LEAF: Final = 13  # the first byte of a page that holds rows of a table
_INDEX_LEAF: Final = 10  # the same of a table without row numbers
_LONGEST_VARINT: Final = 9
_INTEGER_BYTES: Final = (0, 1, 2, 3, 4, 6, 8, 8, 0, 0)  # by what a row says of its kind

_CHECKSUM: Final = "its checksum is damaged"

Checksum = tuple[int, int]
Row = tuple[Any, ...]
PageBefore = Callable[[int], bytes | None]  # what a page was before a frame


def wal_of(path: Path) -> Path:
    """Where the write-ahead log of a database is."""
    return path.with_name(path.name + "-wal")


class Frame(msgspec.Struct):
    """One page as a commit left it. `size` is that of the database in pages; 0: its commit goes on with the next frame.

    `fault` is empty when the frame is as it was written; `repaired`: it was damaged, and is as it was written again.
    """

    page: int
    size: int
    content: bytes
    fault: str = ""
    repaired: bool = False

    @property
    def is_sound(self) -> bool:
        return not self.fault or self.repaired


@dataclass
class Wal:
    """The frames of the newest generation. SQLite sees the first `visible` of them."""

    page_bytes: int
    header: bytes  # as it was written, if that can be told
    header_fault: str = ""
    frames: list[Frame] = field(default_factory=list)
    visible: int = 0

    @property
    def hidden_commits(self) -> int:
        """Commits that SQLite does not see."""
        return sum(1 for frame in self.frames[self.visible :] if frame.size)

    @property
    def faults(self) -> list[str]:
        """Each damaged place, in words."""
        found = [f"the header: {self.header_fault}"] if self.header_fault else []
        return found + [f"frame {n}: {frame.fault}" for n, frame in enumerate(self.frames, 1) if frame.fault]

    @property
    def has_lost(self) -> bool:
        """Whether commits that were acknowledged are hidden.

        Of one hidden commit that is not certain: the last one may have been under way when the power failed, and then
        nobody was told that it is stored.
        """
        return self.hidden_commits > 1 or (bool(self.header_fault) and self.hidden_commits > 0)

    @property
    def can_be_mended(self) -> bool:
        """Whether everything that is hidden is sound by now."""
        return self.hidden_commits > 0 and all(frame.is_sound for frame in self.frames[self.visible :])

    def images(self, page: int) -> Iterator[bytes]:
        """What the visible frames made of a page, oldest first."""
        return (frame.content for frame in self.frames[: self.visible] if frame.page == page)

    def last_offsets(self) -> dict[int, int]:
        """The highest offset that a sound frame has of each partition, by the partition's number in the file."""
        found: dict[int, int] = {}
        for frame in self.frames:
            if frame.is_sound:
                for pos, last in _ends(frame.content):
                    found[pos >> OFFSET_BITS] = max(found.get(pos >> OFFSET_BITS, 0), last)
        return found

    def rewritten(self, *, trust_damaged: bool) -> bytes:
        """A write-ahead log of one commit with the newest content of every page, all of it visible to SQLite.

        Of a page whose newest content is damaged, that (`trust_damaged`) or the newest sound one.
        """
        last = max(n for n, frame in enumerate(self.frames, 1) if frame.size)
        pages = {
            frame.page: frame.content
            for frame in self.frames[:last]
            if frame.page and (trust_damaged or frame.is_sound)
        }
        size = self.frames[last - 1].size
        order = _order_of(self.header)
        made = [self.header]
        checksum = _stored(self.header, 24)
        for n, (page, content) in enumerate(pages.items(), 1):
            head = struct.pack(">II", page, size if n == len(pages) else 0)
            checksum = _sum(order, head + content, checksum)
            made.append(head + self.header[16:24] + struct.pack(">II", *checksum) + content)
        return b"".join(made)


def read_wal(path: Path, page_bytes: int = 4_096, page_of_database: PageBefore = lambda _: None) -> Wal | None:
    """The write-ahead log at `path`; None when there is none, or nothing in it that ever was one.

    `page_bytes` is what the database says, for a header that cannot be believed.
    """
    data = _read(path)
    if len(data) < HEADER_BYTES + FRAME_BYTES + 512 or not any(data[:HEADER_BYTES]):
        return None
    header, fault = _header(data, page_bytes)
    wal = Wal(struct.unpack_from(">I", header, 8)[0], header, fault)
    _read_frames(wal, data, page_of_database)
    return wal if wal.frames else None


def _read(path: Path) -> bytes:
    """All of it at one moment: SQLite may begin it anew meanwhile, and then writes the header first."""
    try:
        with path.open("rb") as file:
            while True:
                file.seek(0)
                data = file.read()
                file.seek(0)
                if file.read(HEADER_BYTES) == data[:HEADER_BYTES]:
                    return data
    except FileNotFoundError:
        return b""


def _header(data: bytes, page_bytes: int) -> tuple[bytes, str]:
    """The header as it was written, and what is wrong with it."""
    header = data[:HEADER_BYTES]
    magic = struct.unpack_from(">I", header)[0]
    if magic | 1 == _MAGIC | 1 and _sum(_order_of(header), header[:24]) == _stored(header, 24):
        return header, ""
    first, salts = _frame_at(data, HEADER_BYTES, FRAME_BYTES + page_bytes), data[HEADER_BYTES + 8 : HEADER_BYTES + 16]
    for order in ("<", ">"):
        told = _stored(header, 24)
        computed = _sum(order, header[:24])
        if _fits(first, order, computed):
            return header[:24] + struct.pack(">II", *computed), _CHECKSUM
        for mended in _mended(order, header[:24], (0, 0), told):
            known = struct.unpack(">IIIxxxx8s", mended)
            if known == (_MAGIC | (order == ">"), _VERSION, page_bytes, salts):
                return mended + header[24:], "a word of it is damaged"
    # What it said can be told from the frames, except how many there were before: SQLite does not need that.
    built = struct.pack(">IIII", _MAGIC, _VERSION, page_bytes, 0) + salts
    return built + struct.pack(">II", *_sum("<", built)), "it cannot be read"


def _read_frames(wal: Wal, data: bytes, page_of_database: PageBefore) -> None:
    order, salts, step = _order_of(wal.header), wal.header[16:24], FRAME_BYTES + wal.page_bytes
    before = _stored(wal.header, 24)
    starts = range(HEADER_BYTES, len(data) - step + 1, step)
    last = max((n for n, at in enumerate(starts) if data[at + 8 : at + 16] == salts), default=-1)
    newest: dict[int, bytes] = {}

    def page_before(page: int) -> bytes | None:
        return newest[page] if page in newest else page_of_database(page)

    prefix = not wal.header_fault
    chained = wal.header_fault != "it cannot be read"
    for n, at in enumerate(starts):
        raw = data[at : at + step]
        frame, computed = _frame(raw, order, before)
        told = _stored(raw, 16)
        if n > last and (frame.fault or raw[8:16] == salts):
            break  # older than this generation
        if frame.fault and chained:
            _explain(frame, raw, _frame_at(data, at + step, step), order, before, computed, page_before)
        elif not chained:
            frame.fault = ""
        if not frame.fault and raw[8:16] != salts:
            frame.fault, frame.repaired = "its salt is damaged", True
        prefix = prefix and not frame.fault
        if frame.is_sound:
            newest[frame.page] = frame.content
        wal.frames.append(frame)
        if prefix and frame.size:
            wal.visible = len(wal.frames)
        before = computed if frame.fault == _CHECKSUM else told
        chained = True


def _frame(raw: bytes, order: str, before: Checksum) -> tuple[Frame, Checksum]:
    page, size = struct.unpack_from(">II", raw)
    computed = _sum(order, raw[:8] + raw[FRAME_BYTES:], before)
    fault = "" if computed == _stored(raw, 16) else "the checksum does not fit"
    return Frame(page, size, raw[FRAME_BYTES:], fault), computed


def _explain(
    frame: Frame,
    raw: bytes,
    following: bytes,
    order: str,
    before: Checksum,
    computed: Checksum,
    page_before: PageBefore,
) -> None:
    """Find out what is damaged; undo it where only one thing explains it."""
    told, data = _stored(raw, 16), raw[:8] + raw[FRAME_BYTES:]
    if _fits(following, order, computed):
        frame.fault, frame.repaired = _CHECKSUM, True
        return
    candidates = list(_mended(order, data, before, told))
    if (computed[0] == told[0]) != (computed[1] == told[1]) and not _fits(following, order, told):
        candidates.append(data)
    candidates = [each for each in candidates if any(each[:4])]  # no frame is of page 0: that explains nothing
    best = _most_plausible(candidates, page_before)
    if best is not None:
        frame.page, frame.size = struct.unpack_from(">II", best)
        frame.content = best[8:]
        frame.fault, frame.repaired = (_CHECKSUM if best == data else "a word of it is damaged"), True


def _most_plausible(candidates: list[bytes], page_before: PageBefore) -> bytes | None:
    """The one whose rows are sound and that changes least; None when several are alike."""
    if len(candidates) < 2:
        return candidates[0] if candidates else None

    def score(data: bytes) -> tuple[int, int]:
        content = data[8:]
        earlier = page_before(struct.unpack_from(">I", data)[0])
        changed = (
            sum(map(ne, memoryview(content).cast("I"), memoryview(earlier).cast("I"))) if earlier else len(content)
        )
        return damaged_rows(content), changed

    best, second = sorted((score(data), n) for n, data in enumerate(candidates))[:2]
    return candidates[best[1]] if best[0] < second[0] else None


def _frame_at(data: bytes, at: int, step: int) -> bytes:
    """The frame there; empty where the file ends within it: a commit that was under way when the power failed."""
    return data[at : at + step] if at + step <= len(data) else b""


def _fits(raw: bytes, order: str, before: Checksum) -> bool:
    """Whether there is a frame, and it follows a checksum."""
    return bool(raw) and _sum(order, raw[:8] + raw[FRAME_BYTES:], before) == _stored(raw, 16)


def _order_of(header: bytes) -> str:
    return ">" if header[3] & 1 else "<"


def _stored(raw: bytes, at: int) -> Checksum:
    first, second = struct.unpack_from(">II", raw, at)
    return first, second


def _sum(order: str, data: bytes, before: Checksum = (0, 0)) -> Checksum:
    """SQLite's checksum of `data`, whose length is a multiple of eight, after the one before."""
    first, second = before
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for one, other in zip(words[::2], words[1::2], strict=True):
        first = first + one + second & _MASK
        second = second + other + first & _MASK
    return first, second


def _mended(order: str, data: bytes, before: Checksum, wanted: Checksum) -> Iterator[bytes]:
    """The data with one word changed so that its checksum is the wanted one: every way there is.

    A change of a word by d changes the two sums by d times two neighbouring Fibonacci numbers, which depend on how many
    words follow. At least one of the two is odd, so it has an inverse.
    """
    found = _sum(order, data, before)
    first, second = (wanted[0] - found[0]) & _MASK, (wanted[1] - found[1]) & _MASK
    low, high = 0, 1  # of the last word: it is added to the second sum only
    for at in range(len(data) - 4, -1, -4):
        if low & 1:
            change = first * pow(low, -1, 1 << 32) & _MASK
        else:
            change = second * pow(high, -1, 1 << 32) & _MASK
        if change * low & _MASK == first and change * high & _MASK == second:
            (word,) = struct.unpack_from(f"{order}I", data, at)
            yield data[:at] + struct.pack(f"{order}I", word + change & _MASK) + data[at + 4 :]
        low, high = high, low + high & _MASK


# -- what is in a page


def _ends(page: bytes) -> Iterator[tuple[int, int]]:
    """The keys of the events and chunks in a page, and the last offset of each; none for any other page."""
    for number, row in _rows(page):
        if number is not None and number >> OFFSET_BITS > 0:
            head = _head_of(number, row)
            yield number, head.last if head is not None and head.is_sound() else number & MAX_OFFSET


def _head_of(number: int, row: Row | None) -> ChunkHead | None:
    """What a row says of a chunk, if it is one: its numbers are in the page also where its data goes on in another."""
    if row is None or len(row) not in (len(COLUMNS), len(COLUMNS) - 2):
        return None
    return ChunkHead(number, *row[1:7]) if all(type(each) is int for each in row[1:7]) else None


def counters_of(page: bytes) -> dict[str, int]:
    """The rows of the table `counters`, from its only page."""
    return {name.decode(): value for _, row in _rows(page) if row and len(row) == 2 for name, value in [row]}


def damaged_rows(page: bytes) -> int:
    """How many chunks, events, records and marks in the page have a checksum that does not fit."""
    return sum(1 for number, row in _rows(page) if row is None or not _is_sound(number, row))


def _is_sound(number: int | None, row: Row) -> bool:
    try:
        if number is not None and number >> OFFSET_BITS and (head := _head_of(number, row)) is not None:
            chunk = Chunk(number, *row[7:]) if len(row) == len(COLUMNS) else None
            return head.is_sound() and (chunk is None or (chunk.is_sound() and chunk.sums_are_sound()))
        if number is not None and number >> OFFSET_BITS and len(row) == 9:
            _, ts, _, _, crc, id, key, headers, payload = row
            text = None if key is None else key.decode()
            return bool(event_checksum(number, ts, id.decode(), text, headers, payload) == crc)
        if number is None and len(row) == 5:
            space, key, version, crc, value = row
            if isinstance(value, int):
                return is_sound_mark(space.decode(), key.decode(), version, crc, value)
            return bool(record_checksum(space.decode(), key.decode(), version, value) == crc)
    except (AttributeError, TypeError, ValueError):
        return False
    return True


def _rows(page: bytes) -> Iterator[tuple[int | None, Row | None]]:
    """The rows of a leaf with their numbers, if they have any; None for a row that cannot be read.

    Of a row that goes on in another page, these are the numbers it begins with. Other pages have none."""
    if page[0] not in (_LEAF, _INDEX_LEAF):
        return
    (count,) = struct.unpack_from(">H", page, 3)
    count = min(count, (len(page) - 8) // 2)
    padded = page + bytes(2 * _LONGEST_VARINT)
    for at in struct.unpack_from(f">{count}H", page, 8):
        if at >= len(page):
            yield None, None
            continue
        size, at = _varint(padded, at)
        number = None
        if page[0] == _LEAF:
            number, at = _varint(padded, at)
        try:
            yield number, _row(padded, at, whole=at + size <= len(page))
        except (IndexError, ValueError):
            yield number, None


def _row(page: bytes, begin: int, *, whole: bool) -> Row:
    length, at = _varint(page, begin)
    kinds: list[int] = []
    while at < begin + length:
        kind, at = _varint(page, at)
        kinds.append(kind)
    values: list[Any] = []
    for kind in kinds:
        if kind > 11 and not whole:
            break
        size = (kind - 12) // 2 if kind > 11 else _INTEGER_BYTES[kind]
        piece = page[at : at + size]
        at += size
        if kind in (0, 8, 9):
            values.append({0: None, 8: 0, 9: 1}[kind])
        else:
            values.append(piece if kind > 11 else int.from_bytes(piece, "big", signed=True))
    return tuple(values)


def _varint(page: bytes, at: int) -> tuple[int, int]:
    value = 0
    for step in range(_LONGEST_VARINT - 1):
        byte = page[at + step]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at + step + 1
    return value << 8 | page[at + 8], at + _LONGEST_VARINT
