"""Several node processes on one real server, in good weather and in bad."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes import Site, eventually, site
from tests.support.serving import clean_environment


@pytest.fixture(params=["mongo", "nats"])  # for PostgreSQL see tests/servers/postgres, which is quicker
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    with site(tmp_path, request.param) as found:
        yield found


# What does not depend on the server is tried on one.
on_nats = pytest.mark.parametrize("place", ["nats"], indirect=True)


def mainspring(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mainspring", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=clean_environment(), timeout=60, check=False)


def test_what_is_published_through_one_node_is_read_through_another_and_any_can_be_asked(place: Site) -> None:
    a, b = place.node("a"), place.node("b", "shop:app")
    assert a.publish("orders", {"n": 1}) == 201
    assert b.publish("orders", {"n": 2}) == 201
    both = [{"n": 1}, {"n": 2}]
    eventually(lambda: a.payloads("orders") == b.payloads("orders") == both, "both events on both nodes")

    eventually(lambda: "query:Stock.Count" in a.nodes()["b"]["serves"], "what b serves")
    asked = {"kind": "query", "type": "Stock.Count", "data": {"sku": 7}}
    status, answer = a.ask("POST", "/messages", asked)
    assert (status, answer["data"]) == (200, {"counted": {"sku": 7}})

    shown = mainspring("nodes", "--json", "--url", f"ws://127.0.0.1:{a.process.port}")
    found = [json.loads(line) for line in shown.stdout.splitlines()]
    assert [node["name"] for node in found] == ["a", "b"]
    assert found[1]["address"].endswith(str(b.process.port))
    people = mainspring("nodes", "--url", f"ws://127.0.0.1:{b.process.port}").stdout
    assert "b (asked)" in people
    assert " s ago" in people
    assert "Stock.Count" in people


def test_a_node_that_was_stopped_for_longer_than_its_lease_comes_back_with_a_new_epoch(place: Site) -> None:
    a, b = place.node("a"), place.node("b")
    before = eventually(lambda: a.nodes().get("b"), "a hears of b")["epoch"]
    b.process.signal(signal.SIGSTOP)
    eventually(lambda: "b" not in a.nodes(), "b loses its lease")
    b.process.signal(signal.SIGCONT)
    after = eventually(lambda: a.nodes().get("b"), "b joins again")["epoch"]
    assert after != before
    eventually(lambda: b.ready, "b is ready")
    assert b.publish("orders", 1) == 201


@on_nats
def test_a_killed_node_starts_again_at_once_under_its_name(place: Site) -> None:
    a, b = place.node("a"), place.node("b")
    before = a.nodes()["b"]["epoch"]
    b.process.kill()
    b = place.node("b")
    assert b.nodes()["b"]["epoch"] != before
    assert eventually(lambda: a.nodes()["b"]["epoch"] != before, "a hears of it")


@on_nats
def test_an_orderly_stop_gives_the_lease_back_at_once(place: Site) -> None:
    a, b = place.node("a"), place.node("b")
    b.process.signal(signal.SIGTERM)
    assert b.process.wait() == 0
    assert "b" not in a.nodes()


@on_nats
def test_a_second_node_of_a_name_is_refused(place: Site, tmp_path: Path) -> None:
    place.node("a")
    place.place = tmp_path / "elsewhere"
    place.place.mkdir()
    second = place.starting("a")
    second.process.launch()
    assert second.process.wait() == 1
    assert second.process.boot["data"]["reason"] == "name_taken", second.process.boot
    assert not second.process.kernel_socket.exists()


@on_nats
def test_a_data_directory_in_use_is_refused(place: Site) -> None:
    first = place.node("a")
    second = place.starting("b")
    second.process.command[second.process.command.index("--data") + 1] = str(first.process.folder / "data")
    second.process.launch()
    assert second.process.wait() == 1
    assert second.process.boot["data"]["reason"] == "log_locked"


def test_a_server_that_is_not_there_is_a_failed_boot(place: Site) -> None:
    place.server.kill()
    node = place.starting("a")
    node.process.launch()
    assert node.process.wait() == 1
    assert node.process.boot["type"] == "Sys.BootFailed"
    assert node.process.boot["data"]["reason"] == "log_unavailable"
    assert node.process.boot["data"]["phase"] == "LOAD"
    assert "Traceback" not in node.process.errors()
    assert not node.process.kernel_socket.exists()
    assert not node.process.loop_socket.exists()


@on_nats
def test_boot_can_wait_for_the_server(place: Site) -> None:
    place.server.kill()
    node = place.starting("a", "--wait-for-engine", "60")
    launched = threading.Thread(target=node.process.launch)
    launched.start()
    eventually(lambda: "waiting for the engine" in node.process.errors(), "a line that says so")
    place.server.start()
    launched.join(60)
    assert node.process.boot["type"] == "Sys.BootComplete"
    assert node.publish("orders", 1) == 201


@on_nats
def test_who_waits_for_the_server_can_be_told_to_stop(place: Site) -> None:
    place.server.kill()
    node = place.starting("a", "--wait-for-engine", "600")
    launched = threading.Thread(target=node.process.launch)
    launched.start()
    eventually(lambda: "waiting for the engine" in node.process.errors(), "a line that says so")
    node.process.signal(signal.SIGTERM)
    launched.join(60)
    assert node.process.wait() == 0
    assert not node.process.kernel_socket.exists()


def test_a_server_that_goes_away_while_serving_is_waited_for(place: Site) -> None:
    a, b = place.node("a"), place.node("b")
    assert a.publish("orders", 0) == 201
    epochs = {name: node["epoch"] for name, node in a.nodes().items()}
    place.server.kill()
    status, problem = eventually(
        lambda: found if (found := a.ask("GET", "/readyz"))[0] == 503 else None, "a says that it is not ready"
    )
    assert status == 503
    assert "is not ready" in problem["message"]
    assert a.ask("GET", "/healthz")[0] == 200
    assert a.publish("orders", "lost") == 503
    time.sleep(1)
    place.server.start()
    eventually(lambda: a.ready and b.ready, "both are ready again")
    assert a.publish("orders", 1) == 201
    assert b.publish("orders", 2) == 201
    stored = [payload for payload in b.payloads("orders") if payload != "lost"]
    assert stored == [0, 1, 2]
    assert {name: node["epoch"] for name, node in a.nodes().items()} == epochs, "an outage costs no leases"


def test_a_node_can_be_stopped_while_its_server_is_away(place: Site) -> None:
    node = place.node("a")
    assert node.publish("orders", 1) == 201
    place.server.kill()
    node.process.signal(signal.SIGTERM)
    assert node.process.wait() == 0
    assert not node.process.kernel_socket.exists()
    assert "Traceback" not in node.process.errors()


def test_an_engine_is_prepared_and_checked_from_the_command_line(place: Site) -> None:
    made = mainspring("engine", "init", place.server.address)
    assert made.returncode == 0, made.stderr
    assert mainspring("engine", "init", place.server.address).returncode == 0
    found = mainspring("engine", "check", "--json", place.server.address)
    statement = json.loads(found.stdout)
    assert found.returncode == (0 if statement["durable"] else 3)
    assert statement["statement"]
    place.server.kill()
    gone = mainspring("engine", "check", place.server.address)
    assert gone.returncode == 1
    assert "Traceback" not in gone.stderr


def test_what_is_not_durable_is_said_and_can_be_refused(place: Site) -> None:
    durable = json.loads(mainspring("engine", "check", "--json", place.server.address).stdout)["durable"]
    node = place.starting("a", "--require-durable")
    node.process.launch()
    if durable:
        assert node.process.boot["type"] == "Sys.BootComplete"
    else:
        assert node.process.wait() == 1
        assert node.process.boot["data"]["reason"] == "not_durable"
        other = place.node("b")
        assert "could still be lost" in other.process.errors()
