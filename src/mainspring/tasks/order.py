"""Tasks with a key: one at a time per key, in order, also when one of them must wait for another try.

The node gives all tasks of a key to one worker, but several at once, as far as the window goes. Here they stand in
line. When the first of a line failed and waits at the node for its next try, the others keep their place behind it:
they were delivered, but are not started until it came back and was settled.

No clock and no connection in here; the worker tells what arrives and what ends.
"""

from __future__ import annotations

import bisect
from collections import deque
from typing import Any, Generic, TypeVar

from mainspring.client.event import Event

E = TypeVar("E", bound=Event[Any])


class KeyOrder(Generic[E]):
    """Lines of tasks, one per key."""

    def __init__(self) -> None:
        self.ready: deque[E] = deque()
        self._lines: dict[str, list[E]] = {}  # behind the one that runs or is awaited
        self._awaited: dict[str, int] = {}  # key -> offset that comes again
        self._busy: set[str] = set()
        self.blocked: int = 0  # tasks that stand behind an awaited one

    def arrived(self, event: E) -> None:
        """A task was delivered."""
        key = event.key
        if key is None:
            self.ready.append(event)
        elif key not in self._busy or self._awaited.get(key) == event.offset:
            if self._awaited.pop(key, None) is not None:
                self.blocked -= len(self._lines.get(key, ()))
            self._busy.add(key)
            self.ready.append(event)
        else:
            bisect.insort(self._lines.setdefault(key, []), event, key=lambda each: each.offset)
            if key in self._awaited:
                self.blocked += 1

    def ended(self, event: E) -> None:
        """A task was settled; the next of its key may start."""
        key = event.key
        if key is None or key not in self._busy:
            return
        line = self._lines.get(key)
        if line:
            self.ready.append(line.pop(0))
        else:
            self._lines.pop(key, None)
            self._busy.discard(key)

    def retrying(self, event: E) -> None:
        """A task waits at the node for its next try; its key waits with it."""
        key = event.key
        if key is not None and key in self._busy:
            self._awaited[key] = event.offset
            self.blocked += len(self._lines.get(key, ()))

    def drain(self) -> list[E]:
        """Everything that stands in line and was not started; the lines are empty afterwards."""
        found = [event for line in self._lines.values() for event in line]
        self._lines.clear()
        self.blocked = 0
        return found

    def lost(self, running: set[str]) -> None:
        """The connection is gone, and every lease with it; only keys whose task still runs stay busy."""
        self.ready.clear()
        self._lines.clear()
        self._awaited.clear()
        self._busy = {key for key in self._busy if key in running}
        self.blocked = 0

    def __len__(self) -> int:
        return len(self.ready) + sum(len(line) for line in self._lines.values())
