"""The connection of a client: it is opened, mended and closed here, and everything said in one slice leaves together.

`conversation.py` knows what to say; here it meets the event loop and the socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl as ssl_module
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import urlsplit

from mainspring.client.consumer import CHECK_MS, PATIENCE_MS, Stall
from mainspring.client.conversation import Conversation
from mainspring.client.errors import CannotConnect, ClientError, Closed
from mainspring.client.http import NodeHttp
from mainspring.client.websocket import NotLetIn, RandomBytes, Socket, open_socket
from mainspring.codec import Codec
from mainspring.durations import Duration, duration_ms, seconds
from mainspring.loop import BackgroundTasks, Clock, time_limit, wake
from mainspring.retries import Backoff
from mainspring.telemetry import TRACEPARENT, OpenSpan, Recorder, configured_provider, messaging

if TYPE_CHECKING:
    from mainspring.client.subscription import Event

logger: logging.Logger = logging.getLogger("mainspring.client")

# Pauses between attempts to connect. They are shortened at random, so that a thousand clients of a node that restarts
# do not come back in the same instant.
RECONNECT: Final = Backoff(500, 10_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a client can be told."""

    connect_timeout: Duration = 10.0  # for the first connection, when entering; 0: do not wait for it
    drain_timeout: Duration = 10.0  # for `close` to get everything confirmed
    max_queued: int = 10_000  # events published and not confirmed; `publish` waits for room beyond
    max_queued_bytes: int = 64 << 20
    max_event_bytes: int = 1 << 20  # the node's default limit of a frame
    dedupe_window: Duration = 600.0  # how long the node remembers publish ids (its default)
    ping: Duration = 15.0  # a node that says nothing for twice as long is gone
    unix_socket: str = ""  # the path of a socket through which the node is reached, in place of host and port
    run_check: Duration = 1.0  # the longest time between two looks at a run whose outcome is awaited
    stall_check: Duration = CHECK_MS / 1000  # 0: no alarm
    stall_patience: Duration = PATIENCE_MS / 1000
    on_stall: Callable[[Stall], object] | None = None  # by default a warning is logged
    on_state: Callable[[str], object] | None = None  # "connecting", "open", "waiting", "closed"
    ssl: ssl_module.SSLContext | None = None
    headers: tuple[tuple[str, str], ...] = ()
    tracer_provider: Any = None
    codec: Codec | None = None  # encodes what is sent and decodes what comes: that of the program it talks to


class ClientConnection:
    """One client's connection, over all its reconnects. Use it with `async with`, or `open` and `close` it.

    Without either it is opened when it is first needed.
    """

    event_loop: Any = None  # the asyncio loop it was opened on

    def __init__(
        self,
        urls: Sequence[str],
        token: str | None,
        options: Options,
        *,
        clock: Clock,
        random: Callable[[], float],
        new_id: Callable[[], str],
        random_bytes: RandomBytes,
    ) -> None:
        self._urls = urls
        self._turn = int(random() * len(urls))  # many clients spread over the nodes
        self.options = options
        self.new_id = new_id
        self.random = random
        self.clock = clock
        self.conversation: Conversation = Conversation(
            clock.now_ms, self._plan, dedupe_window_ms=duration_ms(options.dedupe_window)
        )
        self.telemetry: Telemetry | None = find_telemetry(options.tracer_provider, self._server)
        self.http: NodeHttp = self._new_http(token)
        self._token = token
        self._random_bytes = random_bytes
        self._state = "new"
        self.was_open: bool = False  # once, at least
        self._opened = asyncio.Event()
        self._lost = asyncio.Event()
        self._pauses = RECONNECT.series(random)
        self._socket: Socket | None = None
        self._planned = False
        self._retry: asyncio.TimerHandle | None = None
        self._room: deque[asyncio.Future[None]] = deque()
        self._relief: list[asyncio.Future[None]] = []
        self._idle: list[asyncio.Future[None]] = []
        self._closing: list[Callable[[], Awaitable[None]]] = []
        self._tasks = BackgroundTasks(logger, "client")
        self.ended: ClientError | None = None
        self._last_error: ClientError | None = None

    def _new_http(self, token: str | None) -> NodeHttp:
        options = self.options
        return NodeHttp(self.url, token, options.ssl, unix_socket=options.unix_socket, ping_s=seconds(options.ping))

    # -- life

    async def open(self) -> None:
        """Wait for the first connection. Raises CannotConnect when there is none within `connect_timeout`.

        Then the client goes on trying, until it is closed; this may be called again. What needs the connection calls
        it by itself.
        """
        self._begin()
        if seconds(self.options.connect_timeout):
            await self._first_connection()

    def _begin(self) -> None:
        if self._state == "new":
            self._state = "connecting"
            self.event_loop = asyncio.get_running_loop()
            self.run(self._run(), "connection")

    async def __aenter__(self) -> Self:
        try:
            await self.open()
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def url(self) -> str:
        """The node it talks to, or tries to."""
        return self._urls[self._turn]

    def _server(self) -> tuple[str, int]:
        if self.options.unix_socket:
            return self.options.unix_socket, 0
        address = urlsplit(self.url)
        return address.hostname or "", address.port or (443 if address.scheme in ("wss", "https") else 80)

    @property
    def connected(self) -> bool:
        """Whether the connection is open now."""
        return self._state == "open"

    async def _first_connection(self) -> None:
        try:
            async with time_limit(seconds(self.options.connect_timeout)):
                await self._opened.wait()
        except TimeoutError:
            raise self._last_error or CannotConnect(
                f"cannot reach a node at {', '.join(self._urls)}", remedy="is it running? `mainspring serve`"
            ) from None
        if self.ended is not None:
            raise self.ended

    async def close(self) -> None:
        """Wait until everything published is confirmed (at most `drain_timeout`), leave every group, disconnect.

        What could not be confirmed by then fails with Closed. Idempotent.
        """
        if self.ended is None and self._state not in ("new", "closed"):
            for closing in reversed(self._closing):
                await closing()
            try:
                async with time_limit(seconds(self.options.drain_timeout)):
                    await self.flush()
                    await self._leave()
            except TimeoutError:
                if self.conversation.publishing.count and self.options.drain_timeout:  # who does not wait, knows
                    logger.warning("closed with %d events not confirmed", self.conversation.publishing.count)
        await self._stop()

    async def flush(self) -> None:
        """Wait until everything published so far is decided."""
        while self.conversation.publishing.count:
            waiter = self.event_loop.create_future()
            self._idle.append(waiter)
            await waiter

    async def _leave(self) -> None:
        """What to do on the open connection before it is closed."""

    def run(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """A background task that ends with the client."""
        return self._tasks.start(work, name)

    def on_close(self, closing: Callable[[], Awaitable[None]]) -> None:
        """Call this when the client is closed, while it still works; the last one first."""
        self._closing.append(closing)

    async def _stop(self) -> None:
        self._become("closed")
        socket, self._socket = self._socket, None
        if socket is not None:
            frames = self.conversation.take()
            if frames:
                socket.send(frames)
            await socket.close()
        await self._tasks.cancel()
        self._end(Closed("the client is closed", remedy="open a new one"))
        await self.http.close()

    def _end(self, error: ClientError) -> None:
        if self.ended is None:
            self.ended = error
            self._opened.set()
            if self._retry is not None:
                self._retry.cancel()
            self.conversation.end(error)
            for waiter in (*self._room, *self._relief, *self._idle):
                wake(waiter)

    # -- the connection

    async def _run(self) -> None:
        """Connect, stay, connect again, until closed."""
        while self._state != "closed":
            self._become("connecting")
            try:
                socket = await open_socket(
                    self.url,
                    token=self._token,
                    random_bytes=self._random_bytes,
                    headers=self.options.headers,
                    ssl=self.options.ssl,
                    unix_socket=self.options.unix_socket,
                )
            except NotLetIn as error:
                self._state = "closed"
                self._end(error)
                return
            except CannotConnect as error:
                self._last_error = error
            else:
                await self._stay(socket)
            self._turn = (self._turn + 1) % len(self._urls)
            self.http.use(self.url)
            self._become("waiting")
            await asyncio.sleep(self._pauses.failed() / 1000)

    async def _stay(self, socket: Socket) -> None:
        self._lost.clear()
        socket.on_texts = self._take
        socket.on_writable = self._writable
        socket.on_lost = lambda _: self._lost.set()
        self._socket = socket
        self._pauses.succeeded()
        self._become("open")
        self.was_open = True
        self.conversation.opened()
        self._opened.set()
        self._plan()
        try:
            seen, ping_s = -1, seconds(self.options.ping)
            while not self._lost.is_set():
                with contextlib.suppress(TimeoutError):
                    async with time_limit(ping_s):
                        await self._lost.wait()
                        break
                if socket.received == seen:
                    logger.warning("the node at %s says nothing; connecting anew", self.url)
                    socket.abort()
                    await self.http.close()
                    break
                seen = socket.received
                socket.ping()
        finally:
            if self._socket is socket:
                self._socket = None
                socket.abort()
            self.conversation.lost()

    def _become(self, state: str) -> None:
        """Once closed, it stays closed."""
        self._state = state if self._state != "closed" else "closed"
        if self.options.on_state is not None:
            self.options.on_state(self._state)

    def _take(self, texts: list[bytes]) -> None:
        received = self.conversation.received
        for text in texts:
            received(text)
        publishing = self.conversation.publishing
        while self._room and self._has_room():
            wake(self._room.popleft())
        if self._idle and not publishing.count:
            idle, self._idle = self._idle, []
            for waiter in idle:
                wake(waiter)
        due_ms = self.conversation.wake_ms()
        if due_ms and self._retry is None:
            self._retry = self.event_loop.call_later(max(0, due_ms - self.clock.now_ms()) / 1000, self._try_again)

    def _try_again(self) -> None:
        self._retry = None
        self._plan()
        due_ms = self.conversation.wake_ms()
        if due_ms > self.clock.now_ms():
            self._retry = self.event_loop.call_later((due_ms - self.clock.now_ms()) / 1000, self._try_again)

    def _plan(self) -> None:
        """Send at the end of this slice."""
        if not self._planned:
            self._planned = True
            self.event_loop.call_soon(self._send)

    def _send(self) -> None:
        socket = self._socket
        if socket is not None:
            if socket.writable:
                self.conversation.flush()
            frames = self.conversation.take()
            if frames:
                socket.send(frames)
        self._planned = False

    @property
    def congested(self) -> bool:
        """Whether the node reads slower than this client writes."""
        return self._socket is not None and not self._socket.writable

    async def relieved(self) -> None:
        """Wait until it reads again."""
        while self.congested and self.ended is None:
            waiter = self.event_loop.create_future()
            self._relief.append(waiter)
            await waiter

    def _writable(self) -> None:
        relief, self._relief = self._relief, []
        for waiter in relief:
            wake(waiter)
        self._plan()

    def _has_room(self) -> bool:
        publishing, options = self.conversation.publishing, self.options
        return publishing.count < options.max_queued and publishing.bytes < options.max_queued_bytes

    async def _wait_for_room(self) -> None:
        while not self._has_room() and self.ended is None:
            waiter = self.event_loop.create_future()
            self._room.append(waiter)
            await waiter


# --- spans, by the semantic conventions for messaging. `publish <topic>` of kind PRODUCER lasts until the event is
# durable, `process <topic>` of kind CONSUMER from delivery to acknowledgement, in the trace that the event's headers
# carry. Without an SDK there is nothing to record: there is no `Telemetry`, and a client only compares with None.


def find_telemetry(provider: Any, server: Callable[[], tuple[str, int]]) -> Telemetry | None:
    """Telemetry with the given tracer provider or the process's; None where no SDK would record anything."""
    provider = configured_provider() if provider is None else provider
    return None if provider is None else Telemetry(provider, server)


class Telemetry:
    """Makes spans with one tracer. `server` gives the address and port of the node, 0 for a socket's path."""

    def __init__(self, provider: Any, server: Callable[[], tuple[str, int]]) -> None:
        self._recorder = Recorder(provider, "mainspring.client")
        self._server = server

    def _attributes(self, operation: str, type: str, destination: str, **more: Any) -> dict[str, Any]:
        address, port = self._server()
        return messaging(operation, type, destination, address=address, port=port or None, **more)

    @contextlib.contextmanager
    def publishing(
        self, topic: str, id: str, key: str | None, headers: dict[str, str] | None
    ) -> Iterator[tuple[dict[str, str], OpenSpan]]:
        """Around a publish: gives the headers with the context in them, and the span. A batch has no `id`."""
        attributes = self._attributes("publish", "send", topic, message_id=id or None, key=key)
        span = self._recorder.begin(f"publish {topic}", "PRODUCER", attributes)
        given = {name: text for name, text in (headers or {}).items() if name != TRACEPARENT}
        entered = span.enter()
        try:
            yield span.carried(given), span
        except BaseException as error:
            span.end(error)
            raise
        finally:
            span.leave(entered)
            span.end()

    @contextlib.contextmanager
    def asking(self, kind: str, type: str) -> Iterator[dict[str, str]]:
        """Around a command or a query: gives the headers that carry its context to the node."""
        span = self._recorder.begin(f"{kind} {type}", "CLIENT", self._attributes(kind, "send", type))
        entered = span.enter()
        try:
            yield span.carried(None)
        except BaseException as error:
            span.end(error)
            raise
        finally:
            span.leave(entered)
            span.end()

    def delivered(self, event: Event[Any]) -> None:
        """A span of its own for an event that goes to the program; it ends when the event is settled."""
        attributes = self._attributes(
            "process",
            "process",
            event.topic,
            group=event.group,
            message_id=event.id,
            partition=str(event.partition),
            offset=event.offset,
            attempt=event.attempt,
        )
        links = [event.headers[TRACEPARENT]] if TRACEPARENT in event.headers else []
        event.span = self._recorder.begin(
            f"process {event.topic}", "CONSUMER", attributes, parent=event.headers, links=links
        )
