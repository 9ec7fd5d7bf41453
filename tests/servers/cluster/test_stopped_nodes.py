"""A real node that is stopped (SIGSTOP) for longer than its lease, with work that waits in it: events behind the one
that its function handles, a step between two attempts, a command behind another one. Another node does all of it
meanwhile. When the first one goes on it begins with none of it."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import SERVERS, ServedNode, Site, eventually, site

pytestmark = pytest.mark.servers

PROGRAM = """
import asyncio
import os

from mainspring import App, Context, Event, Perform

app = App("shop")
SLOW = os.path.basename(os.getcwd()) == "a"

async def work() -> None:
    while SLOW and not os.path.exists("go"):
        await asyncio.sleep(0.05)

def note(what: str) -> None:
    with open("begun.txt", "a") as begun:
        begun.write(what + "\\n")

@app.consumer("orders", group="billing", concurrency=1, max_inflight=4)
async def bill(event: Event[str]) -> None:
    note(event.payload)
    await work()

@app.command("Order.Place", durable=True, concurrency=1)
async def place(data: str, ctx: Context) -> str:
    note(data)
    await work()
    return data

def charge() -> str:
    note("charge")
    if SLOW:
        raise ConnectionError
    return "paid"

@app.run
async def checkout(perform: Perform) -> str:
    return await perform.step(charge, max_attempts=9, backoff="3s", max_backoff="3s")
"""


def begun(node: ServedNode) -> list[str]:
    file = node.process.folder / "begun.txt"
    return sorted(file.read_text().split()) if file.exists() else []


def start(place: Site, name: str) -> ServedNode:
    node = place.starting(name, "stopped:app")
    (place.place / name / "stopped.py").write_text(PROGRAM)
    node.process.launch()
    assert node.process.boot.get("type") == "Sys.BootComplete", node.process.errors()
    return node


def send(node: ServedNode, type: str, data: Any, id: str) -> None:
    message = {"kind": "command", "type": type, "data": data, "id": id}
    threading.Thread(target=node.ask, args=("POST", "/messages", message), daemon=True).start()


@pytest.mark.parametrize("kind", sorted(SERVERS))
def test_a_node_that_was_stopped_begins_with_nothing_that_others_have_done(tmp_path: Path, kind: str) -> None:
    events = [f"order-{n}" for n in range(4)]
    with site(tmp_path, kind) as place:
        a = start(place, "a")
        for each in events:
            assert a.publish("orders", each) == 201
        send(a, "Run.Start", {"program": "checkout", "args": [], "id": "run"}, "start")
        send(a, "Order.Place", "place-1", "place-1")
        eventually(lambda: {"charge", "order-0", "place-1"} == set(begun(a)), "the first of each kind")
        send(a, "Order.Place", "place-2", "place-2")
        b = start(place, "b")

        def is_stored() -> bool:
            outcome = {"kind": "query", "type": "Syscall.Outcome", "data": {"id": "place-2"}}
            return b.ask("POST", "/messages", outcome)[0] == 200

        eventually(is_stored, "the second command in the log")
        a.process.signal(signal.SIGSTOP)
        (a.process.folder / "go").touch()
        eventually(lambda: begun(b) == sorted(["charge", "place-1", "place-2", *events]), "everything on b")
        before = begun(a)
        a.process.signal(signal.SIGCONT)
        eventually(lambda: len(b.nodes()) == 2 and a.ready, "a to be a member again")
        eventually(lambda: "takes a new one" in a.process.errors(), "a to learn that it was replaced")
        assert a.publish("orders", "later") == 201
        eventually(lambda: "later" in begun(a) + begun(b), "the event after it")
        assert [each for each in begun(a) if each != "later"] == before
