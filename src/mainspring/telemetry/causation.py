"""What caused what: in whose name something is done, and the headers that carry it on.

While a handler, a consumer, a run, an effect's handler or an enzyme runs, `handling` says for which message. Log lines
carry its id and its correlation, and what is published meanwhile names it as its cause. An event carries both in its
headers, so that they can be read in the log long after the message is gone.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar, Token
from typing import Any, Final, TypeAlias

from mainspring.telemetry.spans import OpenSpan

CAUSATION: Final = "x-causation"  # header of an event: the id of what led to it
CORRELATION: Final = "x-correlation"  # header of an event: common to everything of one conversation

Cause: TypeAlias = tuple[str, str | None]
"""The id of what is being handled, and its correlation."""

handling: ContextVar[Cause | None] = ContextVar("mainspring_handling", default=None)
"""What is being handled here; None where nothing is."""

Entered: TypeAlias = tuple[Token[Cause | None] | None, Any]


def current_correlation() -> str | None:
    """The conversation to which what is being handled belongs."""
    cause = handling.get()
    return None if cause is None else cause[1]


def causation_headers(causation: str, correlation: str | None) -> dict[str, str]:
    """The headers that name the cause of an event."""
    return {CAUSATION: causation} if correlation is None else {CAUSATION: causation, CORRELATION: correlation}


def with_causation(headers: Mapping[str, str] | None) -> dict[str, str] | None:
    """The headers of an event that is published here: caused by what is being handled, unless they say otherwise."""
    cause = handling.get()
    if cause is None or (headers is not None and CAUSATION in headers):
        return None if headers is None else dict(headers)
    return {**causation_headers(*cause), **(headers or {})}


class WorkContext:
    """What surrounds a piece of work: the cause that its log lines and its events name, and the span it is done in."""

    __slots__ = ("cause", "span")

    def __init__(self, cause: Cause | None, span: OpenSpan | None) -> None:
        self.cause: Cause | None = cause
        self.span: OpenSpan | None = span

    def enter(self) -> Entered:
        """The work begins or goes on; `leave` takes what this gives, in the same context."""
        token = None if self.cause is None else handling.set(self.cause)
        return token, None if self.span is None else self.span.enter()

    def leave(self, entered: Entered | None) -> None:
        """The work is over, or suspended."""
        assert entered is not None
        token, attached = entered
        if attached is not None and self.span is not None:
            self.span.leave(attached)
        if token is not None:
            handling.reset(token)
