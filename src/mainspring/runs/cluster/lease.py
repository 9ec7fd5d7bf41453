"""The lease of a node on its durable runs: one record, not one per run.

A node owns the runs whose `runs/live` record names it, as long as its lease record stands. It renews the record by
itself; whoever finds one that ran out may take it away by writing over it. That changes the record's version, and since
every write of the old owner is guarded by the version it knew, the old owner is stopped even if it was only asleep.

A node that starts again under the same name takes its own lease away from its former self at once. So one process on
one machine, the usual case, recovers without waiting for anything to run out.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import msgspec

from mainspring.log import ABSENT, Batch, Log, Refused
from mainspring.runs.durable.records import LEASES

PREFIX: Final = "runs/"


class LeaseRecord(msgspec.Struct, omit_defaults=True):
    node: str
    until: int  # epoch ms
    fenced_by: str = ""


def lease_key(node: str) -> str:
    return PREFIX + node


class Lease:
    """Takes, renews and gives back one node's lease, and takes away those that ran out."""

    def __init__(self, log: Log, node: str, ttl_ms: int) -> None:
        self._log = log
        self.node = node
        self.key: str = lease_key(node)
        self.ttl_ms = ttl_ms
        self.version: int = ABSENT
        self.renewals: int = 0  # how often it was taken or extended
        self.contested: bool = False  # it had been taken away: somebody may be claiming this node's runs right now

    async def take(self, wall_ms: int) -> int:
        """Take the own lease whatever is there; the version that guards writes from now on."""
        while True:
            found = await self._log.get(LEASES, self.key)
            self.version = ABSENT if found is None else found.version
            if found is not None and msgspec.json.decode(found.value, type=LeaseRecord).fenced_by:
                self.contested = True
            try:
                return await self.renew(wall_ms)
            except Refused:
                continue  # somebody wrote between our look and our write: look again

    async def renew(self, wall_ms: int) -> int:
        """Extend it; raises Refused when it was taken away."""
        value = msgspec.json.encode(LeaseRecord(self.node, wall_ms + self.ttl_ms))
        batch = Batch()
        batch.put(LEASES, self.key, value, expect=self.version)
        receipt = await self._log.commit(batch)
        self.version = receipt.versions[0]
        self.renewals += 1
        return self.version

    async def give_back(self) -> None:
        """Let others take over at once. Nothing happens when it was taken away before."""
        batch = Batch()
        batch.delete(LEASES, self.key, expect=self.version)
        try:
            await self._log.commit(batch)
        except Refused:
            return

    async def others(self) -> AsyncIterator[tuple[LeaseRecord, int]]:
        """The leases of other nodes, with their versions."""
        async for record in self._log.scan(LEASES, PREFIX):
            lease = msgspec.json.decode(record.value, type=LeaseRecord)
            if lease.node != self.node:
                yield lease, record.version

    async def is_alive(self, node: str | None, wall_ms: int) -> bool:
        """Whether another node's lease still stands."""
        async for lease, _ in self.others():
            if lease.node == node:
                return lease.until > wall_ms
        return False

    async def fence(self, lease: LeaseRecord, version: int) -> bool:
        """Take away a lease that ran out; False when its owner renewed it meanwhile."""
        value = msgspec.json.encode(LeaseRecord(lease.node, 0, self.node))
        batch = Batch()
        batch.put(LEASES, lease_key(lease.node), value, expect=version)
        try:
            await self._log.commit(batch)
        except Refused:
            return False
        return True

    async def forget(self, node: str) -> None:
        """Remove the record of a node that owns nothing any more."""
        batch = Batch()
        batch.delete(LEASES, lease_key(node))
        await self._log.commit(batch)
