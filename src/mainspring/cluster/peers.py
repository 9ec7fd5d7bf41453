"""What nodes write about themselves, and the table that each node keeps of all of them.

A **lease** (space `leases`, key `node/<name>`) is written once by its node and only ever deleted; its version is the
node's epoch. A **pulse** (space `nodes`, key `<name>`) is rewritten a few times per lease: every node that follows the
log learns from it that the node lives, and finds in it what people and other nodes want to know. A **role** (space
`leases`, key `role/<name>`) says which epoch has it.

Nodes of different versions live side by side. So a member that is not known here is passed over, one that is missing
has a default, and nothing is ever taken away from these records without a new `format` that older nodes can refuse.

`Peers` neither reads a clock nor writes to the log: `Membership` says what changed and when. Silence is counted from
the last change of a node's records, or from when this node could follow the log again: a node that slept, or that was
itself cut off from the log, knows nothing about the others' silence meanwhile.

An epoch that is not in the table is dead, with one exception: one that is greater than every lease this node has seen.
A reader can be ahead of the change feed, and then it finds traces of a node that has not been announced here yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import msgspec

from mainspring.log import ABSENT

LEASES: Final = "leases"
NODES: Final = "nodes"
FORMAT: Final = 1  # of the records that nodes share; a pulse carries it to the others
EVERYTHING: Final = (1 << 53) - 1  # an offset above all others
NO_VERSION: Final = (1 << 53) - 1  # that no record ever has: a guard on it never holds


def lease_key(node: str) -> str:
    return f"node/{node}"


def role_key(role: str) -> str:
    return f"role/{role}"


def inbox(node: str) -> str:
    """The topic of what other nodes ask of this one. The bus knows no name with `|`, so no client gets at it."""
    return f"system.node|{node}"


class NodeLease(msgspec.Struct, frozen=True):
    """Proof that a node of this name is there. `instance` tells one life of a node from the next."""

    node: str
    instance: str
    lease_ms: int
    home: str = ""  # what only one process at a time can own; the next owner need not wait until the lease is over
    format: int = FORMAT


class Pulse(msgspec.Struct, frozen=True):
    """A node about itself, as of its last heartbeat."""

    name: str
    epoch: int
    beat: int = 0  # how many there were
    address: str = ""
    started: int = 0  # epoch ms by the node's own clock; for people
    version: str = ""  # of the software
    format: int = FORMAT
    serves: tuple[str, ...] = ()  # `kind:Type` of what its program handles
    program: str = ""  # digest of what its program declares
    able: tuple[str, ...] = ()  # roles that its program has something for
    leaving: bool = False  # it stops by itself


class Holder(msgspec.Struct, frozen=True):
    """Who has a role."""

    node: str
    epoch: int


encode: Callable[[object], bytes] = msgspec.json.Encoder().encode
decode_lease: Callable[[bytes], NodeLease] = msgspec.json.Decoder(NodeLease).decode
decode_pulse: Callable[[bytes], Pulse] = msgspec.json.Decoder(Pulse).decode
decode_holder: Callable[[bytes], Holder] = msgspec.json.Decoder(Holder).decode


@dataclass(slots=True)
class Peer:
    """One node that holds a lease."""

    name: str
    epoch: int
    lease: NodeLease
    seen_ms: int  # monotonic, of the observer
    pulse_version: int = ABSENT
    pulse: Pulse | None = None
    leaving: bool = False  # it said so


class AwayNode(msgspec.Struct, frozen=True):
    """A node that is gone without having said that it stops. `since`: when that was noticed, epoch ms."""

    name: str
    since: int


class Peers:
    """Every node that holds a lease, as this node has seen it."""

    def __init__(self) -> None:
        self._by_name: dict[str, Peer] = {}
        self._epochs: set[int] = set()
        self._pulses: dict[str, tuple[int, Pulse]] = {}  # also of names whose lease was not seen (yet)
        self._newest = 0

    def __iter__(self) -> Iterator[Peer]:
        return iter(self._by_name.values())

    def get(self, name: str) -> Peer | None:
        return self._by_name.get(name)

    def alive(self, epoch: int) -> bool:
        return epoch in self._epochs or epoch > self._newest

    def set_lease(self, name: str, epoch: int, lease: NodeLease | None, now_ms: int) -> int | None:
        """A lease is there, or gone (None); gives the epoch that ended with that, if one did."""
        former = self._by_name.get(name)
        if former is not None:
            if lease is not None and former.epoch == epoch:
                return None
            del self._by_name[name]
            self._epochs.discard(former.epoch)
        if lease is not None:
            self._newest = max(self._newest, epoch)
            self._by_name[name] = Peer(name, epoch, lease, now_ms, *self._pulses.get(name, (ABSENT, None)))
            self._epochs.add(epoch)
        return None if former is None else former.epoch

    def set_pulse(self, name: str, version: int, pulse: Pulse | None, now_ms: int) -> None:
        """A pulse was written, or deleted (None)."""
        self._pulses.pop(name, None)
        if pulse is not None:
            self._pulses[name] = (version, pulse)
        peer = self._by_name.get(name)
        if peer is not None:
            peer.pulse_version, peer.pulse = version, pulse
            if pulse is not None:
                peer.seen_ms = now_ms
                peer.leaving = pulse.leaving

    def restart_silence(self, now_ms: int) -> None:
        """This node could not follow the log for a while: all others get the whole time once more."""
        for peer in self:
            peer.seen_ms = now_ms

    def silent(self, now_ms: int) -> list[Peer]:
        """Those whose lease may be taken away, by their own measure of how long a lease lasts."""
        return [peer for peer in self if now_ms - peer.seen_ms >= peer.lease.lease_ms]


def read_lease(key: str, value: bytes) -> None:
    """Raise where a record is neither the lease of a node nor the holder of a role."""
    if key.startswith("node/"):
        decode_lease(value)
    elif key.startswith("role/"):
        decode_holder(value)
