"""A short set of the cases that the Autobahn test suite asks (`make autobahn`), for the Python client and for the node.

Both sides echo. A case is what the peer sends and what it gets back: messages, pongs, and the code of the close.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib

import pytest

from tests.autobahn.echo import EchoSocket, echo_as_node

TEXT, CLOSE, PING, PONG = 0x81, 0x88, 0x89, 0x8A
FIRST, MORE, LAST = 0x01, 0x00, 0x80  # of a text in fragments
GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
OK = (CLOSE, b"\x03\xe8")

Frames = list[tuple[int, bytes]]


def closed(code: int) -> tuple[int, bytes]:
    return CLOSE, code.to_bytes(2, "big")


CASES: dict[str, tuple[Frames, Frames]] = {
    "a text": ([(TEXT, b"x"), OK], [(TEXT, b"x"), OK]),
    "an empty text": ([(TEXT, b""), OK], [(TEXT, b""), OK]),
    "a long text": ([(TEXT, b"x" * 65_536), OK], [(TEXT, b"x" * 65_536), OK]),
    "a ping is answered with its data": ([(PING, b"a" * 125), OK], [(PONG, b"a" * 125), OK]),
    "a pong that was not asked for": ([(PONG, b"a"), OK], [OK]),
    "a ping that is too long": ([(PING, b"a" * 126)], [closed(1002)]),
    "a ping in fragments": ([(0x09, b"a"), (0x80, b"b")], [closed(1002)]),
    "a text, then a reserved bit": ([(TEXT, b"x"), (0xA1, b"y"), (PING, b"")], [(TEXT, b"x"), closed(1002)]),
    "compressed though it was not agreed": ([(0xC1, b"x")], [closed(1002)]),
    "an unknown kind": ([(0x83, b"x")], [closed(1002)]),
    "an unknown control frame": ([(0x8B, b"x")], [closed(1002)]),
    "fragments": ([(FIRST, b"a"), (MORE, b"b"), (LAST, b"c"), OK], [(TEXT, b"abc"), OK]),
    "fragments with a ping between": (
        [(FIRST, b"a"), (PING, b"p"), (LAST, b"b"), OK],
        [(PONG, b"p"), (TEXT, b"ab"), OK],
    ),
    "fragments of nothing": ([(FIRST, b""), (MORE, b""), (LAST, b""), OK], [(TEXT, b""), OK]),
    "a fragment without a first": ([(LAST, b"a")], [closed(1002)]),
    "a text between fragments": ([(FIRST, b"a"), (TEXT, b"b")], [closed(1002)]),
    "a letter cut between fragments": ([(FIRST, b"\xce"), (LAST, b"\xba"), OK], [(TEXT, b"\xce\xba"), OK]),
    "a text that is not UTF-8": ([(TEXT, b"\xce\xba\xed\xa0\x80")], [closed(1007)]),
    "fragments that are not UTF-8": ([(FIRST, b"\xce\xba"), (LAST, b"\xff")], [closed(1007)]),
    "a text after the close": ([OK, (TEXT, b"late")], [OK]),
    "a close without a code": ([(CLOSE, b"")], [(CLOSE, b"")]),
    "a close with half a code": ([(CLOSE, b"\x03")], [closed(1002)]),
    "a close that is too long": ([(CLOSE, b"\x03\xe8" + b"x" * 124)], [closed(1002)]),
    "a close whose reason is not UTF-8": ([(CLOSE, b"\x03\xe8\xff")], [closed(1007)]),
    **{f"a close with {code}": ([closed(code)], [closed(1002)]) for code in (0, 999, 1004, 1005, 1006, 1016, 2999)},
    **{f"a close with {code}": ([closed(code)], [closed(code)]) for code in (1001, 1011, 3000, 4999)},
}

# The node answers every close with 1000, and a connection whose peer broke the protocol may end before its answers.
DIFFERENT = {
    "a text, then a reserved bit": closed(1002),
    "a close without a code": OK,
    **{f"a close with {code}": OK for code in (1001, 1011, 3000, 4999)},
}


def written(frames: Frames, *, masks: bool) -> bytes:
    text = b""
    for first, data in frames:
        size, mask = len(data), 0x80 if masks else 0
        if size < 126:
            head = bytes((first, mask | size))
        elif size < 65_536:
            head = bytes((first, mask | 126)) + size.to_bytes(2, "big")
        else:
            head = bytes((first, mask | 127)) + size.to_bytes(8, "big")
        text += head + (bytes(4) if masks else b"") + data  # a mask of zeros changes nothing
    return text


async def read_frames(reader: asyncio.StreamReader) -> Frames:
    """Until the other side ends the stream."""
    found: Frames = []
    while head := await reader.read(1):
        size = (await reader.readexactly(1))[0]
        is_masked, size = size & 0x80, size & 0x7F
        if size >= 126:
            size = int.from_bytes(await reader.readexactly(2 if size == 126 else 8), "big")
        mask = await reader.readexactly(4) if is_masked else bytes(4)
        data = await reader.readexactly(size)
        found.append((head[0], bytes(byte ^ mask[at % 4] for at, byte in enumerate(data)) if any(mask) else data))
    return found


async def client_answers(frames: Frames) -> Frames:
    """What the client sends back to a peer that sends these."""
    answer: asyncio.Future[Frames] = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        key = next(line[19:] for line in head.split(b"\r\n") if line.startswith(b"Sec-WebSocket-Key: "))
        accept = base64.b64encode(hashlib.sha1(key + GUID).digest())
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n")
        writer.write(b"Sec-WebSocket-Accept: " + accept + b"\r\n\r\n" + written(frames, masks=False))
        answer.set_result(await read_frames(reader))
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        _, socket = await asyncio.get_running_loop().create_connection(EchoSocket, "127.0.0.1", port)
        await socket.shake_hands("x", "/", ())
        await socket.ended
        return await answer


async def node_answers(frames: Frames) -> Frames:
    """What the node sends back to a peer that sends these."""
    async with echo_as_node() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n")
        writer.write(b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " + base64.b64encode(bytes(16)) + b"\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101 ")
        writer.write(written(frames, masks=True))
        found = await read_frames(reader)
        writer.close()
        return found


@pytest.mark.parametrize("case", CASES)
async def test_the_client(case: str) -> None:
    sent, expected = CASES[case]
    assert await client_answers(sent) == expected


@pytest.mark.parametrize("case", [case for case in CASES if case not in DIFFERENT])
async def test_the_node(case: str) -> None:
    sent, expected = CASES[case]
    assert await node_answers(sent) == expected


@pytest.mark.parametrize("case", DIFFERENT)
async def test_the_node_where_it_may_choose(case: str) -> None:
    assert await node_answers(CASES[case][0]) == [DIFFERENT[case]]
