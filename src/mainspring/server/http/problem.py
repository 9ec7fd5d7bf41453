"""Every HTTP error is one problem document (RFC 9457), made in one place.

A handler raises; it never builds an error answer itself. What it raises is one of three things: a `MainspringError`
with a code (the bus's own refusals, also those a WebSocket client gets), an `HttpProblem` where only HTTP can be
wrong (media type, query, method), or an accident. The middleware here turns each into `application/problem+json` with
the members of the RFC plus the two that every Mainspring client reads, `code` and `message`, and the remedy where
there is one.

The status follows from the code, so that one refusal has one meaning on both wires. An accident is logged with its
traceback and answered without it: the text of an exception can hold somebody's payload.

Once the first byte of an answer is on its way, the status cannot change any more. Streams therefore end such an
answer by cutting the connection (`cut_short`): a reader that sees the end of the body may rely on having seen all of
it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any, Final

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from mainspring.bus import BusError, ExpectationFailed, Forbidden
from mainspring.errors import STATUS_OF_CODE, MainspringError, without_tokens

logger: logging.Logger = logging.getLogger("mainspring.wire.http")

PROBLEM_TYPE: Final = "application/problem+json"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

CODE_OF_STATUS: Final[dict[int, str]] = {
    400: "bad_request",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    406: "not_acceptable",
    413: "too_large",
    415: "unsupported_media_type",
    417: "expectation_failed",
    429: "rate_limited",
    431: "too_large",
    503: "unavailable",
}

RETRY_AFTER_S: Final = 1  # for 429 and 503 without a better figure: the shortest wait the header can say


class HttpProblem(MainspringError):
    """Something only an HTTP request can get wrong. `headers` are further ones of the answer."""

    def __init__(self, code: str, message: str, remedy: str = "", *, headers: dict[str, str] | None = None) -> None:
        super().__init__(message, remedy=remedy, code=code)
        self.headers: dict[str, str] = headers or {}


class ProblemDocument(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of every error answer."""

    type: str
    title: str
    status: int
    code: str
    message: str
    detail: str
    remedy: str = ""
    path: str | msgspec.UnsetType = msgspec.UNSET  # where a payload does not fit its schema, as a JSON Pointer
    version: int | msgspec.UnsetType = msgspec.UNSET  # of that schema
    event: int | msgspec.UnsetType = msgspec.UNSET  # which event of a batch, from 0
    retry_after_ms: int | msgspec.UnsetType = msgspec.UNSET  # how long to wait before trying again
    differences: list[str] | msgspec.UnsetType = msgspec.UNSET  # why a schema is not compatible


def bad_query(message: str, remedy: str = "") -> HttpProblem:
    """A query parameter that cannot mean anything."""
    return HttpProblem("bad_query", message, remedy)


def status_of(error: MainspringError) -> int:
    """The HTTP status of an error; an unlisted code is the server's fault, so it is not hidden as the client's."""
    if isinstance(error, ExpectationFailed):
        return 409  # on the WebSocket a matter of offsets; here, of two writers
    return STATUS_OF_CODE.get(error.code, 500)


def problem_response(
    status: int,
    code: str,
    message: str,
    remedy: str = "",
    headers: dict[str, str] | None = None,
    details: Mapping[str, Any] | None = None,
    kind: type[ProblemDocument] = ProblemDocument,
) -> web.Response:
    """One problem document. `code` also names its type, so that two kinds of 400 can be told apart.

    `details` are further members, which `kind` has.
    """
    message, remedy, sent = without_tokens(message), without_tokens(remedy), dict(headers or {})
    if status in (429, 503):
        sent.setdefault("Retry-After", str(RETRY_AFTER_S))
    document = kind(
        type=f"urn:mainspring:problem:{code}",
        title=HTTPStatus(status).phrase,
        status=status,
        code=code,
        message=message,
        detail=f"{message.rstrip('.')}: {remedy}" if remedy else message,
        remedy=remedy,
        **(details or {}),
    )
    return web.Response(status=status, body=msgspec.json.encode(document), content_type=PROBLEM_TYPE, headers=sent)


def _response_of(error: MainspringError) -> web.Response:
    status = status_of(error)
    headers = dict(error.headers) if isinstance(error, HttpProblem) else {}
    wait_ms = getattr(error, "retry_after_ms", None)
    if isinstance(wait_ms, int):
        headers["Retry-After"] = str(max(1, -(-wait_ms // 1000)))
    if status == 500:
        logger.error("an HTTP request failed: %s", error, exc_info=error)
    details = error.details if isinstance(error, BusError) else None
    return problem_response(status, error.code, error.message, error.remedy, headers, details)


def _response_of_aiohttp(request: web.Request, error: web.HTTPException) -> web.StreamResponse:
    """aiohttp's own refusals (no route, wrong method, too large) in our shape; redirects and the like pass."""
    if error.status < 400:
        return error
    code = CODE_OF_STATUS.get(error.status, "bad_request" if error.status < 500 else "internal")
    if isinstance(error, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted({*error.allowed_methods, "OPTIONS"}))
        message = f"{request.path} does not know the method {request.method}."
        return problem_response(405, code, message, f"Use one of: {allowed}.", {"Allow": allowed})
    if error.status == 404:
        message = f"There is nothing at {request.path}."
        return problem_response(404, code, message, "GET /openapi.json lists what there is.")
    return problem_response(error.status, code, error.reason)


@web.middleware
async def problems(request: web.Request, handler: Handler) -> web.StreamResponse:
    """The outermost middleware: whatever goes wrong further in leaves as a problem document."""
    try:
        return await handler(request)
    except MainspringError as error:
        return _response_of(error)
    except web.HTTPException as error:
        return _response_of_aiohttp(request, error)
    except (ConnectionError, TimeoutError):
        raise  # the peer is gone: there is nobody to tell
    except (HttpProcessingError, web.RequestPayloadError):
        text = "The request cannot be read as HTTP."
        return problem_response(400, "bad_request", text, "Send it as its headers say.")
    except Exception:
        logger.exception("an HTTP request failed by accident: %s %s", request.method, request.path)
        text = "The node failed to answer this request."
        return problem_response(500, "internal", text, "The node's log says more; report it.")


def cut_short(request: web.Request, response: web.StreamResponse, error: BaseException) -> web.StreamResponse:
    """End an answer that has begun and cannot be completed, so that no reader takes it for complete."""
    if not isinstance(error, ConnectionError | Forbidden):  # a right that was taken away meanwhile is no fault
        logger.error("an HTTP answer was cut short: %s", error, exc_info=error)
    if request.transport is not None:
        request.transport.abort()
    return response
