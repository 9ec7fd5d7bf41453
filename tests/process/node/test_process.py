"""A node as a process: its first line, its exit codes, its signals, what it leaves behind."""

import contextlib
import json
import os
import pty
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from tests.support.serving import Serving, serving


def test_the_first_line_is_the_boot_message_and_every_socket_listens(tmp_path: Path) -> None:
    with serving(tmp_path) as node:
        assert node.boot["kind"] == "event"
        assert node.boot["data"]["timers"] == {"defaultTimeout": 30_000}
        adapters = node.boot["data"]["adapters"]
        assert f"unix:{node.kernel_socket}" in adapters
        assert f"unix:{node.loop_socket}" in adapters
        for path in (node.kernel_socket, node.loop_socket):
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(path))
        with socket.create_connection(("127.0.0.1", node.port)):
            pass


def at_a_terminal(folder: Path, *arguments: str) -> str:
    """What a person sees of the first line and everything after it, until the node has ended.

    On a busy machine the watchdog may have something to say, too, which is left out.
    """
    node = Serving(*arguments, folder=folder)
    person, terminal = pty.openpty()
    with subprocess.Popen(node.command, stdout=terminal, stderr=terminal, env=node.env, cwd=folder) as process:
        os.close(terminal)
        seen = b""
        with open(person, "rb", buffering=0) as screen, contextlib.suppress(OSError):  # EIO: the other end is closed
            while chunk := screen.read(4096):
                seen += chunk
                if b"Ctrl-C stops it." in chunk:
                    process.send_signal(signal.SIGINT)
        process.wait(30)
    return "\n".join(line for line in seen.decode().splitlines() if " mainspring.loop: " not in line)


def test_a_terminal_gets_a_sentence_and_no_json(tmp_path: Path) -> None:
    seen = at_a_terminal(tmp_path)
    assert seen.startswith("a node is ready at http://127.0.0.1:")
    assert "log: memory" in seen.splitlines()[0]
    assert "Sys.BootComplete" not in seen


def test_a_terminal_gets_the_line_of_json_when_it_asks(tmp_path: Path) -> None:
    first, second = at_a_terminal(tmp_path, "--json").splitlines()[:2]
    assert json.loads(first)["type"] == "Sys.BootComplete"
    assert second.startswith("a node is ready at http://127.0.0.1:")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_in_order_and_leaves_no_socket(tmp_path: Path, number: signal.Signals) -> None:
    with serving(tmp_path) as node:
        node.signal(number)
        assert node.wait() == 0
        assert not node.kernel_socket.exists()
        assert not node.loop_socket.exists()


def fails_to_boot(node: Serving, *, mentions: str) -> dict[str, object]:
    node.launch()
    assert node.wait() == 1
    assert node.boot["kind"] == "error"
    assert node.boot["type"] == "Sys.BootFailed"
    assert mentions in node.boot["data"]["message"], node.boot
    assert "Traceback" not in node.errors()
    assert not node.kernel_socket.exists()
    assert not node.loop_socket.exists()
    data: dict[str, object] = node.boot["data"]
    return data


def test_a_port_in_use_is_a_failed_boot(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        node = Serving("--port", str(port), folder=tmp_path)
        data = fails_to_boot(node, mentions=str(port))
        assert data["phase"] == "ADAPT"


@pytest.mark.parametrize(
    ("arguments", "mentions"),
    [
        (["--host", "0.0.0.0"], "token"),
        (["--engine", "floppy"], "floppy"),
        (["--log-level", "shout"], "shout"),
        (["nothing_here:app"], "nothing_here"),
        (["no-colon"], "MODULE:APP"),
        (["json:nothing"], "nothing"),
        (["json:dumps"], "App"),
    ],
)
def test_what_cannot_be_started_says_why(tmp_path: Path, arguments: list[str], mentions: str) -> None:
    fails_to_boot(Serving(*arguments, folder=tmp_path), mentions=mentions)


def test_a_program_that_raises_while_it_is_imported_is_a_failed_boot(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("raise RuntimeError('not today')\n")
    data = fails_to_boot(Serving("broken:app", folder=tmp_path), mentions="not today")
    assert data["phase"] == "LOAD"


def test_a_setting_nobody_knows_is_a_failed_boot(tmp_path: Path) -> None:
    fails_to_boot(Serving(folder=tmp_path, env={"MAINSPRING_PROT": "1"}), mentions="MAINSPRING_PROT")


def test_logs_can_be_json_lines(tmp_path: Path) -> None:
    with serving(tmp_path, "--log-format", "json") as node:
        node.signal(signal.SIGTERM)
        assert node.wait() == 0
        lines = [json.loads(line) for line in node.errors().splitlines()]
        assert any("SIGTERM" in line["message"] for line in lines)
        assert all({"ts", "level", "logger", "message"} <= line.keys() for line in lines)
