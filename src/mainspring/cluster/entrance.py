"""The way in: taking the lease of a name, from nobody, from one's own former life, or from a node that is silent.

That the lease is taken is learnt from the log's news, not from an answer. Of two living nodes with one name the second
is refused; whether the first lives shows within the time of its lease.
"""

from __future__ import annotations

import logging
from typing import Final

import msgspec

from mainspring.cluster.errors import NameTaken
from mainspring.cluster.peers import Peer, Peers
from mainspring.cluster.records import EVERYTHING, LEASES, NODES, Lease, decode_lease, encode, inbox, lease_key
from mainspring.log import ABSENT, Batch, FormatError, InDoubt, Log, Refused
from mainspring.loop import Loop, pause

logger: logging.Logger = logging.getLogger("mainspring.cluster")

_LOOKS: Final = 10  # per lease


class Entrance:
    def __init__(self, log: Log, loop: Loop, peers: Peers, *, node: str, lease_ms: int, home: str) -> None:
        self._log = log
        self._loop = loop
        self._clock = loop.clock
        self._peers = peers
        self._node = node
        self._lease_ms = lease_ms
        self._home = home

    async def take(self, instance: str, *, first_time: bool) -> int:
        """The epoch, once the news say that this life of the node holds the lease. Raises `NameTaken`."""
        other = self._peers.get(self._node)
        first_seen = None if other is None else (other.epoch, other.pulse_version)
        if other is not None and not self._is_gone(other, first_time):
            logger.info("a node named %s holds a lease: waiting to see whether it is alive", self._node)
        while True:
            other = self._peers.get(self._node)
            if other is not None and other.lease.instance == instance:
                return other.epoch
            if other is None or self._is_gone(other, first_time):
                await self._try_lease(instance, other)
            elif (other.epoch, other.pulse_version) != first_seen:
                raise NameTaken(self._node, other.pulse.address if other.pulse is not None else "")
            else:
                await pause(self._loop, self._lease_ms / _LOOKS, ref=False)

    def _is_gone(self, other: Peer, first_time: bool) -> bool:
        # A former life of this node is over. But a node that lost its lease to one with its own home lives itself:
        # two processes believe that they own it, and the later one stays.
        if first_time and self._home and other.lease.home == self._home:
            return True
        return self._clock.now_ms() - other.heard_ms >= other.lease.lease_ms

    async def _try_lease(self, instance: str, former: Peer | None) -> None:
        batch = Batch()
        if former is not None:
            batch.guard(NODES, self._node, former.pulse_version)
            batch.delete(LEASES, lease_key(self._node), expect=former.epoch)
            batch.remove(inbox(self._node), 0, below=EVERYTHING)
        lease = Lease(self._node, instance, self._lease_ms, self._home)
        batch.put(LEASES, lease_key(self._node), encode(lease), expect=ABSENT)
        try:
            await self._log.commit(batch)
        except (Refused, InDoubt):
            await self._check_lease()
            await pause(self._loop, self._lease_ms / _LOOKS, ref=False)  # the news will say what became of it

    async def _check_lease(self) -> None:
        """A lease that cannot be read cannot be judged either; somebody has to look at it."""
        record = await self._log.get(LEASES, lease_key(self._node))
        try:
            if record is not None:
                decode_lease(record.value)
        except msgspec.DecodeError as error:
            raise FormatError(
                f"the lease of node {self._node!r} in the log cannot be read: {error}",
                remedy="another program writes there, or a newer version: look at the engine's contents, or use --node",
            ) from error
