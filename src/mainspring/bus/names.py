"""Names of topics, groups and schedules.

Letters of any script, their marks, digits and `. _ - : /`, at most 255 bytes of UTF-8. What is left out on purpose:
spaces and control characters, because names are shown in logs and shells; `|`, which separates names in record keys, so
that two names can never be confused with two others.
"""

from __future__ import annotations

import unicodedata
from typing import Final

from mainspring.bus.errors import BadFrame

MAX_NAME_BYTES: Final = 255
SEPARATOR: Final = "|"
_PLAIN: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-:/")


def is_name(name: str) -> bool:
    """Whether this text may name a topic, group or schedule."""
    if not name:
        return False
    if _PLAIN.issuperset(name):
        return len(name) <= MAX_NAME_BYTES
    try:
        size = len(name.encode())
    except UnicodeEncodeError:  # half a surrogate pair
        return False
    return size <= MAX_NAME_BYTES and all(
        character in _PLAIN or unicodedata.category(character)[0] in "LM" or unicodedata.category(character) == "Nd"
        for character in name
    )


def check_name(what: str, name: str) -> None:
    """Raise BadFrame unless `name` may name a `what`."""
    if not is_name(name):
        shown = name.encode("ascii", "backslashreplace").decode()[:60]
        raise BadFrame(
            f"{shown!r} cannot name a {what}",
            remedy=f"use letters, digits and . _ - : / , at most {MAX_NAME_BYTES} bytes",
        )
