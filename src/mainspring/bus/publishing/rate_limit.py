"""Token buckets: how many events a connection or a topic takes."""

from __future__ import annotations


class TokenBucket:
    """Starts full. `rate` tokens come back per second, up to `burst`; a request that does not fit takes nothing."""

    __slots__ = ("_at_ms", "_rate", "_tokens", "burst")

    def __init__(self, rate: int, burst: int, now_ms: int) -> None:
        self._rate = rate
        self.burst: int = burst or rate
        self._tokens = float(self.burst)
        self._at_ms = now_ms

    def take(self, count: int, now_ms: int) -> bool:
        self._tokens = min(self.burst, self._tokens + (now_ms - self._at_ms) * self._rate / 1000)
        self._at_ms = now_ms
        if count > self._tokens:
            return False
        self._tokens -= count
        return True

    def wait_ms(self, count: int) -> int:
        """How long until `count` tokens are there."""
        return max(1, round((count - self._tokens) * 1000 / self._rate))


def bucket(rate: int, burst: int, now_ms: int) -> TokenBucket | None:
    """A bucket, or None where `rate` is 0: no limit."""
    return TokenBucket(rate, burst, now_ms) if rate else None
