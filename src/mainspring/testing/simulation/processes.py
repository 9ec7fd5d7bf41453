"""Processes under one virtual time, and the only thing that moves it.

Each process has an asyncio event loop and clocks of its own. Its monotonic clock begins anywhere, its time of day may
be set, and nothing of it runs while it is stalled or after it was killed. `Timeline` goes from one moment at which
something can happen to the next: what arrives there is handed over, and then those run who have something to do, one
after the other, in an order that the seed decides.

Work in executors is done at once, in place, so that nothing depends on threads of the machine.
"""

# private names: a loop that is run from outside is entered as event loops enter themselves

from __future__ import annotations

import asyncio
import heapq
import random
import sys
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, TypeVar

from mainspring.loop import VirtualClock, VirtualEventLoop

if TYPE_CHECKING:
    from mainspring.testing.simulation.network import Network

T = TypeVar("T")

MS: Final = 1_000_000  # in nanoseconds
NEVER: Final = sys.maxsize
START_MS: Final = 1_767_225_600_000 - 3_000  # 1 January 2026, 00:00 UTC, comes while things break: so does a minute


class Timeline:
    """Virtual time, what is to happen in it, and the processes that live in it."""

    def __init__(self, seed: str) -> None:
        self.now_ns: int = 0
        self.processes: list[SimulatedProcess] = []
        self.troubles: list[str] = []  # what no process expected: errors that nobody caught
        self.turns: int = 0
        self._order = random.Random(seed)
        self._agenda: list[tuple[int, int, Callable[[], object]]] = []
        self._count = 0

    @property
    def now_ms(self) -> int:
        return self.now_ns // MS

    def at(self, ns: int, action: Callable[[], object]) -> None:
        """Do something at this moment, outside of all processes."""
        self._count += 1
        heapq.heappush(self._agenda, (max(ns, self.now_ns), self._count, action))

    def after(self, ms: float, action: Callable[[], object]) -> None:
        self.at(self.now_ns + int(ms * MS), action)

    def run(self, until: Callable[[], bool], limit_ms: float) -> bool:
        """Let time pass until this is true; False when it is not within so many milliseconds."""
        end = self.now_ns + int(limit_ms * MS)
        while not until():
            if self.now_ns >= end:
                return False
            self._step(end)
        return True

    def pass_ms(self, ms: float) -> None:
        self.run(lambda: False, ms)

    def _step(self, end: int) -> None:
        agenda = self._agenda
        now = end
        if agenda and agenda[0][0] < now:
            now = agenda[0][0]
        for each in self.processes:
            if each.wakes_ns < now:
                now = each.wakes_ns
        if now < self.now_ns:
            now = self.now_ns
        self.now_ns = now
        while agenda and agenda[0][0] <= now:
            heapq.heappop(agenda)[2]()
        able = [each for each in self.processes if each.wakes_ns <= now]
        if len(able) > 1:
            self._order.shuffle(able)
        for process in able:
            if process.alive:
                self.turns += 1
                process.turn()


class SimulatedProcess:
    """One process on a host. `shift_ms` is by how much the host's time of day is wrong."""

    def __init__(self, timeline: Timeline, network: Network, host: str, *, start_ms: int, shift_ms: int = 0) -> None:
        self.host = host
        self.alive: bool = True
        self.clock: VirtualClock = VirtualClock(start_ms, wall_ms=START_MS + timeline.now_ms + shift_ms)
        self._timeline = timeline
        self._ahead_ns = self.clock.now_ns() - timeline.now_ns  # of its monotonic clock
        self._stalled_ns = 0
        self.wakes_ns: int = 0  # when it could do something
        self._left: set[asyncio.Task[Any]] = set()
        self.loop: SimulatedEventLoop = SimulatedEventLoop(self, network)
        self.loop.set_exception_handler(self._note)
        timeline.processes.append(self)

    # -- having things done

    def do(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call this in the process, as soon as it runs."""
        if self.alive:
            self.loop.call_soon(function, *arguments)
            self.wakes_ns = self._stalled_ns

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        self.wakes_ns = self._stalled_ns
        return self.loop.create_task(work)

    # -- what happens to it

    @property
    def stalled_until_ns(self) -> int:
        """Until then it does not run, and nothing is read on its behalf."""
        return self._stalled_ns

    def stall(self, ms: float) -> None:
        """Nothing of it runs for so long: it was stopped, or one of its functions blocks."""
        self._stalled_ns = max(self._stalled_ns, self._timeline.now_ns + int(ms * MS))
        self.wakes_ns = max(self.wakes_ns, self._stalled_ns)

    def kill(self) -> None:
        """It is gone. What is left of it is kept, so that nothing of it runs, not even its clean-up."""
        self.alive = False
        self._left = asyncio.all_tasks(self.loop)
        self._timeline.processes.remove(self)

    def close(self) -> None:
        """The simulation is over: cancel what is left and let go of the loop."""
        if self.alive:
            self.kill()
        self.loop.set_exception_handler(lambda *_: None)
        for task in self._left:
            task.cancel()
        if self._left:
            self.loop.turn()
        for task in self._left:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        self.loop.close()

    # -- for the timeline

    def turn(self) -> None:
        """Let everything happen that can happen now."""
        clock = self.clock
        clock.move_to_ns(max(clock.now_ns(), self._timeline.now_ns + self._ahead_ns))
        self.loop.turn()
        due = self.loop.due_ns
        self.wakes_ns = NEVER if due is None else max(due - self._ahead_ns, self._stalled_ns)

    def _note(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self._timeline.troubles.append(f"{self.host}: {context.get('message', '')}: {error!r}")


class SimulatedEventLoop(VirtualEventLoop):
    """An event loop whose connections are those of the simulated network."""

    def __init__(self, process: SimulatedProcess, network: Network) -> None:
        super().__init__(process.clock)
        self._process = process
        self._network = network

    def turn(self) -> None:
        """Run what can run now; `due_ns` is then the next deadline.

        What asyncio's own loop does, without looking for what comes from outside: nothing does.
        """
        before, hooks = asyncio._get_running_loop(), sys.get_asyncgen_hooks()
        asyncio._set_running_loop(self)
        sys.set_asyncgen_hooks(self._asyncgen_firstiter_hook, self._asyncgen_finalizer_hook)  # type: ignore[attr-defined]
        try:
            while self._collect_due():
                ready = self._ready  # type: ignore[attr-defined]
                for _ in range(len(ready)):
                    handle = ready.popleft()
                    if not handle.cancelled():
                        handle._run()
        finally:
            sys.set_asyncgen_hooks(*hooks)
            asyncio._set_running_loop(before)

    def _collect_due(self) -> bool:
        """Whether something can run now."""
        ready, scheduled = self._ready, self._scheduled  # type: ignore[attr-defined]
        now = self.time()
        while scheduled:
            handle = scheduled[0]
            if handle.cancelled():
                self._timer_cancelled_count -= 1  # type: ignore[attr-defined]
            elif handle.when() <= now:
                ready.append(handle)
            else:
                break
            heapq.heappop(scheduled)
            handle._scheduled = False
        if ready:
            return True
        self.due_ns = None
        if scheduled:
            self.due_ns = self.clock.now_ns() + max(1, round((scheduled[0]._when - now) * 1e9))
        return False

    def is_running(self) -> bool:
        return asyncio._get_running_loop() is self

    def _write_to_self(self) -> None:
        """Nobody else wakes it."""

    async def create_connection(self, factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:  # type: ignore[override]
        return await self._network.connect(self._process, host, factory)

    async def create_unix_connection(self, factory: Any, path: Any = None, **_: Any) -> Any:  # type: ignore[override]
        return await self._network.connect(self._process, path, factory)

    async def create_server(self, factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:  # type: ignore[override]
        return self._network.listen(self._process, host, factory)

    async def create_unix_server(self, factory: Any, path: Any = None, **_: Any) -> Any:  # type: ignore[override]
        return self._network.listen(self._process, path, factory)

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        done: asyncio.Future[T] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done
