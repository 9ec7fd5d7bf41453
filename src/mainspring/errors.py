"""The one base class of every error Mainspring raises on purpose, and the status of each code.

An error has a stable `code` that programs compare, a `message` that people read, and a `remedy` that says what to do
next. Texts never contain payloads or secrets: they end up in logs and on other people's screens.
"""

from __future__ import annotations

from typing import Final


class MainspringError(Exception):
    """Something a user can act on.

    `code` is part of the public face: it does not change between releases. Subclasses give the code; the message says
    what happened, and the remedy, where there is one, what to do about it.
    """

    code: str = "error"

    def __init__(self, message: str, *, remedy: str = "", code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        if code is not None:
            self.code = code

    def __str__(self) -> str:
        return f"{self.message} ({self.remedy})" if self.remedy else self.message


class SettingError(MainspringError):
    """A setting is unknown, or its value does not fit."""

    code = "bad_setting"


class BootError(MainspringError):
    """The node could not start; nothing is left listening."""

    code = "boot_failed"


class MissingExtra(MainspringError):
    """A part needs a package that is not installed."""

    code = "missing_extra"


STATUS_OF_CODE: Final[dict[str, int]] = {
    "bad_json": 400,
    "bad_frame": 400,
    "bad_query": 400,
    "bad_name": 400,
    "bad_offset": 400,
    "not_subscribed": 400,
    "bad_cursor": 400,
    "bad_cloudevent": 400,
    "bad_handshake": 400,
    "unknown_type": 400,
    "unauthorized": 401,
    "forbidden": 403,
    "not_found": 404,
    "unknown_topic": 404,
    "unknown_group": 404,
    "unknown_event": 404,
    "unknown_schedule": 404,
    "unknown_schema": 404,
    "unknown_run": 404,
    "unknown_program": 404,
    "unknown_beat": 404,
    "method_not_allowed": 405,
    "not_acceptable": 406,
    "conflict": 409,
    "schema_incompatible": 409,
    "already_subscribed": 409,
    "run_conflict": 409,
    "past_beat": 409,
    "beat_running": 409,
    "line_exists": 409,
    "too_large": 413,
    "unsupported_media_type": 415,
    "bad_payload": 422,
    "bad_schema": 422,
    "schema_mismatch": 422,
    "rate_limited": 429,
    "internal": 500,
    "damaged": 500,
    "limit_reached": 503,
    "unavailable": 503,
    "log_unavailable": 503,
    "in_doubt": 503,
    "line_busy": 503,
    "not_leading": 503,
}
"""The HTTP status of an error code, so that one refusal means the same on every face of a node."""
