"""kill -9 under load, on SQLite: a reply and its events, an acknowledgement and its run, are never apart.

A sender gives durable commands to a real node, which is killed at random moments and started again on the same data.
Each command publishes two events with its reply; each event starts one run and publishes one more event with its
acknowledgement. When the node is left alone at last, everything that was accepted has happened exactly once.
`MAINSPRING_TEST_CRASH_ROUNDS` makes it longer.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

from mainspring.cli.support.messages import Wire
from mainspring.errors import MainspringError
from tests.support.serving import Serving
from tests.support.terminal import until

ROUNDS = min(100, int(os.environ.get("MAINSPRING_TEST_CRASH_ROUNDS", "50")) // 10)
PATIENCE_S = 60

APP = """
from mainspring import App, Event, Sleep

app = App("shop")

@app.command("Order.Place", durable=True)
async def place(data: dict, ctx) -> dict:
    await ctx.publish("orders", {"id": data["id"]}, key=data["id"])
    await ctx.publish("copies", {"id": data["id"]})
    return {"id": data["id"]}

@app.consumer("orders", group="billing", concurrency=4, max_attempts=1000)
async def bill(event: Event[dict]) -> None:
    event.start_run(checkout, event.payload["id"])
    event.publish("billed", event.payload)

@app.run
async def checkout(id: str, perform) -> str:
    await perform(Sleep(seconds=0.01))
    return id
"""


def events(node: Serving, topic: str) -> list[str]:
    """The ids in a topic, over HTTP."""
    found: list[str] = []
    offset = 1
    while True:
        url = f"http://127.0.0.1:{node.port}/topics/{topic}/events?partition=0&offset={offset}&limit=1000"
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
            page: list[Any] = json.load(answer)["events"]
        if not page:
            return found
        found += [event["payload"]["id"] for event in page]
        offset = page[-1]["offset"] + 1


def is_over(wire: Wire, ident: str) -> bool:
    """Whether a command was never stored, or has its outcome."""
    answer = wire.ask("query", "Syscall.Outcome", {"id": ident})
    return bool(answer["kind"] == "error" or answer["data"]["state"] == "done")


def done_runs(wire: Wire) -> list[str]:
    found: list[str] = []
    after = ""
    while True:
        page = wire.ask("query", "Run.List", {"after": after})["data"]["runs"]
        if not page:
            return found
        found += [run["id"] for run in page if run["state"] == "done"]
        after = page[-1]["id"]


def send_until_killed(node: Serving, numbers: Any, replied: list[str], sent: list[str]) -> None:
    with contextlib.suppress(MainspringError, OSError):
        wire = Wire(node.kernel_socket)
        for number in numbers:
            ident = f"o-{number}"
            sent.append(ident)
            answer = wire.ask("command", "Order.Place", {"id": ident}, id=ident)
            assert answer["data"] == {"id": ident}, answer
            replied.append(ident)


def test_what_belongs_together_survives_being_killed_together(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP)
    chance = random.Random(1)
    replied: list[str] = []
    sent: list[str] = []
    numbers = iter(range(1_000_000))
    for _ in range(ROUNDS):
        with Serving("shop:app", folder=tmp_path, engine="sqlite") as node:
            sender = threading.Thread(target=send_until_killed, args=(node, numbers, replied, sent))
            enough = len(replied) + chance.randrange(1, 40)
            sender.start()
            until(lambda: len(replied), lambda count: count >= enough)  # noqa: B023
            time.sleep(chance.uniform(0, 0.01))  # when it is killed is the test's chance, not a wait for something
            node.kill()
            sender.join()
    with Serving("shop:app", folder=tmp_path, engine="sqlite") as node:
        wire = Wire(node.kernel_socket)
        for ident in set(sent) - set(replied):  # what was stored and has no outcome is carried out after the start
            until(lambda: is_over(wire, ident))  # noqa: B023
        accepted = set(events(node, "orders"))
        until(lambda: len(done_runs(wire)) == len(accepted))
        found = done_runs(wire)
        assert set(replied) <= accepted <= set(sent)
        for topic in ("orders", "copies", "billed"):
            stored = events(node, topic)
            assert len(stored) == len(set(stored)), f"{topic} has something twice"
            assert set(stored) == accepted, topic
        outcomes = [wire.ask("query", "Run.Outcome", {"id": id})["data"]["value"] for id in found]
        assert sorted(outcomes) == sorted(accepted)
        for ident in chance.sample(replied, min(5, len(replied))):
            outcome = wire.ask("query", "Syscall.Outcome", {"id": ident})["data"]
            assert outcome["data"] == {"id": ident}
    assert replied
