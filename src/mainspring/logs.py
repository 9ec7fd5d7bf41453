"""Logs for people and machines: one line each, with the message that was being handled.

While a handler or a consumer runs, `handling` says for which message; every line that is logged meanwhile, by the
program or by a library it calls, carries the message's id and correlation without being told. Lines are readable text
or JSON objects, and go to standard error.
"""

from __future__ import annotations

import json
import logging
import sys
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Final

from mainspring.errors import BootError
from mainspring.settings import Settings

handling: ContextVar[tuple[str, str | None] | None] = ContextVar("mainspring_handling", default=None)
"""Id and correlation of the message that is being handled."""

_LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


class WithMessage(logging.Filter):
    """Puts `message_id` and `correlation` on every record; None where nothing is being handled."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.message_id, record.correlation = handling.get() or (None, None)
        return True


class JsonLines(logging.Formatter):
    """One JSON object a line, for machines that collect logs. `extra={"fields": {...}}` adds members."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name in ("message_id", "correlation"):
            value = getattr(record, name, None)
            if value is not None:
                entry[name] = value
        entry |= getattr(record, "fields", {})
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


class TextLines(logging.Formatter):
    """Time, level, logger and text, and at the end which message it is about."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        line = super().formatMessage(record)
        ident, correlation = getattr(record, "message_id", None), getattr(record, "correlation", None)
        if ident is None:
            return line
        return f"{line} [{ident}]" if correlation is None else f"{line} [{ident} of {correlation}]"


def configure_logging(settings: Settings) -> None:
    """Send every log line to standard error as the settings say. Raises BootError."""
    if settings.log_level not in _LEVELS:
        raise BootError(f"log_level is {settings.log_level!r}", remedy=f"write one of: {', '.join(_LEVELS)}")
    if settings.log_format not in ("text", "json"):
        raise BootError(f"log_format is {settings.log_format!r}", remedy="write text or json")
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(WithMessage())
    handler.setFormatter(JsonLines() if settings.log_format == "json" else TextLines())
    logging.basicConfig(level=_LEVELS[settings.log_level], handlers=[handler], force=True)
