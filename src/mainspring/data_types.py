"""Types of data: from a type hint to what reads JSON text into it, writes it, and describes it.

Dataclasses, TypedDicts, msgspec Structs and built-in types are msgspec's. Pydantic models may stand wherever a type may
stand, also inside the others. Pydantic is imported by the program that has a model, never by this one: a model is known
by a mark that Pydantic leaves on its classes.

    decode = decoder_of(Order)         # TypeError: this type has no JSON form
    decode(b'{"sku": "pen"}')          # msgspec.ValidationError, with the place: "... - at `$.count`"
    json_encoder().encode(order)       # an encoder that also takes models
    schema_of(Order)                   # its JSON Schema
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final, Literal, get_args

import msgspec

_MARK: Final = "__pydantic_validator__"
_MODEL: Final = "__pydantic_serializer__"
_REFERENCES: Final = "#/$defs/{model}"
_decode_any: Final = msgspec.json.Decoder().decode

USABLE: Final = "use a dataclass, a TypedDict, a msgspec Struct, a Pydantic model, built-in types or Any"
Decode = Callable[[Any], Any]


class ModelMistake(ValueError):
    """Data does not fit a Pydantic model. The text is for people, and holds none of the data."""


def decoder_of(type: Any) -> Decode:
    """What makes a value of this type from JSON text, or raises msgspec.ValidationError. TypeError: nothing can."""
    if type is Any:
        return _decode_any
    if _has_model(type):
        return functools.partial(_decode_model, _adapter(type))
    decoder = msgspec.json.Decoder(type, dec_hook=_from_builtins)
    unusable = _without_json_form(type)
    if unusable is not None:
        raise TypeError(f"{unusable.__name__} has no JSON form")
    return decoder.decode


@functools.lru_cache(maxsize=1024)
def _known_decoder(type: Any) -> Decode:
    return decoder_of(type)


def decode_as(type: Any, text: Any) -> Any:
    """A value of this type from JSON text; for those who meet types one by one."""
    if type is Any:
        return _decode_any(text)
    try:
        decode = _known_decoder(type)
    except TypeError:
        decode = decoder_of(type)  # it cannot be a key, or it cannot be a type: then this says why
    return decode(text)


def convert(value: Any, type: Any) -> Any:
    """A value of this type from what JSON text was read as. Raises msgspec.ValidationError."""
    return decode_as(type, msgspec.json.encode(value))


def json_encoder(order: Literal["deterministic", "sorted"] | None = None) -> msgspec.json.Encoder:
    """An encoder that takes Pydantic models too."""
    return msgspec.json.Encoder(enc_hook=model_members, order=order)


def schema_of(type: Any) -> dict[str, Any]:
    """The JSON Schema of a type. TypeError or ValueError: it cannot be described."""
    if _has_model(type):
        return dict(_adapter(type).json_schema(ref_template=_REFERENCES))
    found = msgspec.json.schema(type, schema_hook=_model_schema)
    definitions: dict[str, Any] = {}
    _lift_definitions(found, definitions)
    return {**found, "$defs": definitions} if definitions else found


def is_model(type: Any) -> bool:
    """Whether this is a class that Pydantic made: a model, or one of its dataclasses."""
    return isinstance(type, _class) and _MARK in vars(type)


_class = type


def _has_model(type: Any) -> bool:
    """Whether Pydantic is to read all of it: it is a model, or made of models (`list[Order]`, `Card | Cash`)."""
    return is_model(type) or any(_has_model(each) for each in get_args(type))


def _adapter(type: Any) -> Any:
    from pydantic import TypeAdapter
    from pydantic.errors import PydanticUserError

    try:
        return TypeAdapter(type)
    except PydanticUserError as error:
        raise TypeError(str(error).partition("\n")[0]) from None


def _decode_model(adapter: Any, text: Any) -> Any:
    from pydantic import ValidationError

    try:
        return adapter.validate_json(bytes(text))
    except ValidationError as error:
        what, place = _first_mistake(error)
        raise msgspec.ValidationError(f"{what} - at `${place}`") from ModelMistake(what)


def _first_mistake(error: Any) -> tuple[str, str]:
    """What is wrong, and where, as msgspec writes places."""
    mistakes = error.errors(include_url=False, include_input=False)
    first = mistakes[0]
    place = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in first["loc"])
    text = first["msg"]
    if first["type"] == "union_tag_invalid":  # this one repeats what was given
        text = f"Input tag should be one of {first['ctx']['expected_tags']}"
    return text + (f" (and {len(mistakes) - 1} more)" if len(mistakes) > 1 else ""), place


def _from_builtins(type: Any, value: Any) -> Any:
    """What msgspec does not know inside a type of its own; it adds the place to a ValueError."""
    from pydantic import ValidationError

    try:
        return _known_adapter(type).validate_json(msgspec.json.encode(value))
    except ValidationError as error:
        what, place = _first_mistake(error)
        raise ModelMistake(f"{what} in {place.lstrip('.')}" if place else what) from None


@functools.lru_cache(maxsize=1024)
def _known_adapter(type: Any) -> Any:
    return _adapter(type)


def model_members(value: Any) -> Any:
    """A Pydantic model as JSON has it. TypeError: it is none."""
    serializer = getattr(type(value), _MODEL, None)
    if serializer is None:
        raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")
    return serializer.to_python(value, mode="json", by_alias=True, warnings="none")


def _model_schema(type: Any) -> dict[str, Any]:
    if not is_model(type):
        raise NotImplementedError  # how msgspec is told that the type is not one of these
    return dict(_adapter(type).json_schema(ref_template=_REFERENCES))


def _lift_definitions(part: Any, found: dict[str, Any]) -> None:
    """References are to the top of a schema, so the definitions of the models inside it belong there."""
    if isinstance(part, dict):
        for name, definition in part.pop("$defs", {}).items():
            found[name] = definition
            _lift_definitions(definition, found)
        part = list(part.values())
    if isinstance(part, list):
        for each in part:
            _lift_definitions(each, found)


def _without_json_form(type: Any) -> Any:
    """The first class inside a type that says nothing about its members: msgspec takes it, and refuses every value."""
    if type in _PLAIN or getattr(type, "__module__", "").startswith("mainspring."):
        return None
    from msgspec import inspect  # only where it is needed: it takes a while to import

    seen: set[int] = set()
    waiting: list[Any] = [inspect.type_info(type)]
    while waiting:
        info = waiting.pop()
        if isinstance(info, inspect.CustomType) and not is_model(info.cls):
            return info.cls
        if id(info) in seen or not isinstance(info, msgspec.Struct):
            continue
        seen.add(id(info))
        for name in info.__struct_fields__:
            inner = getattr(info, name)
            waiting += inner if isinstance(inner, tuple) else [inner]
    return None


_PLAIN: Final = (type(None), bool, int, float, str, bytes, dict, list, tuple, set)
