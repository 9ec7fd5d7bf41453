"""A handler that ends its process, in real processes: it is counted, and ends as a dead letter that says so.

The program is started again whenever it has ended, as a supervisor does, on every kind of log.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import time
import urllib.request
from collections.abc import Callable, Iterator
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


UNFINISHED = """
import os

from mainspring import App, Context, EffectFailed, Perform

app = App("shop")

@app.command("Order.Place", durable=True)
def place(data: str, ctx: Context) -> str:
    if data == "deadly":
        os._exit(1)
    return data

def charge(order: str) -> str:
    if order == "deadly":
        os._exit(1)
    return order

@app.run
async def checkout(order: str, perform: Perform) -> str:
    return await perform.step(charge, order, max_attempts=2)

@app.run
async def careful(order: str, perform: Perform) -> str:
    try:
        return await perform.step(charge, order, max_attempts=2)
    except EffectFailed as error:
        return str(error)

@app.task(max_attempts=2)
def ship(order: str) -> str:
    return charge(order)

@app.run
async def shipping(order: str, perform: Perform) -> str:
    return await perform.task(ship, order)
"""


def start(node: Serving, type: str, data: Any, id: str) -> None:
    """Ask for something that may end the process before it answers."""
    with contextlib.suppress(OSError, http.client.HTTPException):
        ask(node, "POST", "/messages", {"kind": "command", "type": type, "data": data, "id": id})


def query(node: Serving, type: str, data: Any) -> Any:
    return ask(node, "POST", "/messages", {"kind": "query", "type": type, "data": data})["data"]


def metric(node: Serving, name: str) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{node.port}/metrics", timeout=PATIENCE_S) as answer:
        lines = answer.read().decode().splitlines()
    return float(next(line.rpartition(" ")[2] for line in lines if line.startswith(name + " ")))


@contextlib.contextmanager
def unfinished(folder: Path) -> Iterator[Serving]:
    (folder / "shop.py").write_text(UNFINISHED)
    node = Serving("shop:app", folder=folder, engine="sqlite")
    try:
        node.launch()
        assert node.boot.get("type") == "Sys.BootComplete", node.errors()
        yield node
    finally:
        node.__exit__(None, None, None)


def live_until(node: Serving, is_over: Callable[[], bool]) -> int:
    """Start it again whenever it has ended, until this is so; how often it was up."""
    for lives in range(1, MOST_LIVES):
        assert node.boot.get("type") == "Sys.BootComplete", node.errors()
        try:
            while not is_over():
                time.sleep(0.02)
            return lives
        except (OSError, ValueError, http.client.HTTPException):
            assert node.wait() == 1, node.errors()
            node.launch()
    raise AssertionError(node.errors())


def test_a_durable_command_that_ends_the_process_gets_an_error_and_the_node_is_up_in_every_life(tmp_path: Path) -> None:
    with unfinished(tmp_path) as node:
        start(node, "Order.Place", "pen", "first")
        start(node, "Order.Place", "deadly", "second")
        said = "the process ended 5 times while this command ran"

        def is_over() -> bool:
            return bool(query(node, "Syscall.Outcome", {"id": "second"})["state"] == "done")

        assert live_until(node, is_over) == 1 + 5 + 1
        outcome = query(node, "Syscall.Outcome", {"id": "second"})
        assert (outcome["type"], outcome["data"]["message"]) == ("Sys.ActorCrash", said)
        assert said in node.errors()
        assert metric(node, "mainspring_kernel_faults_total") == 1
        (fault,) = ask(node, "GET", "/node")["kernel"]["faults"]
        assert fault["message"] == said
        start(node, "Order.Place", "pencil", "third")
        assert query(node, "Syscall.Outcome", {"id": "third"})["data"] == "pencil"


@pytest.mark.parametrize(
    ("program", "lives", "state", "ending"),
    [
        ("checkout", 4, "failed", "the process ended 2 times while charge was performed or was to be tried again"),
        ("careful", 4, "done", "the process ended 2 times while charge was performed or was to be tried again"),
        ("shipping", 4, "failed", "the process ended 2 times while this task ran"),
    ],
)
def test_a_run_whose_step_ends_the_process_goes_on_without_it_and_the_node_is_up_in_every_life(
    tmp_path: Path, program: str, lives: int, state: str, ending: str
) -> None:
    with unfinished(tmp_path) as node:
        start(node, "Run.Start", {"program": program, "args": ["deadly"], "id": "deadly"}, "one")

        def is_over() -> bool:
            return bool(query(node, "Run.Outcome", {"id": "deadly"})["state"] != "running")

        assert live_until(node, is_over) <= lives
        outcome = query(node, "Run.Outcome", {"id": "deadly"})
        assert outcome["state"] == state
        assert ending in (outcome.get("value") or outcome["error"]["message"])
        if program != "shipping":  # its task is a dead letter
            assert ending in node.errors()
            assert metric(node, "mainspring_runs_given_up_total") == 1
        start(node, "Run.Start", {"program": program, "args": ["pen"], "id": "pen"}, "two")
        assert live_until(node, lambda: bool(query(node, "Run.Outcome", {"id": "pen"}).get("value") == "pen")) == 1


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
