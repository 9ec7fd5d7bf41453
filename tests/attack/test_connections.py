"""Who only holds connections keeps nobody out: an operator expects silent peers to be dropped, and others to be served.

Times are those of the settings, made short; what is awaited is that the node ends a connection, never a moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mainspring.server.connections import Connection, Connections
from mainspring.settings import Settings
from tests.support.serving import PATIENCE_S
from tests.support.victim import NOBODY, OPS, PUBLISHER, Victim, attacked

SHORT = {
    "MAINSPRING_HEADER_TIMEOUT_MS": "500",
    "MAINSPRING_BODY_TIMEOUT_MS": "500",
    "MAINSPRING_KEEP_ALIVE_MS": "1000",
}


def connect(node: Victim) -> socket.socket:
    peer = socket.create_connection(("127.0.0.1", node.port), timeout=PATIENCE_S)
    peer.settimeout(PATIENCE_S)
    return peer


def ends(peer: socket.socket) -> bytes:
    """What the node says until it closes the connection."""
    said = b""
    with contextlib.suppress(ConnectionResetError):
        while part := peer.recv(65536):
            said += part
    return said


def test_silent_connections_leave_room_for_everybody_else(tmp_path: Path) -> None:
    node = Victim(folder=tmp_path)
    node.command[:0] = ["sh", "-c", 'ulimit -n 256; exec "$@"', "sh"]
    with node, contextlib.ExitStack() as held:
        for _ in range(400):
            held.enter_context(connect(node))
        assert node.ask("GET", "/healthz").status == 200
        assert node.ask("POST", "/topics/innocent/events", {"payload": 1}).status == 201
        with socket.socket(socket.AF_UNIX) as peer:
            peer.connect(str(node.kernel_socket))
            peer.settimeout(PATIENCE_S)
            peer.sendall(b"this is no message\n")
            assert b"error" in peer.recv(65536)
        assert "descriptors" in node.errors()


class Peer(asyncio.Transport):
    """The transport of a connection from another machine, which a test on one machine cannot make."""

    def __init__(self, address: str) -> None:
        super().__init__({"peername": (address, 1)})
        self.answer = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.answer += data

    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("addresses", "taken"),
    [
        (["203.0.113.7"] * 6, 3),
        (["::ffff:203.0.113.7", "203.0.113.7"] * 3, 3),
        ([f"2001:db8::{number}" for number in range(1, 7)], 3),  # whoever has one address has its whole network
        ([f"203.0.113.{number}" for number in range(1, 7)], 6),
        (["127.0.0.1", "::1"] * 3, 6),  # a proxy may be there
    ],
)
async def test_connections_of_one_address_have_a_bound_before_any_token_is_read(
    addresses: list[str], taken: int
) -> None:
    connections = Connections(Settings(max_address_connections=3))
    made: list[tuple[Connection, Peer]] = []
    for address in addresses:
        made.append((Connection(connections, asyncio.Protocol()), Peer(address)))
        made[-1][0].connection_made(made[-1][1])
    refused = [peer.answer.split(b"\r\n")[0] for _, peer in made if peer.answer]
    assert refused == [b"HTTP/1.1 429 Too Many Requests"] * (len(addresses) - taken)
    assert connections.closed["address"] == len(refused)
    for connection, _ in made:
        connection.connection_lost(None)
    again = Peer(addresses[-1])
    Connection(connections, asyncio.Protocol()).connection_made(again)
    assert again.answer == b"", "there is room again"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    with attacked(tmp_path_factory.mktemp("node"), env=SHORT) as victim:
        yield victim


@pytest.mark.parametrize("said", [b"", b"GET /heal", b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n"])
def test_a_connection_without_a_complete_request_is_closed(node: Victim, said: bytes) -> None:
    with node.spending_at_most(2.0), connect(node) as peer:
        peer.sendall(said)
        ends(peer)


def test_a_body_that_does_not_come_is_answered_and_the_connection_closed(node: Victim) -> None:
    with node.spending_at_most(2.0), connect(node) as peer:
        head = f"POST /topics/orders.x/events HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {PUBLISHER}\r\n"
        peer.sendall(f"{head}Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{{".encode())
        assert b" 408 " in ends(peer)


def test_a_connection_rests_between_requests_but_not_for_ever(node: Victim) -> None:
    with node.spending_at_most(2.0), connect(node) as peer:
        for _ in range(2):
            peer.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert b" 200 " in peer.recv(65536)
        ends(peer)


def upgraded(node: Victim, token: str, early: bytes = b"") -> socket.socket:
    peer = connect(node)
    key = "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="
    head = f"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n{key}\r\n"
    peer.sendall(f"{head}Authorization: Bearer {token}\r\n\r\n".encode() + early)
    said = b""
    while not said.endswith(b"\r\n\r\n"):
        said += peer.recv(1)
    assert b" 101 " in said
    return peer


def frame_head(size: int) -> bytes:
    return struct.pack("!BBQ4s", 0x81, 0x80 | 127, size, bytes(4))


def test_a_frame_that_does_not_end_is_given_up(node: Victim) -> None:
    with node.spending_at_most(5.0), upgraded(node, NOBODY) as peer:
        peer.sendall(frame_head(1 << 20) + b"x" * 200_000)
        ends(peer)


# --- frames that a client may not send (RFC 6455): unmasked ones, and text that is not UTF-8

PUBLISH = b'{"type":"PUBLISH","topic":"orders.x","payload":1}'


def masked(data: bytes, opcode: int = 0x81) -> bytes:
    mask = b"\x01\x02\x03\x04"
    size = bytes([0x80 | len(data)]) if len(data) < 126 else struct.pack("!BH", 0x80 | 126, len(data))
    return bytes([opcode]) + size + mask + bytes(byte ^ mask[index % 4] for index, byte in enumerate(data))


def unmasked(data: bytes, opcode: int = 0x81) -> bytes:
    return bytes([opcode, len(data)]) + data


def closed_with(said: bytes) -> int:
    """The code of the Close frame at the end of what the node said."""
    found = said.rfind(b"\x88")
    code: int = struct.unpack_from("!H", said, found + 2)[0]
    return code


@pytest.mark.parametrize(
    ("before", "bad"),
    [
        (b"", unmasked(PUBLISH)),
        (b"", unmasked(b"", 0x89)),  # a ping
        (b"", unmasked(b"", 0x88)),  # a close
        (masked(PUBLISH), unmasked(PUBLISH)),
        (masked(b" " * 200 + PUBLISH), unmasked(PUBLISH)),
        (masked(b"", 0x8A) + masked(PUBLISH), unmasked(b"x" * 10, 0x82)),
        (masked(PUBLISH[:9], 0x01), unmasked(PUBLISH[9:], 0x80)),  # the second part of a message
    ],
)
@pytest.mark.parametrize("way", ["at once", "byte by byte", "with the handshake"])
def test_a_frame_that_is_not_masked_ends_the_connection(node: Victim, before: bytes, bad: bytes, way: str) -> None:
    early = before + bad if way == "with the handshake" else b""
    with node.spending_at_most(2.0), upgraded(node, PUBLISHER, early) as peer:
        if way == "at once":
            peer.sendall(before + bad)
        elif way == "byte by byte":
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for byte in before + bad[:2]:
                peer.sendall(bytes([byte]))
        said = ends(peer)
        assert closed_with(said) == 1002
        assert said.count(b"PUBLISHED") <= bool(before)  # nothing of the bad frame was taken


def test_masked_frames_are_read_however_they_are_cut(node: Victim) -> None:
    with node.spending_at_most(4.0), upgraded(node, PUBLISHER) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream = (masked(PUBLISH) + masked(b"", 0x8A) + masked(b" " * 130 + PUBLISH)) * 3
        for step in (1, 2, 3, 7, len(stream)):
            for begin in range(0, len(stream), step):
                peer.sendall(stream[begin : begin + step])
        said = b""
        while said.count(b"PUBLISHED") < 5 * 6:
            part = peer.recv(65536)
            assert part
            said += part


@pytest.mark.parametrize("bad", [b'{"type":"PUBLISH","topic":"orders.x","payload":"\xff"}', b"\xed\xa0\xbd", b"\xc3"])
def test_text_that_is_not_utf8_ends_the_connection(node: Victim, bad: bytes) -> None:
    with node.spending_at_most(2.0), upgraded(node, PUBLISHER) as peer:
        peer.sendall(masked(bad) + masked(PUBLISH))
        said = ends(peer)
        assert closed_with(said) == 1007
        assert b'"bad_json"' in said
        assert b"PUBLISHED" not in said  # what came behind it was not read


def test_unfinished_frames_of_many_connections_have_a_bound_together(tmp_path: Path) -> None:
    with (
        attacked(tmp_path) as node,
        node.spending_at_most(20.0, grows_mb=250),
        contextlib.ExitStack() as held,
    ):
        peers = [held.enter_context(upgraded(node, NOBODY)) for _ in range(150)]
        ended = 0
        for peer in peers:
            try:
                peer.sendall(frame_head(15 << 20) + b"x" * 1_000_000)
            except OSError:
                ended += 1
        deadline = time.monotonic() + PATIENCE_S
        metric = b'mainspring_port_connections_ended_total{reason="unfinished"}'
        while time.monotonic() < deadline and not ended:
            ended = metric in node.ask("GET", "/metrics", token=OPS).body
        assert ended
