"""Where reading begins, as people say it: `"latest"`, `"beginning"`, an offset, a moment, or so long ago.

The protocol knows three kinds of start: behind the tail, at an offset, at a time. Times are epoch milliseconds there.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Literal

from mainspring.client.errors import BadArgument

Start = Literal["latest", "beginning"] | int | datetime | timedelta | None


def start_frame(start: Start, wall_ms: int) -> dict[str, Any] | None:
    """The protocol's `from`, or None where the group goes on and a new one starts at the beginning."""
    if start is None:
        return None
    if start == "latest":
        return {"kind": "latest"}
    if start == "beginning":
        return {"kind": "offset", "value": 0}
    if isinstance(start, int) and not isinstance(start, bool) and start >= 0:
        return {"kind": "offset", "value": start}
    if isinstance(start, (datetime, timedelta)):
        return {"kind": "timestamp", "value": moment_ms(start, wall_ms)}
    raise BadArgument(
        f"{start!r} is no place to begin", remedy='give "latest", "beginning", an offset, a datetime or a timedelta'
    )


def seek_frame(start: Start, wall_ms: int) -> dict[str, Any]:
    """Like `start_frame` for a group that is already somewhere: `"beginning"` moves it there."""
    if start is None:
        raise BadArgument("seek needs a place", remedy='give "beginning", "latest", an offset or a time')
    return {"kind": "offset", "value": 1} if start == "beginning" else start_frame(start, wall_ms) or {}


def moment_ms(moment: datetime | timedelta | int, wall_ms: int) -> int:
    """Epoch milliseconds of a moment: a time with its zone, so long ago, or the number itself."""
    if isinstance(moment, timedelta):
        return max(0, wall_ms - round(moment.total_seconds() * 1000))
    if isinstance(moment, datetime):
        if moment.tzinfo is None:
            raise BadArgument(f"{moment.isoformat()} has no time zone", remedy="give an aware datetime")
        return max(0, round(moment.timestamp() * 1000))
    return moment
