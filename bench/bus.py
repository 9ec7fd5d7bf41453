"""How fast the bus is, against NATS JetStream and Redis Streams in the same run.

Prints one JSON object. Payloads have 200 bytes; a node of ours fsyncs before every acknowledgement, always. Peers run
with their defaults and with fsync before every acknowledgement; the condition stands in their name. Client and server
share the machine. Goals stand beside the ratios; no time is ever asserted.

- `publish`: one client, as many events under way as it likes (4,096), batched by the client itself; events per second.
  `ours` is a lean client that gives no ids; `client_many` and `client_each` are the client that we ship, which does, by
  `publish_many` and by a thousand tasks that each wait for their answer.
- `end_to_end`: the same with a consumer that acknowledges; until the last one is acknowledged.
- `load`: 1,000 events per second to ten consumers, as one group and as ten; milliseconds from send to receive.
- `alone`: one publisher that waits for each answer, against one fsync of this disk; with `BENCH_BEFORE=OTHER` in the
  environment also against a node of another checkout.
- `schedules`: 20 schedules that fire every 500 ms, alone and among 100,000 that fire daily: how many of those that are
  due in ten seconds fired, and milliseconds of a publisher that waits for each answer meanwhile.
- `audit`: publishing with the audit topic on, against off.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

from bench.harness import options, progress, ratio, report, summary, versus
from bench.peers import servers as peers
from bench.raw_client import BusClient
from bench.sdk import sdk_publish, sdk_publish_each
from mainspring.loop import run

PAYLOAD = b'"' + b"x" * 198 + b'"'
UNDER_WAY = 4_096
BATCH = 256
ROUNDS = 5
Result = dict[str, Any]

_OFFSET = re.compile(rb'"offset":(\d+),"attempt"')


# -- ours


async def publish_ours(port: int, count: int, topic: str = "bench") -> float:
    client = await BusClient.connect(port)
    start = time.perf_counter()
    for n in range(count):
        client.publish(topic, PAYLOAD)
        if n % 64 == 63:
            await client.room(UNDER_WAY)
    await client.drained()
    taken = time.perf_counter() - start
    client.close()
    return count / taken


async def end_to_end_ours(port: int, count: int, topic: str) -> float:
    consumer, done, got = await BusClient.connect(port), asyncio.get_running_loop().create_future(), 0
    ack = b'{"type":"ACK","topic":"%b","partition":0,"group":"g","offset":%%b}' % topic.encode()

    def take(text: bytes) -> None:
        nonlocal got
        if not text.startswith(b'{"type":"MESSAGES"'):
            return
        offsets = _OFFSET.findall(text)
        got += len(offsets)
        consumer.send(ack % offsets[-1])
        if got >= count and not done.done():
            done.set_result(None)

    consumer.on_frame = take
    subscribe = {"type": "SUBSCRIBE", "topic": topic, "group": "g", "max_inflight": UNDER_WAY, "batch": BATCH}
    consumer.send(json.dumps(subscribe).encode())
    await asyncio.sleep(0.2)
    start = time.perf_counter()
    await publish_ours(port, count, topic)
    await done
    taken = time.perf_counter() - start
    consumer.close()
    return count / taken


async def alone_ours(port: int, count: int) -> float:
    """Microseconds of one publish, the median."""
    client, taken = await BusClient.connect(port), []
    for _ in range(count):
        start = time.perf_counter()
        client.publish("alone", PAYLOAD)
        await client.drained()
        taken.append(time.perf_counter() - start)
    client.close()
    return statistics.median(taken) * 1e6


async def load_ours(port: int, groups: int, seconds: int, rate: int) -> tuple[float, float]:
    topic, waits = f"load.{groups}", []
    stamp = re.compile(rb'"payload":"(\d+)')
    consumers = []
    for n in range(10):
        consumer = await BusClient.connect(port)
        group = f"g{n % groups}".encode()

        def take(text: bytes, consumer: BusClient = consumer, group: bytes = group) -> None:
            if text.startswith(b'{"type":"MESSAGE"'):
                found, offset = stamp.search(text), _OFFSET.search(text)
                assert found is not None
                assert offset is not None
                waits.append(time.perf_counter_ns() - int(found[1]))
                consumer.send(
                    b'{"type":"ACK","topic":"%b","partition":0,"group":"%b","offset":%b}'
                    % (topic.encode(), group, offset[1])
                )

        consumer.on_frame = take
        consumer.send(json.dumps({"type": "SUBSCRIBE", "topic": topic, "group": group.decode()}).encode())
        consumers.append(consumer)
    writer = await BusClient.connect(port)
    await asyncio.sleep(0.3)
    async for _ in ticks(seconds, rate):
        writer.publish(topic, b'"%b"' % str(time.perf_counter_ns()).encode().ljust(198, b"."))
    await writer.drained()
    await asyncio.sleep(0.5)
    for client in (*consumers, writer):
        client.close()
    return percentiles(waits)


# -- JetStream


async def _stream(port: int, subject: str) -> tuple[Any, Any]:
    import nats

    connection = await nats.connect(f"nats://127.0.0.1:{port}")
    context = connection.jetstream(publish_async_max_pending=UNDER_WAY)
    await context.add_stream(name=subject.replace(".", "_"), subjects=[subject])
    return connection, context


async def publish_nats(port: int, count: int, topic: str = "bench") -> float:
    connection, context = await _stream(port, topic)
    start = time.perf_counter()
    for _ in range(count):
        await context.publish_async(topic, PAYLOAD)
    await context.publish_async_completed()
    taken = time.perf_counter() - start
    await connection.close()
    return count / taken


async def end_to_end_nats(port: int, count: int, topic: str) -> float:
    from nats.js.api import AckPolicy, ConsumerConfig

    connection, context = await _stream(port, topic)
    settings = ConsumerConfig(ack_policy=AckPolicy.ALL, max_ack_pending=UNDER_WAY)
    pull = await context.pull_subscribe(topic, "g", config=settings)

    async def consume() -> None:
        got = 0
        while got < count:
            messages = await pull.fetch(BATCH, timeout=5)
            got += len(messages)
            await messages[-1].ack()

    start = time.perf_counter()
    task = asyncio.create_task(consume())
    for _ in range(count):
        await context.publish_async(topic, PAYLOAD)
    await context.publish_async_completed()
    await task
    taken = time.perf_counter() - start
    await connection.close()
    return count / taken


async def load_nats(port: int, groups: int, seconds: int, rate: int) -> tuple[float, float]:
    from nats.js.api import ConsumerConfig

    topic, waits, connections = f"load.{groups}", [], []
    connection, context = await _stream(port, topic)

    async def take(message: Any) -> None:
        waits.append(time.perf_counter_ns() - int(message.data[1:20].rstrip(b".")))
        await message.ack()

    import nats

    for n in range(10):
        own = await nats.connect(f"nats://127.0.0.1:{port}")
        connections.append(own)
        group = f"g{n % groups}"
        await own.jetstream().subscribe(
            topic, queue=group, durable=group, cb=take, manual_ack=True, config=ConsumerConfig(max_ack_pending=1_000)
        )
    await asyncio.sleep(0.3)
    async for _ in ticks(seconds, rate):
        await context.publish_async(topic, b'"%b"' % str(time.perf_counter_ns()).encode().ljust(198, b"."))
    await context.publish_async_completed()
    await asyncio.sleep(0.5)
    for one in (*connections, connection):
        await one.close()
    return percentiles(waits)


# -- Redis


async def publish_redis(port: int, count: int, topic: str = "bench") -> float:
    import redis.asyncio

    client = redis.asyncio.Redis(port=port)
    await client.ping()
    start = time.perf_counter()
    for first in range(0, count, BATCH):
        pipe = client.pipeline(transaction=False)
        for _ in range(min(BATCH, count - first)):
            pipe.xadd(topic, {"p": PAYLOAD})
        await pipe.execute()
    taken = time.perf_counter() - start
    await client.aclose()
    return count / taken


async def end_to_end_redis(port: int, count: int, topic: str) -> float:
    import redis.asyncio

    client = redis.asyncio.Redis(port=port)
    await client.xgroup_create(topic, "g", id="0", mkstream=True)

    async def consume() -> None:
        got = 0
        while got < count:
            found: Any = await client.xreadgroup("g", "c", {topic: ">"}, count=BATCH, block=1000)
            for _, entries in found or ():
                got += len(entries)
                await client.xack(topic, "g", *[entry[0] for entry in entries])

    start = time.perf_counter()
    task = asyncio.create_task(consume())
    await publish_redis(port, count, topic)
    await task
    taken = time.perf_counter() - start
    await client.aclose()
    return count / taken


# -- measuring


async def ticks(seconds: int, rate: int) -> AsyncIterator[int]:
    """Evenly spread; late ones are made up, so that a slow peer cannot slow its own load."""
    start = time.perf_counter()
    for n in range(seconds * rate):
        wait = start + n / rate - time.perf_counter()
        if wait > 0:
            await asyncio.sleep(wait)
        yield n


def percentiles(waits: list[int]) -> tuple[float, float]:
    """Milliseconds: the median, and what one in a hundred exceeds."""
    ordered = sorted(waits)
    return ordered[len(ordered) // 2] / 1e6, ordered[len(ordered) * 99 // 100] / 1e6


Measure = Callable[[int, int, str], Awaitable[float]]


def opponents(measures: tuple[Measure, Measure]) -> dict[str, tuple[Any, Measure, float]]:
    """By name: how to start it, what to measure, and what share of the events it gets (fsync each is slow)."""
    nats_measure, redis_measure = measures
    found: dict[str, tuple[Any, Measure, float]] = {}
    if peers.nats_server():
        found["jetstream_default"] = (lambda: peers.nats(always=False), nats_measure, 0.25)
        found["jetstream_always"] = (lambda: peers.nats(always=True), nats_measure, 0.025)
    if peers.redis_server():
        found["redis_everysec"] = (lambda: peers.redis(always=False), redis_measure, 0.25)
        found["redis_always"] = (lambda: peers.redis(always=True), redis_measure, 0.1)
    return found


async def race(count: int, ours: dict[str, Measure], measures: tuple[Measure, Measure]) -> Result:
    """Ours and every opponent in turn, several rounds: events per second, and how many times those of each opponent."""
    rates: dict[str, list[float]] = {}
    runners = opponents(measures)
    for n in range(ROUNDS):
        for name, own in ours.items():
            async with peers.node() as node:
                rates.setdefault(name, []).append(await own(node.port, count, f"r{n}"))
        for name, (start, measure, share) in runners.items():
            async with start() as port:
                rates.setdefault(name, []).append(await measure(port, max(1_000, int(count * share)), f"r{n}"))
    result: Result = {name: summary(values) for name, values in rates.items()}
    if runners:
        best = max(runners, key=lambda name: statistics.median(rates[name]))
        result["best_peer"] = best
        result["times"] = {
            own: {name: versus(rates[own], rates[name]) for name in runners}
            | {"best_peer": versus(rates[own], rates[best])}
            for own in ours
        }
    return result


async def measure_load(seconds: int) -> Result:
    """In rounds: the milliseconds of each, and ours in parts of JetStream's."""
    result: Result = {}
    for shape, groups in (("one_group", 1), ("ten_groups", 10)):
        found: dict[str, list[tuple[float, float]]] = {}
        for _ in range(ROUNDS):
            async with peers.node() as node:
                found.setdefault("ours", []).append(await load_ours(node.port, groups, seconds, 1_000))
            if peers.nats_server():
                for name, always in (("jetstream_default", False), ("jetstream_always", True)):
                    async with peers.nats(always=always) as port:
                        found.setdefault(name, []).append(await load_nats(port, groups, seconds, 1_000))
        p50, p99 = ({name: [pair[n] for pair in pairs] for name, pairs in found.items()} for n in (0, 1))
        result[shape] = {
            "p50_ms": {name: summary(values, 2) for name, values in p50.items()},
            "p99_ms": {name: summary(values, 2) for name, values in p99.items()},
            "p50_times": {name: versus(p50["ours"], values) for name, values in p50.items() if name != "ours"},
        }
        progress("bus", f"load, {shape}", result[shape]["p50_ms"])
    return result


async def measure_alone(rounds: int) -> Result:
    """Microseconds, beside an fsync and, where `BENCH_BEFORE` is another checkout, a node of that one."""
    before = os.environ.get("BENCH_BEFORE")
    found: dict[str, list[float]] = {"publish": [], "fsync": [], "before": []}
    async with AsyncExitStack() as stack:
        nodes = {"publish": await stack.enter_async_context(peers.node())}
        if before:
            nodes["before"] = await stack.enter_async_context(peers.node(PYTHONPATH=f"{before}/src"))
        for node in nodes.values():
            await alone_ours(node.port, 100)
        for _ in range(rounds):
            for name, node in nodes.items():
                found[name].append(await alone_ours(node.port, 300))
            found["fsync"].append(peers.fsync_us())
    result: Result = {f"{name}_us": summary(values) for name, values in found.items() if values}
    result["times_fsync"] = versus(found["publish"], found["fsync"])
    return result | ({"times_before": versus(found["publish"], found["before"])} if before else {})


async def measure_schedules(others: int, seconds: int) -> Result:
    result: Result = {}
    for name, count in (("alone", 0), (f"among_{others}", others)):
        async with peers.node() as node:
            result[name] = await schedules_ours(node.port, count, seconds)
    return result


async def schedules_ours(port: int, others: int, seconds: int) -> Result:
    client, confirmed, fired, waits = await BusClient.connect(port), 0, 0, []

    def take(text: bytes) -> None:
        nonlocal confirmed, fired
        confirmed += text.startswith(b'{"type":"OK"')
        fired += text.startswith(b'{"type":"MESSAGE"')

    async def come(count: int) -> None:
        for _ in range(60_000):
            if confirmed >= count:
                break
            await asyncio.sleep(0.001)

    client.on_frame = take
    client.send(b'{"type":"SUBSCRIBE","topic":"fired","group":"g","max_inflight":1000}')
    for n in range(others + 20):
        name, every = (f"daily{n}", 86_400_000) if n < others else (f"often{n}", 500)
        frame = {"type": "SCHEDULE", "name": name, "topic": "fired", "payload": 1, "every": every}
        client.send(json.dumps(frame).encode())
        if n % 1_000 == 999:
            await come(n)
    await come(others + 21)
    publisher, fired, end = await BusClient.connect(port), 0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter_ns()
        publisher.publish("other", PAYLOAD)
        await publisher.drained()
        waits.append(time.perf_counter_ns() - start)
        await asyncio.sleep(0.005)
    publisher.close()
    client.close()
    p50, p99 = percentiles(waits)
    return {"fired": fired, "due": 20 * 2 * seconds, "p50_ms": round(p50, 2), "p99_ms": round(p99, 2)}


async def measure_audit(count: int) -> Result:
    async with peers.node() as audited, peers.node(MAINSPRING_AUDIT="false") as silent:
        pairs = [(await publish_ours(audited.port, count), await publish_ours(silent.port, count)) for _ in range(5)]
    return {"cost": round(ratio(((off, on) for on, off in pairs), 4) - 1, 3)}


async def main(*, quick: bool, long: bool) -> Result:
    count = 10_000 if quick else 200_000
    result: Result = {
        "skipped": [
            *([] if peers.nats_server() else ["JetStream: nats-server is not installed"]),
            *([] if peers.redis_server() else ["Redis: redis-server is not installed"]),
        ],
        "goals": {
            "publish": {
                "ours": {"jetstream_default": 6, "jetstream_always": 50, "redis_everysec": 4},
                "client_many": {"jetstream_default": 4.5},
                "client_each": {"jetstream_default": 3},
            },
            "end_to_end": {"best_peer": 3},
            "load": {"p50_times": {"jetstream_always": 0.9, "jetstream_default": 1.8}},
            "audit": {"cost": 0.1},
        },
    }
    steps: dict[str, Callable[[], Awaitable[Result]]] = {
        "publish": lambda: race(
            count,
            {"ours": publish_ours, "client_many": sdk_publish, "client_each": sdk_publish_each},
            (publish_nats, publish_redis),
        ),
        "end_to_end": lambda: race(count // 2, {"ours": end_to_end_ours}, (end_to_end_nats, end_to_end_redis)),
        "load": lambda: measure_load(30 if long else 1 if quick else 4),
        "alone": lambda: measure_alone(2 if quick else 24),
        "schedules": lambda: measure_schedules(2_000 if quick else 100_000, 2 if quick else 10),
        "audit": lambda: measure_audit(count // 2),
    }
    for name, step in steps.items():
        result[name] = await step()
        progress("bus", name, result[name])
    return result


if __name__ == "__main__":
    given = options(__doc__)
    if given.quick:
        ROUNDS = 2
    report(
        run(main(quick=given.quick, long=given.long)),
        payload_bytes=len(PAYLOAD),
        ours="SQLite WAL, synchronous=FULL: fsync before every acknowledgement",
        under_way=UNDER_WAY,
        client_batch=BATCH,
        rounds=ROUNDS,
        quotas="off",
    )
