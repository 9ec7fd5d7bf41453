"""What a payload may be, the same on every face.

A payload is kept and delivered as the bytes that came, so what is wrong with it would be found by its consumers, one
after the other. JSON's grammar allows more than they can read: a number beyond every double becomes Infinity in some
languages and an error in others, half a surrogate pair is no text, and every parser's stack ends somewhere. These are
refused at the door. What readers only see differently is kept: digits that no double holds, a name given twice.

The text is read once more for that, and what it says is thrown away. To search it for suspicious places instead (long
exponents, rows of digits) costs about the same and is harder to trust, so it is not done. Two things the reader does
not tell: it knows no depth and takes an integer of any length. Only large texts can have either.
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

_MOST_DIGITS: Final = 308  # an integer with more may be beyond a double
_SAMPLES: Final = 6  # of every row of more digits, taken at equal distances
_AS_0: Final = bytes.maketrans(b"123456789", b"000000000")
_TEXTS: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"')
_NUMBERS: Final = re.compile(rb"[0-9][0-9.eE+-]*")

_QUOTE: Final = b'"'
_STEPS: Final = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")  # one level down and one up, as signed bytes
_NO_STEPS: Final = bytes(set(range(256)) - set(b'[{]}"'))
_TEXTS_IN_STEPS: Final = re.compile(rb'"[^"]*"')

_read = msgspec.json.Decoder().decode


def check_payload(payload: bytes, *, levels: int = MAX_DEPTH, what: str = "payload") -> None:
    """Raise BadJson or BadFrame unless this is JSON text that everybody can read."""
    try:
        _read(payload)
    except msgspec.ValidationError:
        raise _beyond(what) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise why_unreadable(payload, error, what, levels) from None
    size = len(payload)
    if size > 2 * levels and payload.count(b"[") + payload.count(b"{") > levels and _depth(payload) > levels:
        raise too_deep(what, levels)
    if size > _MOST_DIGITS and _may_be_long(payload) and _has_long_integer(payload):
        raise _beyond(what)


def why_unreadable(text: bytes, cause: Exception, what: str = "payload", levels: int = MAX_DEPTH) -> BusError:
    """The refusal of text that could not be read as JSON, by what the reader said about it."""
    if isinstance(cause, RecursionError):
        return too_deep(what, levels)
    if isinstance(cause, UnicodeDecodeError):
        return BadJson(f"the {what} is not UTF-8", remedy=_ONE_TEXT)
    try:
        # It reads halves of characters, and nothing else that is no JSON.
        json.loads(text.decode(errors="replace"), parse_constant=_no_constant)
    except RecursionError:
        return too_deep(what, levels)
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


def _may_be_long(payload: bytes) -> bool:
    """Whether there may be a row of too many digits. A few bytes tell: it would fill several of them in a row."""
    return b"0" * _SAMPLES in payload[:: (_MOST_DIGITS + 1) // _SAMPLES].translate(_AS_0)


def _has_long_integer(payload: bytes) -> bool:
    return any(isinf(float(number)) for number in _NUMBERS.findall(_TEXTS.sub(b"", payload)))


def _depth(payload: bytes) -> int:
    """How deep the brackets nest, those in texts left out. Of escapes only those of quotes and backslashes matter."""
    text = payload.replace(rb"\\", b"").replace(rb"\"", b"") if b"\\" in payload else payload
    steps = text.translate(_STEPS, _NO_STEPS).replace(_QUOTE * 2, b"")  # two quotes with nothing between them
    if _QUOTE in steps:
        steps = _TEXTS_IN_STEPS.sub(b"", steps)
    return max(accumulate(memoryview(steps).cast("b")), default=0)
