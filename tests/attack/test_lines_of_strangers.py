"""What comes as a file, on standard input or on the subject of the log ends nothing: it is refused or passed over.

A person imports a file of somebody else, a language model sends any line to `mainspring mcp`, and whoever may publish
on the NATS server can hit the subject of the log by mistake. Each is tried with the command or the node itself.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import nats
import pytest

from tests.support.client_node import eventually
from tests.support.nats_server import shared_server
from tests.support.serving import PATIENCE_S, clean_environment
from tests.support.victim import OPS, PUBLISHER, attacked

RECORD = b'{"kind":"record","space":"%b","key":"%b","version":1,"value":%b}'
EVENT = b'{"kind":"event","topic":"%b","partition":%d,"offset":1,"id":"i","ts":1,%b}'


def command(*words: str, given: bytes, folder: Path, token: str = "") -> subprocess.CompletedProcess[bytes]:
    line = [sys.executable, "-m", "mainspring", *words]
    env = clean_environment({"BUS_TOKEN": token} if token else None)
    return subprocess.run(line, input=given, env=env, cwd=folder, capture_output=True, check=False, timeout=PATIENCE_S)


@pytest.mark.parametrize(
    "line",
    [
        RECORD % (b"topics", b"orders", b'"garbage"'),
        RECORD % (b"schemas", b"orders|0001", b"[]"),
        RECORD % (b"groups", b"orders|g", b'"garbage"'),
        RECORD % (b"schedules", b"delayed/0001794850392099/x", b"[1]"),
        EVENT % (b"a b\\n", 0, b'"payload":1'),
        EVENT % (b"orders", -1, b'"payload":1'),
        EVENT % (b"orders", 0, b'"payload_b64":"e3s="'),
        EVENT % (b"orders", 0, b'"payload":' + b"[" * 100_000),
        b"[" * 100_000,
        b'{"a":' * 5_000,
        b"\xff\xfe\x00",
    ],
    ids=lambda line: line[:50].decode("utf-8", "replace"),
)
def test_an_import_takes_nothing_that_would_end_a_node(line: bytes, tmp_path: Path) -> None:
    counts = b'"events":1,"records":0' if b'"event"' in line else b'"events":0,"records":1'
    lines = b'{"kind":"log","format":1,"engine":"sqlite"}\n' + line + b'\n{"kind":"end",%b,"marks":0}\n' % counts
    done = command("log", "import", "--data", str(tmp_path / "data"), given=lines, folder=tmp_path)
    assert done.returncode == 1
    assert b"line 2 of the export" in done.stderr
    assert b"Traceback" not in done.stderr
    assert list((tmp_path / "data").iterdir()) == []


def test_no_line_ends_the_server_of_a_model_and_nothing_that_changes_is_offered(tmp_path: Path) -> None:
    ask = '{"jsonrpc":"2.0","id":%d,"method":"%s","params":%s}'
    started = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    shutdown = {"name": "Syscall_Shutdown", "arguments": {}}
    lines = [
        b"[" * 100_000,
        b'"\\ud800"',
        b"\xff",
        b'{"jsonrpc":"2.0","id":"\\ud800","method":"tools/list"}',
        (ask % (1, "initialize", json.dumps(started))).encode(),
        (ask % (2, "tools/list", "{}")).encode(),
        (ask % (3, "tools/call", json.dumps(shutdown))).encode(),
    ]
    with attacked(tmp_path) as node:
        done = command("mcp", "--url", node.url, given=b"\n".join(lines) + b"\n", folder=tmp_path, token=OPS)
        assert done.returncode == 0, done.stderr
        answers = {answer["id"]: answer for answer in map(json.loads, done.stdout.splitlines())}
        tools = {tool["name"] for tool in answers[2]["result"]["tools"]}
        assert "Bus_Read" in tools
        assert not tools & {"Syscall_Shutdown", "Bus_Publish", "Memory_Set", "Run_Start"}
        assert "error" in answers[3] or answers[3]["result"]["isError"]
        assert node.ask("POST", "/topics/orders.x/events", {"payload": 1}, PUBLISHER).status == 201


async def test_a_stray_message_on_the_subject_of_the_log_ends_no_node(tmp_path: Path) -> None:
    server, name = shared_server(), f"strays-{tmp_path.name[-12:]}"
    with attacked(tmp_path, engine=server.url(name)) as node:
        assert node.ask("POST", "/topics/orders.x/events", {"payload": 1}, PUBLISHER).status == 201
        client = await nats.connect(server.url(name).rpartition("/")[0])
        stream = client.jetstream()
        for stray in (b"MSJ\x02x", b"MSJ\xff" + bytes(50), b"\x00" * 10):
            await stream.publish(f"mainspring.journal.{name}", stray)
        await client.close()
        assert node.ask("POST", "/topics/orders.x/events", {"payload": 2}, PUBLISHER).status == 201

        async def named() -> bool:
            return "was written by no node; passed over" in node.errors()

        await eventually(named)
        node.signal(signal.SIGTERM)
        assert node.wait() == 0
        node.restart()
        events = node.ask("GET", "/topics/orders.x/events", token=OPS).json["events"]
        assert [event["payload"] for event in events] == [1, 2]
