"""The base class of the errors Mainspring raises on purpose, the refusal of a handler, and the status of each code.

An error has a stable `code` that programs compare, a `message` that people read, and a `remedy` that says what to do
next. Texts never contain payloads or secrets: they end up in logs and on other people's screens.
"""

from __future__ import annotations

import re
from typing import Any, Final


class MainspringError(Exception):
    """Something a user can act on.

    `code` is part of the public face: it does not change between releases. Subclasses give the code, as an argument of
    the class; the message says what happened, and the remedy, where there is one, what to do about it.
    """

    code: str = "error"

    def __init_subclass__(cls, *, code: str | None = None, **options: Any) -> None:
        super().__init_subclass__(**options)
        if code is not None:
            cls.code = code

    def __init__(self, message: str, *, remedy: str = "", code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        if code is not None:
            self.code = code

    def __str__(self) -> str:
        return f"{self.message} ({self.remedy})" if self.remedy else self.message


class SettingError(MainspringError, code="bad_setting"):
    """A setting is unknown, or its value does not fit."""


class BootError(MainspringError, code="boot_failed"):
    """The node could not start; nothing is left listening."""


class MissingExtra(MainspringError, code="missing_extra"):
    """A part needs a package that is not installed."""


_CODES_OF_STATUS: Final = {
    400: "bad_json bad_frame bad_query bad_name bad_offset not_subscribed bad_cursor bad_cloudevent bad_handshake "
    "unknown_type",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found unknown_topic unknown_group unknown_event unknown_schedule unknown_schema unknown_run "
    "unknown_question unknown_program unknown_beat unknown_task unknown_call",
    405: "method_not_allowed",
    406: "not_acceptable",
    408: "body_timeout",
    409: "not_executed conflict schema_incompatible already_subscribed run_conflict past_beat beat_running line_exists",
    413: "too_large",
    415: "unsupported_media_type",
    422: "bad_payload bad_schema schema_mismatch",
    429: "rate_limited",
    500: "internal damaged_event damaged_record log_damaged",
    503: "limit_reached unavailable log_unavailable log_gone in_doubt line_busy not_leading taken_over",
}


class Fail(Exception):
    """Say no to a request: `raise Fail(409, "sold out")` in a handler is an error reply, not a crash.

    `code` is an HTTP-like number from 400 to 599. The text goes to the requester: keep secrets out of it. Whoever asks
    gets the same exception (`ctx.send`, `kernel.ask`, `client.command`, `simulate`), with `type` telling who refused.
    """

    def __init__(
        self, code: int, message: str, *, remedy: str = "", cause: Fail | None = None, type: str | None = None
    ) -> None:
        super().__init__(message)
        # Checked here, where the mistake is, and not when the answer is being sent.
        if not isinstance(code, int) or isinstance(code, bool) or not 400 <= code <= 599:
            raise ValueError(f"Fail takes a code from 400 to 599, not {code!r}")
        if not isinstance(remedy, str) or not (cause is None or isinstance(cause, Fail)):
            raise TypeError("Fail takes a text as remedy and another Fail as cause")
        self.code = code
        self.message: str = str(message) or "refused"
        self.remedy = remedy
        self.cause = cause
        self.type = type

    def __str__(self) -> str:
        return f"{self.code} {self.message}"


def fail_from(data: Any, type: str) -> Fail:
    """The `Fail` an error message stands for."""
    if not isinstance(data, dict):
        return Fail(500, "an error without details", type=type)
    code, text, cause = data.get("code"), data.get("message"), data.get("cause")
    return Fail(
        code if isinstance(code, int) and 400 <= code <= 599 else 500,
        text if isinstance(text, str) else "an error without details",
        remedy=str(data.get("remedy", "")),
        cause=fail_from(cause, type) if isinstance(cause, dict) else None,
        type=type,
    )


STATUS_OF_CODE: Final[dict[str, int]] = {
    code: status for status, codes in _CODES_OF_STATUS.items() for code in codes.split()
}
"""The HTTP status of an error code, so that one refusal means the same on every face of a node."""


# -- text of others, safe to show
#
# Names, ids, payloads and messages of errors come from whoever sent them. Shown as they are, an escape sequence in one
# could repaint the screen of the person who looks, and a line feed could pretend to be another line.


def plain(text: object, keep: str = "") -> str:
    """The text with everything that is not printable written as an escape, but for the characters in `keep`."""
    written = str(text)
    if written.isprintable():
        return written
    return "".join(
        each if each.isprintable() or each in keep else each.encode("unicode_escape").decode() for each in written
    )


def plain_lines(text: object) -> str:
    """The same for a text of several lines: those behind the first are indented, so that none can be taken for one
    that begins."""
    return plain(text, "\n\t").replace("\n", "\n    ")


_TOKEN: Final = re.compile(r"ms_[A-Za-z0-9_-]{43}")


def without_tokens(text: str) -> str:
    """The text without the secret of a token, which somebody may have sent where a name belongs."""
    return _TOKEN.sub("ms_...", text) if "ms_" in text else text
