"""Whatever blocks the loop of a real node is named: in the log with its stack, in /metrics, and in /node."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.paths import ROOT
from tests.support.serving import PATIENCE_S, Serving

NODE_ENV = {"MAINSPRING_SLOW_TURN_MS": "20", "MAINSPRING_LOG_FORMAT": "json", "PYTHONPATH": str(ROOT)}

CASES = [
    ("command", "Order.Place", ("message", "command", "Order.Place"), "in place"),
    ("query", "Order.Count", ("message", "query", "Order.Count"), "in count"),
    ("event", "Order.Placed", ("message", "command", "Order.Tell"), "in hear"),
    ("consumer", "bill of topic orders", ("event", "orders", {}), "in bill"),
    ("task", "post", ("message", "command", "Letter.Post"), "in post"),
    ("schedule", "sweep", None, "in sweep"),
    ("run", "compute", ("event", "payments", "compute"), "in compute"),
    ("effect", "Refund", ("event", "payments", "give_back"), "in refund"),
    ("enzyme", "pack", ("event", "parcels", {}), "in pack"),
]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("blocking")
    with Serving("tests.support.blocking_program:app", folder=folder, env=NODE_ENV) as serving:
        yield serving


def request(node: Serving, path: str, body: Any = None) -> str:
    url = f"http://127.0.0.1:{node.port}{path}"
    data = None if body is None else json.dumps(body).encode()
    with urlopen(Request(url, data, {"Content-Type": "application/json"}), timeout=PATIENCE_S) as answer:
        return str(answer.read().decode())


def blocked(node: Serving, kind: str, name: str) -> dict[str, Any]:
    """Wait until the node shows it."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        shown = json.loads(request(node, "/node"))["slowTurns"]
        for each in shown:
            if each["kind"] == kind and name in each["name"]:
                return dict(each)
        assert time.monotonic() < deadline, shown
        time.sleep(0.02)


def log_lines(node: Serving, kind: str, name: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in node.errors().splitlines() if line.startswith("{")]
    return [line for line in lines if line.get("kind") == kind and name in line.get("name", "")]


@pytest.mark.parametrize(("kind", "name", "trigger", "where"), CASES, ids=[f"{case[0]} {case[1]}" for case in CASES])
def test_what_blocks_is_named_with_its_stack(
    node: Serving, kind: str, name: str, trigger: tuple[str, str, Any] | None, where: str
) -> None:
    if trigger is not None:
        how, first, second = trigger
        if how == "message":
            request(node, "/messages", {"kind": first, "type": second, "data": None})
        else:
            request(node, f"/topics/{first}/events", {"payload": second})
    shown = blocked(node, kind, name)
    assert shown["ms"] >= shown["limitMs"] == 20
    assert "blocking_program.py" in shown["where"]
    assert where in shown["stack"]
    warning, ended = log_lines(node, kind, name)
    assert warning["level"] == ended["level"] == "warning"
    assert "has blocked the loop" in warning["message"]
    assert where in warning["stack"]
    assert "blocked the loop for" in ended["message"]
    families = {family.name: family for family in text_string_to_metric_families(request(node, "/metrics"))}
    for family, least in (("mainspring_loop_blocked", 1), ("mainspring_loop_blocked_seconds", 0.02)):
        (value,) = [each.value for each in families[family].samples if each.labels == {"kind": kind}]
        assert value >= least
    assert families["mainspring_loop_slow_turns"].samples[0].value >= 1


def test_a_process_that_was_stopped_is_not_reported_as_a_handler(tmp_path: Path) -> None:
    with Serving("tests.support.blocking_program:app", folder=tmp_path, env=NODE_ENV) as node:
        blocked(node, "schedule", "sweep")
        before = len(json.loads(request(node, "/node"))["slowTurns"])
        node.signal(signal.SIGSTOP)
        time.sleep(2.5)  # the length of the stop is what this test is about
        node.signal(signal.SIGCONT)
        shown = blocked(node, "process", "stopped")
        assert shown["ms"] >= 1_000
        later = json.loads(request(node, "/node"))["slowTurns"]
        assert {each["kind"] for each in later[: len(later) - before]} <= {"process"}
