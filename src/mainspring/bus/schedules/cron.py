"""Cron lines: minute, hour, day of month, month, day of week, in UTC or in a time zone.

Each field takes `*`, numbers, ranges `a-b`, steps `*/n` and `a-b/n`, lists, and names (jan, mon). 0 and 7 are Sunday.
When both day fields are restricted, a day matches if either does, as cron has always done.

Where a time zone sets its clocks, the rules are those of Debian's cron. A line with fixed hours and minutes (`30 2 * *
*`) fires once a day: a time that the clocks skip is made up at the end of the gap, and a time that comes twice counts
the first time. A line whose hour or minute begins with `*` (`*/15 * * * *`) is about time that passes: it fires
whenever a clock on the wall shows a matching time, also when it shows it a second time, and nothing is made up.

Why this is written here: docs/decisions/schedules.md.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

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
_MINUTE: Final = timedelta(minutes=1)
_EPOCH: Final = datetime.fromtimestamp(0, UTC).replace(tzinfo=None)


class CronLine:
    """A parsed line; raises BadFrame for one that is none, or for an unknown time zone."""

    def __init__(self, line: str, timezone: str | None = None) -> None:
        parts = line.split()
        if len(parts) != len(_FIELDS):
            raise BadFrame(
                f"a cron line has five fields, {line[:60]!r} has {len(parts)}", remedy="write e.g. 0 3 * * *"
            )
        fields = [_parse(part, *field) for part, field in zip(parts, _FIELDS, strict=True)]
        self._times = sorted(hour * 60 + minute for hour in fields[1] for minute in fields[0])
        self._days, self._months = fields[2], fields[3]
        self._weekdays = {day % 7 for day in fields[4]}
        self._either_day = not parts[2].startswith("*") and not parts[4].startswith("*")
        self._fixed = not parts[0].startswith("*") and not parts[1].startswith("*")
        self._zone = UTC if timezone is None else _zone(timezone)
        self.next_after(0)  # a line that never matches (30 2 31 2 *) is refused here

    def next_after(self, ms: int) -> int:
        """The first matching minute strictly after this instant (epoch ms)."""
        zone = self._zone
        after = datetime.fromtimestamp(ms // 1000, UTC)
        local = after.astimezone(zone).replace(tzinfo=None)
        day, from_minute = local.date(), local.hour * 60 + local.minute + 1
        for _ in range(_MOST_DAYS):
            if self._matches(day):
                midnight = datetime.combine(day, time.min)
                offset = _offset(midnight, zone)
                if zone is UTC or offset == _offset(midnight + timedelta(days=1), zone):
                    at = bisect_left(self._times, from_minute)
                    if at < len(self._times):
                        return _ms(midnight + timedelta(minutes=self._times[at]) - offset)
                else:
                    later = [each for each in self._instants(midnight) if each > ms]
                    if later:
                        return min(later)
            day, from_minute = day + timedelta(days=1), 0
        raise BadFrame("the cron line never matches", remedy="check day and month")

    def _instants(self, midnight: datetime) -> Iterator[int]:
        """Every firing of a day on which the clocks are set."""
        zone = self._zone
        for minutes in self._times:
            local = midnight + timedelta(minutes=minutes)
            first, second = local - _offset(local, zone), local - _offset(local.replace(fold=1), zone)
            if second < first:  # the clocks skip it: the gap ends between the two
                while self._fixed and _at(second, zone) < local:
                    second += _MINUTE
                if self._fixed:
                    yield _ms(second)
                continue
            yield _ms(first)
            if not self._fixed and second > first:
                yield _ms(second)

    def _matches(self, day: date) -> bool:
        if day.month not in self._months:
            return False
        by_month, by_week = day.day in self._days, day.isoweekday() % 7 in self._weekdays
        return (by_month or by_week) if self._either_day else (by_month and by_week)


@lru_cache(maxsize=4096)
def cron_line(line: str, timezone: str | None = None) -> CronLine:
    """A parsed line; each is parsed once."""
    return CronLine(line, timezone)


def _offset(local: datetime, zone: tzinfo) -> timedelta:
    offset = local.replace(tzinfo=zone).utcoffset()
    assert offset is not None
    return offset


def _at(utc: datetime, zone: tzinfo) -> datetime:
    """What the clocks of the zone show at an instant."""
    return utc.replace(tzinfo=UTC).astimezone(zone).replace(tzinfo=None)


def _ms(utc: datetime) -> int:
    return (utc - _EPOCH) // timedelta(milliseconds=1)


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # unknown, not a name, a directory
        raise BadFrame(
            f"{name[:60]!r} is not a time zone that this machine knows",
            remedy='write e.g. "Europe/Berlin"; without a database of time zones, pip install tzdata',
        ) from None


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
