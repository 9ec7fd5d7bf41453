"""What the Python client costs, against the bare protocol in the same run. Prints one JSON object.

    python -m bench.sdk [--quick]

The bare side is `raw_client.py`: frames made by joining bytes, no ids, no decoding, no futures, nothing sent again.
Rounds take turns on one node; ratios are medians over rounds. Goal: 0.9 of the bare protocol.

- `publish`: events per second with thousands under way. The client gives every event an id, so that a second try is
  stored once, and the node remembers it. So it is compared twice: with bare frames that carry ids, too (`ratio`: what
  the client's own work costs), and with bare frames that carry none (`ratio_without_ids`: what the promise costs).
- `publish_each`: the same with one awaiting task per event, instead of `publish_many`.
- `consume`: a stored backlog, decoded frames, acknowledged up to the last of each batch; the bare side only finds
  offsets. `consume_each`: every event acknowledged by itself, on both sides.
- `alone`: one publisher that waits for each answer, in microseconds.
- `cpu_us`: processor time per event, of the client, of the node's loop, and of its other threads (the writer). On a
  busy machine it says more than the rates: as long as the client's share is the smaller one and each has a core, the
  node sets the pace and the ratio is near 1.
"""

from __future__ import annotations

import asyncio
import json
import re
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any

import uuid_utils

from bench.harness import options, ratio, report, summary
from bench.peers import servers as peers
from bench.raw_client import BusClient
from mainspring.client import connect
from mainspring.loop import run

TEXT = "x" * 198
PAYLOAD = b'"' + TEXT.encode() + b'"'
UNDER_WAY = 4_096
BATCH = 256
Result = dict[str, Any]
Measure = Callable[[int, int, str], Awaitable[float]]

_OFFSET = re.compile(rb'"offset":(\d+),"attempt"')


async def bare_publish(port: int, count: int, topic: str) -> float:
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


async def bare_publish_with_ids(port: int, count: int, topic: str) -> float:
    client = await BusClient.connect(port)
    start = time.perf_counter()
    for n in range(count):
        client.publish(topic, PAYLOAD + b',"id":"%b"' % str(uuid_utils.uuid7()).encode())
        if n % 64 == 63:
            await client.room(UNDER_WAY)
    await client.drained()
    taken = time.perf_counter() - start
    client.close()
    return count / taken


async def sdk_publish(port: int, count: int, topic: str) -> float:
    async with connect(f"ws://127.0.0.1:{port}", max_queued=UNDER_WAY) as bus:
        start = time.perf_counter()
        await bus.publish_many(topic, (TEXT for _ in range(count)))
        return count / (time.perf_counter() - start)


async def sdk_publish_each(port: int, count: int, topic: str) -> float:
    async with connect(f"ws://127.0.0.1:{port}", max_queued=UNDER_WAY) as bus:
        left = iter(range(count))

        async def publisher() -> None:
            for _ in left:
                await bus.publish(topic, TEXT)

        start = time.perf_counter()
        await asyncio.gather(*(publisher() for _ in range(1_000)))
        return count / (time.perf_counter() - start)


def bare_consume(each: bool) -> Measure:
    async def measure(port: int, count: int, topic: str) -> float:
        client, done, got = await BusClient.connect(port), asyncio.get_running_loop().create_future(), 0
        head = b'{"type":"ACK","topic":"%b","partition":0,"group":"bare%d","offset":' % (topic.encode(), each)

        def take(text: bytes) -> None:
            nonlocal got
            if text.startswith(b'{"type":"MESSAGES"'):
                offsets = _OFFSET.findall(text)
                got += len(offsets)
                client.send(*[b"%b%b}" % (head, offset) for offset in (offsets if each else offsets[-1:])])
                if got >= count and not done.done():
                    done.set_result(None)

        client.on_frame = take
        subscribe = {"type": "SUBSCRIBE", "topic": topic, "group": f"bare{each:d}", "max_inflight": 1_000}
        start = time.perf_counter()
        client.send(json.dumps({**subscribe, "batch": BATCH, "ack": "each" if each else "upto"}).encode())
        await done
        taken = time.perf_counter() - start
        client.close()
        return count / taken

    return measure


def sdk_consume(each: bool) -> Measure:
    async def measure(port: int, count: int, topic: str) -> float:
        async with connect(f"ws://127.0.0.1:{port}") as bus:
            start, got = time.perf_counter(), 0
            async for event in bus.subscribe(
                topic, group=f"sdk{each:d}", max_inflight=1_000, ack="each" if each else "upto"
            ):
                await event.ack()
                got += 1
                if got == count:
                    return count / (time.perf_counter() - start)
        raise AssertionError

    return measure


async def bare_alone(port: int, count: int, topic: str) -> float:
    client, taken = await BusClient.connect(port), []
    for _ in range(count):
        start = time.perf_counter()
        client.publish(topic, PAYLOAD + b',"id":"%b"' % str(uuid_utils.uuid7()).encode())
        await client.drained()
        taken.append(time.perf_counter() - start)
    client.close()
    return statistics.median(taken) * 1e6


async def sdk_alone(port: int, count: int, topic: str) -> float:
    taken = []
    async with connect(f"ws://127.0.0.1:{port}") as bus:
        for _ in range(count):
            start = time.perf_counter()
            await bus.publish(topic, TEXT)
            taken.append(time.perf_counter() - start)
    return statistics.median(taken) * 1e6


async def turns(rounds: int, port: int, count: int, topic: str, *measures: Measure) -> list[list[float]]:
    """Each measure once per round, in turn; the first round only warms up."""
    found = [[await measure(port, count, f"{topic}.{n}") for measure in measures] for n in range(rounds + 1)]
    return found[1:]


async def cpu(node: peers.Node, rounds: int, count: int, topic: str, measure: Measure) -> Result:
    """Processor time per event, of the client, of the node's loop and of its writer."""
    found = []
    for n in range(rounds):
        client, (loop, writer) = time.process_time(), node.cpu_s()
        await measure(node.port, count, f"{topic}.{n}")
        loop_now, writer_now = node.cpu_s()
        found.append((time.process_time() - client, loop_now - loop, writer_now - writer))
    parts = zip(("client", "loop", "writer"), zip(*found, strict=True), strict=True)
    return {name: summary((value / count * 1e6 for value in values), 2) for name, values in parts}


async def consumed(rounds: int, port: int, count: int, each: bool) -> Result:
    name, found = f"c{each:d}", []
    for n in range(rounds):
        await bare_publish(port, count, f"{name}.{n}")
        bare = await bare_consume(each)(port, count, f"{name}.{n}")
        found.append((await sdk_consume(each)(port, count, f"{name}.{n}"), bare))
    return {
        "bare_per_s": round(statistics.median(bare for _, bare in found)),
        "sdk_per_s": round(statistics.median(mine for mine, _ in found)),
        "ratio": ratio(found),
    }


async def main(quick: bool) -> Result:
    count, rounds = (10_000, 1) if quick else (50_000, 5)
    result: Result = {"goals": {"ratio": 0.9}}
    async with peers.node() as node:
        found = await turns(
            rounds, node.port, count, "p", bare_publish, bare_publish_with_ids, sdk_publish, sdk_publish_each
        )
        result["publish"] = {
            "bare_per_s": round(statistics.median(each[0] for each in found)),
            "bare_with_ids_per_s": round(statistics.median(each[1] for each in found)),
            "sdk_per_s": round(statistics.median(each[2] for each in found)),
            "ratio": ratio([(each[2], each[1]) for each in found], 3),
            "ratio_without_ids": ratio([(each[2], each[0]) for each in found]),
        }
        result["publish_each"] = {
            "sdk_per_s": round(statistics.median(each[3] for each in found)),
            "ratio": ratio([(each[3], each[1]) for each in found]),
        }
        result["consume"] = await consumed(rounds, node.port, count, each=False)
        result["consume_each"] = await consumed(rounds, node.port, count, each=True)
        alone = await turns(rounds, node.port, 200, "a", bare_alone, sdk_alone)
        result["alone"] = {
            "bare_us": round(statistics.median(each[0] for each in alone)),
            "sdk_us": round(statistics.median(each[1] for each in alone)),
            "times": ratio([(each[1], each[0]) for each in alone]),
        }
        measures = {"bare_publish": bare_publish, "bare_publish_with_ids": bare_publish_with_ids}
        measures |= {"sdk_publish": sdk_publish, "sdk_publish_each": sdk_publish_each}
        result["cpu_us"] = {
            name: await cpu(node, rounds, count, f"cpu.{name}", each) for name, each in measures.items()
        }
        for each in (False, True):
            for n in range(rounds):
                await bare_publish(node.port, count, f"cpu.{each}.{n}")
            for name, measure in (("bare", bare_consume(each)), ("sdk", sdk_consume(each))):
                place = f"{name}_consume{'_each' if each else ''}"
                result["cpu_us"][place] = await cpu(node, rounds, count, f"cpu.{each}", measure)
    return result


if __name__ == "__main__":
    report(
        run(main(options(__doc__).quick)),
        payload_bytes=len(PAYLOAD),
        node="SQLite WAL, synchronous=FULL: fsync before every acknowledgement",
        under_way=UNDER_WAY,
    )
