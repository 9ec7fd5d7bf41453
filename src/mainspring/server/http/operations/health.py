"""Whether the node lives, and whether it takes requests: answered to anybody, for those who restart and route."""

from __future__ import annotations

from typing import Final, Literal

import msgspec
from aiohttp import web

from mainspring.server.health import readiness, stuck_ms
from mainspring.server.http.face import Face, json_response
from mainspring.server.http.problem import problem_response
from mainspring.server.http.table import JSON, Answer, Content, Operation


class Health(msgspec.Struct, frozen=True):
    """The process answers and its loop turns."""

    status: Literal["ok"] = "ok"


class Ready(msgspec.Struct, frozen=True):
    """The node takes requests."""

    status: Literal["ready"] = "ready"


async def show_health(face: Face, _: web.Request) -> web.StreamResponse:
    """Ok while the loop turns: a node that only cannot write now should not be restarted. 503 when it is stuck."""
    waited_ms = stuck_ms(face.observed)
    if not waited_ms:
        return json_response(Health())
    return problem_response(503, "stuck", f"The loop has not turned for {waited_ms} ms.", "Restart the node.")


async def show_readiness(face: Face, _: web.Request) -> web.StreamResponse:
    """200 while requests are taken, else 503 with the reason."""
    found = readiness(face.observed)
    if found.ready:
        return json_response(Ready())
    return problem_response(503, "unavailable", f"The node takes no requests: {found.reason}.", "Try again later.")


OPERATIONS: Final = (
    Operation(
        "GET",
        "/healthz",
        "showHealth",
        "Whether the process answers and its loop turns",
        show_health,
        (Answer(200, "It does.", (Content(JSON, Health),)),),
        "node",
        errors=(503,),
        needs_token=False,
    ),
    Operation(
        "GET",
        "/readyz",
        "showReadiness",
        "Whether the node takes requests",
        show_readiness,
        (Answer(200, "It does.", (Content(JSON, Ready),)),),
        "node",
        errors=(503,),
        needs_token=False,
    ),
)
