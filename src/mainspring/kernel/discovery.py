"""Discovery: which messages a schema is about, read from its literals.

A low-level capability describes its messages as classes with `kind`, `type` and `data`. The kernel routes by the pair
(kind, type), so the pairs must be few and known at boot: `kind` is one literal, `type` one or several. Three forms
are accepted: one class with one literal each; one class with several literal types; a union of such classes. A free
string, a pattern, an enum or a union with one free member is refused, because a route that cannot be listed cannot be
described, checked for duplicates, or trusted to lead to the same place twice.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

import msgspec

from mainspring.kernel.errors import CapabilityError
from mainspring.message import is_type


class Branch(NamedTuple):
    """One class of a schema: its kind, its types, and the type hint of its data. None means any."""

    kind: str | None
    types: tuple[str, ...] | None
    data: Any


def discover(schema: Any, *, where: str) -> list[Branch]:
    """The branches of an inbound schema, each with literal kind and types. Raises `CapabilityError`."""
    found = [_closed_branch(part, where) for part in _parts(schema)]
    if not found:
        raise CapabilityError(f"{where}: the inbound schema is empty")
    return found


def outline(schema: Any, *, where: str) -> list[Branch]:
    """The branches of an outbound schema. It may be wider than an inbound one: what is not literal is None."""
    if schema is Any or schema is dict:
        return [Branch(None, None, Any)]
    return [_branch(part, where) for part in _parts(schema)]


def _parts(schema: Any) -> list[Any]:
    origin = get_origin(schema)
    if origin is Annotated:
        return _parts(get_args(schema)[0])
    if origin is Union or origin is types.UnionType:
        return [part for option in get_args(schema) for part in _parts(option)]
    return [schema]


def _closed_branch(part: Any, where: str) -> Branch:
    branch = _branch(part, where)
    if branch.kind is None:
        raise CapabilityError(
            f"{where}: kind must be one literal", remedy='write kind: Literal["command"] or Literal["query"]'
        )
    if branch.kind not in ("command", "query", "event"):
        raise CapabilityError(f"{where}: an inbound message is a command, a query or an event, not a {branch.kind}")
    if branch.types is None:
        raise CapabilityError(
            f"{where}: type must be a literal or a union of literals", remedy='write type: Literal["Memory.Set"]'
        )
    for name in branch.types:
        if not is_type(name):
            raise CapabilityError(f"{where}: {name!r} is not a type: two PascalCase segments, like Memory.Set")
    return branch


def _branch(part: Any, where: str) -> Branch:
    known = isinstance(part, type) and (
        dataclasses.is_dataclass(part) or issubclass(part, msgspec.Struct) or typing.is_typeddict(part)
    )
    if not known:
        raise CapabilityError(
            f"{where}: a message schema is a dataclass, a TypedDict or a msgspec Struct with kind, type and data",
            remedy="several messages are a union of such classes",
        )
    try:
        hints = typing.get_type_hints(part, include_extras=True)
    except NameError as error:
        raise CapabilityError(f"{where}: the schema {part.__name__} names something unknown: {error}") from None
    kinds = _literals(hints.get("kind"))
    return Branch(kinds[0] if kinds and len(kinds) == 1 else None, _literals(hints.get("type")), hints.get("data", Any))


def _literals(hint: Any) -> tuple[str, ...] | None:
    """The texts a hint allows, or None when they cannot be listed."""
    origin = get_origin(hint)
    if origin is Annotated:
        return _literals(get_args(hint)[0])
    if origin is Literal:
        values = get_args(hint)
        return values if all(isinstance(value, str) for value in values) else None
    if origin is Union or origin is types.UnionType:
        parts = [_literals(option) for option in get_args(hint)]
        return None if None in parts else tuple(text for part in parts if part is not None for text in part)
    return None
