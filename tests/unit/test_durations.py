"""One way to write time: a number of seconds, a timedelta, or text; and a sentence for what is none of them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from mainspring.durations import BadDuration, duration_ms, duration_text, seconds, timeout_ms


@pytest.mark.parametrize(
    ("given", "ms"),
    [
        (5, 5_000),
        (0.25, 250),
        (timedelta(minutes=5), 300_000),
        ("250ms", 250),
        ("5m", 300_000),
        ("1h30m", 5_400_000),
        (" 2 d ", 172_800_000),
        ("1.5s", 1_500),
        (0, 0),
    ],
)
def test_a_duration_is_a_number_of_seconds_a_timedelta_or_text(given: Any, ms: int) -> None:
    assert duration_ms(given) == ms
    assert seconds(given) == ms / 1_000


@pytest.mark.parametrize(
    "given", [-1, float("nan"), float("inf"), True, None, "", "5", "5 minutes", timedelta(-1), [5]]
)
def test_what_is_no_duration_is_refused_with_a_remedy(given: Any) -> None:
    with pytest.raises(BadDuration, match="is not a duration") as refused:
        duration_ms(given)
    assert isinstance(refused.value, ValueError)
    assert "timedelta" in refused.value.remedy


def test_a_timeout_leaves_some_time() -> None:
    assert timeout_ms("50ms") == 50
    with pytest.raises(BadDuration):
        timeout_ms(0)


def test_a_duration_is_written_as_short_as_possible() -> None:
    assert [duration_text(ms) for ms in (0, 250, 5_400_000, 604_800_000)] == ["0", "250ms", "1h30m", "7d"]
