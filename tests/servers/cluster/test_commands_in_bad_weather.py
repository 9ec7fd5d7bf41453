"""Durable commands through a node that does not handle them, while those that do are killed, stopped and restarted."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from mainspring.cli.support.messages import Wire
from tests.support.processes import ServedNode, Site, eventually, site

PROGRAM = """
import random

from mainspring import App

app = App("shop")


@app.command("Stock.Reserve", durable=True)
async def reserve(data: dict, ctx) -> dict:
    await ctx.sleep(random.random() / 20)
    await ctx.publish("reserved", data)
    return {"reserved": data["id"]}
"""


def worker(place: Site, name: str) -> ServedNode:
    node = place.starting(name, "shop:app")
    (node.process.folder / "shop.py").write_text(PROGRAM)
    node.process.launch()
    assert node.process.boot.get("type") == "Sys.BootComplete", (node.process.boot, node.process.errors())
    return node


class Client(threading.Thread):
    """Sends one command after the other, each under its own id, and writes down what it is told."""

    def __init__(self, node: ServedNode, name: str) -> None:
        super().__init__()
        self._wire = Wire(node.process.kernel_socket, timeout_ms=30_000)
        self._name = name
        self._ends = threading.Event()
        self.sent: list[str] = []
        self.answers: dict[str, dict[str, Any]] = {}

    def run(self) -> None:
        while not self._ends.is_set():
            id = f"{self._name}-{len(self.sent)}"
            self.sent.append(id)
            self.answers[id] = self._wire.ask("command", "Stock.Reserve", {"id": id}, id=id)
            time.sleep(0.01)

    def finish(self) -> None:
        self._ends.set()
        self.join()


def states(node: ServedNode, ids: list[str]) -> list[tuple[int, Any]]:
    ask = {"kind": "query", "type": "Syscall.Outcome"}
    return [node.ask("POST", "/messages", {**ask, "data": {"id": id}}) for id in ids]


def test_every_command_has_one_outcome_and_what_it_published_is_there_once(tmp_path: Path) -> None:
    with site(tmp_path, "nats") as place:
        door, b, c = place.node("door"), worker(place, "b"), worker(place, "c")
        eventually(lambda: all(door.nodes()[name]["serves"] for name in "bc"), "what they serve")
        clients = [Client(door, name) for name in ("x", "y")]
        for client in clients:
            client.start()
        time.sleep(1)
        b.process.kill()
        b = worker(place, "b")
        time.sleep(1)
        c.process.signal(signal.SIGSTOP)
        eventually(lambda: "c" not in door.nodes(), "c loses its lease")
        c.process.signal(signal.SIGCONT)
        time.sleep(1)
        b.process.signal(signal.SIGTERM)
        assert b.process.wait() == 0
        time.sleep(1)
        for client in clients:
            client.finish()

        sent = [id for client in clients for id in client.sent]
        told = {id: answer for client in clients for id, answer in client.answers.items()}
        wrong = Counter(answer["type"] for answer in told.values() if answer["kind"] != "reply")
        assert set(wrong) <= {"Sys.Unreachable"}, wrong
        eventually(
            lambda: all(found["data"]["state"] == "done" for status, found in states(door, sent) if status == 200),
            "all",
        )
        done = {id for id, (status, _) in zip(sent, states(door, sent), strict=True) if status == 200}
        published = [payload["id"] for payload in door.payloads("reserved")]
        assert sorted(published) == sorted(done), "each command that was accepted published its event once"
        assert {id for id, answer in told.items() if answer["kind"] == "reply"} <= done
