"""The guest ABI over linear memory: every import a WebAssembly guest can have, as a method of the same name.

Sizes and handles are i32 and pointers travel as i64, but hold an offset of 32 bits; whatever does not lie inside the
memory is BOUNDS, and so is 0, the null pointer. Nothing is read or written before all of a call's pointers are checked.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from mainspring.guests.guest import Guest
from mainspring.guests.heap import Heap, Memory
from mainspring.guests.protocol.codes import Code
from mainspring.guests.protocol.control import LISTINGS

ABI_VERSION = 0x00020005

_OPEN = struct.Struct("<QIQIIQI")  # kind pointer and length, name pointer and length, mode, params pointer and length
_LONGEST_NAME = 256
_LONGEST_TELEMETRY = 4096
_U32 = 0xFFFFFFFF


class Abi:
    """The calls of one guest with one memory."""

    def __init__(self, guest: Guest, memory: Memory, heap: Heap, telemetry: Callable[[str, str], None]) -> None:
        self._guest = guest
        self._memory = memory
        self._heap = heap
        self._telemetry = telemetry

    def zi_abi_version(self) -> int:
        return ABI_VERSION

    # --- handles ---

    def zi_read(self, handle: int, target: int, cap: int) -> int:
        if not self._inside(target, cap & _U32):
            return Code.BOUNDS
        got = self._guest.read(handle, cap & _U32)
        if isinstance(got, int):
            return got
        self._memory.write(target, got)
        return len(got)

    def zi_write(self, handle: int, source: int, length: int) -> int:
        data = self._bytes(source, length & _U32)
        return Code.BOUNDS if data is None else self._guest.write(handle, data)

    def zi_end(self, handle: int) -> int:
        return self._guest.end(handle)

    def zi_handle_hflags(self, handle: int) -> int:
        return self._guest.flags(handle)

    def zi_ctl(self, request: int, length: int, response: int, cap: int) -> int:
        data = self._bytes(request, length & _U32)
        if data is None or not self._inside(response, cap & _U32):
            return Code.BOUNDS
        got = self._guest.ctl(data, cap & _U32)
        if isinstance(got, int):
            return got
        self._memory.write(response, got)
        return len(got)

    # --- capabilities ---

    def zi_cap_count(self) -> int:
        return len(LISTINGS)

    def zi_cap_get_size(self, index: int) -> int:
        return len(LISTINGS[index].encode()) if 0 <= index < len(LISTINGS) else Code.NOENT

    def zi_cap_get(self, index: int, target: int, cap: int) -> int:
        if not 0 <= index < len(LISTINGS):
            return Code.NOENT
        entry = LISTINGS[index].encode()
        if cap & _U32 < len(entry) or not self._inside(target, cap & _U32):
            return Code.BOUNDS
        self._memory.write(target, entry)
        return len(entry)

    def zi_cap_open(self, request: int) -> int:
        packed = self._bytes(request, _OPEN.size)
        if packed is None:
            return Code.BOUNDS
        kind_at, kind_size, name_at, name_size, mode, params_at, params_size = _OPEN.unpack(packed)
        if mode or not kind_size or not name_size:
            return Code.INVALID
        kind, name = self._bytes(kind_at, kind_size), self._bytes(name_at, name_size)
        params = self._bytes(params_at, params_size) if params_size else b""
        if kind is None or name is None or params is None:
            return Code.BOUNDS
        if max(kind_size, name_size) > _LONGEST_NAME:
            return Code.NOENT
        return self._guest.open(kind.decode("utf-8", "replace"), name.decode("utf-8", "replace"), params)

    # --- the rest ---

    def zi_alloc(self, size: int) -> int:
        return self._heap.alloc(size)

    def zi_free(self, pointer: int) -> int:
        return self._heap.free(pointer)

    def zi_telemetry(self, topic: int, topic_length: int, message: int, message_length: int) -> int:
        name, text = self._bytes(topic, topic_length & _U32), self._bytes(message, message_length & _U32)
        if name is None or text is None:
            return Code.BOUNDS
        self._telemetry(
            name[:_LONGEST_NAME].decode("utf-8", "replace"), text[:_LONGEST_TELEMETRY].decode("utf-8", "replace")
        )
        return Code.OK

    # --- memory ---

    def _inside(self, start: int, count: int) -> bool:
        return start > 0 and start + count <= self._memory.size()

    def _bytes(self, start: int, count: int) -> bytes | None:
        return self._memory.read(start, count) if self._inside(start, count) else None
