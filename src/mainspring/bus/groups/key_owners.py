"""Which member a key sticks to, so that events of one key are handled in order.

A key belongs to the member that got it first, for as long as that member lives; a new key goes to the member with the
fewest. While an event of a key waits to be delivered again, later ones of that key that were not sent yet are held
back.

Keys are forgotten, oldest first, when there are very many and none of their events is open: order is not touched by
that, only the habit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from mainspring.bus.groups.member import Member
from mainspring.bus.groups.position import OpenEvent

MAX_KEYS: Final = 200_000


class _Key:
    __slots__ = ("held_back", "open", "owner")

    def __init__(self) -> None:
        self.owner: Member | None = None
        self.open = 0
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

    def opened(self, key: str) -> None:
        self._state(key).open += 1

    def closed(self, key: str | None) -> None:
        if key is not None and (state := self._keys.get(key)) is not None:
            state.open -= 1

    def held_back(self, event: OpenEvent) -> None:
        """The event waits to be delivered again; later ones of its key wait behind it."""
        if event.key is not None and not event.holds_key:
            event.holds_key = True
            self._state(event.key).held_back += 1

    def taken_up(self, event: OpenEvent) -> None:
        """It was delivered again, or settled."""
        if event.holds_key:
            event.holds_key = False
            if event.key is not None and (state := self._keys.get(event.key)) is not None:
                state.held_back -= 1

    def must_wait(self, key: str | None, event: OpenEvent | None) -> bool:
        """Whether an earlier event of this key must come first."""
        if key is None or (event is not None and event.holds_key):
            return False
        state = self._keys.get(key)
        return state is not None and state.held_back > 0

    def release(self, events: Iterable[OpenEvent]) -> None:
        """These events were dropped by a seek."""
        for event in events:
            self.taken_up(event)
            self.closed(event.key)
