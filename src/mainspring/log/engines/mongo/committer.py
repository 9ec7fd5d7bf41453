"""Committing: plan, try to store the plan as the journal's next entry, and plan again when another node was faster.

What a plan needs to know and this node does not is asked of the server first. The answers stay right while other nodes
go on committing, because this node follows the journal: an entry that changes what was asked brings the new value with
it. So a commit never has to ask twice only because others are busy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from mainspring.log.contract import Batch, LogUnavailable, Receipt, Remove, Restorable, Result, event_bytes
from mainspring.log.engines.mongo.applier import Placing
from mainspring.log.engines.mongo.connection import Patience
from mainspring.log.engines.mongo.journal import Body, Journal, JournalEntry
from mainspring.log.engines.mongo.plan import (
    MOST_BYTES,
    EntryPlan,
    Lookups,
    MongoLogState,
    MongoPartition,
    Partition,
    Present,
    restoring,
    size_of,
)
from mainspring.log.engines.mongo.reader import MongoReader
from mainspring.loop import Clock

if TYPE_CHECKING:
    from mainspring.log.engines.mongo.engine import MongoEngine

T = TypeVar("T")

_RIVALRY: Final = 8  # entries after which another node's last one is forgotten
_MOST_POLITE_MS: Final = 20


class Committer:
    """One commit at a time: the caller sees to that."""

    def __init__(
        self,
        log_state: MongoLogState,
        journal: Journal,
        placing: Placing,
        reader: MongoReader,
        engine: MongoEngine,
        patience: Patience,
        clock: Clock,
    ) -> None:
        self._log_state = log_state
        self._journal = journal
        self._placing = placing
        self._reader = reader
        self._engine = engine
        self._patience = patience
        self._clock = clock
        self._append_ms = 0  # how long the last own entry took
        self._appended_at_ms = 0
        self.losses: int = 0  # plans that found their place taken
        self.rival_at: int = -_RIVALRY  # the last entry of another node

    async def commit(self, group: Sequence[Batch]) -> list[Result]:
        """Of batches that fit into one entry."""

        def planned(present: Present) -> tuple[Body | None, list[Result]]:
            plan = EntryPlan(self._log_state, present)
            results = [plan.add(batch) for batch in group]
            return plan.body(), results

        if not any(batch.operations for batch in group):
            return [Receipt() for _ in group]
        return await self._decide(group, planned)

    async def restore(self, items: Sequence[Restorable]) -> None:
        await self._decide((), lambda _: (restoring(self._log_state, items), None))

    async def _decide(self, group: Sequence[Batch], plan: Callable[[Present], tuple[Body | None, T]]) -> T:
        deadline = self._patience.deadline_ms()
        await self._be_polite()
        while True:
            await self._placing.room(self._patience.ms)
            present = await self._ask(group)
            position = self._log_state.position
            body, results = plan(present)
            if body is None:
                # Nothing to store, so nothing proves that this node knows the newest: ask.
                if not await self._patience(self._engine.look):
                    return results
                continue
            entry = await self._append(position + 1, body, deadline)
            if entry is not None:
                self._engine.absorb(entry)
                return results
            self.losses += 1
            await self._catch_up(position, deadline)

    async def _append(self, number: int, body: Body, deadline: int) -> JournalEntry | None:
        start = self._clock.now_ms()
        try:
            return await self._journal.append(number, body, deadline)
        finally:
            self._appended_at_ms = self._clock.now_ms()
            self._append_ms = self._appended_at_ms - start

    async def _be_polite(self) -> None:
        """Who has just stored an entry, with others after the same places, lets them go first.

        They must read that entry before they can plan theirs; without a pause the last winner would win again.
        """
        if self._log_state.position - self.rival_at < _RIVALRY:
            since = self._clock.now_ms() - self._appended_at_ms
            pause = min(self._append_ms, _MOST_POLITE_MS) - since
            if pause > 0:
                await asyncio.sleep(pause / 1000)

    async def _catch_up(self, position: int, deadline: int) -> None:
        """Wait until this node knows what took the place behind `position`."""
        while self._log_state.position == position:
            if not await self._patience(self._engine.look) and self._log_state.position == position:
                if self._clock.now_ms() >= deadline:
                    raise LogUnavailable("the server does not show what another node committed", remedy="try again")
                await asyncio.sleep(0.002)

    # -- asking

    async def _ask(self, group: Sequence[Batch]) -> Present:
        """Know what the batches depend on; of partitions to remove from, the events that may be hit."""
        while lookups := Lookups(self._log_state, group):
            if not lookups.records and not lookups.marks:
                present = await self._present(lookups.removals)
                if present is not None and not Lookups(self._log_state, group, removals=False):
                    return present
                continue
            forgotten = self._log_state.forgotten
            versions = await self._patience(lambda: self._reader.versions(lookups.records))
            marks = await self._patience(lambda: self._reader.marks(lookups.marks))
            if self._log_state.forgotten == forgotten:
                for place in lookups.records:
                    self._log_state.versions.setdefault(place, versions.get(place, 0))
                for place in lookups.marks:
                    self._log_state.marks.setdefault(place, marks.get(place))
        return {}

    async def _present(self, removals: dict[Partition, list[Remove]]) -> Present | None:
        """None when a partition was changed meanwhile in a way that must be asked for again."""
        asked: list[tuple[Partition, MongoPartition, int, int]] = []
        present: Present = {}
        for place, removes in removals.items():
            state = self._log_state.partitions.get(place)
            if state is None:
                continue
            asked.append((place, state, state.standing.tail, state.removals))
            present[place] = await self._hit_by(state, removes)
        for place in removals:
            if place in self._log_state.partitions and place not in present:
                return None
            present.setdefault(place, {})
        for place, state, tail, count in asked:
            newer = state.held(tail + 1)
            if state.removals != count or newer is None:
                return None
            present[place] |= {event.offset: event_bytes(event) for event in newer}
        return present

    async def _hit_by(self, state: MongoPartition, removes: Sequence[Remove]) -> dict[int, int]:
        if (held := state.held(1)) is not None:
            return {event.offset: event_bytes(event) for event in held}
        at = await self._placing.standing(state, self._patience.ms)
        return await self._patience(lambda: self._reader.hit_by(removes, at))


def groups_of(batches: Sequence[Batch]) -> list[Sequence[Batch]]:
    """Batches that go into one entry each time: in order, and not larger than a document may be."""
    groups: list[Sequence[Batch]] = []
    first = size = 0
    for at, batch in enumerate(batches):
        more = size_of(batch)
        if size and size + more > MOST_BYTES:
            groups.append(batches[first:at])
            first, size = at, 0
        size += more
    groups.append(batches[first:])
    return groups
