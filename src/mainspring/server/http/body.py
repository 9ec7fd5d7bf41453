"""Taking a request's body in: bounded, of a known type, never larger in memory than the limit.

aiohttp's own limit belongs to the application as a whole. Here each body is counted while it arrives, after any
decompression, so that neither a wrong Content-Length nor a small archive of a large text gets past the limit.
"""

from __future__ import annotations

from typing import Final

from aiohttp import hdrs, web

from mainspring.server.http.problem import HttpProblem
from mainspring.server.http.table import JSON

_OCTETS: Final = "application/octet-stream"  # some clients say so of no body at all
_KNOWN_ENCODINGS: Final = frozenset({"", "identity", "gzip", "deflate"})


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
                f"The charset {value.strip()[:50]!r} is not understood.",
                status=415,
                code="unsupported_media_type",
                remedy="Send UTF-8.",
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
        f"A body of type {kind[:100]!r} is not understood here.",
        status=415,
        code="unsupported_media_type",
        remedy=f"Set Content-Type to one of: {', '.join(known)}.",
        headers={"Accept-Post": ", ".join(known)},
    )


async def read_body(request: web.Request, limit: int) -> bytes:
    """The whole body. Raises 413 as soon as it is known to be over `limit` bytes."""
    encoding = request.headers.get(hdrs.CONTENT_ENCODING, "").strip().lower()
    if encoding not in _KNOWN_ENCODINGS:
        raise HttpProblem(
            f"The encoding {encoding[:50]!r} is not understood.",
            status=415,
            code="unsupported_media_type",
            remedy="Send the body as it is, or compressed with gzip or deflate.",
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
            "The body ends early or is not encoded as its headers say.",
            status=400,
            code="bad_json",
            remedy="Send the body completely, encoded as Content-Encoding says.",
        ) from None
    return bytes(body)


def _too_large(limit: int) -> HttpProblem:
    return HttpProblem(
        f"The body is larger than {limit} bytes.",
        status=413,
        code="too_large",
        remedy="Send smaller events, or fewer in one request.",
    )
