"""What can happen to a node of a `World`: at one chosen write of its own, or at any time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any, Final

from mainspring.log import Batch, Delete, LogUnavailable, Operation
from tests.support.cluster import LEASE_MS, Member, wait

FAULTS: Final = (
    "killed before",
    "killed after",
    "answer lost",
    "stopped before",
    "stopped after",
    "lease taken before",
)


class Trouble:
    """Lets a node's commits through, except that something happens around the one of number `at`.

    Only commits with an operation that `counts` are numbered; with `at` 0 nothing happens and all are counted.
    """

    def __init__(self, victim: Member, fault: str, at: int, counts: Callable[[Operation], bool]) -> None:
        self.victim, self.fault, self.at = victim, fault, at
        self.commits = 0
        self._counts = counts
        self._commit = victim.engine.commit
        victim.engine.commit = self.commit  # type: ignore[method-assign]

    async def commit(self, batches: Sequence[Batch]) -> Any:
        if not any(self._counts(operation) for batch in batches for operation in batch.operations):
            return await self._commit(batches)
        self.commits += 1
        if self.commits != self.at:
            return await self._commit(batches)
        if self.fault == "answer lost":
            return await self._lose_the_answer(batches)
        if self.fault == "lease taken before":
            return await self._take_the_lease(batches)
        return await self._end_or_stop(batches)

    async def _lose_the_answer(self, batches: Sequence[Batch]) -> Any:
        self.victim.engine.lose_answers = True
        try:
            return await self._commit(batches)
        finally:
            self.victim.engine.lose_answers = False

    async def _take_the_lease(self, batches: Sequence[Batch]) -> Any:
        other = next(member for member in self.victim.world.members if member is not self.victim)
        await other.log.commit(Batch([Delete("leases", f"node/{self.victim.name}")]))
        return await self._commit(batches)

    async def _end_or_stop(self, batches: Sequence[Batch]) -> Any:
        results = await self._commit(batches) if self.fault.endswith("after") else None
        if self.fault.startswith("killed"):
            self.victim.kill()
            await asyncio.get_running_loop().create_future()
        self.victim.stop()
        await wait(3 * LEASE_MS)
        self.victim.go_on()
        await wait(5)
        if results is not None:
            return results
        try:
            return await self._commit(batches)
        except LogUnavailable:
            return await self._commit(batches)


async def weather(victim: Member, chance: random.Random) -> None:
    """Something that a node outlives happens to it, or what happened before is over."""
    what = chance.choice(("freeze", "cut", "doubt", "well", "well"))
    if what == "freeze":
        victim.stop()
        await wait(chance.choice((100, 2 * LEASE_MS)))
        victim.go_on()
    elif what == "cut":
        victim.engine.cut_off = True
    elif what == "doubt":
        victim.engine.lose_answers = True
    else:
        recover(victim)


def recover(victim: Member) -> None:
    victim.engine.lose_answers = False
    victim.engine.join_again()
