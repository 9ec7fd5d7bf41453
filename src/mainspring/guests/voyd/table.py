"""The effect table: which operations a module may perform.

Custom section `__voyd_effect_table`, little-endian u32 throughout: version and count, one entry per operation, then
NUL-terminated names. Version 2 has entries of seven words, version 3 of eight; nothing else is known.
"""

from __future__ import annotations

import struct
from typing import Final, Literal

import msgspec

from mainspring.guests.voyd.errors import GuestRefused

SECTION: Final = "__voyd_effect_table"
_WORDS: Final = {2: 7, 3: 8}
_KINDS: Final[dict[int, Literal["resume", "tail"]]] = {0: "resume", 1: "tail"}
_FNV64_OFFSET, _FNV64_PRIME = 0xCBF29CE484222325, 0x100000001B3
_FNV32_OFFSET, _FNV32_PRIME = 0x811C9DC5, 0x01000193


class Operation(msgspec.Struct, frozen=True):
    """One operation of one effect; `index` is its place in the table."""

    index: int
    effect: str
    effect_hash: int
    op: int
    kind: Literal["resume", "tail"]
    signature: int
    label: str
    operation_id: str = ""


def parse_table(section: bytes) -> list[Operation]:
    """The operations in table order; GuestRefused when the table is not one."""
    if len(section) < 8:
        raise GuestRefused("the effect table is truncated")
    version, count = struct.unpack_from("<II", section)
    words = _WORDS.get(version)
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
            Operation(
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


def effect_hash(effect_id: str) -> int:
    """FNV-1a 64 over the UTF-8 bytes."""
    value = _FNV64_OFFSET
    for byte in effect_id.encode():
        value = (value ^ byte) * _FNV64_PRIME & 0xFFFFFFFFFFFFFFFF
    return value


def export_id(name: str) -> int:
    """FNV-1a 32 over the UTF-16 code units, shifted right by one bit."""
    value = _FNV32_OFFSET
    text = name.encode("utf-16-le")
    for (unit,) in struct.iter_unpack("<H", text):
        value = (value ^ unit) * _FNV32_PRIME & 0xFFFFFFFF
    return value >> 1


def signature_hash(parameters: list[str], result: str) -> int:
    """MurmurHash3 x86-32, seed 0, of `(dto:FP,dto:FP)->dto:FP`; arguments are fingerprints."""
    text = f"({','.join(f'dto:{each}' for each in parameters)})->dto:{result}"
    return _murmur3(text.encode())


def _murmur3(data: bytes) -> int:
    value = 0
    whole = len(data) // 4 * 4
    for (block,) in struct.iter_unpack("<I", data[:whole]):
        value ^= _scrambled(block)
        value = (value << 13 | value >> 19) & 0xFFFFFFFF
        value = (value * 5 + 0xE6546B64) & 0xFFFFFFFF
    value ^= _scrambled(int.from_bytes(data[whole:], "little"))
    value ^= len(data)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        value = (value ^ value >> shift) * factor & 0xFFFFFFFF
    return value


def _scrambled(block: int) -> int:
    block = block * 0xCC9E2D51 & 0xFFFFFFFF
    block = (block << 15 | block >> 17) & 0xFFFFFFFF
    return block * 0x1B873593 & 0xFFFFFFFF
