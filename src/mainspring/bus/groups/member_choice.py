"""Who of a group's members gets an event.

Members with room stand in a rotation and take turns. A member that is found without room steps out and comes back when
something gives it room again, so that a thousand busy members cost nothing. Filters and stickiness make a group choosy:
then only some members may have an event, and it may have to wait for one of them while others have room.
"""

from __future__ import annotations

from collections import deque

from mainspring.bus.groups.key_owners import KeyOwners
from mainspring.bus.groups.member import Member
from mainspring.bus.groups.position import OpenEvent
from mainspring.bus.topics.tail import ReadyEvent


class Chooser:
    """The members of one group, and whose turn it is."""

    def __init__(self) -> None:
        self.members: list[Member] = []
        self.owners: KeyOwners = KeyOwners()
        self.choosy: bool = False
        self._rotation: deque[Member] = deque()

    @property
    def someone_has_room(self) -> bool:
        """May be true too often, never false too often."""
        return bool(self._rotation)

    @property
    def only_member(self) -> Member | None:
        """The one member that gets everything, if the group has just one and it takes everything."""
        return self.members[0] if len(self.members) == 1 and not self.choosy else None

    def join(self, member: Member) -> None:
        self.members.append(member)
        self.changed()
        self.woken(member)

    def leave(self, member: Member) -> None:
        member.gone = True
        self.members.remove(member)
        if member.in_rotation:
            member.in_rotation = False
            self._rotation.remove(member)
        self.changed()

    def changed(self) -> None:
        """A member came, went, or has another filter."""
        self.choosy = any(member.sticky or member.filter is not None for member in self.members)
        self.owners.active = any(member.sticky for member in self.members)

    def woken(self, member: Member) -> None:
        """It may have room again (window, credits, or its peer reads again)."""
        if not member.in_rotation and not member.gone and member.has_room():
            member.in_rotation = True
            self._rotation.append(member)

    def rotation(self) -> tuple[Member, ...]:
        """Those that may have room."""
        return tuple(self._rotation)

    def anyone_accepts(self, ready: ReadyEvent) -> bool:
        return not self.choosy or any(member.accepts(ready) for member in self.members)

    def choose(self, ready: ReadyEvent, event: OpenEvent | None) -> Member | None:
        """The member for this event, or None while the right one has no room. `event` is None for a new one."""
        if not self.choosy:
            return self._first_with_room()
        if self.owners.active and ready.key is not None:
            if self.owners.must_wait(ready.key, event):
                return None
            owner = self.owners.owner(ready.key, [m for m in self.members if m.accepts(ready)])
            return owner if owner.has_room() else None
        return self._first_that_accepts(ready)

    def _first_with_room(self) -> Member | None:
        rotation = self._rotation
        while rotation:
            member = rotation[0]
            if member.has_room():
                rotation.rotate(-1)
                return member
            rotation.popleft()
            member.in_rotation = False
        return None

    def _first_that_accepts(self, ready: ReadyEvent) -> Member | None:
        for member in list(self._rotation):
            if not member.has_room():
                self._rotation.remove(member)
                member.in_rotation = False
            elif member.accepts(ready):
                self._rotation.remove(member)
                self._rotation.append(member)
                return member
        return None
