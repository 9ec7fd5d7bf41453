"""Moments and durations as people type them: `10m`, `1h30m`, `500ms`, `2026-01-31T12:00:00Z`."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime

import typer

from mainspring.durations import BadDuration, duration_ms


def duration_option(text: str, option: str | None = None) -> int:
    """Milliseconds of `10m` or `1h30m`. A usage error names the option and says what to write."""
    try:
        return duration_ms(text)
    except BadDuration as error:
        raise typer.BadParameter(f"{error.message}; write 500ms, 10s, 5m, 1h30m, 7d", param_hint=option) from None


def moment_ms(text: str, now_ms: int, option: str | None = None) -> int:
    """Epoch milliseconds of a moment: so long ago, or a date and time; without a zone it is local."""
    with contextlib.suppress(BadDuration):
        return max(0, now_ms - duration_ms(text))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is not a moment; write 10m (ago) or 2026-01-31T12:00:00Z", param_hint=option
        ) from None
    return max(0, round(moment.astimezone().timestamp() * 1000))


def start_frame(text: str, now_ms: int, option: str | None = None) -> dict[str, int | str]:
    """Where reading begins, in the protocol's words: latest, beginning, an offset, or a moment."""
    if text == "latest":
        return {"kind": "latest"}
    if text == "beginning":
        return {"kind": "offset", "value": 1}
    if text.isascii() and text.isdigit():
        return {"kind": "offset", "value": int(text)}
    try:
        return {"kind": "timestamp", "value": moment_ms(text, now_ms)}
    except typer.BadParameter:
        raise typer.BadParameter(
            f"{text!r} is not a place; write latest, beginning, an offset, 10m (ago) or 2026-01-31T12:00:00Z",
            param_hint=option,
        ) from None


def clock_text(epoch_ms: int) -> str:
    """The local time of day, with milliseconds."""
    return datetime.fromtimestamp(epoch_ms / 1000).astimezone().strftime("%H:%M:%S.%f")[:-3]


def rfc3339(epoch_ms: int) -> str:
    """The instant for programs: UTC, with milliseconds."""
    return datetime.fromtimestamp(epoch_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def date_text(epoch_ms: int) -> str:
    """The local date and time."""
    return datetime.fromtimestamp(epoch_ms / 1000).astimezone().isoformat(sep=" ", timespec="milliseconds")
