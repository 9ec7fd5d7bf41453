"""A handler that ends its process, in real processes: it is counted, and ends as a dead letter that says so.

The program is started again whenever it has ended, as a supervisor does, on every kind of log.
"""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.support.serving import Serving

PROGRAM = """
import os
from pathlib import Path

from mainspring import App, Event

app = App("shop")

@app.consumer("orders", group="billing", max_attempts=3, OPTIONS)
def bill(given: TYPE) -> None:
    for event in given if isinstance(given, list) else [given]:
        if event.payload == "deadly":
            os._exit(1)
        with open("handled.txt", "a") as handled:
            handled.write(event.payload + "\\n")
"""
TASKS = """
import os

from mainspring import App

app = App("shop")

@app.task(max_attempts=3, backoff="10ms")
def kill() -> None:
    os._exit(1)

@app.task(max_attempts=3, backoff="10ms")
def send(name: str) -> None:
    with open("handled.txt", "a") as handled:
        handled.write(name + "\\n")
"""
PATIENCE_S = 60
MOST_LIVES = 12


def ask(node: Serving, method: str, path: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{node.port}{path}", data=data, method=method, headers=headers)
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        return json.load(answer)


def lives_on(node: Serving, topic: str = "orders", group: str = "billing") -> bool:
    """Start it; whether it lives until every event is settled."""
    node.launch()
    try:
        while node.boot:
            (partition,) = ask(node, "GET", f"/topics/{topic}/offsets")["partitions"]
            if partition["groups"][group]["lag"] == 0:
                return True
    except (OSError, ValueError):
        pass  # it has ended
    assert node.wait() == 1, node.errors()
    return False


@pytest.mark.parametrize(
    ("options", "given"),
    [("concurrency=1", "Event[str]"), ("concurrency=8", "Event[str]"), ("batch=7", "list[Event[str]]")],
)
def test_an_event_that_ends_the_process_is_a_dead_letter_and_the_others_are_handled(
    tmp_path: Path, options: str, given: str
) -> None:
    (tmp_path / "shop.py").write_text("from mainspring import App\n\napp = App('shop')\n")
    names = [f"order-{n}" for n in range(20)]
    with Serving("shop:app", folder=tmp_path, engine="sqlite") as node:
        for name in (*names[:10], "deadly", *names[10:]):
            ask(node, "POST", "/topics/orders/events", {"payload": name})
    (tmp_path / "shop.py").write_text(PROGRAM.replace("OPTIONS", options).replace("TYPE", given))
    node = Serving("shop:app", folder=tmp_path, engine="sqlite")
    try:
        lives = next(n for n in range(1, MOST_LIVES) if lives_on(node))
        assert lives > 3
        (letter,) = ask(node, "GET", "/dlq/orders")["letters"]
        assert (letter["payload"], letter["attempts"]) == ("deadly", 3)
        assert letter["reason"] == "the process ended 3 times while this event was handled"
    finally:
        node.__exit__(None, None, None)
    assert set((tmp_path / "handled.txt").read_text().split()) == set(names)


def test_a_task_that_ends_the_process_is_a_dead_letter_and_the_others_are_done(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("from mainspring import App\n\napp = App('shop')\n")
    names = [f"order-{n}" for n in range(20)]
    with Serving("shop:app", folder=tmp_path, engine="sqlite") as node:
        for name in names:
            ask(node, "POST", "/topics/tasks.shop.send/events", {"payload": {"args": [name]}})
        ask(node, "POST", "/topics/tasks.shop.kill/events", {"payload": {"args": []}})
    (tmp_path / "shop.py").write_text(TASKS)
    node = Serving("shop:app", folder=tmp_path, engine="sqlite")
    try:
        lives = next(n for n in range(1, MOST_LIVES) if lives_on(node, "tasks.shop.kill", "shop"))
        assert lives <= 5  # three attempts, once before it is known that it may end the process, and the last one
        (letter,) = ask(node, "GET", "/dlq/tasks.shop.kill")["letters"]
        assert letter["reason"] == "the process ended 3 times while this task ran"
        while ask(node, "GET", "/topics/tasks.shop.send/offsets")["partitions"][0]["groups"]["shop"]["lag"]:
            pass
    finally:
        node.__exit__(None, None, None)
    assert set((tmp_path / "handled.txt").read_text().split()) == set(names)
