"""Memory a guest asks its host for: blocks above the guest's own data, in sizes of powers of two.

Guests bring their own allocators for anything serious; `zi_alloc` is there for the few buffers of a small one. So the
simplest thing that reuses what was freed is enough: one list of free blocks per size, and the end of the heap.
"""

from __future__ import annotations

from typing import Protocol

from mainspring.guests.protocol.codes import Code

_SMALLEST = 16  # bytes, and the alignment of every block


class Memory(Protocol):
    """The linear memory of a guest."""

    def size(self) -> int: ...

    def grow_to(self, size: int) -> bool:
        """Whether the memory has at least this many bytes now."""

    def read(self, start: int, count: int) -> bytes: ...

    def write(self, start: int, data: bytes) -> None: ...


class Heap:
    """Blocks in a guest's memory from `base` on."""

    def __init__(self, memory: Memory, base: int) -> None:
        self._memory = memory
        self._end = -(-base // _SMALLEST) * _SMALLEST
        self._sizes: dict[int, int] = {}  # of the blocks in use
        self._free: dict[int, list[int]] = {}

    def alloc(self, size: int) -> int:
        """Where a block of at least `size` bytes begins; 0 when there is none."""
        if size <= 0:
            return 0
        rounded = max(_SMALLEST, 1 << (size - 1).bit_length())
        free = self._free.get(rounded)
        if free:
            start = free.pop()
        elif self._memory.grow_to(self._end + rounded):
            start = self._end
            self._end += rounded
        else:
            return 0
        self._sizes[start] = rounded
        return start

    def free(self, start: int) -> int:
        """Gives a block back; INVALID for what is none."""
        size = self._sizes.pop(start, None)
        if size is None:
            return Code.INVALID
        self._free.setdefault(size, []).append(start)
        return Code.OK
