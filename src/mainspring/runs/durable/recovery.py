"""What a node does for durable runs as long as it lives: go on with unfinished ones, and remove old ones.

Recovery is not an event of the boot. A pass is made when the service starts, when something changed (a program was
registered, a node is gone, a run has no owner), and every `recovery_ms`. Which unfinished runs are this node's is for
the ownership to say. A pass that fails is logged and made again; nothing of it is urgent.

A run can be unfinished although its parent is over: a parent ends after its attached children, or takes them along, but
each ending is written down by itself, so a process can die when that of the parent is stored and that of a child is
not. Such a child is ended when it is recovered, because without its parent nothing else would end it. A detached one
has outlived its parent rightfully and goes on; it belongs to the root of its tree.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from mainspring.log import LogUnavailable, Refused
from mainspring.loop import BackgroundTasks
from mainspring.runs.durable.records import LIVE, RunRecord, decode_record, root_id
from mainspring.runs.durable.store import CHILD_MARK
from mainspring.runs.errors import TakenOver, UnknownRun
from mainspring.runs.run import Cancelled, Run
from mainspring.runs.tree import family_of, taken_along_by

if TYPE_CHECKING:
    from mainspring.runs.durable.durable_runs import DurableRuns

logger: logging.Logger = logging.getLogger("mainspring.runs")

FORGOTTEN_AT_ONCE: Final = 100  # runs whose time is up that one pass removes
NEXT_STEP_MS: Final = 50  # until the next pass, while there are more


class RunRecovery:
    """Continuous recovery and retention. `start` once, `stop` once."""

    def __init__(self, durable: DurableRuns, *, recovery_ms: int, retention_ms: int | None) -> None:
        self._durable = durable
        self._scheduler = durable.scheduler
        self._recovery_ms = recovery_ms
        self._retention_ms = retention_ms
        self._running = False
        self._timer: int | None = None
        self._tasks = BackgroundTasks(logger, "recovery of runs")
        self._forgotten_up_to = ""  # the mark of the last old run that was looked at, while there may be more
        self.on_forgotten: list[Callable[[int], object]] = []  # called with how many old runs were removed
        self._look_again = True  # whether there may be a run that this node should execute and does not
        durable.programs.on_new.append(lambda name: self.look_again())

    async def start(self) -> None:
        """Go on with unfinished runs, now and from now on."""
        self._running = True
        await self._durable.ownership.start()
        await self._durable.signals.load_early()
        await self._passes(first=True)

    async def stop(self) -> None:
        """Stop executing and store what was decided. Unfinished runs go on later, or on other nodes."""
        self._running = False
        if self._timer is not None:
            self._scheduler.alarms.forget(self._timer)
            self._timer = None
        await self._tasks.cancel()
        self._durable.take_back_begun()
        await self._durable.writer.quiet()
        self._durable.ownership.stop()
        self._durable.let_go()

    def look_again(self) -> None:
        """Something changed: there may be runs that this node should execute."""
        self._look_again = True
        if self._running and self._timer is not None:
            self._scheduler.alarms.forget(self._timer)
            self._begin()

    @property
    def busy(self) -> bool:
        """Whether a pass is being made."""
        return len(self._tasks) > 0

    # -- passes

    def _plan(self) -> None:
        if self._running and self._timer is None:
            wait_ms = NEXT_STEP_MS if self._forgotten_up_to else self._recovery_ms
            self._timer = self._scheduler.timer(wait_ms, self._begin)

    def _begin(self) -> None:
        self._timer = None
        try:
            self._tasks.start(self._passes(), "pass")
        except RuntimeError:
            self._plan()  # no loop is running now

    async def _passes(self, *, first: bool = False) -> None:
        while await self._pass(first) and self._look_again and self._running:
            continue
        self._plan()

    async def _pass(self, first: bool) -> bool:
        """Do what is to do; False when it could not be done and must be tried again after a pause.

        What cannot pass by itself, like a damaged record, keeps the service from starting; later it is only logged.
        """
        look_again, self._look_again = self._look_again, False
        try:
            if await self._durable.ownership.recover(look_again):
                await self._remove_old()
                return True
        except (LogUnavailable, Refused, TakenOver) as error:
            logger.warning("a pass over the durable runs did not succeed and will be tried again: %s", error)
        except Exception:
            if first:
                raise
            logger.exception("a pass over the durable runs failed and will be tried again")
        self._look_again = True
        return False

    async def _remove_old(self) -> None:
        guard = await self._durable.ownership.housekeeping()
        if guard is None:
            return
        await self._durable.signals.forget_early(guard)
        if self._retention_ms is None:
            return
        before = self._durable.clock.wall_ms() - self._retention_ms
        store, looked_at, forgotten = self._durable.store, 0, 0
        after, self._forgotten_up_to = self._forgotten_up_to, ""
        async for mark, run_id in store.ended_before(before, after):
            forgotten += await store.forget_old(mark, run_id, guard)
            looked_at += 1
            if looked_at == FORGOTTEN_AT_ONCE:  # the rest in the next pass: runs that are to go on come first
                self._forgotten_up_to = mark
                break
        if forgotten:
            for listener in self.on_forgotten:
                listener(forgotten)


# -- runs whose parent is over


async def end_attached(durable: DurableRuns, records: Iterable[RunRecord]) -> list[RunRecord]:
    """End those that should have ended with their parent, and what is attached to them; gives the others."""
    rightful: list[RunRecord] = []
    for record in records:
        if record.parent is None or not record.attached:
            rightful.append(record)
        else:
            await _end(durable, record, await _reason(durable, record.parent))
    return rightful


async def _end(durable: DurableRuns, record: RunRecord, reason: Any) -> None:
    for loaded in await durable.ownership.load([record]):
        if durable.ownership.owns(loaded.record) and not durable.executes(record.id):
            durable.end_at_once(loaded, Cancelled(reason), record.parent or "")
    await end_below(durable, record, reason)


async def end_below(durable: DurableRuns, record: RunRecord, reason: Any) -> None:
    """End the unfinished runs that are attached to one, and what is attached to them."""
    async for stored in durable.log.scan(LIVE, record.id + CHILD_MARK):
        child = decode_record(stored.value)
        if child.parent == record.id and child.attached:
            await _end(durable, child, reason)


async def _reason(durable: DurableRuns, parent: str) -> Any:
    try:
        outcome = (await durable.store.record(parent)).outcome()
    except UnknownRun:  # forgotten meanwhile
        outcome = None
    return outcome.reason if isinstance(outcome, Cancelled) else taken_along_by(parent)


def adopt_detached(runs: Iterable[Run[Any]], live: Mapping[str, Run[Any]]) -> None:
    """Runs that are executed again without their parent belong to their root, if that is executed here."""
    for run in runs:
        root = live.get(root_id(run.id))
        if root is not None and root is not run:
            family_of(root).adopt(run, detached=True)
