"""The known ways to get such a bus wrong, one test each. The names keep the numbers of the protocol's list of traps.

Traps of client libraries and of a particular database (B25, B26, B32, B33, B34) are not the server's and not here.
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import pytest

from mainspring.bus import BEGINNING as START
from mainspring.bus import Conflict, Start
from mainspring.log import MemoryEngine
from tests.support.bus import BEGINNING, LATEST, WALL_MS, World, in_virtual_time, settle


@in_virtual_time
async def test_b01_subscribe_is_answered_with_ok_and_only_then_delivers(world: World) -> None:
    peer = world.connect()
    await peer.publish_many("t", 2)
    peer.send({"type": "SUBSCRIBE", "topic": "t", "group": "g", "from": BEGINNING})
    await settle()
    assert [frame["type"] for frame in peer.got] == ["OK", "MESSAGE", "MESSAGE"]


@in_virtual_time
async def test_b02_a_leased_event_is_not_sent_again_when_others_are_published(world: World) -> None:
    peer = world.connect()
    await peer.subscribe("t", "g", BEGINNING)
    writer = world.connect()
    await writer.publish_many("t", 4)
    assert await peer.offsets() == [1, 2, 3, 4]


@in_virtual_time
async def test_b03_members_of_a_group_compete(world: World) -> None:
    members = [world.connect() for _ in range(3)]
    for member in members:
        await member.subscribe("t", "g", BEGINNING)
    await world.connect().publish_many("t", 30)
    seen = [await member.offsets() for member in members]
    assert sorted(offset for offsets in seen for offset in offsets) == list(range(1, 31))
    assert all(len(offsets) == 10 for offsets in seen)


@in_virtual_time
async def test_b04_one_subscribe_covers_every_partition(world: World) -> None:
    await world.create("t", partitions=4)
    writer, peer = world.connect(), world.connect()
    placed = {(await writer.publish("t", n, key=f"k{n}"))["partition"] for n in range(40)}
    assert placed == {0, 1, 2, 3}
    await peer.subscribe("t", "g", BEGINNING, max_inflight=100)
    assert len(await peer.messages()) == 40


@in_virtual_time
async def test_b05_the_window_counts_over_all_partitions_and_redeliveries(world: World) -> None:
    await world.create("t", partitions=4)
    writer, peer = world.connect(), world.connect()
    for n in range(40):
        await writer.publish("t", n, key=f"k{n}")
    await peer.subscribe("t", "g", BEGINNING, max_inflight=3)
    first = await peer.messages()
    assert len(first) == 3
    await writer.publish("t", 41)
    assert await peer.messages() == []
    for _ in range(5):  # every lease ends, again and again: never more than three at a time
        await settle(31)
        assert len(await peer.messages()) == 3
    assert sum([await world.inflight("t", "g", partition) for partition in range(4)]) == 3


@in_virtual_time
async def test_b06_every_ack_wakes_delivery(world: World) -> None:
    peer = world.connect()
    await peer.publish_many("t", 25)
    await peer.subscribe("t", "g", BEGINNING, max_inflight=10)
    seen: list[int] = []
    while offsets := await peer.offsets():
        seen += offsets
        peer.ack("t", "g", offsets[-1])
    assert seen == list(range(1, 26))


@in_virtual_time
async def test_b07_a_cumulative_ack_settles_what_is_below_it(world: World) -> None:
    peer = world.connect()
    await peer.publish_many("t", 3)
    await peer.subscribe("t", "g", BEGINNING)
    await peer.messages()
    peer.ack("t", "g", 3)
    assert await world.committed("t", "g") == 3
    await settle(120)
    assert await peer.messages() == []


@in_virtual_time
async def test_b08_a_nack_brings_the_event_back_and_blocks_the_commit(world: World) -> None:
    peer = world.connect()
    await peer.publish_many("t", 2)
    await peer.subscribe("t", "g", BEGINNING)
    await peer.messages()
    peer.nack("t", "g", 1, reason="later")
    peer.ack("t", "g", 2)
    again = await peer.message()
    assert (again["offset"], again["attempt"]) == (1, 2)
    assert await world.committed("t", "g") == 0
    peer.ack("t", "g", 1)
    assert await world.committed("t", "g") == 2


@in_virtual_time
async def test_b09_a_closed_connection_gives_its_events_back_at_once(world: World) -> None:
    first, second = world.connect(), world.connect()
    await first.subscribe("t", "g", BEGINNING)
    await world.connect().publish_many("t", 3)
    assert await first.offsets() == [1, 2, 3]
    await second.subscribe("t", "g")
    assert await second.offsets() == []
    first.close()
    assert await second.offsets() == [1, 2, 3]
    assert world.bus.stats().inflight == 3


@in_virtual_time
async def test_b10_latest_replays_nothing_and_a_timestamp_is_obeyed(world: World) -> None:
    peer, writer = world.connect(), world.connect()
    await writer.publish_many("t", 3)
    await settle(1)
    stamp = world.clock.wall_ms()
    await peer.subscribe("t", "new", LATEST)
    await peer.subscribe("t", "future", {"kind": "timestamp", "value": stamp + 60_000})
    await peer.subscribe("t", "now", {"kind": "timestamp", "value": stamp})
    await writer.publish("t", "four")
    assert sorted((m["group"], m["offset"]) for m in await peer.messages()) == [("new", 4), ("now", 4)]
    await settle(60)
    peer.got.clear()
    await writer.publish("t", "five")
    assert ("future", 5) in [(m["group"], m["offset"]) for m in await peer.messages()]


@in_virtual_time
async def test_b11_a_start_offset_becomes_the_groups_place(world: World) -> None:
    peer = world.connect()
    await peer.publish_many("t", 6)
    await peer.subscribe("t", "g", {"kind": "offset", "value": 5})
    assert await peer.offsets() == [5, 6]
    await world.connect().publish("t", 7)
    assert await peer.offsets() == [7]


@pytest.mark.parametrize("group", ["changelog:c", "0:g", "a/b:c", "gruppe-ä", "グループ", "🦆:1"])
@in_virtual_time
async def test_b12_colons_in_names_work_fully(world: World, group: str) -> None:
    topic, other = "a", "a:0"
    peer = world.connect()
    for name in (topic, other):
        await peer.publish(name, name)
    await peer.subscribe(topic, group, BEGINNING)
    await peer.subscribe(other, "g", BEGINNING)
    assert {(m["topic"], m["attempt"]) for m in await peer.messages()} == {(topic, 1), (other, 1)}
    await settle(31)
    assert {(m["topic"], m["attempt"]) for m in await peer.messages()} == {(topic, 2), (other, 2)}
    peer.ack(topic, group, 1)
    assert await world.committed(topic, group) == 1
    assert await world.committed(other, "g") == 0


@in_virtual_time
async def test_b13_text_that_is_not_json_is_answered_and_harms_nobody(world: World) -> None:
    peer, other = world.connect(), world.connect()
    assert (await peer.ask("not json"))["code"] == "bad_json"
    assert (await peer.ask({"type": "NOPE"}))["code"] == "unknown_type"
    assert (await peer.publish("t", 1))["offset"] == 1
    assert (await other.publish("t", 1))["offset"] == 2


@in_virtual_time
async def test_b14_an_ack_of_what_was_never_delivered_skips_nothing(world: World) -> None:
    peer = world.connect()
    await peer.subscribe("t", "g", BEGINNING)
    peer.ack("t", "g", 1000)
    await settle()
    assert peer.got.pop()["code"] == "bad_offset"
    await peer.publish_many("t", 2)
    assert await peer.offsets() == [1, 2]
    peer.ack("t", "g", 2)
    peer.ack("t", "g", 1)  # settled already: harmless
    assert await world.committed("t", "g") == 2
    assert peer.got == []


@in_virtual_time
async def test_b15_holes_are_passed_over(world: World) -> None:
    peer = world.connect()
    await peer.publish_many("t", 10)
    await world.log.trim("t", 0, 4)
    await peer.subscribe("t", "g", BEGINNING)
    assert await peer.offsets() == [4, 5, 6, 7, 8, 9, 10]
    peer.ack("t", "g", 10)
    assert await world.committed("t", "g") == 10


@in_virtual_time
async def test_b16_a_redelivery_keeps_to_the_window_and_may_go_to_another_member(world: World) -> None:
    silent, lively = world.connect(), world.connect()
    await silent.subscribe("t", "g", BEGINNING, max_inflight=1)
    await world.connect().publish("t", 1)
    assert (await silent.message())["attempt"] == 1
    await lively.subscribe("t", "g", BEGINNING, max_inflight=1)
    silent.send({"type": "FLOW", "credits": 0})  # it may not get more
    await settle(31.5)
    assert (await lively.message())["attempt"] == 2
    assert await silent.messages() == []
    lively.ack("t", "g", 1)
    assert await world.committed("t", "g") == 1


@in_virtual_time
async def test_b17_attempts_are_counted_per_group_and_survive_a_crash(world: World) -> None:
    bad, good = world.connect(), world.connect()
    await world.create("t", maxAttempts=4)
    await bad.subscribe("t", "bad", BEGINNING)
    await world.connect().publish("t", "x")
    for attempt in (1, 2):
        assert (await bad.message())["attempt"] == attempt
        bad.nack("t", "bad", 1)
    assert (await bad.message())["attempt"] == 3
    await good.subscribe("t", "good", BEGINNING)
    assert (await good.message())["attempt"] == 1
    await settle(0.1)
    await world.kill()
    again = world.connect()
    await again.subscribe("t", "bad")
    assert (await again.message())["attempt"] == 4


@in_virtual_time
async def test_b18_an_event_is_delivered_exactly_max_attempts_times(world: World) -> None:
    await world.create("t", maxAttempts=3)
    peer = world.connect()
    await peer.subscribe("t", "g", BEGINNING)
    await world.connect().publish("t", "x")
    for attempt in (1, 2, 3):
        assert (await peer.message())["attempt"] == attempt
        peer.nack("t", "g", 1)
    await settle(120)
    assert await peer.messages() == []
    assert await world.stored("t.DLQ") == ["x"]


@in_virtual_time
async def test_b18_five_is_the_default_and_silence_counts_too(world: World) -> None:
    peer = world.connect()
    await peer.subscribe("t", "g", BEGINNING)
    await world.connect().publish("t", "x")
    attempts = []
    for _ in range(10):
        await settle(31)
        attempts += [m["attempt"] for m in await peer.messages()]
    assert attempts == [1, 2, 3, 4, 5]
    assert await world.stored("t.DLQ") == ["x"]


@in_virtual_time
async def test_b19_the_dead_letter_is_a_copy_that_tells_its_story(world: World) -> None:
    await world.create("t", maxAttempts=1)
    peer, watcher = world.connect(), world.connect()
    await watcher.subscribe("t.DLQ", "w", BEGINNING)
    await watcher.subscribe("system.bus.dlq", "w", BEGINNING)
    await peer.subscribe("t", "g", BEGINNING)
    published = await world.connect().publish("t", {"a": [1]}, key="k", headers={"x": "1"})
    await peer.message()
    peer.nack("t", "g", 1, reason="boom")
    await settle()
    letter, notice = sorted((m["envelope"] for m in await watcher.messages()), key=lambda e: e["topic"], reverse=True)
    assert letter["payload"] == {"a": [1]}
    assert letter["key"] == "k"
    assert letter["headers"] == {
        "x": "1",
        "x-original-topic": "t",
        "x-original-partition": "0",
        "x-original-offset": "1",
        "x-original-id": published["id"],
        "x-original-ts": str(published["ts"]),
        "x-group": "g",
        "x-attempts": "1",
        "x-reason": "boom",
    }
    assert {"topic": "t", "partition": 0, "offset": 1, "group": "g"}.items() <= notice["payload"].items()
    assert await world.stored("t") == [{"a": [1]}]  # other groups still need it
    assert await world.committed("t", "g") == 1


@pytest.mark.parametrize("topic", ["t" * 255, "ü" * 127 + "t"], ids=["ascii", "unicode"])
@in_virtual_time
async def test_b19_events_of_a_topic_with_the_longest_name_can_die(world: World, topic: str) -> None:
    await world.create(topic, maxAttempts=1)
    peer, watcher = world.connect(), world.connect()
    await watcher.subscribe(f"{topic}.DLQ", "w", BEGINNING)
    await peer.publish(topic, "x")
    await peer.subscribe(topic, "g", BEGINNING)
    await peer.message()
    peer.nack(topic, "g", 1)
    await settle()
    assert (await watcher.message())["envelope"]["payload"] == "x"
    assert await world.committed(topic, "g") == 1
    await world.kill()
    assert await world.stored(f"{topic}.DLQ") == ["x"]


@in_virtual_time(max_topics=5)
async def test_b19_events_can_die_on_a_node_that_takes_no_more_topics(world: World) -> None:
    await world.create("t", maxAttempts=1)
    peer = world.connect()
    for n in range(3):
        peer.send({"type": "PUBLISH", "topic": f"other{n}", "payload": 1})
    await settle()
    assert {frame.get("code") for frame in peer.got} >= {"unavailable"}
    peer.got.clear()
    await peer.publish("t", "x")
    await peer.subscribe("t", "g", BEGINNING)
    await peer.message()
    peer.nack("t", "g", 1)
    assert await world.stored("t.DLQ") == ["x"]
    assert await world.committed("t", "g") == 1


@pytest.mark.parametrize("topic", ["t.DLQ", "system.mine"])
@in_virtual_time
async def test_b19_dead_letters_and_system_topics_have_no_dead_letters(world: World, topic: str) -> None:
    peer = world.connect()
    await peer.publish(topic, "x")
    await peer.subscribe(topic, "g", BEGINNING)
    for attempt in range(1, 12):
        assert (await peer.message())["attempt"] == attempt
        peer.nack(topic, "g", 1)
    assert world.bus.stats().dlq == 0


@in_virtual_time
async def test_b20_flow_is_a_gate_that_adds_up(world: World) -> None:
    peer = world.connect()
    await peer.publish_many("t", 50)
    peer.send({"type": "FLOW", "credits": 0})
    await peer.subscribe("t", "g", BEGINNING, max_inflight=32)
    assert await peer.offsets() == []
    peer.send({"type": "FLOW", "credits": 3})
    assert await peer.offsets() == [1, 2, 3]
    peer.ack("t", "g", 3)  # an acknowledgement gives no credit
    assert await peer.offsets() == []
    peer.send({"type": "FLOW", "credits": 50})
    assert await peer.offsets() == list(range(4, 36))
    for bad in (-1, 1.5, "a", True, None):
        assert (await peer.ask({"type": "FLOW", "credits": bad}))["code"] == "bad_frame"


@in_virtual_time
async def test_b21_a_filter_settles_what_it_keeps_out(world: World) -> None:
    peer = world.connect()
    for n in range(3):
        await peer.publish("t", n, key="a", headers={"ct": "json"})
        await peer.publish("t", n, key="b", headers={"ct": "text"})
    await peer.subscribe("t", "key", BEGINNING, filter={"key": "a"})
    await peer.subscribe("t", "header", BEGINNING, filter={"header": ["ct", "text"]})
    await peer.subscribe("t", "both", BEGINNING, filter={"key": "a", "header": ["ct", "text"]})
    seen: dict[str, list[int]] = {}
    for message in await peer.messages():
        seen.setdefault(message["group"], []).append(message["offset"])
    assert seen == {"key": [1, 3, 5], "header": [2, 4, 6]}
    peer.ack("t", "key", 5)
    assert await world.committed("t", "key") == 6
    assert await world.committed("t", "both") == 6


@pytest.mark.parametrize("window", [0, -1, 1.5, "a", True])
@in_virtual_time
async def test_b22_a_window_is_a_whole_number_above_0(world: World, window: Any) -> None:
    answer = await world.connect().ask({"type": "SUBSCRIBE", "topic": "t", "group": "g", "max_inflight": window})
    assert answer["code"] == "bad_frame"


@in_virtual_time
async def test_b22_the_window_is_per_subscription(world: World) -> None:
    peer = world.connect()
    await peer.publish_many("t", 5)
    await peer.subscribe("t", "g", BEGINNING, max_inflight=2)
    await peer.subscribe("t", "h", BEGINNING, max_inflight=3)
    assert sorted((m["group"], m["offset"]) for m in await peer.messages()) == [
        ("g", 1), ("g", 2), ("h", 1), ("h", 2), ("h", 3)
    ]  # fmt: skip


def test_b23_ids_are_uuids_of_version_7() -> None:
    import uuid_utils

    assert re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", str(uuid_utils.uuid7()))


@in_virtual_time
async def test_b24_an_envelope_has_the_listed_fields_and_no_nulls(world: World) -> None:
    peer = world.connect()
    await peer.subscribe("t", "g", BEGINNING)
    peer.send({"type": "PUBLISH", "topic": "t", "payload": None, "key": None})
    await settle()
    envelope = peer.got[-1]["envelope"]
    assert set(envelope) == {"id", "ts", "topic", "partition", "offset", "payload"}
    assert envelope["payload"] is None


@in_virtual_time
async def test_b27_a_topic_nobody_configured_works_on_the_memory_engine(world: World) -> None:
    assert isinstance(world.engine, MemoryEngine)
    assert (await world.connect().publish("never.heard.of", 1))["partition"] == 0


@in_virtual_time
async def test_b28_a_payload_hash_is_verified_when_given(world: World) -> None:
    import hashlib

    payload = {"b": [1, "ü"], "a": None}
    canonical = json.dumps(payload, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    digest = hashlib.sha256(canonical).hexdigest()
    peer = world.connect()
    assert (await peer.publish("t", payload, payload_sha256=digest))["offset"] == 1
    frame = {"type": "PUBLISH", "topic": "t", "payload": {"b": 2}, "payload_sha256": digest}
    assert (await peer.ask(frame))["code"] == "bad_frame"
    assert (await peer.publish("t", 1))["offset"] == 2
    batch = {"type": "PUBLISH_BATCH", "topic": "t", "events": [{"payload": payload, "payload_sha256": digest}]}
    assert (await peer.ask(batch))["offsets"] == [[0, 3]]
    assert (await peer.publish("t", payload, payload_sha256=digest, headers={"h": "1"}))["offset"] == 4
    await peer.subscribe("t", "g")
    got = [message["envelope"] for message in await peer.messages()]
    assert [event.get("payload_sha256") for event in got] == [digest, None, digest, digest]
    assert [event.get("headers") for event in got] == [None, None, None, {"h": "1"}]


@in_virtual_time
async def test_b29_the_connections_identity_beats_the_headers_and_deny_beats_allow(world: World) -> None:
    await world.create("t", publishACL={"allow": ["alice", "eve"], "deny": ["eve"]}, subscribeACL=["alice"])
    alice, bob, eve, nobody = (world.connect(name) for name in ("alice", "bob", "eve", None))
    publish = {"type": "PUBLISH", "topic": "t", "payload": 1}
    as_alice = {**publish, "headers": {"agent_id": "alice"}}
    assert (await bob.ask(as_alice))["code"] == "forbidden"
    assert (await eve.ask(publish))["code"] == "forbidden"
    assert (await nobody.ask(publish))["code"] == "forbidden"
    assert (await nobody.ask(as_alice))["offset"] == 1
    assert (await alice.ask(publish))["offset"] == 2
    assert (await bob.ask({"type": "SUBSCRIBE", "topic": "t", "group": "g"}))["code"] == "forbidden"
    assert (await bob.ask({"type": "PUBLISH", "topic": "system.bus.audit", "payload": 1}))["code"] == "forbidden"
    ack = {"type": "ACK", "topic": "t", "partition": 0, "group": "g", "offset": 1}
    assert (await bob.ask(ack))["code"] == "not_subscribed"
    await alice.subscribe("t", "g")
    assert (await bob.ask(ack))["code"] == "not_subscribed"
    assert await bob.messages() == []


@in_virtual_time(audit=False)
async def test_b30_the_numbers_are_wired_and_inflight_is_a_gauge(world: World) -> None:
    await world.create("t", maxAttempts=2)
    peer = world.connect()
    await peer.subscribe("t", "g", BEGINNING)
    await peer.publish_many("t", 3)
    await peer.messages()
    assert world.bus.stats().inflight == 3
    peer.ack("t", "g", 2)
    peer.nack("t", "g", 3)
    await peer.message()
    peer.nack("t", "g", 3)
    await settle()
    stats = msgspec.to_builtins(world.bus.stats())
    by_topic = stats.pop("byTopic")
    assert stats == {
        "published": 5,  # the dead letter and its notice are events too
        "delivered": 4,
        "acks": 2,
        "nacks": 2,
        "redeliveries": 1,
        "dlq": 1,
        "expired": 0,
        "damaged": 0,
        "inflight": 0,
        "connections": 1,
    }
    assert by_topic["t"] == {"pub": 3, "del": 4}
    peer.close()
    assert world.bus.stats().connections == 0


@in_virtual_time
async def test_b31_a_second_subscribe_changes_the_window(world: World) -> None:
    peer = world.connect()
    await peer.publish_many("t", 10)
    await peer.subscribe("t", "g", BEGINNING, max_inflight=2)
    assert await peer.offsets() == [1, 2]
    await peer.subscribe("t", "g", BEGINNING, max_inflight=5)
    assert await peer.offsets() == [3, 4, 5]
    await peer.subscribe("t", "other", BEGINNING, max_inflight=1)
    assert await peer.offsets() == [1]


@pytest.mark.parametrize("start", [{"kind": "offset", "value": 3}, {"kind": "timestamp", "value": WALL_MS + 3}])
@in_virtual_time
async def test_b31_what_a_second_subscribe_with_a_start_brings_comes_behind_its_ok(world: World, start: Any) -> None:
    peer = world.connect()
    for n in range(1, 6):
        await peer.publish("t", n)
        await settle(0.001)
    await peer.subscribe("t", "g", BEGINNING)
    assert len(await peer.messages()) == 5
    for _ in range(2):  # the second one is sent before the first is answered
        peer.send({"type": "SUBSCRIBE", "topic": "t", "group": "g", "from": start, "max_inflight": 2})
    await settle()
    assert [(frame["type"], frame.get("offset")) for frame in peer.got] == [
        ("OK", None),
        ("OK", None),
        ("MESSAGE", 3),
        ("MESSAGE", 4),
    ]


@in_virtual_time
async def test_b31_a_second_subscribe_that_is_refused_changes_nothing(world: World) -> None:
    peer = world.connect()
    await peer.subscribe("t", "g", BEGINNING, max_inflight=1)
    refused = {"type": "SUBSCRIBE", "topic": "t", "group": "g", "from": {"kind": "timestamp"}, "max_inflight": 9}
    assert (await peer.ask(refused))["code"] == "bad_frame"
    await peer.publish_many("t", 3)
    assert await peer.offsets() == [1]
    peer.ack("t", "g", 1)
    assert await peer.offsets() == [2]


@in_virtual_time
async def test_b35_partitions_only_grow_and_a_new_one_starts_at_1(world: World) -> None:
    peer = world.connect()
    await world.create("t", partitions=2)
    await peer.subscribe("t", "g", LATEST)
    with pytest.raises(Conflict):
        await world.create("t", partitions=1)
    await world.create("t", partitions=5)
    for n in range(20):
        await world.connect().publish("t", n, key=f"k{n}")
    assert {m["partition"] for m in await peer.messages()} == {0, 1, 2, 3, 4}


@in_virtual_time
async def test_b36_published_comes_before_the_message_of_the_same_event(world: World) -> None:
    peer = world.connect()
    await peer.subscribe("t", "g", LATEST)
    for n in range(3):
        peer.send({"type": "PUBLISH", "topic": "t", "payload": n, "corr": n})
    await settle()
    kinds = [(frame["type"], frame["offset"]) for frame in peer.got]
    for offset in (1, 2, 3):
        assert kinds.index(("PUBLISHED", offset)) < kinds.index(("MESSAGE", offset))
    assert [frame["corr"] for frame in peer.got if frame["type"] == "PUBLISHED"] == [0, 1, 2]


@in_virtual_time
async def test_b36_a_subscribe_sent_behind_publishes_is_answered_behind_them(world: World) -> None:
    peer = world.connect()
    for n in range(3):
        peer.send({"type": "PUBLISH", "topic": "t", "payload": n})
    peer.send({"type": "SUBSCRIBE", "topic": "t", "group": "g", "from": LATEST})
    peer.send({"type": "PUBLISH", "topic": "t", "payload": "after"})
    await settle()
    assert [frame["type"] for frame in peer.got] == ["PUBLISHED"] * 3 + ["OK", "PUBLISHED", "MESSAGE"]
    assert peer.got[-1]["offset"] == 4


def test_the_beginning_is_a_start_like_any_other() -> None:
    assert Start("offset", 0) == START
