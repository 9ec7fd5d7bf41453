"""Reading JSON from strangers: strict, bounded, and without touching the bytes of a payload.

msgspec is strict about numbers (no NaN), escapes (no lone surrogates) and trailing text, but it leaves three gaps that
matter when a payload is kept as the bytes that arrived: raw values are not checked for UTF-8, a member given twice
silently wins, and nesting ends in Python's recursion limit. Each gap is closed here, once, for every route.

A member given twice is refused because two readers would disagree about which one counts. Looking for it needs a slow
parser, so a cheap count decides first whether a second look is worth it: a member's name must appear twice in the text,
or be spelled with escapes.
"""

from __future__ import annotations

import json
from typing import Any, Final, TypeVar

import msgspec

from mainspring.wire.http.problem import HttpProblem, bad_json

MAX_DEPTH: Final = 128  # deeper than any honest document; a consumer's parser gives up at about a thousand

T = TypeVar("T")


def check_text(body: bytes) -> None:
    """Refuse what is empty or not UTF-8."""
    if not body.strip():
        raise bad_json("The body is empty.")
    try:
        body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise bad_json(f"The body is not UTF-8: byte {error.start} does not fit.") from None


def check_value(text: bytes) -> None:
    """Refuse a raw value that a consumer could not read back: too deep, or a number outside every range."""
    try:
        value = msgspec.json.decode(text)
    except RecursionError:
        raise _too_deep() from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise bad_json(f"The body is not valid JSON: {_reason(error)}.") from None
    if _is_too_deep(value):
        raise _too_deep()


def decode(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """The body as the decoder's type; every way of being wrong is a 400 that says where."""
    check_text(body)
    try:
        return decoder.decode(body)
    except RecursionError:
        raise _too_deep() from None
    except msgspec.ValidationError as error:
        raise HttpProblem(f"{_reason(error)}.", status=400, code="bad_frame", remedy=_SEE_OPENAPI) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise bad_json(f"The body is not valid JSON: {_reason(error)}.") from None


def refuse_duplicates(body: bytes, names: tuple[str, ...]) -> None:
    """Refuse an object that gives one of its own members twice; `names` are the members it may have."""
    if all(body.count(f'"{name}"'.encode()) < 2 for name in names) and b"\\u00" not in body:
        return
    twice: list[str] = []

    def notice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        members = dict(pairs)
        twice.clear()  # the outermost object is closed last, so its verdict is the one that stays
        if len(members) < len(pairs):
            given = [name for name, _ in pairs]
            twice.extend(sorted({name for name in given if given.count(name) > 1}))
        return members

    try:
        json.loads(body, object_pairs_hook=notice)
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:  # the decoder that follows says the same better; this only keeps the order irrelevant
        raise bad_json(f"The body is not valid JSON: {error}.") from None
    if twice:
        raise HttpProblem(
            f"The member {twice[0]!r} is given twice.",
            status=400,
            code="bad_frame",
            remedy="Give each member once.",
        )


_SEE_OPENAPI: Final = "GET /openapi.json describes the body."


def _too_deep() -> HttpProblem:
    return bad_json("The body is nested too deeply.", f"Stay within {MAX_DEPTH} levels.")


def _reason(error: Exception) -> str:
    return str(error).removeprefix("JSON is malformed: ")


def _is_too_deep(value: object) -> bool:
    """Goes down level by level, so that the check itself cannot run out of stack."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for outer in level
            if isinstance(outer, (dict, list))
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, (dict, list))
        ]
        if not level:
            return False
    return True
