"""Can data written with one JSON Schema be read with another? If not, where and why.

The answer is a list of differences; none means that whatever the writer's schema allows, the reader's accepts. It is
careful in one direction: where it cannot tell (a pattern became another pattern), it reports a difference. So "no
difference" can be relied on, and a false alarm can be overruled by registering with `none`.

One thing is assumed: a property that the writer's schema does not declare is not there. By the letter of JSON Schema
every object may hold anything beside what is declared, and adding an optional property would never be compatible;
that is not what people mean by it.

Alternatives of the writer are taken one by one; of the reader's alternatives one must take it all. Pairs that were
compared already are remembered, which ends the work for recursive schemas.

Schemas come from strangers, and a few lines of references can stand for more than a machine could ever compare. So
every step is counted, by the size of what it touches, and when there are too many the answer is one difference: it
cannot be told.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from mainspring.bus.schemas.validator import Fault, check_size, compiled, find_in, pointer

Schema = dict[str, Any] | bool
Found = list[tuple[str, str]]  # where below, why

ALL_TYPES: Final = ("null", "boolean", "integer", "number", "string", "array", "object")
_ANNOTATIONS: Final = frozenset(
    (
        *("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "discriminator"),
        *("$schema", "$id", "$comment", "$defs", "definitions", "$anchor", "contentEncoding", "contentMediaType"),
    )
)
_COMPARED: Final = frozenset(
    (
        *("type", "enum", "const", "anyOf", "oneOf", "allOf", "$ref"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
        *("minLength", "maxLength", "pattern", "format", "minItems", "maxItems", "uniqueItems", "items", "prefixItems"),
        *("properties", "required", "additionalProperties", "minProperties", "maxProperties"),
    )
)
_NESTED: Final = frozenset(
    ("properties", "items", "prefixItems", "additionalProperties", "anyOf", "oneOf", "allOf", "$defs", "definitions")
)
# Keywords whose meaning depends on what stands beside them: schemas that have them are not merged with others.
_SEE_SIBLINGS: Final = frozenset(
    ("additionalProperties", "items", "prefixItems", "unevaluatedProperties", "unevaluatedItems", "if")
)
MOST_WORK: Final = 200_000  # steps of one comparison, a second at most; schemas that people write take some hundred
MOST_TRIES: Final = 10_000_000  # schemas that a value of an enumeration is compared with, at most
MOST_FOUND: Final = 100  # differences at one place; a hundred say as much as a million
_LOWER: Final = (("minLength", "string"), ("minItems", "array"), ("minProperties", "object"))
_UPPER: Final = (("maxLength", "string"), ("maxItems", "array"), ("maxProperties", "object"))


def differences(writer: Schema, reader: Schema) -> list[Fault]:
    """What the writer may write and the reader refuses; empty when nothing is. `*` in a path is any item."""
    if writer == reader:
        return []
    try:
        found = _Comparison(writer, reader).compare(writer, reader)
    except (_TooMuchWork, RecursionError):
        return [Fault("", "the schemas refer to too much for them to be compared; make them smaller, or compare none")]
    return [Fault(path, reason) for path, reason in dict.fromkeys(found)]


class _TooMuchWork(Exception):
    """The comparison has taken as many steps as it may."""


class _Work:
    """Counts the steps of one comparison."""

    def __init__(self) -> None:
        self._left = MOST_WORK
        self._sizes: dict[int, tuple[Any, int]] = {}  # the value is kept: an id must not be used twice

    def spend(self, steps: int) -> None:
        self._left -= steps
        if self._left < 0:
            raise _TooMuchWork

    def touch(self, value: Any) -> None:
        """Spend as many steps as looking at all of a value takes; many parts are looked at in the time of a step."""
        self.spend(1 + self.size(value) // 32)

    def size(self, value: Any) -> int:
        """How many parts a value has; one that is in several places of it counts as often."""
        if not isinstance(value, (dict, list)):
            return 1 + len(value) // 64 if isinstance(value, str) else 1
        if id(value) not in self._sizes:
            parts = value.values() if isinstance(value, dict) else value
            self.spend(1 + len(parts))
            self._sizes[id(value)] = (value, 1 + sum([self.size(part) for part in parts]))
        return self._sizes[id(value)][1]


class _Side:
    """One schema as a whole: looks up what its references mean."""

    def __init__(self, root: Schema, work: _Work) -> None:
        self._root = root
        self._work = work
        whole = {} if isinstance(root, bool) else root
        self.definitions: dict[str, Any] = {
            name: whole[name] for name in ("$schema", "$defs", "definitions") if name in whole
        }
        self._plain: dict[int, tuple[Schema, Schema]] = {}

    def plain(self, schema: Schema) -> Schema:
        """The schema without `$ref` and `allOf` on top, as far as they can be merged into it."""
        if isinstance(schema, bool) or not ("$ref" in schema or "allOf" in schema):
            return schema
        if id(schema) not in self._plain:  # both are kept: an id is not used twice
            self._plain[id(schema)] = (schema, {"not": {}})  # met again below: it refers to itself, and no value fits
            self._plain[id(schema)] = (schema, self._merged(schema))
        return self._plain[id(schema)][1]

    def _merged(self, schema: dict[str, Any]) -> Schema:
        rest: Schema = {name: value for name, value in schema.items() if name not in ("$ref", "allOf")}
        parts = list(schema.get("allOf", ()))
        ref = schema.get("$ref")
        if isinstance(ref, str):
            parts.append(self._find(ref))
        for part in parts:
            rest = _both(self._work, rest, self.plain(part))
        return rest

    def _find(self, ref: str) -> Schema:
        found = find_in(self._root, ref) if ref.startswith("#") else None
        return found if isinstance(found, (dict, bool)) else {"not": {}}


def _both(work: _Work, one: Schema, other: Schema) -> Schema:
    """A schema that both hold in. What cannot be merged stays side by side under `allOf`."""
    if one is other:
        return one
    work.spend(1 + sum(len(each) for each in (one, other) if isinstance(each, dict)))
    if one is True or (isinstance(one, dict) and _ANNOTATIONS.issuperset(one)):
        return other
    if other is True or (isinstance(other, dict) and _ANNOTATIONS.issuperset(other)):
        return one
    if isinstance(one, bool) or isinstance(other, bool):
        return False
    if not _SEE_SIBLINGS.isdisjoint((*one, *other)):
        return {**one, "allOf": [*one.get("allOf", ()), other]}
    merged = dict(one)
    left: dict[str, Any] = {}
    for name, value in other.items():
        if name in merged:
            work.touch(value)
        if name not in merged or merged[name] == value or name in _ANNOTATIONS:
            merged.setdefault(name, value)
        elif name == "required":
            merged[name] = sorted({*merged[name], *value})
        elif name == "properties":
            merged[name] = {
                **merged[name],
                **{key: _both(work, merged[name].get(key, True), inner) for key, inner in value.items()},
            }
        else:
            left[name] = value
    if left:
        merged["allOf"] = [*merged.get("allOf", ()), left]
    return merged


class _Comparison:
    def __init__(self, writer: Schema, reader: Schema) -> None:
        self._work = work = _Work()
        self._writer = _Side(writer, work)
        self._reader = _Side(reader, work)
        self._same_definitions = self._writer.definitions == self._reader.definitions
        self._compared: dict[tuple[int, int], Found] = {}
        self._kept: list[Schema] = []  # what was made here: an id in `_compared` must not be used twice

    def compare(self, writer: Schema, reader: Schema) -> Found:
        pair = (id(writer), id(reader))
        if pair not in self._compared:
            self._kept += (writer, reader)
            self._compared[pair] = []  # met again below: as good as the rest of it
            found = self._compare(self._writer.plain(writer), self._reader.plain(reader))
            self._work.spend(1 + len(found))
            self._compared[pair] = found[:MOST_FOUND]
        return self._compared[pair]

    def _compare(self, writer: Schema, reader: Schema) -> Found:
        if writer is False or reader is True or reader == {}:
            return []
        if isinstance(reader, bool):
            return [("", "the reader takes nothing here")]
        given: dict[str, Any] = {} if isinstance(writer, bool) else writer
        if "allOf" in reader:
            alone = {name: value for name, value in reader.items() if name != "allOf"}
            return [each for part in (alone, *reader["allOf"]) for each in self.compare(given, part)]
        if "const" in given or "enum" in given:
            return self._values([given["const"]] if "const" in given else given["enum"], reader)
        for name in ("anyOf", "oneOf"):
            if name in given and not self._is_same(given[name], reader.get(name)):
                rest: Schema = {key: value for key, value in given.items() if key != name}
                branches = [
                    _both(self._work, self._writer.plain(rest), self._writer.plain(part)) for part in given[name]
                ]
                return [each for branch in branches for each in self.compare(branch, reader)]
        if "allOf" in given:  # what could not be merged holds all the same: it is enough when the reader takes one part
            alone = {name: value for name, value in given.items() if name != "allOf"}
            return min((self.compare(part, reader) for part in (alone, *given["allOf"])), key=len)
        found: Found = []
        for name in ("anyOf", "oneOf"):
            if name in reader and not self._is_same(given.get(name), reader[name]):
                found += self._alternatives(given, reader[name], only_one=name == "oneOf")
        return found + self._plain(given, reader)

    def _is_same(self, one: Any, other: Any) -> bool:
        self._work.touch(one)
        return one == other and (self._same_definitions or b'"$ref"' not in msgspec.json.encode(one))

    def _values(self, values: list[Any], reader: dict[str, Any]) -> Found:
        """The writer writes one of these: so they can be tried."""
        self._work.spend(self._work.size(values) + self._work.size(reader))
        definitions = self._reader.definitions if b'"$ref"' in msgspec.json.encode(reader) else {}
        self._work.touch(definitions)
        try:
            if check_size({**definitions, **reader}) ** (1 + max(map(_levels, values), default=0)) > MOST_TRIES:
                raise _TooMuchWork
            takes = compiled({**definitions, **reader}).is_valid
        except ValueError:
            return [("", "the reader's schema cannot be tried on its own, so what it takes cannot be told")]
        refused = [value for value in values if not takes(value)]
        return [("", f"may be {_shown(value)}; the reader does not take that") for value in refused]

    def _alternatives(self, writer: dict[str, Any], branches: list[Schema], *, only_one: bool) -> Found:
        self._work.touch(branches)
        fitting = [branch for branch in branches if not self.compare(writer, branch)]
        if not fitting:
            types = _types(writer)
            if len(types) > 1:
                parts = [{**writer, "type": each} for each in types]
                return [each for part in parts for each in self._alternatives(part, branches, only_one=only_one)]
            return [("", "fits none of the alternatives the reader takes")]
        others = [branch for branch in branches if branch is not fitting[0]]
        if only_one and not all(_are_apart(writer, self._reader.plain(branch)) for branch in others):
            return [("", "may fit several of the alternatives of which the reader wants exactly one")]
        return []

    def _plain(self, writer: dict[str, Any], reader: dict[str, Any]) -> Found:
        for schema in (writer, reader):
            self._look_at(schema)
        found = _unknown(writer, reader)
        for name in ("const", "enum"):
            if name in reader:
                found.append(("", f"may be anything; the reader takes only {_shown(reader[name])}"))
        common, refused = _common_types(writer, reader)
        if refused:
            taken = ", ".join(_types(reader))
            found.append(("", f"may be {', '.join(refused)}; the reader takes only {taken}"))
        found += _sizes(writer, reader, common)
        if common & {"number", "integer"}:
            found += _numbers(writer, reader)
        if "string" in common:
            found += [
                ("", f"the reader wants the {name} {_shown(reader[name])}, the writer does not promise it")
                for name in ("pattern", "format")
                if name in reader and writer.get(name) != reader[name]
            ]
        if "array" in common:
            found += self._items(writer, reader)
        if "object" in common:
            found += self._properties(writer, reader)
        return found

    def _look_at(self, schema: dict[str, Any]) -> None:
        """Count what comparing this level takes; what is below counts when it is compared."""
        for name, value in schema.items():
            if name in _NESTED:
                self._work.spend(len(value) if isinstance(value, (dict, list)) else 1)
            else:
                self._work.touch(value)

    def _items(self, writer: dict[str, Any], reader: dict[str, Any]) -> Found:
        found: Found = []
        first, wanted = writer.get("prefixItems", []), reader.get("prefixItems", [])
        longest = writer.get("maxItems")
        for place in range(max(len(first), len(wanted))):
            if longest is not None and place >= longest:
                break
            one = first[place] if place < len(first) else writer.get("items", True)
            other = wanted[place] if place < len(wanted) else reader.get("items", True)
            found += _below(str(place), self.compare(one, other))
        if longest is None or longest > max(len(first), len(wanted)):
            found += _below("*", self.compare(writer.get("items", True), reader.get("items", True)))
        if reader.get("uniqueItems") and not writer.get("uniqueItems"):
            found.append(("", "may hold an item twice; the reader wants each once"))
        return found

    def _properties(self, writer: dict[str, Any], reader: dict[str, Any]) -> Found:
        given = set(writer.get("required", ()))
        found: Found = [
            (pointer([name]), "may be missing; the reader requires it")
            for name in reader.get("required", ())
            if name not in given
        ]
        mine, others = writer.get("properties", {}), reader.get("properties", {})
        besides, taken = writer.get("additionalProperties", True), reader.get("additionalProperties", True)
        for name, schema in mine.items():
            if name in others:
                found += _below(name, self.compare(schema, others[name]))
            elif taken is False and schema is not False:
                found.append((pointer([name]), "may be there; the reader allows only the properties it declares"))
            else:
                found += _below(name, self.compare(schema, taken))
        if isinstance(besides, dict) and besides:
            for name, schema in others.items():
                if name not in mine:
                    found += _below(name, self.compare(besides, schema))
        if writer.get("patternProperties") != reader.get("patternProperties") and "patternProperties" in writer:
            found.append(("", "`patternProperties` is not the same for writer and reader"))
        if taken is False and besides is not False:
            found.append(("", "may hold properties that are not declared; the reader allows none"))
        elif isinstance(taken, dict) and besides is not False:
            found += _below("*", self.compare(besides, taken))
        return found


def _levels(value: Any) -> int:
    """How deep a value is nested; 0 for what holds nothing."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max(map(_levels, parts), default=0) if parts else 0


def _below(step: str, found: Found) -> Found:
    return [(pointer([step]) + path, reason) for path, reason in found]


def _shown(value: object) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 80 else text[:77] + "..."


def _types(schema: dict[str, Any]) -> tuple[str, ...]:
    given = schema.get("type", [name for name in ALL_TYPES if name != "integer"])
    return (given,) if isinstance(given, str) else tuple(given)


def _common_types(writer: dict[str, Any], reader: dict[str, Any]) -> tuple[set[str], list[str]]:
    taken = set(_types(reader))
    if "number" in taken:
        taken.add("integer")
    written = _types(writer)
    return taken & set(written), [name for name in written if name not in taken]


def _sizes(writer: dict[str, Any], reader: dict[str, Any], common: set[str]) -> Found:
    found: Found = []
    for name, kind in _LOWER:
        if kind in common and reader.get(name, 0) > writer.get(name, 0):
            found.append(("", f"{name} is {reader[name]} for the reader, {writer.get(name, 0)} for the writer"))
    for name, kind in _UPPER:
        if kind in common and name in reader and writer.get(name, float("inf")) > reader[name]:
            found.append(("", f"{name} is {reader[name]} for the reader, {writer.get(name, 'none')} for the writer"))
    return found


def _numbers(writer: dict[str, Any], reader: dict[str, Any]) -> Found:
    found: Found = []
    for inclusive, exclusive, sign in (("minimum", "exclusiveMinimum", 1), ("maximum", "exclusiveMaximum", -1)):
        mine, wanted = (_bound(each, inclusive, exclusive, sign) for each in (writer, reader))
        if wanted > mine:
            limit = reader.get(exclusive, reader.get(inclusive))
            found.append(("", f"may lie beyond the reader's {inclusive}, {limit}"))
    step, promised = reader.get("multipleOf"), writer.get("multipleOf", 1 if _types(writer) == ("integer",) else None)
    divides = isinstance(promised, int) and isinstance(step, int) and promised % step == 0
    if step is not None and promised != step and not divides:
        found.append(("", f"need not be a multiple of {step}, as the reader wants"))
    return found


def _bound(schema: dict[str, Any], inclusive: str, exclusive: str, sign: int) -> tuple[float, int]:
    """The tighter of the two bounds, as something that can be compared: greater is tighter."""
    bounds = [(float("-inf"), 0)]
    if inclusive in schema:
        bounds.append((sign * schema[inclusive], 0))
    limit = schema.get(exclusive)
    if limit is True and inclusive in schema:  # as draft 4 says it
        limit = schema[inclusive]
    if limit is not None and not isinstance(limit, bool):
        bounds.append((sign * limit, 1))
    return max(bounds)


def _unknown(writer: dict[str, Any], reader: dict[str, Any]) -> Found:
    return [
        ("", f"`{name}` is not the same for writer and reader, and what that means cannot be told")
        for name in reader
        if name not in _COMPARED and name not in _ANNOTATIONS and writer.get(name) != reader[name]
    ] + ([("", f"the reader refers to {_shown(reader['$ref'])}, which is not found")] if "$ref" in reader else [])


def _are_apart(one: Schema, other: Schema) -> bool:
    """Whether no value can fit both, as far as that is plain to see: by type, or by a required member of one value."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is False or other is False
    common, _ = _common_types(one, other)
    if not common and not _common_types(other, one)[0]:
        return True
    for name in set(one.get("required", ())) & set(other.get("required", ())):
        values = [_few_values(each.get("properties", {}).get(name)) for each in (one, other)]
        if None not in values and not any(value in values[1] for value in values[0]):  # type: ignore[operator,union-attr]
            return True
    return False


def _few_values(schema: Any) -> list[Any] | None:
    if not isinstance(schema, dict):
        return None
    return [schema["const"]] if "const" in schema else schema.get("enum")
