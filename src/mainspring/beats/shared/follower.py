"""Following a line that another node drives: each of its batches is applied to the state in memory.

So reading answers on every node, from memory, as of the last beat that was seen in the log. Nothing is decided from it:
a node that gets to run beats reads the line from the log first. Applying the same batch twice changes nothing, because
a line that is read while another node writes it may hold some of what the next batches say again.
"""

from __future__ import annotations

from collections.abc import Iterable

from mainspring.beats.storage.line import SPACE, LineImage, journals_of
from mainspring.log import ABSENT, KeptRecord


class LineFollower:
    """Applies what happens to one line to the image of it."""

    def __init__(self, name: str, image: LineImage) -> None:
        self._prefix = f"{name}/"
        self._journals = journals_of(name)
        self._image = image
        self.lost_track: bool = False  # something happened that cannot be followed: read the line again

    def apply(self, records: Iterable[KeptRecord]) -> None:
        """Apply the records of one batch that are about this line."""
        pieces: dict[int, list[bytes]] = {}
        for record in records:
            if record.space == SPACE and record.key.startswith(self._prefix):
                kind, _, key = record.key.removeprefix(self._prefix).partition("/")
                if record.version == ABSENT:
                    self._delete(kind, key)
                else:
                    self._image.apply(kind, key, record.value)
            elif record.space == self._journals and record.version != ABSENT:
                pieces.setdefault(int(record.key[:16]), []).append(record.value)
        for beat, parts in pieces.items():
            self._image.state.note_journal(beat, b"".join(parts))

    def _delete(self, kind: str, key: str) -> None:
        """What retention takes is let go by the head; bindings that were put together are read again."""
        if kind == "queue":
            self._image.queued.pop(key, None)
        elif kind in ("bindings", "head"):
            self.lost_track = True
