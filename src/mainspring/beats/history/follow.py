"""Looking at lines of beats from outside, beside whoever drives them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mainspring.beats.calls import run_now
from mainspring.beats.history.fork import lines
from mainspring.beats.storage.journal import Fact, read_journal
from mainspring.beats.storage.line import Head, Line, Unhurried
from mainspring.log import BlockingLog


def lines_of(log: BlockingLog) -> dict[str, Head]:
    """Every line of beats in a log and where it stands."""
    return run_now(lines(Unhurried(log)))


def follow(
    log: BlockingLog, line: str, first: int | None, wait: Callable[[], object]
) -> Iterator[tuple[int, list[Fact]]]:
    """The beats of a line as they happen, from `first` on or from the next; `wait` is called when there is none new."""
    watched = Line(Unhurried(log), line)
    beat = first if first is not None else run_now(watched.head()).beat + 1
    while True:
        if beat > run_now(watched.head()).beat:
            wait()
            continue
        journal = run_now(watched.journal(beat))
        if journal is not None:
            yield beat, read_journal(beat, journal)
        beat += 1
