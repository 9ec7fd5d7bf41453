"""A handler that ends its process, with nodes on a real server: each takes it from the other until it has an end.

A consumer, a step of a run and a durable command, one after the other on one server.
"""

from __future__ import annotations

import urllib.error
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import ServedNode, Site, eventually, site

pytestmark = [pytest.mark.servers, pytest.mark.timeout(600)]
LIVES_S = 180.0  # for several nodes, one after the other, on a busy machine

PROGRAM = """
import os
from pathlib import Path

from mainspring import App, Context, Event, Perform

app = App("shop")

@app.consumer("orders", group="billing", max_attempts=3)
def bill(event: Event[str]) -> None:
    if event.payload == "deadly":
        os._exit(1)
    event.publish("bills", event.payload)

def charge(order: str) -> str:
    if order == "deadly":
        os._exit(1)
    return order

@app.run
async def checkout(order: str, perform: Perform) -> str:
    return await perform.step(charge, order, max_attempts=2)

@app.command("Order.Place", durable=True)
def place(data: str, ctx: Context) -> str:
    return charge(data)
"""


def start(place: Site, name: str) -> ServedNode:
    node = place.starting(name, "ends:app")
    (place.place / name / "ends.py").write_text(PROGRAM)
    node.process.launch()
    return node


class Supervised:
    """Two nodes that are started again whenever they have ended, and one without a program that is asked."""

    def __init__(self, place: Site) -> None:
        self.asked = place.node("first", "shop:app")
        self._place = place
        self._nodes: list[ServedNode] = []

    def start(self) -> None:
        self._nodes = [start(self._place, name) for name in ("left", "right")]

    def look_after(self) -> None:
        for node in self._nodes:
            process = node.process.process
            if process is not None and process.poll() is not None:
                node.process.launch()

    def say(self, kind: str, type: str, data: Any, id: str | None = None) -> Any:
        """To a node with the program; None when it ends over it."""
        message = {"kind": kind, "type": type, "data": data} | ({} if id is None else {"id": id})
        try:
            return self._nodes[0].ask("POST", "/messages", message)[1].get("data")
        except (OSError, urllib.error.URLError):
            return None

    def ending(self, type: str, id: str) -> Any:
        """What became of a run or a command, when it has an end."""

        def found() -> Any:
            self.look_after()
            answer = self.say("query", type, {"id": id})
            over = answer is not None and answer.get("state") in ("done", "failed")
            return answer if over else None

        return eventually(found, f"the end of {id}", LIVES_S)


@pytest.mark.parametrize("kind", ["nats", "mongo", "postgres"])
def test_what_ends_every_node_that_takes_it_has_an_end(tmp_path: Path, kind: str) -> None:
    names = [f"order-{n}" for n in range(10)]
    with site(tmp_path, kind) as place:
        nodes = Supervised(place)
        for name in (*names[:5], "deadly", *names[5:]):
            assert nodes.asked.publish("orders", name) == 201
        nodes.start()

        def letter() -> object:
            nodes.look_after()
            status, found = nodes.asked.ask("GET", "/dlq/orders")
            return found["letters"] if status == 200 else None

        (found,) = eventually(letter, "the letter", LIVES_S)
        assert (found["payload"], found["attempts"]) == ("deadly", 3)
        assert found["reason"] == "the process ended 3 times while this event was handled"
        eventually(lambda: set(nodes.asked.payloads("bills")) == set(names), "the others to be handled")

        nodes.look_after()
        if kind != "nats":
            nodes.say("command", "Run.Start", {"program": "checkout", "args": ["deadly"], "id": "deadly"})
            ended = nodes.ending("Run.Outcome", "deadly")["error"]["message"]
            assert "the process ended 2 times while charge was performed" in ended
        else:  # each of these ends several nodes, which takes its time
            nodes.say("command", "Order.Place", "deadly", id="place-deadly")
            outcome = nodes.ending("Syscall.Outcome", "place-deadly")
            assert outcome["data"]["message"] == "the process ended 5 times while this command ran"
        nodes.say("command", "Run.Start", {"program": "checkout", "args": ["pen"], "id": "pen"})
        assert nodes.ending("Run.Outcome", "pen")["value"] == "pen"
