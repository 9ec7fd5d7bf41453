"""How input reaches a node, and what must come back: an answer to everything that asks for one, and never a 500."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final
from urllib.parse import quote

import aiohttp

from mainspring.guests.protocol import zcl1
from mainspring.server.http import OPERATIONS
from tests.fuzz import inputs
from tests.support.victim import Victim

PATIENCE_S: Final = 60.0
_UNANSWERED: Final = frozenset({"ACK", "NACK", "EXTEND", "FLOW"})
_PRINTABLE: Final = [each for each in inputs.TEXTS if each.isascii() and each.isprintable()]
Send = Callable[[Victim, Sequence[bytes]], Awaitable[None]]


class Wrong(Exception):
    """What came back is not what must come back. `at` is the input's place among those sent, where it is known."""

    def __init__(self, why: str, at: int | None = None) -> None:
        super().__init__(why)
        self.at = at


def _read(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


async def websocket(node: Victim, frames: Sequence[bytes]) -> None:
    """Every frame but those that are not answered when they succeed."""
    wanted = 0
    async with aiohttp.ClientSession() as session, session.ws_connect(node.url, max_msg_size=0) as socket:
        reading = asyncio.create_task(_answers(socket))
        for frame in frames:
            try:
                await socket.send_str(frame.decode())
            except UnicodeDecodeError:
                await socket.send_bytes(frame)
            found = _read(frame)
            wanted += not (isinstance(found, dict) and str(found.get("type")) in _UNANSWERED)
        await socket.send_str('{"type":"PUBLISH","topic":"marks","payload":1,"corr":"the mark"}')
        answered = await reading
    if answered < wanted:
        raise Wrong(f"{wanted} frames want an answer, {answered} got one")


async def _answers(socket: aiohttp.ClientWebSocketResponse) -> int:
    """How many answers came before that of the mark."""
    count = 0
    while True:
        message = await socket.receive(timeout=PATIENCE_S)
        if message.type is not aiohttp.WSMsgType.TEXT:
            raise Wrong(f"the connection ended: {message.type.name} {message.data} {message.extra}")
        answer = json.loads(message.data)
        if answer.get("corr") == "the mark":
            return count
        if answer.get("code") == "internal":
            raise Wrong(f"the node failed: {message.data}")
        count += answer["type"] not in ("MESSAGE", "MESSAGES")


async def ndjson(node: Victim, lines: Sequence[bytes]) -> None:
    """Commands and queries, and every line that is no message."""
    await _send_lines(lines, *await asyncio.open_unix_connection(str(node.kernel_socket), limit=1 << 20))


async def ndjson_tcp(node: Victim, lines: Sequence[bytes]) -> None:
    """The same on the port. It would take a capital letter at the very beginning for HTTP."""
    (address,) = (each for each in node.boot["data"]["adapters"] if each.startswith("tcp://"))
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    await _send_lines([b"", *lines], *await asyncio.open_connection(host, int(port), limit=1 << 20))


async def _send_lines(lines: Sequence[bytes], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    wanted = 0
    for line in lines:
        found = _read(line)
        kind = found.get("kind") if isinstance(found, dict) else None
        wanted += bool(line.strip()) and str(kind) not in ("event", "reply", "error")
    writer.write(b"\n".join(lines) + b"\n")
    writer.write_eof()
    answered = 0
    try:
        async with asyncio.timeout(PATIENCE_S):
            while answer := await reader.readline():
                answered += 1
                if b'"code":500' in answer:
                    raise Wrong(f"the node failed: {answer!r}")
    except TimeoutError:
        pass
    finally:
        writer.transport.abort()
    if answered < wanted:
        raise Wrong(f"{wanted} lines want an answer, {answered} got one")


async def loop_socket(node: Victim, frames: Sequence[bytes]) -> None:
    """Every frame; what is no frame is answered and ends the connection."""
    reader, writer = await asyncio.open_unix_connection(str(node.loop_socket))
    writer.write(b"".join(frames))
    try:
        async with asyncio.timeout(PATIENCE_S):
            for at in range(len(frames)):
                try:
                    head = await reader.readexactly(zcl1.HEADER.size)
                    magic, *_, length = zcl1.HEADER.unpack(head)
                    await reader.readexactly(length)
                except asyncio.IncompleteReadError:
                    raise Wrong("the connection ended before the answer", at) from None
                if magic != zcl1.MAGIC:
                    raise Wrong(f"the answer is no frame: {head!r}", at)
            writer.write(b"this is no frame")
            await reader.read()
    except TimeoutError:
        raise Wrong("a frame was not answered") from None
    finally:
        writer.transport.abort()


# -- HTTP


def request(chance: random.Random) -> bytes:
    """A request to one of the operations, well framed; what it says may be anything."""
    operation = chance.choice(OPERATIONS)
    path = operation.path
    for parameter in operation.all_parameters:
        if parameter.place == "path":
            path = path.replace(f"{{{parameter.name}}}", _piece(chance))
    known = [parameter.name for parameter in operation.parameters if parameter.place == "query"]
    query = [f"{chance.choice([*known, 'agent_id', 'x'])}={_piece(chance)}" for _ in range(chance.choice((0, 0, 1, 2)))]
    method = operation.method if chance.random() < 0.9 else chance.choice(("HEAD", "OPTIONS", "PUT", "PATCH", "DELETE"))
    body = _body(chance) if method in ("POST", "PUT", "PATCH", "DELETE") else b""
    kinds = (
        "application/json",
        "application/json",
        "application/x-ndjson",
        "application/cloudevents+json",
        "text/plain",
    )
    head = [
        f"{method} {path}{'?' if query else ''}{'&'.join(query)} HTTP/1.1",
        "Host: 127.0.0.1",
        f"Content-Type: {chance.choice(kinds)}",
        f"Content-Length: {len(body)}",
    ]
    names = ("Accept", "Last-Event-ID", "X-Agent-Id", "ce-id", "ce-specversion", "Content-Encoding")
    head += [f"{name}: {chance.choice(_PRINTABLE)}" for name in names if chance.random() < 0.08]
    return "\r\n".join(head).encode("latin-1") + b"\r\n\r\n" + body


def _piece(chance: random.Random) -> str:
    return quote(chance.choice(("t", "t", "0", "1", *inputs.TEXTS)).encode("utf-8", "surrogatepass"), safe="")


def _body(chance: random.Random) -> bytes:
    if chance.random() < 0.15:
        return chance.choice(inputs.NOISE)
    members: dict[str, Any] = chance.choice(
        (
            {"payload": {"n": 1}, "key": "k", "headers": {"a": "b"}, "id": "i"},
            {"topic": "t", "partitions": 2, "publishACL": ["a"], "retentionMs": 5},
            {"name": "s", "topic": "t", "payload": 1, "every": 3_600_000},
            {"name": "s", "topic": "t", "payload": 1, "cron": "0 3 * * *"},
            {"schema": {"type": "object"}, "compatibility": "full"},
            {"kind": "offset", "value": 1},
            {"offsets": [1], "group": "g", "reason": "x", "limit": 5},
            {"kind": "query", "type": "Memory.Get", "data": {"path": "/a"}, "metadata": {"id": "m", "timestamp": 1}},
        )
    )
    return inputs.text_of(chance, inputs.changed(chance, members))


async def http(node: Victim, requests: Sequence[bytes]) -> None:
    """Every request; none with a 500."""
    reader = writer = None
    for at, sent in enumerate(requests):
        if writer is None or writer.is_closing():
            reader, writer = await asyncio.open_connection("127.0.0.1", node.port, limit=1 << 20)
        assert reader is not None
        try:
            writer.write(sent)
            async with asyncio.timeout(PATIENCE_S):
                status, goes_on = await _response(reader, is_head=sent.startswith(b"HEAD"))
        except (TimeoutError, OSError, asyncio.IncompleteReadError, ValueError) as error:
            raise Wrong(f"no answer: {error!r}", at) from None
        if status == 500:
            raise Wrong("the node failed: 500", at)
        if not goes_on:
            writer.transport.abort()
            writer = None
    if writer is not None:
        writer.transport.abort()


async def _response(reader: asyncio.StreamReader, *, is_head: bool) -> tuple[int, bool]:
    """The status, and whether the connection can be used again."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    status = int(head[0].split(" ")[1])
    headers = {name.lower(): text.strip() for name, _, text in (each.partition(":") for each in head[1:])}
    if headers.get("content-type", "").startswith("text/event-stream"):
        return status, False
    if not is_head and status not in (204, 304):
        if headers.get("transfer-encoding") == "chunked":
            while size := int(await reader.readuntil(b"\r\n"), 16):
                await reader.readexactly(size + 2)
            await reader.readexactly(2)
        else:
            await reader.readexactly(int(headers.get("content-length", "0")))
    return status, head[0].startswith("HTTP/1.1") and headers.get("connection", "").lower() != "close"
