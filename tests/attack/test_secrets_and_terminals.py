"""Nothing secret is written down, and nothing that others sent acts on a screen or in a log.

An operator expects that logs, answers, process lists and error texts hold no token and no password, and that looking at
events, dead letters, runs or traces of strangers is as safe as looking at numbers.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mainspring.client import NodeConnection, connect
from mainspring.errors import BootError
from mainspring.unix_socket import listen_at, place_to_listen
from tests.support.serving import PATIENCE_S, clean_environment
from tests.support.terminal import Terminal
from tests.support.victim import NOBODY, OPS, PUBLISHER, READER, Victim, attacked

EVIL = "evil\x1b[2J\x1b]0;owned\x07\r\n2026-11-16 00:00:00,000 ERROR   forged: line\x9b31m\u202e\x7f"
RAW = ("\x1b", "\x07", "\r", "\x9b", "\u202e", "\x7f", "\x00")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    folder = tmp_path_factory.mktemp("node")
    (folder / "shop.py").write_text(
        "from typing import Any\n"
        "from mainspring import App, Perform\n"
        "app = App('shop')\n"
        "@app.run\n"
        "async def say(text: str, perform: Perform) -> str:\n"
        "    raise ValueError(text)\n"
        "@app.query('Doc.Crash')\n"
        "async def crash(data: dict[str, Any], ctx: Any) -> Any:\n"
        "    raise RuntimeError(data['text'])\n"
        "@app.consumer('orders.bad', group='g', max_attempts=1)\n"
        "async def take(payload: Any) -> None:\n"
        "    raise RuntimeError(payload)\n"
    )
    with attacked(folder, "shop:app", engine="sqlite", env={"PYTHONPATH": "."}) as victim:
        yield victim


def sent(node: Victim, data: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", node.port), timeout=PATIENCE_S) as peer:
        peer.sendall(data)
        peer.shutdown(socket.SHUT_WR)
        said = b""
        try:
            while part := peer.recv(65536):
                said += part
        except ConnectionResetError:
            pass
        return said


MALFORMED = [
    b"GET /topics?token=%t HTTP/1.1\nHost: x\n\n",
    b"GET /topics?token=%t \xff HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    b"GET /topics?token=%t\xc3\xa9 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    b"GET /topics HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer %t\x00x\r\n\r\n",
    b"GET /topics HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer %t\r\r\n\r\n",
    b"GET /topics HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer %t\r\n folded\r\n\r\n",
    b"GET /topics?token=%t&" + b"x" * 20_000 + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    b"GET /topics HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer %t" + b"y" * 20_000 + b"\r\n\r\n",
    b"Bearer %t\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Protocol: Mainspring.Token.%t\r\n\r\n",
]


def test_no_malformed_request_puts_a_token_into_a_log_or_an_answer(node: Victim) -> None:
    begin = len(node.errors())
    with node.spending_at_most(3.0):
        for token in (OPS, NOBODY):
            for request in MALFORMED:
                answer = sent(node, request.replace(b"%t", token.encode()))
                assert token.encode() not in answer, request
    said = node.errors()[begin:]
    assert OPS not in said
    assert NOBODY not in said


MISPLACED = [
    b"GET /topics/%t/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    b"GET /%t HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    b"GET /%t HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer %t\r\n\r\n",
    b"GET /topics/%t HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer %t\r\n\r\n",
    b"PUT /topics/%t/events HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer %t\r\n\r\n",
    b"GET /topics?limit=%t HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer %t\r\n\r\n",
    b"GET /topics HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: %t\r\n\r\n",
    b"GET /topics?agent_id=%t HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Agent-Id: %t\r\n\r\n",
]


def test_a_token_in_a_wrong_place_is_not_written_down(node: Victim) -> None:
    """Others read the log and the audit; the answer may be kept by what stands between."""
    begin = len(node.errors())
    for token in (OPS, NOBODY):
        for request in MISPLACED:
            answer = sent(node, request.replace(b"%t", token.encode()))
            assert answer.startswith(b"HTTP/1.1 4"), answer
            assert token.encode() not in answer, request
        message = {"kind": "query", "type": f"Doc.{token}", "data": {"text": token}}
        assert node.ask("POST", "/messages", message, NOBODY).status in (400, 403)
    crash = {"kind": "query", "type": "Doc.Crash", "data": {"text": f"key {NOBODY}"}}
    assert node.ask("POST", "/messages", crash, OPS).status == 500
    # The audit is written in the order of what happened: when this is there, so is the rest.
    assert node.ask("POST", "/topics", {"topic": "orders.last"}, OPS).status == 201
    audit = b""
    for _ in range(3_000):
        audit = node.ask("GET", "/topics/system.bus.audit/events?limit=10000", token=OPS).body
        if b"orders.last" in audit:
            break
        time.sleep(0.02)
    assert b"orders.last" in audit
    said = node.errors()[begin:]
    for token in (OPS, NOBODY):
        assert token not in said
        assert token.encode() not in audit
    assert "/topics/ms_.../events" in said


def test_bad_requests_cost_one_short_line_in_a_while(node: Victim) -> None:
    begin = len(node.errors())
    for _ in range(300):
        sent(node, b"\x16\x03\x01 nonsense\r\n\r\n")
    said = [line for line in node.errors()[begin:].splitlines() if "could not be read" in line]
    assert len(said) <= 2
    assert len(node.errors()) - begin < 2_000
    assert "Traceback" not in node.errors()[begin:]


@pytest.mark.parametrize("rest", [b', "limit', b'-, "limit": 3}', b', "x": ' + b"[" * 100_000])
def test_a_body_that_breaks_off_behind_a_number_is_refused_and_leaves_no_traceback(node: Victim, rest: bytes) -> None:
    begin = len(node.errors())
    answer = node.ask("POST", "/dlq/orders.bad/redrive", b'{"before": 1.0' + rest, OPS)
    assert answer.status == 400, answer.body
    assert "Traceback" not in node.errors()[begin:]


def test_text_of_others_is_no_line_and_no_control_character_in_a_text_log(node: Victim) -> None:
    begin = len(node.errors())
    message = {"kind": "query", "type": "Doc.Crash", "data": {"text": EVIL}, "correlation": EVIL}
    assert node.ask("POST", "/messages", message, OPS).status == 500
    line = {"kind": "query", "type": "Doc.Crash", "data": {"text": EVIL}, "metadata": {"id": EVIL, "timestamp": 1}}
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(str(node.kernel_socket))
        peer.settimeout(PATIENCE_S)
        peer.sendall(json.dumps(line).encode() + b"\n")
        assert peer.recv(65536)
    with open(node.folder / "stderr.txt", "rb") as log:
        log.seek(begin)
        said = log.read().decode()
    assert "evil" in said
    assert not [raw for raw in RAW if raw in said]
    assert not [each for each in said.splitlines() if each.startswith("2026-11-16 00:00:00,000 ERROR   forged")]


def test_every_command_shows_text_of_others_as_text(node: Victim) -> None:
    terminal = Terminal(node.url)
    events = [{"payload": EVIL, "key": EVIL, "headers": {"h": EVIL}, "id": f"i{EVIL}"}]
    for topic in ("orders.evil", "orders.bad"):
        for event in events:
            assert node.ask("POST", f"/topics/{topic}/events", event, PUBLISHER).status == 201
    start = {"kind": "command", "type": "Run.Start", "data": {"program": "say", "args": [EVIL], "id": "evil-run"}}
    assert node.ask("POST", "/messages", start, OPS).status == 200
    data = ("--data", str(node.folder / "data"))
    id = json.loads(node.ask("GET", "/topics/orders.evil/events", token=OPS).body)["events"][0]["id"]
    for command in (
        ("tail", "orders.evil", "-n", "5", "--no-follow"),
        ("topics", "list"),
        ("topics", "show", "orders.evil"),
        ("groups", "list"),
        ("dlq", "list", "orders.bad"),
        ("dlq", "show", "orders.bad"),
        ("runs", "list", *data),
        ("runs", "show", "evil-run", *data),
        ("runs", "show", "evil-run", "--json", *data),
        ("trace", id),
        ("send", "query", "Doc.Crash", json.dumps({"text": EVIL})),
        ("send", "query", "Doc.Crash", json.dumps({"text": EVIL}), "--json"),
        ("log", "stats", *data),
        ("log", "check", *data),
        ("pub", f"no such{EVIL}", "1"),
    ):
        done = terminal.run(*command, env={"BUS_TOKEN": OPS})
        shown = done.stdout + done.stderr
        assert "Traceback" not in shown, (command, shown)
        assert not [raw for raw in RAW if raw in shown], (command, shown)
        assert not [each for each in shown.splitlines() if each.startswith("2026-11-16 00:00:00,000 ERROR")], command


@pytest.mark.parametrize(
    "words",
    [
        ("topics", "list", "--url", "ws://user:hunter2@%s", "--token", "ms_secret.token"),
        ("log", "stats", "--engine", "nats://user:hunter2@%s/x"),
        ("log", "stats", "--engine", "postgresql://%s/x?user=u&password=hunter2"),
    ],
)
def test_secrets_of_the_command_line_leave_the_process_list(words: tuple[str, ...]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        command = [sys.executable, "-m", "mainspring", *(word.replace("%s", address) for word in words)]
        with subprocess.Popen(command, env=clean_environment(), stderr=subprocess.DEVNULL) as process:
            try:
                silent.settimeout(PATIENCE_S)
                silent.accept()[0].close()  # by now it has read its arguments
                shown = Path(f"/proc/{process.pid}/cmdline").read_bytes()
            finally:
                process.kill()
    assert words[0].encode() in shown
    assert b"hunter2" not in shown
    assert b"ms_secret" not in shown


@pytest.mark.parametrize(
    "command", [("topics", "list"), ("pub", "orders.x", "1"), ("send", "query", "Syscall.Ping", "{}")]
)
def test_a_token_of_the_environment_does_not_go_where_a_file_of_the_folder_says(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as thief:
        thief.settimeout(PATIENCE_S)
        address = f"ws://127.0.0.1:{thief.getsockname()[1]}"
        (tmp_path / "mainspring.toml").write_text(f'url = "{address}"\n')
        for extra, expected in (({}, False), ({"BUS_URL": address}, True)):
            env = clean_environment({"BUS_TOKEN": READER, "HOME": str(tmp_path), **extra})
            env.pop("XDG_RUNTIME_DIR", None)
            line = [sys.executable, "-m", "mainspring", *command]
            with subprocess.Popen(line, cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True) as process:
                peer, _ = thief.accept()
                peer.settimeout(PATIENCE_S)
                asked = peer.recv(65536)
                peer.close()
                process.kill()
                assert process.stderr is not None
                said = process.stderr.read()
            assert (READER.encode() in asked) is expected
            assert ("BUS_TOKEN is not sent" in said) is not expected
            assert READER not in said


@pytest.mark.parametrize(
    "url", ["ws://node.example:7070", "http://10.1.2.3:7070", "ws://127.0.0.1:1,ws://far.example:1"]
)
def test_a_token_that_would_cross_a_network_in_the_clear_is_told(url: str, caplog: pytest.LogCaptureFixture) -> None:
    for make in (NodeConnection, connect):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            make(url, READER)
        assert "unencrypted" in caplog.text
        assert READER not in caplog.text


@pytest.mark.parametrize("url", ["ws://localhost:1", "ws://127.0.0.1:1", "ws://[::1]:1", "wss://node.example:1"])
def test_a_protected_token_is_no_matter(url: str, caplog: pytest.LogCaptureFixture) -> None:
    for make in (NodeConnection, connect):
        make(url, READER)
        make("ws://node.example:1", None)
    assert "unencrypted" not in caplog.text


def test_no_remedy_suggests_to_give_up_encryption() -> None:
    for file in Path("src/mainspring").rglob("*.py"):
        for number, line in enumerate(file.read_text().splitlines(), 1):
            assert "write ws://" not in line or "wss://" in line, f"{file}:{number}"


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://user:hunter2 x@127.0.0.1:1/db",
        "postgresql://user:hunter2@[127.0.0.1/db",
        "postgresql://user:hunter2@127.0.0.1:port/db",
        "mongodb://user:hunter2 @/db",
        "mongodb://user:hun@ter2@127.0.0.1/db",
        "user:hunter2@127.0.0.1/db",
        "oracle://user:hunter2@127.0.0.1/db",
    ],
)
def test_a_password_of_a_database_is_not_repeated(url: str, tmp_path: Path) -> None:
    env = clean_environment({"OUTBOX_DATABASE": url})
    line = [sys.executable, "-m", "mainspring", "outbox", "show"]
    done = subprocess.run(line, env=env, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert "hunter2" not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "engine",
    [
        "postgresql://127.0.0.1:1/db?user=u&password=hunter2",
        "postgresql://127.0.0.1:1/db?sslpassword=hunter2",
        "postgresql://u:hun/hunter2@127.0.0.1:1/db",
        "nats://u:hun@hunter2@127.0.0.1:1/x",
        "mongodb://u:hun?hunter2@127.0.0.1:1/x",
        "nats:u:hunter2@127.0.0.1",
        "host=127.0.0.1 password=hunter2",
    ],
)
def test_a_password_of_the_engine_is_not_shown(engine: str, tmp_path: Path) -> None:
    env = clean_environment({"MAINSPRING_ENGINE": engine})
    for words in (("settings",), ("settings", "--json"), ("log", "stats")):
        line = [sys.executable, "-m", "mainspring", *words]
        done = subprocess.run(line, env=env, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
        assert "hunter2" not in done.stdout + done.stderr, words
        assert "Traceback" not in done.stderr, words


def test_answers_say_nothing_of_what_runs_here_and_are_for_their_reader_alone(node: Victim) -> None:
    for path, token in (("/topics", OPS), ("/healthz", None), ("/topics", None), ("/nothing", OPS), ("/metrics", OPS)):
        headers = node.ask("GET", path, token=token).headers
        assert headers["x-content-type-options"] == "nosniff", path
        assert headers["cross-origin-resource-policy"] == "same-origin", path
        assert "no-store" in headers["cache-control"], path
        assert "aiohttp" not in headers["server"].lower(), path
        assert "python" not in headers["server"].lower(), path
    assert b"aiohttp" not in sent(node, b"nonsense\r\n\r\n").lower()


def test_pages_of_other_sites_cannot_include_an_answer(node: Victim) -> None:
    for site in ("cross-site", "same-site"):
        given = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "no-cors"}
        assert node.ask("GET", "/topics", token=OPS, headers=given).status == 403
    for given in ({"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "no-cors"}, {"Sec-Fetch-Mode": "navigate"}):
        assert node.ask("GET", "/topics", token=OPS, headers=given).status == 200


def test_a_socket_is_not_put_into_a_folder_of_somebody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    runtime = tmp_path / "run"
    (runtime / "mainspring").mkdir(parents=True)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    own = tmp_path / "data" / "kernel.sock"
    assert place_to_listen("", str(tmp_path / "data"), "kernel.sock") == runtime / "mainspring" / "kernel.sock"
    someone = os.stat(runtime).st_uid + 1
    monkeypatch.setattr(os, "geteuid", lambda: someone)
    if os.stat(runtime).st_uid:  # a folder of root is trusted
        with pytest.raises(BootError, match="belongs to another user"):
            listen_at(runtime / "mainspring" / "kernel.sock")
    assert place_to_listen("", str(tmp_path / "data"), "kernel.sock") == own


def answers(token: str, *asked: str) -> tuple[int, dict[str, Any]]:
    from tests.support.victim import TOKENS

    line = [sys.executable, "-m", "mainspring", "token", "check", "--json", *asked]
    env = clean_environment({"MAINSPRING_TOKENS": TOKENS})
    done = subprocess.run(line, input=token, env=env, capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, json.loads(done.stdout)["allowed"]


def test_a_token_can_be_asked_what_it_may() -> None:
    code, allowed = answers(
        READER, "--query", "Memory.Get", "--command", "Pay.Now", "--run", "checkout", "--group", "g"
    )
    assert code == 1
    assert allowed == {"query:Memory.Get": False, "command:Pay.Now": False, "run:checkout": False, "group:g": False}
    code, allowed = answers(OPS, "--query", "Memory.Get", "--run", "checkout", "--group", "g", "--publish", "t.DLQ")
    assert code == 0
    assert all(allowed.values())
