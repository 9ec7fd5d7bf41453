"""What the tests of runs share: a runtime under a virtual clock, on a log if asked for."""

from __future__ import annotations

from typing import Any

from mainspring.log import Log, MemoryEngine
from mainspring.loop import VirtualClock
from mainspring.runs import Effect, Runtime, resume


class Boom(Exception):
    pass


class Hop(Effect[int]):
    """Answered with its own number."""

    n: int


class World:
    """A runtime, its clock, and what the failure sink heard."""

    def __init__(self, *, clock: VirtualClock | None = None, **settings: Any) -> None:
        self.clock = clock or VirtualClock()
        self.failures: list[tuple[BaseException, str]] = []
        self.hops: list[tuple[str, int]] = []
        self.runtime = Runtime(
            clock=self.clock,
            trace=True,
            on_failure=lambda error, run_id: self.failures.append((error, run_id)),
            **settings,
        )
        self.runtime.handle(Hop, self.hop)

    def hop(self, effect: Hop, ctx: Any) -> Any:
        self.hops.append((ctx.key, effect.n))
        return resume(effect.n)

    @property
    def now(self) -> int:
        return self.clock.now_ms()


async def memory_log() -> Log:
    log = Log(MemoryEngine())
    await log.open()
    return log
