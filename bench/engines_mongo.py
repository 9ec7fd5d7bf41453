"""Publishing to a log in MongoDB, against plain `insert_many` on the same server with the same write concern.

The plain side stores the same events in a collection with the same indexes, in groups of the same size, one group after
the other. It gets no order across writers, no compare-and-set, no dedupe and no news for other nodes; the ratio is what
those cost. Rounds of both sides alternate, and the ratio is the median over pairs of rounds, so that a busy machine
hits both. A round ends when all its events are in the collection, not only acknowledged.

The server is the one of MONGO_URL, else `mongod`, else FerretDB (see tests/support/mongo_server.py). Part of `engines`.
"""

from __future__ import annotations

import asyncio
import json
import statistics
from hashlib import sha256
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from pymongo import AsyncMongoClient
from tests.support import mongo_server

from bench.harness import ratio
from mainspring.log import Append, Batch, Log, Receipt, Result, open_engine

ROUNDS = 7
EVENTS = 4_096  # in a round
GROUP = 512
PAYLOAD = json.dumps({"customer": "c-4711", "items": [1, 2, 3], "note": "x" * 120}, separators=(",", ":")).encode()


async def measure() -> dict[str, Any]:
    """Ratios of one run, in a database of its own."""
    with TemporaryDirectory() as place:
        return await _measure_in(place)


async def _measure_in(place: str) -> dict[str, Any]:
    address = mongo_server.new_database()
    client: AsyncMongoClient[dict[str, Any]] = AsyncMongoClient(address, w="majority", journal=True)
    log, other = Log(open_engine(address, place)), Log(open_engine(address, place))
    await log.open()
    plain = client.get_default_database()["plain"]
    await plain.create_index([("topic", 1), ("partition", 1), ("offset", 1)], unique=True)
    await plain.create_index([("topic", 1), ("partition", 1), ("ts", 1)])
    pairs = []
    try:
        for round in range(ROUNDS + 1):
            direct = await _insert(plain, round)
            through = await _publish(log, round)
            if round:  # the first pair warms both sides up
                pairs.append((direct, through))
        await other.open()  # only now: a second node reads along
        ratios = [await _two_to_one(log, other, round) for round in range(3)]
        single = [(await _insert_one(plain, n), await _publish_one(log, n)) for n in range(60)]
        kind = await client.admin.command("buildInfo")
    finally:
        await log.close()
        await other.close()
        await client.drop_database(client.get_default_database().name)
        await client.close()
    return {
        "publish_ratio_to_insert_many": ratio(pairs, 3),
        "goal": 0.7,
        "events_per_second": int(EVENTS / statistics.median(through for _, through in pairs)),
        "insert_many_per_second": int(EVENTS / statistics.median(direct for direct, _ in pairs)),
        "two_nodes_ratio_to_one": round_to(statistics.median(ratios)),
        "one_event_p50_ms": round_to(1000 * statistics.median(through for _, through in single)),
        "one_insert_p50_ms": round_to(1000 * statistics.median(direct for direct, _ in single)),
        "conditions": {
            "server": f"FerretDB {kind['ferretdbVersion']}"
            if "ferretdbVersion" in kind
            else f"MongoDB {kind['version']}",
            "write_concern": "w=majority, journal=true",
            "payload_bytes": len(PAYLOAD),
            "group": GROUP,
            "rounds": ROUNDS,
        },
    }


async def _insert(plain: Any, round: int) -> float:
    start = perf_counter()
    for first in range(0, EVENTS, GROUP):
        await plain.insert_many([_document(round * EVENTS + first + n) for n in range(GROUP)], ordered=False)
    return perf_counter() - start


async def _insert_one(plain: Any, n: int) -> float:
    start = perf_counter()
    await plain.insert_one(_document((ROUNDS + 1) * EVENTS + n))
    return perf_counter() - start


def _document(n: int) -> dict[str, Any]:
    return {
        "topic": "orders",
        "partition": 0,
        "offset": n + 1,
        "ts": 1_700_000_000_000 + n,
        "id": f"{n:036d}",
        "key": None,
        "headers": None,
        "payload_sha256": sha256(PAYLOAD).hexdigest(),
        "payload": json.loads(PAYLOAD),
        "attempts": 0,
    }


async def _publish(log: Log, round: int) -> float:
    start = perf_counter()
    await _pipelined(log, "orders", round * EVENTS, EVENTS)
    await log.spaces()  # waits until everything is in the collections
    return perf_counter() - start


async def _pipelined(log: Log, topic: str, first: int, count: int) -> None:
    """As the bus does it: one batch for each event, and a bounded number of them not yet acknowledged."""
    waiting = 0
    moved = asyncio.Event()

    def done(result: Result) -> None:
        nonlocal waiting
        assert isinstance(result, Receipt), result
        waiting -= 1
        moved.set()

    for n in range(first, first + count):
        while waiting >= 2 * GROUP:
            moved.clear()
            await moved.wait()
        waiting += 1
        log.submit(_batch(n, topic), done)
    while waiting:
        moved.clear()
        await moved.wait()


async def _two_to_one(log: Log, other: Log, round: int) -> float:
    """How much faster two nodes publish the same number of events as one, to topics of their own."""
    first = 100_000 * (round + 1)
    start = perf_counter()
    await _pipelined(log, "alone", first, EVENTS // 2)
    await log.spaces()
    alone = perf_counter() - start
    start = perf_counter()
    await asyncio.gather(*(_pipelined(node, str(n), first, EVENTS // 4) for n, node in enumerate((log, other))))
    await asyncio.gather(log.spaces(), other.spaces())
    return alone / (perf_counter() - start)


async def _publish_one(log: Log, n: int) -> float:
    start = perf_counter()
    await log.commit(_batch((ROUNDS + 1) * EVENTS + n))
    return perf_counter() - start


def _batch(n: int, topic: str = "orders") -> Batch:
    return Batch([Append(topic, 0, f"{n:036d}", 1_700_000_000_000 + n, PAYLOAD)])


def round_to(value: float) -> float:
    return round(value, 3)
