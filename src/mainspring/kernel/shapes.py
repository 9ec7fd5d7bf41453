"""Shape: one Python type as a door for data, both ways.

A type hint is the whole declaration. From it come the check of what arrives, the check of what a handler returns, and
the JSON Schema that `Syscall.Describe` shows. Plain dataclasses, TypedDicts, msgspec Structs, built-in containers and
`Any` all work; what does not is refused at boot, with the name of the handler.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from mainspring.kernel.blobs import Blob, BlobPointer
from mainspring.kernel.errors import BadOutput, CapabilityError
from mainspring.message import NotEncodable, encode_bytes, validation_text

_USABLE = "use a dataclass, a TypedDict, a msgspec Struct, built-in types or Any"
_DECLARED = ("__struct_fields__", "__dataclass_fields__", "__total__")  # structs, dataclasses, typed dicts
_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|_")


class Shape:
    """What data must look like. `decode` makes a value from JSON text, `encode` JSON text from a value."""

    __slots__ = ("_check", "_first", "decode", "type")

    def __init__(self, type: Any, *, where: str) -> None:
        if type is Blob:
            type = BlobPointer
        self.type: Any = type
        try:
            decoder = msgspec.json.Decoder(type)
        except (TypeError, NameError) as error:
            raise CapabilityError(
                f"{where} has a type that cannot be a schema: {error}",
                remedy=_USABLE,
            ) from None
        if _is_of_its_own(type):
            raise CapabilityError(
                f"{where} has the type {type.__name__}, which cannot be made from JSON nor told in it", remedy=_USABLE
            )
        self.decode: Callable[[Any], Any] = decoder.decode
        self._first = {dict: b"{", list: b"["}.get(type)
        self._check: Callable[[Any], Any] | None = None if type is Any or self._first else decoder.decode

    def encode(self, value: Any) -> msgspec.Raw:
        """Raises `BadOutput` when the value is not of this shape."""
        try:
            encoded = encode_bytes(value)
            if self._check is not None:
                self._check(encoded)
            elif self._first is not None and not encoded.startswith(self._first):
                raise BadOutput(f"Expected {'object' if self._first == b'{' else 'array'}")
        except NotEncodable as error:
            raise BadOutput(error.message) from None
        except msgspec.ValidationError as error:
            raise BadOutput(validation_text(error)) from None
        return msgspec.Raw(encoded)

    def accepts(self, raw: msgspec.Raw) -> str:
        """Why `raw` is not of this shape, or the empty text."""
        try:
            self.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return validation_text(error)
        return ""

    def json_schema(self) -> dict[str, Any]:
        """JSON Schema; every object says what is required, every property has a description."""
        try:
            schema = msgspec.json.schema(self.type)
        except TypeError:
            schema = {}
        for part in (schema, *schema.get("$defs", {}).values()):
            if part.get("type") == "object":
                part.setdefault("properties", {})
                part.setdefault("required", [])
            for name, described in part.get("properties", {}).items():
                described.setdefault("description", _words(name))
        if "$ref" not in schema:
            schema.setdefault("required", [])
        return schema


def _is_of_its_own(given: Any) -> bool:
    """Whether this is a class that says nothing about its members. msgspec takes it, and then refuses every value."""
    if not isinstance(given, type) or any(hasattr(given, mark) for mark in _DECLARED):
        return False
    from msgspec.inspect import CustomType, type_info  # only where it is needed: it takes a while to import

    return isinstance(type_info(given), CustomType)


def _words(name: str) -> str:
    """A property nobody described still says its name in words."""
    return _WORD.sub(" ", name).strip().capitalize() + "."
