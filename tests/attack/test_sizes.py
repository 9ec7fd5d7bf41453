"""Every size and number that a client chooses has a bound, and what is over it is refused at once."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest

from tests.support.victim import OPS, PUBLISHER, READER, Victim, attacked


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    with attacked(tmp_path_factory.mktemp("node")) as victim:
        yield victim


# -- keys and batches


@pytest.mark.parametrize("size", [5_000, 15 << 20])
def test_a_key_counts_and_has_a_bound(node: Victim, size: int) -> None:
    line = json.dumps({"payload": 1, "key": "k" * size}).encode()
    with node.spending_at_most(2.0):
        for kind in ("application/json", "application/x-ndjson"):
            answer = node.ask("POST", "/topics/orders.k/events", line, PUBLISHER, headers={"Content-Type": kind})
            assert (answer.status, answer.json["code"]) == (413, "too_large")
    assert node.ask("POST", "/topics/orders.k/events", {"payload": 1, "key": "k" * 4096}, PUBLISHER).status == 201


async def test_a_batch_has_as_many_events_over_the_websocket_as_over_http(node: Victim) -> None:
    headers = {"Authorization": f"Bearer {PUBLISHER}"}
    async with aiohttp.ClientSession() as session, session.ws_connect(node.url, headers=headers) as ws:
        for count, told in ((10_001, "ERROR"), (10_000, "PUBLISHED_BATCH")):
            await ws.send_json({"type": "PUBLISH_BATCH", "topic": "orders.b", "events": [{"payload": 1}] * count})
            answer = await ws.receive_json(timeout=60)
            assert answer["type"] == told, answer
            assert answer.get("code") == ("too_large" if told == "ERROR" else None)


# -- schedules


def _schedule(node: Victim, **members: object) -> tuple[int, str]:
    body = {"name": "s", "topic": "orders.s", "payload": 1, **members}
    answer = node.ask("POST", "/schedules", body, PUBLISHER)
    return answer.status, answer.json.get("code", "")


@pytest.mark.parametrize("where", [{"key": "k" * 900_000}, {"header": ["h", "v" * 900_000]}])
async def test_a_filter_that_is_kept_has_a_bound(node: Victim, where: dict[str, Any]) -> None:
    with node.spending_at_most(2.0, grows_mb=100):
        async with aiohttp.ClientSession() as session:
            headers = {"Authorization": f"Bearer {READER}"}
            async with session.ws_connect(f"http://127.0.0.1:{node.port}/", headers=headers) as socket:
                for number in range(20):
                    frame = {"type": "SUBSCRIBE", "topic": "orders.x", "group": f"g{number}", "filter": where}
                    await socket.send_json(frame)
                    assert (await socket.receive_json())["code"] == "bad_frame"


@pytest.mark.parametrize("name", ["id", "correlation"])
def test_names_of_messages_have_a_bound_because_many_are_remembered(node: Victim, name: str) -> None:
    with node.spending_at_most(2.0, grows_mb=100):
        for number in range(30):
            body = {"kind": "query", "type": "Syscall.Ping", "data": {"payload": 1}, name: f"{number}{'i' * 900_000}"}
            assert node.ask("POST", "/messages", body, OPS).status == 400
    body = {"kind": "query", "type": "Syscall.Ping", "data": {"payload": 1}, name: "i" * 1_000}
    assert node.ask("POST", "/messages", body, OPS).status == 200


def test_a_key_of_the_memory_has_a_bound(node: Victim) -> None:
    for size, status in ((4_095, 200), (4_096, 413), (900_000, 413)):
        data = {"key": "/" + "k" * size, "value": 1}
        body = {"kind": "command", "type": "Memory.Set", "data": data}
        assert node.ask("POST", "/messages", body, OPS).status == status


def test_a_cron_line_of_megabytes(node: Victim) -> None:
    with node.spending_at_most(1.0):
        for length in (201, 4 << 20):
            line = "*," * (length // 2) + "* * * * *"
            assert _schedule(node, cron=line) == (400, "bad_frame")
    assert _schedule(node, cron="0,5,10,15,20,25,30,35,40,45,50,55 8-18 * jan-mar mon-fri") == (201, "")


def test_a_schedule_obeys_the_limit_of_events_and_a_pace(node: Victim) -> None:
    with node.spending_at_most(2.0):
        assert _schedule(node, every=3_600_000, payload="x" * (15 << 20)) == (413, "too_large")
        assert _schedule(node, every=10) == (400, "bad_frame")
        assert _schedule(node, every=100, payload="x" * 500_000) == (413, "too_large")
    assert _schedule(node, every=1_000, payload="x" * 500_000) == (201, "")
    assert node.ask("DELETE", "/schedules/s", token=OPS).status == 204


# -- timers


def test_timers_of_the_ndjson_socket_have_a_bound(node: Victim) -> None:
    inner = {"kind": "event", "type": "A.B", "data": {"x": "y" * 15_000}, "metadata": {"id": "i", "timestamp": 1}}
    data = {"delay": 3_600_000, "message": inner}
    lines = [
        json.dumps(
            {"kind": "command", "type": "Timer.Schedule", "data": data, "metadata": {"id": f"m{n}", "timestamp": 1}}
        )
        for n in range(6_000)
    ]
    with (
        node.spending_at_most(20.0, grows_mb=250),
        socket.socket(socket.AF_UNIX) as peer,
        peer.makefile("rb") as answers,
    ):
        peer.connect(str(node.kernel_socket))
        peer.settimeout(60)
        refused = 0
        for start in range(0, len(lines), 50):
            batch = lines[start : start + 50]
            peer.sendall("\n".join(batch).encode() + b"\n")
            refused += sum(json.loads(answers.readline())["kind"] == "error" for _ in batch)
    assert 0 < refused < len(lines)


# -- guests


def test_tables_of_wasm_programs_have_a_bound() -> None:
    wasmtime = pytest.importorskip("wasmtime")
    from mainspring.guests.voyd.machine import Machine

    module = wasmtime.wat2wasm(
        '(module (memory (export "memory") 1) (table $t 1 funcref)'
        ' (func (export "grow") (param i32) (result i32) (table.grow $t (ref.null func) (local.get 0))))'
    )
    machine = Machine(bytes(module), max_memory_bytes=64 << 20, fuel_per_call=10**9)
    assert machine.call("grow", 100_000_000) == -1
    assert machine.call("grow", 1_000) == 1
