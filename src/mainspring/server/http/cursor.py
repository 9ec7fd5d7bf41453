"""A cursor: how far a reader got in every partition of a topic, as one short text.

Server-sent events resume with one id, pages of events with one `cursor`; both are this text: `0:12,1:7` says that
offset 12 of partition 0 and offset 7 of partition 1 were the last ones seen. A partition that is not named was not
begun, so a partition added after the reader left is read from its first event. The text is stable and made of digits,
colons and commas, so that it passes through headers, addresses and shells without escaping.
"""

from __future__ import annotations

import re
from typing import Final

from mainspring.errors import MainspringError

_CURSOR: Final = re.compile(r"\d{1,9}:\d{1,18}(,\d{1,9}:\d{1,18})*\Z", re.ASCII)


class BadCursor(MainspringError):
    """The text is not a cursor this node gave out."""

    code = "bad_cursor"


class Cursor:
    """The last offset seen in each partition. Changes as its reader goes on."""

    __slots__ = ("_seen",)

    def __init__(self, seen: dict[int, int] | None = None) -> None:
        self._seen = dict(seen or {})

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """The cursor a reader brings back. The empty text is the beginning of everything."""
        if not text:
            return cls()
        if not _CURSOR.match(text):
            raise BadCursor(
                "This is not a cursor.", remedy="Send back, unchanged, the id or cursor of the last answer, or none."
            )
        pairs = [part.split(":") for part in text.split(",")]
        seen = {int(partition): int(offset) for partition, offset in pairs}
        if len(seen) < len(pairs):
            raise BadCursor("A partition is named twice in the cursor.", remedy="Send back the cursor unchanged.")
        return cls(seen)

    def next_offset(self, partition: int) -> int:
        """Where to go on reading."""
        return self._seen.get(partition, 0) + 1

    def advance(self, partition: int, offset: int) -> None:
        self._seen[partition] = offset

    @property
    def seen(self) -> dict[int, int]:
        """A copy: partition to the last offset seen in it."""
        return dict(self._seen)

    def __str__(self) -> str:
        return ",".join(f"{partition}:{offset}" for partition, offset in sorted(self._seen.items()))
