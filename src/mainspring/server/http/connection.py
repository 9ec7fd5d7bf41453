"""One HTTP connection: what aiohttp does, except where a sender half-closes or sends what is no HTTP.

A sender that shuts down its side after the request (`printf ... | nc -N`) still reads: what it asked is answered, then
the connection is closed. aiohttp takes the end of the input for the end of the connection. A sender that goes away
while an answer is being written looks the same; there the connection is closed at once.

Anybody who reaches the port can send nonsense, and should not be able to fill the log or to place something there. So
for all of them together there is one short line in a while, which says the kind of the mistake and nothing of what was
sent. The answer is a problem document, as everywhere.

The frames of a WebSocket client are masked, or the connection ends with code 1002, as RFC 6455 demands. aiohttp takes
them either way, so the head of each frame is looked at on its way to aiohttp's reader.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from aiohttp import hdrs, web
from aiohttp.web_request import BaseRequest

from mainspring.server.http.access import SERVER
from mainspring.server.http.problem import CODE_OF_STATUS, problem_response

logger: logging.Logger = logging.getLogger("mainspring.wire.http")

QUIET_S: Final = 10.0  # between two lines about requests that could not be read

_NO_FRAME: Final = b"\xff\x80"  # bits that are reserved, and a kind that there is not


_FAILED: Final = "The node failed to answer this request."
_UNREADABLE: Final[dict[str, tuple[str, str]]] = {  # by the kind of the mistake: what it is, and what to do
    "BadHttpMethod": ("The request line does not begin with a method of HTTP.", "Speak HTTP/1.1 on this port."),
    "BadStatusLine": ("The request line is not one of HTTP.", "Write METHOD PATH HTTP/1.1."),
    "InvalidURLError": ("The request line has no URL that can be read.", "Percent-encode what is not a letter."),
    "TransferEncodingError": ("The body is not chunked as its head says.", "Let an HTTP library write the chunks."),
    "ContentLengthError": ("The body is shorter than its head says.", "Send as many bytes as Content-Length says."),
}
_NOT_HTTP: Final = ("The head or the body of the request is not as HTTP demands.", "Let an HTTP library write it.")


def _unreadable(error: BaseException | None) -> web.Response:
    kind = type(error).__name__
    if kind == "LineTooLong":
        text, remedy = "The request line or a header is too long.", "Send long texts in the body."
        return problem_response(431, CODE_OF_STATUS[431], text, remedy)
    return problem_response(400, CODE_OF_STATUS[400], *_UNREADABLE.get(kind, _NOT_HTTP))


class _Complaints:
    """Lines about what clients sent, as many as a log can bear."""

    def __init__(self) -> None:
        self._next_s = 0.0
        self._left_out = 0

    def add(self, now_s: float, what: str) -> None:
        if now_s < self._next_s:
            self._left_out += 1
            return
        more = f"; {self._left_out} more since the last such line" if self._left_out else ""
        self._next_s, self._left_out = now_s + QUIET_S, 0
        logger.warning("a request could not be read or answered: %s%s", what, more)


class MaskedFrames:
    """Stands before aiohttp's reader of WebSocket frames, which reads no frame that is not masked.

    In its place the reader gets one that no protocol knows, so that it ends the connection as for any other mistake.
    The head of a frame that came only in part waits here for the rest.
    """

    __slots__ = ("_head", "_next", "_reader")

    def __init__(self, reader: Any) -> None:
        self._reader = reader
        self._head = b""
        self._next = 0  # where the next frame begins in the data to come

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        """Pass on what arrived."""
        if self._head:
            data, self._head = self._head + data, b""
        begins, size = self._next, len(data)
        while begins + 1 < size:
            second = data[begins + 1]
            if 128 <= second < 254:
                begins += second - 122
            elif second == 254 and begins + 4 <= size:
                begins += 8 + (data[begins + 2] << 8 | data[begins + 3])
            elif second == 255 and begins + 10 <= size:
                begins += 14 + int.from_bytes(data[begins + 2 : begins + 10], "big")
            elif second < 128:
                data = data[:begins] + _NO_FRAME
                begins = size = len(data)
            else:
                break
        if begins < size:
            data, self._head = data[:begins], data[begins:]
            size = begins
        self._next = begins - size
        fed: tuple[bool, bytes] = self._reader.feed_data(data)
        return fed

    def feed_eof(self) -> None:
        """Nothing more comes."""
        self._reader.feed_eof()


class HttpConnection(web.RequestHandler):
    """A connection of a client."""

    __slots__ = ("_complaints", "_half_closed")

    def __init__(self, server: HttpServer, complaints: _Complaints, **settings: Any) -> None:
        super().__init__(server, **settings)
        self._complaints = complaints
        self._half_closed = False

    def set_parser(self, parser: Any, data_received_cb: Callable[[], None] | None = None) -> None:
        """The connection speaks WebSocket from now on."""
        frames = MaskedFrames(parser)
        super().set_parser(frames, data_received_cb)  # type: ignore[arg-type]
        if self._half_closed:
            frames.feed_eof()

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """The peer sends nothing more. True: it still gets an answer."""
        if self._is_idle or self._payload_parser is not None or self._task_handler is None:
            return None
        if self.transport is None or self.transport.get_extra_info("sslcontext") is not None:
            return None  # TLS cannot be closed halfway
        current = self._current_request
        if current is not None and current.writer.output_size:
            return None
        self._half_closed = True
        self._end_incomplete()
        return True

    @property
    def _is_idle(self) -> bool:
        return self._waiter is not None and not self._waiter.done()

    def _end_incomplete(self) -> None:
        """What is missing of a request can no longer come."""
        current = self._current_request
        if current is not None and not current.content.is_eof():
            self.force_close()
        elif current is None and not self._is_idle and not self._force_close and self._task_handler is not None:
            self._loop.call_soon(self._end_incomplete)  # the next request is about to begin

    async def finish_response(
        self, request: BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        if isinstance(resp, web.HTTPExpectationFailed):  # the only refusal that no middleware sees
            code, text = CODE_OF_STATUS[resp.status], "The node does not know what the header Expect asks for."
            resp = problem_response(resp.status, code, text, "Leave it out, or send Expect: 100-continue.")
        finished = await super().finish_response(request, resp, start_time)
        if self._half_closed:
            if self._messages:
                self._loop.call_soon(self._end_incomplete)
            else:
                self.close()
        return finished

    def handle_error(
        self,
        request: BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if not isinstance(exc, ConnectionError | TimeoutError):
            self.log_exception(exc_info=exc)
        if request.writer.output_size > 0:
            raise ConnectionError("an answer is on its way already")
        response = _unreadable(exc) if status < 500 else problem_response(status, "internal", _FAILED)
        response.headers[hdrs.SERVER] = SERVER
        response.force_close()
        return response

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """Without the text of the error: it may hold what was sent, and so a token."""
        error = kw.get("exc_info")
        self._complaints.add(
            self._loop.time(), type(error).__name__ if isinstance(error, BaseException) else "an error"
        )


class HttpServer(web.Server):
    """Makes the connections."""

    complaints: _Complaints

    def __call__(self) -> web.RequestHandler:
        return HttpConnection(self, self.complaints, loop=self._loop, **self._kwargs)


class HttpRunner(web.AppRunner):
    """Runs an application on such connections."""

    async def _make_server(self) -> web.Server:
        server = await super()._make_server()
        server.__class__ = HttpServer
        assert isinstance(server, HttpServer)
        server.complaints = _Complaints()
        return server
