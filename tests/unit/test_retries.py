"""Pauses that double up to a limit."""

from __future__ import annotations

from mainspring.retries import Backoff


def test_pauses_double_from_the_first_to_the_longest() -> None:
    backoff = Backoff(500, 10_000)
    assert [backoff.delay_ms(attempt) for attempt in range(1, 8)] == [500, 1_000, 2_000, 4_000, 8_000, 10_000, 10_000]
    assert backoff.delay_ms(1_000_000) == 10_000


def test_a_first_pause_of_nothing_stays_nothing() -> None:
    assert [Backoff(0, 10_000).delay_ms(attempt) for attempt in (1, 2, 50)] == [0, 0, 0]


def test_chance_shortens_a_pause_by_up_to_half() -> None:
    backoff = Backoff(500, 10_000)
    chances = iter((0.0, 0.5, 1.0))
    assert [backoff.delay_ms(2, lambda: next(chances)) for _ in range(3)] == [1_000, 750, 500]


def test_a_series_counts_failures_and_starts_anew_after_a_success() -> None:
    series = Backoff(100, 400).series()
    assert [series.failed() for _ in range(4)] == [100, 200, 400, 400]
    assert series.failures == 4
    series.succeeded()
    assert (series.failures, series.failed()) == (0, 100)


def test_a_series_uses_the_numbers_it_was_given() -> None:
    assert [Backoff(100, 400).series(lambda: 1.0).failed() for _ in range(2)] == [50, 50]
