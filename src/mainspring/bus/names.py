"""Names of topics, groups and schedules.

ASCII letters, digits and `. _ - : /`, and beyond ASCII everything visible: letters of any script, signs, emoji. At most
255 bytes of UTF-8. What is left out on purpose: spaces and control characters, because names are shown in logs and
shells; `|`, which separates names in record keys, so that two names can never be confused with two others; `*`, which
is a wildcard in access lists.

A topic of dead letters has the name of its topic and `.DLQ`. It may be longer by that, or a topic with the longest name
could not have dead letters.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from mainspring.bus.errors import BadFrame

MAX_NAME_BYTES: Final = 255
SEPARATOR: Final = "|"
DEAD_LETTERS: Final = ".DLQ"
SYSTEM: Final = "system."  # how the names of topics begin that the node itself writes
# For descriptions of the API. Beyond ASCII the pattern takes more than a name may hold: no such pattern knows what is
# visible.
NAME_SHAPE: Final[dict[str, int | str]] = {
    "minLength": 1,
    "maxLength": MAX_NAME_BYTES,
    "pattern": r"^[^\x00-\x20!-,;-@\[-^`{-\x7f]+$",
}
Name = Annotated[str, msgspec.Meta(extra_json_schema=NAME_SHAPE)]
_PLAIN: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-:/")
_JOINERS: Final = frozenset("\u200c\u200d")  # they cannot be seen, but some scripts and emoji are not written without


def is_name(name: str, most_bytes: int = MAX_NAME_BYTES) -> bool:
    """Whether this text may name a topic, group or schedule."""
    if not name:
        return False
    if _PLAIN.issuperset(name):
        return len(name) <= most_bytes
    try:
        size = len(name.encode())
    except UnicodeEncodeError:  # half a surrogate pair
        return False
    return size <= most_bytes and all(
        character in _PLAIN or character in _JOINERS or (not character.isascii() and character.isprintable())
        for character in name
    )


def check_name(what: str, name: str) -> None:
    """Raise BadFrame unless `name` may name a `what`."""
    longer = len(DEAD_LETTERS) if what == "topic" and name.endswith(DEAD_LETTERS) else 0
    if not is_name(name, MAX_NAME_BYTES + longer):
        shown = name[:60] if name.isprintable() else ascii(name[:60])[1:-1]
        raise BadFrame(
            f"'{shown}' cannot name a {what}",
            remedy=f"use letters, digits and . _ - : / , at most {MAX_NAME_BYTES} bytes",
        )
