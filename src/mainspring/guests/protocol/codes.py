"""Result codes of the guest ABI.

A call of a guest answers with a count or one of these; they are plain negative numbers on the wire, named here once.
"""

from __future__ import annotations

from enum import IntEnum


class Code(IntEnum):
    """What a guest's call came to when it gave no count."""

    OK = 0
    INVALID = -1
    BOUNDS = -2
    NOENT = -3
    DENIED = -4
    CLOSED = -5
    AGAIN = -6
    NOSYS = -7
    OOM = -8
    IO = -9
    INTERNAL = -10
