"""What a group asks of the bus. The group itself knows no clock, no socket and no storage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from mainspring.bus.groups.group import Group
    from mainspring.bus.groups.position import Position


class Host(Protocol):
    """What a group needs from the bus."""

    def fetch(self, group: Group, position: Position, start: int, limit: int) -> None:
        """Read events; answer with `Group.fetched`."""

    def bury(self, group: Group, position: Position) -> None:
        """Write dead letters for the position's dying events; answer with `Group.buried`."""

    def changed(self, group: Group, position: Position) -> None:
        """The position must be stored soon."""

    def wake_at(self, group: Group, deadline: int) -> None:
        """Call `Group.check` at this monotonic ms, if not earlier."""

    def delivered(self, group: Group, position: Position, offset: int, attempt: int, count: int) -> None:
        """`count` events were sent, the last one at `offset`; `attempt` is 1 for first deliveries."""

    def settled(self, group: Group, position: Position, offset: int, count: int) -> None:
        """`count` events were acknowledged, the last one at `offset`."""

    def inflight(self, change: int) -> None: ...
