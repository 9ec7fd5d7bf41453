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


class BadDuration(MainspringError, code="bad_duration"):
    """The text or number is not a duration."""


def duration_ms(given: Duration) -> int:
    """The duration in whole milliseconds, never negative. Raises BadDuration."""
    if isinstance(given, timedelta):
        given = given.total_seconds()
    if isinstance(given, str):
        ms = _from_text(given)
    elif isinstance(given, bool) or not isinstance(given, int | float) or not math.isfinite(given) or given < 0:
        ms = None
    else:
        ms = round(given * 1_000)
    if ms is None:
        raise BadDuration(
            f"{given!r} is not a duration", remedy='write "250ms", "30s", "5m", "1h30m", "2d" or a number of seconds'
        )
    return ms


def _from_text(text: str) -> int | None:
    total, at = 0.0, 0
    while found := _PART.match(text, at):
        total += float(found[1]) * _UNITS_MS[found[2]]
        at = found.end()
    return round(total) if 0 < at == len(text) else None


def duration_text(ms: int) -> str:
    """The shortest way to write it: 7d, 1h30m, 250ms."""
    parts = []
    for unit, size in reversed(_UNITS_MS.items()):
        if unit != "w" and ms >= size:
            parts.append(f"{ms // size}{unit}")
            ms %= size
    return "".join(parts) or "0"
