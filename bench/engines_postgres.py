"""Publishing to a log in PostgreSQL, against `COPY` and `executemany` of the same rows on the same server with fsync.

The plain side stores the same events in a table with the same key, in groups of the same size, each in a transaction of
its own, one group after the other. It gets no order across writers, no compare-and-set, no dedupe and no news for other
nodes. Rounds of both sides alternate, and the ratio is the median over pairs of rounds, so that a busy machine hits
both. More is better, 1.0 is as fast as `COPY` alone.

- `publish_ratio_to_copy`, `publish_ratio_to_executemany`: the log of a node in this process.
- `through_a_node`: a client over the wire to a node in another process, many events under way, against the same `COPY`
  and `executemany`, which have no such hop; client, node and server share the machine's cores.
- `node_us`, `server_us`: processor time for each event, of this process and of the server's backends.
- `follower_us`: of another node, in a process of its own, that only follows.
- `one_event_p50_ms`: a publisher that waits for each acknowledgement.

The server is Debian's, started here with its usual settings (see tests/support/postgres.py). Part of `engines`.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import Any

import asyncpg  # type: ignore[import-untyped]
from tests.support.postgres import Postgres, running_postgres

from bench import bus
from bench.harness import ratio, spread
from bench.peers import servers
from mainspring.log import Append, Batch, Change, Log, Put, Receipt, Result, open_engine

ROUNDS = 7
EVENTS = 16_384  # in a round
GROUP = 2_048
PAYLOAD = json.dumps({"customer": "c-4711", "items": [1, 2, 3], "note": "x" * 120}, separators=(",", ":")).encode()
TS = 1_700_000_000_000


async def measure(*, quick: bool = False) -> dict[str, Any]:
    """Ratios of one run, on a server of its own."""
    rounds, events = (2, 4_096) if quick else (ROUNDS, EVENTS)
    with running_postgres() as server, TemporaryDirectory() as place, TemporaryDirectory() as other_place:
        address = f"{server.url('postgres')}?schema=bench"
        log = Log(open_engine(address, place))
        await log.open()
        plain = await asyncpg.connect(server.url("postgres"))
        await plain.execute(
            "CREATE TABLE plain (topic text, part int, place bigint, id text, ts bigint, key text, payload bytea, "
            "PRIMARY KEY (topic, part, place))"
        )
        follower = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "bench.engines_postgres", "--follow", address, other_place),
            stdout=asyncio.subprocess.PIPE,
        )
        assert follower.stdout is not None
        await follower.stdout.readline()
        pairs, slower, costs = await _rounds(server, plain, log, rounds, events)
        await log.commit(Batch([Put("bench", "end", b"")]))
        followed = json.loads(await follower.stdout.readline())
        await follower.wait()
        single = [await _publish_one(log, n) for n in range(20 if quick else 200)]
        await log.close()
        through = await _through_a_node(server, plain, rounds, events)
        version = await plain.fetchval("SHOW server_version")
        await plain.close()
    return {
        "publish_ratio_to_copy": ratio(pairs, 2),
        "publish_ratio_to_executemany": ratio(slower, 2),
        "spread": spread(pairs),
        "goal": 0.7,
        "events_per_second": int(events / statistics.median(through for _, through in pairs)),
        "node_us": _us([node for node, _ in costs], events),
        "server_us": _us([of_server for _, of_server in costs], events),
        "follower_us": followed["us"],
        "one_event_p50_ms": round(1000 * statistics.median(single), 2),
        "through_a_node": through,
        "conditions": {
            "server": f"PostgreSQL {version}, fsync on",
            "payload_bytes": len(PAYLOAD),
            "group": GROUP,
            "rounds": rounds,
            "events": events,
        },
    }


async def _rounds(
    server: Postgres, plain: Any, log: Log, rounds: int, events: int
) -> tuple[list[tuple[float, float]], list[tuple[float, float]], list[tuple[float, float]]]:
    """Seconds of both sides, with `COPY` and with `executemany`, and processor seconds of node and server."""
    pairs: list[tuple[float, float]] = []
    slower: list[tuple[float, float]] = []
    costs: list[tuple[float, float]] = []
    for number in range(rounds + 1):
        direct = await _copy(plain, 2 * number * events, events)
        many = await _execute_many(plain, (2 * number + 1) * events, events)
        before = (process_time(), _server_s(server))
        through = await _publish(log, number * events, events)
        after = (process_time(), _server_s(server))
        if number:  # the first pair warms both sides up
            pairs.append((direct, through))
            slower.append((many, through))
            costs.append((after[0] - before[0], after[1] - before[1]))
    return pairs, slower, costs


async def _through_a_node(server: Postgres, plain: Any, rounds: int, events: int) -> dict[str, Any]:
    """Over the wire, in turns with the plain sides."""
    await plain.execute("TRUNCATE plain")
    found: list[tuple[float, float, float, float, float]] = []
    async with servers.node(MAINSPRING_ENGINE=f"{server.url('postgres')}?schema=wire") as node:
        for number in range(rounds + 1):
            direct = await _copy(plain, 2 * number * events, events)
            many = await _execute_many(plain, (2 * number + 1) * events, events)
            before = (servers.cpu_s(node.process.pid), _server_s(server))
            through = events / await bus.publish_ours(node.port, events)
            used = servers.cpu_s(node.process.pid) - before[0]
            found.append((direct, many, through, used, _server_s(server) - before[1]))
    found = found[1:]
    return {
        "ratio_to_copy": ratio((one[0], one[2]) for one in found),
        "ratio_to_executemany": ratio((one[1], one[2]) for one in found),
        "events_per_second": int(events / statistics.median(one[2] for one in found)),
        "node_us": _us([one[3] for one in found], events),
        "server_us": _us([one[4] for one in found], events),
    }


def _us(seconds: list[float], events: int) -> float:
    return round(1e6 * statistics.median(seconds) / events, 2)


def _server_s(server: Postgres) -> float:
    """Processor time of the server so far."""
    return servers.cpu_s(int((server.folder / "data" / "postmaster.pid").read_text().split()[0]))


def _rows(first: int) -> list[tuple[Any, ...]]:
    return [("bench", 0, n + 1, _id(n), TS, f"k{n % 100}", PAYLOAD) for n in range(first, first + GROUP)]


async def _execute_many(plain: Any, first: int, count: int) -> float:
    start = perf_counter()
    for group in range(first, first + count, GROUP):
        async with plain.transaction():
            await plain.executemany("INSERT INTO plain VALUES ($1, $2, $3, $4, $5, $6, $7)", _rows(group))
    return perf_counter() - start


async def _copy(plain: Any, first: int, count: int) -> float:
    start = perf_counter()
    for group in range(first, first + count, GROUP):
        await plain.copy_records_to_table("plain", records=_rows(group))
    return perf_counter() - start


async def _publish(log: Log, first: int, count: int) -> float:
    """As the bus does it: one batch for each event, a group of them under way."""
    start = perf_counter()
    for group in range(first, first + count, GROUP):
        done = asyncio.get_running_loop().create_future()
        left = GROUP

        def stored(result: Result, done: asyncio.Future[None] = done) -> None:
            nonlocal left
            assert isinstance(result, Receipt), result
            left -= 1
            if not left:
                done.set_result(None)

        for n in range(group, group + GROUP):
            log.submit(Batch([Append("bench", 0, _id(n), TS, PAYLOAD, f"k{n % 100}")]), stored)
        await done
    return perf_counter() - start


async def _publish_one(log: Log, n: int) -> float:
    start = perf_counter()
    await log.commit(Batch([Append("single", 0, _id(n), TS, PAYLOAD)]))
    return perf_counter() - start


def _id(n: int) -> str:
    return f"0190b7f6-1234-7abc-8def-{n:012}"


async def follow(address: str, place: str) -> None:
    """Another node that only follows, until the record `end` comes."""
    log = Log(open_engine(address, place))
    await log.open()
    ended = asyncio.Event()
    seen = 0

    def heard(change: Change) -> None:
        nonlocal seen
        seen += sum(each.last - each.first + 1 for each in change.appended)
        if change.records:
            ended.set()

    log.watch(heard)
    print("ready", flush=True)
    before = process_time()
    await ended.wait()
    print(json.dumps({"us": round(1e6 * (process_time() - before) / seen, 3), "events": seen}), flush=True)
    await log.close()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--follow"]:
        asyncio.run(follow(*sys.argv[2:4]))
    else:
        print(json.dumps(asyncio.run(measure(quick="--quick" in sys.argv)), indent=2))
