"""One program with something of everything on three nodes: nothing is done twice, nothing is left undone."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import SERVERS, ServedNode, Site, eventually, site

PROGRAM = """
import msgspec

from mainspring import App, Event
from mainspring.runs import Sleep

app = App("shop")
app.beats_from("orders")


class Order(msgspec.Struct):
    n: int


@app.consumer("orders", group="billing")
def bill(event: Event[Order]) -> None:
    event.publish("bills", {"n": event.payload.n})


@app.every("1s")
def tick(event: Event) -> None:
    event.publish("ticks", {"offset": event.offset})


@app.command("Stock.Reserve", durable=True)
async def reserve(data: dict, ctx) -> dict:
    await ctx.publish("reserved", data)
    return {"reserved": data}


@app.run
async def checkout(order: str, perform) -> str:
    await perform(Sleep(ms=3000))
    return order


@app.enzyme("/topics/orders", match="prefix")
def count(signal, target, stage):
    stage.add("/count", 1)
"""


def start_at_once(place: Site, *names: str) -> list[ServedNode]:
    nodes = [place.starting(name, "shop:app") for name in names]
    for node in nodes:
        (node.process.folder / "shop.py").write_text(PROGRAM)
    starts = [threading.Thread(target=node.process.launch) for node in nodes]
    for each in starts:
        each.start()
    for each in starts:
        each.join()
    for node in nodes:
        assert node.process.boot.get("type") == "Sys.BootComplete", (node.process.boot, node.process.errors())
    return nodes


def ask(node: ServedNode, kind: str, type: str, data: Any) -> Any:
    status, answer = node.ask("POST", "/messages", {"kind": kind, "type": type, "data": data})
    assert status == 200, answer
    return answer["data"]


def billed(node: ServedNode) -> list[int]:
    return sorted(payload["n"] for payload in node.payloads("bills"))


def finished(node: ServedNode) -> list[Any]:
    return [ask(node, "query", "Run.Outcome", {"id": f"r{n}"}).get("value") for n in range(6)]


@pytest.mark.parametrize("kind", sorted(SERVERS))
def test_a_program_on_three_nodes_outlives_the_one_that_did_most(kind: str, tmp_path: Path) -> None:
    with site(tmp_path, kind) as place:
        nodes = start_at_once(place, "a", "b", "c")
        for n in range(30):
            nodes[n % 3].insist("orders", {"n": n}, f"order-{n}")
        for n in range(6):
            ask(nodes[n % 3], "command", "Run.Start", {"program": "checkout", "args": [f"o{n}"], "id": f"r{n}"})
        for node in nodes:
            eventually(lambda node=node: billed(node) == list(range(30)), "all orders billed once")
            eventually(
                lambda node=node: ask(node, "query", "Beat.Read", {"path": "/count"})["value"] == 30, "the count"
            )

        busiest = max(nodes[0].nodes().values(), key=lambda node: len(node["roles"]))
        assert busiest["roles"]
        victim = next(node for node in nodes if node.nodes()[busiest["name"]]["here"])
        left = [node for node in nodes if node is not victim]
        victim.process.kill()
        for n in range(30, 60):
            left[n % 2].insist("orders", {"n": n}, f"order-{n}")
        ask(left[0], "command", "Stock.Reserve", {"sku": 1})
        before = len(left[1].payloads("ticks"))
        for node in left:
            eventually(lambda node=node: billed(node) == list(range(60)), "all orders billed once")
            eventually(
                lambda node=node: ask(node, "query", "Beat.Read", {"path": "/count"})["value"] == 60, "the count"
            )
            outcomes = [f"o{n}" for n in range(6)]
            eventually(lambda node=node, outcomes=outcomes: finished(node) == outcomes, "every run")
        eventually(lambda: len(left[1].payloads("ticks")) > before + 1, "the schedule goes on")
        ticks = [payload["offset"] for payload in left[0].payloads("ticks")]
        assert len(ticks) == len(set(ticks)), "a tick was handled twice"
        assert left[1].payloads("reserved") == [{"sku": 1}]
