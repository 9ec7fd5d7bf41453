"""Contracts: one per (kind, type) that a capability handles. What goes in, what comes out, and how its requests ended.

Both ways to write a capability end here, so that routing, validation, `Syscall.Describe` and the boot summary need to
know only one thing.

A type hint is the whole declaration of data. From it come the check of what arrives, the check of what a handler
returns, and the JSON Schema that `Syscall.Describe` shows. Plain dataclasses, TypedDicts, msgspec Structs, built-in
containers, Pydantic models and `Any` all work; anything else is refused at boot, with the name of the handler.

A low-level capability describes its messages as classes with `kind`, `type` and `data`. The kernel routes by the pair
(kind, type), so the pairs must be few and fixed at boot: `kind` is one literal, `type` one or several. Three forms
are accepted: one class with one literal each; one class with several literal types; a union of such classes. A free
string, a pattern, an enum or a union with one free member is refused, because a route that cannot be listed cannot be
described, checked for duplicates, or trusted to lead to the same place twice.
"""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, Any, Final, Literal, NamedTuple, Union, get_args, get_origin

import msgspec

from mainspring.codec import CodecError, Encoding
from mainspring.data_types import USABLE, decoder_of, schema_of
from mainspring.kernel import errors as faults
from mainspring.kernel.blobs import Blob, BlobPointer
from mainspring.kernel.capability import Capability, HandlerFunction
from mainspring.kernel.context import in_thread, with_encoding
from mainspring.kernel.errors import BadOutput, CapabilityError
from mainspring.loop import HandlerThreads
from mainspring.message import NotEncodable, encode_bytes, is_type, validation_text
from mainspring.telemetry import Histogram, nanoseconds

_WORD: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|_")


# --- data --------------------------------------------------------------------------------------------------------


_decode_null: Final = msgspec.json.Decoder(None).decode


def _decode_nothing(text: Any) -> None:
    """Data of a handler that takes None: a message without data has `{}`."""
    if bytes(text) != b"{}":
        _decode_null(text)


class Shape:
    """What data must look like. `decode` makes a value from JSON text, `encode` JSON text from a value."""

    __slots__ = ("_check", "_first", "_schema", "decode", "type")

    def __init__(self, type: Any, *, where: str) -> None:
        if type is Blob:
            type = BlobPointer
        self.type: Any = type
        self._schema: dict[str, Any] | None = None
        try:
            decode = decoder_of(type)
        except (TypeError, NameError) as error:
            raise CapabilityError(f"{where} has a type that cannot be a schema: {error}", remedy=USABLE) from None
        self._first = {dict: b"{", list: b"["}.get(type)
        self._check: Callable[[Any], Any] | None = None if type is Any or self._first else decode
        self.decode: Callable[[Any], Any] = _decode_nothing if type in (None, types.NoneType) else decode

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

    def mistake(self, raw: msgspec.Raw) -> str:
        """Why `raw` is not of this shape, or the empty text."""
        try:
            self.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return validation_text(error)
        return ""

    def opened(self, raw: msgspec.Raw) -> msgspec.Raw:
        """Data as a handler's process is given it."""
        return raw

    def sealed(self, raw: msgspec.Raw) -> msgspec.Raw:
        """Data as it leaves the program."""
        return raw

    def json_schema(self) -> dict[str, Any]:
        """JSON Schema; every object says what is required, every property has a description. It is made once."""
        if self._schema is None:
            self._schema = self._make_schema()
        return self._schema

    def _make_schema(self) -> dict[str, Any]:
        try:
            schema = schema_of(self.type)
        except TypeError:
            schema = {}
        for part in (schema, *schema.get("$defs", {}).values()):
            if part.get("type") == "object":
                part.setdefault("properties", {})
                part.setdefault("required", [])
            for name, member in part.get("properties", {}).items():
                member.setdefault("description", _WORD.sub(" ", name).strip().capitalize() + ".")
        if "$ref" not in schema:
            schema.setdefault("required", [])
        return schema


class EncodedShape(Shape):
    """The shape of data that the program's codec encodes."""

    __slots__ = ("_encoding",)

    def __init__(self, type: Any, encoding: Encoding, *, where: str) -> None:
        super().__init__(type, where=where)
        self._encoding = encoding
        decode = self.decode

        def decode_encoded(text: Any) -> Any:
            try:
                return decode(encoding.open(text))
            except CodecError as error:
                raise msgspec.ValidationError(error.message) from error

        self.decode: Callable[[Any], Any] = decode_encoded

    def encode(self, value: Any) -> msgspec.Raw:
        return self.sealed(super().encode(value))

    def opened(self, raw: msgspec.Raw) -> msgspec.Raw:
        return msgspec.Raw(self._encoding.open(raw))

    def sealed(self, raw: msgspec.Raw) -> msgspec.Raw:
        return msgspec.Raw(self._encoding.seal(raw))


def _shape(type: Any, encoding: Encoding | None, where: str) -> Shape:
    return Shape(type, where=where) if encoding is None else EncodedShape(type, encoding, where=where)


# --- contracts ---------------------------------------------------------------------------------------------------

_OUTCOMES: Final = {
    faults.TIMEOUT: "timeout",
    faults.ACTOR_CRASH: "fault",
    faults.ACTOR_FAULT: "fault",
    faults.UNHEALTHY: "fault",
    faults.SHUTTING_DOWN: "shutdown",
}


class RequestCounts:
    """How the requests of one contract ended, and how long they took.

    `errors` are the outcomes that were no reply, by name; all others were replies. Only types that somebody handles are
    counted so, and the table cannot grow with what clients send.
    """

    __slots__ = ("errors", "ns")

    def __init__(self) -> None:
        self.ns: Histogram = nanoseconds()
        self.errors: dict[str, int] = {}

    def failed(self, error: str) -> None:
        """A request ended with an error of this type."""
        name = _OUTCOMES.get(error, "refused")
        self.errors[name] = self.errors.get(name, 0) + 1

    def outcomes(self) -> dict[str, int]:
        """How many requests ended how: reply, refused, timeout, fault or shutdown."""
        return {"reply": self.ns.count - sum(self.errors.values()), **self.errors}


@dataclasses.dataclass(frozen=True, slots=True)
class Contract:
    """One (kind, type) a capability handles: what goes in, what comes out, and a declared one's function."""

    kind: str
    type: str
    description: str
    input: Shape
    output: Shape
    function: HandlerFunction | None = None
    concurrency: int = 0  # how many at a time, where that is not the capability's number
    key: Callable[[Any], Any] | None = None  # of the data; messages with the same one are handled in order
    counts: RequestCounts = dataclasses.field(default_factory=RequestCounts, compare=False, repr=False)


class CapabilityPlan:
    """A capability, checked: its contracts by (kind, type), its subscriptions, and what it may send."""

    def __init__(self, capability: Capability, threads: HandlerThreads) -> None:
        """`threads` are where its plain functions run."""
        self.capability = capability
        self._threads = threads
        self.contracts: list[Contract] = []
        self.listeners: dict[str, list[Contract]] = {}
        self.everywhere: dict[str, list[Contract]] = {}  # of those, the ones for events of other nodes too
        self._outbound: list[tuple[MessageSchema, Shape]] = []
        where = f"capability {capability.id!r}"
        _check_settings(capability, where)
        if capability.handlers:
            self._from_handlers(capability, where)
        else:
            self._from_schemas(capability, where)

    @property
    def handles(self) -> list[str]:
        """As the boot summary shows them: `kind:Type`."""
        return [f"{contract.kind}:{contract.type}" for contract in self.contracts]

    @property
    def laned(self) -> bool:
        """Whether a handler has a limit or a key of its own."""
        return any(handler.concurrency or handler.key for handler in self.capability.handlers)

    def shape_of_output(self, kind: str, type: str) -> Shape | None:
        """The shape of data that a low-level actor sends under this kind and type; None when it may not send it."""
        for schema, shape in self._outbound:
            if schema.kind in (None, kind) and (schema.types is None or type in schema.types):
                return shape
        return None

    def _from_handlers(self, capability: Capability, where: str) -> None:
        for handler in capability.handlers:
            description = handler.description or f"Handles {handler.type}."
            name = f"{where}, {handler.kind} {handler.type}"
            encoding = handler.encoding
            shapes = _shape(handler.input, encoding, name), _shape(handler.output, encoding, name)
            function = in_thread(handler.function, self._threads) if handler.in_thread else handler.function
            if handler.around is not None:
                function = _surrounded(function, partial(handler.around, handler.kind, handler.type))
            if encoding is not None:
                function = with_encoding(function, encoding)
            own = handler.concurrency or 0, handler.key
            contract = Contract(handler.kind, handler.type, description, *shapes, function, *own)
            if handler.kind == "event":
                self.listeners.setdefault(handler.type, []).append(contract)
                if handler.everywhere:
                    self.everywhere.setdefault(handler.type, []).append(contract)
            else:
                self.contracts.append(contract)

    def _from_schemas(self, capability: Capability, where: str) -> None:
        if not capability.description:
            raise CapabilityError(f"{where} has no description", remedy="say in a sentence what it does")
        if capability.inbound is None or capability.outbound is None:
            raise CapabilityError(f"{where} needs an inbound and an outbound schema")
        if not callable(capability.spawn):
            raise CapabilityError(f"{where} has no spawn", remedy="give a function that returns a new actor")
        self._outbound = [
            (schema, Shape(schema.data, where=where)) for schema in outbound_schemas(capability.outbound, where=where)
        ]
        anything = Shape(Any, where=where)
        events: dict[str, Shape] = {}
        for schema in inbound_schemas(capability.inbound, where=where):
            shape = Shape(schema.data, where=where)
            for name in schema.types or ():
                if schema.kind == "event":
                    events[name] = shape
                    continue
                answer = self.shape_of_output("reply", name) or anything
                self.contracts.append(Contract(schema.kind or "", name, capability.description, shape, answer))
        for name in capability.subscribes:
            contract = Contract("event", name, capability.description, events.get(name, anything), anything)
            self.listeners[name] = [contract]


def _surrounded(function: HandlerFunction, around: Callable[..., Awaitable[Any]]) -> HandlerFunction:
    async def call(value: Any, ctx: Any) -> Any:
        return await around(value, ctx, partial(function, value, ctx))

    return call


def _check_settings(capability: Capability, where: str) -> None:
    if not capability.id or not isinstance(capability.id, str):
        raise CapabilityError("a capability needs an id")
    if capability.isolation not in ("task", "process"):
        raise CapabilityError(f"{where}: isolation is 'task' or 'process'")
    alone = capability.isolation == "process"
    for limit in (capability.concurrency, *(handler.concurrency for handler in capability.handlers)):
        if limit is not None and (limit < 1 or (alone and limit > 1)):
            rule = "a process takes one message at a time" if alone else "concurrency is 1 or more"
            raise CapabilityError(f"{where}: {rule}, not {limit}")
    if isinstance(capability.subscribes, str):
        raise CapabilityError(f"{where}: subscribes is a list of event types")
    for name in capability.subscribes:
        if not isinstance(name, str) or not is_type(name):
            raise CapabilityError(f"{where} subscribes to {name!r}, which is not an event type like Memory.Changed")


# --- schemas of whole messages -----------------------------------------------------------------------------------


class MessageSchema(NamedTuple):
    """One class of a schema: its kind, its types, and the type hint of its data. None means any."""

    kind: str | None
    types: tuple[str, ...] | None
    data: Any


def inbound_schemas(schema: Any, *, where: str) -> list[MessageSchema]:
    """The classes of an inbound schema, each with literal kind and types. Raises `CapabilityError`."""
    classes = [_closed_schema(part, where) for part in _parts(schema)]
    if not classes:
        raise CapabilityError(f"{where}: the inbound schema is empty")
    return classes


def outbound_schemas(schema: Any, *, where: str) -> list[MessageSchema]:
    """The classes of an outbound schema. It may be wider than an inbound one: what is not literal is None."""
    if schema is Any or schema is dict:
        return [MessageSchema(None, None, Any)]
    return [_schema_of(part, where) for part in _parts(schema)]


def _parts(schema: Any) -> list[Any]:
    origin = get_origin(schema)
    if origin is Annotated:
        return _parts(get_args(schema)[0])
    if origin is Union or origin is types.UnionType:
        return [part for option in get_args(schema) for part in _parts(option)]
    return [schema]


def _closed_schema(part: Any, where: str) -> MessageSchema:
    schema = _schema_of(part, where)
    if schema.kind is None:
        raise CapabilityError(
            f"{where}: kind must be one literal", remedy='write kind: Literal["command"] or Literal["query"]'
        )
    if schema.kind not in ("command", "query", "event"):
        raise CapabilityError(f"{where}: an inbound message is a command, a query or an event, not a {schema.kind}")
    if schema.types is None:
        raise CapabilityError(
            f"{where}: type must be a literal or a union of literals", remedy='write type: Literal["Memory.Set"]'
        )
    for name in schema.types:
        if not is_type(name):
            raise CapabilityError(f"{where}: {name!r} is not a type: two PascalCase segments, like Memory.Set")
    return schema


def _schema_of(part: Any, where: str) -> MessageSchema:
    is_class_with_members = isinstance(part, type) and (
        dataclasses.is_dataclass(part) or issubclass(part, msgspec.Struct) or typing.is_typeddict(part)
    )
    if not is_class_with_members:
        raise CapabilityError(
            f"{where}: a message schema is a dataclass, a TypedDict or a msgspec Struct with kind, type and data",
            remedy="several messages are a union of such classes",
        )
    try:
        hints = typing.get_type_hints(part, include_extras=True)
    except NameError as error:
        raise CapabilityError(f"{where}: the schema {part.__name__} names something unknown: {error}") from None
    kinds = _literals(hints.get("kind"))
    kind = kinds[0] if kinds and len(kinds) == 1 else None
    return MessageSchema(kind, _literals(hints.get("type")), hints.get("data", Any))


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
