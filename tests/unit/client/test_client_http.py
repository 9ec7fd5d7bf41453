"""Requests over HTTP: what their connections are told to look after, and what is left of those that end early."""

from __future__ import annotations

import asyncio
import gc
import socket
import sys
import weakref

import pytest

from mainspring.client import CannotConnect, connect
from mainspring.client import http as client_http
from mainspring.client.http import NodeHttp

OPTIONS = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems know fewer of these options")
@pytest.mark.parametrize(
    ("ping", "options"), [(15, (15, 5, 3, 30_000)), (0.2, (1, 1, 3, 2_000)), ("20h", (32_767, 10_922, 3, 65_534_000))]
)
async def test_a_connection_that_is_silent_for_twice_a_ping_is_ended_by_the_kernel(
    monkeypatch: pytest.MonkeyPatch, ping: float | str, options: tuple[int, ...]
) -> None:
    seen: list[tuple[int, ...]] = []
    real = client_http.watched_socket

    def noted(*address: object, **named: object) -> socket.socket:
        made = real(*address, **named)  # type: ignore[arg-type]
        assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        seen.append(tuple(made.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in OPTIONS))
        return made

    monkeypatch.setattr(client_http, "watched_socket", noted)
    client = connect("ws://127.0.0.1:1", ping=ping)
    with pytest.raises(CannotConnect):
        await client.query("Stock.Count")
    await client.close()
    assert seen == [options]


async def test_an_answer_that_was_being_read_when_the_connections_were_closed_leaves_nothing_behind() -> None:
    """A client that finds its node silent does this again and again, for as long as its process lives."""
    begun = asyncio.Event()

    async def begin_an_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nid: 0:1\n\n")
        await reader.read()
        writer.close()

    async def read(http: NodeHttp) -> None:
        async for _ in http.follow("orders", {}):
            begun.set()

    async with await asyncio.start_server(begin_an_answer, "127.0.0.1", 0) as server:
        http = NodeHttp(f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}", None)
        reading = asyncio.create_task(read(http))
        await begun.wait()
        await http.close()
        with pytest.raises(CannotConnect):
            await reading
    left = weakref.ref(http)
    del http, reading
    gc.collect()
    assert left() is None
