"""Server-sent events: live, resumable over all partitions, and harmless when their reader is slow or gone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest

from mainspring.server.http.operations.events import BadCursor, cursor_text, parse_cursor, sse_message
from tests.support.http_site import Site, serve


@dataclass
class Message:
    id: str = ""
    data: list[str] = field(default_factory=list)
    comment: bool = False
    retry: str = ""

    @property
    def event(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads("\n".join(self.data))
        return found


class EventSource:
    """The reader's side, written from the standard: lines to messages, the last id kept."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self.answer = answer
        self.last_id = ""

    async def message(self) -> Message:
        """The next block, whatever it is: an event, only an id, or a comment."""
        block = Message()
        while True:
            line = (await self.answer.content.readline()).decode()
            assert line.endswith("\n"), "the stream ended"
            text = line.rstrip("\n")
            if not text:
                self.last_id = block.id or self.last_id
                return block
            name, _, value = text.partition(":")
            value = value.removeprefix(" ")
            if name == "":
                block.comment = True
            elif name == "id":
                block.id = value
            elif name == "data":
                block.data.append(value)
            elif name == "retry":
                block.retry = value

    async def events(self, count: int) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        while len(found) < count:
            message = await asyncio.wait_for(self.message(), 60)
            if message.data:
                found.append(message.event)
        return found

    async def ready(self) -> None:
        """Until the place where the stream begins has been told."""
        while not self.last_id:
            await asyncio.wait_for(self.message(), 60)


@asynccontextmanager
async def follow(site: Site, path: str, **headers: str) -> AsyncIterator[EventSource]:
    async with site.session.get(site.url(path), headers=headers, timeout=aiohttp.ClientTimeout(total=60)) as answer:
        assert answer.status == 200, await answer.text()
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        yield EventSource(answer)


def payloads(events: list[dict[str, Any]]) -> list[Any]:
    return [event["payload"] for event in events]


async def test_a_topic_that_is_not_there_yet_is_waited_for(each_engine: Site) -> None:
    """A browser's EventSource stops for ever at an error: a page may be open before the first event."""
    site = each_engine
    async with follow(site, "/topics/later/stream") as source:
        assert (await source.message()).retry
        await site.publish("other", "no")
        await site.publish("later", "first")
        await site.publish("later", "second")
        assert payloads(await source.events(2)) == ["first", "second"]
        last = source.last_id
    await site.publish("later", "third")
    async with follow(site, "/topics/later/stream", **{"Last-Event-ID": last}) as source:
        assert payloads(await source.events(1)) == ["third"]
    refused = await site.request("GET", "/topics/not%20a%20name/stream")
    assert refused.status == 400


async def test_latest_shows_only_what_comes_after(each_engine: Site) -> None:
    site = each_engine
    await site.publish("t", "old")
    async with follow(site, "/topics/t/stream") as source:
        await source.ready()
        await site.publish("t", "new", key="k", headers={"h": "v"})
        (event,) = await source.events(1)
    assert event == (await site.get("/topics/t/events/0/2")).json


async def test_the_beginning_shows_everything_then_what_comes(each_engine: Site) -> None:
    site = each_engine
    await site.publish("t", *range(600))
    async with follow(site, "/topics/t/stream?from=beginning") as source:
        assert payloads(await source.events(600)) == list(range(600))
        await site.publish("t", "more")
        assert payloads(await source.events(1)) == ["more"]


async def test_a_moment_is_where_it_begins(site: Site) -> None:
    await site.publish("t", 1)
    await asyncio.sleep(0.005)
    await site.publish("t", 2)
    moment = (await site.get("/topics/t/events/0/2")).json["ts"]
    async with follow(site, f"/topics/t/stream?from={moment}") as source:
        assert payloads(await source.events(1)) == [2]


@pytest.mark.parametrize("cut", [1, 13, 39])
async def test_a_reader_that_comes_back_misses_nothing_in_any_partition(each_engine: Site, cut: int) -> None:
    site = each_engine
    await site.post("/topics", {"topic": "t", "partitions": 4})
    for n in range(40):
        await site.publish("t", n, key=f"k{n}")
    async with follow(site, "/topics/t/stream?from=beginning") as source:
        before = payloads(await source.events(cut))
        last = source.last_id
    await site.publish("t", "meanwhile", key="k0")
    async with follow(site, "/topics/t/stream?from=beginning", **{"Last-Event-ID": last}) as source:
        after = payloads(await source.events(41 - cut))
    assert sorted(map(str, before + after)) == sorted([*map(str, range(40)), "meanwhile"])


async def test_a_reader_cut_off_before_any_event_comes_back_to_where_it_began(site: Site) -> None:
    await site.publish("t", "old")
    async with follow(site, "/topics/t/stream") as source:
        await source.ready()
    await site.publish("t", "missed")
    async with follow(site, f"/topics/t/stream?cursor={source.last_id}") as source:
        assert payloads(await source.events(1)) == ["missed"]


async def test_partitions_added_while_away_and_while_there_are_followed(site: Site) -> None:
    await site.publish("t", 0)
    async with follow(site, "/topics/t/stream") as source:
        await source.ready()
        last = source.last_id
        await site.post("/topics", {"topic": "t", "partitions": 6})
        for n in range(12):
            await site.publish("t", n, key=f"k{n}")
        assert sorted(payloads(await source.events(12))) == list(range(12))
    async with follow(site, "/topics/t/stream", **{"Last-Event-ID": last}) as source:
        assert sorted(payloads(await source.events(12))) == list(range(12))


async def test_silence_is_filled_with_comments() -> None:
    async with serve(heartbeat_ms=20) as site:
        await site.publish("t", 1)
        async with follow(site, "/topics/t/stream") as source:
            first = await source.message()
            assert first.retry
            await source.ready()
            for _ in range(3):
                assert (await asyncio.wait_for(source.message(), 60)).comment
            await site.publish("t", 2)
            assert payloads(await source.events(1)) == [2]


async def test_line_breaks_in_a_payload_arrive_as_the_same_json(site: Site) -> None:
    await site.bus.publish("t", b'{"a":\n[1,\r\n2],\r"b":"x\\ny"}')
    async with follow(site, "/topics/t/stream?from=beginning") as source:
        assert payloads(await source.events(1)) == [{"a": [1, 2], "b": "x\ny"}]


@pytest.mark.parametrize("bad", ["nonsense", "0:99", "0:1,0:1", "0:-1", "1"])
async def test_a_place_the_topic_never_had_is_refused(site: Site, bad: str) -> None:
    await site.publish("t", 1)
    refused = await site.get("/topics/t/stream", headers={"Last-Event-ID": bad})
    assert (refused.status, refused.problem["code"]) == (400, "bad_cursor")
    assert (await site.get(f"/topics/t/stream?cursor={bad}")).status == 400


@pytest.mark.parametrize("query", ["from=yesterday", "form=latest", "from=latest&from=beginning"])
async def test_a_bad_query_is_refused(site: Site, query: str) -> None:
    await site.publish("t", 1)
    assert (await site.get(f"/topics/t/stream?{query}")).problem["code"] == "bad_query"


async def test_following_makes_no_group(site: Site) -> None:
    await site.publish("t", 1)
    async with follow(site, "/topics/t/stream?from=beginning") as source:
        await source.events(1)
    assert (await site.get("/topics/t/offsets")).json["partitions"][0]["groups"] == {}


async def test_a_reader_that_never_reads_delays_nobody_and_is_cut_off() -> None:
    async with serve(stalled_reader_ms=300) as site:
        await site.publish("t", 0)
        _, writer = await asyncio.open_connection("127.0.0.1", site.port, limit=1024)
        writer.write(b"GET /topics/t/stream?from=beginning HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        async with follow(site, "/topics/t/stream") as source:
            await source.ready()
            for n in range(40):
                await site.publish("t", str(n) * 250_000)
                assert len(await source.events(1)) == 1
        while not writer.transport.is_closing():  # asyncio notices the reset when it reads or writes
            writer.write(b"x")
            await asyncio.sleep(0.02)
        assert (await site.get("/healthz")).status == 200


async def test_streams_end_when_the_node_stops_so_that_stopping_does_not_wait_for_readers(site: Site) -> None:
    await site.publish("t", 1)
    async with follow(site, "/topics/t/stream") as source:
        await source.ready()
        await asyncio.wait_for(site.runner.cleanup(), 4)
        assert await source.answer.content.read() == b""


def test_a_cursor_is_read_back_as_it_was_written() -> None:
    seen = parse_cursor("0:12,3:7")
    assert seen == {0: 12, 3: 7}
    assert cursor_text(seen) == b"0:12,3:7"
    assert cursor_text({**seen, 1: 2}) == b"0:12,1:2,3:7"
    assert cursor_text(parse_cursor("")) == b""


@pytest.mark.parametrize("text", ["x", "0", "0:", ":1", "0:1,", "0:1;1:2", "-1:2", "0:1\n", "٠:١", "0:" + "9" * 30])
def test_other_text_is_no_cursor(text: str) -> None:
    with pytest.raises(BadCursor):
        parse_cursor(text)


def test_the_text_of_a_message() -> None:
    assert sse_message(b'{"a":1}', b"0:1") == b'id: 0:1\ndata: {"a":1}\n\n'
    assert sse_message(b"[\r\n1\r]\n", b"0:1") == b"id: 0:1\ndata: [\ndata: 1\ndata: ]\ndata: \n\n"
