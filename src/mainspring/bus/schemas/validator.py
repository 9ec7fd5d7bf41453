"""Does a payload fit? Two ways to ask, one answer: the place of the first fault, and what is wrong there.

A JSON Schema is compiled once (jsonschema-rs, in Rust), and where it is plain enough also into a type that says yes
sooner (`schema_quick`). A Python type is asked through msgspec, which decodes the payload into it. Faults name places
and expectations and never repeat what was in the payload: they travel to logs and to other people's screens.

A schema comes from strangers. So it is never fetched from anywhere (a reference leads into the schema itself or is
refused), and its patterns run in an engine whose time grows with the text and not with the pattern.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from mainspring.bus.errors import BadSchema
from mainspring.bus.schemas.quick_type import quick_type

if TYPE_CHECKING:
    import jsonschema_rs

MASK: Final = "the value"
_STEP: Final = re.compile(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]")
_decode = msgspec.json.decode


class Fault(msgspec.Struct, frozen=True):
    """Where a payload does not fit (a JSON Pointer; empty: as a whole), and why."""

    path: str
    reason: str


class Validator(Protocol):
    """Something that knows what payloads of one version look like."""

    def fault(self, payload: bytes | msgspec.Raw) -> Fault | None:
        """The first thing that does not fit; None when all does. `payload` is JSON text."""
        ...


def compiled(schema: dict[str, Any] | bool) -> jsonschema_rs.Validator:
    """The schema, ready to be asked. Raises BadSchema (a ValueError), with the reason."""
    import jsonschema_rs  # here, because most nodes and every client can do without it

    try:
        return jsonschema_rs.validator_for(
            schema,
            mask=MASK,
            offline=True,
            validate_formats=True,
            pattern_options=jsonschema_rs.RegexOptions(),
        )
    except (jsonschema_rs.ValidationError, ValueError, RecursionError) as error:
        reason = getattr(error, "message", None) or str(error).partition("\n")[0]
        raise BadSchema(f"this is not a usable JSON Schema: {reason[:300]}", remedy="see json-schema.org") from None


class SchemaValidator:
    """Asks a JSON Schema."""

    def __init__(self, schema: dict[str, Any] | bool) -> None:
        self._schema = compiled(schema)
        self._fits = self._schema.is_valid
        quick = quick_type(schema)
        self._take = None if quick is None else msgspec.json.Decoder(quick).decode

    def fault(self, payload: bytes | msgspec.Raw) -> Fault | None:
        if self._take is not None:
            try:
                self._take(payload)
            except msgspec.ValidationError:
                pass  # the schema itself has the last word, and knows the place
            else:
                return None
        value = _decode(payload)
        if self._fits(value):
            return None
        error = next(iter(self._schema.iter_errors(value)))
        return Fault(pointer(error.instance_path), error.message)


class TypeValidator:
    """Asks a Python type: a dataclass, a TypedDict, a msgspec Struct, or whatever else msgspec understands."""

    def __init__(self, type: Any) -> None:
        try:
            self._take = msgspec.json.Decoder(type).decode
        except TypeError as error:
            raise BadSchema(f"{type!r} cannot describe a payload: {error}") from None

    def fault(self, payload: bytes | msgspec.Raw) -> Fault | None:
        try:
            self._take(payload)
        except msgspec.ValidationError as error:
            reason, _, place = str(error).partition(" - at `")
            if reason.startswith("Invalid enum value"):
                reason = "Invalid enum value"
            return Fault(_pointer_of(place.rstrip("`")), reason)
        except RecursionError:
            return Fault("", "nested too deeply")
        return None


def schema_of(type: Any) -> dict[str, Any]:
    """A Python type as JSON Schema. Raises BadSchema."""
    try:
        return msgspec.json.schema(type)
    except (TypeError, ValueError) as error:
        raise BadSchema(
            f"{type!r} cannot be written as JSON Schema: {error}",
            remedy="use a dataclass, a TypedDict or a msgspec Struct",
        ) from None


def pointer(steps: list[str | int]) -> str:
    """A JSON Pointer."""
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in steps)


def _pointer_of(place: str) -> str:
    """msgspec's way to name a place (`$.lines[1].sku`) as a JSON Pointer."""
    return pointer(["*" if number == "..." else name or number for name, number in _STEP.findall(place)])
