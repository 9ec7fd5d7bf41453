"""What the parts of a node may ask about the other nodes.

Every node that has joined holds a **lease**: a record in the log that it alone created, and that any other node
may delete after too long a silence. The record's version is the node's **epoch**, a number that no other node ever
has, and that the node itself never has again once the lease was taken from it. A batch that must not happen after that
carries the `guard`. So a node that slept (a stopped process, a long pause) cannot finish what others have taken over
meanwhile.

Silence is measured by each observer with its own monotonic clock, from the last renewal it saw. Wall clocks of
different nodes are never compared.

Work that one node at a time must do is a **role**: a second record, held by one epoch, taken by another when that epoch
is gone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from mainspring.cluster.peers import AwayNode
from mainspring.cluster.suspects import Suspects
from mainspring.log import Batch


class About(msgspec.Struct, frozen=True):
    """What a node tells the others about itself."""

    address: str = ""
    version: str = ""
    serves: tuple[str, ...] = ()
    program: str = ""
    able: tuple[str, ...] = ()
    leaving: bool = False  # it stops by itself; nobody has to look after it


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """One node as the others see it. Its own clock gave `since` (epoch ms, 0 before its first heartbeat)."""

    name: str
    epoch: int
    address: str = ""
    since: int = 0
    version: str = ""  # of the software
    format: int = 1  # of the records that nodes share
    roles: tuple[str, ...] = ()
    serves: tuple[str, ...] = ()  # `kind:Type` of what its program handles
    program: str = ""  # digest of what its program declares; the same for the same declarations
    able: tuple[str, ...] = ()  # roles that its program has something for
    leaving: bool = False  # it stops
    here: bool = False  # it is the node that was asked
    silent_ms: int = 0  # how long ago the node that was asked saw its last pulse


class Role(Protocol):
    """Work for one node at a time. Whatever it writes carries the role's guard."""

    name: str

    @property
    def held(self) -> bool:
        """Whether this node has it, as far as it knows; the guard decides."""

    def guard(self, batch: Batch) -> None:
        """The batch is refused unless this node still has the role. Adds nothing when there are no other nodes."""
        return

    def on_change(self, callback: Callable[[bool], None]) -> None:
        """Call with True when this node gets the role and with False when it has lost it; at once if it is held."""


class Cluster(Protocol):
    """The other nodes as one node sees them. Where there are none, there is nothing to guard, announce or report."""

    node: str  # this node's name, unique among those alive
    suspects: Suspects

    @property
    def epoch(self) -> int:
        """Version of this node's lease; 0 when there can be no other nodes. A new one after it was taken away."""

    def guard(self, batch: Batch) -> None:
        """The batch is refused once this node's lease was taken. Adds nothing when there are no other nodes."""
        return

    def alive(self, epoch: int) -> bool:
        """Whether a node holds the lease of this epoch."""

    @property
    def in_touch(self) -> bool:
        """Whether this node's lease is certain. The guard decides; this is for what no guard can protect."""

    @property
    def trouble(self) -> str:
        """Why this node should be given nothing to do now, for people; empty when all is well."""

    def nodes(self) -> list[NodeView]:
        """All nodes that hold a lease, this node too, by name."""

    def away(self) -> list[AwayNode]:
        """Nodes that this node saw go without a goodbye and not come back, by name."""
        return []

    def announce(self) -> None:
        """What this node says about itself has changed: tell the others now."""
        return

    def on_death(self, callback: Callable[[int], None]) -> None:
        """Call with the epoch of each node whose lease is gone: it stopped, or another node took the lease away.

        Also, after `on_fenced`, with this node's own former epoch: if it is the last node, no other can clean up.
        """
        return

    def on_fenced(self, callback: Callable[[int], None]) -> None:
        """Call with the former epoch when this node lost its own lease; it has a new one by then.

        Everything held under the former epoch belongs to others now.
        """
        return

    def on_in_touch(self, callback: Callable[[], None]) -> None:
        """Call when this node's lease is certain again after it was not."""
        return

    def when_in_touch(self, callback: Callable[[], object]) -> None:
        """Call once this node's lease is certain: now, or when it is renewed or the node has a new one."""

    def role(self, name: str) -> Role:
        """The role of this name; from the first call on this node tries to get it."""


# -- a node that owns its log: nobody else is there, so everything is held


class AlwaysHeld(Role):
    """A role that no other node could want."""

    held = True

    def __init__(self, name: str) -> None:
        self.name = name

    def on_change(self, callback: Callable[[bool], None]) -> None:
        callback(True)


class Alone(Cluster):
    """A node on an embedded engine."""

    epoch = 0
    in_touch = True
    trouble = ""

    def __init__(self, node: str = "node", *, about: Callable[[], About] = About, started: int = 0) -> None:
        self.node = node
        self.suspects: Suspects = Suspects()
        self._about = about
        self._started = started

    def alive(self, epoch: int) -> bool:
        return epoch == 0

    def when_in_touch(self, callback: Callable[[], object]) -> None:
        callback()

    def nodes(self) -> list[NodeView]:
        return [
            NodeView(name=self.node, epoch=0, since=self._started, here=True, **msgspec.structs.asdict(self._about()))
        ]

    def role(self, name: str) -> AlwaysHeld:
        return AlwaysHeld(name)
