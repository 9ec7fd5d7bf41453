"""Context: what a handler may do besides returning.

Every message that is sent through a context is caused by the message being handled: causation and correlation are set
once, and no handler can forget them. The context talks to a port, because the same class serves a handler on the
node's own loop and one in another process. A plain function gets a `BlockingContext`: what an `async def` awaits
(`send`, `sleep`, `publish`) gives its result there without `await`.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from mainspring.codec import Encoding
from mainspring.durations import Duration, duration_ms, seconds, timeout_ms
from mainspring.errors import fail_from
from mainspring.kernel.blobs import MAX_BLOB_BYTES, BlobPointer, read_blob
from mainspring.kernel.errors import BadOutput
from mainspring.loop import HandlerThreads, with_blocking_verbs
from mainspring.message import Message, NotEncodable, Retry, encode_data, is_type


class Port(Protocol):
    """The kernel as a handler's context sees it."""

    def emit(self, cause: Message, type: str, raw: msgspec.Raw) -> None: ...

    def request(
        self,
        cause: Message,
        kind: str,
        type: str,
        raw: msgspec.Raw,
        timeout_ms: float | None,
        retry: Retry | None = None,
    ) -> Awaitable[Message]: ...

    def after(
        self, cause: Message, delay_ms: float, kind: str, type: str, raw: msgspec.Raw, retry: Retry | None = None
    ) -> str: ...

    def sleep(self, ms: float) -> Awaitable[None]: ...

    def publish(self, cause: Message, topic: str, payload: Any, options: dict[str, Any]) -> Awaitable[Any]: ...


class Context(msgspec.Struct, eq=False):
    """The second argument of every handler. Good for the time the handler runs."""

    _port: Port
    message: Message
    origin: Any = None  # the connection asked from, for capabilities that serve connections

    def emit(self, type: str, data: Any = None) -> None:
        """Send an event: something happened. Every subscriber gets it; there is no answer."""
        self._port.emit(self.message, _checked(type), _encoded(data, type))

    async def send(
        self,
        kind: str,
        type: str,
        data: Any = None,
        *,
        timeout: Duration | None = None,
        retry: Retry | None = None,
    ) -> Any:
        """Ask another capability and wait; gives the reply's data, raises `Fail` with the error's code and text.

        Without data the message has `{}`, as from a client. With `retry` it is sent again when it fails with an error
        that may pass (a crash, a timeout, 429 or from 500 on); the one that raises is the last.
        """
        if kind not in ("command", "query"):
            raise ValueError(f"send takes a command or a query, not {kind!r}")
        limit_ms = None if timeout is None else timeout_ms(timeout)
        raw = _encoded({} if data is None else data, type)
        answer = await self._port.request(self.message, kind, _checked(type), raw, limit_ms, retry)
        if answer.kind == "reply":
            return answer.data
        raise fail_from(answer.data, answer.type)

    def after(self, delay: Duration, kind: str, type: str, data: Any = None, *, retry: Retry | None = None) -> str:
        """Send a message later; gives the timer's id, which `Timer.Cancel` takes. Its answer is dropped.

        With `retry` it is sent again when it fails with an error that may pass.
        """
        if kind not in ("command", "query", "event"):
            raise ValueError(f"after takes a command, a query or an event, not {kind!r}")
        raw = _encoded(data, type)
        return self._port.after(self.message, seconds(delay) * 1_000, kind, _checked(type), raw, retry)

    async def sleep(self, span: Duration) -> None:
        """Wait on the loop's own clock, so that a test under virtual time does not wait at all."""
        await self._port.sleep(seconds(span) * 1_000)

    async def read_blob(self, pointer: BlobPointer, *, max_bytes: int = MAX_BLOB_BYTES) -> bytes:
        """What a pointer points to, read in a thread. Raises `BlobUnavailable`, a `Fail` with 404 or 413."""
        return await asyncio.to_thread(read_blob, pointer, max_bytes=max_bytes)

    async def publish(
        self,
        topic: str,
        payload: Any,
        *,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        id: str | None = None,
        delay: Duration = 0,
        at: datetime | None = None,
        ttl: Duration = 0,
        expect: int | None = None,
    ) -> Any:
        """Append an event to a topic of the bus.

        `key` keeps events in order; `id` makes a repetition harmless; `delay` or `at` hold it back; when `ttl` has
        passed since it was stored, groups that have not handled it do not get it any more; `expect` stores it only
        directly behind that offset of its partition.
        """
        given = {"key": key, "headers": headers, "id": id, "expect": expect}
        options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        if delay:
            options["delay_ms"] = duration_ms(delay)
        if at is not None:
            options["not_before"] = round(at.timestamp() * 1_000)
        if ttl:
            options["ttl"] = seconds(ttl)
        return await self._port.publish(self.message, topic, payload, options)


if TYPE_CHECKING:

    class BlockingContext(Context):
        """What a plain function is given: its verbs wait in the function's thread."""

        def send(self, *args: Any, **options: Any) -> Any: ...
        def sleep(self, span: Duration) -> Any: ...
        def read_blob(self, pointer: BlobPointer, *, max_bytes: int = MAX_BLOB_BYTES) -> Any: ...
        def publish(self, topic: str, payload: Any, **options: Any) -> Any: ...

else:
    BlockingContext = with_blocking_verbs(Context)


def in_thread(function: Callable[[Any, Any], Any], threads: HandlerThreads) -> Callable[[Any, Context], Any]:
    """The function as an actor calls it: it runs in a thread, and its verbs block there."""

    @functools.wraps(function)
    def call(value: Any, ctx: Context) -> Any:
        return threads.call(function, value, BlockingContext(ctx._port, ctx.message, ctx.origin))

    return call


class EncodingPort:
    """A port for a program with a codec: what its contexts send is encoded, what they get is decoded."""

    def __init__(self, port: Port, encoding: Encoding) -> None:
        self._port = port
        self._encoding = encoding
        self.sleep: Callable[[float], Awaitable[None]] = port.sleep
        self.publish: Callable[..., Awaitable[Any]] = port.publish

    def emit(self, cause: Message, type: str, raw: msgspec.Raw) -> None:
        self._port.emit(cause, type, self._encoding.seal_data(type, raw))

    async def request(
        self,
        cause: Message,
        kind: str,
        type: str,
        raw: msgspec.Raw,
        timeout_ms: float | None,
        retry: Retry | None = None,
    ) -> Message:
        sealed = self._encoding.seal_data(type, raw)
        answer = await self._port.request(cause, kind, type, sealed, timeout_ms, retry)
        return msgspec.structs.replace(answer, raw=msgspec.Raw(self._encoding.open(answer.raw)))

    def after(
        self, cause: Message, delay_ms: float, kind: str, type: str, raw: msgspec.Raw, retry: Retry | None = None
    ) -> str:
        return self._port.after(cause, delay_ms, kind, type, self._encoding.seal_data(type, raw), retry)


def with_encoding(function: Callable[[Any, Any], Any], encoding: Encoding) -> Callable[[Any, Context], Any]:
    """The function with a context whose messages the codec encodes."""

    def call(value: Any, ctx: Context) -> Any:
        return function(value, Context(EncodingPort(ctx._port, encoding), ctx.message, ctx.origin))

    return call


def _checked(type: str) -> str:
    if not isinstance(type, str) or not is_type(type):
        raise BadOutput("a message type is two PascalCase segments, like Stock.Changed")
    return type


def _encoded(data: Any, type: str) -> msgspec.Raw:
    try:
        return encode_data(data)
    except NotEncodable as error:
        raise BadOutput(f"the data of {type} {error.message}") from None
