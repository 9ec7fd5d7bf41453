"""Reading JSON from strangers: strict, bounded, and without touching the bytes of a payload.

msgspec is strict about syntax (no NaN), escapes (no lone surrogates) and trailing text, but it leaves gaps: raw values
are not checked for UTF-8, a member given twice silently wins, and what is wrong is not always said. These are closed
here, once, for every route. What a payload may be is decided by the bus, for all faces.

A member given twice is refused because two readers would disagree about which one counts. Looking for it needs a slow
parser, so a cheap count decides first whether a second look is worth it: a member's name must appear twice in the text,
or be spelled with escapes.
"""

from __future__ import annotations

import json
from typing import Any, Final, TypeVar

import msgspec

from mainspring.bus.publishing.payload import too_deep, why_unreadable
from mainspring.server.http.problem import HttpProblem, bad_json

T = TypeVar("T")


def check_text(body: bytes) -> None:
    """Refuse what is empty or not UTF-8."""
    if not body.strip():
        raise bad_json("The body is empty.")
    try:
        body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise bad_json(f"The body is not UTF-8: byte {error.start} does not fit.") from None


def decode(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """The body as the decoder's type; every way of being wrong is a 400 that says where."""
    check_text(body)
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise HttpProblem(f"{error}.", status=400, code="bad_frame", remedy=_SEE_OPENAPI) from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise why_unreadable(body, error, "body") from None


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
        raise too_deep("body") from None
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
