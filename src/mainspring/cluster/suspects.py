"""Work with which the process ended more than once is begun alone, so that only the work that does it is blamed.

A handler can end its process: `os._exit`, a crash in C code, too much memory. Nobody can say afterwards which of the
handlers did it. So what may have been under way is counted in the log before it is begun again, and what is counted
when the process ends once more is a suspect. Suspects begin when the node is up and people can reach it, one at a time,
those first with which the process ended least often. The innocent ones get done; the guilty one uses up its attempts.

Consumers, durable commands and effects of runs share one queue: each counts in its own records, and decides by itself
what becomes of a suspect that used up its attempts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

MOST_ENDS: Final = 5  # of the process while something is handled that has no number of attempts of its own
PAUSE_MS: Final = 1_000  # after the start: somebody may want to cancel the one that ends the process
LOOK_MS: Final = 20
ALONE_MS: Final = 60_000  # for all that wait: something may take hours; what ends its process usually does so at once
LEAST_ALONE_MS: Final = 1_000

Later = Callable[[int, Callable[[], None]], object]


class _Suspect(NamedTuple):
    ends: int
    begin: Callable[[], bool]
    is_over: Callable[[], bool]


class Suspects:
    """The suspects of one node. `use` gives it a timer: a function of milliseconds and what to call then."""

    def __init__(self) -> None:
        self._waiting: list[_Suspect] = []
        self._alone: _Suspect | None = None
        self._alone_ms = 0
        self._is_busy: list[Callable[[], bool]] = []
        self._later: Later | None = None
        self._planned = False

    def use(self, later: Later) -> None:
        self._later = self._later or later

    def wait_for(self, is_busy: Callable[[], bool]) -> None:
        """Begin none while this is true: something is handled with which the process ended."""
        self._is_busy.append(is_busy)

    def add(self, ends: int, begin: Callable[[], bool], is_over: Callable[[], bool]) -> None:
        """Call `begin` when it is its turn; it gives False when it cannot begin now. `ends`: of the process, so far."""
        self._waiting.append(_Suspect(ends, begin, is_over))
        self._waiting.sort(key=lambda each: each.ends)
        self._plan(PAUSE_MS)

    def _plan(self, delay_ms: int) -> None:
        if not self._planned and self._later is not None:
            self._planned = True
            self._later(delay_ms, self._look)

    def _look(self) -> None:
        self._planned = False
        self._alone_ms += LOOK_MS
        self._waiting = [each for each in self._waiting if not each.is_over()]
        longest = max(LEAST_ALONE_MS, ALONE_MS // max(1, len(self._waiting)))
        if self._alone is not None and (self._alone_ms >= longest or self._alone.is_over()):
            self._alone = None
        if self._alone is None and not any(is_busy() for is_busy in self._is_busy):
            for each in tuple(self._waiting):
                if each.begin():
                    self._waiting.remove(each)
                    self._alone, self._alone_ms = each, 0
                    break
        if self._waiting:
            self._plan(LOOK_MS)
