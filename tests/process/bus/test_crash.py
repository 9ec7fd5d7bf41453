"""kill -9 under load: nothing that was acknowledged is lost, changed, or given a second offset.

A writer and a consumer talk to a real node on SQLite, which is killed at a random moment and started again on the same
data, round after round. `MAINSPRING_TEST_CRASH_ROUNDS` makes it longer (`make crash` uses 1,000).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.serving import Serving

ROUNDS = int(os.environ.get("MAINSPRING_TEST_CRASH_ROUNDS", "50"))
ROUNDS_PER_NODE = 5  # then a fresh folder: a test of more takes minutes on a busy machine
TOPIC = "crash"


class Witness:
    """What the node has promised, and what it has shown."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.number = 0
        self.promised: dict[tuple[int, int], int] = {}  # place -> payload
        self.committed: dict[int, int] = {}
        self.seen: dict[tuple[int, int], int] = {}

    def promise(self, place: tuple[int, int], payload: int) -> None:
        assert place not in self.promised, f"{place} was given twice"
        self.promised[place] = payload

    def show(self, place: tuple[int, int], payload: int) -> None:
        assert self.seen.setdefault(place, payload) == payload, f"{place} changed"


async def write(ws: aiohttp.ClientWebSocketResponse, witness: Witness) -> None:
    """Single events and batches, as many as the node takes before it dies."""
    under_way: list[list[int]] = []

    async def answers() -> None:
        async for message in ws:
            frame = json.loads(message.data)
            payloads = under_way.pop(0)
            assert frame["type"] in ("PUBLISHED", "PUBLISHED_BATCH"), frame
            places = frame.get("offsets") or [(frame["partition"], frame["offset"])]
            for (partition, offset), payload in zip(places, payloads, strict=True):
                witness.promise((partition, offset), payload)

    async def requests() -> None:
        while True:
            count = witness.random.choice([1, 1, 5, 40])
            payloads = [witness.number + n for n in range(count)]
            witness.number += count
            under_way.append(payloads)
            if count == 1:
                await ws.send_json({"type": "PUBLISH", "topic": TOPIC, "payload": payloads[0], "key": str(payloads[0])})
            else:
                events = [{"payload": n, "key": str(n)} for n in payloads]
                await ws.send_json({"type": "PUBLISH_BATCH", "topic": TOPIC, "events": events})
            await asyncio.sleep(0.001)

    await asyncio.gather(answers(), requests())


async def consume(ws: aiohttp.ClientWebSocketResponse, witness: Witness) -> None:
    await ws.send_json({"type": "SUBSCRIBE", "topic": TOPIC, "group": "g", "max_inflight": 500})
    async for message in ws:
        frame = json.loads(message.data)
        if frame["type"] == "MESSAGE":
            place = (frame["partition"], frame["offset"])
            assert place[1] > witness.committed.get(place[0], 0), f"{place} was committed and came again"
            witness.show(place, frame["envelope"]["payload"])
            await ws.send_json({"type": "ACK", "topic": TOPIC, "group": "g", "partition": place[0], "offset": place[1]})


async def one_round(node: Serving, witness: Witness) -> None:
    """Load until the node is killed, after some answers; what it says about commits before that is remembered."""
    url = f"http://127.0.0.1:{node.port}"
    async with aiohttp.ClientSession() as client:
        writer, reader = await client.ws_connect(url), await client.ws_connect(url)
        async with asyncio.TaskGroup() as group:

            async def until_dead(work: Any) -> None:
                with contextlib.suppress(ConnectionError, aiohttp.ClientError):
                    await work

            writing = group.create_task(until_dead(write(writer, witness)))
            reading = group.create_task(until_dead(consume(reader, witness)))
            written = witness.random.randrange(1, 300)
            shown = witness.random.randrange(1, written + 1)
            written, shown = written + len(witness.promised), shown + len(witness.seen)
            while len(witness.promised) < written or len(witness.seen) < shown:
                assert not writing.done()
                assert not reading.done()
                await asyncio.sleep(0.001)
            offsets = await (await client.get(f"{url}/topics/{TOPIC}/offsets")).json()
            await asyncio.to_thread(node.kill)
            await asyncio.wait([writing, reading], timeout=5)
            for task in (writing, reading):
                task.cancel()
        for entry in offsets["partitions"]:
            if "g" in entry["groups"]:
                witness.committed[entry["partition"]] = entry["groups"]["g"]["lastCommitted"]


async def check(node: Serving, witness: Witness) -> None:
    """Everything promised is there, with its offset and payload."""
    async with aiohttp.ClientSession() as client:
        stored: dict[tuple[int, int], int] = {}
        for partition in range(3):
            offset = 1
            while True:
                where = f"http://127.0.0.1:{node.port}/topics/{TOPIC}/events"
                query = {"partition": str(partition), "offset": str(offset), "limit": "1000"}
                events = (await (await client.get(where, params=query)).json())["events"]
                if not events:
                    break
                for event in events:
                    stored[(partition, event["offset"])] = event["payload"]
                offset = events[-1]["offset"] + 1
    assert {place: stored.get(place) for place in witness.promised} == witness.promised
    assert {place: stored.get(place) for place in witness.seen} == witness.seen
    payloads = list(stored.values())
    assert len(payloads) == len(set(payloads)), "an event was stored twice"


@pytest.mark.parametrize("first", range(0, ROUNDS, ROUNDS_PER_NODE))
async def test_nothing_acknowledged_is_lost_by_kill_9(tmp_path: Path, first: int) -> None:
    witness = Witness(first)
    with Serving(folder=tmp_path, engine="sqlite", env={"BUS_ACK_TIMEOUT_MS": "60000"}) as node:
        async with aiohttp.ClientSession() as client:
            body = {"topic": TOPIC, "partitions": 3, "maxAttempts": 1_000_000}
            assert (await client.post(f"http://127.0.0.1:{node.port}/topics", json=body)).status == 201
        for _ in range(min(ROUNDS - first, ROUNDS_PER_NODE)):
            await one_round(node, witness)
            await asyncio.to_thread(node.launch)
        await check(node, witness)
    assert witness.promised
    assert witness.seen
