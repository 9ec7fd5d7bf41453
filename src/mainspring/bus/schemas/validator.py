"""Does a payload fit? Two ways to ask, one answer: the place of the first fault, and what is wrong there.

A JSON Schema is compiled once (jsonschema-rs, in Rust), and where it is plain enough also into a type that says yes
sooner (`quick_type`). A Python type is asked through msgspec, which decodes the payload into it. Faults name places
and expectations and never repeat what was in the payload: they travel to logs and to other people's screens.

A schema comes from strangers. So it is never fetched from anywhere (a reference leads into the schema itself or is
refused), its patterns run in an engine whose time grows with the text and not with the pattern, and its size is bounded
(`check_size`): the text, the patterns, and what a value is compared with at one place once references are followed.
A few lines of references can stand for more than a machine could ever compare.

Almost every payload fits, and for a plain schema (objects, arrays, numbers, texts, their bounds) decoding into a type
made for it says so in less time than building dictionaries takes, let alone asking a validator about them afterwards.
The type is made so that whatever it takes, the schema takes. The other way round need not hold: what it refuses is
asked again, of the schema itself, which also knows where the fault is. So a schema with anything else in it has no such
type (`quick_type` gives None), and nothing but time is lost. Patterns and formats are left out on purpose: the engines
differ in what they take, and Python's patterns can be made to run for ever. Schemas that refer to themselves are left
out too.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal
from urllib.parse import unquote

import msgspec

from mainspring import data_types
from mainspring.bus.errors import BadSchema
from mainspring.data_types import decoder_of

if TYPE_CHECKING:
    import jsonschema_rs

MASK: Final = "the value"
_STEP: Final = re.compile(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]")
_decode = msgspec.json.decode

MAX_DEPTH: Final = 32  # levels of one schema; deeper ones go the plain way
_ANNOTATIONS: Final = frozenset(
    ("$schema", "$defs", "$comment", "title", "description", "default", "examples", "deprecated")
)
_LENGTHS: Final = {"minLength": "min_length", "maxLength": "max_length"}
_SIZES: Final = {"minItems": "min_length", "maxItems": "max_length"}
_RANGES: Final = {"minimum": "ge", "maximum": "le", "exclusiveMinimum": "gt", "exclusiveMaximum": "lt"}
_EXACT: Final = 2**53  # whole numbers up to here are the same for everybody


MOST_PARTS: Final = 50_000  # values in one schema; a long text counts as several
MOST_PATTERNS: Final = 200
MOST_PATTERN_BYTES: Final = 512 << 10  # of one compiled pattern
MOST_STEPS: Final = 100_000  # schemas that one value is compared with at one place
MOST_QUICK: Final = 1_000  # members or values of one type that says yes sooner
_IN_PLACE: Final = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas")
_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")


class Fault(msgspec.Struct, frozen=True):
    """Where a payload does not fit (a JSON Pointer; empty: as a whole), and why."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path or '(the whole payload)'}: {self.reason}"


def compiled(schema: dict[str, Any] | bool) -> jsonschema_rs.Validator:
    """The schema, ready to be asked. Raises BadSchema (a ValueError), with the reason."""
    import jsonschema_rs  # here, because most nodes and every client can do without it

    try:
        check_size(schema)
        return jsonschema_rs.validator_for(
            schema,
            mask=MASK,
            offline=True,
            validate_formats=True,
            pattern_options=jsonschema_rs.RegexOptions(MOST_PATTERN_BYTES, MOST_PATTERN_BYTES),
        )
    except (jsonschema_rs.ValidationError, ValueError, RecursionError) as error:
        reason = getattr(error, "message", None) or str(error).partition("\n")[0]
        if isinstance(error, BadSchema):
            raise
        raise BadSchema(f"this is not a usable JSON Schema: {reason[:300]}", remedy="see json-schema.org") from None


def check_size(schema: dict[str, Any] | bool) -> int:
    """The most schemas that one value is compared with at one place. Raises BadSchema where that is too many."""
    measured = _Measure(schema)
    return max((measured.steps(each) for each in measured.schemas), default=1)


class _Measure:
    """How large a schema is."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._parts = 0
        self._patterns = 0
        self._named: dict[str, Any] = {}  # by `$id`, and by `#` with the anchor
        self._steps: dict[int, int] = {}
        self.schemas: list[dict[str, Any]] = []  # everything that may be one
        self._look_at(root)

    def _look_at(self, value: Any) -> None:
        self._parts += 1 + (len(value) >> 6 if isinstance(value, str) else 0)
        if self._parts > MOST_PARTS or self._patterns > MOST_PATTERNS:
            raise _too_large(f"a schema may have {MOST_PARTS} parts and {MOST_PATTERNS} patterns")
        if isinstance(value, list):
            for each in value:
                self._look_at(each)
        elif isinstance(value, dict):
            self.schemas.append(value)
            for name, each in value.items():
                if name == "pattern" and isinstance(each, str):
                    self._patterns += 1
                elif name == "patternProperties" and isinstance(each, dict):
                    self._patterns += len(each)
                elif name in ("$anchor", "$dynamicAnchor", "$id") and isinstance(each, str):
                    self._named[each if name == "$id" else f"#{each}"] = value
                self._look_at(each)

    def steps(self, schema: Any) -> int:
        """How many schemas a value is compared with where this one is asked for; one that refers to itself ends."""
        if not isinstance(schema, dict):
            return 1
        if id(schema) not in self._steps:
            self._steps[id(schema)] = 1
            parts = [schema[name] for name in _IN_PLACE if name in schema]
            below = [each for part in parts for each in (part if isinstance(part, list) else [part])]
            below += [found for name in _REFERENCES if (found := self._find(schema.get(name))) is not None]
            steps = 1 + sum([self.steps(each) for each in below])
            if steps > MOST_STEPS:
                raise _too_large(f"a value would be compared with more than {MOST_STEPS} schemas")
            self._steps[id(schema)] = steps
        return self._steps[id(schema)]

    def _find(self, ref: Any) -> Any:
        if not isinstance(ref, str):
            return None
        if ref in self._named:
            return self._named[ref]
        return find_in(self._root, ref) if ref.startswith("#") else None


def find_in(root: Any, ref: str) -> Any:
    """What a reference like `#/$defs/a` leads to; None where there is nothing."""
    found = root
    for step in unquote(ref.removeprefix("#")).split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        try:
            found = found[int(name)] if isinstance(found, list) else found[name]
        except (LookupError, ValueError, TypeError):
            return None
    return found


def _too_large(why: str) -> BadSchema:
    return BadSchema(f"this schema is too large: {why}", remedy="make it smaller")


class SchemaValidator:
    """Asks a JSON Schema."""

    def __init__(self, schema: dict[str, Any] | bool) -> None:
        self._schema = compiled(schema)
        self._fits = self._schema.is_valid
        quick = quick_type(schema)
        self._take = None if quick is None else msgspec.json.Decoder(quick).decode

    def fault(self, payload: bytes | msgspec.Raw) -> Fault | None:
        """The first thing that does not fit; None when all does. `payload` is JSON text."""
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
    """Asks a Python type: a dataclass, a TypedDict, a msgspec Struct, a Pydantic model, or what else msgspec knows."""

    def __init__(self, type: Any) -> None:
        try:
            self._take = decoder_of(type)
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


Validator = SchemaValidator | TypeValidator


def schema_of(type: Any) -> dict[str, Any]:
    """A Python type as JSON Schema. Raises BadSchema."""
    try:
        return data_types.schema_of(type)
    except (TypeError, ValueError) as error:
        raise BadSchema(
            f"{type!r} cannot be written as JSON Schema: {error}",
            remedy=data_types.USABLE,
        ) from None


def pointer(steps: list[str | int]) -> str:
    """A JSON Pointer."""
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in steps)


def _pointer_of(place: str) -> str:
    """msgspec's way to name a place (`$.lines[1].sku`) as a JSON Pointer."""
    return pointer(["*" if number == "..." else name or number for name, number in _STEP.findall(place)])


# -- plain schemas as types


class _NotPlain(Exception):
    """The schema says something that no type here says."""


def quick_type(schema: dict[str, Any] | bool) -> Any | None:
    """A type that takes only what the schema takes; None where there is none."""
    if not isinstance(schema, dict) or "2020-12" not in schema.get("$schema", "2020-12"):
        return None
    try:
        made = _Maker(schema.get("$defs", {})).make(schema, 0)
        msgspec.json.Decoder(made)
    except (_NotPlain, TypeError, ValueError):
        return None
    return made


class _Maker:
    """Makes one type; each definition once, so that a definition that is used often costs nothing more."""

    def __init__(self, definitions: dict[str, Any]) -> None:
        self._definitions = definitions
        self._made: dict[str, Any] = {}

    def make(self, schema: Any, depth: int) -> Any:
        if not isinstance(schema, dict) or depth > MAX_DEPTH:
            raise _NotPlain
        keywords = {name: value for name, value in schema.items() if name not in _ANNOTATIONS}
        kind = keywords.pop("type", None)
        if "$ref" in keywords and kind is None:
            return self._refer(keywords, depth)
        if "enum" in keywords or "const" in keywords:
            return _one_of(keywords, kind)
        if kind == "object":
            return self._object(keywords, depth)
        if kind == "array" and "items" in keywords:
            items = self.make(keywords.pop("items"), depth + 1)
            return Annotated[list[items], _bounds(keywords, _SIZES)]  # type: ignore[valid-type]
        if kind == "string":
            return Annotated[str, _bounds(keywords, _LENGTHS)]
        if kind in ("integer", "number"):
            return _number(keywords, kind)
        if kind == "boolean" and not keywords:
            return bool
        raise _NotPlain

    def _refer(self, keywords: dict[str, Any], depth: int) -> Any:
        ref = keywords["$ref"]
        name = ref.removeprefix("#/$defs/") if isinstance(ref, str) else ""
        if len(keywords) > 1 or f"#/$defs/{name}" != ref or name not in self._definitions:
            raise _NotPlain
        if name not in self._made:
            self._made[name] = None  # met again below: it refers to itself
            self._made[name] = self.make(self._definitions[name], depth + 1)
        if self._made[name] is None:
            raise _NotPlain
        return self._made[name]

    def _object(self, keywords: dict[str, Any], depth: int) -> Any:
        properties, required = keywords.pop("properties", {}), keywords.pop("required", [])
        besides = keywords.pop("additionalProperties", True)
        if keywords or not isinstance(besides, bool) or not 0 < len(properties) <= MOST_QUICK:
            raise _NotPlain
        if not set(required) <= set(properties):
            raise _NotPlain
        required = set(required)
        names = sorted(properties, key=lambda name: name not in required)
        fields: list[Any] = []
        for number, name in enumerate(names):
            made = self.make(properties[name], depth + 1)
            optional = (made | msgspec.UnsetType, msgspec.UNSET)
            fields.append((f"f{number}", made) if name in required else (f"f{number}", *optional))
        return msgspec.defstruct(
            "Quick",
            fields,
            rename={f"f{number}": name for number, name in enumerate(names)},
            forbid_unknown_fields=besides is False,
            frozen=True,
            gc=False,
        )


def _one_of(keywords: dict[str, Any], kind: str | None) -> Any:
    values = [keywords.pop("const")] if "const" in keywords else keywords.pop("enum")
    if (
        keywords
        or not 0 < len(values) <= MOST_QUICK
        or kind not in (None, "string")
        or not all(isinstance(value, str) for value in values)
    ):
        raise _NotPlain
    return Literal[tuple(values)]


def _bounds(keywords: dict[str, Any], names: dict[str, str]) -> msgspec.Meta:
    """What is left of the schema, if it is nothing but bounds."""
    if any(name not in names or isinstance(value, bool) for name, value in keywords.items()):
        raise _NotPlain
    return msgspec.Meta(**{names[name]: value for name, value in keywords.items()})


def _number(keywords: dict[str, Any], kind: str) -> Any:
    bounds = _bounds(keywords, _RANGES)
    if not all(isinstance(value, (int, float)) and abs(value) < _EXACT for value in keywords.values()):
        raise _NotPlain
    if kind == "number":
        return Annotated[float, bounds]
    if not all(isinstance(value, int) for value in keywords.values()):
        raise _NotPlain
    return Annotated[int, bounds]
