"""A subscription that no node can store at first, because the log's server is away: real nodes, servers and clients.

Whoever subscribes during an election of some seconds expects to get events when it is over. And nobody may get events
that no program reads: their leases would end one after the other, until they are dead letters.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from mainspring.client import Client, Subscription, connect
from tests.support.client_node import eventually
from tests.support.javascript import javascript_folder
from tests.support.paths import ROOT
from tests.support.processes import SERVERS, ServedNode, Site, site
from tests.support.proxy import Proxy

EVENTS = 5
IN_JAVASCRIPT = """
import { createRequire } from "node:module";
const WebSocket = createRequire(process.argv[2] + "/")("ws");
const { connect } = await import(process.argv[3]);
const bus = connect(process.argv[4], { WebSocket });
for await (const event of bus.subscribe("t", { group: "g", from: "beginning" })) {
  event.ack();
  process.stdout.write(JSON.stringify(event.payload) + "\\n");
}
"""


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    with site(tmp_path, getattr(request, "param", "nats")) as found:
        yield found


class Refusals:
    """A node behind a proxy that counts how often it said `unavailable`."""

    def __init__(self, node: ServedNode) -> None:
        self.count = 0
        self._proxy = Proxy(node.process.port)
        self._proxy.on_answer = self._look

    def _look(self, answer: bytes) -> None:
        self.count += answer.count(b'"unavailable"')

    async def said(self) -> bool:
        return self.count > 0

    async def __aenter__(self) -> str:
        await self._proxy.start()
        return f"ws://127.0.0.1:{self._proxy.port}"

    async def __aexit__(self, *_: object) -> None:
        await self._proxy.close()


def node_of(place: Site) -> ServedNode:
    """Whoever takes an event and does not read it keeps it from all others for longer than a test waits."""
    node = place.starting("a")
    node.process.env.update(BUS_ACK_TIMEOUT_MS="600000")
    node.process.launch()
    assert node.process.boot.get("type") == "Sys.BootComplete", node.process.errors()
    return node


def dead_letters(node: ServedNode) -> object:
    return node.ask("GET", "/dlq")[1]["topics"]


async def publish(client: Client) -> None:
    for n in range(EVENTS):
        await client.publish("t", n, id=f"e{n}")


async def read_all(events: Subscription) -> None:
    left = set(range(EVENTS))
    while left:
        event = await events.get()
        await event.ack()
        left.discard(event.payload)


@contextlib.asynccontextmanager
async def javascript(folder: Path, url: str) -> AsyncIterator[asyncio.StreamReader]:
    """What a program in JavaScript says of the events it gets."""
    modules = javascript_folder()
    (folder / "story.mjs").write_text(IN_JAVASCRIPT)
    (folder / "client.mjs").write_bytes((ROOT / "src" / "mainspring" / "client" / "client.js").read_bytes())
    process = await asyncio.create_subprocess_exec(
        *("node", str(folder / "story.mjs"), str(modules), str(folder / "client.mjs"), url), stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        yield process.stdout
    finally:
        process.kill()
        await process.wait()


@pytest.mark.parametrize("place", sorted(SERVERS), indirect=True)
async def test_it_gets_every_event_once_the_server_is_back(place: Site) -> None:
    node = node_of(place)
    refusals = Refusals(node)
    async with refusals as url, connect(url) as subscriber, connect(f"ws://127.0.0.1:{node.process.port}") as publisher:
        await asyncio.to_thread(place.server.kill)
        subscription = subscriber.subscribe("t", group="g", from_="beginning")
        await eventually(refusals.said)
        await asyncio.to_thread(place.server.start)
        await publish(publisher)
        async with asyncio.timeout(60), subscription as events:
            await read_all(events)
        assert dead_letters(node) == []


async def test_it_does_so_in_javascript(place: Site, tmp_path: Path) -> None:
    node = node_of(place)
    refusals = Refusals(node)
    async with refusals as url, connect(f"ws://127.0.0.1:{node.process.port}") as publisher:
        await asyncio.to_thread(place.server.kill)
        async with javascript(tmp_path, url) as said:
            await eventually(refusals.said)
            await asyncio.to_thread(place.server.start)
            await publish(publisher)
            async with asyncio.timeout(60):
                left = set(range(EVENTS))
                while left:
                    left.discard(json.loads(await said.readline()))
        assert dead_letters(node) == []


async def test_one_that_was_given_up_takes_nothing_when_the_node_comes_back(place: Site) -> None:
    """The client lives on and connects again; the events are another program's."""
    node = node_of(place)
    refusals = Refusals(node)
    node.process.command += ["--port", str(node.process.port)]  # the same one when it comes back
    async with refusals as url, connect(url) as subscriber:
        await asyncio.to_thread(place.server.kill)
        giving_up = asyncio.create_task(enter(subscriber))
        await eventually(refusals.said)
        giving_up.cancel()
        await asyncio.gather(giving_up, return_exceptions=True)
        await asyncio.to_thread(node.process.kill)
        await asyncio.to_thread(place.server.start)
        await asyncio.to_thread(node.process.launch)
        async with asyncio.timeout(60):
            await publish(subscriber)
            async with (
                connect(f"ws://127.0.0.1:{node.process.port}") as other,
                other.subscribe("t", group="g", from_="beginning") as events,
            ):
                await read_all(events)
        assert dead_letters(node) == []


async def enter(client: Client) -> None:
    async with client.subscribe("t", group="g", from_="beginning"):
        raise AssertionError("nobody could store it")
