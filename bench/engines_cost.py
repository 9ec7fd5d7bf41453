"""What an event costs each node of a log, in processor time. Part of `engines`.

For NATS (`nats`; `nats_with_ids` with events that leave a dedupe mark), for PostgreSQL where it is installed, and for
SQLite, which has one node:

- `batches`: microseconds per event on the node that took it (`writer`) and on each node that only follows (`follower`),
  with thousands of publishes under way, with 1, 2 and 3 nodes.
- `single`: the same in microseconds per commit, where the publisher waits for each of its events.
- `idle_members`: messages in the stream per event, for a slow stream of single events and one idle member on each of
  1, 3 and 6 nodes.

A node is a process with a log and a watcher, as a node of the bus has; processor time is that of the whole process,
all threads, from the first event to the last that was applied. Figures are medians over rounds. Processor time still
depends on the machine (caches, frequency), but not on how much else it does.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import nats
from tests.support import postgres
from tests.support.nats_server import NatsServer

from bench.harness import progress
from bench.peers import servers
from mainspring.client import connect
from mainspring.log import Append, Batch, Change, Log, Receipt, Result, SharedEngine, open_engine

PAYLOAD = json.dumps({"customer": "c-4711", "items": [1, 2, 3], "note": "x" * 120}, separators=(",", ":")).encode()
UNDER_WAY = 4_000
TS = 1_700_000_000_000


# -- one node


class Member:
    """A node in this process: publishes and follows as it is told on standard input."""

    def __init__(self, address: str, folder: str, *, dedupe: bool) -> None:
        self._log = Log(open_engine(address, folder))
        self._dedupe = dedupe
        self._tail = 0
        self._moved = asyncio.Event()
        self._first = 0

    async def run(self) -> None:
        await self._log.open()
        self._alone = not isinstance(self._log.engine, SharedEngine)
        self._log.watch(self._seen)
        bounds = await self._log.bounds("bench")
        self._tail = bounds[0].tail if bounds else 0
        self._say()
        lines = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(lines)
        await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
        while line := await lines.readline():
            order = json.loads(line)
            if "publish" in order:
                await self._publish(order["publish"], order["under_way"])
            while self._tail < order.get("follow", 0):
                self._moved.clear()
                await self._moved.wait()
            self._say()

    def _say(self) -> None:
        print(json.dumps({"cpu": time.process_time(), "tail": self._tail}), flush=True)

    def _seen(self, change: Change) -> None:
        for appended in change.appended:
            self._tail = appended.last
        self._moved.set()

    async def _publish(self, count: int, under_way: int) -> None:
        waiting = 0
        room = asyncio.Event()

        def done(result: Result) -> None:
            nonlocal waiting
            assert isinstance(result, Receipt), result
            if self._alone:
                self._tail = result.offsets[-1][1]
            waiting -= 1
            room.set()

        for _ in range(count):
            while waiting >= under_way:
                room.clear()
                await room.wait()
            waiting += 1
            self._first += 1
            id = f"0190b7f6-1234-7abc-8def-{self._first:012}"
            marked = (id, TS + 600_000) if self._dedupe else (None, 0)
            self._log.submit(Batch([Append("bench", 0, id, TS, PAYLOAD, None, None, *marked)]), done)
        while waiting:
            room.clear()
            await room.wait()


class Process:
    """The same, seen from here."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def ask(self, **order: int) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if order:
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
        answer: dict[str, Any] = json.loads(await self._process.stdout.readline())
        return answer

    async def end(self) -> None:
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()


@asynccontextmanager
async def members(address: str, place: Path, count: int, dedupe: bool) -> AsyncIterator[list[Process]]:
    async with AsyncExitStack() as stack:
        found = []
        for _ in range(count):
            folder = Path(tempfile.mkdtemp(dir=place))
            process = Process(
                await asyncio.create_subprocess_exec(
                    sys.executable,
                    *("-m", "bench.engines_cost", address, str(folder), str(dedupe)),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    cwd=Path(__file__).parent.parent,
                )
            )
            stack.push_async_callback(process.end)
            await process.ask()
            found.append(process)
        yield found


# -- processor time


async def one_round(nodes: Sequence[Process], events: int, under_way: int) -> list[float]:
    """Microseconds per event on each node; the first one publishes."""
    before = [await node.ask(follow=0) for node in nodes]
    goal = before[0]["tail"] + events
    await asyncio.gather(
        nodes[0].ask(publish=events, follow=goal, under_way=under_way), *(node.ask(follow=goal) for node in nodes[1:])
    )
    after = [await node.ask(follow=0) for node in nodes]
    return [(late["cpu"] - early["cpu"]) * 1e6 / events for early, late in zip(before, after, strict=True)]


class Amount(NamedTuple):
    """How much is measured."""

    batched: int
    single: int
    rounds: int
    idle: int


QUICK = Amount(2_048, 100, 2, 20)
FULL = Amount(16_384, 1_000, 5, 200)


async def processor_time(
    address: Callable[[str], str],
    place: Path,
    amount: Amount,
    *,
    counts: Sequence[int] = (1, 2, 3),
    dedupe: bool = False,
) -> dict[str, Any]:
    """`address` gives that of a new log of a name."""
    figures: dict[str, Any] = {"batches": {}, "single": {}}
    for count in counts:
        async with members(address(f"cost{count}{dedupe}".lower()), place, count, dedupe) as nodes:
            for kind, number, under_way in (("batches", amount.batched, UNDER_WAY), ("single", amount.single, 1)):
                measured = [await one_round(nodes, number, under_way) for _ in range(amount.rounds + 1)][1:]
                writer, *followers = (statistics.median(column) for column in zip(*measured, strict=True))
                figures[kind][f"{count} nodes"] = {
                    "writer_us": round(writer, 2),
                    **({"follower_us": round(statistics.mean(followers), 2)} if followers else {}),
                }
                ids = " with ids" if dedupe else ""
                progress("engines", f"{kind} on {address('').partition(':')[0]}{ids}", figures[kind])
    return figures


# -- messages


async def idle_members(server: NatsServer, count: int, events: int) -> float:
    """Messages per event, with a member on each of so many nodes."""
    name = f"idle{count}"
    async with AsyncExitStack() as stack:
        nodes = [
            await stack.enter_async_context(servers.node(MAINSPRING_ENGINE=server.url(name), MAINSPRING_NODE=f"n{n}"))
            for n in range(count)
        ]
        clients = [await stack.enter_async_context(connect(f"ws://127.0.0.1:{node.port}")) for node in nodes]
        handled = asyncio.Event()

        async def consume(client: Any) -> None:
            async with client.subscribe("work", group="workers", max_inflight=1) as subscription:
                async for event in subscription:
                    await event.ack()
                    handled.set()

        tasks = [asyncio.create_task(consume(client)) for client in clients]
        await asyncio.sleep(2.0)
        link = await nats.connect(server.host)
        stack.push_async_callback(link.close)
        before = 0
        for n in range(-5, events):
            if n == 0:
                before = await _last_message(link, name)
            handled.clear()
            await clients[0].publish("work", {"n": n})
            await handled.wait()
            await asyncio.sleep(0.02)
        after = await _last_message(link, name)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return round((after - before) / events, 2)


async def _last_message(link: Any, name: str) -> int:
    info = await link.jetstream().stream_info(f"MAINSPRING_{name}")
    return int(info.state.last_seq)


async def measure(server: NatsServer, place: Path, *, quick: bool = False) -> dict[str, Any]:
    amount = QUICK if quick else FULL
    figures = {
        "sqlite": await processor_time(lambda _: "sqlite", place, amount, counts=(1,)),
        "nats": await processor_time(server.url, place, amount),
        "nats_with_ids": await processor_time(server.url, place, amount, dedupe=True),
        "idle_members": {f"{count} nodes": await idle_members(server, count, amount.idle) for count in (1, 3, 6)},
        "goals": {"follower_us": {"batches": 3.0, "single": 100.0}, "idle_members": 3.5},
    }
    if postgres.binaries() is not None:
        with postgres.running_postgres() as database:
            url = database.url("postgres")
            figures["postgresql"] = await processor_time(lambda name: f"{url}?schema={name}", place, amount)
    return figures


if __name__ == "__main__":
    from mainspring.loop import run

    run(Member(sys.argv[1], sys.argv[2], dedupe=sys.argv[3] == "True").run())
