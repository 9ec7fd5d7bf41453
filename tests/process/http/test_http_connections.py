"""What a user of curl and nc expects of a connection, and what an operator expects of strangers on the port.

A sender that half-closes after its request gets the answer. What is no HTTP gets a problem document, and leaves one
short line in the log, however often it comes, without anything that was sent.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import logging

import pytest

from mainspring import App
from mainspring.testing import serving

SECRET = "very-secret-token"
POST = (
    "POST /topics/orders/events HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    'Content-Length: 13\r\n\r\n{"payload":1}'
)
GET = "GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
HEADERS = f"Host: 127.0.0.1\r\nAuthorization: Bearer {SECRET}\r\n"
HOSTILE = [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + SECRET.encode(),
    f"GET /{SECRET} HTTP/9.9\r\n{HEADERS}\r\n".encode(),
    f"GET http://[x HTTP/1.1\r\n{HEADERS}\r\n".encode(),
    f"GET //[x/ HTTP/1.1\r\n{HEADERS}\r\n".encode(),
    f"{SECRET}\r\n\r\n".encode(),
    f"GET / HTTP/1.1\r\n{HEADERS}bad header {SECRET}\r\n\r\n".encode(),
    f"POST /messages HTTP/1.1\r\n{HEADERS}Content-Length: {SECRET}\r\n\r\n".encode(),
    f"POST /messages HTTP/1.1\r\n{HEADERS}Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n".encode(),
    f"POST /messages HTTP/1.1\r\n{HEADERS}Transfer-Encoding: chunked\r\n\r\n{SECRET}\r\n".encode(),
    f"POST /messages HTTP/1.1\r\n{HEADERS}Content-Encoding: gzip\r\nContent-Length: 17\r\n\r\n{SECRET}".encode(),
    f"POST /messages HTTP/1.1\r\n{HEADERS}Content-Encoding: gzip\r\nContent-Length: 9\r\n\r\n".encode()
    + gzip.compress(b"{}")[:9],
    f"GET / HTTP/1.1\r\n{HEADERS}Connection: Upgrade\r\nUpgrade: websocket\r\n"
    f"Sec-WebSocket-Key: {SECRET}\r\n\r\n".encode(),
    f"GET / HTTP/1.1\r\n{HEADERS}{'x' * 20_000}: 1\r\n\r\n".encode(),
    f"GET /topics/%FF%x/events HTTP/1.1\r\n{HEADERS}\r\n".encode(),
]


async def talk(port: int, sent: bytes, *, half_close: bool = True) -> bytes:
    """Everything that comes back until the node closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    if half_close:
        writer.write_eof()
    try:
        async with asyncio.timeout(60):
            return await reader.read()
    finally:
        writer.close()


async def test_a_sender_that_half_closes_gets_its_answer() -> None:
    async with serving(App("shop")) as node:
        port = int(node.url.rpartition(":")[2])
        for _ in range(20):
            assert (await talk(port, GET.encode())).startswith(b"HTTP/1.1 200")
        answer = await talk(port, POST.encode())
        assert answer.startswith(b"HTTP/1.1 201")
        assert json.loads(answer.rpartition(b"\r\n\r\n")[2])["offset"] == 1
        pipelined = await talk(port, 3 * GET.encode())
        assert pipelined.count(b"HTTP/1.1 200") == 3


async def test_a_sender_that_asks_for_a_websocket_and_half_closes_gets_its_answer() -> None:
    asking = f"GET / HTTP/1.1\r\n{HEADERS}Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    key = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="
    async with serving(App("shop")) as node:
        port = int(node.url.rpartition(":")[2])
        head, _, frames = (await talk(port, f"{asking}{key}\r\n\r\n".encode())).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101")
        assert frames == b"\x88\x02\x03\xe8"  # closed, 1000
        assert (await talk(port, f"{asking}\r\n".encode())).startswith(b"HTTP/1.1 400")


async def test_a_sender_that_breaks_off_its_request_stores_nothing() -> None:
    async with serving(App("shop")) as node:
        port = int(node.url.rpartition(":")[2])
        assert b"201" not in await talk(port, POST.encode()[:-3])
        assert b'"offset":1' in await talk(port, POST.encode())


async def test_what_is_no_http_leaves_one_line_and_nothing_of_what_was_sent(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(App("shop")) as node:
        port = int(node.url.rpartition(":")[2])
        with caplog.at_level(logging.INFO):
            for sent in HOSTILE:
                for half_close in (True, False):
                    answer = b""
                    async with asyncio.timeout(60):
                        reader, writer = await asyncio.open_connection("127.0.0.1", port)
                        writer.write(sent)
                        if half_close:
                            writer.write_eof()
                            answer = await reader.read()
                        elif b"chunked" not in sent or b"Content-Length" in sent:
                            answer = await reader.read(1 << 16)
                        writer.close()
                    assert SECRET.encode() not in answer
                    if b"HTTP/1.1 4" in answer or b"HTTP/1.1 5" in answer:
                        assert b"application/problem+json" in answer
        assert (await talk(port, GET.encode())).startswith(b"HTTP/1.1 200")
    assert SECRET not in caplog.text
    assert "Traceback" not in caplog.text
    assert not [record for record in caplog.records if record.exc_info]
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) <= 3


LAST = "Connection: close\r\nContent-Length"
BEFORE_ROUTING = {
    "no method": (b"G@T / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 400),
    "a method that is none of HTTP's": (b"FETCH / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 400),
    "no request line": (b"garbage\r\n\r\n", 400),
    "another version": (b"GET / HTTP/9.9\r\nHost: 127.0.0.1\r\n\r\n", 400),
    "a long URL": (b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 431),
    "a long header": (b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Long: " + b"x" * 20_000 + b"\r\n\r\n", 431),
    "no header": (b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nnonsense\r\n\r\n", 400),
    "a NUL": (b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Nul: a\0b\r\n\r\n", 400),
    "no length": (b"POST /messages HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: x\r\n\r\n", 400),
    "no chunk": (b"POST /messages HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
    "an encoding": (
        POST.replace("Content-Length", f"Content-Encoding: br\r\n{LAST}").encode(),
        415,
    ),
    "an expectation": (
        POST.replace("Content-Length", f"Expect: more\r\n{LAST}").encode(),
        417,
    ),
}


async def test_what_is_refused_before_routing_is_a_problem_document() -> None:
    async with serving(App("shop")) as node:
        port = int(node.url.rpartition(":")[2])
        for name, (sent, status) in BEFORE_ROUTING.items():
            head, _, body = (await talk(port, sent, half_close=False)).partition(b"\r\n\r\n")
            assert head.split(b" ")[1] == str(status).encode(), (name, head)
            assert b"application/problem+json" in head, (name, head)
            problem = json.loads(body)
            assert (problem["status"], bool(problem["code"]), bool(problem["remedy"])) == (status, True, True), name
