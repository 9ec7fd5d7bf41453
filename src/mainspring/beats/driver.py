"""Driving: when beats run.

A heartbeat does nothing by itself. A driver runs it on a loop: at an interval, when work arrives, or both. Neither
changes what a beat does, only when it happens, so a driven line replays like any other.

An interval is a grid of instants. When the loop was late (a long enzyme, a machine that slept), the instants that
passed are left out: there is one beat, then the next instant of the grid, and never a burst to catch up.

Driven by work, beats follow each other while the next one has an inbox. Signals for later beats, retries among them,
need the beats in between to pass; these are paced, so that a back-off in beats also takes time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable
from typing import Final

from mainspring.beats.calls import a_loop_runs_here
from mainspring.beats.errors import LineBusy, NotLeading
from mainspring.beats.heartbeat import Heartbeat
from mainspring.beats.report import BeatReport
from mainspring.errors import MainspringError, SettingError
from mainspring.log import InDoubt
from mainspring.loop import Loop

_log: Final = logging.getLogger("mainspring.beats")
# What must be seen when beats run by themselves; the rest is in the journal.
_WORTH_A_LINE: Final = frozenset(
    {"enzyme_failed", "dead_letter", "beat_aborted", "dependency_cycle", "emission_budget", "chain_depth"}
)

# A log that is away for minutes is one problem, not thousands: of failures in a row the first are logged, then a few.
_LOG_EACH: Final = 10
_LOG_EVERY: Final = 100


class Driver:
    """Runs a heartbeat on a loop until it is stopped.

    On a loop hosted by asyncio beats are awaited; on a bare loop each is one turn. `on_report` gets every report. An
    error (a log that cannot write now, an inlet that fails) is logged and the beat is tried again at the pace; when
    another process has taken the line over, the driver stops. Where several nodes share the log, each has a driver, and
    the one whose node leads the line runs its beats.
    """

    def __init__(
        self,
        heartbeat: Heartbeat,
        loop: Loop,
        *,
        interval_ms: int | None = None,
        on_work: bool = True,
        pace_ms: int = 100,
        on_report: Callable[[BeatReport], object] | None = None,
    ) -> None:
        if interval_ms is not None and interval_ms < 1:
            raise SettingError(f"interval_ms is a whole number of at least 1, not {interval_ms!r}")
        self._heartbeat = heartbeat
        self._loop = loop
        self._interval_ms = interval_ms
        self._on_work = on_work
        self._pace_ms = pace_ms
        self._on_report = on_report
        self._grid = 0
        self._timers: dict[str, Hashable] = {}
        self._running = False
        self._beating: asyncio.Task[None] | None = None
        self._posted = False
        self._again = False
        self._failures = 0  # in a row
        if on_work:
            heartbeat.on_signal(self.wake)

    def start(self) -> None:
        """Begin; work that waits already, here or where inlets take from, is worked on at once."""
        if self._running:
            return
        self._running = True
        if self._interval_ms is not None:
            self._grid = self._loop.clock.now_ms()
            self._next_instant()
        if self._on_work and self._heartbeat.may_have_work:
            self.wake()
        elif self._on_work and self._heartbeat.waiting_later:
            self._pace()

    async def stop(self) -> None:
        """Run no further beat; wait for the one that is under way."""
        self._running = False
        for timer in self._timers.values():
            self._loop.cancel(timer)
        self._timers.clear()
        if self._beating is not None:
            await asyncio.wait([self._beating])

    def wake(self) -> None:
        """Something arrived, here or where an inlet takes from. From any thread."""
        if self._running and not self._posted:
            self._posted = True
            self._loop.complete(self._worked, None)

    # --- when ---------------------------------------------------------------------------------------------------------

    def _next_instant(self) -> None:
        assert self._interval_ms is not None
        now = self._loop.clock.now_ms()
        self._grid += self._interval_ms * ((now - self._grid) // self._interval_ms + 1)
        self._timers["interval"] = self._loop.schedule_at(self._grid, self._instant, None, ref=False)

    def _instant(self, _: None) -> None:
        del self._timers["interval"]
        if self._running:
            if self._beating is None:
                self._run(for_work=False)
            self._keep_time()

    def _keep_time(self) -> None:
        """Plan the next instant, unless a beat is under way: then it is planned after it, from what time it is then."""
        if self._interval_ms is not None and "interval" not in self._timers and self._beating is None and self._running:
            self._next_instant()

    def _worked(self, _: None) -> None:
        self._posted = False
        if self._running:
            self._run()

    def _paced(self, _: None) -> None:
        self._timers.pop("pace", None)
        if self._running:
            self._run()

    def _pace(self) -> None:
        if "pace" not in self._timers and self._running:
            self._timers["pace"] = self._loop.schedule(self._pace_ms, self._paced, None, ref=False)

    # --- a beat -------------------------------------------------------------------------------------------------------

    def _run(self, *, for_work: bool = True) -> None:
        if self._beating is not None:
            self._again = True
            return
        if a_loop_runs_here():
            self._beating = asyncio.ensure_future(self._beat_on_loop(for_work=for_work))
            return
        if self._heartbeat.paused:
            return
        try:
            report = self._heartbeat.beat()
        except Exception as error:
            self._failed(error)
        else:
            self._after(report)

    async def _beat_on_loop(self, *, for_work: bool) -> None:
        report: BeatReport | None = None
        began_ns = self._loop.clock.now_ns()
        try:
            if await self._heartbeat.ready(for_work=for_work):
                report = await self._heartbeat.abeat()
                self._heartbeat.tally.ns.observe(self._loop.clock.now_ns() - began_ns)
        except Exception as error:
            self._failed(error)
        finally:
            self._beating = None
            self._keep_time()
        if report is not None:
            self._after(report)
        if self._again:
            self._again = False
            self.wake()

    def _after(self, report: BeatReport) -> None:
        self._failures = 0
        for note in report.diagnostics:
            if note.code in _WORTH_A_LINE:
                names = ", ".join(note.names)
                _log.warning(
                    "beat %d: %s: %s (%s, %s) %s", report.beat, note.code, names, note.signal, note.target, note.detail
                )
        if self._on_report is not None:
            self._on_report(report)
        if not self._on_work:
            return
        if report.aborted:
            self._pace()
        elif self._heartbeat.waiting or self._heartbeat.more_waits:
            self.wake()
        elif self._heartbeat.waiting_later:
            self._pace()

    def _failed(self, error: Exception) -> None:
        self._heartbeat.tally.failed += 1
        self._failures += 1
        if self._failures <= _LOG_EACH or self._failures % _LOG_EVERY == 0:
            unforeseen = None if isinstance(error, MainspringError) else error
            level = logging.WARNING if isinstance(error, NotLeading | InDoubt) else logging.ERROR
            _log.log(level, "beat %d did not happen: %s", self._heartbeat.next_beat, error, exc_info=unforeseen)
        if isinstance(error, LineBusy):
            self._running = False
        else:
            self._pace()
