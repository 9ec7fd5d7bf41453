"""Changes of registry and bindings, kept until they may count.

A beat sees both as they were when it began. What is asked for meanwhile is checked at once, so that mistakes show where
they are made, and put in force afterwards: what an enzyme asked for with its other work, if that stands; what came from
outside in any case.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from mainspring.beats.matching.registry import Registration, Registry, refuse_contradiction


class Register(msgspec.Struct, frozen=True, eq=False):
    registration: Registration


class Unregister(msgspec.Struct, frozen=True):
    name: str


class Bind(msgspec.Struct, frozen=True):
    path: str
    name: str
    kind: str


Change = Register | Unregister | Bind


def refuse_conflict(registry: Registry, pending: Iterable[object], new: Registration) -> None:
    """Refuse a registration that contradicts what is in force or asked for before it."""
    known = registry.get(new.name, new.query)
    for change in pending:
        if isinstance(change, Unregister) and change.name == new.name:
            known = None
        elif isinstance(change, Register) and (change.registration.name, change.registration.query) == (
            new.name,
            new.query,
        ):
            known = known or change.registration
    if known is not None:
        refuse_contradiction(known, new)
