"""Strangers send anything: every answer is one the description knows, and the node goes on."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest
from openapi_schema_validator import OAS31Validator

from mainspring.log import LogUnavailable, MemoryEngine
from mainspring.server import http
from mainspring.server.http.table import Operation
from mainspring.settings import Settings
from tests.support.http_site import Site, serve

TEXTS = [
    *(
        "",
        "0",
        "1",
        "-1",
        "1.5",
        "t",
        "a/b",
        "..",
        ".",
        "%",
        "%2F",
        "%00",
        "\x00",
        "é",
        "東京",
        "😀",
        "a b",
        "null",
        "NaN",
    ),
    *(
        "true",
        "1e9",
        "99999999999999999999",
        "x" * 300,
        "0:1",
        "0:1,1:1",
        "latest",
        "system.bus.audit",
        "t.DLQ",
        "\ud83d",
    ),
    *("2026-01-31T12:00:00Z", "2026-99-99T99:99:99Z", "{}", "[]", '"', "'", "\\", "; drop", "\r\nX-Evil: 1", "*"),
]
VALUES: list[Any] = [None, True, 0, 1, -1, 1.5, 2**53, 2**70, "", "t", "a b", "\ud83d", [], {}, [[]], {"a": 1}, ["t"]]
TYPES = [
    "application/json",
    "application/x-ndjson",
    "application/cloudevents+json",
    "text/plain",
    "",
    "\x7f/;",
    "a/b;charset=x",
]


class Stranger:
    """Makes requests out of the route table: right ones, nearly right ones and nonsense, the same for one seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def path(self, operation: Operation) -> str:
        path = operation.path
        for name in ("topic", "group", "schedule", "partition", "offset"):
            path = path.replace(f"{{{name}}}", self._piece())
        query = [f"{self._name(operation)}={self._piece()}" for _ in range(self._random.choice([0, 0, 1, 2, 4]))]
        return path + ("?" + "&".join(query) if query else "")

    def _piece(self) -> str:
        text = self._random.choice(["t", "t", "0", "1", *TEXTS])
        return quote(text.encode("utf-8", "surrogatepass"), safe=self._random.choice(["", "/:,"]))

    def _name(self, operation: Operation) -> str:
        known = [parameter.name for parameter in operation.parameters if parameter.place == "query"]
        return self._random.choice([*known, *known, "agent_id", "x", "%FF"])

    def body(self) -> bytes:
        kind = self._random.randrange(5)
        if kind == 0:
            return self._random.randbytes(self._random.randrange(40))
        if kind == 1:
            return self._random.choice(TEXTS).encode("utf-8", "surrogatepass")
        members = [
            "topic",
            "payload",
            "key",
            "headers",
            "id",
            "partitions",
            "kind",
            "value",
            "name",
            "every",
            "offsets",
        ]
        chosen = self._random.sample(members, self._random.randrange(len(members)))
        return json.dumps({name: self._random.choice(VALUES) for name in chosen}).encode()

    def headers(self) -> dict[str, str]:
        chosen = {"Content-Type": self._random.choice(["application/json", "application/json", *TYPES])}
        for name in ("Accept", "Last-Event-ID", "X-Agent-Id", "ce-id", "ce-specversion", "Content-Encoding"):
            if self._random.random() < 0.1:
                chosen[name] = self._random.choice([text for text in TEXTS if text.isprintable() and text.isascii()])
        return {name: value for name, value in chosen.items() if value.isprintable()}


@pytest.mark.parametrize("operation", http.OPERATIONS, ids=lambda operation: operation.name)
async def test_whatever_is_asked_the_answer_is_one_of_the_described(site: Site, operation: Operation) -> None:
    await site.publish("t", 1, 2)
    described = http.openapi_document()["paths"][operation.path][operation.method.lower()]["responses"]
    problem = {
        "$ref": "#/components/schemas/ProblemDocument",
        "components": json.loads(http.openapi_text())["components"],
    }
    check = OAS31Validator(problem)
    stranger = Stranger(len(operation.name))
    ended = aiohttp.ClientTimeout(total=20)
    for _ in range(60):
        path, headers, body = stranger.path(operation), stranger.headers(), stranger.body()
        async with site.session.request(
            operation.method, site.url(path), headers=headers, data=body, timeout=ended, allow_redirects=False
        ) as answer:
            if answer.content_type == "text/event-stream":
                continue
            text = await answer.read()
        assert answer.status != 500, (operation.name, path, headers, body)
        if answer.content_type == "application/problem+json":
            check.validate(json.loads(text))
            # Nonsense in a path may lead to no route, or to another one.
            known = {*described, "400", "404", "405"}
            assert str(answer.status) in known, (path, headers, body, text)
    assert (await site.get("/healthz")).status == 200
    assert (await site.post("/topics/t/events", {"payload": "still here"})).status == 201


async def test_a_method_that_a_path_does_not_know_is_not_for_a_topic_with_a_slash(site: Site) -> None:
    await site.publish("a/history", 1)
    async with site.session.delete(site.url("/topics/a/history")) as answer:
        assert answer.status == 405
        assert answer.headers["Allow"] == "GET, HEAD, OPTIONS"
    async with site.session.delete(site.url("/topics/a%2Fhistory")) as answer:
        assert answer.status == 204


async def test_a_request_cut_off_in_the_middle_of_its_body_stores_nothing(site: Site) -> None:
    for _ in range(5):
        _, writer = await asyncio.open_connection("127.0.0.1", site.port)
        writer.write(
            b"POST /topics/t/events HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/x-ndjson\r\n"
            b'Content-Length: 1000\r\n\r\n{"payload":1}\n{"payload":2}\n'
        )
        await writer.drain()
        writer.transport.abort()
    await asyncio.sleep(0.05)
    assert await site.nothing_stored("t")


async def test_many_publishers_at_once_each_get_an_offset_of_their_own(each_engine: Site) -> None:
    site = each_engine
    answers = await asyncio.gather(*(site.post("/topics/t/events", {"payload": n}) for n in range(60)))
    assert sorted(answer.json["offset"] for answer in answers) == list(range(1, 61))
    stored = {event["offset"]: event["payload"] for event in await site.events("t")}
    assert all(stored[answer.json["offset"]] == n for n, answer in enumerate(answers))


async def test_a_topic_over_its_rate_answers_429_and_when_to_come_back(site: Site) -> None:
    await site.post("/topics", {"topic": "t", "ratePerSecond": 1, "rateBurst": 2})
    answers = [await site.post("/topics/t/events", {"payload": n}) for n in range(4)]
    assert [answer.status for answer in answers][:2] == [201, 201]
    limited = answers[-1]
    assert (limited.status, limited.problem["code"]) == (429, "rate_limited")
    assert int(limited.headers["Retry-After"]) >= 1
    lines = await site.post("/topics/t/events", b'{"payload":1}\n' * 5, type="application/x-ndjson")
    assert lines.status == 429


class FullDisk(MemoryEngine):
    """A log that cannot be written while `full`."""

    full = False

    def submit(self, batches: Any, done: Any) -> None:
        if self.full:
            done([LogUnavailable("the disk is full", remedy="make room") for _ in batches])
        else:
            super().submit(batches, done)


async def test_a_full_disk_is_503_and_what_was_stored_stays_readable() -> None:
    engine = FullDisk()
    async with serve(engine) as site:
        assert (await site.post("/topics/t/events", {"payload": 1})).status == 201
        engine.full = True
        refused = await site.post("/topics/t/events", {"payload": 2})
        assert refused.status == 503
        assert refused.problem["code"] in ("unavailable", "log_unavailable")
        assert "Retry-After" in refused.headers
        assert (await site.post("/topics", {"topic": "u", "partitions": 2})).status == 503
        assert [event["payload"] for event in await site.events("t")] == [1]
        engine.full = False
        assert (await site.post("/topics/t/events", {"payload": 3})).json["offset"] == 2


async def test_an_answer_that_cannot_be_completed_does_not_look_complete(site: Site) -> None:
    await site.publish("t", *range(600))
    read = site.bus.entries

    async def failing(topic: str, partition: int, offset: int, *rest: Any, **options: Any) -> Any:
        if offset > 300:
            raise LogUnavailable("the disk is gone")
        return await read(topic, partition, offset, *rest, **options)

    site.bus.entries = failing  # type: ignore[method-assign]
    for accept in ("application/json", "application/x-ndjson", "application/cloudevents-batch+json"):
        with pytest.raises(aiohttp.ClientError):
            await site.get("/topics/t/events?limit=600", headers={"Accept": accept})
    site.bus.entries = read  # type: ignore[method-assign]
    assert len(await site.events("t")) == 600


async def test_a_delayed_event_is_accepted_and_comes_when_it_is_due(site: Site) -> None:
    accepted = await site.post("/topics/t/events", {"payload": "later", "delay_ms": 30})
    assert (accepted.status, accepted.json["offset"]) == (201, 0)
    assert accepted.json["not_before"] > 0
    assert "Location" not in accepted.headers
    for _ in range(500):
        found = await site.get("/topics/t/events")
        if found.status == 200 and found.json["events"]:
            break
        await asyncio.sleep(0.01)
    assert found.json["events"][0]["payload"] == "later"
    assert found.json["events"][0]["id"] == accepted.json["id"]


async def test_a_repeated_id_names_the_event_that_is_stored(each_engine: Site) -> None:
    first = await each_engine.post("/topics/t/events", {"payload": 1, "id": "same"})
    again = await each_engine.post("/topics/t/events", {"payload": 1, "id": "same"})
    stored = (await each_engine.get("/topics/t/events/0/1")).json["id"]
    assert (first.json["id"], again.json["id"]) == (stored, stored)


async def test_topics_have_a_bound_over_http_too() -> None:
    async with serve(settings=Settings(max_topics=8)) as site:
        statuses = [(await site.post(f"/topics/t{n}/events", {"payload": 1})).status for n in range(20)]
        assert 201 in statuses
        assert statuses[-1] in (400, 403, 409, 429, 503)
        assert (await site.post("/topics/t0/events", {"payload": 1})).status == 201
