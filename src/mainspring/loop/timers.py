"""The loop's timers: functions to call at a deadline, on top of the wheel.

A due timer leaves the wheel and waits in the user lane like any other turn. It can still be cancelled there: whoever
cancels a timeout may rely on it that the timeout's function is never called afterwards, however late the lane is.
"""

from __future__ import annotations

from collections.abc import Hashable
from itertools import count

from mainspring.loop.errors import DuplicateTimer
from mainspring.loop.lanes import Turn
from mainspring.loop.timer_wheel import TimerEntry, TimerWheel


class Timers:
    """Pending and due timers, by id. Deadlines are milliseconds of the loop's clock."""

    __slots__ = ("_due", "_ids", "_unref", "_wheel")

    def __init__(self) -> None:
        self._wheel = TimerWheel()
        self._due: dict[Hashable, TimerEntry] = {}  # handed out by the wheel, waiting in the user lane
        self._unref: set[Hashable] = set()  # pending, but no reason to stay alive
        self._ids = count(1)

    def __len__(self) -> int:
        """All timers that have not run yet."""
        return len(self._wheel) + len(self._due)

    @property
    def keeping_alive(self) -> int:
        """How many pending timers are a reason to stay alive. Those already due count as ready turns instead."""
        return len(self._wheel) - len(self._unref)

    def schedule(self, deadline_ms: int, turn: Turn, timer_id: Hashable | None, kind: str, ref: bool) -> Hashable:
        if timer_id is None:
            timer_id = next(self._ids)
        elif timer_id in self._due:
            raise DuplicateTimer(f"timer {timer_id!r} is still due", remedy="cancel it first, or use another id")
        self._wheel.schedule(TimerEntry(timer_id, deadline_ms, turn, kind))
        if not ref:
            self._unref.add(timer_id)
        return timer_id

    def cancel(self, timer_id: Hashable) -> bool:
        """False when there is no such timer any more, or never was."""
        if not self._wheel.cancel(timer_id):
            return self._due.pop(timer_id, None) is not None
        if self._unref:
            self._unref.discard(timer_id)
        return True

    def has_ready(self, now_ms: int) -> bool:
        return self._wheel.has_ready(now_ms)

    def next_deadline(self) -> int | None:
        return self._wheel.next_deadline()

    def take_ready(self, now_ms: int) -> list[Turn]:
        """The turns of all timers due at `now_ms`, by deadline, equal deadlines in order of registration."""
        if not len(self._wheel):
            return []
        fire, due, unref = self._fire, self._due, self._unref
        turns: list[Turn] = []
        for entry in self._wheel.take_ready(now_ms):
            due[entry.id] = entry
            unref.discard(entry.id)
            turns.append((fire, entry))
        return turns

    def _fire(self, entry: TimerEntry) -> None:
        """The turn of a due timer, unless it was cancelled while it waited in the lane."""
        if self._due.get(entry.id) is entry:
            del self._due[entry.id]
            function, argument = entry.message
            function(argument)

    def unwrap(self, turn: Turn) -> Turn:
        """The turn its author knows: that of a timer, instead of `_fire`."""
        message: Turn = turn[1].message if turn[0] == self._fire else turn
        return message
