"""Cron lines: minute, hour, day of month, month, day of week, in UTC.

Written here because it is little: five sets of numbers and a walk over days. Each field takes `*`, numbers, ranges
`a-b`, steps `*/n` and `a-b/n`, lists, and names (jan, mon). 0 and 7 are Sunday. When both day fields are restricted, a
day matches if either does, as cron has always done. Times are UTC: a schedule that must not fire twice or not at all
cannot follow clocks that are set forward and back.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from mainspring.bus.errors import BadFrame

_MONTHS: Final = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_DAYS: Final = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]
_NO_NAMES: Final[dict[str, int]] = {}
_FIELDS: Final = (
    ("minute", 0, 59, _NO_NAMES),
    ("hour", 0, 23, _NO_NAMES),
    ("day of month", 1, 31, _NO_NAMES),
    ("month", 1, 12, {name: number for number, name in enumerate(_MONTHS, 1)}),
    ("day of week", 0, 7, {name: number for number, name in enumerate(_DAYS)}),
)
_MOST_DAYS: Final = 366 * 8 + 2  # 29 February may be eight years away


class CronLine:
    """A parsed line; raises BadFrame for one that is none."""

    def __init__(self, line: str) -> None:
        parts = line.split()
        if len(parts) != len(_FIELDS):
            raise BadFrame(
                f"a cron line has five fields, {line[:60]!r} has {len(parts)}", remedy="write e.g. 0 3 * * *"
            )
        fields = [_parse(part, *field) for part, field in zip(parts, _FIELDS, strict=True)]
        self._minutes, self._hours = sorted(fields[0]), sorted(fields[1])
        self._days, self._months = fields[2], fields[3]
        self._weekdays = {day % 7 for day in fields[4]}
        self._either_day = not parts[2].startswith("*") and not parts[4].startswith("*")
        self.next_after(0)  # a line that never matches (30 2 31 2 *) is refused here

    def next_after(self, ms: int) -> int:
        """The first matching minute strictly after this instant (epoch ms)."""
        start = datetime.fromtimestamp(ms // 60_000 * 60, UTC) + timedelta(minutes=1)
        day = start.replace(hour=0, minute=0)
        for _ in range(_MOST_DAYS):
            if self._matches(day):
                for hour in self._hours:
                    for minute in self._minutes:
                        moment = day.replace(hour=hour, minute=minute)
                        if moment >= start:
                            return int(moment.timestamp()) * 1000
            day += timedelta(days=1)
        raise BadFrame("the cron line never matches", remedy="check day and month")

    def _matches(self, day: datetime) -> bool:
        if day.month not in self._months:
            return False
        by_month, by_week = day.day in self._days, day.isoweekday() % 7 in self._weekdays
        return (by_month or by_week) if self._either_day else (by_month and by_week)


def _parse(text: str, what: str, least: int, most: int, names: dict[str, int]) -> set[int]:
    found: set[int] = set()
    for part in text.lower().split(","):
        span, _, step = part.partition("/")
        first, dash, last = span.partition("-")
        if span == "*":
            low, high = least, most
        else:
            low = _number(first, what, names)
            high = _number(last, what, names) if dash else (most if step else low)
        every = _number(step, what, _NO_NAMES) if "/" in part else 1
        if not least <= low <= high <= most or every < 1:
            raise BadFrame(f"{part!r} does not fit the {what} of a cron line", remedy=f"use {least} to {most}")
        found.update(range(low, high + 1, every))
    return found


def _number(text: str, what: str, names: dict[str, int]) -> int:
    if text in names:
        return names[text]
    if not (text.isascii() and text.isdigit() and len(text) < 5):
        raise BadFrame(f"{text[:20]!r} is no {what} of a cron line", remedy="use numbers, ranges, steps or names")
    return int(text)
