"""The two lanes: what waits for a turn.

System work always goes first and keeps its order; user work keeps its order. The choice is made anew before every
turn, so a fault signal never waits for more than the one user turn that is already running.

Knowing how long the oldest turn has waited would normally cost a clock reading per arrival. A lane notes instead, once
per slice, how many arrivals it has seen in all (`mark`). Whatever arrived between two marks is dated by the later one,
so an age is exact to one slice and never exaggerated, and an arrival costs nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias

Turn: TypeAlias = tuple[Callable[[Any], object], Any]
"""A function and its one argument: what a lane holds."""


class Lane(deque[Turn]):
    """First in, first out. `taken` counts what has left; whoever takes turns out directly keeps it right."""

    __slots__ = ("_marks", "taken")

    def __init__(self) -> None:
        super().__init__()
        self.taken: int = 0
        self._marks: deque[tuple[int, int]] = deque()

    def mark(self, now_ms: int) -> None:
        """Date every arrival since the last mark as `now_ms`."""
        marks = self._marks
        taken = self.taken
        while marks and marks[0][0] <= taken:
            marks.popleft()
        arrived = taken + len(self)
        if arrived > (marks[-1][0] if marks else taken):
            marks.append((arrived, now_ms))

    def waiting_ms(self, now_ms: int) -> int:
        """How long, at least, the oldest turn of this lane has waited; 0 when it is empty."""
        taken = self.taken
        for arrived, marked_ms in self._marks:
            if arrived > taken:
                return now_ms - marked_ms
        return 0


class Lanes:
    """The system lane and the user lane, and the rule which goes first."""

    __slots__ = ("system", "user")

    def __init__(self) -> None:
        self.system: Lane = Lane()
        self.user: Lane = Lane()

    def push_system(self, turn: Turn) -> None:
        """Queue a turn that goes before every user turn."""
        self.system.append(turn)

    def push_user(self, turn: Turn) -> None:
        """Queue a user turn."""
        self.user.append(turn)

    def take(self) -> Turn | None:
        """The next turn: the system lane's if it has one, else the user lane's, else None."""
        lane = self.system or self.user
        if not lane:
            return None
        lane.taken += 1
        return lane.popleft()

    def __len__(self) -> int:
        return len(self.system) + len(self.user)

    def mark(self, now_ms: int) -> None:
        """Date what arrived since the last mark."""
        if self.user:
            self.user.mark(now_ms)
        if self.system:
            self.system.mark(now_ms)

    def waiting_ms(self, now_ms: int) -> int:
        """The age of the oldest waiting turn of both lanes."""
        return max(self.system.waiting_ms(now_ms), self.user.waiting_ms(now_ms))
