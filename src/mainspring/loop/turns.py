"""Making turns: the innermost part of the loop, and the only place that runs other people's code.

Before every turn the lanes are looked at anew: the system lane first, else the user lane. That one rule is the whole
tick of the design: the system lane drains completely, also what arrives while draining, then comes one user turn.

A turn that raises is reported with what raised, and the next turn follows. Only `KeyboardInterrupt` and `SystemExit`
pass through: they are meant for the program, not for the turn they happened to interrupt.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from itertools import repeat
from operator import length_hint
from typing import Any

from mainspring.loop.counters import FailedTurn, SlowTurn, turn_name
from mainspring.loop.lanes import Lanes, Turn

_log = logging.getLogger("mainspring.loop")


class Turns:
    """Takes turns from the lanes and makes them, with counts, the slow-turn hook and the error hook."""

    __slots__ = (
        "_lanes",
        "_notable_ns",
        "_now_ns",
        "_on_error",
        "_on_slow_turn",
        "_slow_ns",
        "_unwrap",
        "failed",
        "longest",
        "longest_ns",
        "made",
        "running",
        "slow",
    )

    def __init__(
        self,
        lanes: Lanes,
        now_ns: Callable[[], int],
        *,
        slow_turn_ms: float | None,
        on_slow_turn: Callable[[SlowTurn], object] | None,
        on_error: Callable[[FailedTurn], object] | None,
        unwrap: Callable[[Turn], Turn],
    ) -> None:
        self._lanes = lanes
        self._now_ns = now_ns
        self._slow_ns = round(slow_turn_ms * 1_000_000) if slow_turn_ms else sys.maxsize
        self._on_slow_turn = on_slow_turn or _log_slow_turn
        self._on_error = on_error or _log_failed_turn
        self._unwrap = unwrap
        self._notable_ns = 0
        self.made: int = 0
        self.failed: int = 0
        self.slow: int = 0
        self.longest_ns: int = 0
        self.longest: str = ""
        self.running: bool = False

    def make(self, budget: int) -> int:
        """Make up to `budget` turns, fewer when the lanes run empty; returns how many."""
        system, user = self._lanes.system, self._lanes.user
        take_system, take_user = system.popleft, user.popleft
        now_ns = self._now_ns
        notable = self._notable_ns
        from_system = short = 0
        left = repeat(None, budget)  # an iterator, so that the count survives a turn that raises
        function: Callable[[Any], object] = repr
        argument: Any = None
        self.running = True
        started = now_ns()
        try:
            while True:
                try:
                    for _ in left:
                        if system:
                            function, argument = take_system()
                            from_system += 1
                        elif user:
                            function, argument = take_user()
                        else:
                            short = 1
                            break
                        function(argument)
                        ended = now_ns()
                        if ended - started > notable:
                            notable = self._note(function, argument, ended - started)
                            ended = now_ns()
                        started = ended
                    return budget - length_hint(left) - short
                except (KeyboardInterrupt, SystemExit):
                    raise
                except BaseException as error:
                    notable = self._note(function, argument, now_ns() - started)
                    self._report(function, argument, error)
                    started = now_ns()
        finally:
            self.running = False
            made = budget - length_hint(left) - short
            self.made += made
            system.taken += from_system
            user.taken += made - from_system

    def make_now(self, function: Callable[[Any], object], argument: Any) -> None:
        """Make one user turn that never waited in its lane, with the same accounts as the others."""
        self.running = True
        started = self._now_ns()
        try:
            function(argument)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            self._report(function, argument, error)
        finally:
            self.running = False
            self.made += 1
            self._lanes.user.taken += 1
            duration = self._now_ns() - started
            if duration > self._notable_ns:
                self._note(function, argument, duration)

    def _note(self, function: Callable[[Any], object], argument: Any, duration_ns: int) -> int:
        """Remember a turn that is longer than any before, report it when it is slow; returns what is notable now."""
        if duration_ns > self.longest_ns:
            self.longest_ns = duration_ns
            self.longest = turn_name(*self._unwrap((function, argument)))
        if duration_ns > self._slow_ns:
            self.slow += 1
            name = turn_name(*self._unwrap((function, argument)))
            _call(self._on_slow_turn, SlowTurn(name, duration_ns / 1_000_000, self._slow_ns / 1_000_000))
        self._notable_ns = min(self.longest_ns, self._slow_ns)
        return self._notable_ns

    def _report(self, function: Callable[[Any], object], argument: Any, error: BaseException) -> None:
        self.failed += 1
        function, argument = self._unwrap((function, argument))
        _call(self._on_error, FailedTurn(turn_name(function, argument), error, function, argument))


def _call(hook: Callable[[Any], object], report: SlowTurn | FailedTurn) -> None:
    """A hook that raises must neither stop the loop nor hide what it was told."""
    try:
        hook(report)
    except Exception:
        _log.exception("the hook for a turn raised; it was told: %s", report)


def _log_slow_turn(report: SlowTurn) -> None:
    _log.warning("slow turn: %s", report)


def _log_failed_turn(report: FailedTurn) -> None:
    _log.error("failed turn: %s", report, exc_info=report.error)
