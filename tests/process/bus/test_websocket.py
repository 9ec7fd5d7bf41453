"""The bus over a real WebSocket: what only a socket can show."""

from __future__ import annotations

import asyncio
import json
import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
import uuid_utils
from aiohttp import WSMsgType, web

from mainspring.bus import Bus
from mainspring.log import Log, MemoryEngine
from mainspring.loop import Loop, MonotonicClock
from mainspring.server.http.access import claimed_agent
from mainspring.server.http.problem import problems
from mainspring.server.websocket import add_websocket
from mainspring.settings import Settings

PATIENCE_S = 60


class Site:
    def __init__(self, bus: Bus, port: int, client: aiohttp.ClientSession) -> None:
        self.bus = bus
        self.port = port
        self.client = client

    async def connect(self, query: str = "", **options: Any) -> aiohttp.ClientWebSocketResponse:
        return await self.client.ws_connect(f"http://127.0.0.1:{self.port}/{query}", max_msg_size=0, **options)


@asynccontextmanager
async def site(**settings: Any) -> AsyncIterator[Site]:
    clock = MonotonicClock()
    loop = Loop(clock)
    loop.attach()
    log = Log(MemoryEngine())
    await log.open()
    chosen = Settings(**{"metrics_interval_ms": 0, **settings})
    bus = Bus(log, clock, loop, settings=chosen, new_id=lambda: str(uuid_utils.uuid7()), random=random.Random(1).random)
    await bus.start()
    app = web.Application(middlewares=[problems])
    add_websocket(app, bus, chosen, claimed_agent)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with aiohttp.ClientSession() as client:
        yield Site(bus, runner.addresses[0][1], client)
    await runner.cleanup()
    await bus.stop()
    loop.detach()


async def receive(ws: aiohttp.ClientWebSocketResponse) -> dict[str, Any]:
    message = await ws.receive(PATIENCE_S)
    assert message.type is WSMsgType.TEXT, message
    frame: dict[str, Any] = json.loads(message.data)
    return frame


async def test_frames_of_every_length_arrive_whole() -> None:
    async with site() as here:
        ws = await here.connect()
        await ws.send_json({"type": "SUBSCRIBE", "topic": "t", "group": "g", "max_inflight": 100})
        assert (await receive(ws))["type"] == "OK"
        sizes = [0, 1, 50, 120, 125, 126, 127, 1_000, 65_000, 65_536, 70_000, 300_000]
        for size in sizes:
            await ws.send_json({"type": "PUBLISH", "topic": "t", "payload": "ü" * (size // 2)})
        got = [frame for frame in [await receive(ws) for _ in range(2 * len(sizes))] if frame["type"] == "MESSAGE"]
        assert [len(frame["envelope"]["payload"]) for frame in got] == [size // 2 for size in sizes]


async def test_binary_frames_and_large_ones_are_answered_and_the_connection_goes_on() -> None:
    async with site(max_frame_bytes=2_000) as here:
        ws = await here.connect()
        await ws.send_bytes(b"\x00\x01")
        assert (await receive(ws))["code"] == "bad_frame"
        await ws.send_json({"type": "PUBLISH", "topic": "t", "payload": "x" * 3_000})
        assert (await receive(ws))["code"] == "too_large"
        await ws.send_json({"type": "PUBLISH", "topic": "t", "payload": "x"})
        assert (await receive(ws))["offset"] == 1
        await ws.send_json({"type": "PUBLISH", "topic": "t", "payload": "x" * 100_000})
        ended = await ws.receive(PATIENCE_S)
        assert (ended.type, ws.close_code) == (WSMsgType.CLOSE, 1009)
        other = await here.connect()
        await other.send_json({"type": "PUBLISH", "topic": "t", "payload": "x"})
        assert (await receive(other))["offset"] == 2


async def test_the_connection_says_who_it_is() -> None:
    async with site() as here:
        from mainspring.bus import parse_topic

        await here.bus.put_topic(parse_topic(b'{"topic":"t","publishACL":["alice"]}'))
        for query, headers, allowed in [
            ("?agent_id=alice", {}, True),
            ("", {"X-Agent-Id": "alice"}, True),
            ("?agent_id=bob", {}, False),
            ("", {}, False),
        ]:
            ws = await here.connect(query, headers=headers)
            await ws.send_json({"type": "PUBLISH", "topic": "t", "payload": 1})
            assert (await receive(ws))["type"] == ("PUBLISHED" if allowed else "ERROR")


async def test_a_consumer_that_stops_reading_is_bounded_and_holds_up_nobody() -> None:
    async with site(send_buffer_bytes=64 << 10, max_window=10_000) as here:
        raw = await stuck_consumer(here.port)
        lively, writer = await here.connect(), await here.connect()
        await lively.send_json({"type": "SUBSCRIBE", "topic": "t", "group": "lively", "max_inflight": 10_000})
        assert (await receive(lively))["type"] == "OK"
        count, size = 800, 10_000
        for n in range(count):
            await writer.send_json({"type": "PUBLISH", "topic": "t", "payload": str(n).ljust(size)})
            assert (await receive(writer))["type"] == "PUBLISHED"
        got = [await receive(lively) for _ in range(count)]
        assert [frame["offset"] for frame in got] == list(range(1, count + 1))
        (info,) = [info for info in here.bus.groups.infos("t") if info.group == "stuck"]
        assert info.partitions[0].inflight < count  # most of it was never sent: it waits in the log
        raw.close()
        for _ in range(PATIENCE_S * 100):
            if sum(info.members for info in here.bus.groups.infos("t")) == 1:
                break
            await asyncio.sleep(0.01)
        assert here.bus.stats().inflight == count  # what the stuck one held is free again


async def stuck_consumer(port: int) -> socket.socket:
    """Subscribes with a large window over a socket with a small buffer, and never reads again."""
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8_192)
    loop = asyncio.get_running_loop()
    raw.setblocking(False)
    await loop.sock_connect(raw, ("127.0.0.1", port))
    request = (
        f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    await loop.sock_sendall(raw, request.encode())
    assert b"101" in await loop.sock_recv(raw, 4_096)
    text = json.dumps({"type": "SUBSCRIBE", "topic": "t", "group": "stuck", "max_inflight": 10_000}).encode()
    await loop.sock_sendall(raw, bytes((0x81, 0x80 | len(text), 0, 0, 0, 0)) + text)
    assert b'"OK"' in await loop.sock_recv(raw, 4_096)
    return raw


async def test_a_peer_that_answers_no_ping_is_gone_and_its_events_are_free() -> None:
    async with site(ping_interval_ms=300) as here:
        writer = await here.connect()
        raw = await stuck_consumer(here.port)
        await writer.send_json({"type": "PUBLISH", "topic": "t", "payload": 1})
        assert (await receive(writer))["type"] == "PUBLISHED"
        other = await here.connect()
        await other.send_json({"type": "SUBSCRIBE", "topic": "t", "group": "stuck"})
        assert (await receive(other))["type"] == "OK"
        assert (await receive(other))["attempt"] == 2  # long before the lease of 30 s ends
        raw.close()


@pytest.mark.parametrize("send_buffer_bytes", [64 << 10, 64 << 20])
async def test_a_consumer_that_hangs_up_without_reading_gives_its_events_back_at_once(send_buffer_bytes: int) -> None:
    """Whether deliveries to it are paused or not, it will never read what is unsent."""
    async with site(send_buffer_bytes=send_buffer_bytes, ping_interval_ms=600_000, ack_timeout_ms=600_000) as here:
        raw = await stuck_consumer(here.port)
        writer = await here.connect()
        batch = [{"payload": "x" * 10_000}] * 80
        for _ in range(10):
            await writer.send_json({"type": "PUBLISH_BATCH", "topic": "t", "events": batch})
            assert (await receive(writer))["type"] == "PUBLISHED_BATCH"
        assert here.bus.stats().inflight > 0
        raw.shutdown(socket.SHUT_RDWR)
        for _ in range(PATIENCE_S * 100):
            if here.bus.stats().inflight == 0:
                break
            await asyncio.sleep(0.01)
        assert here.bus.stats().inflight == 0
        assert [info.members for info in here.bus.groups.infos("t")] == [0]
        raw.close()


async def test_a_writer_that_does_not_read_its_answers_is_held_back() -> None:
    async with site(send_buffer_bytes=16 << 10) as here:
        ws = await here.connect()
        for n in range(20_000):
            await ws.send_json({"type": "PUBLISH", "topic": "t", "payload": n})
        offsets = [(await receive(ws))["offset"] for _ in range(20_000)]
        assert offsets == list(range(1, 20_001))


async def test_a_plain_request_is_told_what_this_path_is() -> None:
    async with site() as here, here.client.get(f"http://127.0.0.1:{here.port}/") as answer:
        assert answer.status == 426


@pytest.mark.parametrize("wrong", [{"Sec-WebSocket-Version": "12"}, {"Sec-WebSocket-Key": "short"}])
async def test_half_a_handshake_is_told_what_is_missing(wrong: dict[str, str]) -> None:
    whole = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"}
    headers = {**whole, "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==", **wrong}
    async with site() as here, here.client.get(f"http://127.0.0.1:{here.port}/", headers=headers) as answer:
        assert (answer.status, (await answer.json())["code"]) == (400, "bad_handshake")
        assert answer.headers["Sec-WebSocket-Version"] == "13"


async def test_stopping_says_goodbye() -> None:
    async with site() as here:
        ws = await here.connect()
    # the site is gone: the connection was closed with "going away"
    assert ws.closed or (await ws.receive(PATIENCE_S)).type is not WSMsgType.TEXT


@pytest.mark.parametrize("frames", [1, 3_000])
async def test_one_connection_cannot_keep_the_node_from_the_others(frames: int) -> None:
    async with site() as here:
        busy, other = await here.connect(), await here.connect()
        for n in range(frames):
            await busy.send_json({"type": "PUBLISH", "topic": "t", "payload": n})
        await other.send_json({"type": "PUBLISH", "topic": "u", "payload": 1})
        assert (await receive(other))["offset"] == 1
        assert [(await receive(busy))["offset"] for _ in range(frames)] == list(range(1, frames + 1))
