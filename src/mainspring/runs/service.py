"""What a node does for durable runs as long as it lives: renew, recover, deliver, forget.

Recovery is not an event of the boot. Every `recovery_ms` the service renews the node's lease, takes away leases that
ran out, goes on with the runs of nodes that are gone, delivers signals that other nodes wrote down, tells watchers, and
removes finished runs whose time is up. A pass that fails is logged and tried again; nothing of it is urgent.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import msgspec

from mainspring.log import Put
from mainspring.runs.durable_runs import DurableRuns
from mainspring.runs.journal import LIVE, RUNS, RunRecord, decode_record
from mainspring.runs.scheduler import Scheduler
from mainspring.runs.store import UnknownRun

logger = logging.getLogger("mainspring.runs")


class Service:
    """Continuous recovery. `start` once, `stop` once."""

    def __init__(
        self, durable: DurableRuns, scheduler: Scheduler, *, recovery_ms: int, retention_ms: int | None
    ) -> None:
        self._durable = durable
        self._scheduler = scheduler
        self._recovery_ms = recovery_ms
        self._retention_ms = retention_ms
        self._timer: int | None = None
        self._task: asyncio.Task[None] | None = None
        self._look_again = True  # whether a run may be ours that is not executed
        self._gone: set[str] = set()  # nodes whose lease was taken away
        self.recovered = 0

    async def start(self) -> None:
        """Take the lease and go on with every unfinished run of this node and of nodes that are gone."""
        await self._durable.open()
        await self._recover()
        self._plan()

    async def stop(self) -> None:
        """Stop executing, store what was decided, give the lease back. Unfinished runs go on later or elsewhere."""
        if self._timer is not None:
            self._scheduler.forget_timer(self._timer)
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self._durable.writer.quiet()
        self._durable.let_go()
        await self._durable.lease.give_back()
        self._durable.writer.hold()

    def program_registered(self, name: str) -> None:
        """Runs of a program that was unknown so far can go on."""
        self._look_again = True

    def _plan(self) -> None:
        self._timer = self._scheduler.timer(self._recovery_ms, self._begin)

    def _begin(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._pass())

    async def _pass(self) -> None:
        try:
            await self._durable.renew()
            await self._recover()
            await self._durable.look_at_signals()
            await self._durable.look_at_watched()
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
        async for live in self._durable.log.scan(LIVE):
            if self._durable.executes(live.key):
                continue
            owner = msgspec.json.decode(live.value, type=str)
            if owner != self._durable.lease.node:
                if owner not in self._gone:
                    continue
                if not await self._durable.commit([Put(LIVE, live.key, self._durable.owner(), live.version)]):
                    continue
            await self._go_on(live.key)
        for node in self._gone:
            await self._durable.lease.forget(node)
        self._gone.clear()

    async def _fence_the_gone(self) -> None:
        now = self._scheduler.clock.wall_ms()
        owners: set[str] = set()
        async for lease, version in self._durable.lease.others():
            owners.add(lease.node)
            if lease.until < now and (lease.fenced_by or await self._durable.lease.fence(lease, version)):
                logger.warning("node %s is gone; its durable runs go on here", lease.node)
                self._gone.add(lease.node)
        if self._look_again:
            async for live in self._durable.log.scan(LIVE):
                owner = msgspec.json.decode(live.value, type=str)
                if owner not in owners and owner != self._durable.lease.node:
                    self._gone.add(owner)  # it gave its lease back and left runs behind

    async def _go_on(self, run_id: str) -> None:
        try:
            record = await self._durable.store.record(run_id)
            if record.parent is not None and await self._has_living_parent(record):
                return  # its parent brings it back
            if await self._durable.revive(record) is not None:
                self.recovered += 1
            else:
                logger.warning("run %s waits for program %s, which is not registered", run_id, record.program)
        except UnknownRun:
            logger.error("run %s is marked as unfinished and has no record", run_id)
        except Exception:
            logger.exception("run %s cannot go on", run_id)

    async def _has_living_parent(self, record: RunRecord) -> bool:
        found: Any = await self._durable.log.get(RUNS, record.parent or "")
        return found is not None and decode_record(found.value).state == "running"

    # -- retention

    async def _forget_old(self) -> None:
        if self._retention_ms is None:
            return
        before = self._scheduler.clock.wall_ms() - self._retention_ms
        async for mark, run_id in self._durable.store.ended_before(before):
            await self._durable.store.forget(mark, run_id)
