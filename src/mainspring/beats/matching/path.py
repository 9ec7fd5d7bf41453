"""Paths: how text becomes segments, and what a query's segments mean.

A path is text that starts with "/". It is canonical without a trailing slash; "/" alone is the root and has no
segments. Nothing is decoded, folded or normalised: two paths are equal when their characters are.

Only queries may hold wildcards. `*` or `?` as a whole segment stands for exactly one segment, `**` for any number of
them, also none, and `*` inside a segment (`img*`, `i*g`) for any characters within it. A `?` inside a longer segment
is an ordinary character.
"""

from __future__ import annotations

import re
from typing import Final

from mainspring.beats.errors import InvalidPath

Segments = tuple[str, ...]

ONE: Final = "*"
MANY: Final = "**"
_ONE_SPELLINGS: Final = frozenset({"*", "?"})
# Control characters would break keys and journals; lone surrogates cannot be written as UTF-8 at all.
_UNUSABLE: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_KNOWN: dict[str, str] = {}
_KNOWN_LIMIT: Final = 65536


def split(path: object) -> Segments:
    """The segments of a well-formed path, wildcards allowed."""
    if type(path) is not str:
        if not isinstance(path, str):
            raise InvalidPath(f"a path is text, not {type(path).__name__}")
        path = str(path)
    if path == "/":
        return ()
    if not path.startswith("/"):
        raise InvalidPath("a path starts with '/'", remedy="write it from the root, for example /signals/image")
    if _UNUSABLE.search(path):
        raise InvalidPath("a path holds a control character or half a surrogate pair")
    body = path[1:-1] if path.endswith("/") else path[1:]
    segments = tuple(body.split("/"))
    for segment in segments:
        if segment in ("", ".", ".."):
            raise InvalidPath(f"a path has no segment {segment!r}", remedy="name each segment")
    return segments


def is_wild(segment: str) -> bool:
    return "*" in segment or segment == "?"


def canonical(path: object) -> str:
    """The one spelling of a literal path; wildcards are refused."""
    known = _KNOWN.get(path) if type(path) is str else None
    if known is not None:
        return known
    segments = split(path)
    if any(map(is_wild, segments)):
        raise InvalidPath(
            "wildcards live in queries only", remedy="name the path itself, or put the wildcard in a query"
        )
    text = "/" + "/".join(segments)
    if len(_KNOWN) >= _KNOWN_LIMIT:
        _KNOWN.clear()
    if type(path) is str:
        _KNOWN[path] = text
    return text


def query_segments(query: object) -> Segments:
    """The segments of a query, with `?` spelled `*`."""
    return tuple(ONE if segment in _ONE_SPELLINGS else segment for segment in split(query))


def query_text(segments: Segments) -> str:
    return "/" + "/".join(segments)


def segments_of(path: str) -> Segments:
    """The segments of a path known to be canonical."""
    return () if path == "/" else tuple(path[1:].split("/"))


def ancestors(path: str) -> list[str]:
    """A canonical path and all above it, the nearest first, the root last."""
    chain = [path]
    while len(path) > 1:
        path = path[: path.rfind("/")] or "/"
        chain.append(path)
    return chain


def specificity(segments: Segments) -> int:
    """2 for a literal segment, 1 for a wildcard of any kind: the empty query scores 0."""
    return sum(1 if is_wild(segment) else 2 for segment in segments)
