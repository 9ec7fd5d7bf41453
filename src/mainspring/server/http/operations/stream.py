"""Following a topic over HTTP: server-sent events that a browser's EventSource understands and resumes.

The id of each message is a cursor over all partitions, so a reader that comes back with `Last-Event-ID` misses
nothing and sees nothing twice, whichever partition its last event came from. The first message holds only an id: a
reader that loses its connection before any event arrives still comes back to the place where it began.

Nothing is queued for a reader. The next events are read from the log when the ones before are on their way, so a
reader that stops reading holds one page and one coroutine; after `stalled_reader_ms` it is cut off, and can resume.
No group is created and nothing is acknowledged: who needs that subscribes over the WebSocket.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Final

from aiohttp import hdrs, web

from mainspring.bus.protocol import envelope
from mainspring.log import StoredEvent
from mainspring.server.http.cursor import Cursor
from mainspring.server.http.documents import sse
from mainspring.server.http.face import Face
from mainspring.server.http.operations.read import cursor_within
from mainspring.server.http.problem import cut_short
from mainspring.server.http.query import moment_ms
from mainspring.server.http.table import EVENT_STREAM, Answer, Content, Operation, Parameter

RECONNECT_MS: Final = 1_000  # soon enough to feel live, late enough not to storm a node that restarts
_LAST_EVENT_ID: Final = "Last-Event-ID"


async def stream(face: Face, request: web.Request) -> web.StreamResponse:
    """Events as they are published, from where the request says."""
    topic = request.match_info["topic"]
    agent = await face.identify(request)
    face.bus.topics.get(topic)  # raises UnknownTopic
    await face.bus.check_access(agent, "subscribe", topic)
    cursor = await _begin(face, request, topic)
    response = web.StreamResponse(
        headers={
            hdrs.CONTENT_TYPE: EVENT_STREAM,
            hdrs.CACHE_CONTROL: "no-store",
            "X-Accel-Buffering": "no",  # tells a well-known proxy not to hold messages back
        }
    )
    await response.prepare(request)
    if request.method == hdrs.METH_HEAD:
        return response
    batches = face.bus.follow(topic, after=cursor.seen, agent=agent)
    try:
        await _write(face, response, sse.retry(RECONNECT_MS) + sse.place(str(cursor)))
        await _relay(face, response, batches, cursor)
        await response.write_eof()
    except Exception as error:
        return cut_short(request, response, error)
    finally:
        if isinstance(batches, AsyncGenerator):
            await batches.aclose()
    return response


async def _begin(face: Face, request: web.Request, topic: str) -> Cursor:
    """Where the reader goes on; what it brings back from an earlier connection wins over what its address says."""
    tails = {each.partition: each.tail for each in await face.bus.offsets(topic)}
    brought = request.headers.get(_LAST_EVENT_ID) or request.query.get("cursor")
    if brought:
        return cursor_within(brought, tails)
    start = request.query.get("from", "latest")
    if start == "latest":
        return Cursor(tails)
    if start == "beginning":
        return Cursor(dict.fromkeys(tails, 0))
    from_ms = moment_ms(request, "from") or 0
    return Cursor({each: await face.bus.offset_at(topic, each, from_ms) - 1 for each in tails})


async def _relay(
    face: Face, response: web.StreamResponse, batches: AsyncIterator[list[StoredEvent]], cursor: Cursor
) -> None:
    """Pass on what comes until the bus or the node stops; say something whenever nothing came for a while."""
    coming = asyncio.ensure_future(_next(batches))
    closing = asyncio.ensure_future(face.closing.wait())
    try:
        while True:
            done, _ = await asyncio.wait(
                {coming, closing}, timeout=face.heartbeat_ms / 1000, return_when=asyncio.FIRST_COMPLETED
            )
            if coming in done:
                batch = coming.result()
                if batch is None:
                    return
                await _write(face, response, _messages(batch, cursor))
                coming = asyncio.ensure_future(_next(batches))
            elif closing in done:
                return
            else:
                await _write(face, response, sse.HEARTBEAT)
    finally:
        coming.cancel()
        closing.cancel()
        await asyncio.gather(coming, closing, return_exceptions=True)


async def _next(batches: AsyncIterator[list[StoredEvent]]) -> list[StoredEvent] | None:
    return await anext(batches, None)


def _messages(batch: list[StoredEvent], cursor: Cursor) -> bytes:
    messages: list[bytes] = []
    for event in batch:
        cursor.advance(event.partition, event.offset)
        messages.append(sse.message(envelope(event), id=str(cursor)))
    return b"".join(messages)


async def _write(face: Face, response: web.StreamResponse, text: bytes) -> None:
    """Write, and wait until the reader has taken most of it."""
    async with asyncio.timeout(face.stalled_reader_ms / 1000):
        await response.write(text)


OPERATIONS: Final = (
    Operation(
        "GET",
        "/topics/{topic}/stream",
        "streamEvents",
        "Events as they are published, as server-sent events",
        stream,
        (
            Answer(
                200,
                "An endless stream. The id of each message is a cursor; its data is an envelope.",
                (Content(EVENT_STREAM, {"type": "string"}),),
            ),
        ),
        "events",
        parameters=(
            Parameter("from", "Where to begin: `latest` (default), `beginning`, epoch milliseconds or RFC 3339."),
            Parameter("cursor", "Go on behind this cursor."),
            Parameter(
                _LAST_EVENT_ID,
                "Go on behind this cursor; browsers send it by themselves, and it wins.",
                place="header",
            ),
        ),
        errors=(400, 404),
        lasts=True,
    ),
)
