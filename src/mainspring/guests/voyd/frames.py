"""The messages between host and guest: MessagePack arrays `[2, tag, ...]`.

Four of them are enough to run a program: the host invokes an export, the guest requests an effect, the host answers,
the guest completes. Everything a guest sends is checked in shape before it means anything.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from mainspring.guests.voyd.errors import GuestFailure, GuestProtocolError
from mainspring.guests.voyd.schema import Schema

ABI: Final = 2
INVOCATION, COMPLETION, REQUEST, OUTCOME = range(4)
_FAILURE_ITEMS: Final = 8

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


class Request(msgspec.Struct, frozen=True):
    """A guest asks for an effect."""

    index: int
    effect: Any  # the id, or its hash
    op: int
    signature: int
    kind: int
    args: list[Any]  # (fingerprint, value) pairs
    result_fingerprint: str


def invocation(export: int, schemas: list[Schema], args: tuple[Any, ...]) -> bytes:
    """Call an export; GuestProtocolError when an argument does not fit its schema."""
    typed = [
        [schema.fingerprint, schema.to_wire(value, f"argument {index}")]
        for index, (schema, value) in enumerate(zip(schemas, args, strict=True))
    ]
    return _encode([ABI, INVOCATION, export, typed])


def outcome(index: int, fingerprint: str, value: Any) -> bytes:
    """Answer a request; `value` is in wire form."""
    return _encode([ABI, OUTCOME, index, [0, [fingerprint, value]]])


def decode(text: bytes) -> list[Any]:
    """A frame of the guest, with its version checked."""
    try:
        frame = _decode(text)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise GuestProtocolError(f"the guest sent something that is not MessagePack: {error}") from None
    if not isinstance(frame, list) or len(frame) < 3 or frame[0] != ABI:
        raise GuestProtocolError("the guest sent something that is not a frame of host ABI 2")
    return frame


def completion(frame: list[Any], export: int, result: Schema) -> Any:
    """The value of a completion; GuestFailure when the guest reports a failure."""
    if frame[1] != COMPLETION or len(frame) != 4 or frame[2] != export:
        raise GuestProtocolError("the guest completed with a frame of another kind, or of another export")
    match frame[3]:
        case [0, [str(fingerprint), value]]:
            if fingerprint != result.fingerprint:
                raise GuestProtocolError("the guest completed with a value of another type than its export declares")
            return result.from_wire(value, "result")
        case [1, failure]:
            raise _failure(failure)
        case _:
            raise GuestProtocolError("the guest completed without an outcome")


def request(frame: list[Any]) -> Request:
    """An effect request, checked in shape."""
    match frame:
        case [_, 2, int(index), effect, int(op), int(signature), int(kind), list(args), str(result)]:
            if all(isinstance(each, list) and len(each) == 2 for each in args):
                return Request(index, effect, op, signature & 0xFFFFFFFF, kind, args, result)
    raise GuestProtocolError("the guest sent something that is not an effect request")


def _failure(failure: Any) -> GuestFailure | GuestProtocolError:
    if not isinstance(failure, list) or len(failure) != _FAILURE_ITEMS:
        return GuestProtocolError("the guest reported a failure in an unknown form")
    direction, _, phase, category, code, _, message, path = failure
    where = f" at {path}" if path else ""
    return GuestFailure(f"{message}{where} ({direction} {phase} {category} {code})")
