"""A lean client of the bus protocol, for measuring: raw frames over one socket, batches made by themselves.

`publish` collects what is published in one turn of the event loop into PUBLISH_BATCH frames, as a client library would.
Frames are masked with the key zero, which the protocol allows and which leaves the bytes as they are: masking in Python
would measure Python. Incoming frames are cut out of the stream and handed to `on_frame` as bytes.
"""

from __future__ import annotations

import asyncio
import base64
from collections import deque
from collections.abc import Callable
from typing import cast

from mainspring.loop import wake

MAX_BATCH = 256

Frame = Callable[[bytes], None]


class BusClient(asyncio.Protocol):
    """One connection. `published` counts durable events; wait for them with `drained`."""

    def __init__(self) -> None:
        self.on_frame: Frame = lambda _: None
        self.published = 0
        self._loop = asyncio.get_running_loop()
        self._parts: list[bytes] = []  # of a frame that has not arrived whole
        self._arrived = 0
        self._needed = 0
        self._shaken: asyncio.Future[None] = self._loop.create_future()
        self._transport: asyncio.Transport | None = None
        self._unsent: dict[str, list[bytes]] = {}
        self._planned = False
        self._under_way: deque[int] = deque()
        self._events_under_way = 0
        self._waiter: tuple[int, asyncio.Future[None]] | None = None

    @classmethod
    async def connect(cls, port: int, host: str = "127.0.0.1", path: str = "/") -> BusClient:
        loop = asyncio.get_running_loop()
        _, client = await loop.create_connection(cls, host, port)
        key = base64.b64encode(bytes(16)).decode()
        assert client._transport is not None
        client._transport.write(
            f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        await client._shaken
        return client

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    # -- out

    def send(self, *texts: bytes) -> None:
        """Text frames, in one write."""
        parts = []
        for text in texts:
            size = len(text)
            if size < 126:
                parts.append(bytes((0x81, 0x80 | size, 0, 0, 0, 0)))
            elif size < 65_536:
                parts.append(b"\x81\xfe" + size.to_bytes(2, "big") + bytes(4))
            else:
                parts.append(b"\x81\xff" + size.to_bytes(8, "big") + bytes(4))
            parts.append(text)
        assert self._transport is not None
        self._transport.write(b"".join(parts))

    def publish(self, topic: str, payload: bytes) -> None:
        """`payload` is JSON text. Leaves with everything else that is published in this turn."""
        self._unsent.setdefault(topic, []).append(payload)
        self._events_under_way += 1
        if not self._planned:
            self._planned = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._planned = False
        unsent, self._unsent = self._unsent, {}
        frames = []
        for topic, payloads in unsent.items():
            for start in range(0, len(payloads), MAX_BATCH):
                batch = payloads[start : start + MAX_BATCH]
                self._under_way.append(len(batch))
                events = b'},{"payload":'.join(batch)
                head = b'{"type":"PUBLISH_BATCH","topic":"%b","events":[{"payload":' % topic.encode()
                frames.append(b"%b%b}]}" % (head, events))
        self.send(*frames)

    async def room(self, most: int) -> None:
        """Wait until at most `most` events are under way."""
        if self._events_under_way > most:
            future = self._loop.create_future()
            self._waiter = (most, future)
            await future

    async def drained(self) -> None:
        await self.room(0)

    # -- in

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance

    def connection_lost(self, error: Exception | None) -> None:
        for future in (self._shaken, self._waiter[1] if self._waiter else None):
            if future is not None and not future.done():
                future.set_exception(ConnectionError("the node closed the connection"))

    def data_received(self, data: bytes) -> None:
        self._parts.append(data)
        self._arrived += len(data)
        if self._arrived < self._needed:
            return
        view = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        rest = self._cut(view, 0 if self._shaken.done() else self._shake(view))
        self._parts = [view[rest:]]
        self._arrived = len(view) - rest

    def _shake(self, view: bytes) -> int:
        """Where the first frame begins."""
        end = view.find(b"\r\n\r\n")
        if end < 0:
            return 0
        assert view.startswith(b"HTTP/1.1 101"), view[:200]
        self._shaken.set_result(None)
        return end + 4

    def _cut(self, view: bytes, at: int) -> int:
        """Take every whole frame from `at` on; where the first incomplete one begins."""
        end = len(view)
        self._needed = 0
        while self._shaken.done() and end - at >= 2:
            size, start = view[at + 1], at + 2
            if size == 126:
                size, start = int.from_bytes(view[at + 2 : at + 4], "big"), at + 4
            elif size == 127:
                size, start = int.from_bytes(view[at + 2 : at + 10], "big"), at + 10
            if end < start + size:
                self._needed = start + size - at
                break
            if view[at] == 0x89:  # a ping: answer it
                self._pong(view[start : start + size])
            elif view[at] == 0x81:
                self._take(view[start : start + size])
            at = start + size
        return at

    def _pong(self, data: bytes) -> None:
        assert self._transport is not None
        self._transport.write(bytes((0x8A, 0x80 | len(data), 0, 0, 0, 0)) + data)

    def _take(self, text: bytes) -> None:
        if text.startswith(b'{"type":"PUBLISHED_BATCH"'):
            count = self._under_way.popleft()
            self.published += count
            self._events_under_way -= count
            if self._waiter is not None and self._events_under_way <= self._waiter[0]:
                waiter, self._waiter = self._waiter[1], None
                wake(waiter)  # who waited may have given up
        else:
            self.on_frame(text)
