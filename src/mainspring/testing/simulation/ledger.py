"""What clients and handlers were told and given, and what must be true of it whatever the program does.

Everything a client is told (this event is stored at that offset) and everything that is handed to a client or to a
consumer of the program is written down here while it happens, and compared with the log when everything has come to
rest. What a program means by its events is checked by its scenario.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import msgspec

Place = tuple[str, int, int]  # topic, partition, offset
REDRIVEN: Final = "x-redriven"

_decode = msgspec.json.decode


class Ledger:
    """Everything that was observed in one run; `broken` are the promises that were not kept, in words."""

    def __init__(self) -> None:
        self.broken: list[str] = []
        self.confirmed: dict[Place, str] = {}  # the event's id, by where its publisher was told it is
        self.delivered: Counter[tuple[str, Place]] = Counter()  # by group
        self.boots: int = 0
        self._ids: dict[Place, str] = {}
        self._handled: set[tuple[str, str, Place]] = set()  # by life and group

    def breaks(self, promise: str) -> None:
        if promise not in self.broken:
            self.broken.append(promise)

    # -- while it goes on

    def confirm(self, topic: str, partition: int, offset: int, id: str) -> None:
        """A publisher was told that its event is stored there."""
        if offset:  # a delayed event gets its place later
            self.confirmed[topic, partition, offset] = id
            self._at((topic, partition, offset), id)

    def deliver(self, group: str, place: Place, id: str, attempt: int, most: int = 0) -> None:
        """A member of the group was given this event. `most`: how many attempts it may have, if that is known."""
        self._at(place, id)
        seen = self.delivered[group, place]
        self.delivered[group, place] += 1
        if attempt > (most or attempt):
            self.breaks(f"attempt {attempt} of {_text(place)} for {group!r}, of at most {most}")
        if attempt < 1 or (most and attempt > seen + self.boots + 1):
            self.breaks(f"attempt {attempt} of {_text(place)} for {group!r} came after {seen} others")

    @contextmanager
    def handling(self, life: str, group: str, place: Place) -> Iterator[None]:
        """A consumer of the program works on it: at most one does, of one life of a node."""
        key = (life, group, place)
        if key in self._handled:
            self.breaks(f"{_text(place)} was given to two members of {group!r} at once")
        self._handled.add(key)
        try:
            yield
        finally:
            self._handled.discard(key)

    def frame(self, text: bytes) -> None:
        """Something a node said to a client."""
        if text.startswith(b'{"type":"MESSAGE'):
            frame: dict[str, Any] = _decode(text)
            for each in frame.get("messages") or [frame]:
                place = (frame["topic"], each["partition"], each["offset"])
                self.deliver(frame["group"], place, each["envelope"]["id"], each.get("attempt", 1))

    def _at(self, place: Place, id: str) -> None:
        first = self._ids.setdefault(place, id)
        if first != id:
            self.breaks(f"{_text(place)} was event {first} and is event {id}")

    # -- when everything has come to rest

    def compare(
        self,
        topic: str,
        views: Mapping[str, Sequence[Any]],
        heads: Mapping[int, int],
        lost: set[Place],
        *,
        gaps: bool = False,
    ) -> None:
        """Compare with the events of a topic as each node shows them.

        `heads`: the first offset of each partition. `gaps`: others may be gone, too, because it is compacted.
        """
        shown = {node: [(each.partition, each.offset, each.id) for each in view] for node, view in views.items()}
        first = next(iter(shown.values()), [])
        for node, view in shown.items():
            if view != first:
                self.breaks(f"{node} shows other events of {topic!r}: {sorted(set(view) ^ set(first))[:3]}")
        stored = {(topic, partition, offset): id for partition, offset, id in first}
        for place, id in self._of(topic, self._ids):
            if place not in lost and stored.get(place, id) != id:
                self.breaks(f"{_text(place)} was event {id} and is event {stored[place]}")
        for place, id in self._of(topic, {} if gaps else self.confirmed):
            if place not in stored and place not in lost and place[2] >= heads.get(place[1], 1):
                self.breaks(f"event {id} was confirmed at {_text(place)} and is not there")
        # A letter that was sent to all groups is the same event once more, and says which letter it was.
        found = Counter((each.id, each.headers.get(REDRIVEN)) for each in next(iter(views.values()), []))
        for (id, _), count in found.items():
            if count > 1 and not topic.endswith(".DLQ"):
                self.breaks(f"event {id} is {count} times in {topic!r}")

    def _of(self, topic: str, found: Mapping[Place, str]) -> Iterable[tuple[Place, str]]:
        return [(place, id) for place, id in found.items() if place[0] == topic]


def _text(place: Place) -> str:
    topic, partition, offset = place
    return f"{topic} {partition}:{offset}"
