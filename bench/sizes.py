"""What an operation costs when there is much of everything, against the same when there is little. Prints one JSON.

For each size a node that has so much is compared with a new one, in turns: a client publishes batches of events of 200
bytes to a topic of its own. `rate` is the events per second of the large one in parts of the new one's, `cost` the
processor time of the node per event in the same way: 1 is no difference.

- `stored_events`: in the same topic, and a thousandth as many other topics. With `--long` up to 10,000,000, else up to
  1,000,000.
- `topics`: others, with an event each.
- `partitions`: of the topic that is published to; events without keys go to all of them.
- `groups`: of the topic that is published to; nobody reads.
- `connections`: others that have subscribed to something that does not happen.

Without a node, `cost` is time, against the smallest size:

- `timers`: to set a timer and cancel it, with so many others pending.
- `handlers`: to ask one query of the kernel, with so many capabilities registered.
- `enzymes`: to resolve a signal of beats that five enzymes match, with so many queries registered.
"""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack

from bench.beats import OTHERS, resolving, with_queries
from bench.bus import PAYLOAD, UNDER_WAY, publish_ours
from bench.endurance import confirms, until
from bench.harness import Figures, Pairs, alternate, alternate_async, options, progress, report, summary, versus
from bench.kernel import ask_each, crowded
from bench.loop import full_wheel, wheel_a_slice_later
from bench.peers import servers as peers
from bench.raw_client import BusClient
from mainspring.loop import run

Sizes = Sequence[int]
SMALL: dict[str, Sizes] = {
    "stored_events": (1_000, 10_000),
    "topics": (10, 100),
    "partitions": (1, 16),
    "groups": (10, 100),
    "connections": (10, 100),
    "timers": (1_000, 10_000),
    "handlers": (10, 100),
    "enzymes": (100, 1_000),
}
USUAL: dict[str, Sizes] = {
    "stored_events": (10_000, 100_000, 1_000_000),
    "topics": (10, 100, 1_000, 10_000),
    "partitions": (1, 4, 16, 64, 256),
    "groups": (10, 100, 1_000, 10_000),
    "connections": (10, 100, 1_000, 5_000),
    "timers": (1_000, 10_000, 100_000, 1_000_000),
    "handlers": (10, 100, 1_000, 10_000),
    "enzymes": (100, 1_000, 10_000, 100_000),
}
LONG = {**USUAL, "stored_events": (*USUAL["stored_events"], 10_000_000)}
ROUNDS = 5
EVENTS = 50_000


# -- nodes


class Grown:
    """A node that gets more and more of one thing."""

    def __init__(self, node: peers.Node, stack: AsyncExitStack) -> None:
        self.node = node
        self.topic = "bench"
        self._stack = stack
        self._has = 0
        self._confirmed = 0

    async def stored_events(self, size: int) -> None:
        await publish_ours(self.node.port, size - self._has, self.topic)
        await self._publish_to_others(self._has // 1_000, size // 1_000)
        self._has = size

    async def topics(self, size: int) -> None:
        await self._publish_to_others(self._has, size)
        self._has = size

    async def _publish_to_others(self, first: int, end: int) -> None:
        client = await BusClient.connect(self.node.port)
        for n in range(first, end):
            client.publish(f"other.{n}", PAYLOAD)
            await client.room(UNDER_WAY)
        await client.drained()
        client.close()

    async def partitions(self, size: int) -> None:
        self.topic = f"bench.{size}"
        body = json.dumps({"topic": self.topic, "partitions": size}).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.node.port}/topics", body)
        request.add_header("content-type", "application/json")
        (await asyncio.to_thread(urllib.request.urlopen, request, timeout=60)).close()

    async def groups(self, size: int) -> None:
        client = await self._client()
        await self._subscribe([(client, self.topic, f"g{n}") for n in range(self._has, size)])
        client.close()  # the groups stay
        self._has = size

    async def connections(self, size: int) -> None:
        new = [(await self._client(), f"idle.{n}", "g") for n in range(self._has, size)]
        await self._subscribe(new)
        for client, _, _ in new:
            self._stack.callback(client.close)
        self._has = size

    async def _client(self) -> BusClient:
        client = await BusClient.connect(self.node.port)
        client.on_frame = self._take
        return client

    async def _subscribe(self, wanted: list[tuple[BusClient, str, str]]) -> None:
        self._confirmed = 0
        for client, topic, group in wanted:
            frame = {"type": "SUBSCRIBE", "topic": topic, "group": group, "from": {"kind": "latest"}}
            client.send(json.dumps(frame).encode())
        await until(lambda: self._confirmed >= len(wanted))

    def _take(self, text: bytes) -> None:
        self._confirmed += confirms(text)


def roomy_node() -> AbstractAsyncContextManager[peers.Node]:
    most = "100000"
    return peers.node(MAINSPRING_MAX_CONNECTIONS=most, MAINSPRING_MAX_SUBSCRIPTIONS=most, MAINSPRING_MAX_POSITIONS=most)


async def publishing(node: peers.Node, topic: str, events: int) -> tuple[float, float]:
    """Events per second, and microseconds of the node per event."""
    before = sum(node.cpu_s())
    rate = await publish_ours(node.port, events, topic)
    return rate, (sum(node.cpu_s()) - before) / events * 1e6


async def of_node(kind: str, sizes: Sizes) -> Figures:
    """A node that grows, against a new one at each size."""
    found: Figures = {}
    async with AsyncExitStack() as stack:
        grown = Grown(await stack.enter_async_context(roomy_node()), stack)
        for size in sizes:
            begun = time.perf_counter()
            await getattr(grown, kind)(size)
            built = time.perf_counter() - begun
            async with roomy_node() as new:
                rounds = [
                    (await publishing(grown.node, grown.topic, EVENTS), await publishing(new, "bench", EVENTS))
                    for _ in range(ROUNDS + 1)
                ][1:]  # the first warms up
            (rates, costs), (new_rates, new_costs) = (zip(*side, strict=True) for side in zip(*rounds, strict=True))
            found[str(size)] = {
                "us": summary(costs, 2),
                "cost": versus(costs, new_costs),
                "rate": versus(rates, new_rates),
                "memory_mb": round(grown.node.memory_mb()),
                "built_s": round(built, 1),
            }
            progress("sizes", f"{kind}, {size:,}", found[str(size)])
    return found


# -- in this process


def told(kind: str, size: int, pairs: Pairs, to_us: float) -> Figures:
    large, small = zip(*pairs, strict=True)
    found = {"us": summary((value * to_us for value in large), 3), "cost": versus(large, small)}
    progress("sizes", f"{kind}, {size:,}", found)
    return found


def timers(sizes: Sizes) -> Figures:
    smallest = full_wheel(sizes[0])
    found = {}
    for size in sizes:
        wheel = full_wheel(size)
        pairs = alternate(lambda wheel=wheel: wheel_a_slice_later(wheel), lambda: wheel_a_slice_later(smallest), ROUNDS)  # type: ignore[misc]
        found[str(size)] = told("timers", size, pairs, 1e-3)
    return found


async def handlers(sizes: Sizes) -> Figures:
    found = {}
    for size in sizes:
        async with crowded(sizes[0]).kernel() as few, crowded(size).kernel() as many:
            some = [f"Cap{number}.Echo" for number in range(10)]
            spread = [f"Cap{number * 7919 % size}.Echo" for number in range(10)]
            pairs = await alternate_async(
                lambda many=many, spread=spread: ask_each(many, spread, 3_000),  # type: ignore[misc]
                lambda few=few, some=some: ask_each(few, some, 3_000),  # type: ignore[misc]
                ROUNDS,
            )
        found[str(size)] = told("handlers", size, pairs, 1e6)
    return found


def enzymes(sizes: Sizes) -> Figures:
    smallest = resolving(with_queries(sizes[0], OTHERS["wildcards"]))
    return {
        str(size): told(
            "enzymes", size, alternate(resolving(with_queries(size, OTHERS["wildcards"])), smallest, ROUNDS), 1
        )
        for size in sizes
    }


async def main(sizes: dict[str, Sizes]) -> Figures:
    found: Figures = {}
    for kind in ("stored_events", "topics", "partitions", "groups", "connections"):
        found[kind] = await of_node(kind, sizes[kind])
    found["timers"] = timers(sizes["timers"])
    found["handlers"] = await handlers(sizes["handlers"])
    found["enzymes"] = enzymes(sizes["enzymes"])
    return found


if __name__ == "__main__":
    given = options(__doc__)
    if given.quick:
        ROUNDS, EVENTS = 2, 5_000
    report(
        run(main(SMALL if given.quick else LONG if given.long else USUAL)),
        payload_bytes=len(PAYLOAD),
        events_in_a_round=EVENTS,
        rounds=ROUNDS,
        fsync="before every acknowledgement",
    )
