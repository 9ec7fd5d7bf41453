"""Retries as programs write them: how often, after which errors, how long one attempt may take.

The same words mean the same for consumers, schedules and tasks. `raise Reject("why")` says from inside that no further
attempt makes sense.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

from mainspring.backoff import Backoff
from mainspring.durations import Duration, duration_ms
from mainspring.errors import MainspringError

_BACKOFF = Backoff(200, 60_000)
Errors = type[Exception] | tuple[type[Exception], ...]


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
