"""Masking: what a WebSocket client must do to the bytes it sends (RFC 6455, section 5.3).

Each frame has a fresh, unpredictable key of four bytes. Short frames are masked as one big number, which is the
quickest that plain Python can do. For long ones that would cost more than everything else a client does; aiohttp has a
compiled function for it. It is not part of aiohttp's public face, so there is a way without it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Final

SHORT: Final = 1_024


def masked(data: bytes, key: bytes) -> bytes | bytearray:
    """`data` combined with the four bytes of `key`, over and over."""
    size = len(data)
    if size <= SHORT:
        stretched = (key * (size // 4 + 1))[:size]
        return (int.from_bytes(data, "little") ^ int.from_bytes(stretched, "little")).to_bytes(size, "little")
    copy = bytearray(data)
    _long_mask()(key, copy)
    return copy


@functools.cache
def _long_mask() -> Callable[[bytes, bytearray], None]:
    try:
        from aiohttp._websocket.helpers import websocket_mask
    except ImportError:
        return mask_in_place
    return websocket_mask


@functools.cache
def _table(key: int) -> bytes:
    return bytes(value ^ key for value in range(256))


def mask_in_place(key: bytes, data: bytearray) -> None:
    """Each fourth byte goes through one table; four passes over the data."""
    for at, part in enumerate(key):
        data[at::4] = data[at::4].translate(_table(part))
