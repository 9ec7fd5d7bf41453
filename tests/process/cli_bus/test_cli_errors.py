"""What the commands say when there is no node, when it is another server, and when the node says no."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.support.serving import serving
from tests.support.terminal import Terminal, url_of

COMMANDS = (
    ("pub", "t", "1"),
    ("sub", "t", "-g", "g"),
    ("tail", "t"),
    ("topics", "list"),
    ("groups", "list"),
    ("dlq", "list"),
    ("schedules", "list"),
    ("top", "--once"),
)


class Impostor(BaseHTTPRequestHandler):
    """Answers everything as told, and remembers what it was asked with."""

    answer: ClassVar[tuple[int, str, bytes]] = (404, "text/html", b"<h1>not here</h1>")
    asked_with: ClassVar[list[str | None]] = []

    def do_GET(self) -> None:
        self.asked_with.append(self.headers["Authorization"])
        status, kind, body = self.answer
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing to say."""


@pytest.fixture
def impostor() -> Iterator[Terminal]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Impostor)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield Terminal(f"ws://127.0.0.1:{server.server_address[1]}")
    server.shutdown()
    server.server_close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize("command", COMMANDS[1:], ids=lambda command: command[0])
def test_without_a_node_every_command_says_how_to_start_one(command: tuple[str, ...]) -> None:
    port = free_port()
    first, second = Terminal(f"ws://127.0.0.1:{port}").fails(*command)
    where = f"http://127.0.0.1:{port} (named by the environment)"
    assert first == f"mainspring: no node answers at {where}: Connection refused"
    assert "mainspring serve" in second
    assert "--url" in second


def test_publishing_one_event_without_a_node_says_it_too() -> None:
    _, second = Terminal(f"ws://127.0.0.1:{free_port()}").fails("pub", "t", "1")
    assert "mainspring serve" in second


def test_an_address_that_is_none_is_told() -> None:
    for wrong in ("localhost:7070", "ftp://x", "ws://", "ws://h:port"):
        first, second = Terminal(wrong).fails("topics", "list")
        assert first == f"mainspring: {wrong!r} is not the address of a node"
        assert "ws://host:port" in second


def test_a_flag_beats_the_environment(terminal: Terminal) -> None:
    terminal.ok("topics", "create", "named.by.flag")
    other = Terminal("ws://127.0.0.1:1")
    assert '"named.by.flag"' in other.ok("topics", "list", "--json", "--url", terminal.url)


def test_another_server_is_not_taken_for_a_node(impostor: Terminal) -> None:
    Impostor.answer = (404, "text/html", b"<h1>not here</h1>")
    for command in (COMMANDS[0], COMMANDS[1], COMMANDS[-1]):
        first, second = impostor.fails(*command)
        assert "is no Mainspring node" in first
        assert "--url" in second
    Impostor.answer = (200, "text/html", b"<h1>welcome</h1>")
    assert "is no Mainspring node" in impostor.fails("topics", "list")[0]


def test_the_token_is_sent_from_the_option_or_the_environment(impostor: Terminal) -> None:
    Impostor.answer = (200, "application/json", b'{"topics": [], "groups": []}')
    Impostor.asked_with.clear()
    impostor.ok("topics", "list", "--token", "t-1")
    impostor.ok("topics", "list", env={"BUS_TOKEN": "t-2"})
    impostor.ok("topics", "list")
    assert list(dict.fromkeys(Impostor.asked_with)) == ["Bearer t-1", "Bearer t-2", None]


def test_a_node_that_wants_a_token_is_told_apart(impostor: Terminal) -> None:
    problem = {"status": 401, "code": "unauthorized", "message": "a token is needed"}
    Impostor.answer = (401, "application/problem+json", json.dumps(problem).encode())
    first, second = impostor.fails("topics", "list")
    assert first == "mainspring: a token is needed"
    assert "BUS_TOKEN" in second


def test_who_may_not_is_told_so_and_what_would_help(terminal: Terminal) -> None:
    terminal.ok("topics", "create", "private", "--allow-publish", "ada", "--allow-subscribe", "ada")
    bob = Terminal(f"{terminal.url}/?agent_id=bob")
    for command in (("pub", "private", "1"), ("pub", "private", "-"), ("tail", "private", "--follow")):
        first, second = bob.fails(*command, stdin="1\n2\n")
        assert first.startswith("mainspring: ")
        assert second.strip()
    ada = Terminal(f"{terminal.url}/?agent_id=ada")
    assert ada.json("pub", "private", "1")[0]["offset"] == 1


def test_a_node_with_tokens_lets_in_who_has_one_and_tells_the_others(tmp_path: Path) -> None:
    lines = tmp_path / "tokens"
    maker = Terminal("ws://127.0.0.1:1")
    (made,) = maker.json(
        "token",
        "new",
        "--agent",
        "ada",
        "--scope",
        "publish:orders",
        "--scope",
        "subscribe:orders",
        "--file",
        str(lines),
    )
    with serving(tmp_path, env={"MAINSPRING_TOKENS_FILE": str(lines)}) as node:
        terminal = Terminal(url_of(node))
        ada = {"BUS_TOKEN": made["token"]}
        for stranger in ({}, {"BUS_TOKEN": "wrong"}):
            for command in (("pub", "orders", "1"), ("sub", "orders", "-g", "g", "-n", "1"), ("tail", "orders")):
                first, second = terminal.fails(*command, env=stranger)
                assert first.startswith("mainspring: ")
                assert second.strip()
        assert "orders 0:1" in terminal.ok("pub", "orders", "1", env=ada)
        assert '"payload":1' in terminal.ok("sub", "orders", "-g", "g", "-n", "1", "--json", env=ada)
        first, _ = terminal.fails("pub", "invoices", "1", env=ada)
        assert "invoices" in first
