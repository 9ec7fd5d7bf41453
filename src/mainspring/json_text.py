"""JSON text from strangers, read strictly: payloads, frames, bodies of requests, lines, arguments of commands.

JSON's grammar allows more than every reader can take: a number beyond every double becomes Infinity in some languages
and an error in others, half a surrogate pair is not text, and every parser's stack ends somewhere. Such text is refused
where it arrives, because it is kept and passed on as the bytes that came, and its readers would find out one after the
other. What readers only see differently is kept: digits that no double holds, a name given twice in a payload.

msgspec is strict about syntax (no NaN), escapes (no lone surrogates) and trailing text, but it leaves gaps, which are
closed here: it knows no depth, takes an integer of any length, does not check raw values for UTF-8, lets a member given
twice silently win, and does not always say what is wrong.

`check_json` reads a text once and throws away what it says. To search it for suspicious places instead (long exponents,
rows of digits) costs about the same and is harder to trust, so it is not done. Only large texts can be too deep or hold
an integer that is too long, so only those are looked at again.

A member given twice is refused where the node itself reads the object (`StrictDecoder`): two readers would disagree
about which one counts. Looking for it needs a slow parser, so a cheap count decides first whether a second look is
worth it: a member's name must appear twice in the text, or be spelled with escapes.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from itertools import accumulate
from math import isinf
from typing import Any, Final, Generic, TypeVar

import msgspec

from mainspring.errors import MainspringError

T = TypeVar("T")

MAX_DEPTH: Final = 128  # deeper than any honest document; a consumer's parser gives up at about a thousand
HALF_CHARACTER: Final = "a text holds half a character (a lone surrogate)"
_ONE_TEXT: Final = "send one JSON text in UTF-8"

_MOST_DIGITS: Final = 308  # an integer with more may be beyond a double
_SAMPLES: Final = 6  # of every row of more digits, taken at equal distances
_AS_0: Final = bytes.maketrans(b"123456789", b"000000000")
_TEXTS: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"')
_NUMBERS: Final = re.compile(rb"[0-9][0-9.eE+-]*")

_MOST_NAMES: Final = 32  # that are looked for one by one; no type of ours has more members

_QUOTE: Final = b'"'
_STEPS: Final = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")  # one level down and one up, as signed bytes
_NO_STEPS: Final = bytes(set(range(256)) - set(b'[{]}"'))
_TEXTS_IN_STEPS: Final = re.compile(rb'"[^"]*(?:"|\Z)')

_read = msgspec.json.Decoder().decode


class JsonRefused(MainspringError, code="bad_json"):
    """The text is not JSON (`bad_json`), or JSON that cannot be taken (`bad_frame`)."""


def check_json(text: bytes, what: str = "the payload", *, levels: int = MAX_DEPTH) -> None:
    """Raise JsonRefused unless this is JSON text that everybody can read."""
    try:
        _read(text)
    except msgspec.ValidationError:
        raise _number_too_large(what) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise why_unreadable(text, error, what, levels) from None
    _check_extent(text, what, levels)


def _check_extent(text: bytes, what: str, levels: int) -> None:
    """Of text that was read: neither too deep, nor with an integer that is too long."""
    size = len(text)
    if size > 2 * levels and text.count(b"[") + text.count(b"{") > levels and nesting(text) > levels:
        raise too_deep(what, levels)
    if size > _MOST_DIGITS and _may_be_long(text) and _has_long_integer(text):
        raise _number_too_large(what)


def are_readable_parts(texts: list[bytes]) -> bool:
    """Whether everybody can read each of these, which a JSON reader has cut out of one text as values.

    It is not enough to ask for texts that come from elsewhere: `1,2` is no value, but part of a list. False: ask
    `check_json` about each.
    """
    try:
        _read(b"[%b]" % b",".join(texts))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    if max(map(len, texts)) <= 2 * MAX_DEPTH:  # too short to be too deep, or to hold a number that is too long
        return True
    try:
        for text in texts:
            if len(text) > 2 * MAX_DEPTH:
                _check_extent(text, "", MAX_DEPTH)
    except JsonRefused:
        return False
    return True


def read_value(text: str | bytes, what: str) -> Any:
    """The value of a text that everybody can read; its integers are whole, however many digits they have."""
    given = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    check_json(given, what)
    return json.loads(given)


def read_leniently(text: bytes) -> Any:
    """The value of a text that was refused, to say more about it. Reads half characters, but nothing else that is not
    JSON: that is a ValueError, or a RecursionError where it is nested too deeply.
    """
    return json.loads(text.decode(), parse_constant=_no_constant)  # of bytes it would guess the encoding


class StrictDecoder(Generic[T]):
    """Reads texts that hold one object of a Struct type: strict, bounded, every member given once.

    `remedy` is given where the object has another shape than the type says.
    """

    def __init__(self, type: type[T], what: str, remedy: str = "") -> None:
        self._decode = msgspec.json.Decoder(type).decode
        self._names: tuple[str, ...] = type.__struct_encode_fields__  # type: ignore[attr-defined]
        self._quoted = [f'"{name}"'.encode() for name in self._names]
        self._raw = {each.encode_name for each in msgspec.structs.fields(type) if "Raw" in str(each.type)}  # type: ignore[arg-type]
        self._what = what
        self._remedy = remedy

    def decode(self, text: bytes) -> T:
        """The object; every way of being wrong is a JsonRefused that says where."""
        check_text(text, self._what)
        try:
            found = self._decode(text)
        except msgspec.ValidationError as error:
            found = self._decode_again(text, error)
        except (msgspec.DecodeError, RecursionError) as error:
            raise why_unreadable(text, error, self._what) from None
        if _may_repeat(text, self._quoted):
            _refuse_repeated(text, self._what)
        return found

    def _decode_again(self, text: bytes, error: Exception) -> T:
        """The object of a text with integers that are written as 1.0; what is taken as it is stays as it is."""
        try:
            if "got `float`" in str(error):
                members = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
                for name in members.keys() - self._raw:
                    members[name] = msgspec.Raw(_WHOLE.sub(_without_zeros, bytes(members[name])))
                return self._decode(msgspec.json.encode(members))
        except msgspec.ValidationError as second:
            error = second
        except (msgspec.DecodeError, RecursionError) as second:  # the number stood before what is no JSON
            raise why_unreadable(text, second, self._what) from None
        raise JsonRefused(f"{error}.", code="bad_frame", remedy=self._remedy) from None


_WHOLE: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|-?\d+\.0+(?![\d.eE])')  # a text, or a whole number with zeros


def _without_zeros(found: re.Match[bytes]) -> bytes:
    return found[0] if found[0].startswith(b'"') else found[0].partition(b".")[0]


def check_text(text: bytes, what: str) -> None:
    """Raise JsonRefused for what is empty or not UTF-8."""
    if not text or text.isspace():
        raise JsonRefused(f"{what} is empty", remedy=_ONE_TEXT)
    if not text.isascii():
        try:
            text.decode()
        except UnicodeDecodeError as error:
            raise JsonRefused(f"{what} is not UTF-8: byte {error.start} does not fit", remedy=_ONE_TEXT) from None


def refuse_duplicates(text: bytes, names: Iterable[str], what: str) -> None:
    """Raise JsonRefused for an object that gives one of its own members twice; `names` are the members it may have."""
    if _may_repeat(text, [f'"{name}"'.encode() for name in names]):
        _refuse_repeated(text, what)


def why_unreadable(text: bytes, cause: Exception, what: str, levels: int = MAX_DEPTH) -> JsonRefused:
    """The refusal of text that could not be read as JSON, from what the reader complained about."""
    if isinstance(cause, RecursionError):
        return too_deep(what, levels)
    if isinstance(cause, UnicodeDecodeError):
        return JsonRefused(f"{what} is not UTF-8", remedy=_ONE_TEXT)
    try:
        read_leniently(text.decode(errors="replace").encode())
    except RecursionError:
        return too_deep(what, levels)
    except ValueError:
        return JsonRefused(f"{what} is not JSON: {str(cause).removeprefix('JSON is malformed: ')}", remedy=_ONE_TEXT)
    return JsonRefused(HALF_CHARACTER, code="bad_frame", remedy="send both halves, or none")


def too_deep(what: str, levels: int = MAX_DEPTH) -> JsonRefused:
    """The refusal of text that not every reader can read to its bottom."""
    return JsonRefused(f"{what} is nested too deeply", code="bad_frame", remedy=f"stay within {levels} levels")


def nesting(text: bytes) -> int:
    """How deep the brackets nest, those in texts left out. Of escapes only those of quotes and backslashes matter."""
    plain = text.replace(rb"\\", b"").replace(rb"\"", b"") if b"\\" in text else text
    steps = plain.translate(_STEPS, _NO_STEPS).replace(_QUOTE * 2, b"")  # two quotes with nothing between them
    if _QUOTE in steps:
        steps = _TEXTS_IN_STEPS.sub(b"", steps)
    return max(accumulate(memoryview(steps).cast("b")), default=0)


def _number_too_large(what: str) -> JsonRefused:
    return JsonRefused(
        f"{what} holds a number beyond the range of a double", code="bad_frame", remedy="send it as text"
    )


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


def _may_be_long(text: bytes) -> bool:
    """Whether there may be a row of too many digits. A few bytes tell: it would fill several of them in a row."""
    return b"0" * _SAMPLES in text[:: (_MOST_DIGITS + 1) // _SAMPLES].translate(_AS_0)


def _has_long_integer(text: bytes) -> bool:
    return any(isinf(float(number)) for number in _NUMBERS.findall(_TEXTS.sub(b"", text)))


def _may_repeat(text: bytes, quoted_names: list[bytes]) -> bool:
    """Whether a member may be given twice. To look for each of many names would take longer than to read the text."""
    return len(quoted_names) > _MOST_NAMES or b"\\u00" in text or any(text.count(name) > 1 for name in quoted_names)


def _refuse_repeated(text: bytes, what: str) -> None:
    outermost: list[tuple[str, Any]] = []

    def note(pairs: list[tuple[str, Any]]) -> None:
        nonlocal outermost
        outermost = pairs  # the outermost object is closed last, so its members are those that stay

    try:
        json.loads(text, object_pairs_hook=note)
    except RecursionError:
        raise too_deep(what) from None
    except ValueError as error:  # the decoder says the same better; this only keeps the order irrelevant
        raise JsonRefused(f"{what} is not JSON: {error}", remedy=_ONE_TEXT) from None
    counts = Counter(name for name, _ in outermost)
    if len(counts) < len(outermost):
        twice = min(name for name, count in counts.items() if count > 1)
        raise JsonRefused(
            f"the member {twice[:100]!r} is given twice", code="bad_frame", remedy="give each member once"
        )
