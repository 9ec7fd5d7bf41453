"""Spans of time as people write them: "5m", "1h30m", "250ms", a number of seconds, a timedelta."""

from __future__ import annotations

import math
import re
from datetime import timedelta
from typing import Final

from mainspring.errors import MainspringError

Duration = str | int | float | timedelta

_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)\s*")
_REMEDY: Final = 'write "250ms", "30s", "5m", "1h30m", "2d" or a number of seconds'


class BadDuration(MainspringError):
    """The text or number is no span of time."""

    code = "bad_duration"


def duration_ms(given: Duration) -> int:
    """The span in whole milliseconds, never negative. Raises BadDuration."""
    if isinstance(given, timedelta):
        given = given.total_seconds()
    if isinstance(given, str):
        return _from_text(given)
    if isinstance(given, bool) or not isinstance(given, int | float) or not math.isfinite(given) or given < 0:
        raise BadDuration(f"{given!r} is no span of time", remedy=_REMEDY)
    return round(given * 1_000)


def _from_text(text: str) -> int:
    rest, total = text.strip(), 0.0
    if not rest:
        raise BadDuration("an empty text is no span of time", remedy=_REMEDY)
    while rest:
        found = _PART.match(rest)
        if found is None:
            raise BadDuration(f"{text!r} is no span of time", remedy=_REMEDY)
        total += float(found[1]) * _UNITS_MS[found[2]]
        rest = rest[found.end() :]
    return round(total)
