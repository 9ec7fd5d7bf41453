"""Cron lines: when they fire, in UTC and where clocks are set forward and back.

The rules are those of Debian's cron.
"""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.bus import BadFrame
from mainspring.bus.schedules.cron import CronLine


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


@pytest.mark.parametrize(
    ("line", "after", "following"),
    [
        ("* * * * *", "2024-01-01T00:00:00", "2024-01-01T00:01:00"),
        ("*/15 * * * *", "2024-01-01T00:14:59", "2024-01-01T00:15:00"),
        ("0 3 * * *", "2024-01-01T03:00:00", "2024-01-02T03:00:00"),
        ("30 8-10/2 * * *", "2024-01-01T08:31:00", "2024-01-01T10:30:00"),
        ("0 0 29 2 *", "2023-01-01T00:00:00", "2024-02-29T00:00:00"),
        ("0 0 29 2 *", "2096-03-01T00:00:00", "2104-02-29T00:00:00"),
        ("0 12 * * mon", "2024-01-01T12:00:00", "2024-01-08T12:00:00"),
        ("0 12 * * 7", "2024-01-01T12:00:00", "2024-01-07T12:00:00"),
        ("0 12 13 * fri", "2024-01-01T00:00:00", "2024-01-05T12:00:00"),
        ("0 12 13 * *", "2024-01-01T00:00:00", "2024-01-13T12:00:00"),
        ("0 0 1 jan,jul *", "2024-01-01T00:00:00", "2024-07-01T00:00:00"),
        ("5,10 0 31 dec *", "2024-12-31T00:05:00", "2024-12-31T00:10:00"),
    ],
)
def test_cron_lines(line: str, after: str, following: str) -> None:
    assert CronLine(line).next_after(at(after)) == at(following)


@pytest.mark.parametrize(
    "line", ["", "* * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * * 13 *", "* * * * 8", "*/0 * * * *",
             "5-1 * * * *", "a * * * *", "* * * * * *", "0 0 31 2 *", "1, * * * *", "99999 * * * *"]
)  # fmt: skip
def test_lines_that_are_none(line: str) -> None:
    with pytest.raises(BadFrame):
        CronLine(line)


@given(st.integers(0, 4_000_000_000_000), st.sampled_from(["*/7 * * * *", "0 0 * * 1-5", "30 2 1,15 * *"]))
def test_the_next_time_is_later_and_nothing_lies_between(ms: int, line: str) -> None:
    cron = CronLine(line)
    following = cron.next_after(ms)
    assert following > ms
    assert following % 60_000 == 0
    assert cron.next_after(following - 1) == following


def firings(line: str, timezone: str, day: str, count: int) -> list[str]:
    """The next firings after a local midnight, as a clock on the wall shows them, with their distance to UTC."""
    zone, cron = ZoneInfo(timezone), CronLine(line, timezone)
    ms = int(datetime.fromisoformat(f"{day}T00:00:00").replace(tzinfo=zone).timestamp() * 1000) - 1
    found = []
    for _ in range(count):
        ms = cron.next_after(ms)
        found.append(datetime.fromtimestamp(ms / 1000, zone).strftime("%d %H:%M %z"))
    return found


GAP, REPEAT = "2026-03-29", "2026-10-25"  # in Berlin: 02:00 becomes 03:00, and 03:00 becomes 02:00


@pytest.mark.parametrize(
    ("line", "day", "expected"),
    [
        ("30 2 * * *", GAP, ["29 03:00 +0200", "30 02:30 +0200"]),  # skipped: made up once, at the end of the gap
        ("0,30 2 * * *", GAP, ["29 03:00 +0200", "30 02:00 +0200"]),
        ("0 3 * * *", GAP, ["29 03:00 +0200", "30 03:00 +0200"]),
        ("30 2,3 * * *", GAP, ["29 03:00 +0200", "29 03:30 +0200", "30 02:30 +0200"]),
        ("30 * * * *", GAP, ["29 00:30 +0100", "29 01:30 +0100", "29 03:30 +0200"]),  # an hour apart
        ("*/30 1-3 * * *", GAP, ["29 01:00 +0100", "29 01:30 +0100", "29 03:00 +0200", "29 03:30 +0200"]),
        ("30 2 * * *", REPEAT, ["25 02:30 +0200", "26 02:30 +0100"]),  # shown twice: the first time
        ("0 3 * * *", REPEAT, ["25 03:00 +0100", "26 03:00 +0100"]),
        ("30 * * * *", REPEAT, ["25 00:30 +0200", "25 01:30 +0200", "25 02:30 +0200", "25 02:30 +0100"]),
        ("*/30 2 * * *", REPEAT, ["25 02:00 +0200", "25 02:30 +0200", "25 02:00 +0100", "25 02:30 +0100"]),
    ],
)
def test_where_clocks_are_set(line: str, day: str, expected: list[str]) -> None:
    assert firings(line, "Europe/Berlin", day, len(expected)) == expected


@pytest.mark.parametrize(
    ("line", "timezone", "day", "expected"),
    [
        ("0 0 * * *", "Africa/Cairo", "2026-04-23", ["23 00:00 +0200", "24 01:00 +0300"]),  # midnight is skipped
        ("30 0 * * *", "America/Havana", "2026-11-01", ["01 00:30 -0400", "02 00:30 -0500"]),  # midnight comes twice
        ("15 2 * * *", "Australia/Lord_Howe", "2026-10-04", ["04 02:30 +1100", "05 02:15 +1100"]),  # by half an hour
        ("0 12 30 12 *", "Pacific/Apia", "2011-12-01", ["31 00:00 +1400", "30 12:00 +1400"]),  # a day is skipped
        ("0 9 * * *", "Asia/Kolkata", "2026-01-01", ["01 09:00 +0530", "02 09:00 +0530"]),
        ("0 0 29 2 *", "America/New_York", "2025-01-01", ["29 00:00 -0500"]),
    ],
)
def test_unusual_zones(line: str, timezone: str, day: str, expected: list[str]) -> None:
    assert firings(line, timezone, day, len(expected)) == expected


@given(
    st.integers(1_262_304_000_000, 1_893_456_000_000),
    st.sampled_from(["30 2 * * *", "0 * * * *", "*/20 2 * * *", "15 0-3 * * *", "59 23 * * sun"]),
    st.sampled_from(["Europe/Berlin", "America/Havana", "Africa/Cairo", "Australia/Lord_Howe", "Asia/Beirut"]),
)
def test_in_a_zone_too_nothing_lies_between(ms: int, line: str, timezone: str) -> None:
    cron = CronLine(line, timezone)
    following = cron.next_after(ms)
    assert following > ms
    assert cron.next_after(following - 1) == following


@pytest.mark.parametrize("timezone", ["", "Mars/Olympus", "../etc/passwd", "Europe", "/usr"])
def test_what_is_no_time_zone_is_refused(timezone: str) -> None:
    with pytest.raises(BadFrame, match="is not a time zone"):
        CronLine("0 3 * * *", timezone)
