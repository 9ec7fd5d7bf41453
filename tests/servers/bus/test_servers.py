"""Groups whose members are connected to several node processes, on real servers."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.processes import SERVERS, ServedNode, Site, site

PATIENCE_S = 60.0


@pytest.fixture(params=sorted(SERVERS))
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    with site(tmp_path, request.param) as found:
        yield found


class Client:
    """One WebSocket; frames that came are kept."""

    def __init__(self, ws: aiohttp.ClientWebSocketResponse) -> None:
        self.ws = ws
        self.got: list[dict[str, Any]] = []
        self.answers: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.acknowledges = True
        self.reading = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        async for message in self.ws:
            frame = json.loads(message.data)
            if frame["type"] != "MESSAGE":
                self.answers.put_nowait(frame)
                continue
            self.got.append(frame)
            if self.acknowledges:
                await self.ack(frame)

    async def ack(self, frame: dict[str, Any]) -> None:
        place = {name: frame[name] for name in ("topic", "group", "partition", "offset")}
        await self.ws.send_json({"type": "ACK", **place})

    async def ask(self, **frame: Any) -> dict[str, Any]:
        await self.ws.send_json(frame)
        return await asyncio.wait_for(self.answers.get(), PATIENCE_S)

    async def subscribe(self, **options: Any) -> None:
        start = {"kind": "offset", "value": 0}
        asked = {"type": "SUBSCRIBE", "topic": "t", "group": "g", "from": start, "ack": "each", **options}
        answer = await self.ask(**asked)
        assert answer["type"] == "OK", answer

    async def publish(self, payloads: list[int]) -> None:
        events = [{"payload": n, "id": f"e{n}"} for n in payloads]
        answer = await self.ask(type="PUBLISH_BATCH", topic="t", events=events)
        while answer.get("code") == "unavailable":  # a slow server: with ids, sending again stores nothing twice
            answer = await self.ask(type="PUBLISH_BATCH", topic="t", events=events)
        assert answer["type"].startswith("PUBLISHED"), answer

    def payloads(self) -> list[int]:
        return [frame["envelope"]["payload"] for frame in self.got]


async def connect(http: aiohttp.ClientSession, node: ServedNode) -> Client:
    return Client(await http.ws_connect(f"http://127.0.0.1:{node.process.port}"))


async def until(condition: Any, what: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await condition():  # noqa: ASYNC110 - nobody tells us
            await asyncio.sleep(0.05)


async def offsets(http: aiohttp.ClientSession, node: ServedNode) -> dict[str, int]:
    async with http.get(f"http://127.0.0.1:{node.process.port}/topics/t/offsets") as answer:
        return (await answer.json())["partitions"][0]["groups"]["g"]


async def test_members_on_two_nodes_share_the_work_and_agree_on_the_commit(place: Site) -> None:
    nodes = [place.node("a"), place.node("b")]
    async with aiohttp.ClientSession() as http:
        members = [await connect(http, node) for node in nodes]
        for member in members:
            await member.subscribe(max_inflight=20)
        writers = [await connect(http, node) for node in nodes]
        for n in range(0, 600, 20):
            await writers[n // 20 % 2].publish(list(range(n, n + 20)))
        await until(lambda: _all(members, 600), "all events")
        seen = [n for member in members for n in member.payloads()]
        assert sorted(seen) == list(range(600))  # each once: nothing went wrong, so nothing comes twice
        assert all(member.payloads() for member in members)

        async def agreed() -> bool:
            told = [await offsets(http, node) for node in nodes]
            return all(each["lastCommitted"] == 600 and not each["inflight"] for each in told)

        await until(agreed, "the same commit on both nodes")


async def _all(members: list[Client], count: int) -> bool:
    return len({n for member in members for n in member.payloads()}) >= count


async def test_what_a_killed_node_held_comes_to_the_other_with_its_attempts(place: Site) -> None:
    a, b = place.node("a"), place.node("b")
    async with aiohttp.ClientSession() as http:
        doomed = await connect(http, a)
        doomed.acknowledges = False
        await doomed.subscribe(max_inflight=10)
        writer = await connect(http, b)
        await writer.publish(list(range(10)))
        await until(lambda: _all([doomed], 10), "ten events on the first node")
        await asyncio.sleep(0.2)
        a.process.signal(signal.SIGKILL)
        member = await connect(http, b)
        await member.subscribe(max_inflight=10)
        await until(lambda: _all([member], 10), "the dead node's events")
        assert {frame["attempt"] for frame in member.got} == {2}
        await until(lambda: _committed(http, b, 10), "the commit")


async def _committed(http: aiohttp.ClientSession, node: ServedNode, offset: int) -> bool:
    return (await offsets(http, node))["lastCommitted"] == offset


async def test_a_stopped_node_cannot_acknowledge_what_was_taken_over(place: Site) -> None:
    a, b = place.node("a"), place.node("b")
    async with aiohttp.ClientSession() as http:
        sleeper = await connect(http, a)
        sleeper.acknowledges = False
        await sleeper.subscribe(max_inflight=10)
        writer = await connect(http, b)
        await writer.publish(list(range(5)))
        await until(lambda: _all([sleeper], 5), "five events on the first node")
        a.process.signal(signal.SIGSTOP)
        member = await connect(http, b)
        member.acknowledges = False
        await member.subscribe(max_inflight=10)
        await until(lambda: _all([member], 5), "the sleeping node's events")
        for frame in sleeper.got:
            await sleeper.ack(frame)
        a.process.signal(signal.SIGCONT)

        async def woken() -> bool:
            await writer.publish([99])
            return 99 in sleeper.payloads() + member.payloads()

        await until(woken, "another event")
        await asyncio.sleep(1)
        assert (await offsets(http, b))["lastCommitted"] == 0
        for frame in member.got:
            await member.ack(frame)
        for frame in sleeper.got[5:]:
            await sleeper.ack(frame)
        await until(lambda: _committed(http, b, 6), "the commit")
        await until(lambda: _committed(http, a, 6), "the same commit on the node that slept")


async def test_a_topic_that_one_node_deletes_is_gone_on_all(place: Site) -> None:
    a, b = place.node("a"), place.node("b")
    async with aiohttp.ClientSession() as http:
        writer = await connect(http, a)
        await writer.publish(list(range(20)))
        at = [f"http://127.0.0.1:{node.process.port}" for node in (a, b)]

        async def names(url: str) -> set[str]:
            async with http.get(f"{url}/topics") as answer:
                return {each["topic"] for each in (await answer.json())["topics"]}

        async def known() -> bool:
            return "t" in await names(at[1])

        async def gone() -> bool:
            return not any(["t" in await names(url) for url in at])

        await until(known, "the topic on the other node")
        async with http.post(f"{at[1]}/topics/t/purge") as answer:
            assert await answer.json() == {"topic": "t", "removed": 20}
        async with http.delete(f"{at[1]}/topics/t") as answer:
            assert answer.status == 204
        await until(gone, "a topic that is gone")
        async with http.post(f"{at[0]}/topics/t/events", json={"payload": 1}) as answer:
            assert (await answer.json())["offset"] == 21
        await until(known, "the topic made anew")
