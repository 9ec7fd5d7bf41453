"""What every benchmark does: both sides take turns, figures are medians over rounds, conditions stand beside them, and
one JSON object is printed.

A shared machine is never quiet for long. So two things that are compared are measured alternately in the same run, and
a ratio is the median of the ratios of its rounds; `spread` is the smallest and the largest of them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from mainspring.loop import new_event_loop

Figures = dict[str, Any]
Pairs = Sequence[tuple[float, float]]


def options(description: str | None, **more: str) -> argparse.Namespace:
    """The command line of one part. `more` are further switches and their help texts."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small numbers: to see that it works, not to quote")
    parser.add_argument("--long", action="store_true", help="also what takes many minutes")
    for name, text in more.items():
        parser.add_argument(f"--{name.replace('_', '-')}", action="store_true", help=text)
    return parser.parse_args()


def report(figures: Figures, **conditions: Any) -> None:
    """Print the figures of one part, with the conditions they were measured under."""
    machine = {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "loop": type(new_event_loop()).__module__.partition(".")[0],
        "load": [round(load, 1) for load in os.getloadavg()],
    }
    print(json.dumps({"conditions": {**conditions, **machine}, **figures}, indent=2))


def progress(part: str, step: str, figures: Any) -> None:
    """A line for whoever waits, on standard error."""
    print(f"{part}: {step}: {json.dumps(figures)}", file=sys.stderr, flush=True)


def alternate(first: Callable[[], float], second: Callable[[], float], rounds: int) -> list[tuple[float, float]]:
    """Both in turns; a round before the first warms up and is not counted."""
    return [(first(), second()) for _ in range(rounds + 1)][1:]


async def alternate_async(
    first: Callable[[], Awaitable[float]], second: Callable[[], Awaitable[float]], rounds: int
) -> list[tuple[float, float]]:
    """Like `alternate`."""
    return [(await first(), await second()) for _ in range(rounds + 1)][1:]


def medians(rows: Iterable[Sequence[float]]) -> list[float]:
    """The median of each column."""
    return [statistics.median(column) for column in zip(*rows, strict=True)]


def ratio(pairs: Iterable[Sequence[float]], digits: int = 2) -> float:
    """How many times the second of each pair fits into the first: the median."""
    return round(statistics.median(pair[0] / pair[1] for pair in pairs), digits)


def spread(pairs: Iterable[Sequence[float]], digits: int = 2) -> list[float]:
    """The smallest and the largest ratio of the rounds."""
    found = [pair[0] / pair[1] for pair in pairs]
    return [round(min(found), digits), round(max(found), digits)]


def summary(values: Iterable[float], digits: int | None = None) -> Figures:
    """The median of the rounds, the smallest and the largest of them."""
    found = list(values)
    low, middle, high = (round(value, digits) for value in (min(found), statistics.median(found), max(found)))
    return {"median": middle, "spread": [low, high]}


def versus(mine: Iterable[float], theirs: Iterable[float]) -> Figures:
    """How many times each of theirs fits into mine of the same round: the median, the smallest and the largest."""
    pairs = list(zip(mine, theirs, strict=True))
    return {"ratio": ratio(pairs), "spread": spread(pairs)}


def compare(
    base: Callable[[], float],
    other: Callable[[], float],
    names: tuple[str, str],
    rounds: int,
    *,
    scale: float = 1.0,
    digits: int = 0,
) -> Figures:
    """The time of both (times `scale`), and how many times `base` fits into `other`."""
    pairs = alternate(base, other, rounds)
    first, second = medians(pairs)
    turned = [(theirs, mine) for mine, theirs in pairs]
    return {
        names[0]: round(first * scale, digits or None),
        names[1]: round(second * scale, digits or None),
        "ratio": ratio(turned),
        "spread": spread(turned),
    }
