"""A batch whose events have nothing but payload and key takes a shorter way, and nobody can tell."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest

from mainspring.bus.protocol import decode_lean
from mainspring.json_text import JsonRefused, are_readable_parts, check_json
from mainspring.message import new_uuid
from tests.support.bus import BEGINNING, World, in_virtual_time, settle

READABLE = [b"1", b'{"a":[1,{"b":"\\u00e4"}]}', b'"x"', b" null ", b'"' + b"y" * 400 + b'"', b"[" * 128 + b"]" * 128]
UNREADABLE = [
    b'"\\ud83d"',
    b'"\xff"',
    b"1e999",
    b"[" * 129 + b"1" * 200 + b"]" * 129,
    b"1" * 400,
    b'{"a":%b}' % (b"9" * 309),
]


def test_joined_texts_are_judged_as_each_by_itself() -> None:
    assert are_readable_parts(READABLE)
    for text in UNREADABLE:
        with pytest.raises(JsonRefused):
            check_json(text)
        for at in (0, 3, len(READABLE)):
            assert not are_readable_parts([*READABLE[:at], text, *READABLE[at:]])


def test_only_payload_and_key_are_lean() -> None:
    def frame(event: Any, **more: Any) -> bytes:
        batch = {"type": "PUBLISH_BATCH", "topic": "t", "events": [{"payload": 1}, event], **more}
        return json.dumps(batch, separators=(",", ":")).encode()

    assert decode_lean(frame({"payload": 2, "key": "k"}, corr=7)) is not None
    assert decode_lean(frame({"payload": 2, "key": None})) is not None
    for event in ({"payload": 2, "id": "x"}, {"payload": 2, "headers": {}}, {"payload": 2, "ttl_ms": 1}, {}, 7):
        assert decode_lean(frame(event)) is None
    assert decode_lean(frame({"payload": 2}, more=1)) is None
    assert decode_lean(b'{"type":"PUBLISH","topic":"t","payload":1}') is None


def test_ids_made_together_are_uuids_in_order() -> None:
    found = [*new_uuid.many(3), new_uuid(), *new_uuid.many(5_000), new_uuid()]
    assert len(set(found)) == len(found) == 5_005
    assert found == sorted(found)
    assert {uuid.UUID(each).version for each in found} == {7}


@in_virtual_time
async def test_they_are_stored_answered_and_delivered_like_others(world: World) -> None:
    peer, reader = world.connect(), world.connect()
    await peer.ask({"type": "PUBLISH_BATCH", "topic": "t", "events": [{"payload": 0}]})  # a topic that is there
    lean = [{"payload": n, "key": f"k{n % 2}" if n % 3 else None} for n in range(1, 300)]
    answer = await peer.ask({"type": "PUBLISH_BATCH", "topic": "t", "events": lean, "corr": "c"})
    assert answer == {
        "type": "PUBLISHED_BATCH",
        "topic": "t",
        "offsets": [[0, n + 1] for n in range(1, 300)],
        "corr": "c",
    }
    with_id = {"type": "PUBLISH_BATCH", "topic": "t", "events": [{"payload": 300, "id": "own"}]}
    assert (await peer.ask(with_id))["offsets"] == [[0, 301]]
    assert (await peer.ask({"type": "PUBLISH_BATCH", "topic": "t", "events": lean[:1]}))["offsets"] == [[0, 302]]
    events = await world.log.read("t", 0, 1, 1_000)
    assert [json.loads(event.payload) for event in events] == [*range(301), 1]
    assert [event.key for event in events[1:300]] == [event["key"] for event in lean]
    assert len({event.id for event in events}) == 302
    await reader.ask({"type": "SUBSCRIBE", "topic": "t", "group": "g", "from": BEGINNING, "max_inflight": 1_000})
    await settle()
    assert [message["envelope"]["payload"] for message in reader.got] == [*range(301), 1]
    reader.got.clear()
    other = world.connect()
    await other.ask({"type": "PUBLISH_BATCH", "topic": "t", "events": [{"payload": "live", "key": "k"}] * 2})
    live = reader.got
    assert [(each["offset"], each["envelope"]["payload"], each["envelope"]["key"]) for each in live] == [
        (303, "live", "k"),
        (304, "live", "k"),
    ]
    assert world.bus.counters.published == 304


@in_virtual_time
async def test_a_bad_payload_refuses_the_batch_and_is_named(world: World) -> None:
    peer = world.connect()
    await peer.ask({"type": "PUBLISH_BATCH", "topic": "t", "events": [{"payload": 0}]})
    refused = await peer.ask('{"type":"PUBLISH_BATCH","topic":"t","events":[{"payload":1},{"payload":1e999}]}')
    assert (refused["code"], refused["event"]) == ("bad_frame", 1)
    await peer.ask({"type": "PUBLISH_BATCH", "topic": "t", "events": [{"payload": 1, "key": "k" * 5_000}]})
    assert len(await world.log.read("t", 0, 1, 10)) == 1
