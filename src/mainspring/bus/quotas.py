"""Quotas: how much of the node one caller may have, and how fast it may publish.

A caller is who its token says; where there are no tokens, everybody at one address is one caller. Whoever uses up its
quotas is refused (`rate_limited`, with a time to wait), and others are served. Two kinds are asked. What is open or was
made (connections, subscriptions, topics) is counted, and given back when it ends. What flows (events, bytes) comes from
a credit that fills up by the second. A request may overdraw it, and the next one waits until the debt is paid, so that
no batch is too large to be sent at all. Both are asked once per request, never per event.

The node's own program has no quotas, and neither has a token with the scope `admin`: somebody must be able to get in
and mend things. What a caller made is counted since the node started.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Literal

from mainspring.bus.errors import RateLimited
from mainspring.loop import Clock
from mainspring.settings import Settings

if TYPE_CHECKING:
    from mainspring.bus.access.access import Caller

logger: logging.Logger = logging.getLogger("mainspring.bus.quotas")

Counted = Literal["connections", "streams", "requests", "subscriptions", "topics", "groups", "positions", "schedules"]

SOON_MS: Final = 1_000  # what is open is given back when something ends
LATER_MS: Final = 60_000  # what was made stays until somebody deletes it
MADE: Final = frozenset(("topics", "groups", "positions", "schedules"))
# Where a token gets half of what there is for all; the others are bounded by a setting `quota_` of their own.
SHARED: Final[dict[Counted, str]] = {
    "connections": "max_connections",
    "topics": "max_topics",
    "positions": "max_positions",
}
MOST_CALLERS: Final = 10_000  # that are remembered; those that have nothing are forgotten first
SAY_AGAIN_MS: Final = 60_000  # between two lines in the log about one caller
_ENDLESS: Final = float("inf")


class Credit:
    """How much may still be spent; `rate` comes back per second, and a second's worth is there at first. 0: endless."""

    __slots__ = ("_at_ms", "_rate", "left")

    def __init__(self, rate: int, now_ms: int) -> None:
        self.left: float = rate or _ENDLESS
        self._rate = rate
        self._at_ms = now_ms

    def wait_ms(self, now_ms: int) -> int:
        """How long until something can be spent again; 0: now."""
        self.left = min(self._rate or _ENDLESS, self.left + (now_ms - self._at_ms) * self._rate / 1000)
        self._at_ms = now_ms
        return 0 if self.left > 0 else max(1, round(-self.left * 1000 / self._rate))


class Quota:
    """What one caller has and may have; a limit of 0 does not hold."""

    __slots__ = ("_bytes", "_events", "_limits", "_quotas", "held", "name", "quiet_until_ms")

    def __init__(self, quotas: Quotas | None, name: str, limits: Mapping[Counted, int], events: int, size: int) -> None:
        now_ms = 0 if quotas is None else quotas.now_ms()
        self.name: str = name
        self.held: Counter[Counted] = Counter()
        self.quiet_until_ms: int = now_ms
        self._quotas = quotas
        self._limits = limits
        self._events = Credit(events, now_ms)
        self._bytes = Credit(size, now_ms)

    def take(self, what: Counted, count: int = 1) -> None:
        """Count so many more. Raises RateLimited where there would be more than there may be."""
        limit, held = self._limits.get(what, 0), self.held[what]
        if limit and held + count > limit:
            done, wait_ms = ("made", LATER_MS) if what in MADE else ("open", SOON_MS)
            assert self._quotas is not None  # without one there is no limit
            raise self._quotas.refusal(
                self,
                what,
                f"{self.name} has {held} {what} {done}, and may have {limit}",
                f"use fewer, or raise {self._quotas.setting_of(what, limit)}",
                wait_ms,
            )
        self.held[what] = held + count

    def give_back(self, what: Counted, count: int = 1) -> None:
        """Count so many fewer."""
        self.held[what] -= count

    @contextmanager
    def holding(self, what: Counted) -> Iterator[None]:
        """Count one more within this block."""
        self.take(what)
        try:
            yield
        finally:
            self.held[what] -= 1

    def spend(self, events: int, size: int) -> None:
        """Publish so much. Raises RateLimited while what was published before is not made up for."""
        of_events, of_bytes = self._events, self._bytes
        if of_events.left <= 0 or of_bytes.left <= 0:
            self._wait()
        of_events.left -= events
        of_bytes.left -= size

    def _wait(self) -> None:
        assert self._quotas is not None
        now_ms = self._quotas.now_ms()
        waits = {"events": self._events.wait_ms(now_ms), "bytes": self._bytes.wait_ms(now_ms)}
        what = max(waits, key=lambda each: waits[each])
        if waits[what]:
            raise self._quotas.refusal(
                self,
                what,
                f"{self.name} publishes more {what} per second than it may",
                f"publish more slowly, or raise quota_{what}_per_second",
                waits[what],
            )


UNLIMITED: Final = Quota(None, "the node", {}, 0, 0)


class Quotas:
    """The quotas of every caller. `refused` counts refusals, by what was asked for."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self.now_ms: Callable[[], int] = clock.now_ms
        self.refused: Counter[str] = Counter()
        self._events = settings.quota_events_per_second
        self._bytes = settings.quota_bytes_per_second
        self._limits: dict[Counted, int] = {
            "connections": settings.quota_connections,
            "streams": settings.quota_streams,
            "requests": settings.quota_requests,
            "subscriptions": settings.quota_subscriptions,
            "topics": settings.quota_topics,
            "groups": settings.quota_groups,
            "schedules": settings.quota_schedules,
        }
        # However small a node is made, one token leaves room for others.
        halves = {what: max(1, getattr(settings, name) // 2) for what, name in SHARED.items()}
        self._of_token: dict[Counted, int] = {
            **self._limits,
            **{what: min(self._limits.get(what) or half, half) for what, half in halves.items()},
        }
        self._callers: dict[str, Quota] = {}

    def assign(self, caller: Caller, address: str) -> None:
        """Give a caller from outside its quota: that of its agent, or of its address where nothing proves who it is."""
        if caller.is_admin:
            return
        name = f"agent {caller.agent!r}" if caller.is_proven else f"address {address}"
        quota = self._callers.get(name)
        if quota is None:
            if len(self._callers) >= MOST_CALLERS:
                self._callers = {each: known for each, known in self._callers.items() if any(known.held.values())}
            limits = self._of_token if caller.is_proven else self._limits
            quota = self._callers[name] = Quota(self, name, limits, self._events, self._bytes)
        caller.quota = quota

    def setting_of(self, what: Counted, limit: int) -> str:
        """What to raise where `limit` is too low."""
        return f"quota_{what}" if limit == self._limits.get(what) else SHARED[what]

    def refusal(self, quota: Quota, what: str, message: str, remedy: str, wait_ms: int) -> RateLimited:
        """An error that says how long to wait; it is counted, and the log says once in a while who it is."""
        self.refused[what] += 1
        now_ms = self.now_ms()
        if now_ms >= quota.quiet_until_ms:
            quota.quiet_until_ms = now_ms + SAY_AGAIN_MS
            logger.warning("requests are refused: %s; %s", message, remedy)
        return RateLimited(message, remedy=remedy, retry_after_ms=wait_ms)
