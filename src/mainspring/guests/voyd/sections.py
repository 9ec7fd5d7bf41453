"""A wasm binary as a list of sections, read without trusting it.

Only what the handshake needs: custom sections by name, and the names of exports and imports. It works on raw bytes, so
that a module which no engine would accept is still refused with a sentence instead of an engine's complaint.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from mainspring.guests.voyd.errors import GuestRefused

MAGIC: Final = b"\0asm\1\0\0\0"
_CUSTOM, _IMPORT, _EXPORT = 0, 2, 7
_FUNCTION, _TABLE, _MEMORY, _GLOBAL, _TAG = range(5)
_LONGEST_VARUINT32: Final = 5


class Reader:
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


def sections(module: bytes) -> Iterator[tuple[int, Reader]]:
    """The number and a reader of each section."""
    if module[: len(MAGIC)] != MAGIC:
        raise GuestRefused("this is not a wasm module", remedy="give a .wasm file, or .wat text")
    reader = Reader(module, len(MAGIC))
    while reader.position < reader.end:
        number, size = reader.byte(), reader.number()
        if size > reader.end - reader.position:
            raise GuestRefused(f"section {number} is longer than the module")
        yield number, Reader(module, reader.position, reader.position + size)
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


def first_import(module: bytes) -> str | None:
    """The name of an import, if there is one: this host provides none."""
    for number, reader in sections(module):
        if number == _IMPORT and reader.number():
            return f"{reader.name()}.{reader.name()}"
    return None
