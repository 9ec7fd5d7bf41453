"""What no round can hold, because a promise of the servers is broken, with real nodes and what an operator does then.

Servers that lose power, a stream that is deleted, a server without TLS. (Clocks that are wrong, subscriptions that are
refused at first, and a stream that is edited are faults of every round.)
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import nats
import pytest

from tests.support.nats_server import NatsServer
from tests.support.processes import ServedNode, eventually
from tests.support.serving import clean_environment


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path / "nats").start()
    yield server
    server.kill()


def mainspring(*arguments: str, cwd: Path, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "mainspring", *arguments],
        capture_output=True,
        text=True,
        env=clean_environment(),
        cwd=cwd,
        check=False,
    )
    assert done.returncode == code, f"{done.returncode}: {done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def publish(node: ServedNode, *ids: str) -> None:
    for id in ids:
        node.insist("work", id, id)


def set_back(server: NatsServer, older: Path) -> None:
    """As after a loss of power: the files of before."""
    server.kill()
    shutil.rmtree(server.place / "store")
    shutil.copytree(older, server.place / "store")


def test_servers_that_lost_power_cost_nothing_that_an_operator_cannot_bring_back(
    server: NatsServer, tmp_path: Path
) -> None:
    url = server.url("chaos", patience=2)
    one, two = ServedNode(tmp_path, "one", url), ServedNode(tmp_path, "two", url)
    with one.process:
        publish(one, "kept-0", "kept-1")
        server.stop()
        shutil.copytree(server.place / "store", tmp_path / "older")
        server.start()
        publish(one, "lost-0", "lost-1")
        one.process.signal(signal.SIGSTOP)  # it does not look while another node writes
        set_back(server, tmp_path / "older")
        server.start()
        with two.process:
            publish(two, *(f"new-{n}" for n in range(20)))
            one.process.signal(signal.SIGCONT)
            assert one.process.wait() != 0
            assert "two histories" in one.process.errors()
            one.process.launch()
            eventually(lambda: one.payloads("work") == two.payloads("work"), "both nodes to show the same")
            (kept,) = (tmp_path / "one" / "data").glob("nats-chaos.sqlite3.replaced-1")
            shown = mainspring("engine", "compare", str(kept), url, cwd=tmp_path, code=3)
            assert "lost-0" in shown
            address = f"ws://127.0.0.1:{two.process.port}"
            mainspring("engine", "recover", str(kept), "--compare-with", url, "--url", address, "--yes", cwd=tmp_path)
            eventually(lambda: {"lost-0", "lost-1"} <= set(one.payloads("work")), "what was lost to be back")
            assert sorted(one.payloads("work")) == sorted(two.payloads("work"))
            assert len(one.payloads("work")) == 24


def test_a_deleted_stream_is_begun_anew_only_when_somebody_says_so(server: NatsServer, tmp_path: Path) -> None:
    url = server.url("chaos", patience=1)
    one, new = ServedNode(tmp_path, "one", url), ServedNode(tmp_path, "new", url)
    with one.process:
        publish(one, "e-0")
        delete_stream(server)
        eventually(lambda: "gone from the server" in one.process.errors(), "the node to say it")
        assert one.ask("POST", "/topics/work/events", {"payload": 1})[0] != 201
        assert one.payloads("work") == ["e-0"]
        new.process.launch()
        assert new.process.boot["data"]["reason"] == "no_log", new.process.boot
        assert "--begin-anew" in new.process.errors() + str(new.process.boot)
        new.process.__exit__(None, None, None)
        assert "gone" in mainspring("engine", "check", url, cwd=tmp_path, code=4)
    data = tmp_path / "one" / "data"
    mainspring("engine", "recover", str(data / "nats-chaos.sqlite3"), "--into", "rescued", cwd=tmp_path)
    mainspring("log", "export", "rescued.ndjson", "--engine", "sqlite", "--data", "rescued", cwd=tmp_path)
    mainspring("engine", "init", url, "--begin-anew", cwd=tmp_path)
    mainspring("log", "import", "rescued.ndjson", "--engine", url, cwd=tmp_path)
    two = ServedNode(tmp_path, "two", url)
    with two.process:
        assert two.payloads("work") == ["e-0"]


def test_a_node_that_was_told_to_use_tls_says_nothing_to_a_server_without(server: NatsServer, tmp_path: Path) -> None:
    server.scheme = "tls"
    node = ServedNode(tmp_path, "one", server.url("chaos", patience=1))
    node.process.launch()
    assert node.process.boot["type"] == "Sys.BootFailed", node.process.boot
    assert "TLS" in str(node.process.boot) + node.process.errors()
    node.process.__exit__(None, None, None)


def delete_stream(server: NatsServer) -> None:
    async def work() -> None:
        client = await nats.connect(server.host)
        await client.jetstream().delete_stream("MAINSPRING_chaos")
        await client.close()

    asyncio.run(work())
