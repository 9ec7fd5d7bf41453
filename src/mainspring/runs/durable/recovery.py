"""What a node does for durable runs as long as it lives: renew, recover, deliver, forget.

Recovery is not an event of the boot. Every `recovery_ms` the service renews the node's lease, takes away leases that
ran out, goes on with the runs of nodes that are gone, delivers signals that other nodes wrote down, tells watchers, and
removes finished runs whose time is up. A pass that fails is logged and tried again; nothing of it is urgent.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from mainspring.runs.cluster.ownership import OwnLog
from mainspring.runs.durable.durable_runs import DurableRuns
from mainspring.runs.durable.records import LIVE, RunRecord, decode_record
from mainspring.runs.scheduler import Scheduler

CHUNK: Final = 500  # runs whose journals are read together: bounds the memory, not the number of runs

logger: logging.Logger = logging.getLogger("mainspring.runs")


class Service:
    """Continuous recovery. `start` once, `stop` once."""

    def __init__(
        self, durable: DurableRuns, scheduler: Scheduler, *, recovery_ms: int, retention_ms: int | None
    ) -> None:
        assert isinstance(durable.tenure, OwnLog)
        self._durable = durable
        self._tenure: OwnLog = durable.tenure
        self._scheduler = scheduler
        self._recovery_ms = recovery_ms
        self._retention_ms = retention_ms
        self._timer: int | None = None
        self._task: asyncio.Task[None] | None = None
        self._look_again = True  # whether a run may be ours that is not executed
        self._gone: set[str] = set()  # nodes whose lease was taken away
        self.recovered: int = 0
        self.taken: int = 0  # leases of nodes that are gone
        durable.on_new_lease = self.look_again

    async def start(self) -> None:
        """Take the lease and go on with every unfinished run of this node and of nodes that are gone."""
        await self._durable.tenure.open()
        await self._recover()
        self._plan()

    async def stop(self) -> None:
        """Stop executing, store what was decided, give the lease back. Unfinished runs go on later or elsewhere."""
        if self._timer is not None:
            self._scheduler.alarms.forget(self._timer)
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self._durable.writer.quiet()
        self._tenure.close()
        self._durable.let_go()
        await self._durable.lease.give_back()

    def look_again(self) -> None:
        """Something changed: there may be runs of this node that it does not execute."""
        self._look_again = True

    def _plan(self) -> None:
        self._timer = self._scheduler.timer(self._recovery_ms, self._begin)

    def _begin(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._pass())

    async def _pass(self) -> None:
        try:
            await self._tenure.renew()
            await self._recover()
            await self._durable.elsewhere.look_at_signals()
            await self._durable.elsewhere.look_at_watched()
            await self._forget_old()
        except Exception:
            logger.exception("a recovery pass failed and will be tried again")
        self._plan()

    @property
    def busy(self) -> bool:
        return self._task is not None and not self._task.done()

    # -- recovery

    async def _recover(self) -> None:
        await self._fence_the_gone()
        if not self._look_again and not self._gone:
            return
        self._look_again = False
        lease = self._durable.lease
        mine, contested, lease.contested = lease.node, lease.contested, False
        chunk: list[RunRecord] = []
        async for live in self._durable.log.scan(LIVE):
            if self._durable.executes(live.key):
                continue
            record = decode_record(live.value)
            certain = record.owner == mine and not contested
            claimable = record.owner in (mine, *self._gone)
            if certain or (claimable and await self._durable.claim(record, live.version)):
                chunk.append(record)
            if len(chunk) >= CHUNK:
                await self._go_on(chunk)
                chunk = []
        await self._go_on(chunk)
        for node in self._gone:
            await self._durable.lease.forget(node)
        self._gone.clear()

    async def _fence_the_gone(self) -> None:
        now = self._scheduler.clock.wall_ms()
        known = {self._durable.lease.node}
        async for lease, version in self._durable.lease.others():
            known.add(lease.node)
            if lease.until < now and (lease.fenced_by or await self._durable.lease.fence(lease, version)):
                self.taken += 1
                logger.warning("node %s is gone; its durable runs go on here", lease.node)
                self._gone.add(lease.node)
        if self._look_again:
            async for live in self._durable.log.scan(LIVE):
                owner = decode_record(live.value).owner or ""
                if owner not in known:
                    self._gone.add(owner)  # it gave its lease back and left runs behind

    async def _go_on(self, records: list[RunRecord]) -> None:
        """Execute these runs again, except children whose parent will bring them back."""
        mine = []
        for record in records:
            if record.program not in self._durable.programs:
                logger.warning("run %s waits for program %s, which is not registered", record.id, record.program)
            elif record.parent is None or await self._durable.log.get(LIVE, record.parent) is None:
                mine.append(record)
        self.recovered += len(await self._durable.revive(mine))

    # -- retention

    async def _forget_old(self) -> None:
        if self._retention_ms is None:
            return
        before = self._scheduler.clock.wall_ms() - self._retention_ms
        async for mark, run_id in self._durable.store.ended_before(before):
            await self._durable.store.forget(mark, run_id)
