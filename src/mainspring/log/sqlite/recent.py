"""The events that were committed last, still in memory.

Most reads follow a commit closely: a consumer that keeps up asks for what was published a moment ago, and ten groups
ask ten times. These reads need neither the disk nor another thread. What is kept is the newest run of each partition
without gaps, up to a budget for all partitions together; whoever asks for anything older reads the file.
"""

from __future__ import annotations

import threading
from collections import deque

from mainspring.log.contract import Append, StoredEvent
from mainspring.log.measure import event_bytes
from mainspring.log.sqlite.ledger import Slot

OVERHEAD_BYTES = 400  # of the objects around one event's bytes


class _Run:
    __slots__ = ("events", "first", "gone")

    def __init__(self, first: int) -> None:
        self.first = first  # offset of events[gone]
        self.gone = 0  # how many at the front are let go but not yet cut off
        self.events: list[Append | None] = []


class Recent:
    """Filled by the writer's thread, read by the loop's."""

    def __init__(self, budget_bytes: int) -> None:
        self._room = budget_bytes
        self._lock = threading.Lock()
        self._runs: dict[Slot, _Run] = {}
        self._oldest: deque[tuple[Slot, _Run, int]] = deque()  # bytes of each event, oldest first

    def add(self, appended: list[tuple[Slot, Append]]) -> None:
        """Events of a commit that is on disk but not settled: their slots still know the tails before it."""
        with self._lock:
            for slot, event in appended:
                run = self._runs.get(slot)
                if run is None:
                    assert slot.saved is not None
                    run = self._runs[slot] = _Run(slot.saved[0] + 1)
                run.events.append(event)
                size = OVERHEAD_BYTES + len(event.payload) + (len(event.headers) if event.headers else 0)
                self._oldest.append((slot, run, size))
                self._room -= size
            while self._room < 0 and self._oldest:
                self._let_go()

    def _let_go(self) -> None:
        slot, run, size = self._oldest.popleft()
        self._room += size
        run.events[run.gone] = None
        run.gone += 1
        run.first += 1
        if run.gone == len(run.events):
            if self._runs.get(slot) is run:
                del self._runs[slot]
        elif run.gone >= 1024 and run.gone * 2 > len(run.events):
            del run.events[: run.gone]
            run.gone = 0

    def forget(self, slot: Slot) -> None:
        """Some of the partition's events were removed: from now on the file says which. Its memory is given back as the
        events grow old."""
        with self._lock:
            self._runs.pop(slot, None)

    def clear(self) -> None:
        with self._lock:
            self._runs.clear()

    def read(self, slot: Slot, start: int, limit: int, max_bytes: int) -> list[StoredEvent] | None:
        """What `Engine.read` would give, or None when the file must be asked."""
        with self._lock:
            run = self._runs.get(slot)
            if run is None or start < run.first:
                return None
            at = start - run.first + run.gone
            events = run.events[at : at + max(0, limit)]
        found: list[StoredEvent] = []
        topic, partition = slot.topic, slot.partition
        for offset, event in enumerate(events, start):
            assert event is not None
            max_bytes -= event_bytes(event)
            if max_bytes < 0 and found:
                break
            found.append(
                StoredEvent(topic, partition, offset, event.id, event.ts, event.payload, event.key, event.headers)
            )
        return found
