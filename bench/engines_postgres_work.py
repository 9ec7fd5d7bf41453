"""Tasks, runs and several nodes on one PostgreSQL server with fsync, against Procrastinate and DBOS on the same server.

- `tasks`: from the first task enqueued to the last one done, by workers that wait for them. Ours: a node, a worker
  process and batches of the client. Procrastinate: one worker process, `batch_defer_async` in batches. DBOS: one worker
  process that looks for work a hundred times a second, workflows enqueued many in one transaction
  (`enqueue_in_transaction`). Nobody keeps results but DBOS, which always does. Goal: 5 times each.
- `runs`: steps per second of 1,000 runs of two steps each, started together, their starts and ends included. Both are a
  library inside one process. Goal: 10 times DBOS.
- `nodes`: the same events through 1, 2 and 3 nodes: a publisher and a member of one group at each node, all
  acknowledged. `node_us` is the processor time of each node, divided by all events: it falls with nodes, because a node
  reads one small row of what the others commit.

`us` is processor time in microseconds for each task, step or event: `client_us` of the process that enqueues (with
ours: of its client), `node_us` of the node, `worker_us` of the workers, `server_us` of PostgreSQL. On a machine where
server, nodes and clients share two cores it says more than a rate. Rounds take turns; ratios are medians over rounds.
Part of `engines`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import asyncpg  # type: ignore[import-untyped]
from tests.support.postgres import Postgres, running_postgres

from bench import tasks
from bench.bus import PAYLOAD, UNDER_WAY
from bench.harness import progress, ratio, spread
from bench.peers import servers
from bench.peers import task_workers as work
from bench.raw_client import BusClient
from mainspring import App, Perform
from mainspring.client.http import NodeHttp
from mainspring.loop import run
from mainspring.runs import Value

BATCH = 500
STEPS = 2
WARM_UP = 100
NODES = (1, 2, 3)
PARTITIONS = 6
Figures = dict[str, Any]


async def measure(*, quick: bool = False) -> Figures:
    """All three, each side on a database of its own of one server."""
    rounds = 1 if quick else 3
    with running_postgres("max_connections=200", "shared_buffers=128MB") as server:
        return {
            "tasks": await measure_tasks(server, rounds, (2_000, 500) if quick else (30_000, 3_000)),
            "runs": await measure_runs(server, rounds, 100 if quick else 1_000),
            "nodes": await measure_nodes(server, rounds, 6_000 if quick else 60_000),
        }


async def _database(server: Postgres, name: str) -> str:
    plain = await asyncpg.connect(server.url("postgres"))
    await plain.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
    await plain.execute(f"CREATE DATABASE {name}")
    await plain.execute("CHECKPOINT")  # so that nobody pays for what another wrote
    await plain.close()
    return server.url(name)


def _server_s(server: Postgres) -> float:
    return servers.cpu_s(int((server.folder / "data" / "postmaster.pid").read_text().split()[0]))


# -- tasks


@contextlib.asynccontextmanager
async def procrastinate(database: str) -> AsyncIterator[tasks.Contest]:
    work.POSTGRES = database
    app = work.make_procrastinate()
    async with app.open_async():
        await app.schema_manager.apply_schema_async()

        async def enqueue(count: int) -> None:
            for first in range(0, count, BATCH):
                await app.tasks["nothing"].batch_defer_async(*({"n": n} for n in range(first, first + BATCH)))

        command = [sys.executable, "-m", "procrastinate", "--app", "bench.peers.task_workers.procrastinate", "worker"]
        with tempfile.TemporaryDirectory(prefix="ms-bench-") as made:
            yield tasks.Contest(enqueue, [*command, "--concurrency", "256"], {"BENCH_POSTGRES": database}, Path(made))


@contextlib.asynccontextmanager
async def dbos(database: str) -> AsyncIterator[tasks.Contest]:
    from dbos import DBOSClient, EnqueueOptions
    from sqlalchemy import create_engine

    engine = create_engine(database.replace("postgresql:", "postgresql+psycopg:"))
    options: EnqueueOptions = {"queue_name": "work", "workflow_name": "nothing", "app_version": "1"}

    def enqueue_all(count: int) -> None:
        client = DBOSClient(system_database_url=database, application_name="bench")
        for first in range(0, count, BATCH):
            with engine.begin() as connection:
                for n in range(first, first + BATCH):
                    client.enqueue_in_transaction(connection, options, n)
        client.destroy()

    async def enqueue(count: int) -> None:
        await asyncio.to_thread(enqueue_all, count)

    command = [sys.executable, "-m", "bench.peers.task_workers"]
    with tempfile.TemporaryDirectory(prefix="ms-bench-") as made:
        yield tasks.Contest(enqueue, command, {"BENCH_POSTGRES": database}, Path(made))
    engine.dispose()


async def _contest(server: Postgres, name: str, start: Callable[[str], Any], count: int) -> Figures:
    """Workers are up and have run a batch before the clock starts."""
    database = await _database(server, f"tasks_{name}")
    async with contextlib.AsyncExitStack() as stack:
        contest = await stack.enter_async_context(start(database))
        worker = stack.enter_context(contest.workers())
        await _first_batch(contest)

        def spent() -> tuple[float, ...]:
            node = sum(servers.cpu_s(pid) for pid in contest.others)
            return time.process_time(), node, servers.cpu_s(worker.pid), _server_s(server)

        before, begun = spent(), time.perf_counter()
        await contest.enqueue(count)
        seconds = await contest.reached(count + BATCH) - begun
        used = [(late - early) * 1e6 / count for early, late in zip(before, spent(), strict=True)]
    names = ("client_us", "node_us", "worker_us", "server_us")
    return {"per_s": count / seconds, "us": sum(used), **dict(zip(names, used, strict=True))}


async def _first_batch(contest: tasks.Contest) -> None:
    end = time.perf_counter() + tasks.PATIENCE_S
    while True:  # a worker of DBOS makes the tables
        try:
            await contest.enqueue(BATCH)
            break
        except Exception:
            if time.perf_counter() > end:
                raise
            await asyncio.sleep(0.5)
    await contest.reached(BATCH)


async def measure_tasks(server: Postgres, rounds: int, counts: tuple[int, int]) -> Figures:
    contests: dict[str, tuple[Callable[[str], Any], int]] = {
        "ours": (tasks.ours, counts[0]),
        "procrastinate": (procrastinate, counts[1]),
        "dbos": (dbos, counts[1]),
    }
    found: dict[str, list[Figures]] = {name: [] for name in contests}
    for _ in range(rounds):
        for name, (start, count) in contests.items():
            found[name].append(await _contest(server, name, start, count))
            progress("engines", f"tasks of {name} on PostgreSQL", found[name][-1])
    figures: Figures = {name: _medians(each) for name, each in found.items()} | {"goal": 5}
    for name in ("procrastinate", "dbos"):
        pairs = [(mine["per_s"], other["per_s"]) for mine, other in zip(found["ours"], found[name], strict=True)]
        figures[f"times_{name}"], figures[f"spread_{name}"] = ratio(pairs), spread(pairs)
    return figures | {"tasks": {name: count for name, (_, count) in contests.items()}}


def _medians(each: list[Figures]) -> Figures:
    return {name: round(statistics.median(one[name] for one in each), 1) for name in each[0]}


# -- runs


def _hop(n: int) -> int:
    return n


async def runs_ours(database: str, runs: int) -> Figures:
    app = App("bench")

    @app.run
    async def program(count: int, perform: Perform) -> int:
        return sum([await perform.step(_hop, n) for n in range(count)])

    with tempfile.TemporaryDirectory(prefix="ms-bench-") as folder:
        async with app.running(engine=database, data=folder):
            await app.outcome(await app.start_run(program, WARM_UP))
            begun, before = time.perf_counter(), time.process_time()
            ids = await asyncio.gather(*(app.start_run(program, STEPS) for _ in range(runs)))
            ended = await asyncio.gather(*(app.outcome(id) for id in ids))
            seconds, used = time.perf_counter() - begun, time.process_time() - before
            assert all(one == Value(sum(range(STEPS))) for one in ended)
    return {"per_s": runs * STEPS / seconds, "process_us": used * 1e6 / (runs * STEPS)}


def runs_dbos(database: str, runs: int) -> Figures:
    from dbos import DBOS

    config: Any = {"name": "bench", "system_database_url": database, "log_level": "ERROR"}
    DBOS(config=config | {"run_admin_server": False})
    hop = DBOS.step()(_hop)

    @DBOS.workflow()
    def program(count: int) -> int:
        return sum(hop(n) for n in range(count))

    DBOS.launch()
    program(WARM_UP)
    begun, before = time.perf_counter(), time.process_time()
    handles = [DBOS.start_workflow(program, STEPS) for _ in range(runs)]
    ended = {handle.get_result() for handle in handles}
    seconds, used = time.perf_counter() - begun, time.process_time() - before
    assert ended == {sum(range(STEPS))}
    DBOS.destroy()
    return {"per_s": runs * STEPS / seconds, "process_us": used * 1e6 / (runs * STEPS)}


async def _in_a_process(server: Postgres, name: str, runs: int) -> Figures:
    database = await _database(server, f"runs_{name}")
    before = _server_s(server)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.engines_postgres_work", name, database, str(runs)),
        stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parent.parent,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output
    figures: Figures = json.loads(output.splitlines()[-1])
    used = (_server_s(server) - before) * 1e6 / (runs * STEPS + WARM_UP)
    return figures | {"server_us": used, "us": figures["process_us"] + used}


async def measure_runs(server: Postgres, rounds: int, runs: int) -> Figures:
    found: dict[str, list[Figures]] = {"ours": [], "dbos": []}
    for _ in range(rounds):
        for name, each in found.items():
            each.append(await _in_a_process(server, name, runs))
            progress("engines", f"runs of {name} on PostgreSQL", each[-1])
    pairs = [(mine["per_s"], other["per_s"]) for mine, other in zip(found["ours"], found["dbos"], strict=True)]
    return {name: _medians(each) for name, each in found.items()} | {
        "times_dbos": ratio(pairs),
        "spread": spread(pairs),
        "goal": 10,
        "runs": runs,
        "steps_of_a_run": STEPS,
    }


# -- several nodes


class _Side:
    """A publisher and a member of the group at one node, speaking the wire protocol with as little work as possible."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.taken = 0

    async def open(self) -> None:
        self._publisher = await BusClient.connect(self._port)
        self._member = await BusClient.connect(self._port)
        self._member.on_frame = self._take
        asked = {"type": "SUBSCRIBE", "topic": "bench", "group": "g", "max_inflight": UNDER_WAY, "batch": 256}
        self._subscribed = asyncio.Event()
        self._member.send(json.dumps(asked).encode())
        await self._subscribed.wait()

    def close(self) -> None:
        self._publisher.close()
        self._member.close()

    def _take(self, text: bytes) -> None:
        if not text.startswith(b'{"type":"MESSAGES"'):
            assert text.startswith(b'{"type":"OK"'), text
            self._subscribed.set()
            return
        messages = json.loads(text)["messages"]
        last = {one["partition"]: one["offset"] for one in messages}
        for partition, offset in last.items():
            self._member.send(
                b'{"type":"ACK","topic":"bench","partition":%d,"group":"g","offset":%d}' % (partition, offset)
            )
        self.taken += len(messages)

    async def publish(self, count: int) -> None:
        for n in range(count):
            self._publisher.publish("bench", PAYLOAD)
            if n % 64 == 63:
                await self._publisher.room(UNDER_WAY)
        await self._publisher.drained()


async def _through(server: Postgres, count: int, events: int) -> Figures:
    """Until the group has settled everything, with so many nodes."""
    database = await _database(server, f"nodes_{count}")
    async with contextlib.AsyncExitStack() as stack:
        nodes = [
            await stack.enter_async_context(servers.node(MAINSPRING_ENGINE=database, MAINSPRING_NODE=f"n{n}"))
            for n in range(count)
        ]
        http = NodeHttp(f"http://127.0.0.1:{nodes[0].port}", None)
        stack.push_async_callback(http.close)
        await http.call("POST", "/topics", {"topic": "bench", "partitions": PARTITIONS})
        sides = [_Side(node.port) for node in nodes]
        for side in sides:
            await side.open()
            stack.callback(side.close)
        await _publish_and_settle(sides, http, WARM_UP * PARTITIONS)
        before, of_server, begun = (
            [servers.cpu_s(node.process.pid) for node in nodes],
            _server_s(server),
            time.perf_counter(),
        )
        await _publish_and_settle(sides, http, events)
        seconds = time.perf_counter() - begun
        used = [servers.cpu_s(node.process.pid) - early for node, early in zip(nodes, before, strict=True)]
        of_server = _server_s(server) - of_server
    return {
        "per_s": events / seconds,
        "node_us": statistics.mean(used) * 1e6 / events,
        "nodes_us": sum(used) * 1e6 / events,
        "server_us": of_server * 1e6 / events,
    }


async def _publish_and_settle(sides: list[_Side], http: NodeHttp, events: int) -> None:
    share = events // len(sides)
    goal = sum(side.taken for side in sides) + share * len(sides)
    await asyncio.gather(*(side.publish(share) for side in sides))
    while sum(side.taken for side in sides) < goal or await _lag(http):  # noqa: ASYNC110 (a node is another process)
        await asyncio.sleep(0.02)


async def _lag(http: NodeHttp) -> int:
    return sum(group["lag"] for group in (await http.call("GET", "/groups"))["groups"])


async def measure_nodes(server: Postgres, rounds: int, events: int) -> Figures:
    found: dict[int, list[Figures]] = {count: [] for count in NODES}
    for _ in range(rounds):
        for count, each in found.items():
            each.append(await _through(server, count, events))
            progress("engines", f"{count} nodes on PostgreSQL", each[-1])
    figures: Figures = {f"{count} nodes": _medians(each) for count, each in found.items()}
    for count in NODES[1:]:
        pairs = [(many["node_us"], one["node_us"]) for many, one in zip(found[count], found[1], strict=True)]
        figures[f"node_us_of_{count}_to_1"] = ratio(pairs)
    return figures | {"events": events, "partitions": PARTITIONS, "payload_bytes": len(PAYLOAD)}


async def main(name: str, database: str, runs: int) -> Figures:
    """One side of `runs`, in a process of its own."""
    return await runs_ours(database, runs) if name == "ours" else await asyncio.to_thread(runs_dbos, database, runs)


if __name__ == "__main__":
    if len(sys.argv) == 4:
        print(json.dumps(run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))))
    else:
        print(json.dumps(run(measure(quick="--quick" in sys.argv)), indent=2))
