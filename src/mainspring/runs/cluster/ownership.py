"""What entitles a node to write its durable runs, and what it does when that is taken away.

On a log of its own a node holds a lease that it renews (`lease.py`); this is about restarts, and about processes that
follow each other on one machine. On a log that several nodes share, the node's membership in the cluster is the
entitlement: its epoch is in the record of every run it executes and its guard is in every batch it writes, and no clock
of any machine is compared with another's.

Both say the same to the runs: who is the owner of what, what may be claimed, and when to let go.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

from mainspring.cluster import Cluster
from mainspring.errors import MainspringError
from mainspring.log import Batch, Guard, Refused
from mainspring.runs.cluster.lease import Lease
from mainspring.runs.durable.records import LEASES, RunRecord

if TYPE_CHECKING:
    from mainspring.runs.durable.durable_runs import DurableRuns

logger: logging.Logger = logging.getLogger("mainspring.runs")


class Tenure(Protocol):
    """What durable runs ask about their node's right to execute them."""

    node: str
    shared: bool  # other nodes may write to the log at the same time

    @property
    def epoch(self) -> int:
        """What is written into the records of this node's runs; 0 when there can be no other nodes."""

    def owns(self, record: RunRecord) -> bool:
        """Whether this node is the one to execute an unfinished run."""

    async def is_orphan(self, record: RunRecord) -> bool:
        """Whether the node that should execute it is gone."""

    async def open(self) -> None:
        """Get entitled; writes flow from then on."""

    def need(self) -> None:
        """Writes wait: get entitled if that is possible."""

    def lost(self, epoch: int) -> None:
        """A write that was guarded in this epoch was refused: stop executing."""

    def close(self) -> None:
        """Want no entitlement any more, until `open`."""


class OwnLog:
    """Entitled by a lease, renewed by this node and kept in the log."""

    shared = False
    epoch = 0

    def __init__(self, lease: Lease, runs: DurableRuns) -> None:
        self.node: str = lease.node
        self._lease = lease
        self._runs = runs
        self._opening = False
        self.closed: bool = False

    def owns(self, record: RunRecord) -> bool:
        return record.owner == self.node

    async def is_orphan(self, record: RunRecord) -> bool:
        return not await self._lease.is_alive(record.owner, self._runs.clock.wall_ms())

    def need(self) -> None:
        if not self._opening and not self.closed:
            self._opening = True
            self._runs.in_background(self.open())

    async def open(self) -> None:
        self.closed = False
        self._opening = True
        try:
            self._runs.writer.hold()
            await self._lease.take(self._runs.clock.wall_ms())
            self._runs.on_new_lease()
            self._use()
        except MainspringError as error:
            logger.warning("cannot take the lease of %s, durable runs wait: %s", self.node, error)
            self._runs.after(1000, self.need)
        finally:
            self._opening = False

    async def renew(self) -> None:
        """Extend the lease; when it was taken away, let go of everything and take it anew."""
        if self._opening:
            return
        self._opening = True  # a write that waits for the new version must not take the lease a second time meanwhile
        self._runs.writer.hold()
        lost = False
        try:
            await self._lease.renew(self._runs.clock.wall_ms())
        except Refused:
            lost = True
        except MainspringError as error:
            logger.warning("cannot renew the lease of %s now: %s", self.node, error)
        finally:
            self._opening = False
        if lost:
            self.lost(self.epoch)
        else:
            self._use()

    def _use(self) -> None:
        self._runs.writer.use([Guard(LEASES, self._lease.key, self._lease.version)])

    def close(self) -> None:
        self.closed = True
        self._runs.writer.hold()

    def lost(self, epoch: int) -> None:
        self._runs.times_lost += 1
        logger.warning("node %s lost its lease; its durable runs go on elsewhere", self.node)
        self._runs.writer.hold()
        self._runs.let_go()
        self.need()


class SharedLog:
    """Entitled by the node's place in the cluster."""

    shared = True

    def __init__(self, cluster: Cluster, runs: DurableRuns) -> None:
        self.node: str = cluster.node
        self.cluster = cluster
        self.epoch: int = 0
        self._runs = runs
        self._refused = 0  # the epoch that turned out to be over
        self.closed: bool = False

    def owns(self, record: RunRecord) -> bool:
        return self.epoch != 0 and record.epoch == self.epoch

    async def is_orphan(self, record: RunRecord) -> bool:
        return not self.cluster.alive(record.epoch)

    async def open(self) -> None:
        self.closed = False
        self.need()

    def need(self) -> None:
        """The guard is made once per epoch: a batch of this epoch can never carry the guard of a later one."""
        epoch = self.cluster.epoch
        if self.closed or epoch == self._refused or not self.cluster.alive(epoch):
            return  # `begin_again` comes when the cluster has a new one
        self.epoch = epoch
        guard = Batch()
        self.cluster.guard(guard)
        self._runs.writer.use(guard.operations)
        self._runs.beginnings.write_unwritten()

    def lost(self, epoch: int) -> None:
        """Others execute this node's runs from now on. Which epoch comes next is the cluster's news to tell."""
        if self.epoch == 0 or epoch != self.epoch:
            return
        self._runs.times_lost += 1
        logger.warning("node %s lost its lease (epoch %d); its durable runs go on elsewhere", self.node, self.epoch)
        self._refused, self.epoch = self.epoch, 0
        self._runs.writer.hold()
        self._runs.let_go()

    def close(self) -> None:
        self.closed, self.epoch = True, 0
        self._runs.writer.hold()

    def begin_again(self) -> None:
        """The cluster has a new epoch: what was held under the one before is others' business."""
        if self.epoch != self.cluster.epoch:
            self.lost(self.epoch)
        self.need()
