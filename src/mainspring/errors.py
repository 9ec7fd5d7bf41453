"""The one base class of every error Mainspring raises on purpose.

An error has a stable `code` that programs compare, a `message` that people read, and a `remedy` that says what to do
next. Texts never contain payloads or secrets: they end up in logs and on other people's screens.
"""

from __future__ import annotations


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
