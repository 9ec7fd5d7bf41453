"""Following a line that another node drives: each of its batches is applied to the state in memory.

So reading answers on every node, from memory, as of the last beat that was seen in the log. Nothing is decided from it:
a node that gets to run beats reads the line from the log first. Applying the same batch twice changes nothing, because
a line that is read while another node writes it may hold some of what the next batches say again.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from mainspring.beats.matching.registry import Bind
from mainspring.beats.rules import Rules
from mainspring.beats.state import LineState
from mainspring.beats.storage.journal import DeadSignal
from mainspring.beats.storage.line import (
    SPACE,
    Head,
    LoadedLine,
    QueuedImpulses,
    Registered,
    decode_value,
    journals_of,
    queues_of,
)
from mainspring.log import ABSENT, KeptRecord


class LineFollower:
    """Applies what happens to one line to a state."""

    def __init__(self, name: str, state: LineState, loaded: LoadedLine | None) -> None:
        self._prefix = f"{name}/"
        self._journals = journals_of(name)
        self._state = state
        self._queued = {} if loaded is None else dict(loaded.queued)
        self._registered = {since for since, _ in state.registries}
        self._ruled = {since for since, _ in state.rulings}
        self.lost_track: bool = False  # something happened that cannot be followed: read the line again

    def apply(self, records: Iterable[KeptRecord]) -> None:
        """Apply the records of one batch that are about this line."""
        pieces: dict[int, list[bytes]] = {}
        for record in records:
            if record.space == SPACE and record.key.startswith(self._prefix):
                self._apply(record.key.removeprefix(self._prefix), record)
            elif record.space == self._journals and record.version != ABSENT:
                pieces.setdefault(int(record.key[:16]), []).append(record.value)
        for beat, parts in pieces.items():
            self._state.note_journal(beat, b"".join(parts))

    def _apply(self, key: str, record: KeptRecord) -> None:
        kind, _, rest = key.partition("/")
        if record.version == ABSENT:
            self._deleted(kind, rest)
            return
        state, value = self._state, record.value
        match kind:
            case "cas":
                state.content.put(rest, value.decode())
            case "cell":
                self._cell(rest, value)
            case "refs":
                state.refer(int(rest), msgspec.json.decode(value, type=list[str]))
            case "queue":
                self._queued[rest] = msgspec.json.decode(value, type=QueuedImpulses).impulses
            case "bindings":
                self._bindings(int(rest[:16]), msgspec.json.decode(value, type=list[tuple[str, str, str]]))
            case "registry" if int(rest) not in self._registered:
                self._registered.add(int(rest))
                state.registries.append((int(rest), msgspec.json.decode(value, type=list[Registered])))
            case "rules" if int(rest) not in self._ruled:
                self._ruled.add(int(rest))
                state.rulings.append((int(rest), msgspec.json.decode(value, type=Rules)))
            case "dead":
                state.dead[int(rest)] = msgspec.json.decode(value, type=list[DeadSignal])
            case "digest":
                state.note_digest(int(rest), value.decode())
            case "head":
                self._head(msgspec.json.decode(value, type=Head))

    def _deleted(self, kind: str, rest: str) -> None:
        """What retention takes is let go by the head; bindings that were put together are read again."""
        if kind == "queue":
            self._queued.pop(rest, None)
        elif kind in ("bindings", "head"):
            self.lost_track = True

    def _cell(self, key: str, value: bytes) -> None:
        path, _, since = key.rpartition("//")
        cells = self._state.cells
        if int(since) > cells.newest(path):
            texts = {}
            if value[:1] == b"#":
                sha256 = value[1:].decode()
                texts[sha256] = self._state.content.get(sha256) or ""
            cells.put(path, int(since), decode_value(value, texts))

    def _bindings(self, since: int, bindings: list[tuple[str, str, str]]) -> None:
        known = self._state.bound.setdefault(since, [])
        for binding in bindings:
            bound = Bind(*binding)
            if self._state.bindings.put(*binding) or bound not in known:
                known.append(bound)

    def _head(self, head: Head) -> None:
        state = self._state
        state.beat, state.digest, state.paused = head.beat + 1, head.digest, head.paused
        first, done = head.left or (state.beat, 0)
        for key in [key for key in self._queued if int(key[:16]) < first]:
            del self._queued[key]
        state.queues = queues_of(self._queued, state.beat, done)
        state.forget_before(head.oldest)
