"""Liveness: why a loop must not end yet.

A loop is quiescent when nothing is ready, no timer is pending and nobody holds it. Adapters that can still bring
input, requests that wait for an answer and bytes that are not written yet are invisible to the loop, so their owners
hold it: one hold per reason, released when the reason is gone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import TracebackType


class Hold:
    """One reason to stay alive. Release it once, or use it in a `with` block; releasing again does nothing."""

    __slots__ = ("_release", "also", "reason")

    def __init__(self, reason: str, release: Callable[[Hold], None], also: Callable[[], object] | None = None) -> None:
        self.reason: str = reason
        self.also: Callable[[], object] | None = also
        self._release: Callable[[Hold], None] | None = release

    def release(self) -> None:
        """The reason is gone. Doing it again does nothing."""
        release, self._release = self._release, None
        if release is not None:
            release(self)

    def __enter__(self) -> Hold:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()


class Holds:
    """All holds of one loop, counted by reason."""

    __slots__ = ("_count", "_on_release", "_reasons")

    def __init__(self, on_release: Callable[[], object]) -> None:
        self._reasons: Counter[str] = Counter()
        self._count = 0
        self._on_release = on_release

    def __len__(self) -> int:
        return self._count

    def hold(self, reason: str, also: Callable[[], object] | None = None) -> Hold:
        """A new hold; `also` is called when it is released."""
        self._reasons[reason] += 1
        self._count += 1
        return Hold(reason, self._end, also)

    def reasons(self) -> dict[str, int]:
        return dict(self._reasons)

    def _end(self, hold: Hold) -> None:
        if hold.also is not None:
            hold.also()
        self._count -= 1
        self._reasons[hold.reason] -= 1
        if not self._reasons[hold.reason]:
            del self._reasons[hold.reason]
        self._on_release()
