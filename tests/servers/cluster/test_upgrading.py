"""Rolling upgrades: what the version before wrote is read, and nodes of different versions live side by side.

`previous/log.jsonl` was exported by the version before nodes could share a log, after a kill -9, with something of
everything in it: events, groups (one with events on their way), a schedule, a schema, a durable command without an
outcome, a waiting and a finished run, beats, memory, dedupe marks.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mainspring.cluster.peers import FORMAT, LEASES, NODES, NodeLease, Pulse, inbox, lease_key
from mainspring.kernel.durable.record import SPACE, decode_command
from mainspring.kernel.remote import Letter
from mainspring.log import Append, Batch
from mainspring.message import Message, Metadata, encode_data
from tests.support.cluster import LEASE_MS, World, in_virtual_time, wait
from tests.support.kernels import kernel_node, named
from tests.support.processes import SERVERS, ServedNode, eventually
from tests.support.serving import clean_environment

PREVIOUS = Path(__file__).parent / "previous"


def mainspring(*arguments: str) -> str:
    command = [sys.executable, "-m", "mainspring", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=clean_environment(), timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def ask(node: ServedNode, kind: str, type: str, data: Any) -> Any:
    status, answer = node.ask("POST", "/messages", {"kind": kind, "type": type, "data": data})
    assert status == 200, answer
    return answer["data"]


@pytest.mark.parametrize("kind", ["sqlite", "mongo", "nats"])  # the version before had no other engines
def test_a_log_of_the_version_before_goes_on_where_it_was(kind: str, tmp_path: Path) -> None:
    with ExitStack() as ends:
        server = ends.enter_context(SERVERS[kind](tmp_path)) if kind in SERVERS else None
        engine = "sqlite" if server is None else server.address
        nodes = [ServedNode(tmp_path, name, engine, "shop:app") for name in (("a",) if server is None else ("a", "b"))]
        data = str(nodes[0].process.folder / "data")
        mainspring("log", "import", str(PREVIOUS / "log.jsonl"), "--engine", engine, "--data", data)
        for node in nodes:
            shutil.copy(PREVIOUS / "shop.py", node.process.folder / "shop.py")
            ends.enter_context(node.process)
        first, last = nodes[0], nodes[-1]

        assert last.payloads("orders")[:10] == [{"n": n} for n in range(10)]
        assert ask(last, "query", "Memory.Get", {"key": "/k"}) == {"value": 1}
        assert last.ask("GET", "/schedules/nightly")[0] == 200
        assert last.ask("GET", "/schemas/invoices/1")[0] == 200
        assert ask(last, "query", "Run.Outcome", {"id": "finished"})["value"] == "order-2 cash"
        late = eventually(
            lambda: (
                (found := ask(last, "query", "Syscall.Outcome", {"id": "late-command"}))["state"] == "done" and found
            ),
            "the command that was accepted before the crash",
        )
        assert late["data"] == {"reserved": "late"}

        ask(first, "command", "Run.Signal", {"id": "waiting", "name": "paid", "value": "card"})
        eventually(
            lambda: ask(last, "query", "Run.Outcome", {"id": "waiting"}).get("value") == "order-1 card", "the run"
        )
        url = f"ws://127.0.0.1:{last.process.port}"
        for group, offsets in (("billing", [5, 6]), ("shipping", [1, 2, 3])):
            shown = mainspring("sub", "orders", "-g", group, "-n", str(len(offsets)), "--json", "--url", url)
            assert [json.loads(line)["offset"] for line in shown.splitlines()] == offsets


# -- nodes of different versions on one log


class PulseBefore(msgspec.Struct):
    """A pulse as an older node reads it."""

    name: str
    epoch: int


@in_virtual_time
async def test_a_newer_node_with_members_nobody_here_knows_lives_side_by_side(world: World) -> None:
    """It is seen, it keeps its lease, and it is not asked what this version might misunderstand."""
    a = await kernel_node(world, "a")
    door = world.shared.engine()
    await door.open()
    lease = {"node": "new", "instance": "x", "lease_ms": LEASE_MS, "format": FORMAT + 1, "colour": "blue"}
    batch = Batch()
    batch.put(LEASES, lease_key("new"), msgspec.json.encode(lease))
    (receipt,) = await door.commit([batch])
    epoch = receipt.versions[0]  # type: ignore[union-attr]
    for beat in range(10):
        pulse = {"name": "new", "epoch": epoch, "beat": beat, "serves": ["query:Stock.Count"], "mood": {"good": True}}
        batch = Batch()
        batch.put(NODES, "new", msgspec.json.encode(pulse))
        await door.commit([batch])
        await wait(LEASE_MS / 3)
    assert a.member.deaths == []
    (seen,) = (node for node in a.member.cluster.nodes() if node.name == "new")
    assert (seen.format, seen.serves) == (FORMAT + 1, ("query:Stock.Count",))
    assert a.kernel.served_by_others() == {}


@in_virtual_time
async def test_what_this_version_writes_an_older_node_can_read(world: World) -> None:
    a = await kernel_node(world, "a", named("query", "Stock.Count", "a"))
    await wait(1)
    record = await world.shared.state.get(NODES, "a")
    assert record is not None
    assert msgspec.json.decode(record.value, type=PulseBefore).epoch == a.member.cluster.epoch


@in_virtual_time
async def test_records_with_the_least_that_was_ever_written_are_read(world: World) -> None:
    lease = msgspec.json.decode(b'{"node": "n", "instance": "i", "lease_ms": 5}', type=NodeLease)
    assert (lease.format, lease.home) == (1, "")
    pulse = msgspec.json.decode(b'{"name": "n", "epoch": 5}', type=Pulse)
    assert pulse.serves == ()
    for line in map(json.loads, (PREVIOUS / "log.jsonl").read_text().splitlines()):
        if line.get("space") == SPACE:
            command = decode_command(json.dumps(line["value"]).encode())
            assert command.epoch == 0


@in_virtual_time
async def test_a_letter_with_members_of_a_newer_version_is_answered(world: World) -> None:
    a = await kernel_node(world, "a", named("query", "Stock.Count", "a"))
    b = await kernel_node(world, "b")
    await wait(1)
    message = Message("query", "Stock.Count", encode_data(1), Metadata("m1", 1, timeout=1_000))
    letter = json.loads(msgspec.json.encode(Letter("call", message, "b", b.member.cluster.epoch)))
    letter["priority"] = "high"
    await a.member.log.commit(Batch([Append(inbox("a"), 0, "id", 1, json.dumps(letter).encode())]))
    await a.member.log.commit(Batch([Append(inbox("a"), 0, "id", 1, b"no letter at all")]))
    await wait(100)
    late = b.kernel.exchange.counters["late"]
    assert late == 1, "an answer came; nobody here had asked"
    await a.member.log.commit(Batch([Append(inbox("a"), 0, "id", 1, json.dumps(letter).encode())]))
    await wait(100)
    assert b.kernel.exchange.counters["late"] == 2, "what cannot be read does not stop the inbox"
