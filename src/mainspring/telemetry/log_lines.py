"""Logs for people and machines: one line each, with the message that was being handled.

Every line that is logged while a message is handled, by the program or by a library it calls, carries the message's id
and correlation; the program passes nothing along. Where a trace is recorded, JSON lines carry its ids, too. Lines are
readable text or JSON objects, and go to standard error. What others sent may stand in a line, so in text, too, control
characters are written as escapes, and what a message or an error has behind a line feed is indented; and a token that
stands in it, because it was sent in a wrong place, is left out.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Final

from mainspring.errors import BootError, plain_lines, without_tokens
from mainspring.settings import Settings
from mainspring.telemetry.causation import handling
from mainspring.telemetry.spans import tracing

_LEVELS: Final = {name: logging.getLevelNamesMapping()[name.upper()] for name in ("debug", "info", "warning", "error")}


class WithMessage(logging.Filter):
    """Puts `message_id` and `correlation` on every record; None where nothing is being handled."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.message_id, record.correlation = handling.get() or (None, None)
        if tracing.recorder is not None:
            record.trace_id, record.span_id = tracing.recorder.ids() or (None, None)
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
        for name in ("message_id", "correlation", "trace_id", "span_id"):
            value = getattr(record, name, None)
            if value is not None:
                entry[name] = value
        entry |= getattr(record, "fields", {})
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            entry["stack"] = record.stack_info
        return without_tokens(json.dumps(entry, default=str))


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

    def format(self, record: logging.LogRecord) -> str:
        return without_tokens(plain_lines(super().format(record)))


def configure_logging(settings: Settings) -> None:
    """Send every log line to standard error as the settings say. Raises BootError."""
    if settings.log_level not in _LEVELS:
        raise BootError(f"log_level is {settings.log_level!r}", remedy=f"write one of: {', '.join(_LEVELS)}")
    if settings.log_format not in ("text", "json"):
        raise BootError(f"log_format is {settings.log_format!r}", remedy="write text or json")
    write_lines(settings.log_level, settings.log_format)


def write_lines(level: str, format: str) -> None:
    """Send log lines to standard error; `level` and `format` are those of the settings."""
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(WithMessage())
    handler.setFormatter(JsonLines() if format == "json" else TextLines())
    logging.basicConfig(level=_LEVELS[level], handlers=[handler], force=True)


def lines_written() -> tuple[str, str]:
    """Level and format of this process's lines, for a process that it starts: lines of both look alike."""
    root = logging.getLogger()
    level = next((name for name, number in _LEVELS.items() if number >= root.getEffectiveLevel()), "error")
    return level, "json" if any(isinstance(each.formatter, JsonLines) for each in root.handlers) else "text"
