"""What a node does for durable runs on a log that it shares with other nodes.

News do most of it: that a run ended, that a signal came, that a node is gone. When a node is gone, or when a run was
written down that nobody owns, every node looks at the unfinished runs without a living owner. Each takes those that
fall to it (`others.py`). Who should have taken the rest may have died as well, so after one pause everybody takes what
is still left and whose program it has; the log lets one of them have it. A run whose program nobody has stays, and is
reported.

The pause is the only time that is measured here, with this node's own clock. Whether a node is gone is the cluster's
word, and whether this one may still write is the guard's.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from mainspring.cluster import Cluster, Role
from mainspring.errors import MainspringError
from mainspring.log import Change
from mainspring.runs.cluster.ownership import SharedLog
from mainspring.runs.cluster.placement import PROGRAMS, Others
from mainspring.runs.codes import CODES
from mainspring.runs.durable.durable_runs import DurableRuns
from mainspring.runs.durable.records import LIVE, RUNS, SIGNALS, RunRecord, decode_record
from mainspring.runs.scheduler import Scheduler

CHUNK: Final = 500  # families that are claimed and loaded together
ROLE: Final = "runs"

logger: logging.Logger = logging.getLogger("mainspring.runs")

Orphan = tuple[RunRecord, int]  # and the version of its record


class Sharing:
    """Take-over, news and retention among several nodes. `start` once, `stop` once."""

    def __init__(
        self,
        durable: DurableRuns,
        scheduler: Scheduler,
        cluster: Cluster,
        *,
        recovery_ms: int,
        retention_ms: int | None,
    ) -> None:
        assert isinstance(durable.tenure, SharedLog)
        assert durable.others is not None
        self._durable = durable
        self._tenure: SharedLog = durable.tenure
        self._others: Others = durable.others
        self._scheduler = scheduler
        self._cluster = cluster
        self._recovery_ms = recovery_ms
        self._retention_ms = retention_ms
        self._running = False
        self._heard_before = False
        self._timer: int | None = None
        self._task: asyncio.Task[None] | None = None
        self._role: Role | None = None
        self._look_again = True  # whether there may be a run without a living owner
        self._written: set[str] = set()  # runs of this node that it did not execute when they were written down
        self._left: set[str] = set()  # such runs, left to others in the last pass
        self._reported: set[str] = set()  # programs that nobody has
        self.recovered: int = 0

    async def start(self) -> None:
        """Listen, tell what this node can execute, and go on with runs that nobody executes."""
        self._running = True
        if not self._heard_before:
            self._heard_before = True
            self._durable.log.watch(self._hear)
            self._cluster.on_death(lambda _: self.look_again())
            self._cluster.on_fenced(self._fenced)
        self._role = self._cluster.role(ROLE)
        await self._tenure.open()
        await self._others.load()
        await self._passes()

    async def stop(self) -> None:
        """Stop executing and store what was decided. Others go on when this node leaves the cluster."""
        self._running = False
        if self._timer is not None:
            self._scheduler.alarms.forget(self._timer)
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self._durable.writer.quiet()
        self._tenure.close()
        self._durable.let_go()

    # -- news

    def _hear(self, change: Change) -> None:
        for record in change.records:
            if record.space in (RUNS, SIGNALS):
                self._durable.elsewhere.hear(record)
            elif record.space in (PROGRAMS, CODES):
                self._others.hear(record)
            elif record.space == LIVE and record.value:
                self._hear_of_run(decode_record(record.value))

    def _hear_of_run(self, record: RunRecord) -> None:
        if not record.epoch:
            self.look_again()
        elif self._tenure.owns(record) and not self._durable.executes(record.id):
            self._written.add(record.id)

    def _fenced(self, _: int) -> None:
        if self._running:
            self._tenure.begin_again()
            self.look_again()

    def look_again(self) -> None:
        """Something changed: there may be runs that this node should execute."""
        self._look_again = True
        if self._running and self._timer is not None:
            self._scheduler.alarms.forget(self._timer)
            self._timer = None
            self._begin()

    # -- passes

    def _plan(self) -> None:
        if self._running and self._timer is None:
            self._timer = self._scheduler.timer(self._recovery_ms, self._due)

    def _due(self) -> None:
        self._timer = None
        self._begin()

    def _begin(self) -> None:
        try:
            self._task = asyncio.get_running_loop().create_task(self._passes())
        except RuntimeError:
            self._plan()  # nobody's loop runs now

    async def _passes(self) -> None:
        while await self._pass() and self._look_again and self._running:
            continue
        self._plan()

    @property
    def busy(self) -> bool:
        return self._task is not None and not self._task.done()

    async def _pass(self) -> bool:
        """Do what is to do; False when it could not be done and must be tried again after a pause."""
        try:
            if not self._tenure.epoch:
                self._tenure.need()
                return False
            await self._others.tell(self._tenure.epoch, self._cluster.guard)
            await self._recover()
            if self._role is not None and self._role.held:
                await self._others.forget_the_dead(self._role.guard)
                await self._forget_old(self._role)
            return True
        except MainspringError as error:
            logger.warning("a pass over the durable runs did not succeed and will be tried again: %s", error)
        except Exception:
            logger.exception("a pass over the durable runs failed and will be tried again")
        self._look_again = True
        return False

    # -- recovery

    async def _recover(self) -> None:
        written, self._written = self._written, set()
        for run_id in written:
            live = None if self._durable.executes(run_id) else await self._durable.log.get(LIVE, run_id)
            if live is not None and decode_record(live.value).parent is None:
                await self._go_on([decode_record(live.value)])
        if not self._look_again and not self._left:
            return
        self._look_again = False
        left, self._left = self._left, set()
        own, orphans = await self._without_owner()
        await self._go_on(own)
        mine = [orphan for orphan in orphans if self._takes(orphan[0], left)]
        for start in range(0, len(mine), CHUNK):
            chunk = mine[start : start + CHUNK]
            claims = await asyncio.gather(*(self._durable.claim(record, version) for record, version in chunk))
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
            if self._durable.executes(record.id) or self._is_executed_by_another(record):
                continue
            if record.parent is not None and await self._durable.log.get(LIVE, record.parent) is not None:
                continue
            if self._tenure.owns(record):
                own.append(record)
            else:
                orphans.append((record, live.version))
        return own, orphans

    def _is_executed_by_another(self, record: RunRecord) -> bool:
        return not self._tenure.owns(record) and self._cluster.alive(record.epoch)

    def _takes(self, record: RunRecord, left: set[str]) -> bool:
        if record.program in self._durable.programs and self._others.may_take(record):
            if record.id in left or self._others.should_take(record, self._tenure.epoch):
                return True
            self._left.add(record.id)
        elif missing := self._others.missing(record):
            self._report(record, missing)
        return False

    def _report(self, record: RunRecord, missing: str) -> None:
        if record.program not in self._reported:
            self._reported.add(record.program)
            logger.warning("run %s waits: no living node has %s; it goes on when one has", record.id, missing)

    async def _go_on(self, records: list[RunRecord]) -> None:
        known = [record for record in records if record.program in self._durable.programs]
        self._reported.difference_update(record.program for record in known)
        self.recovered += len(await self._durable.revive(known))

    # -- retention

    async def _forget_old(self, role: Role) -> None:
        if self._retention_ms is None:
            return
        before = self._scheduler.clock.wall_ms() - self._retention_ms
        async for mark, run_id in self._durable.store.ended_before(before):
            await self._durable.store.forget(mark, run_id, role.guard)
