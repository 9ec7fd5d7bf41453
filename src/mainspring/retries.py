"""Trying again: how long to wait before it, and how programs say how often and after which errors.

`Backoff` waits twice as long after each failure, up to a limit. The first pause is `first_ms` itself. Where many may
fail at the same moment (the clients of a node that restarts), each pause is shortened at random by up to half, so that
they do not all come back in the same instant. Nothing here reads a clock or sleeps: callers wait in their own way, and
pass in their own source of random numbers.

`RetryOptions` are the words of programs, which mean the same for consumers, schedules and tasks; `Retries` are these
words checked. `raise Reject("why")` says from inside that no further attempt makes sense.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypedDict

from mainspring.durations import Duration, duration_ms
from mainspring.errors import MainspringError

JITTER = 0.5  # the largest part of a pause that chance takes away
_MOST_DOUBLINGS = 40  # a millisecond becomes 35 years; larger shifts would only make large numbers

Errors = type[Exception] | tuple[type[Exception], ...]


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses that double from `first_ms` to `longest_ms`. A first pause of 0 means no pauses at all."""

    first_ms: int
    longest_ms: int

    def delay_ms(self, attempt: int, random: Callable[[], float] | None = None) -> int:
        """How long to wait after attempt number `attempt` (the first is 1) has failed.

        `random` gives numbers from 0 up to 1 and shortens the pause; without it the pause is exact.
        """
        full_ms = min(self.first_ms << min(attempt - 1, _MOST_DOUBLINGS), self.longest_ms)
        return full_ms if random is None else round(full_ms * (1 - JITTER * random()))

    def series(self, random: Callable[[], float] | None = None) -> BackoffSeries:
        """The pauses one after the other, for a loop that tries until it succeeds."""
        return BackoffSeries(self, random)


class BackoffSeries:
    """Counts the failures of one thing that is tried again and again."""

    __slots__ = ("_backoff", "_random", "failures")

    def __init__(self, backoff: Backoff, random: Callable[[], float] | None = None) -> None:
        self._backoff = backoff
        self._random = random
        self.failures: int = 0
        """How many failures there were since the last success."""

    def failed(self) -> int:
        """Count one more failure; how many ms to wait now."""
        self.failures += 1
        return self._backoff.delay_ms(self.failures, self._random)

    def succeeded(self) -> None:
        """The next failure counts as the first."""
        self.failures = 0


_BACKOFF = Backoff(200, 60_000)


class Reject(MainspringError, code="rejected"):
    """Raised by a function that is given an event: it is a dead letter at once, with this text as the reason."""


class RetryOptions(TypedDict, total=False):
    """What happens when a function fails.

    It is called again after `backoff`, which doubles with each attempt up to `max_backoff` and is shortened at random
    by up to half, so that events that failed together do not all come back together. After `max_attempts` calls there
    is a dead letter; without it the topic's number counts. Where `retry_on` is given, only these errors are worth
    another attempt; those of `give_up_on` never are. `timeout` is the longest that one attempt may take: an `async def`
    is cancelled then, a plain function is left alone in its thread; both count as a failure (`HandlerTimeout`, which is
    a `TimeoutError`).
    """

    max_attempts: int | None
    backoff: Duration
    max_backoff: Duration
    retry_on: Errors
    give_up_on: Errors
    timeout: Duration | None


@dataclass(frozen=True, slots=True)
class Retries:
    """The same, checked. `max_attempts` None: as the topic says."""

    backoff: Backoff = _BACKOFF
    max_attempts: int | None = None
    retry_on: Errors = Exception
    give_up_on: Errors = ()
    timeout_ms: int | None = None

    @property
    def takes_every_error(self) -> bool:
        """Whether all errors are worth another attempt, so that nobody has to look at them."""
        return self.retry_on is Exception and self.give_up_on == ()

    def allow_another(self, error: Exception) -> bool:
        """Whether another attempt makes sense after this error."""
        return is_worth_retrying(error, self.retry_on, self.give_up_on)


def is_worth_retrying(error: Exception, retry_on: Errors, give_up_on: Errors) -> bool:
    """Whether another attempt makes sense: never after `Reject` or an error to give up on."""
    return isinstance(error, retry_on) and not isinstance(error, (Reject, *_each(give_up_on)))


def retries_of(given: RetryOptions) -> Retries:
    """Raises ValueError or BadDuration for what cannot be."""
    for name in given.keys() - RetryOptions.__annotations__.keys():
        from difflib import get_close_matches  # only here: most programs make no mistake

        near = get_close_matches(name, RetryOptions.__annotations__, 1)
        raise ValueError(f"there is no option {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
    max_attempts, timeout = given.get("max_attempts"), given.get("timeout")
    if max_attempts is not None and max_attempts < 1:
        raise ValueError("max_attempts is 1 or more")
    if timeout is not None and duration_ms(timeout) < 1:
        raise ValueError("timeout is a millisecond or more")
    retry_on, give_up_on = given.get("retry_on", Exception), given.get("give_up_on", ())
    for each in (*_each(retry_on), *_each(give_up_on)):
        if not (isinstance(each, type) and issubclass(each, Exception)):
            raise ValueError(f"retry_on and give_up_on are exception classes, or tuples of them, and not {each!r}")
    return Retries(
        Backoff(
            duration_ms(given["backoff"]) if "backoff" in given else _BACKOFF.first_ms,
            duration_ms(given["max_backoff"]) if "max_backoff" in given else _BACKOFF.longest_ms,
        ),
        max_attempts,
        retry_on,
        give_up_on,
        None if timeout is None else duration_ms(timeout),
    )


def _each(errors: Errors) -> tuple[type[Exception], ...]:
    return errors if isinstance(errors, tuple) else (errors,)


ALWAYS = Retries()
"""Every error is worth another attempt."""
