"""Whichever way a payload comes in: the same ones are refused with the same code, and the others keep every byte."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable
from hashlib import sha256
from typing import Any

import aiohttp
import pytest

from mainspring import App
from mainspring.bus import NewEvent, Schedule
from mainspring.bus.errors import BusError
from mainspring.client import connect
from mainspring.testing import serving
from mainspring.testing.serving import Served

Refusal = tuple[object, str] | None
"""The code and the message, or None for what was taken."""


class Faces:
    """Every way into a topic of one node."""

    def __init__(self, node: Served, browser: aiohttp.ClientSession) -> None:
        self.node = node
        self._browser = browser

    async def post(self, path: str, body: bytes, kind: str, **headers: str) -> Refusal:
        given = {"Content-Type": kind, **headers}
        async with self._browser.post(f"{self.node.http}{path}", data=body, headers=given) as answer:
            if answer.status < 300:
                return None
            told = await answer.json(content_type=None)
            return told["code"], told["message"]

    async def frame(self, text: bytes) -> Refusal:
        async with self._browser.ws_connect(self.node.http) as socket:
            await socket.send_frame(text, aiohttp.WSMsgType.TEXT)
            told = json.loads((await socket.receive(timeout=60)).data)
        return (told["code"], told["message"]) if told["type"] == "ERROR" else None

    async def line(self, text: bytes) -> Refusal:
        reader, writer = await asyncio.open_unix_connection(self.node.kernel_socket)
        writer.write(text + b"\n")
        told = json.loads(await reader.readline())
        writer.close()
        return (told["data"]["code"], told["data"]["message"]) if told["kind"] == "error" else None

    # -- one event each, to `topic`

    async def http(self, topic: bytes, payload: bytes) -> Refusal:
        return await self.post(f"/topics/{topic.decode()}/events", b'{"payload":%b}' % payload, "application/json")

    async def http_lines(self, topic: bytes, payload: bytes) -> Refusal:
        body = b'{"payload":1}\n{"payload":%b}\n' % payload
        return await self.post(f"/topics/{topic.decode()}/events", body, "application/x-ndjson")

    async def cloudevent(self, topic: bytes, payload: bytes) -> Refusal:
        body = b'{"specversion":"1.0","id":"1","source":"/s","type":"t","data":%b}' % payload
        return await self.post(f"/topics/{topic.decode()}/events", body, "application/cloudevents+json")

    async def cloudevent_in_headers(self, topic: bytes, payload: bytes) -> Refusal:
        attributes = {"ce-specversion": "1.0", "ce-id": "2", "ce-source": "/s", "ce-type": "t"}
        return await self.post(f"/topics/{topic.decode()}/events", payload, "application/json", **attributes)

    async def websocket(self, topic: bytes, payload: bytes) -> Refusal:
        return await self.frame(b'{"type":"PUBLISH","topic":"%b","payload":%b}' % (topic, payload))

    async def websocket_batch(self, topic: bytes, payload: bytes) -> Refusal:
        events = b'{"payload":1},{"payload":%b}' % payload
        return await self.frame(b'{"type":"PUBLISH_BATCH","topic":"%b","events":[%b]}' % (topic, events))

    async def python(self, topic: bytes, payload: bytes) -> Refusal:
        return await self._called(self.node.node.bus.publish(topic.decode(), payload))

    async def python_batch(self, topic: bytes, payload: bytes) -> Refusal:
        events = [NewEvent(b"1"), NewEvent(payload)]
        return await self._called(self.node.node.bus.publish_batch(topic.decode(), events))

    async def kernel_line(self, topic: bytes, payload: bytes) -> Refusal:
        data = b'{"topic":"%b","payload":%b}' % (topic, payload)
        metadata = b'{"id":"1","timestamp":0}'
        return await self.line(
            b'{"kind":"command","type":"Bus.Publish","data":%b,"metadata":%b}' % (data, metadata),
        )

    async def kernel_over_http(self, topic: bytes, payload: bytes) -> Refusal:
        data = b'{"topic":"%b","payload":%b}' % (topic, payload)
        return await self.post(
            "/messages", b'{"kind":"command","type":"Bus.Publish","data":%b}' % data, "application/json"
        )

    # -- schedules, which publish later

    async def schedule_frame(self, topic: bytes, payload: bytes) -> Refusal:
        members = b'"name":"s1","topic":"%b","every":3600000,"payload":%b' % (topic, payload)
        return await self.frame(b'{"type":"SCHEDULE",%b}' % members)

    async def schedule_over_http(self, topic: bytes, payload: bytes) -> Refusal:
        members = b'"name":"s2","topic":"%b","every":3600000,"payload":%b' % (topic, payload)
        return await self.post("/schedules", b"{%b}" % members, "application/json")

    async def schedule_in_python(self, topic: bytes, payload: bytes) -> Refusal:
        schedule = Schedule(name="s3", topic=topic.decode(), every=3_600_000, payload=payload)
        return await self._called(self.node.node.bus.put_schedule(schedule))

    async def schedule_by_kernel(self, topic: bytes, payload: bytes) -> Refusal:
        data = b'{"name":"s4","topic":"%b","every":3600000,"payload":%b}' % (topic, payload)
        return await self.post(
            "/messages", b'{"kind":"command","type":"Bus.Schedule","data":%b}' % data, "application/json"
        )

    @staticmethod
    async def _called(work: Awaitable[Any]) -> Refusal:
        try:
            await work
        except BusError as error:
            return error.code, error.message
        return None


BUS = (
    Faces.http,
    Faces.http_lines,
    Faces.cloudevent,
    Faces.cloudevent_in_headers,
    Faces.websocket,
    Faces.websocket_batch,
    Faces.python,
    Faces.python_batch,
    Faces.schedule_frame,
    Faces.schedule_over_http,
    Faces.schedule_in_python,
)
KERNEL = (Faces.kernel_line, Faces.kernel_over_http, Faces.schedule_by_kernel)
EVENTS = tuple(face for face in (*BUS, *KERNEL) if "schedule" not in face.__name__)


@pytest.fixture
async def faces() -> AsyncIterator[Faces]:
    async with serving(App("faces")) as node, aiohttp.ClientSession() as browser:
        yield Faces(node, browser)


def nested(levels: int) -> bytes:
    return b'{"a":' * (levels - 1) + b"[]" + b"}" * (levels - 1)


REFUSED = {
    "a number over every double": (b"1e999", "bad_frame", "number"),
    "its negative": (b"[-1E+400]", "bad_frame", "number"),
    "just over the largest double": (b'{"a":[1.7976931348623159e308]}', "bad_frame", "number"),
    "a long mantissa": (b"9" * 300 + b"e9", "bad_frame", "number"),
    "a long mantissa with a point": (b"-" + b"9" * 310 + b".5", "bad_frame", "number"),
    "an integer of 400 digits": (b'{"n":' + b"9" * 400 + b"}", "bad_frame", "number"),
    "an integer of 5,000 digits": (b"1" * 5_000, "bad_frame", "number"),
    "a number behind a text that looks like one": (b'["1e5 [",1e999]', "bad_frame", "number"),
    "NaN": (b'{"a":NaN}', "bad_json", "not"),
    "Infinity": (b"Infinity", "bad_json", "not"),
    "minus Infinity": (b"[-Infinity]", "bad_json", "not"),
    "no UTF-8": (b'"\xff"', "bad_json", "not"),
    "half a character in UTF-8": (b'"\xed\xa0\xbd"', "bad_json", "not"),
    "the first half of a character": (b'["\\ud83d"]', "bad_frame", "half a character"),
    "the second half of a character": (b'"\\udc00 and more"', "bad_frame", "half a character"),
    "half a character as a name": (b'{"\\ud83d":1}', "bad_frame", "half a character"),
    "one level too deep": (nested(129), "bad_frame", "nested"),
    "far too deep": (b"[" * 5_000 + b"]" * 5_000, "bad_frame", "nested"),
    "deep beside texts with brackets": (b'["[",' * 129 + b"1" + b"]" * 129, "bad_frame", "nested"),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_every_face_refuses_it_with_the_same_code_and_stores_nothing(faces: Faces, case: str) -> None:
    payload, code, word = REFUSED[case]
    for face in BUS:
        refusal = await face(faces, b"t", payload)
        assert refusal is not None, face.__name__
        assert refusal[0] == code, (face.__name__, refusal)
        assert word in refusal[1], (face.__name__, refusal)
    for face in KERNEL:
        refusal = await face(faces, b"t", payload)
        assert refusal is not None, face.__name__
        assert refusal[0] in (400, 422, "refused", code), (face.__name__, refusal)  # the kernel's own codes are numbers
        assert word in refusal[1] or refusal[1].startswith("Invalid JSON"), (face.__name__, refusal)
    bus = faces.node.node.bus
    assert "t" not in [config.topic for config in bus.topics.configs()]  # there is a topic as soon as there is an event
    assert bus.schedules.all() == []


TAKEN = {
    "the largest double": b"[1.7976931348623157e308,-1.7976931348623157E+308]",
    "an integer of 308 digits": b"9" * 308,
    "too small to be told from nothing": b"1e-999",
    "nothing, however many times": b"0e999",
    "digits that no double keeps": b"[12345678901234567890123,0.10,-0,1.0,1E5,1e+5]",
    "texts that look like numbers": b'["1e999","a0e0000-1e99999999999","' + b"1" * 500 + b'"]',
    "an id that looks like a number": b'{"id":"00e9e999-1e99-4e99-8e99-123e99999e99"}',
    "as deep as may be": nested(128),
    "wide": b"[" + b",".join([b'{"a":[]}'] * 300) + b"]",
    "brackets in texts": b'["' + b"[" * 300 + b'","\\"' + b"{" * 300 + b'"]',
    "a name given twice": b'{"a":1,"b":{"c":[1],"c":[2]},"a":2}',
    "spaces": b'{ "a" :\t[ 1 , 2 ] }',
    "a whole character in two halves": b'"\\ud83d\\ude00"',
}


@pytest.mark.parametrize("case", TAKEN)
async def test_every_face_takes_it_and_keeps_every_byte(faces: Faces, case: str) -> None:
    payload = TAKEN[case]
    for face in EVENTS:
        topic = face.__name__.encode()
        assert await face(faces, topic, payload) is None, face.__name__
        stored = await faces.node.node.bus.read(topic.decode(), 0, 1, 10)
        assert stored[-1].payload == payload, face.__name__
    for face in (*BUS, *KERNEL):
        if face not in EVENTS:
            assert await face(faces, b"later", payload) is None, face.__name__
    assert {bytes(schedule.payload) for schedule in faces.node.node.bus.schedules.all()} == {payload}


async def test_of_a_batch_the_event_is_named(faces: Faces) -> None:
    for face in (Faces.http_lines, Faces.websocket_batch, Faces.python_batch):
        refusal = await face(faces, b"t", b"1e999")
        assert refusal is not None
        assert refusal[1].startswith("event 1 of the batch: "), face.__name__


async def test_a_schema_does_not_hide_what_is_wrong_with_a_number(faces: Faces) -> None:
    await faces.node.node.bus.register_schema("t", {"type": "number"})
    for face in (Faces.http, Faces.websocket, Faces.python):
        refusal = await face(faces, b"t", b"1e999")
        assert refusal is not None
        assert refusal[0] == "bad_frame", face.__name__


async def test_the_same_rule_holds_for_a_frame_with_a_digest(faces: Faces) -> None:
    frame = b'{"type":"PUBLISH","topic":"t","payload":1e999,"payload_sha256":"00"}'
    refusal = await faces.frame(frame)
    assert refusal is not None
    assert refusal[0] == "bad_frame"
    assert "number" in refusal[1]


async def test_a_digest_reaches_the_envelope_whichever_way_it_came(faces: Faces) -> None:
    digest = sha256(b'{"a":1,"b":2}').hexdigest()
    sent = b'"payload":{"b": 2, "a": 1},"payload_sha256":"%b"' % digest.encode()
    wrong = sent.replace(b'"b": 2', b'"b": 3')
    line = b'{"kind":"command","type":"Bus.Publish","metadata":{"id":"1","timestamp":0},"data":{"topic":"t",%b}}'
    for members, refused in ((sent, False), (wrong, True)):
        in_data = members.replace(b"payload_sha256", b"payloadSha256")
        answers = [
            await faces.frame(b'{"type":"PUBLISH","topic":"t",%b}' % members),
            await faces.post("/topics/t/events", b"{%b}" % members, "application/json"),
            await faces.post("/topics/t/events", b"{%b}\n" % members, "application/x-ndjson"),
            await faces.line(line % in_data),
        ]
        assert [answer is not None for answer in answers] == [refused] * 4, answers
    async with connect(faces.node.url) as bus, bus.subscribe("t", group="g") as subscription:
        got = [await anext(aiter(subscription)) for _ in range(4)]
    assert [event.payload_sha256 for event in got] == [digest] * 4
    assert [event.headers.get("payload_sha256") for event in got] == [None] * 4
