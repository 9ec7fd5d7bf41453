"""A handler that ends its process, with nodes on a real server: each takes it from the other until it is a letter."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.processes import ServedNode, Site, eventually, site

pytestmark = pytest.mark.servers

PROGRAM = """
import os
from pathlib import Path

from mainspring import App, Event

app = App("shop")

@app.consumer("orders", group="billing", max_attempts=3)
def bill(event: Event[str]) -> None:
    if event.payload == "deadly":
        os._exit(1)
    event.publish("bills", event.payload)
"""


def start(place: Site, name: str) -> ServedNode:
    node = place.starting(name, "ends:app")
    (place.place / name / "ends.py").write_text(PROGRAM)
    node.process.launch()
    return node


@pytest.mark.parametrize("kind", ["nats", "mongo"])
def test_an_event_that_ends_every_node_that_takes_it_is_a_dead_letter(tmp_path: Path, kind: str) -> None:
    names = [f"order-{n}" for n in range(10)]
    with site(tmp_path, kind) as place:
        first = place.node("first", "shop:app")
        for name in (*names[:5], "deadly", *names[5:]):
            assert first.publish("orders", name) == 201
        nodes = [start(place, name) for name in ("left", "right")]

        def letter() -> object:
            for node in nodes:  # a supervisor starts again what has ended
                process = node.process.process
                if process is not None and process.poll() is not None:
                    node.process.launch()
            status, found = first.ask("GET", "/dlq/orders")
            return found["letters"] if status == 200 else None

        (found,) = eventually(letter, "the letter")
        assert (found["payload"], found["attempts"]) == ("deadly", 3)
        assert found["reason"] == "the process ended 3 times while this event was handled"
        eventually(lambda: set(first.payloads("bills")) == set(names), "the others to be handled")
