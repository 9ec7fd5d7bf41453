"""Reading a request strictly: its body, its query parameters, and the form of answer it accepts.

A body is bounded, of a known type, and never larger in memory than the limit. aiohttp's own limit belongs to the
application as a whole. Here each body is counted while it arrives, after any decompression, so that neither a wrong
Content-Length nor a small archive of a large text gets past the limit.

A query parameter that is misspelt or given twice is refused, never ignored. Which parameters an operation knows is
written in the table of operations. `agent_id` and `token` are known everywhere, because they say who asks and not what.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final, TypeVar

from aiohttp import hdrs, web

from mainspring.json_text import StrictDecoder
from mainspring.server.http.problem import HttpProblem, bad_query
from mainspring.server.http.table import JSON

T = TypeVar("T")

ALWAYS_KNOWN: Final = frozenset({"agent_id", "token"})
MAX_INTEGER: Final = 2**53 - 1  # beyond it, JavaScript readers lose digits
_INTEGER: Final = re.compile(r"\d{1,16}\Z", re.ASCII)
_MOMENT: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d{1,6})?([Zz]|[+-]\d\d:\d\d)\Z", re.ASCII)
_OCTETS: Final = "application/octet-stream"  # some clients say so of no body at all
_KNOWN_ENCODINGS: Final = frozenset({"", "identity", "gzip", "deflate"})


# --- bodies ---


def body_decoder(type: type[T]) -> StrictDecoder[T]:
    """Reads bodies that hold one object of this type."""
    return StrictDecoder(type, "the body", "GET /openapi.json describes the body.")


async def read_json(request: web.Request, limit: int, decoder: StrictDecoder[T]) -> T:
    """The object a JSON body holds."""
    require_json(request)
    return decoder.decode(await read_body(request, limit))


def media_type(request: web.Request) -> str:
    """The body's media type without parameters, in lower case; JSON when the client does not say."""
    given = request.headers.get(hdrs.CONTENT_TYPE)
    if given is None or (given == _OCTETS and not request.can_read_body):
        return JSON
    kind, _, parameters = given.partition(";")
    for parameter in parameters.split(";"):
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset" and value.strip().strip('"').lower() not in ("utf-8", "utf8", "us-ascii"):
            raise HttpProblem(
                "unsupported_media_type", f"The charset {value.strip()[:50]!r} is not understood.", "Send UTF-8."
            )
    return kind.strip().lower()


def require_json(request: web.Request) -> None:
    """For routes whose body is JSON and nothing else."""
    kind = media_type(request)
    if kind != JSON:
        raise unsupported(kind, (JSON,))


def unsupported(kind: str, known: tuple[str, ...]) -> HttpProblem:
    """415, with the types that would have been understood."""
    return HttpProblem(
        "unsupported_media_type",
        f"A body of type {kind[:100]!r} is not understood here.",
        f"Set Content-Type to one of: {', '.join(known)}.",
        headers={"Accept-Post": ", ".join(known)},
    )


async def read_body(request: web.Request, limit: int) -> bytes:
    """The whole body. Raises 413 as soon as it is known to be over `limit` bytes."""
    encoding = request.headers.get(hdrs.CONTENT_ENCODING, "").strip().lower()
    if encoding not in _KNOWN_ENCODINGS:
        raise HttpProblem(
            "unsupported_media_type",
            f"The encoding {encoding[:50]!r} is not understood.",
            "Send the body as it is, or compressed with gzip or deflate.",
            headers={"Accept-Encoding": "gzip, deflate"},
        )
    if (request.content_length or 0) > limit:
        raise _too_large(limit)
    body = bytearray()
    try:
        async for chunk in request.content.iter_any():
            body += chunk
            if len(body) > limit:
                raise _too_large(limit)
    except web.RequestPayloadError:
        raise HttpProblem(
            "bad_json",
            "The body ends early or is not encoded as its headers say.",
            "Send the body completely, encoded as Content-Encoding says.",
        ) from None
    return bytes(body)


def _too_large(limit: int) -> HttpProblem:
    return HttpProblem(
        "too_large", f"The body is larger than {limit} bytes.", "Send smaller events, or fewer in one request."
    )


# --- query parameters and numbers in paths ---


def check_names(request: web.Request, known: Iterable[str]) -> None:
    """Refuse parameters the operation does not know, and known ones given twice."""
    names = {*known, *ALWAYS_KNOWN}
    for name in request.query:
        if name not in names:
            raise bad_query(
                f"The parameter {name[:60]!r} is not known here.", f"Known are: {', '.join(sorted(names))}."
            )
    for name in names:
        if len(request.query.getall(name, ())) > 1:
            raise bad_query(f"The parameter {name!r} is given twice.", "Give it once.")


def integer(request: web.Request, name: str, *, least: int = 0, most: int = MAX_INTEGER) -> int | None:
    """A whole number, or None when it is not given."""
    text = request.query.get(name)
    if text is None:
        return None
    value = int(text) if _INTEGER.match(text) else -1
    if not least <= value <= most:
        raise bad_query(f"{name} is not a whole number from {least} to {most}.", "Write it in decimal digits.")
    return value


def moment_ms(request: web.Request, name: str) -> int | None:
    """A moment as epoch milliseconds, given as such or as RFC 3339 text; None when it is not given."""
    text = request.query.get(name)
    if text is None:
        return None
    if _INTEGER.match(text):
        return min(int(text), MAX_INTEGER)
    # A plus sign in a query means a space; who wrote the offset unescaped meant the plus.
    written = text.replace(" ", "+").upper()
    if _MOMENT.match(written):
        try:
            return round(datetime.fromisoformat(written).timestamp() * 1000)
        except (ValueError, OverflowError):
            pass
    raise bad_query(f"{name} is not a moment.", "Write epoch milliseconds, or a time as in 2026-01-31T12:00:00Z.")


def path_integer(request: web.Request, name: str) -> int:
    """A number in the path."""
    text = request.match_info[name]
    if not _INTEGER.match(text):
        raise bad_query(f"{name} in the path is not a whole number.", "Write it in decimal digits.")
    return min(int(text), MAX_INTEGER)


# --- the form of the answer (RFC 9110, section 12.5.1) ---


def accepted_type(request: web.Request, offered: Sequence[str]) -> str:
    """The offered media type the client prefers; the first one when it does not care. Raises 406."""
    header = ",".join(request.headers.getall(hdrs.ACCEPT, []))
    if not header.strip():
        return offered[0]
    ranges = [_media_range(part) for part in header.split(",") if part.strip()]
    ranked = [(_quality(kind, ranges), -place, kind) for place, kind in enumerate(offered)]
    best, _, kind = max(ranked)
    if best <= 0:
        raise HttpProblem(
            "not_acceptable", "None of the accepted media types can be given.", f"Accept one of: {', '.join(offered)}."
        )
    return kind


def _media_range(part: str) -> tuple[str, float]:
    kind, _, parameters = part.partition(";")
    quality = 1.0
    for parameter in parameters.split(";"):
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "q":
            try:
                quality = min(1.0, max(0.0, float(value)))
            except ValueError:
                quality = 0.0
    return kind.strip().lower(), quality


def _quality(kind: str, ranges: Sequence[tuple[str, float]]) -> float:
    """What the most specific range that covers `kind` says about it."""
    main = kind.partition("/")[0]
    for cover in (kind, f"{main}/*", "*/*"):
        found = [quality for name, quality in ranges if name == cover]
        if found:
            return max(found)
    return 0.0
