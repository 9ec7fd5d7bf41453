"""An event loop inside an event loop: virtual time for a test that runs on any asyncio loop.

The simulated node lives on a `VirtualEventLoop` of its own. Whatever a test asks of the world is run on that loop until
it is done, and the loop stands still in between; so the test may itself run under pytest-asyncio, anyio, unittest or
plain `asyncio.run`, and nothing of the node happens behind its back. One thread does it all, so the order of everything
that happens depends on the program and the seed alone.
"""

# private names: a loop inside a loop is set as event loops set themselves

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from mainspring.loop import VirtualClock, VirtualEventLoop

T = TypeVar("T")
_ROUNDS = 100


class Inner:
    """The loop of one life of the node."""

    def __init__(self, clock: VirtualClock) -> None:
        self._loop = VirtualEventLoop(clock)

    @property
    def is_running(self) -> bool:
        """Whether the caller is on this loop."""
        return self._loop.is_running()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run the loop until this is done."""
        outer = asyncio._get_running_loop()
        asyncio._set_running_loop(None)
        try:
            return self._loop.run_until_complete(work)
        finally:
            asyncio._set_running_loop(outer)

    def settle(self) -> None:
        """Run the loop until nothing is left to do at this instant."""
        self.run(self._settled())

    async def _settled(self) -> None:
        await self._loop.idle()

    def freeze(self) -> list[asyncio.Task[Any]]:
        """What is left of a life that ended at once; kept so that nothing of it runs, not even its clean-up."""
        return list(asyncio.all_tasks(self._loop))

    def close(self) -> None:
        """Cancel what is left and let go of the loop."""
        left = self.freeze()
        for task in left:
            task.cancel()
        if left:
            self.run(_all_ended(left))
        self.run(self._loop.shutdown_asyncgens())
        self._loop.close()


async def _all_ended(tasks: list[asyncio.Task[Any]]) -> None:
    """Without letting time pass; those that wait in their clean-up for a log that is gone are left behind."""
    for _ in range(_ROUNDS):
        if all(task.done() for task in tasks):
            return
        await asyncio.sleep(0)
