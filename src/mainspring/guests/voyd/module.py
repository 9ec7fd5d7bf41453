"""What a wasm module says about itself, read from its bytes without trusting them.

Custom sections by name, the names of exports, and the effect table: which operations the module may
perform. No engine is involved, so a module which no engine would accept is still refused with a sentence instead of an
engine's complaint.

The effect table is the custom section `__voyd_effect_table`, little-endian u32 throughout: version and count, one entry
per operation, then NUL-terminated names. Version 2 has entries of seven words, version 3 of eight; nothing else is
known.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, Literal

import msgspec

from mainspring.guests.voyd.errors import GuestRefused

MAGIC: Final = b"\0asm\1\0\0\0"
_CUSTOM, _EXPORT = 0, 7
_LONGEST_VARUINT32: Final = 5

EFFECT_TABLE: Final = "__voyd_effect_table"
_ENTRY_WORDS: Final = {2: 7, 3: 8}
_KINDS: Final[dict[int, Literal["resume", "tail"]]] = {0: "resume", 1: "tail"}
_FNV32_OFFSET, _FNV32_PRIME = 0x811C9DC5, 0x01000193


class SectionReader:
    """Reads forward through bytes; every overrun is a GuestRefused."""

    def __init__(self, data: bytes, start: int = 0, end: int | None = None) -> None:
        self._data = data
        self.position: int = start
        self.end: int = len(data) if end is None else end

    def byte(self) -> int:
        return self.take(1)[0]

    def take(self, count: int) -> bytes:
        if count > self.end - self.position:
            raise GuestRefused(f"the module ends in the middle: {count} bytes wanted at {self.position}")
        found = self._data[self.position : self.position + count]
        self.position += count
        return found

    def number(self) -> int:
        """A varuint32."""
        value = 0
        for index in range(_LONGEST_VARUINT32):
            byte = self.byte()
            value |= (byte & 0x7F) << (7 * index)
            if not byte & 0x80:
                return value
        raise GuestRefused("a number in the module is too long")

    def name(self) -> str:
        try:
            return self.take(self.number()).decode()
        except UnicodeDecodeError:
            raise GuestRefused("a name in the module is not UTF-8") from None


def sections(module: bytes) -> Iterator[tuple[int, SectionReader]]:
    """The number and a reader of each section."""
    if module[: len(MAGIC)] != MAGIC:
        raise GuestRefused("this is not a wasm module", remedy="give a .wasm file, or .wat text")
    reader = SectionReader(module, len(MAGIC))
    while reader.position < reader.end:
        number, size = reader.byte(), reader.number()
        if size > reader.end - reader.position:
            raise GuestRefused(f"section {number} is longer than the module")
        yield number, SectionReader(module, reader.position, reader.position + size)
        reader.position += size


def custom_sections(module: bytes) -> dict[str, bytes]:
    """The first custom section of each name."""
    found: dict[str, bytes] = {}
    for number, reader in sections(module):
        if number == _CUSTOM:
            name = reader.name()
            found.setdefault(name, reader.take(reader.end - reader.position))
    return found


def exported_names(module: bytes) -> dict[str, int]:
    """The name and kind (0 function, 2 memory, 3 global) of each export."""
    found: dict[str, int] = {}
    for number, reader in sections(module):
        if number == _EXPORT:
            for _ in range(reader.number()):
                name, kind = reader.name(), reader.byte()
                reader.number()
                found[name] = kind
    return found


# --- the effect table ---


class GuestOperation(msgspec.Struct, frozen=True):
    """One operation of one effect; `index` is its place in the table."""

    index: int
    effect: str
    effect_hash: int
    op: int
    kind: Literal["resume", "tail"]
    signature: int
    label: str
    operation_id: str = ""


def parse_table(section: bytes) -> list[GuestOperation]:
    """The operations in table order; GuestRefused when the table is not one."""
    if len(section) < 8:
        raise GuestRefused("the effect table is truncated")
    version, count = struct.unpack_from("<II", section)
    words = _ENTRY_WORDS.get(version)
    if words is None:
        raise GuestRefused(f"effect table version {version} is not supported", remedy="versions 2 and 3 are")
    names = 8 + count * words * 4
    if names > len(section):
        raise GuestRefused("the effect table is truncated")
    operations = []
    for index in range(count):
        entry = struct.unpack_from(f"<{words}I", section, 8 + index * words * 4)
        low, high, effect, op, kind, signature, label = entry[:7]
        if kind not in _KINDS:
            raise GuestRefused(f"operation {index} has the unknown resume kind {kind}")
        operations.append(
            GuestOperation(
                index=index,
                effect=_name(section, names + effect),
                effect_hash=high << 32 | low,
                op=op,
                kind=_KINDS[kind],
                signature=signature,
                label=_shown(_name(section, names + label)),
                operation_id=_name(section, names + entry[7]) if version == 3 else "",
            )
        )
    return operations


def _name(section: bytes, start: int) -> str:
    end = section.find(b"\0", start)
    if end < 0:
        raise GuestRefused("a name in the effect table is not terminated")
    try:
        return section[start:end].decode()
    except UnicodeDecodeError:
        raise GuestRefused("a name in the effect table is not UTF-8") from None


def _shown(label: str) -> str:
    """`path::Effect.op` is shown as `path::Effect::op`."""
    effect, dot, op = label.rpartition(".")
    return f"{effect}::{op}" if dot else label


def export_id(name: str) -> int:
    """FNV-1a 32 over the UTF-16 code units, shifted right by one bit."""
    value = _FNV32_OFFSET
    text = name.encode("utf-16-le")
    for (unit,) in struct.iter_unpack("<H", text):
        value = (value ^ unit) * _FNV32_PRIME & 0xFFFFFFFF
    return value >> 1
