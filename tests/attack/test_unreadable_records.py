"""One record that nobody can read ends no node for good: it is named, it is kept, and everything else goes on.

An operator expects what Kafka does with a damaged segment, or better: the node starts, says which record it is, serves
all the rest, and loses nothing that was not lost already.
"""

from __future__ import annotations

import json
import signal
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from subprocess import run
from typing import Any

import pytest

from mainspring.log import Batch, BlockingLog, SqliteEngine
from tests.support.client_node import eventually
from tests.support.serving import clean_environment
from tests.support.victim import OPS, PUBLISHER, Victim, attacked

PROGRAM = """
from typing import Any

from mainspring import App, Perform, WaitSignal

app = App("shop")


def reserve(order: str) -> str:
    return f"reserved {order}"


@app.run
async def checkout(order: str, perform: Perform) -> str:
    await perform.step(reserve, order)
    paid: Any = await perform(WaitSignal("paid"))
    return f"{order}: {paid}"


@app.consumer("orders.in", group="billing")
async def bill(payload: Any) -> None:
    pass


app.beats_from("orders.in")


@app.enzyme("/topics/orders.in", match="prefix")
def count(signal: str, target: Any, stage: Any) -> None:
    stage.add("/seen", 1)
"""


def make(folder: Path) -> Victim:
    (folder / "shop.py").write_text(PROGRAM)
    node = Victim("shop:app", folder=folder, engine="sqlite", env=_env())
    node.launch()
    assert node.boot["type"] == "Sys.BootComplete", node.errors()
    return node


def _env() -> dict[str, str]:
    from tests.support.victim import TOKENS

    return {"MAINSPRING_TOKENS": TOKENS, "PYTHONPATH": "."}


def ask(node: Victim, kind: str, type: str, **data: Any) -> Any:
    answer = node.ask("POST", "/messages", {"kind": kind, "type": type, "data": data}, OPS)
    assert answer.status == 200, answer.body
    return answer.json["data"]


def fill(node: Victim) -> None:
    """Something of everything that a node stores."""
    closed = {"topic": "orders.secret", "subscribeACL": ["nobody-at-all"]}
    for body in ({"topic": "orders.in"}, {"topic": "orders.other", "partitions": 3}, closed):
        assert node.ask("POST", "/topics", body, OPS).status in (200, 201)
    assert node.ask("POST", "/schemas/orders.other", {"schema": {"type": "object"}}, OPS).status in (200, 201)
    for name in ("orders.in", "orders.other", "orders.secret"):
        assert node.ask("POST", f"/topics/{name}/events", {"payload": {"n": 1}}, OPS).status == 201
    schedule = {"name": "nightly", "topic": "orders.in", "payload": 1, "cron": "0 3 * * *"}
    assert node.ask("POST", "/schedules", schedule, OPS).status in (200, 201)
    late = {"payload": {"n": 2}, "delay_ms": 86_400_000}
    assert node.ask("POST", "/topics/orders.in/events", late, OPS).status in (201, 202)
    for key, value in (("/a", {"n": 1}), ("/b", 1)):
        ask(node, "command", "Memory.Set", key=key, value=value)
    for id in ("run-1", "run-2"):
        ask(node, "command", "Run.Start", program="checkout", args=["o"], id=id)


def stop(node: Victim) -> Path:
    node.signal(signal.SIGTERM)
    assert node.wait() == 0
    return node.folder / "data" / "log.sqlite3"


def first_keys(file: Path) -> dict[str, str]:
    """The key of one record of each space."""
    with closing(sqlite3.connect(file)) as connection:
        rows = connection.execute("SELECT space, min(key) FROM records GROUP BY space").fetchall()
    return {space: key for space, key in rows if not space.startswith(("beats", "journal/beats"))}


def garbage_values(file: Path, places: dict[str, str]) -> None:
    with BlockingLog(SqliteEngine(file)) as log:
        batch = Batch()
        for space, key in places.items():
            batch.put(space, key, b"\xff\x00 garbage \x1b[2J")
        log.commit(batch)


def rotten_bytes(file: Path, places: dict[str, str]) -> None:
    with closing(sqlite3.connect(file)) as connection:
        for space, key in places.items():
            connection.execute(
                "UPDATE records SET value = CAST('rotten' AS BLOB) WHERE space = ? AND key = ?", (space, key)
            )
        connection.commit()


def rotten_columns(file: Path, places: dict[str, str]) -> None:
    with closing(sqlite3.connect(file)) as connection:
        for space, key in places.items():
            connection.execute("UPDATE records SET value = 'text', crc = 0 WHERE space = ? AND key = ?", (space, key))
        connection.commit()


@pytest.mark.parametrize("damage", [garbage_values, rotten_bytes, rotten_columns])
async def test_a_record_of_every_kind(tmp_path: Path, damage: Callable[[Path, dict[str, str]], None]) -> None:
    node = make(tmp_path)
    with node_ended(node):
        fill(node)
        await eventually(lambda: _has_run(node))
        file = stop(node)
        places = first_keys(file)
        assert {"topics", "schemas", "schedules", "groups", "memory", "runs/live", "journal/runs"} <= set(places), (
            places
        )
        damage(file, places)
        node.restart()

        # everything that was not hit is there, and writing goes on
        assert node.ask("GET", "/healthz").status == 200
        for name in ("orders.in", "orders.other", "orders.secret"):
            assert node.ask("POST", f"/topics/{name}/events", {"payload": {"n": 3}}, OPS).status == 201
            assert node.ask("GET", f"/topics/{name}/events", token=OPS).json["events"]
        assert ask(node, "query", "Memory.List", prefix="/")["keys"] == ["/b"]
        ask(node, "command", "Memory.Set", key="/a", value={"n": 2})
        assert ask(node, "query", "Memory.Get", key="/a")["value"] == {"n": 2}
        assert "run-2" in json.dumps(ask(node, "query", "Run.List"))

        # each is named, in the log and in a notice
        errors = node.errors()
        assert "\x1b" not in errors
        for space, key in places.items():
            if space not in ("journal/runs", "runs/progress", "runs/signals", "nodes", "compaction"):
                assert f"the record {key!r} in {space!r} cannot be read" in errors, (space, errors[-3000:])
        while b"record_set_aside" not in node.ask("GET", "/topics/system.bus.audit/events?limit=1000", token=OPS).body:
            pass  # what the node notes is written a moment later

        # and is kept: in its place, or where something was written over it
        stop(node)
        report = checked(tmp_path)
        named = json.dumps([*report["problems"], *report["set_aside"]])
        for space, key in places.items():
            assert key in named or space in ("running",), (space, key, named)


def checked(folder: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "mainspring", "log", "check", "--json", "--data", str(folder / "data")]
    done = run(command, capture_output=True, text=True, env=clean_environment(), check=False)
    assert done.returncode == 3, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


async def _has_run(node: Victim) -> bool:
    with closing(sqlite3.connect(node.folder / "data" / "log.sqlite3")) as connection:
        found = dict(connection.execute("SELECT space, count(*) FROM records GROUP BY space").fetchall())
    return found.get("journal/runs", 0) >= 2 and "groups" in found


class node_ended:
    def __init__(self, node: Victim) -> None:
        self.node = node

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: Any) -> None:
        self.node.__exit__(None, None, None)


def test_a_topic_whose_lists_cannot_be_read_is_closed(tmp_path: Path) -> None:
    with attacked(tmp_path, engine="sqlite") as node:
        body = {"topic": "orders.secret", "publishACL": ["somebody-else"]}
        assert node.ask("POST", "/topics", body, OPS).status in (200, 201)
        assert node.ask("POST", "/topics/orders.secret/events", {"payload": 1}, PUBLISHER).status == 403
        file = stop(node)
        garbage_values(file, {"topics": "orders.secret"})
        node.restart()
        assert node.ask("POST", "/topics/orders.secret/events", {"payload": 1}, PUBLISHER).status == 403
        assert node.ask("GET", "/topics/orders.secret/events", token=PUBLISHER).status == 403
        assert node.ask("POST", "/topics/orders.free/events", {"payload": 1}, PUBLISHER).status == 201
        assert node.ask("POST", "/topics", {"topic": "orders.secret"}, OPS).status in (200, 201)
        assert node.ask("POST", "/topics/orders.secret/events", {"payload": 1}, PUBLISHER).status == 201


async def test_a_run_whose_journal_cannot_be_read_is_blocked_and_does_nothing_twice(tmp_path: Path) -> None:
    node = make(tmp_path)
    with node_ended(node):
        fill(node)
        await eventually(lambda: _has_run(node))
        file = stop(node)
        with closing(sqlite3.connect(file)) as connection:
            (key,) = connection.execute(
                "SELECT min(key) FROM records WHERE space = 'journal/runs' AND key LIKE 'run-1#%'"
            ).fetchone()
        garbage_values(file, {"journal/runs": key})
        node.restart()
        ask(node, "command", "Run.Signal", id="run-2", name="paid", value=1)
        found = {each["id"]: each for each in ask(node, "query", "Run.List")["runs"]}
        assert found["run-1"]["state"] == "blocked"
        ask(node, "command", "Run.Retry", id="run-1", keep="nothing")

        async def goes_on() -> bool:
            runs = {each["id"]: each["state"] for each in ask(node, "query", "Run.List")["runs"]}
            return runs == {"run-1": "running", "run-2": "done"}

        await eventually(goes_on)
