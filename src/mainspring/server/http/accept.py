"""Choosing the form of an answer by the request's Accept header (RFC 9110, section 12.5.1)."""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import hdrs, web

from mainspring.server.http.problem import HttpProblem


def choose(request: web.Request, offered: Sequence[str]) -> str:
    """The offered media type the client likes best; the first one when it does not care. Raises 406."""
    header = ",".join(request.headers.getall(hdrs.ACCEPT, []))
    if not header.strip():
        return offered[0]
    ranges = [_parse(part) for part in header.split(",") if part.strip()]
    liked = [(_liking(kind, ranges), -place, kind) for place, kind in enumerate(offered)]
    best, _, kind = max(liked)
    if best <= 0:
        raise HttpProblem(
            "None of the accepted media types can be given.",
            status=406,
            code="not_acceptable",
            remedy=f"Accept one of: {', '.join(offered)}.",
        )
    return kind


def _parse(part: str) -> tuple[str, float]:
    kind, _, parameters = part.partition(";")
    liking = 1.0
    for parameter in parameters.split(";"):
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "q":
            try:
                liking = min(1.0, max(0.0, float(value)))
            except ValueError:
                liking = 0.0
    return kind.strip().lower(), liking


def _liking(kind: str, ranges: Sequence[tuple[str, float]]) -> float:
    """What the most specific range that covers `kind` says about it."""
    main = kind.partition("/")[0]
    for cover in (kind, f"{main}/*", "*/*"):
        found = [liking for name, liking in ranges if name == cover]
        if found:
            return max(found)
    return 0.0
