"""What a node is like that has a lot to keep and never a quiet moment: do memory, descriptors, tasks or waits grow?

Prints one JSON object. A node on SQLite gets connections, subscriptions, topics, groups, waiting runs and schedules,
all idle. Then, for some minutes, a publisher never stops, one consumer reads what it publishes, another has subscribed
and never reads from its socket, and twenty schedules among the idle ones fire twice a second. A further client
publishes an event every few milliseconds and waits until it is stored and until it is delivered, and asks a query every
second: its waits are the figures. The node is looked at every second.

Each figure has the mean of the first third of the time and of the last, and how many times the first fits into the
last (`slope`): 1.0 is flat. The goal is at most 1.1 for memory, descriptors, tasks and waits. No time is ever asserted.

With `--long` there are 10,000 connections, 100,000 subscriptions, 10,000 topics, 10,000 groups of one topic, 100,000
runs and 100,000 schedules, for three minutes; else a tenth of that for half a minute.

A process may have only so many descriptors: where the limit is lower than the connections need, there are fewer, and
`conditions` says how many.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import resource
import statistics
import tempfile
import time
import urllib.request
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.harness import Figures, options, progress, report
from bench.peers import servers as peers
from bench.raw_client import BusClient
from mainspring.loop import run

PAYLOAD: Final = b'"' + b"x" * 198 + b'"'
UNDER_WAY: Final = 1_024
KEPT_BYTES: Final = 64 << 20  # of the busy topic: so that retention has work, too
SPARE_DESCRIPTORS: Final = 500
TICKING: Final = 20  # schedules that fire twice a second
FLAT: Final = 1.1
UNLIMITED: Final = ("MAX_CONNECTIONS", "MAX_ADDRESS_CONNECTIONS", "MAX_POSITIONS")  # as the quotas are
WAITS: Final = ("stored_p50_ms", "stored_p99_ms", "delivered_p50_ms", "delivered_p99_ms", "asked_ms")
refusals: list[str] = []
PROGRAM: Final = """
import asyncio

from mainspring import App, Event, WaitSignal

app = App("endurance")

@app.run
async def wait(perform) -> None:
    await perform(WaitSignal("never"))

@app.consumer("starts", concurrency=1000, max_inflight=5000)
async def start(event: Event) -> None:
    event.start_run(wait)

@app.query("Probe.Tasks")
async def tasks(data: dict, ctx) -> int:
    return len(asyncio.all_tasks())
"""


@dataclass(frozen=True)
class Size:
    """How much of everything."""

    connections: int
    subscriptions: int
    topics: int
    groups: int
    runs: int
    schedules: int
    seconds: int


LONG: Final = Size(10_000, 100_000, 10_000, 10_000, 100_000, 100_000, 180)
USUAL: Final = Size(1_000, 10_000, 1_000, 1_000, 10_000, 10_000, 30)
SMALL: Final = Size(100, 1_000, 100, 100, 500, 500, 6)


def descriptors_for(size: Size) -> Size:
    """Raise the limit of descriptors as far as it goes; fewer connections where it does not reach."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    most = hard - SPARE_DESCRIPTORS if hard != resource.RLIM_INFINITY else size.connections
    return Size(**{**vars(size), "connections": min(size.connections, most)})


# -- what is there


class Crowd:
    """Connections that hold subscriptions and say nothing."""

    def __init__(self, node: peers.Node) -> None:
        self._node = node
        self._confirmed = 0
        self.clients: list[BusClient] = []

    async def connect(self, size: Size) -> None:
        """Connections and subscriptions; every topic has some, and the groups beyond are of one topic."""
        each = max(1, size.subscriptions // size.connections)
        number = 0
        for _ in range(size.connections):
            client = await BusClient.connect(self._node.port)
            client.on_frame = self._take
            self.clients.append(client)
            frames = []
            for _ in range(each):
                topic = "crowded" if number < size.groups else f"idle.{number % size.topics}"
                frames.append({"type": "SUBSCRIBE", "topic": topic, "group": f"g{number}"})
                number += 1
            client.send(*(json.dumps(frame).encode() for frame in frames))
            if len(self.clients) % 100 == 0:
                await until(lambda number=number: self._confirmed >= number - 2_000)  # type: ignore[misc]
        await until(lambda: self._confirmed >= number)

    def _take(self, text: bytes) -> None:
        self._confirmed += confirms(text)


async def keep_schedules(node: peers.Node, count: int) -> None:
    """Schedules that fire once a day, and some that fire twice a second."""
    client, confirmed = await BusClient.connect(node.port), 0

    def take(text: bytes) -> None:
        nonlocal confirmed
        confirmed += confirms(text)

    client.on_frame = take
    for n in range(count):
        topic, every = ("ticking", 500) if n < TICKING else ("daily", 86_400_000)
        frame = {"type": "SCHEDULE", "name": f"{topic}.{n}", "topic": topic, "payload": 1, "every": every}
        client.send(json.dumps(frame).encode())
        if n % 1_000 == 999:
            await until(lambda n=n: confirmed > n - 2_000)  # type: ignore[misc]
    await until(lambda: confirmed == count)
    client.close()


async def start_runs(node: peers.Node, count: int) -> None:
    """Durable runs that wait for a signal."""
    client = await BusClient.connect(node.port)
    for n in range(count):
        client.publish("starts", b"1")
        if n % 64 == 63:
            await client.room(UNDER_WAY)
    await client.drained()
    client.close()
    for _ in itertools.count():
        if await asyncio.to_thread(group_lag, node, "starts") == 0:
            return
        await asyncio.sleep(0.5)


def confirms(text: bytes) -> bool:
    """Whether a frame says yes. One that says no ends the measurement: nobody would ever get what he waits for."""
    if text.startswith(b'{"type":"ERROR"'):
        refusals.append(text.decode())
    return text.startswith(b'{"type":"OK"')


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that takes as long as it takes."""
    for _ in itertools.count():
        if refusals:
            raise SystemExit(f"the node refuses: {refusals[0]}")
        if condition():
            return
        await asyncio.sleep(0.01)


def group_lag(node: peers.Node, topic: str) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{node.port}/groups?topic={topic}", timeout=60) as answer:
        return sum(group["lag"] for group in json.load(answer)["groups"])


# -- what happens


async def publish_for_ever(node: peers.Node, counts: dict[str, int]) -> None:
    client = await BusClient.connect(node.port)
    while True:
        for _ in range(64):
            client.publish("busy", PAYLOAD)
        await client.room(UNDER_WAY)
        counts["published"] = client.published


async def consume_for_ever(node: peers.Node, topic: str, counts: dict[str, int]) -> None:
    client = await BusClient.connect(node.port)
    ack = '{"type":"ACK","topic":"%s","partition":0,"group":"reads","offset":%d}'

    def take(text: bytes) -> None:
        if text.startswith(b'{"type":"MESSAGES"'):
            messages = json.loads(text)["messages"]
            counts[topic] += len(messages)
            client.send((ack % (topic, messages[-1]["offset"])).encode())

    client.on_frame = take
    frame = {"type": "SUBSCRIBE", "topic": topic, "group": "reads", "max_inflight": 4_096, "batch": 256}
    client.send(json.dumps(frame).encode())
    await asyncio.Event().wait()


async def never_read(node: peers.Node) -> None:
    """Subscribe, and leave everything in the socket."""
    _, writer = await asyncio.open_connection("127.0.0.1", node.port, limit=1_024)
    writer.write(
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    await asyncio.sleep(1)
    text = b'{"type":"SUBSCRIBE","topic":"busy","group":"deaf","max_inflight":10000}'
    writer.write(bytes((0x81, 0x80 | len(text), 0, 0, 0, 0)) + text)
    await asyncio.Event().wait()


@dataclass
class Samples:
    """One list for each figure, a value for each second."""

    values: dict[str, list[float]] = field(default_factory=dict)

    def add(self, **figures: float) -> None:
        for name, value in figures.items():
            self.values.setdefault(name, []).append(value)

    def slopes(self) -> Figures:
        return {name: _slope(found) for name, found in self.values.items()}


def _slope(found: list[float]) -> Figures:
    third = max(1, len(found) // 3)
    first, last = statistics.fmean(found[:third]), statistics.fmean(found[-third:])
    return {"first": round(first, 2), "last": round(last, 2), "slope": round(last / first, 3) if first else None}


class Probe:
    """A client that publishes one event after the other, and gets each of them."""

    def __init__(self, client: BusClient) -> None:
        self._client = client
        self._came = asyncio.Event()
        self.stored: list[float] = []
        self.delivered: list[float] = []

    @classmethod
    async def connect(cls, node: peers.Node) -> Probe:
        probe = cls(await BusClient.connect(node.port))
        probe._client.on_frame = probe._take
        probe._client.send(b'{"type":"SUBSCRIBE","topic":"probe","group":"probe"}')
        return probe

    def _take(self, text: bytes) -> None:
        if text.startswith(b'{"type":"MESSAGE"'):
            ack = '{"type":"ACK","topic":"probe","partition":0,"group":"probe","offset":%d}'
            self._client.send((ack % json.loads(text)["offset"]).encode())
            self._came.set()

    async def measure(self, seconds: float) -> None:
        """How long each event takes until it is stored, and until it is delivered."""
        end, self.stored, self.delivered = time.perf_counter() + seconds, [], []
        while time.perf_counter() < end:
            began = time.perf_counter_ns()
            self._came.clear()
            self._client.publish("probe", PAYLOAD)
            await self._client.drained()
            self.stored.append((time.perf_counter_ns() - began) / 1e6)
            await self._came.wait()
            self.delivered.append((time.perf_counter_ns() - began) / 1e6)
            await asyncio.sleep(0.005)

    def close(self) -> None:
        self._client.close()


def _at(waits: list[float], percent: int) -> float:
    return sorted(waits)[len(waits) * percent // 100]


async def sample(node: peers.Node, seconds: int, counts: dict[str, int]) -> Figures:
    """Publish one event after the other, and look at the node every second."""
    probe, samples = await Probe.connect(node), Samples()
    for _ in range(seconds):
        before, began = dict(counts), time.perf_counter()
        await probe.measure(1)
        took = time.perf_counter() - began
        began = time.perf_counter()
        tasks = await asyncio.to_thread(_tasks_of, node)
        samples.add(
            memory_mb=node.memory_mb(),
            descriptors=len(os.listdir(f"/proc/{node.process.pid}/fd")),
            threads=len(os.listdir(f"/proc/{node.process.pid}/task")),
            tasks=tasks,
            asked_ms=(time.perf_counter() - began) * 1e3,
            stored_p50_ms=_at(probe.stored, 50),
            stored_p99_ms=_at(probe.stored, 99),
            delivered_p50_ms=_at(probe.delivered, 50),
            delivered_p99_ms=_at(probe.delivered, 99),
            published_per_s=(counts["published"] - before["published"]) / took,
            fired_per_s=(counts["ticking"] - before["ticking"]) / took,
        )
    probe.close()
    return samples.slopes()


def _tasks_of(node: peers.Node) -> int:
    body = json.dumps({"kind": "query", "type": "Probe.Tasks", "data": {}}).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{node.port}/messages", body, {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        return int(json.load(answer)["data"])


async def main(size: Size) -> Figures:
    flat = dict.fromkeys(("memory_mb", "descriptors", "tasks", *WAITS), FLAT)
    figures: Figures = {"goals": {"slope": flat}}
    with tempfile.TemporaryDirectory(prefix="ms-endurance-") as made:
        folder = Path(made)
        (folder / "endurance_program.py").write_text(PROGRAM)
        limits = {f"MAINSPRING_{name}": str(20 * LONG.subscriptions) for name in UNLIMITED}
        async with peers.node(folder, program="endurance_program:app", **limits) as node:
            figures["built"] = await _build(node, size)
            counts = {"published": 0, "busy": 0, "ticking": 0}
            reading = [consume_for_ever(node, topic, counts) for topic in ("busy", "ticking")]
            loads = [publish_for_ever(node, counts), never_read(node), *reading]
            tasks = [asyncio.ensure_future(each) for each in loads]
            await asyncio.sleep(min(10, size.seconds))  # the window of the deaf one fills
            figures.update(await sample(node, size.seconds, counts))
            for task in tasks:
                task.cancel()
            figures["counts"] = counts
    return figures


async def _build(node: peers.Node, size: Size) -> Figures:
    """Memory and seconds that each kind of thing takes."""
    built: Figures = {}
    crowd = Crowd(node)
    steps: dict[str, tuple[int, Callable[[], Awaitable[None]]]] = {
        "subscriptions": (size.subscriptions, lambda: crowd.connect(size)),
        "schedules": (size.schedules, lambda: keep_schedules(node, size.schedules)),
        "runs": (size.runs, lambda: start_runs(node, size.runs)),
    }
    await asyncio.to_thread(_limit_busy_topic, node)
    for name, (count, step) in steps.items():
        memory, began = node.memory_mb(), time.perf_counter()
        await step()
        grown = node.memory_mb() - memory
        seconds = round(time.perf_counter() - began, 1)
        built[name] = {"count": count, "kb_each": round(grown * 1024 / count, 2), "seconds": seconds}
        progress("endurance", name, built[name])
    return built


def _limit_busy_topic(node: peers.Node) -> None:
    body = json.dumps({"topic": "busy", "retentionBytes": KEPT_BYTES}).encode()
    url = f"http://127.0.0.1:{node.port}/topics"
    urllib.request.urlopen(urllib.request.Request(url, body, {"content-type": "application/json"}), timeout=30).close()


if __name__ == "__main__":
    given = options(__doc__)
    wanted = descriptors_for(SMALL if given.quick else LONG if given.long else USUAL)
    report(run(main(wanted)), **vars(wanted), payload_bytes=len(PAYLOAD), engine="SQLite, synchronous=FULL")
