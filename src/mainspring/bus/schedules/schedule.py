"""One schedule as data: what is published when, its next time, and how its last call went."""

from __future__ import annotations

from typing import Annotated, Final, Literal, get_args
from zlib import crc32

import msgspec

from mainspring.bus.errors import BadFrame
from mainspring.bus.names import check_name
from mainspring.bus.protocol import Overlap
from mainspring.bus.schedules.cron import cron_line
from mainspring.telemetry import KeptError

LEAST_EVERY_MS: Final = 10
MOST_EVERY_MS: Final = 2**53
MOST_CRON: Final = 200  # characters; every minute of an hour, listed one by one
CLOCKS_DIFFER_MS: Final = 60_000  # by so much the clocks of nodes may differ without a grid being counted anew
DECLARED: Final = "app/"  # names of schedules that programs declare begin with it


class Schedule(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """An event published again and again: `every` ms, or as `cron` says (five fields). Exactly one of the two.

    A cron line is in `timezone` (UTC unless given). Each firing is late by up to `jitter` ms, always the same for one
    name and time. With `overlap` skip, nothing is published while a group of the topic has events to settle; queue and
    allow publish always. One that is `paused` waits until it is resumed. It fires as long as its `owner`, the agent
    that made it, may publish to the topic.
    """

    name: str
    topic: str
    payload: msgspec.Raw
    every: Annotated[int, msgspec.Meta(ge=LEAST_EVERY_MS, le=MOST_EVERY_MS)] | None = None
    cron: str | None = None
    timezone: str | None = None
    jitter: Annotated[int, msgspec.Meta(ge=0, le=MOST_EVERY_MS)] = 0
    overlap: Overlap = "queue"
    key: str | None = None
    headers: dict[str, str] | None = None
    owner: str | None = None
    paused: bool = False
    next_ms: int = 0
    due_ms: int = 0  # with jitter: `next_ms` without it
    last_ms: int = 0  # when it published last

    def check(self) -> None:
        """Raises BadFrame or BadName for what cannot be a schedule."""
        check_name("schedule", self.name)
        if (self.every is None) == (self.cron is None):
            raise BadFrame("a schedule has either `every` or `cron`", remedy="give exactly one of them")
        if self.every is not None and not LEAST_EVERY_MS <= self.every <= MOST_EVERY_MS:
            raise BadFrame(f"`every` is {self.every} ms", remedy=f"give at least {LEAST_EVERY_MS} ms")
        if not 0 <= self.jitter <= (self.every or MOST_EVERY_MS):
            raise BadFrame(f"`jitter` is {self.jitter} ms", remedy="give 0 or more, and at most `every`")
        if self.overlap not in get_args(Overlap):
            raise BadFrame(f"`overlap` is {self.overlap!r}", remedy="write queue, skip or allow")
        if self.cron is not None:
            if len(self.cron) > MOST_CRON:
                raise BadFrame(f"a cron line has at most {MOST_CRON} characters", remedy="write ranges: 0-30/5")
            cron_line(self.cron, self.timezone)
        elif self.timezone is not None:
            raise BadFrame("an interval is the same in every time zone", remedy="leave out `timezone`, or use `cron`")

    def planned(self, after_ms: int) -> Schedule:
        """The same, with its next time strictly after this instant. A grid of `every` is kept, however late it is."""
        due = self._following(after_ms)
        if not self.jitter:
            return msgspec.structs.replace(self, next_ms=due, due_ms=0)
        late = crc32(f"{self.name} {due}".encode()) % (self.jitter + 1)
        return msgspec.structs.replace(self, next_ms=due + late, due_ms=due)

    def _following(self, after_ms: int) -> int:
        if self.cron is not None:
            return cron_line(self.cron, self.timezone).next_after(after_ms)
        assert self.every is not None
        due = self.due_ms or self.next_ms
        if not due:
            return after_ms + self.every
        missed = max(0, after_ms - due) // self.every
        return due + (missed + 1) * self.every

    def planned_anew(self, now_ms: int) -> Schedule:
        """The same, counted from now."""
        return msgspec.structs.replace(self, next_ms=0, due_ms=0).planned(now_ms)

    def rescheduled(self, now_ms: int) -> Schedule | None:
        """The same, counted from now, when the clock was set back so far that the next time is intervals away.

        Only for `every`, which is about time that passes. A cron line is about the time of day: what was called at that
        time today is not called again because the clock shows it a second time.
        """
        if self.every is None or self.next_ms - now_ms <= 2 * self.every + CLOCKS_DIFFER_MS:
            return None
        return self.planned_anew(now_ms)

    def fires_like(self, other: Schedule) -> bool:
        """At the same times, into the same topic."""
        return (self.every, self.cron, self.timezone, self.jitter, self.topic) == (
            other.every,
            other.cron,
            other.timezone,
            other.jitter,
            other.topic,
        )


class LastCall(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """How the last firing of a schedule went: its function was called (and when, for how long), or it was skipped."""

    result: Literal["done", "failed", "skipped"]
    at_ms: int
    duration_ms: int = 0
    attempt: int = 0
    reason: str = ""
    failure: KeptError | None = None


class ScheduleInfo(Schedule, frozen=True, kw_only=True):
    """A schedule and how its last call went. `declared`: by a program, so it comes back when a node of it starts."""

    declared: bool = False
    last: LastCall | None = None


def info_of(schedule: Schedule, last: LastCall | None) -> ScheduleInfo:
    known = {each: getattr(schedule, each) for each in schedule.__struct_fields__}
    return ScheduleInfo(**known, declared=schedule.name.startswith(DECLARED), last=last)
