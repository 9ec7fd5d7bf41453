"""Roles: work for one node at a time.

Who has a role is what the log says, and this node believes it only when the change feed says so: an answer that got
lost makes no difference. A role is free when no node has it or when the epoch that had it is gone; then every node that
wants it tries, and the log lets one of them have it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from mainspring.cluster.peers import LEASES, NO_VERSION, Holder, decode_holder, encode, role_key
from mainspring.log import ABSENT, Batch, KeptRecord

if TYPE_CHECKING:
    from mainspring.cluster.membership import Membership

logger: logging.Logger = logging.getLogger("mainspring.cluster")


class SharedRole:
    """A role that this node wants."""

    def __init__(self, name: str, membership: Membership) -> None:
        self.name = name
        self.asking = False
        self._membership = membership
        self._version = NO_VERSION
        self.held: bool = False
        self._callbacks: list[Callable[[bool], None]] = []

    def guard(self, batch: Batch) -> None:
        self._membership.guard(batch)
        batch.guard(LEASES, role_key(self.name), self._version)

    def on_change(self, callback: Callable[[bool], None]) -> None:
        self._callbacks.append(callback)
        if self.held:
            callback(True)

    def settle(self, version: int | None) -> None:
        """This node has the role under that version, or (None) has not."""
        if version is not None:
            self._version = version
        if self.held == (version is not None):
            return
        self.held = version is not None
        logger.info("%s the role %s", "got" if self.held else "lost", self.name)
        for callback in tuple(self._callbacks):
            try:
                callback(self.held)
            except Exception:
                logger.exception("a listener of the role %s failed", self.name)


class Roles:
    """Every role there is, and those this node wants."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self._wanted: dict[str, SharedRole] = {}
        self._holders: dict[str, tuple[int, Holder]] = {}
        self._fit: dict[str, Callable[[], bool]] = {}  # roles that this node wants under a condition

    def want(self, name: str) -> SharedRole:
        role = self._wanted.get(name)
        if role is None:
            role = self._wanted[name] = SharedRole(name, self._membership)
            self._believe(name)
            self._try(role)
        return role

    def only_if(self, name: str, fit: Callable[[], bool]) -> None:
        self._fit[name] = fit

    async def hand_over(self, name: str) -> None:
        version, holder = self._holders.get(name, (ABSENT, None))
        if holder is not None and holder.epoch == self._membership.epoch:
            batch = Batch()
            self._membership.guard(batch)
            batch.delete(LEASES, role_key(name), expect=version)
            await self._membership.log.commit(batch)

    def changed(self, name: str, record: KeptRecord) -> None:
        """The record of a role was written or deleted, by any node."""
        if record.version == ABSENT:
            self._holders.pop(name, None)
        else:
            self._holders[name] = (record.version, decode_holder(record.value))
        self._believe(name)
        if name in self._wanted:
            self._try(self._wanted[name])

    def of(self, epoch: int) -> tuple[str, ...]:
        """The roles of a node, by name."""
        return tuple(sorted(name for name, (_, holder) in self._holders.items() if holder.epoch == epoch))

    def try_all(self) -> None:
        for role in self._wanted.values():
            self._try(role)

    def lose_all(self) -> None:
        """This node's lease is gone, and with it whatever it had."""
        for role in self._wanted.values():
            role.settle(None)

    def give_back(self, batch: Batch) -> None:
        for name, (version, holder) in self._holders.items():
            if holder.epoch == self._membership.epoch:
                batch.delete(LEASES, role_key(name), expect=version)

    def _believe(self, name: str) -> None:
        role, found = self._wanted.get(name), self._holders.get(name)
        if role is not None:
            mine = found is not None and self._membership.joined and found[1].epoch == self._membership.epoch
            role.settle(found[0] if mine and found is not None else None)

    def _is_fit(self, name: str) -> bool:
        return name not in self._fit or self._fit[name]()

    def _try(self, role: SharedRole) -> None:
        membership = self._membership
        version, holder = self._holders.get(role.name, (ABSENT, None))
        taken = holder is not None and membership.alive(holder.epoch)
        if role.asking or taken or not membership.joined or not self._is_fit(role.name):
            return
        batch = Batch()
        membership.guard(batch)
        value = encode(Holder(membership.node, membership.epoch))
        batch.put(LEASES, role_key(role.name), value, expect=version)
        role.asking = True

        def answered(_: object) -> None:
            # What became of it is in the change feed; a failure is tried again with the next pulse.
            role.asking = False

        membership.log.submit(batch, answered)
