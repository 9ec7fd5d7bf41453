"""What happens to runs when a node dies: how other nodes of a shared log take them over.

When a node is gone, or when a run was written down without an owner, every node looks at the unfinished runs without a
living owner. Each takes those that fall to it (`placement.py`). The node that should have taken the rest may have died
as well, so after one pause each takes what is still left and whose program it has; the log lets one of them have it. A
run whose program no living node has stays, and is reported.

The pause is the only time that is measured here, with this node's own clock. Whether a node is gone is for the cluster
to say, and whether this one may still write is decided by its guard.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from mainspring.cluster import Cluster
from mainspring.runs.cluster.placement import Placement
from mainspring.runs.durable.records import LIVE, RunRecord, decode_record

if TYPE_CHECKING:
    from mainspring.runs.cluster.ownership import SharedOwnership
    from mainspring.runs.durable.durable_runs import DurableRuns

CHUNK: Final = 500  # families that are claimed and loaded together

logger: logging.Logger = logging.getLogger("mainspring.runs")

Orphan = tuple[RunRecord, int]  # and the version of its record


class Takeover:
    """Finds the runs that this node should execute and does not."""

    def __init__(
        self, durable: DurableRuns, ownership: SharedOwnership, placement: Placement, cluster: Cluster
    ) -> None:
        self._durable = durable
        self._ownership = ownership
        self._placement = placement
        self._cluster = cluster
        self._written: set[str] = set()  # runs of this node that it did not execute when they were written down
        self._left: set[str] = set()  # orphans that were left to other nodes in the last pass
        self._reported: set[str] = set()  # programs that no node has

    def on_live(self, record: RunRecord) -> None:
        """An unfinished run was written down, here or on another node."""
        if not record.epoch:
            self._durable.recovery.look_again()
        elif self._ownership.owns(record) and not self._durable.executes(record.id):
            self._written.add(record.id)

    async def recover(self, look_again: bool) -> None:
        """Go on with runs of this node that it does not execute, and claim those whose owner is gone."""
        written, self._written = self._written, set()
        for run_id in written:
            live = None if self._durable.executes(run_id) else await self._durable.log.get(LIVE, run_id)
            if live is not None and (record := decode_record(live.value)).parent is None:
                await self._go_on([record])
        if not look_again and not self._left:
            return
        left, self._left = self._left, set()
        own, orphans = await self._without_owner()
        await self._go_on(own)
        mine = [orphan for orphan in orphans if self._takes(orphan[0], left)]
        for start in range(0, len(mine), CHUNK):
            chunk = mine[start : start + CHUNK]
            claims = await asyncio.gather(*(self._ownership.claim(record, version) for record, version in chunk))
            claimed = [record for (record, _), won in zip(chunk, claims, strict=True) if won]
            self._left.update(record.id for (record, _), won in zip(chunk, claims, strict=True) if not won)
            await self._go_on(claimed)

    async def _without_owner(self) -> tuple[list[RunRecord], list[Orphan]]:
        """Unfinished runs of this node that it does not execute, and those whose owner is gone; children left out.

        A child comes with its parent, unless the parent is over.
        """
        own: list[RunRecord] = []
        orphans: list[Orphan] = []
        async for live in self._durable.log.scan(LIVE):
            record = decode_record(live.value)
            owns = self._ownership.owns(record)
            if self._durable.executes(record.id) or (not owns and self._cluster.alive(record.epoch)):
                continue
            if record.parent is not None and await self._durable.log.get(LIVE, record.parent) is not None:
                continue
            if owns:
                own.append(record)
            else:
                orphans.append((record, live.version))
        return own, orphans

    def _takes(self, record: RunRecord, left: set[str]) -> bool:
        if record.program in self._durable.programs and self._placement.may_take(record):
            if record.id in left or self._placement.should_take(record, self._ownership.epoch):
                return True
            self._left.add(record.id)
        elif missing := self._placement.missing(record):
            self._report(record, missing)
        return False

    def _report(self, record: RunRecord, missing: str) -> None:
        if record.program not in self._reported:
            self._reported.add(record.program)
            logger.warning("run %s waits: no living node has %s; it goes on when one has", record.id, missing)

    async def _go_on(self, records: list[RunRecord]) -> None:
        known = [record for record in records if record.program in self._durable.programs]
        self._reported.difference_update(record.program for record in known)
        await self._durable.recover(known)
