"""What is kept of an error with the attempt that failed: its type, its text and its traceback.

All parts keep the same: dead letters, records of tasks, last calls of schedules, journals of runs, faults of handlers.
It is made only when an attempt has failed. It is bounded, it holds no values of variables, and what the settings say is
to be redacted is written as `***`; so are user and password of an address.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from mainspring.errors import SettingError

MOST_MESSAGE: Final = 1_000  # characters
MOST_TRACEBACK: Final = 6_000
MOST_FRAMES: Final = 24  # of each exception in a chain; the innermost ones
FAILURE: Final = "x-failure"  # header of a dead letter: the error of its last attempt, as JSON
LARGE_BYTES: Final = 512 << 10  # payloads from which a letter has no traceback
REDACTED: Final = "***"

_PACKAGE: Final = str(Path(__file__).resolve().parent.parent)
_CREDENTIALS: Final = r"(?<=://)[^\s/@'\"]+(?=@)"


class KeptError(msgspec.Struct, frozen=True, omit_defaults=True):
    """One error. `traceback` is empty where there is none, or where the settings keep none."""

    type: str
    message: str = ""
    traceback: str = ""


class ErrorKeeping:
    """What this process keeps of errors; `configure` follows the settings."""

    def __init__(self) -> None:
        self.configure()

    def configure(self, *, tracebacks: bool = True, redact: Iterable[str] = ()) -> None:
        """Raises SettingError for what is no regular expression."""
        self._tracebacks = tracebacks
        for pattern in redact:
            try:
                re.compile(pattern)
            except re.error as error:
                remedy = "correct the setting `redact`"
                raise SettingError(f"{pattern!r} is not a regular expression: {error}", remedy=remedy) from None
        self._secret = re.compile("|".join([_CREDENTIALS, *(f"(?:{pattern})" for pattern in redact)]))

    def keep(self, error: BaseException) -> KeptError:
        """What is kept of an error that was raised."""
        elsewhere = getattr(error, "kept", None)
        if isinstance(elsewhere, KeptError):  # it was raised in another process
            return self.received(elsewhere)
        return KeptError(type(error).__name__, self.redacted(_text(error))[:MOST_MESSAGE], self.traceback(error))

    def received(self, kept: KeptError) -> KeptError:
        """What is kept of an error that another process reports."""
        message, lines = self.redacted(kept.message)[:MOST_MESSAGE], kept.traceback if self._tracebacks else ""
        return KeptError(kept.type[:MOST_MESSAGE], message, _cut(self.redacted(lines)))

    def traceback(self, error: BaseException) -> str:
        """As Python prints it, from the program's first line on."""
        if not self._tracebacks or error.__traceback__ is None:
            return ""
        try:
            summary = traceback.TracebackException.from_exception(error, limit=-MOST_FRAMES, compact=True)
            _leave_out_own_frames(summary)
            text = self.redacted("".join(summary.format()).encode(errors="replace").decode().rstrip())
        except Exception:  # the error's own methods may do anything
            return ""
        return _cut(text)

    def redacted(self, text: str) -> str:
        return self._secret.sub(REDACTED, text)


def _cut(lines: str) -> str:
    """The innermost lines say most."""
    return lines if len(lines) <= MOST_TRACEBACK else "...\n" + lines[4 - MOST_TRACEBACK :]


def _leave_out_own_frames(summary: traceback.TracebackException) -> None:
    """What called the program says nothing about it; an error of our own keeps all its lines."""
    stack = summary.stack
    first = next((at for at, frame in enumerate(stack) if not frame.filename.startswith(_PACKAGE)), 0)
    del stack[:first]


def _text(error: BaseException) -> str:
    try:
        return str(error).encode(errors="replace").decode()
    except Exception:
        return "(no text)"


def failure_header(failure: KeptError | None, payload_bytes: int) -> dict[str, str]:
    """The header of a letter that holds its error. A letter must not be too large for the log only because of it."""
    if failure is None:
        return {}
    if payload_bytes >= LARGE_BYTES:
        failure = KeptError(failure.type, failure.message)
    return {FAILURE: msgspec.json.encode(failure).decode()}


error_keeping: Final = ErrorKeeping()
