"""Everybody's leases and pulses as this node has heard of them, and who has been silent for too long.

Nothing here reads a clock or writes to the log: `Membership` says what it heard and when. Silence is counted from the
last news of a node, or from when this node could hear again: a node that slept, or that was itself cut off from the
log, knows nothing about the others' silence meanwhile.

An epoch that is not in the table is dead, with one exception: one that is greater than every lease this node has heard
of. A reader can be ahead of the news, and then it finds traces of a node that has not been announced here yet.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mainspring.cluster.records import Lease, Pulse
from mainspring.log import ABSENT


@dataclass(slots=True)
class Peer:
    """One node that holds a lease."""

    name: str
    epoch: int
    lease: Lease
    heard_ms: int  # monotonic, of the observer
    pulse_version: int = ABSENT
    pulse: Pulse | None = None


class Peers:
    def __init__(self) -> None:
        self._by_name: dict[str, Peer] = {}
        self._epochs: set[int] = set()
        self._pulses: dict[str, tuple[int, Pulse]] = {}  # also of names whose lease is not known (yet)
        self._newest = 0

    def __iter__(self) -> Iterator[Peer]:
        return iter(self._by_name.values())

    def get(self, name: str) -> Peer | None:
        return self._by_name.get(name)

    def alive(self, epoch: int) -> bool:
        return epoch in self._epochs or epoch > self._newest

    def lease_written(self, name: str, epoch: int, lease: Lease, now_ms: int) -> int | None:
        """A lease is there; gives the epoch it replaces, if any."""
        former = self._by_name.get(name)
        if former is not None and former.epoch == epoch:
            return None
        self._newest = max(self._newest, epoch)
        peer = Peer(name, epoch, lease, now_ms)
        if name in self._pulses:
            peer.pulse_version, peer.pulse = self._pulses[name]
        self._by_name[name] = peer
        self._epochs.add(epoch)
        if former is not None:
            self._epochs.discard(former.epoch)
        return None if former is None else former.epoch

    def lease_deleted(self, name: str) -> int | None:
        """A lease is gone; gives its epoch, if it was known."""
        peer = self._by_name.pop(name, None)
        if peer is None:
            return None
        self._epochs.discard(peer.epoch)
        return peer.epoch

    def pulse_written(self, name: str, version: int, pulse: Pulse, now_ms: int) -> None:
        self._pulses[name] = (version, pulse)
        peer = self._by_name.get(name)
        if peer is not None:
            peer.pulse_version, peer.pulse, peer.heard_ms = version, pulse, now_ms

    def pulse_deleted(self, name: str) -> None:
        self._pulses.pop(name, None)
        peer = self._by_name.get(name)
        if peer is not None:
            peer.pulse_version, peer.pulse = ABSENT, None

    def count_again(self, now_ms: int) -> None:
        """This node could not hear for a while: everybody gets the whole time once more."""
        for peer in self:
            peer.heard_ms = now_ms

    def silent(self, now_ms: int) -> list[Peer]:
        """Those whose lease may be taken away, by their own measure of how long a lease lasts."""
        return [peer for peer in self if now_ms - peer.heard_ms >= peer.lease.lease_ms]
