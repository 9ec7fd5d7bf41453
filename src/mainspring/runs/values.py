"""Values as JSON: what a durable run may hold, and what it gets back.

A journal is only worth something if a program that is executed again sees exactly what it saw the first time. So in a
durable run every value goes through JSON once, also when nothing crashed: the program always gets the decoded value.
Types come from the annotations (`Effect[Receipt]`, the program's parameters), so dataclasses, Structs and Pydantic
models come back as themselves. What JSON would change silently is refused, with the path to the value: NaN and
infinities, bytes without a declared type, keys that are not text, sets without a declared type.

Errors and the reasons of cancellations are kept as JSON too, as far as JSON can.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from mainspring.data_types import decode_as, decoder_of, is_model, json_encoder, model_members
from mainspring.runs.errors import (
    ChildFailed,
    EffectFailed,
    EffectTimeout,
    StoredFailure,
    Unserialisable,
    WaitTimedOut,
)
from mainspring.telemetry import error_keeping

_encode: Final = json_encoder("deterministic").encode
_SCALARS: Final = frozenset({type(None), bool, int, str})
_MOST_TEXT: Final = 10_000  # characters that are kept of what an error says
_DEPTH: Final = 100  # deeper values are almost certainly cycles

Raw = msgspec.Raw
NULL: Final = Raw(b"null")


def encode(value: Any, path: str, as_type: Any = Any) -> bytes:
    """The value as JSON text; raises Unserialisable with the path of the part that does not fit."""
    kind = value.__class__
    if kind in _SCALARS and (as_type is Any or as_type is kind):
        try:
            return _encode(value)
        except (UnicodeEncodeError, OverflowError) as error:
            raise Unserialisable(path, _first_line(error)) from None
    _check(value, path, as_type is not Any, 0)
    try:
        text = _encode(value)
        if as_type is not Any:
            decode_as(as_type, text)
    except (TypeError, ValueError, OverflowError, UnicodeEncodeError, RecursionError) as error:
        raise Unserialisable(path, _first_line(error)) from None
    return text


def encode_fields(struct: msgspec.Struct) -> bytes:
    """A Struct as a JSON object. Plain fields, the usual case, are encoded without looking at them one by one."""
    for name in struct.__struct_fields__:
        if getattr(struct, name).__class__ not in _SCALARS:
            return encode(struct, type(struct).__name__)
    try:
        return _encode(struct)
    except (UnicodeEncodeError, OverflowError):
        return encode(struct, type(struct).__name__)  # says which field


def decode(text: bytes | Raw, as_type: Any = Any) -> Any:
    """The value again, as the declared type."""
    return decode_as(as_type, text)


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def _check(value: Any, path: str, typed: bool, depth: int) -> None:
    """Refuse what JSON would change without a word. `typed` values may use what their declared type brings back."""
    if depth > _DEPTH:
        raise Unserialisable(path, "nested too deeply, or a cycle")
    kind = value.__class__
    if kind in _SCALARS:
        if kind is str and not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                raise Unserialisable(path, "text with a lone surrogate") from None
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise Unserialisable(path, f"{value} is not a JSON number")
    elif isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str) and not typed:
                raise Unserialisable(f"{path}[{key!r}]", f"a key of type {type(key).__name__}, not text")
            _check(item, f"{path}[{key!r}]", typed, depth + 1)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            _check(item, f"{path}[{index}]", typed, depth + 1)
    elif isinstance(value, set | frozenset | bytes | bytearray | memoryview) and not typed:
        raise Unserialisable(path, f"a value of type {kind.__name__}")
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            _check(getattr(value, name), f"{path}.{name}", True, depth + 1)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            _check(getattr(value, field.name), f"{path}.{field.name}", True, depth + 1)
    elif is_model(kind):
        _check(model_members(value), path, True, depth + 1)
    else:
        _check_other(value, path)


def _check_other(value: Any, path: str) -> None:
    try:
        _encode(value)
    except Exception:
        raise Unserialisable(path, f"a value of type {type(value).__name__}") from None


def usable(hint: Any) -> Any:
    """A type that can be decoded, or Any."""
    if hint is Any or hint is None or hint is type(None):
        return Any
    try:
        decoder_of(hint)
    except Exception:
        return Any
    return hint


# -- errors and reasons


def error_fields(error: BaseException) -> dict[str, str]:
    """What is kept of an error: its type, its message, and its code if it has one."""
    if isinstance(error, StoredFailure):
        kept = {"type": error.type, "message": error.message}
        return kept if error.code == type(error).code else {**kept, "code": error.code}
    fields = {"type": type(error).__name__, "message": error_keeping.redacted(_text(error))[:_MOST_TEXT]}
    code = getattr(error, "code", None)
    if isinstance(code, str | int):  # `Fail` has the number of a status
        fields["code"] = str(code)
    return fields


def stored_failure(fields: Mapping[str, str]) -> StoredFailure:
    """The error that stands for one of which only `error_fields` are kept."""
    return StoredFailure(fields.get("type", "?"), fields.get("message", ""), fields.get("code", ""))


def failure_fields(error: BaseException) -> dict[str, str]:
    """What a journal keeps of an effect that failed: `error_fields`, and what else `effect_failure` needs."""
    fields = error_fields(error)
    if isinstance(error, EffectTimeout | WaitTimedOut | ChildFailed):
        fields["raised"] = type(error).__name__
    if isinstance(error, ChildFailed):
        fields["run"] = error.run_id
    return fields


def effect_failure(effect: str, fields: Mapping[str, str]) -> Exception:
    """What is raised at `await perform(...)` when the effect failed: from the journal alone, so always the same."""
    kind, message, code = fields.get("type", "?"), fields.get("message", ""), fields.get("code", "")
    match fields.get("raised"):
        case "EffectTimeout":
            return EffectTimeout(effect, message)
        case "WaitTimedOut":
            return WaitTimedOut(message)
        case "ChildFailed":
            return ChildFailed(kind, message, code, fields.get("run", ""))
    return EffectFailed(effect, kind, message, code)


def reason_json(reason: Any) -> Raw:
    """The reason of a cancellation; what is not a JSON value becomes text."""
    try:
        return Raw(encode(reason, "reason"))
    except Unserialisable:
        return Raw(encode(_text(reason) if isinstance(reason, BaseException) else repr(reason), "reason"))


def _text(error: BaseException) -> str:
    try:
        return str(error).encode(errors="replace").decode()
    except Exception:
        return "(no text)"
