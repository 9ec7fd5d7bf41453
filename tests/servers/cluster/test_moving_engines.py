"""A log moves from one machine's file to a server, to another kind of server and back, also while nodes serve."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.processes import ServedNode, mongo, nats
from tests.support.serving import clean_environment

TOPICS_OF_THE_NODE = "system."
SPACES_OF_DATA = ("topics", "groups", "schedules", "schemas", "memory", "runs", "commands")


def mainspring(*arguments: str) -> str:
    command = [sys.executable, "-m", "mainspring", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=clean_environment(), timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def entries(export: Path) -> dict[str, Any]:
    """What belongs to users: events, tails and records, without the bytes of bookkeeping that a start may add."""
    found: dict[str, Any] = {}
    for line in map(json.loads, export.read_text().splitlines()):
        if line["kind"] in ("event", "tail") and not line["topic"].startswith(TOPICS_OF_THE_NODE):
            place = (line["kind"], line["topic"], line.get("partition", 0), line.get("offset", 0))
            found[str(place)] = line
        elif line["kind"] == "record" and line["space"] in SPACES_OF_DATA:
            found[f"{line['space']} {line['key']}"] = line.get("value")
    return found


def work_with(node: ServedNode) -> None:
    """Something of everything that must survive: events, a group's place, a value, a schedule."""
    for n in range(20):
        assert node.publish("orders", {"n": n}) == 201
    status, _ = node.ask(
        "POST", "/messages", {"kind": "command", "type": "Memory.Set", "data": {"key": "/k", "value": 1}}
    )
    assert status == 200
    url = f"ws://127.0.0.1:{node.process.port}"
    mainspring("sub", "orders", "--group", "billing", "--from", "beginning", "--count", "7", "--url", url)
    schedule = {"name": "nightly", "topic": "orders", "payload": 1, "cron": "0 3 * * *"}
    assert node.ask("POST", "/schedules", schedule)[0] in (200, 201)


def check(node: ServedNode) -> None:
    assert node.payloads("orders") == [{"n": n} for n in range(20)]
    status, answer = node.ask("POST", "/messages", {"kind": "query", "type": "Memory.Get", "data": {"key": "/k"}})
    assert (status, answer["data"]) == (200, {"value": 1})
    _, groups = node.ask("GET", "/groups/orders/billing")
    assert groups["partitions"][0]["lastCommitted"] == 7, groups
    assert node.ask("GET", "/schedules/nightly")[0] == 200


def test_a_log_goes_from_a_file_to_nats_to_mongodb_and_back_to_a_file(tmp_path: Path) -> None:
    first, second, third = (tmp_path / f"{name}.jsonl" for name in ("first", "second", "third"))
    node = ServedNode(tmp_path, "alone", "sqlite")
    with node.process:
        work_with(node)
        check(node)
    data = str(node.process.folder / "data")
    mainspring("log", "export", str(first), "--data", data)

    with nats(tmp_path) as stream:
        mainspring("log", "import", str(first), "--engine", stream.address)
        a, b = ServedNode(tmp_path, "a", stream.address), ServedNode(tmp_path, "b", stream.address)
        with a.process, b.process:
            check(a)
            check(b)
            mainspring("log", "export", str(second), "--engine", stream.address)  # while both serve
            stats = json.loads(mainspring("log", "stats", "--json", "--engine", stream.address))
            (orders,) = (topic for topic in stats["topics"] if topic["topic"] == "orders")
            assert orders["partitions"][0]["tail"] == 20
    before, after = entries(first), entries(second)
    assert {place: after.get(place) for place in before} == before
    live = [line for line in second.read_text().splitlines() if '"space":"nodes"' in line or '"key":"node/' in line]
    assert live == [], "who is alive is no part of the data"

    with mongo(tmp_path) as server:
        mainspring("log", "import", str(second), "--engine", server.address)
        c = ServedNode(tmp_path, "c", server.address)
        with c.process:
            check(c)
        mainspring("log", "export", str(third), "--engine", server.address)

    home = tmp_path / "home"
    mainspring("log", "import", str(third), "--data", str(home / "data"))
    back = ServedNode(tmp_path, "home", "sqlite")
    with back.process:
        check(back)
        assert back.publish("orders", "goes on") == 201
        assert back.ask("GET", "/topics/orders/offsets")[1]["partitions"][0]["tail"] == 21


def test_a_log_is_not_imported_over_another(tmp_path: Path) -> None:
    export = tmp_path / "log.jsonl"
    node = ServedNode(tmp_path, "alone", "sqlite")
    with node.process:
        assert node.publish("orders", 1) == 201
    mainspring("log", "export", str(export), "--data", str(node.process.folder / "data"))
    with nats(tmp_path) as stream:
        mainspring("log", "import", str(export), "--engine", stream.address)
        command = [sys.executable, "-m", "mainspring", "log", "import", str(export), "--engine", stream.address]
        again = subprocess.run(
            command, capture_output=True, text=True, env=clean_environment(), timeout=60, check=False
        )
    assert again.returncode == 1
    assert "not empty" in again.stderr
