"""Who of a group's members gets an event.

Members with room stand in a rotation and take turns. A member without room steps out when its turn comes, and returns
when something gives it room again, so that a thousand busy members cost nothing. Filters and stickiness make the choice
selective: then only some members may have an event, and it may have to wait for one of them while others have room.

Where members are sticky, events of one key are handled in order: a key belongs to the member that got it first, for as
long as that member lives; a new key goes to the member with the fewest. While an event of a key waits to be delivered
again, later ones of that key that were not sent yet are held back. Keys are forgotten, oldest first, when there are
very many and none of their events is open: order is not touched by that, only the habit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from mainspring.bus.groups.member import Member
from mainspring.bus.groups.position import OpenEvent
from mainspring.bus.topics.tail import ReadyEvent

MAX_KEYS: Final = 200_000


class _Key:
    __slots__ = ("held_back", "leased", "open", "owner")

    def __init__(self) -> None:
        self.owner: Member | None = None
        self.open = 0
        self.leased = 0
        self.held_back = 0


class KeyOwners:
    """Keys and their members. Does nothing, and costs nothing, while no member is sticky."""

    def __init__(self) -> None:
        self.active = False
        self._keys: dict[str, _Key] = {}

    def owner(self, key: str, candidates: Sequence[Member]) -> Member:
        """The member of this key; one of `candidates` (at least one) becomes it when the key has none alive."""
        state = self._state(key)
        owner = state.owner
        if owner is None or owner.gone or owner not in candidates:
            free = [member for member in candidates if member.has_room()] or candidates
            if owner is not None:
                owner.keys -= 1
            owner = state.owner = min(free, key=lambda member: member.keys)
            owner.keys += 1
        return owner

    def _state(self, key: str) -> _Key:
        state = self._keys.get(key)
        if state is None:
            if len(self._keys) >= MAX_KEYS:
                self._forget_one()
            state = self._keys[key] = _Key()
        return state

    def _forget_one(self) -> None:
        for key, state in self._keys.items():
            if not state.open:
                if state.owner is not None:
                    state.owner.keys -= 1
                del self._keys[key]
                return

    def take(self, event: OpenEvent, key: str) -> None:
        """The event is open and has this key."""
        event.key = key
        self._state(key).open += 1

    def release(self, event: OpenEvent) -> None:
        """The event is no longer open."""
        self.let_pass(event)
        if event.key is not None and (state := self._keys.get(event.key)) is not None:
            state.open -= 1
        event.key = None

    def hold_back(self, event: OpenEvent) -> None:
        """The event waits to be delivered again; later ones of its key wait behind it."""
        if event.key is not None and not event.holds_key:
            event.holds_key = True
            self._state(event.key).held_back += 1

    def let_pass(self, event: OpenEvent) -> None:
        """It was delivered again, or settled."""
        if event.holds_key:
            event.holds_key = False
            if event.key is not None and (state := self._keys.get(event.key)) is not None:
                state.held_back -= 1

    def leased(self, key: str, change: int) -> None:
        """An event of this key was given to its member, or taken from it."""
        if (state := self._keys.get(key)) is not None:
            state.leased = max(0, state.leased + change)

    def is_busy(self, key: str, owner: Member) -> bool:
        """Whether its member has as many events of this key as it wants at a time."""
        return bool(owner.key_window) and self._state(key).leased >= owner.key_window

    def must_wait(self, key: str | None, event: OpenEvent | None) -> bool:
        """Whether an earlier event of this key must come first."""
        if key is None or (event is not None and event.holds_key):
            return False
        state = self._keys.get(key)
        return state is not None and state.held_back > 0


class MemberChoice:
    """The members of one group, and whose turn it is."""

    def __init__(self) -> None:
        self.members: list[Member] = []
        self.owners: KeyOwners = KeyOwners()
        self.selective: bool = False
        self.most: int = 0  # events that all members may have at a time; 0: no limit
        self._rotation: deque[Member] = deque()

    @property
    def someone_has_room(self) -> bool:
        """May be true too often, never false too often."""
        return bool(self._rotation) and (not self.most or self.free() > 0)

    def free(self) -> int:
        """How many more events the members may have together, where that is limited."""
        return self.most - sum(member.inflight for member in self.members)

    @property
    def only_member(self) -> Member | None:
        """The one member that gets everything, if the group has just one and it takes everything."""
        return self.members[0] if len(self.members) == 1 and not (self.selective or self.most) else None

    def join(self, member: Member) -> None:
        self.members.append(member)
        self.on_members_changed()
        self.recheck_room(member)

    def leave(self, member: Member) -> None:
        member.gone = True
        self.members.remove(member)
        if member.in_rotation:
            member.in_rotation = False
            self._rotation.remove(member)
        self.on_members_changed()

    def on_members_changed(self) -> None:
        """A member came, went, or has another filter."""
        self.selective = any(member.sticky or member.filter is not None for member in self.members)
        self.owners.active = any(member.sticky for member in self.members)

    def recheck_room(self, member: Member) -> None:
        """It may have room again (window, credits, or its peer reads again)."""
        if not member.in_rotation and not member.gone and member.has_room():
            member.in_rotation = True
            self._rotation.append(member)

    def rotation(self) -> tuple[Member, ...]:
        """Those that may have room."""
        return tuple(self._rotation)

    def anyone_accepts(self, ready: ReadyEvent) -> bool:
        return not self.selective or any(member.accepts(ready) for member in self.members)

    def choose(self, ready: ReadyEvent, event: OpenEvent | None) -> Member | None:
        """The member for this event, or None while the right one has no room. `event` is None for a new one."""
        if self.most and self.free() <= 0:
            return None
        if not self.selective:
            return self._first_with_room()
        if self.owners.active and ready.key is not None:
            if self.owners.must_wait(ready.key, event):
                return None
            candidates = [member for member in self.members if member.accepts(ready)]
            if not candidates:  # members of another node accept it
                return None
            owner = self.owners.owner(ready.key, candidates)
            return owner if owner.has_room() and not self.owners.is_busy(ready.key, owner) else None
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
