"""What differs between a log of the node's own and one that several nodes share.

`LocalSupply` (local.py) and `SharedSupply` (shared/supply.py) are the two; which one it is, is decided once, where the
bus is put together, and nothing else asks. On a log of its own a group takes new events straight from the end of each
partition, and a position's record says what is in memory. On a shared log a node takes events with a commit before it
leases them, and the records of the others say what they have: one more commit for each delivery, which a node that is
alone does not pay.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from mainspring.bus.groups.group import Group, LeaseView
from mainspring.bus.groups.member import MemberView
from mainspring.bus.groups.position import OpenEvent, Position, PositionWrite
from mainspring.bus.topics.tail import ReadyEvent
from mainspring.log import Batch, KeptRecord

if TYPE_CHECKING:
    from mainspring.bus.groups.delivery import Delivery
    from mainspring.bus.groups.registry import GroupRegistry

OnRecordChanged = Callable[[KeptRecord], object]
Starts = Mapping[int, tuple[int, int]]  # by partition: the cursor, and the `ts` below which events are skipped


class Reopening(msgspec.Struct, frozen=True):
    """Settled events of one position that are to be opened again, and what else is stored in the same commit."""

    offsets: tuple[int, ...]
    batch: Batch


class Supply(Protocol):
    """Where groups get their events from, and how their positions are kept.

    `takes_unclaimed`: a group may take a new event without asking other nodes.
    """

    takes_unclaimed: bool

    def attach(self, delivery: Delivery) -> None:
        """`delivery` drives the groups of this supply. Called once, by the delivery itself."""

    # -- life, in this order

    def listen(self, listeners: Mapping[str, OnRecordChanged]) -> None:
        """Before anything is read: records of these spaces that other nodes write are to be shown to the listeners."""

    async def load(self, registry: GroupRegistry) -> None:
        """Bring back every group as it was stored."""

    async def catch_up(self) -> None:
        """All tables are read: show what other nodes wrote meanwhile, and from now on as it comes."""

    async def stop(self) -> None:
        """Make the positions durable as they are; return to the other nodes what this one still has."""

    # -- delivering

    def add_position(self, position: Position) -> None:
        """A group has a new position."""

    def deliver(self, group: Group, now: int) -> None:
        """Give out what there is and what members have room for. Cheap when there is nothing to do."""

    def may_redeliver(self, position: Position, event: OpenEvent) -> bool:
        """Whether an attempt after the first may be made now. If not, the group is woken when it may."""

    async def before_attempt(self, position: Position) -> None:
        """Wait until a function of this node may be called with an event that it was given.

        Raises the errors of the log; the event may be another node's afterwards.
        """

    def on_members_changed(self, group: Group) -> None:
        """A member of the group came, went, or wants something else."""

    def on_fetched(self, position: Position, present: Mapping[int, ReadyEvent], start: int, end: int) -> None:
        """All events from `start` to `end` that still exist were read."""

    def accepted_remotely(self, group: Group, ready: ReadyEvent) -> bool:
        """Whether a member on another node accepts the event."""

    def return_unplaced(self, position: Position, event: OpenEvent, ready: ReadyEvent) -> bool:
        """No member here can have the event now: return it to the nodes that share the group; whether that is done."""

    # -- storing

    def store(self, positions: Sequence[Position]) -> None:
        """These positions changed and nothing else is writing them: write what is new."""

    def put_position(self, batch: Batch, position: Position, settles: frozenset[int] = frozenset()) -> PositionWrite:
        """Write the position's record with this batch; `settles` are open events that the batch settles."""

    # -- groups

    async def store_group(self, group: Group) -> None:
        """Make sure that the group is in the log."""

    async def move(self, group: Group, starts: Starts) -> None:
        """Continue from these starts; what members hold in those partitions is no longer theirs."""

    async def is_open(self, position: Position, offset: int) -> bool:
        """Whether an event is not settled, on whichever node. Raises Unavailable where that cannot be told now."""

    async def reopen(self, position: Position, prepare: Callable[[], Awaitable[Reopening | None]]) -> bool:
        """Open settled events again; False: there was nothing to open, because `prepare` gave None.

        `prepare` is asked when nothing else can write the position, and once more each time another node was faster.
        """

    async def delete(self, group: Group) -> None:
        """Forget the group and what is stored of it."""

    def member_count(self, group: Group) -> int:
        """On all nodes."""

    def members(self, group: Group) -> list[MemberView]:
        """On all nodes, those here first; of another node with very many, some."""

    def remote_inflight(self, position: Position) -> int:
        """How many events other nodes have."""

    def remote_leases(self, position: Position, wall_ms: int) -> list[LeaseView]:
        """What other nodes have, and what any node may take."""
