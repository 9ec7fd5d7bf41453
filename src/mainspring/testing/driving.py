"""Event loops inside an event loop: virtual time for a test that runs on any asyncio loop.

Each simulated process lives on a `VirtualEventLoop` of its own: the node, and the clients of the test. The loops share
one clock and stand still until a `LoopDriver` lets them run. It lets everything happen that can happen at this instant,
in all of them, and only then moves the clock to the next deadline of any. So a test may itself run under
pytest-asyncio, anyio, unittest or plain `asyncio.run`, and nothing of the node happens behind its back; and the order
of everything depends on the program and the seed alone.

Who waits moves time: `call` is awaited on the test's own loop and drives while it waits. Several calls that are
awaited together (`asyncio.gather`) begin at the same instant. A call that may wait for ever (the next event of a
subscription) leaves time alone while other tasks of the test's loop could still do something: a subscriber in the
background must not make a year pass.
"""

# private names: a loop inside a loop is set as event loops set themselves

from __future__ import annotations

import asyncio
import os
import selectors
import socket
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from mainspring.errors import MainspringError
from mainspring.loop import VirtualClock, VirtualEventLoop

T = TypeVar("T")
_ROUNDS: Final = 100
_TURNS: Final = 5  # of the test's loop, for a task that waits for an event to have handled it
LIMIT_NS: Final = 366 * 86_400 * 1_000_000_000  # of virtual time, for one call
IDLE_S: Final = 30  # of real time, before a wait that leaves time to others is given up
REAL_WORK_S: Final = 10.0  # for real work (a socket of the program) when nothing else could happen


class DidNotHappen(MainspringError, AssertionError):
    """What the test waited for did not come within the virtual time it gave."""

    code = "did_not_happen"


class LoopDriver:
    """Lets the loops of a simulation run, and moves their clock."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self._loops: list[VirtualEventLoop] = []
        self._arrivals = selectors.DefaultSelector()  # readable when a loop has something to read
        self._lock = threading.RLock()  # a web framework's test client calls from a thread of its own
        self._changes = 0  # moves of the clock, and calls that began
        self._waiting: dict[asyncio.AbstractEventLoop, int] = {}  # calls that wait, by the loop of who waits

    # -- loops

    def new_loop(self) -> VirtualEventLoop:
        """A loop for one more process."""
        loop = VirtualEventLoop(self.clock)
        self._loops.append(loop)
        self._arrivals.register(loop.fileno(), selectors.EVENT_READ, loop)
        return loop

    def freeze(self, loop: VirtualEventLoop) -> None:
        """The process is gone at once: nothing of it runs any more, and its peers find their connections closed."""
        self._forget(loop)
        for fd in loop.watched():
            try:
                with socket.socket(fileno=os.dup(fd)) as connection:
                    connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # no socket, or not connected

    def close(self, loop: VirtualEventLoop) -> None:
        """Cancel what is left on a loop and let go of it."""
        if loop not in self._loops:  # it was frozen
            self._loops.append(loop)
            self._arrivals.register(loop.fileno(), selectors.EVENT_READ, loop)
        left = list(asyncio.all_tasks(loop))
        for task in left:
            task.cancel()
        if left:
            self._turn(loop, _all_ended(left))
        self._turn(loop, loop.shutdown_asyncgens())
        self._forget(loop)
        loop.close()

    def _forget(self, loop: VirtualEventLoop) -> None:
        self._loops.remove(loop)
        self._arrivals.unregister(loop.fileno())

    # -- driving

    def run(self, loop: VirtualEventLoop, work: Coroutine[Any, Any, T]) -> T:
        """Let everything happen until this is done; its result."""
        task = loop.create_task(work)
        limit = self.clock.now_ns() + LIMIT_NS
        with self._lock:
            self.settle()
            while not task.done():
                self._go_on(limit)
            return task.result()

    async def call(self, loop: VirtualEventLoop, work: Coroutine[Any, Any, T], *, for_ever: bool = False) -> T:
        """`run` for a caller who may do other things meanwhile. `for_ever`: it may take any time, see above."""
        if loop.is_running():
            return await work  # the caller is part of the simulation
        if loop.is_closed():
            work.close()
            raise DidNotHappen("the simulation is over", remedy="await it inside the block of `simulate`")
        outer = asyncio._get_running_loop()
        if outer is None:  # the test runs under another library
            return self.run(loop, work)
        task = loop.create_task(work)
        self._changes += 1
        self._waiting[outer] = self._waiting.get(outer, 0) + 1
        try:
            await self._wait(task, outer, for_ever)
        except BaseException:
            task.cancel()
            self.settle()
            raise
        finally:
            self._waiting[outer] -= 1
        return task.result()

    async def _wait(self, task: asyncio.Task[Any], outer: asyncio.AbstractEventLoop, for_ever: bool) -> None:
        limit = self.clock.now_ns() + LIMIT_NS
        while True:
            seen = self._changes
            await asyncio.sleep(0)  # others may begin their calls at the same instant
            self.settle()
            if task.done():
                return
            await asyncio.sleep(0)  # those whose calls are done may go on before time does
            if for_ever and self._waiting[outer] < len(asyncio.all_tasks(outer)):
                await self._until_done(task, outer)
            if task.done():
                return
            if self._changes == seen:
                self._go_on(limit)

    async def _until_done(self, task: asyncio.Task[Any], outer: asyncio.AbstractEventLoop) -> None:
        """Wait on the caller's loop while others move time. Raises DidNotHappen when nobody does for long."""
        done = asyncio.Event()
        task.add_done_callback(lambda _: outer.call_soon_threadsafe(done.set))
        while not done.is_set():
            seen = self._changes
            try:
                async with asyncio.timeout(IDLE_S):
                    await done.wait()
            except TimeoutError:
                if self._changes == seen:
                    raise DidNotHappen(
                        f"what a task of the test waits for did not happen, and nobody moved time for {IDLE_S} s",
                        remedy='let time pass with `await world.advance("1h")`, or give the wait a timeout',
                    ) from None

    async def share(self) -> None:
        """Let the other tasks of the test's loop see what has happened, and do what they do about it."""
        outer = asyncio._get_running_loop()
        if outer is not None and len(asyncio.all_tasks(outer)) > 1:
            for _ in range(_TURNS):
                await asyncio.sleep(0)
            self.settle()

    def settle(self) -> None:
        """Let everything happen that can happen without time passing."""
        with self._lock:
            self._settle(self._loops)

    def _settle(self, loops: list[VirtualEventLoop]) -> None:
        """What these loops have to do, and what others then read from them."""
        while loops:
            for loop in loops:
                self._turn(loop, _resting(loop))
            patience = None if self.clock.pinned else 0  # while a thread works for a loop: it will write to it
            loops = [key.data for key, _ in self._arrivals.select(patience)]

    def step(self, limit_ns: int) -> None:
        """Move the clock to the next deadline, at most to the limit, and let happen what is due."""
        with self._lock:
            due = self._next_due()
            self._changes += 1
            now = min(limit_ns, limit_ns if due is None else max(due, self.clock.now_ns() + 1))
            self.clock.move_to_ns(now)
            self._settle([loop for loop in self._loops if loop.due_ns is not None and loop.due_ns <= now])

    def _go_on(self, limit_ns: int) -> None:
        """`step`, for what must happen before the limit. Raises DidNotHappen."""
        with self._lock:
            if self.clock.now_ns() >= limit_ns:
                raise DidNotHappen(
                    "what the test waits for did not happen within 366 days of virtual time",
                    remedy="look at world.messages",
                )
            if self._next_due() is not None:
                self.step(limit_ns)
            elif self._arrivals.select(REAL_WORK_S):
                self.settle()
            else:
                raise DidNotHappen(
                    "what the test waits for will never happen: nothing is left that could bring it about",
                    remedy="look at world.messages",
                )

    def _next_due(self) -> int | None:
        return min((loop.due_ns for loop in self._loops if loop.due_ns is not None), default=None)

    def _turn(self, loop: VirtualEventLoop, work: Coroutine[Any, Any, T]) -> T:
        outer = asyncio._get_running_loop()
        asyncio._set_running_loop(None)
        try:
            return loop.run_until_complete(work)
        finally:
            asyncio._set_running_loop(outer)


class Process:
    """One simulated process: its loop, and how others have things done there."""

    def __init__(self, driver: LoopDriver) -> None:
        self._driver = driver
        self._loop = driver.new_loop()
        self._left: set[asyncio.Task[Any]] = set()

    @property
    def is_running(self) -> bool:
        """Whether the caller is part of it."""
        return self._loop.is_running()

    @property
    def is_over(self) -> bool:
        return self._loop.is_closed()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Let everything happen until this is done here; its result."""
        return self._driver.run(self._loop, work)

    async def call(self, work: Coroutine[Any, Any, T], *, for_ever: bool = False) -> T:
        """`run` for a caller on a loop of its own, who may do other things meanwhile; see `LoopDriver.call`."""
        return await self._driver.call(self._loop, work, for_ever=for_ever)

    def at_once(self, function: Callable[[], T]) -> T:
        """Call a function here that waits for nothing, and let happen what follows from it at this instant."""
        return function() if self.is_running else self.run(_called(function))

    def kill(self) -> None:
        """End at once. What is left is kept, so that nothing of it runs, not even its clean-up."""
        self._left = asyncio.all_tasks(self._loop)
        self._driver.freeze(self._loop)

    def close(self) -> None:
        """Cancel what is left and let go of the loop."""
        self._driver.close(self._loop)


async def _called(function: Callable[[], T]) -> T:
    return function()


async def _resting(loop: VirtualEventLoop) -> None:
    await loop.idle()


async def _all_ended(tasks: list[asyncio.Task[Any]]) -> None:
    """Without letting time pass; those that wait in their clean-up for a log that is gone are left behind."""
    for _ in range(_ROUNDS):
        if all(task.done() for task in tasks):
            return
        await asyncio.sleep(0)
