"""Values that cross the border: their schemas, fingerprints and checks.

A schema is read from the module's own sections. Values are checked against it on the way in, before the guest sees
them, because a guest meets a value of the wrong type by trapping; and on the way out, because a guest is not trusted.
Records are mappings, unions are mappings with the key `$variant`, void is None.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from mainspring.guests.voyd.errors import GuestProtocolError, GuestRefused

MAX_DEPTH: Final = 128
MAX_SCALAR_BYTES: Final = 16_777_216
MAX_LENGTH: Final = 1_048_576
VARIANT: Final = "$variant"
_RANGES: Final = {"i32": 1 << 31, "i64": 1 << 63}

Field = tuple[str, bool, "Schema"]  # name, optional, type
_SCALARS: Final[dict[str, type]] = {"bool": bool, "string": str, "bytes": bytes, "void": type(None)}
_NUMBERS: Final = frozenset(("i32", "i64", "f32", "f64"))


@dataclass(slots=True, eq=False)
class Schema:
    """One type. `fingerprint` is what the frames carry."""

    kind: str
    name: str = ""
    tag: str | None = None
    element: Schema | None = None
    fields: list[Field] = field(default_factory=list)
    variants: dict[str, list[Field]] = field(default_factory=dict)
    fingerprint: str = ""

    def to_wire(self, value: Any, path: str = "value") -> Any:
        """The value as MessagePack will carry it; GuestProtocolError with the path when it does not fit."""
        return self._converted(value, path, 0, to_guest=True)

    def from_wire(self, value: Any, path: str = "value") -> Any:
        """The value as a handler sees it; GuestProtocolError when the guest sent something else."""
        return self._converted(value, path, 0, to_guest=False)

    def _converted(self, value: Any, path: str, depth: int, *, to_guest: bool) -> Any:
        if depth > MAX_DEPTH:
            raise GuestProtocolError(f"{path} is nested more than {MAX_DEPTH} deep")
        if self.kind in _SCALARS:
            return self._scalar(value, path)
        if self.kind in _NUMBERS:
            return self._number(value, path, to_guest)
        if self.kind == "array":
            return self._array(value, path, depth, to_guest)
        if self.kind == "record":
            return _members(self.fields, value, path, depth, to_guest)
        variant = value.get(VARIANT) if isinstance(value, Mapping) else None
        if variant not in self.variants:
            raise GuestProtocolError(f"{path} is no variant of {self.name or 'the union'}: {variant!r}")
        return {VARIANT: variant, **_members(self.variants[variant], value, path, depth, to_guest, VARIANT)}

    def _scalar(self, value: Any, path: str) -> Any:
        if type(value) is not _SCALARS[self.kind]:
            raise self._wrong(value, path)
        if isinstance(value, str | bytes) and len(value) > MAX_SCALAR_BYTES:
            raise GuestProtocolError(f"{path} has more than {MAX_SCALAR_BYTES} bytes")
        return value

    def _number(self, value: Any, path: str, to_guest: bool) -> Any:
        if type(value) is not int and (self.kind in _RANGES or type(value) is not float):
            raise self._wrong(value, path)
        if self.kind in _RANGES:
            if not -_RANGES[self.kind] <= value < _RANGES[self.kind]:
                raise GuestProtocolError(f"{path} does not fit {self.kind}")
            # A 64-bit integer keeps its width on the wire, however small it is.
            return msgspec.Raw(b"\xd3" + struct.pack(">q", value)) if to_guest and self.kind == "i64" else value
        number = float(value)
        if self.kind == "f32" and math.isfinite(number):
            try:
                number = float(struct.unpack("<f", struct.pack("<f", number))[0])
            except OverflowError:
                raise GuestProtocolError(f"{path} does not fit f32") from None
        return number

    def _array(self, value: Any, path: str, depth: int, to_guest: bool) -> list[Any]:
        if not isinstance(value, list | tuple):
            raise self._wrong(value, path)
        if len(value) > MAX_LENGTH:
            raise GuestProtocolError(f"{path} has more than {MAX_LENGTH} items")
        assert self.element is not None
        convert = self.element._converted
        return [convert(item, f"{path}[{index}]", depth + 1, to_guest=to_guest) for index, item in enumerate(value)]

    def _wrong(self, value: Any, path: str) -> GuestProtocolError:
        return GuestProtocolError(f"{path} should be {self.name or self.kind}, not {type(value).__name__}")


def _members(fields: list[Field], value: Any, path: str, depth: int, to_guest: bool, extra: str = "") -> dict[str, Any]:
    """The fields of a record or a variant. `extra` is one more key that the mapping may have."""
    if not isinstance(value, Mapping):
        raise GuestProtocolError(f"{path} should be a mapping, not {type(value).__name__}")
    known = {name for name, _, _ in fields} | ({extra} if extra else set())
    for key in value:
        if key not in known:
            raise GuestProtocolError(f"{path} has the unknown field {key!r}")
    found = {}
    for name, optional, schema in fields:
        if name in value:
            found[name] = schema._converted(value[name], f"{path}.{name}", depth + 1, to_guest=to_guest)
        elif not optional:
            raise GuestProtocolError(f"{path}.{name} is missing")
    return found


class SchemaReader:
    """Reads schemas; a `ref` names a type read before it, also one that is still being read.

    A type is known by its id, its name and its aliases: compilers name recursive types by an alias.
    """

    def __init__(self) -> None:
        self._named: dict[str, Schema] = {}

    def read(self, source: Any) -> Schema:
        """A schema from its JSON, with its fingerprint: the one given beside it, or the one computed from it."""
        fingerprint = ""
        if isinstance(source, dict) and "schema" in source:
            fingerprint, source = source.get("fingerprint", ""), source["schema"]
        schema, node = self._build(source, 0)
        schema.fingerprint = fingerprint or schema.fingerprint or fingerprint_of(node)
        return schema

    def _name(self, schema: Schema, source: dict[str, Any]) -> Schema:
        """Let refs find a type, also while it is being read, and take the fingerprint that the compiler gave it."""
        aliases = source.get("aliases") or ()
        for key in (source.get("typeId"), source.get("alias"), source.get("name"), *aliases):
            if key is not None and key != "":
                self._named[str(key)] = schema
        fingerprint = source.get("fingerprint", "")
        schema.fingerprint = fingerprint if isinstance(fingerprint, str) else ""
        return schema

    def _build(self, source: Any, depth: int) -> tuple[Schema, list[Any]]:
        if isinstance(source, str):
            source = {"kind": source}
        kind = source.get("kind") if isinstance(source, dict) else None
        if depth > MAX_DEPTH or not isinstance(kind, str):
            raise GuestRefused("a schema in the module has no kind, or is nested too deeply")
        if kind == "custom":
            return self._build(source.get("representation"), depth + 1)
        if kind == "ref":
            given = (source.get(key) for key in ("typeId", "alias", "name"))
            names = [str(name) for name in given if name is not None and name != ""]
            known = next((name for name in names if name in self._named), None)
            if known is None:
                raise GuestRefused(f"a schema refers to the unknown type {', '.join(names)!r}")
            return self._named[known], ["ref", known]
        if kind == "array":
            schema = self._name(Schema("array"), source)
            schema.element, node = self._build(source.get("element"), depth + 1)
            return schema, ["array", node]
        if kind in ("record", "union"):
            return self._compound(source, kind, depth)
        if kind not in _SCALARS and kind not in _NUMBERS:
            raise GuestRefused(f"a schema has the unknown kind {kind!r}")
        return Schema(kind), [kind]

    def _compound(self, source: dict[str, Any], kind: str, depth: int) -> tuple[Schema, list[Any]]:
        name = source.get("name", "")
        schema = self._name(Schema(kind, name, source.get("tag")), source)
        if kind == "record":
            schema.fields, nodes = self._fields(source.get("fields", ()), depth)
            return schema, ["record", name, schema.tag, nodes]
        variants = []
        for variant in source.get("variants", ()):
            fields, nodes = self._fields(variant.get("fields", ()), depth)
            schema.variants[variant["name"]] = fields
            variants.append([variant["name"], nodes])
        return schema, ["union", name, variants]

    def _fields(self, fields: Any, depth: int) -> tuple[list[Field], list[Any]]:
        found: list[Field] = []
        nodes = []
        for member in fields:
            schema, node = self._build(member.get("type") or member.get("schema"), depth + 1)
            optional = bool(member.get("optional", False))
            found.append((member["name"], optional, schema))
            nodes.append([member["name"], optional, node])
        return found, nodes


def fingerprint_of(node: list[Any]) -> str:
    """SHA-256 of the compact JSON `[1, node]`."""
    return hashlib.sha256(json.dumps([1, node], separators=(",", ":"), ensure_ascii=False).encode()).hexdigest()
