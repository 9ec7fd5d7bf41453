"""Moments and durations as people type them: `10m`, `1h30m`, `500ms`, `2026-01-31T12:00:00Z`."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final

import typer

_UNIT_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)", re.ASCII)
_WHOLE: Final = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d|w))+\Z", re.ASCII)


def duration_ms(text: str, option: str | None = None) -> int:
    """Milliseconds of `10m` or `1h30m`. A usage error names the option and says what to write."""
    found = _duration(text)
    if found is None:
        raise typer.BadParameter(f"{text!r} is no duration; write 500ms, 10s, 5m, 1h30m, 7d", param_hint=option)
    return found


def moment_ms(text: str, now_ms: int, option: str | None = None) -> int:
    """Epoch milliseconds of a moment: so long ago, or a date and time; without a zone it is local."""
    ago = _duration(text)
    if ago is not None:
        return max(0, now_ms - ago)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is no moment; write 10m (ago) or 2026-01-31T12:00:00Z", param_hint=option
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
            f"{text!r} is no place; write latest, beginning, an offset, 10m (ago) or 2026-01-31T12:00:00Z",
            param_hint=option,
        ) from None


def clock_text(epoch_ms: int) -> str:
    """The local time of day, with milliseconds."""
    return datetime.fromtimestamp(epoch_ms / 1000).astimezone().strftime("%H:%M:%S.%f")[:-3]


def date_text(epoch_ms: int) -> str:
    """The local date and time."""
    return datetime.fromtimestamp(epoch_ms / 1000).astimezone().isoformat(sep=" ", timespec="milliseconds")


def _duration(text: str) -> int | None:
    if not _WHOLE.match(text):
        return None
    return round(sum(float(number) * _UNIT_MS[unit] for number, unit in _PART.findall(text)))


def duration_text(ms: int) -> str:
    """The shortest way to say it: 7d, 1h30m, 250ms."""
    parts = []
    for unit, size in reversed(_UNIT_MS.items()):
        if unit != "w" and ms >= size:
            parts.append(f"{ms // size}{unit}")
            ms %= size
    return "".join(parts) or "0"
