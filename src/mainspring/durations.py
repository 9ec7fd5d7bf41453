"""Durations and moments as people write them: "5m", "1h30m", "250ms", a number of seconds, a timedelta."""

from __future__ import annotations

import math
import re
from datetime import timedelta
from typing import Final

from mainspring.errors import MainspringError

Duration = str | int | float | timedelta

_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_PART: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)\s*", re.ASCII)


class BadDuration(MainspringError, ValueError, code="bad_duration"):
    """The value is not a duration."""


def seconds(given: Duration) -> float:
    """The duration in seconds, never negative. Raises BadDuration."""
    if isinstance(given, str):
        found = _from_text(given)
    elif isinstance(given, timedelta):
        found = given.total_seconds()
    else:
        found = None if isinstance(given, bool) or not isinstance(given, int | float) else given
    if found is None or not math.isfinite(found) or found < 0:
        raise BadDuration(
            f"{given!r} is not a duration",
            remedy='write a number of seconds, a timedelta, or text: "250ms", "30s", "5m", "1h30m", "2d"',
        )
    return found


def duration_ms(given: Duration) -> int:
    """The duration in whole milliseconds, never negative. Raises BadDuration."""
    return round(seconds(given) * 1_000)


def timeout_ms(given: Duration) -> float:
    """How long a request may take, in ms. Raises BadDuration, also for none at all."""
    ms = seconds(given) * 1_000
    if not ms:
        raise BadDuration("a timeout of 0 leaves no time for an answer", remedy="give a longer one")
    return ms


def _from_text(text: str) -> float | None:
    total, at = 0.0, 0
    while found := _PART.match(text, at):
        total += float(found[1]) * _UNITS_MS[found[2]]
        at = found.end()
    return total / 1_000 if 0 < at == len(text) else None


def per_second(rate: str) -> float:
    """How many per second "100/s", "30/m" or "10/h" are. Raises BadDuration."""
    count, _, unit = rate.partition("/") if isinstance(rate, str) else ("", "", "")
    try:
        found = float(count) * 1_000 / _UNITS_MS[unit]
    except (ValueError, KeyError):
        found = 0.0
    if not 0 < found < math.inf:
        raise BadDuration(f"{rate!r} is not a rate", remedy='write "100/s", "30/m" or "10/h"')
    return found


def duration_text(ms: int) -> str:
    """The shortest way to write it: 7d, 1h30m, 250ms."""
    parts = []
    for unit, size in reversed(_UNITS_MS.items()):
        if unit != "w" and ms >= size:
            parts.append(f"{ms // size}{unit}")
            ms %= size
    return "".join(parts) or "0"
