"""A program is replaced node by node under load, on a real server, and one node is rolled back.

Two processes; a client that never stops. The new program has a new command, a new version of the event's schema, a new
schedule and one more step in a durable run. Everything must have happened once.
"""

from __future__ import annotations

import itertools
import json
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.error import URLError

from tests.support.processes import PATIENCE_S, ServedNode, Site, eventually, site

OLD = """
import msgspec

from mainspring import App, Event
from mainspring.runs import Publish, Sleep, Version

app = App("shop")


@app.schema("orders")
class Order(msgspec.Struct):
    n: int


@app.consumer("orders", group="billing", concurrency=4)
def bill(event: Event[Order]) -> None:
    event.publish("bills", {"n": event.payload.n})


@app.every("500ms")
def tick(event: Event) -> None:
    event.publish("ticks", event.offset)


@app.command("Stock.Reserve", durable=True)
async def reserve(data: dict, ctx) -> dict:
    await ctx.publish("reserved", data)
    return data


@app.run
async def checkout(order: int, perform) -> int:
    await perform(Publish("steps", [order, "begun"]))
    await perform(Sleep(ms=1500))
    await perform(Publish("steps", [order, "paid"]))
    return order
"""

NEW = OLD.replace("    n: int\n", '    n: int\n    currency: str = "EUR"\n').replace(
    "    await perform(Sleep(ms=1500))\n",
    '    if await perform(Version("wrapped", 2)) >= 2:\n'
    '        await perform(Publish("steps", [order, "wrapped"]))\n'
    "    await perform(Sleep(ms=1500))\n",
)
NEW += """

@app.every("500ms")
def report(event: Event) -> None:
    event.publish("reports", event.offset)


@app.command("Gift.Wrap", durable=True)
async def wrap(data: dict, ctx) -> dict:
    await ctx.publish("wrapped", data)
    return data
"""


class Client:
    """Publishes, starts runs and sends commands through whichever node answers, until it is told to stop."""

    def __init__(self, *nodes: ServedNode) -> None:
        self.nodes: list[ServedNode] = list(nodes)
        self.done = 0
        self.failure: BaseException | None = None
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._work)

    def __enter__(self) -> Client:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join(PATIENCE_S)

    def stop(self) -> int:
        """How many orders there were."""
        self.__exit__()
        assert self.failure is None, self.failure
        return self.done

    def goes_on(self, more: int = 20) -> None:
        """Wait until so much more was done."""
        goal = self.done + more
        eventually(lambda: self.failure is not None or self.done >= goal, "the client's work")
        assert self.failure is None, self.failure

    def _work(self) -> None:
        try:
            for n in itertools.count():
                if self._ends.is_set():
                    return
                self.insist("/topics/orders/events", {"payload": {"n": n}, "id": f"order-{n}"}, 201)
                if n % 5 == 0:
                    data = {"program": "checkout", "args": [n], "id": f"run-{n}"}
                    self.insist("/messages", {"kind": "command", "type": "Run.Start", "data": data}, 200)
                if n % 7 == 0:
                    self._somewhere(partial(reserve, n=n), f"reserve {n}")
                self.done = n + 1
                time.sleep(0.01)
        except BaseException as error:
            self.failure = error

    def insist(self, path: str, body: Any, expected: int) -> None:
        """One id, however often it has to be sent."""

        def send(node: ServedNode) -> Any:
            status, answer = node.ask("POST", path, body)
            return None if status == expected else answer

        self._somewhere(send, f"{path} {body}")

    def _somewhere(self, send: Callable[[ServedNode], Any], what: str) -> None:
        """On one node after the other until one takes it; `send` gives what is wrong."""
        end = time.monotonic() + PATIENCE_S
        for turn in itertools.count():
            try:
                wrong = send(self.nodes[turn % len(self.nodes)])
                if wrong is None:
                    return
            except (URLError, OSError) as error:
                wrong = error
            assert time.monotonic() < end, f"{what}: {wrong}"
            time.sleep(0.05)


def reserve(node: ServedNode, n: int) -> Any:
    """A durable command under an id of its own, so that it is one command on whatever node it is sent again."""
    metadata = {"id": f"reserve-{n}", "timestamp": 1, "timeout": 5_000}
    message = {"kind": "command", "type": "Stock.Reserve", "data": {"n": n}, "metadata": metadata}
    with socket.socket(socket.AF_UNIX) as wire:
        wire.settimeout(PATIENCE_S)
        wire.connect(str(node.process.kernel_socket))
        wire.sendall(json.dumps(message).encode() + b"\n")
        answer = json.loads(wire.makefile().readline() or "{}")
    return None if answer.get("kind") == "reply" else answer


def start(place: Site, name: str, program: str) -> ServedNode:
    node = place.starting(name, "shop:app")
    (node.process.folder / "shop.py").write_text(program)
    node.process.launch()
    assert node.process.boot.get("type") == "Sys.BootComplete", (node.process.boot, node.process.errors())
    return node


def replace(place: Site, client: Client, node: ServedNode, name: str, program: str) -> ServedNode:
    """As an operator does it: stop in order, start, wait until it is ready, let some work pass."""
    node.process.signal(signal.SIGTERM)
    assert node.process.wait() == 0, node.process.errors()
    fresh = start(place, name, program)
    client.nodes = [each for each in client.nodes if each is not node] + [fresh]
    eventually(lambda: fresh.ready, f"{name} is ready")
    client.goes_on()
    return fresh


def ask(node: ServedNode, kind: str, type: str, data: Any) -> Any:
    status, answer = node.ask("POST", "/messages", {"kind": kind, "type": type, "data": data})
    assert status == 200, answer
    return answer["data"]


def everything(node: ServedNode, topic: str) -> list[Any]:
    """All payloads of a topic, page by page."""
    found: list[Any] = []
    after = 0
    while True:
        status, page = node.ask("GET", f"/topics/{topic}/events?limit=1000&partition=0&offset={after + 1}")
        if status == 404 or not page["events"]:
            return found
        found += [event["payload"] for event in page["events"]]
        after = page["events"][-1]["offset"]


def fires(node: ServedNode, topic: str) -> None:
    count = len(everything(node, topic))
    eventually(lambda: len(everything(node, topic)) > count + 1, f"{topic} goes on")


def test_a_program_is_replaced_node_by_node_under_load_and_rolled_back(tmp_path: Path) -> None:
    with site(tmp_path, "nats") as place:
        a, b = start(place, "a", OLD), start(place, "b", OLD)
        with Client(a, b) as client:
            _upgrade(place, client, a, b)


def _upgrade(place: Site, client: Client, a: ServedNode, b: ServedNode) -> None:
    client.goes_on()
    a = replace(place, client, a, "a", NEW)
    assert ask(b, "command", "Gift.Wrap", {"n": 1}) == {"n": 1}, "an old node passes on what only a new one knows"
    fires(b, "reports")
    b = replace(place, client, b, "b", NEW)
    a = replace(place, client, a, "a", OLD)
    fires(a, "reports")
    assert ask(a, "command", "Gift.Wrap", {"n": 2}) == {"n": 2}
    orders = client.stop()
    check(a, b, orders)


def ended(node: ServedNode, run: str) -> Any:
    def look() -> Any:
        found = ask(node, "query", "Run.Outcome", {"id": run})
        return None if found["state"] == "running" else found

    return eventually(look, f"the end of {run}")


def check(a: ServedNode, b: ServedNode, orders: int) -> None:
    """Nothing lost, nothing twice, no run failed."""
    once = Counter(range(orders))
    assert Counter(payload["n"] for payload in everything(a, "orders")) == once
    eventually(lambda: len(everything(b, "bills")) >= orders, "all bills")
    assert Counter(payload["n"] for payload in everything(b, "bills")) == once
    assert Counter(each["n"] for each in everything(a, "reserved")) == Counter(range(0, orders, 7))
    assert [each["n"] for each in everything(a, "wrapped")] == [1, 2]
    runs = range(0, orders, 5)
    for n in runs:
        found = ended(b, f"run-{n}")
        assert found["state"] == "done", found
        assert found["value"] == n
    steps = Counter((n, step) for n, step in everything(a, "steps"))
    assert set(steps.values()) == {1}, "a step was made twice"
    for step in ("begun", "paid"):
        assert {n for n, each in steps if each == step} == set(runs)
    assert any(each == "wrapped" for _, each in steps)
    for topic in ("ticks", "reports"):
        calls = everything(a, topic)
        assert len(calls) == len(set(calls)), f"one of {topic} came twice"
    assert a.ask("GET", "/schemas/orders")[1] == b.ask("GET", "/schemas/orders")[1]
