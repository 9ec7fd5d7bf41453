"""What a payload may be, the same on every face.

A payload is kept and delivered as the bytes that came, so what is wrong with it would be found by its consumers, one
after the other. JSON's grammar allows more than they can read: a number beyond every double becomes Infinity in some
languages and an error in others, half a surrogate pair is no text, and every parser's stack ends somewhere. These are
refused at the door. What readers only see differently is kept: digits that no double holds, a name given twice.

A payload in a frame was read when the frame was, but its numbers and its depth were not looked at. To parse it would
cost a third of everything else that is done for a large event. So its shape is searched for what could be wrong: an
exponent of three digits, very many digits in a row, very many brackets. Only what looks like it is read; a false alarm
costs time and nothing else.
"""

from __future__ import annotations

import json
import re
from itertools import accumulate
from math import isinf
from typing import Final

import msgspec

from mainspring.bus.errors import BadFrame, BadJson, BusError

MAX_DEPTH: Final = 128  # deeper than any honest document; a consumer's parser gives up at about a thousand
HALF: Final = "a text holds half a character (a lone surrogate)"
_ONE_TEXT: Final = "send one JSON text in UTF-8"

# In the shape of a text a digit and a plus are 0, both letters of an exponent are e, both opening brackets are [. The
# largest double has 309 digits: to get beyond it, a number needs an exponent of three digits, or 210 digits of its own.
_SHAPE: Final = bytes.maketrans(b"0123456789+E{", b"00000000000e[")
_EXPONENT: Final = b"0e000"
_MANY_DIGITS: Final = 210
_SAMPLES: Final = 6  # of every row of so many digits, taken at equal distances
_LOOKED_AT: Final = 64  # exponents, and digits before each; where there are more, reading the payload is faster
_BEFORE_A_NUMBER: Final = b":,[ \t\r\n"
_TEXTS: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"')
_NUMBERS: Final = re.compile(rb"[0-9][0-9.eE+-]*")

_QUOTE: Final = b'"'
_STEPS: Final = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")  # one level down and one up, as signed bytes
_NO_STEPS: Final = bytes(set(range(256)) - set(b'[{]}"'))
_TEXTS_IN_STEPS: Final = re.compile(rb'"[^"]*"')

_read = msgspec.json.Decoder().decode
_skim = msgspec.json.Decoder(msgspec.Raw).decode


def check_json(payload: bytes) -> None:
    """Raise BadJson or BadFrame unless this is JSON text; for a payload that was not part of a decoded frame."""
    try:
        payload.decode()
        _skim(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise why_unreadable(payload, error) from None


def check_readable(payload: bytes, *, levels: int = MAX_DEPTH, what: str = "payload") -> None:
    """Raise BadFrame for JSON text with a number beyond a double, or that is nested deeper than `levels`."""
    shape = payload.translate(_SHAPE)
    size = len(payload)
    if size > 2 * levels and shape.count(b"[") > levels and _depth(payload) > levels:
        raise too_deep(what, levels)
    if size >= _MANY_DIGITS and b"0" * _SAMPLES in shape[:: _MANY_DIGITS // _SAMPLES]:
        if any(isinf(float(number)) for number in _NUMBERS.findall(_TEXTS.sub(b"", payload))):
            raise _beyond(what)
    elif _EXPONENT in shape and _may_be_beyond(shape):
        try:
            _read(payload)
        except msgspec.ValidationError:
            raise _beyond(what) from None


def are_plainly_readable(payloads: list[bytes]) -> bool:
    """Whether one look at all of them together shows that `check_readable` refuses none. No is no refusal."""
    for payload in payloads:
        if len(payload) > 2 * MAX_DEPTH and payload.count(b"[") + payload.count(b"{") > MAX_DEPTH:
            return False
    shape = b",".join(payloads).translate(_SHAPE)
    if b"0" * _SAMPLES in shape[:: _MANY_DIGITS // _SAMPLES]:
        return False
    return _EXPONENT not in shape or not _may_be_beyond(shape)


def why_unreadable(text: bytes, cause: Exception, what: str = "payload") -> BusError:
    """The refusal of text that could not be read as JSON, by what the reader said about it."""
    if isinstance(cause, RecursionError):
        return too_deep(what)
    if isinstance(cause, UnicodeDecodeError):
        return BadJson(f"the {what} is not UTF-8", remedy=_ONE_TEXT)
    try:
        # It reads halves of characters, and nothing else that is no JSON.
        json.loads(text.decode(errors="replace"), parse_constant=_no_constant)
    except RecursionError:
        return too_deep(what)
    except ValueError:
        return BadJson(f"the {what} is not JSON: {str(cause).removeprefix('JSON is malformed: ')}", remedy=_ONE_TEXT)
    return BadFrame(HALF, remedy="send both halves, or none")


def too_deep(what: str, levels: int = MAX_DEPTH) -> BadFrame:
    """The refusal of what nobody can be sure to read to its bottom."""
    return BadFrame(f"the {what} is nested too deeply", remedy=f"stay within {levels} levels")


def _beyond(what: str) -> BadFrame:
    return BadFrame(f"the {what} holds a number beyond the range of a double", remedy="send it as text")


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


def _may_be_beyond(shape: bytes) -> bool:
    """Whether one of the exponents may belong to a number, and not to an id in hexadecimal or the like."""
    at = -1
    for _ in range(_LOOKED_AT):
        at = shape.find(_EXPONENT, at + 1)
        if at < 0:
            return False
        before = shape[max(0, at - _LOOKED_AT) : at].rstrip(b"0.").removesuffix(b"-")
        if not before or before[-1] in _BEFORE_A_NUMBER:
            return True
    return True


def _depth(payload: bytes) -> int:
    """How deep the brackets nest, those in texts left out. Of escapes only those of quotes and backslashes matter."""
    text = payload.replace(rb"\\", b"").replace(rb"\"", b"") if b"\\" in payload else payload
    steps = text.translate(_STEPS, _NO_STEPS).replace(_QUOTE * 2, b"")  # two quotes with nothing between them
    if _QUOTE in steps:
        steps = _TEXTS_IN_STEPS.sub(b"", steps)
    return max(accumulate(memoryview(steps).cast("b")), default=0)
