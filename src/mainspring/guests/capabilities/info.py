"""The capability `sys/info@v1`: what a guest may know of its machine, and where it reads the loop's clock."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable

from mainspring.guests.errors import RequestRefused
from mainspring.guests.protocol import zcl1
from mainspring.guests.protocol.stream import GuestCapability
from mainspring.loop import Clock

INFO, STATS, TIME_NOW, RANDOM_SEED = 1, 2, 3, 4

_SEED_BYTES = 32
_LOADS, _MEMORY = 0x1, 0x2  # flags of STATS: which parts follow


class InfoCapability(GuestCapability):
    """One open `sys/info`. Requests carry no payload; every answer begins with version 1."""

    trace = "sys.info"

    def __init__(self, clock: Clock, entropy: Callable[[int], bytes]) -> None:
        self._clock = clock
        self._entropy = entropy

    def answer(self, op: int, rid: int, payload: bytes, room: int) -> bytes | None:
        if payload:
            raise RequestRefused("payload must be empty")
        if op == INFO:
            return _machine()
        if op == STATS:
            loads, memory = _loads(), _memory()
            flags = (_LOADS if loads else 0) | (_MEMORY if memory else 0)
            return struct.pack("<IIQ", 1, flags, self._clock.wall_ns()) + loads + memory
        if op == TIME_NOW:
            return struct.pack("<IQQ", 1, self._clock.wall_ns(), self._clock.now_ns())
        if op == RANDOM_SEED:
            return struct.pack("<II", 1, _SEED_BYTES) + self._entropy(_SEED_BYTES)
        raise RequestRefused("unknown op")


def _machine() -> bytes:
    system = os.uname()
    model = ""  # Linux does not say it
    names = (f"{system.sysname} {system.release}", system.machine, model, system.nodename)
    texts = [name.encode("ascii", "replace")[:64] for name in names]
    flags = sum(1 << number for number, text in enumerate(texts) if text)
    head = struct.pack("<IIII", 1, flags, os.cpu_count() or 1, os.sysconf("SC_PAGESIZE"))
    return head + b"".join(map(zcl1.text, texts))


def _loads() -> bytes:
    """Load averages of 1, 5 and 15 minutes in thousandths; nothing where the system keeps none."""
    try:
        return struct.pack("<III", *(round(load * 1000) for load in os.getloadavg()))
    except OSError:
        return b""


def _memory() -> bytes:
    """Total and free bytes of memory, and how much of it is used in thousandths."""
    page = os.sysconf("SC_PAGESIZE")
    total, free = os.sysconf("SC_PHYS_PAGES") * page, os.sysconf("SC_AVPHYS_PAGES") * page
    if total <= 0:
        return b""
    return struct.pack("<QQI", total, free, (total - free) * 1000 // total)
