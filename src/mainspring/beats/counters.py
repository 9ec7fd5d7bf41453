"""What a heartbeat counts: beats that happened, and what was in them."""

from __future__ import annotations

from collections import Counter
from operator import attrgetter

from mainspring.beats.history.report import Report
from mainspring.telemetry.histogram import Histogram, nanoseconds

_result = attrgetter("result")
_code = attrgetter("code")


class BeatTally:
    """Counted since this process opened the line. `ns` is filled by whoever drives the beats and has a clock."""

    __slots__ = ("beats", "diagnostics", "emitted", "failed", "ns", "results", "signals", "staged")

    def __init__(self) -> None:
        self.beats: int = 0
        self.failed: int = 0  # beats that did not happen: a log that could not write, an inlet that failed
        self.signals: int = 0
        self.staged: int = 0
        self.emitted: int = 0
        self.results: Counter[str] = Counter()  # of calls: ok, retry, failed, fatal; and duplicate
        self.diagnostics: Counter[str] = Counter()
        self.ns: Histogram = nanoseconds()

    def count(self, report: Report) -> None:
        """A beat happened."""
        self.beats += 1
        self.signals += len(report.inbox)
        self.staged += len(report.staged)
        self.emitted += len(report.emitted)
        self.results.update(map(_result, report.agenda))
        self.diagnostics.update(map(_code, report.diagnostics))
