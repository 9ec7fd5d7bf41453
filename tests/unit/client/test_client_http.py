"""Requests over HTTP: what their connections are told to look after."""

from __future__ import annotations

import socket
import sys

import pytest

from mainspring.client import CannotConnect, connect
from mainspring.client import http as client_http

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
