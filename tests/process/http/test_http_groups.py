"""Groups, dead letters and schedules are seen, moved, sent again and deleted over HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.support.http_site import Site


class Consumer:
    """A session of the bus without a socket: frames in, frames out."""

    def __init__(self, site: Site, agent: str | None = None) -> None:
        self.frames: list[dict[str, Any]] = []
        self._arrived = asyncio.Event()
        self.session = site.bus.open_session(agent, self._take)

    def _take(self, frame: bytes) -> None:
        self.frames.append(json.loads(frame))
        self._arrived.set()

    def send(self, type: str, **fields: Any) -> None:
        self.session.receive(json.dumps({"type": type, **fields}).encode())

    async def next(self, type: str) -> dict[str, Any]:
        while True:
            for index, frame in enumerate(self.frames):
                if frame["type"] == type:
                    return self.frames.pop(index)
            self._arrived.clear()
            await asyncio.wait_for(self._arrived.wait(), 60)


@asynccontextmanager
async def consumer(site: Site, topic: str, group: str, **options: Any) -> AsyncIterator[Consumer]:
    made = Consumer(site)
    made.send("SUBSCRIBE", topic=topic, group=group, **{"from": {"kind": "offset", "value": 0}}, **options)
    await made.next("OK")
    try:
        yield made
    finally:
        made.session.close()


async def eventually(check: Callable[[], Any], what: str) -> Any:
    for _ in range(500):
        found = check()
        if asyncio.iscoroutine(found):
            found = await found
        if found:
            return found
        await asyncio.sleep(0.01)
    raise AssertionError(f"waited in vain for {what}")


async def committed(site: Site, topic: str, group: str) -> int:
    reply = await site.get(f"/groups/{topic}/{group}")
    return int(reply.json["partitions"][0]["lastCommitted"]) if reply.status == 200 else -1


async def bury(site: Site, topic: str, *payloads: Any, group: str = "g", reason: str = "boom") -> None:
    """Publish events and let the group give up on each of them."""
    async with consumer(site, topic, group) as reader:
        for payload in payloads:
            await site.publish(topic, payload, key=f"k-{payload}")
            message = await reader.next("MESSAGE")
            place = {name: message[name] for name in ("topic", "partition", "group", "offset")}
            reader.send("NACK", **place, reason=reason)
        await eventually(
            lambda: _letters_of(site, topic, group, len(payloads)), f"{len(payloads)} dead letters of {topic}"
        )


async def _letters_of(site: Site, topic: str, group: str, count: int) -> bool:
    reply = await site.get(f"/dlq/{topic}?group={group}")
    return reply.status == 200 and len(reply.json["letters"]) >= count


# --- groups


async def test_a_group_is_listed_shown_and_deleted(each_engine: Site) -> None:
    site = each_engine
    await site.publish("t", 1, 2, 3)
    async with consumer(site, "t", "g", max_inflight=2) as reader:
        for _ in range(2):
            message = await reader.next("MESSAGE")
        reader.send("ACK", topic="t", partition=0, group="g", offset=1)
        await eventually(lambda: _is(site, 1), "the commit")
        await reader.next("MESSAGE")
        shown = (await site.get("/groups/t/g")).json
        assert (shown["members"], shown["lag"], shown["inflight"]) == (1, 2, 2)
        assert shown["partitions"] == [{"partition": 0, "lastCommitted": 1, "lag": 2, "inflight": 2}]
        assert shown.pop("oldest") > 0
        for address in ("/groups", "/groups?topic=t"):
            (listed,) = (await site.get(address)).json["groups"]
            for measured in ("oldest", "rate"):  # they come with the next sample
                listed.pop(measured, None)
            assert listed == shown
        (member,) = (await site.get("/groups/t/g/members")).json["members"]
        assert member.pop("since") >= message["envelope"]["ts"]
        assert member == {"agent": "", "address": "", "program": False, "node": "", "inflight": 2}
        busy = await site.request("DELETE", "/groups/t/g")
        assert (busy.status, busy.problem["code"]) == (409, "conflict")
        assert message["offset"] == 2
    assert (await site.request("DELETE", "/groups/t/g")).status == 204
    assert (await site.get("/groups/t/g")).problem["code"] == "unknown_group"
    assert (await site.get("/groups/t/g/members")).problem["code"] == "unknown_group"
    assert (await site.request("DELETE", "/groups/t/g")).status == 404


async def _is(site: Site, value: int) -> bool:
    return await committed(site, "t", "g") == value


async def test_a_group_is_moved_forwards_and_backwards(each_engine: Site) -> None:
    site = each_engine
    await site.publish("t", 1, 2, 3, 4)
    async with consumer(site, "t", "g") as reader:
        for _ in range(4):
            message = await reader.next("MESSAGE")
        reader.send("ACK", **{name: message[name] for name in ("topic", "partition", "group", "offset")})
        await eventually(lambda: _is(site, 4), "the commit")
    moved = await site.post("/groups/t/g/seek", {"kind": "offset", "value": 2})
    assert moved.status == 200
    assert moved.json["group"] == "g"
    again = Consumer(site)
    again.send("SUBSCRIBE", topic="t", group="g")
    assert [(await again.next("MESSAGE"))["offset"] for _ in range(3)] == [2, 3, 4]
    again.session.close()
    await site.publish("t", 5, 6)
    assert (await site.post("/groups/t/g/seek", {"kind": "latest"})).status == 200
    late = Consumer(site)
    late.send("SUBSCRIBE", topic="t", group="g")
    await late.next("OK")
    await site.publish("t", 7)
    assert (await late.next("MESSAGE"))["offset"] == 7
    late.session.close()


@pytest.mark.parametrize(
    "body",
    [
        "",
        "{}",
        "[]",
        '{"kind":"sideways"}',
        '{"kind":"offset","value":-1}',
        '{"kind":"offset","value":1.5}',
        '{"kind":"offset","value":true}',
        '{"kind":"timestamp"}',
        '{"kind":"latest","value":1,"extra":2}',
        '{"kind":"latest","kind":"offset"}',
    ],
)
async def test_a_seek_to_nowhere_is_refused(site: Site, body: str) -> None:
    await site.publish("t", 1)
    async with consumer(site, "t", "g"):
        refused = await site.post("/groups/t/g/seek", body)
        assert refused.status == 400
        assert refused.problem["code"] in ("bad_json", "bad_frame")


async def test_a_group_nobody_knows_is_404(site: Site) -> None:
    await site.publish("t", 1)
    assert (await site.get("/groups/t/nobody")).problem["code"] == "unknown_group"
    assert (await site.get("/groups/nobody/g")).status == 404
    assert (await site.post("/groups/t/nobody/seek", {"kind": "latest"})).problem["code"] == "unknown_group"


async def test_names_with_slashes_and_colons_address_their_group(site: Site) -> None:
    await site.publish("a/b", 1)
    async with consumer(site, "a/b", "c:d/e"):
        shown = await site.get("/groups/a%2Fb/c:d%2Fe")
        assert (shown.json["topic"], shown.json["group"]) == ("a/b", "c:d/e")


async def test_only_who_may_subscribe_moves_or_deletes_a_group(site: Site) -> None:
    await site.post("/topics", {"topic": "t", "subscribeACL": ["alice"]})
    reader = Consumer(site, "alice")
    reader.send("SUBSCRIBE", topic="t", group="g")
    await reader.next("OK")
    reader.session.close()
    assert (await site.post("/groups/t/g/seek?agent_id=bob", {"kind": "latest"})).status == 403
    assert (await site.request("DELETE", "/groups/t/g?agent_id=bob")).status == 403
    assert (await site.request("DELETE", "/groups/t/g?agent_id=alice")).status == 204


# --- dead letters


async def test_dead_letters_tell_where_they_came_from_and_why(each_engine: Site) -> None:
    site = each_engine
    await site.post("/topics", {"topic": "t", "maxAttempts": 1})
    await bury(site, "t", "p1", "p2")
    (listed,) = (await site.get("/dlq")).json["topics"]
    assert (listed["topic"], listed["deadLetterTopic"], listed["count"]) == ("t", "t.DLQ", 2)
    letters = (await site.get("/dlq/t")).json["letters"]
    assert [letter["payload"] for letter in letters] == ["p1", "p2"]
    first = letters[0]
    assert (first["group"], first["reason"], first["attempts"], first["key"]) == ("g", "boom", 1, "k-p1")
    assert (first["originalTopic"], first["originalPartition"], first["originalOffset"]) == ("t", 0, 1)
    assert (await site.get(f"/dlq/t/{first['offset']}")).json == first
    assert (await site.get("/dlq/t/99")).problem["code"] == "unknown_event"


async def test_dead_letters_are_filtered_and_paged(site: Site) -> None:
    await site.post("/topics", {"topic": "t", "maxAttempts": 1})
    await bury(site, "t", *range(5), reason="disk full")
    page = (await site.get("/dlq/t?limit=2")).json
    assert [letter["payload"] for letter in page["letters"]] == [0, 1]
    rest = (await site.get(f"/dlq/t?offset={page['next']}")).json
    assert [letter["payload"] for letter in rest["letters"]] == [2, 3, 4]
    assert "next" not in rest
    assert [x["payload"] for x in (await site.get("/dlq/t?key=k-3")).json["letters"]] == [3]
    assert len((await site.get("/dlq/t?reason=full")).json["letters"]) == 5
    assert (await site.get("/dlq/t?reason=fire")).json["letters"] == []
    assert (await site.get("/dlq/t?group=other")).json["letters"] == []
    for bad in ("limit=0", "limit=a", "limit=99999", "offset=-1", "grp=g"):
        assert (await site.get(f"/dlq/t?{bad}")).problem["code"] == "bad_query"


async def test_dead_letters_are_sent_again_once(each_engine: Site) -> None:
    site = each_engine
    await site.post("/topics", {"topic": "t", "maxAttempts": 1})
    await bury(site, "t", "a", "b", "c")
    some = await site.post("/dlq/t/redrive", {"key": "k-b"})
    assert (some.status, some.json["count"]) == (200, 1)
    assert [letter["payload"] for letter in (await site.get("/dlq/t")).json["letters"]] == ["a", "c"]
    rest = await site.request("POST", "/dlq/t/redrive", headers={"Content-Type": "application/json"})
    assert rest.json["count"] == 2
    assert (await site.get("/dlq/t")).json["letters"] == []
    assert (await site.post("/dlq/t/redrive", {})).json == {"topic": "t", "count": 0, "events": []}
    assert [event["payload"] for event in await site.events("t")] == ["a", "b", "c"]
    assert [each["offset"] for each in [*some.json["events"], *rest.json["events"]]] == [2, 1, 3]
    assert [listed["count"] for listed in (await site.get("/dlq")).json["topics"]] == [0]


async def test_dead_letters_are_sent_to_all_groups_when_asked_for(each_engine: Site) -> None:
    site = each_engine
    await site.post("/topics", {"topic": "t", "maxAttempts": 1})
    await bury(site, "t", "a", "b")
    sent = (await site.post("/dlq/t/redrive", {"toAll": True})).json
    events = await site.events("t")
    assert [event["payload"] for event in events] == ["a", "b", "a", "b"]
    assert [event["id"] for event in events[:2]] == [event["id"] for event in events[2:]]
    assert [each["offset"] for each in sent["events"]] == [3, 4]


async def test_dead_letters_are_dropped(each_engine: Site) -> None:
    site = each_engine
    await site.post("/topics", {"topic": "t", "maxAttempts": 1})
    await bury(site, "t", "a", "b", "c", "d")
    assert (await site.post("/dlq/t/drop", {"key": "k-b"})).json == {"topic": "t", "count": 1}
    assert (await site.post("/dlq/t/drop", {"offsets": [3, 9]})).json["count"] == 1
    for nothing in ("{}", '{"all":false}', "", "[]"):
        assert (await site.post("/dlq/t/drop", nothing)).status == 400
    assert [letter["payload"] for letter in (await site.get("/dlq/t")).json["letters"]] == ["a", "d"]
    assert (await site.post("/dlq/t/drop", {"all": True})).json["count"] == 2
    assert [listed["count"] for listed in (await site.get("/dlq")).json["topics"]] == [0]


async def test_a_redrive_by_offset_and_limit(site: Site) -> None:
    await site.post("/topics", {"topic": "t", "maxAttempts": 1})
    await bury(site, "t", *range(4))
    letters = (await site.get("/dlq/t")).json["letters"]
    assert (await site.post("/dlq/t/redrive", {"offsets": [letters[2]["offset"], 999]})).json["count"] == 1
    assert (await site.post("/dlq/t/redrive", {"limit": 2})).json["count"] == 2
    assert [letter["payload"] for letter in (await site.get("/dlq/t")).json["letters"]] == [3]


@pytest.mark.parametrize(
    "body",
    ["[]", '{"offsets":[]}', '{"offsets":[0]}', '{"offsets":["1"]}', '{"limit":0}', '{"all":true}', '{"group":1}'],
)
async def test_a_redrive_of_nonsense_moves_nothing(site: Site, body: str) -> None:
    await site.post("/topics", {"topic": "t", "maxAttempts": 1})
    await bury(site, "t", 1)
    assert (await site.post("/dlq/t/redrive", body)).status == 400
    assert len((await site.get("/dlq/t")).json["letters"]) == 1


async def test_dead_letters_are_as_private_as_their_topic(site: Site) -> None:
    await site.post("/topics", {"topic": "t", "maxAttempts": 1})
    await bury(site, "t", "secret")
    await site.post(
        "/topics", {"topic": "t", "maxAttempts": 1, "publishACL": ["alice"], "subscribeACL": ["alice", "carl"]}
    )
    for path in ("/dlq/t", "/dlq/t/1"):
        assert (await site.get(f"{path}?agent_id=bob")).status == 403
        assert (await site.get(f"{path}?agent_id=carl")).status == 200
    assert (await site.get("/dlq?agent_id=bob")).json["topics"] == []
    assert (await site.post("/dlq/t/redrive?agent_id=carl", {})).status == 403
    assert (await site.post("/dlq/t/drop?agent_id=carl", {"all": True})).status == 403
    assert (await site.post("/dlq/t/redrive?agent_id=alice", {})).json["count"] == 1


async def test_a_topic_without_dead_letters_has_none(site: Site) -> None:
    await site.publish("t", 1)
    assert (await site.get("/dlq/t")).json == {"letters": []}
    assert (await site.get("/dlq/nobody")).status == 404


# --- schedules


async def test_a_schedule_is_made_shown_replaced_and_forgotten(each_engine: Site) -> None:
    site = each_engine
    body = {"name": "tick/1", "topic": "t", "payload": {"n": 1}, "every": 60_000, "key": "k", "headers": {"h": "v"}}
    made = await site.post("/schedules", body)
    assert made.status == 201
    assert body.items() <= made.json.items()
    assert made.json["nextMs"] > 0
    assert (await site.get("/schedules")).json["schedules"] == [made.json]
    assert (await site.get("/schedules/tick%2F1")).json == made.json
    replaced = await site.post("/schedules", {"name": "tick/1", "topic": "t", "payload": 2, "cron": "0 0 * * *"})
    assert (replaced.status, replaced.json["cron"]) == (201, "0 0 * * *")
    assert "every" not in replaced.json
    assert (await site.request("DELETE", "/schedules/tick%2F1")).status == 204
    assert (await site.request("DELETE", "/schedules/tick%2F1")).problem["code"] == "unknown_schedule"
    assert (await site.get("/schedules")).json["schedules"] == []


async def test_a_schedule_is_paused_resumed_and_run_now(each_engine: Site) -> None:
    site = each_engine
    zone = {"timezone": "Europe/Berlin", "jitter": 1_000, "overlap": "skip"}
    made = await site.post("/schedules", {"name": "a/b", "topic": "t", "payload": 1, "cron": "0 3 * * *", **zone})
    assert zone.items() <= made.json.items()
    assert (await site.post("/schedules/a%2Fb/pause", {})).json["paused"]
    assert (await site.get("/schedules/a%2Fb")).json["paused"]
    ran = (await site.post("/schedules/a%2Fb/run", {})).json
    assert (ran["topic"], ran["offset"]) == ("t", 1)
    assert [each["payload"] for each in await site.events("t")] == [1]
    resumed = (await site.post("/schedules/a%2Fb/resume", {})).json
    assert (resumed["nextMs"], resumed["lastMs"], "paused" in resumed) == (made.json["nextMs"], ran["ts"], False)
    for verb in ("pause", "resume", "run"):
        refused = await site.post(f"/schedules/nobody/{verb}", {})
        assert (refused.status, refused.problem["code"]) == (404, "unknown_schedule")


async def test_only_who_may_publish_to_its_topic_changes_a_schedule(site: Site) -> None:
    await site.post("/topics", {"topic": "t", "publishACL": ["alice"]})
    body = {"name": "s", "topic": "t", "payload": 1, "every": 60_000}
    assert (await site.post("/schedules?agent_id=alice", body)).status == 201
    for verb in ("pause", "resume", "run"):
        assert (await site.post(f"/schedules/s/{verb}?agent_id=bob", {})).status == 403
        assert (await site.post(f"/schedules/s/{verb}?agent_id=alice", {})).status == 200


async def test_a_schedule_publishes(site: Site) -> None:
    await site.publish("t", "first")
    await site.post("/schedules", {"name": "s", "topic": "t", "payload": {"b": 1}, "every": 100})

    async def two() -> bool:
        return len(await site.events("t")) >= 3

    await eventually(two, "two firings")
    assert (await site.request("DELETE", "/schedules/s")).status == 204


@pytest.mark.parametrize(
    "change",
    [
        {"every": None},
        {"cron": "* * * * *"},
        {"every": None, "cron": "not a cron"},
        {"every": None, "cron": "* * *"},
        {"every": None, "cron": "99 * * * *"},
        {"every": 0},
        {"every": 1},
        {"every": -1},
        {"every": "5"},
        {"name": ""},
        {"name": "two words"},
        {"topic": ""},
        {"topic": 5},
        {"key": 5},
        {"unknown": 1},
        {"nextMs": 5},
    ],
    ids=json.dumps,
)
async def test_a_schedule_that_cannot_be_is_refused(site: Site, change: dict[str, Any]) -> None:
    body = {"name": "s", "topic": "t", "payload": 1, "every": 60_000, **change}
    refused = await site.post("/schedules", body)
    assert refused.status == 400
    assert (await site.get("/schedules")).json["schedules"] == []


async def test_only_who_may_publish_makes_or_forgets_a_schedule(site: Site) -> None:
    await site.post("/topics", {"topic": "t", "publishACL": ["alice"]})
    body = {"name": "s", "topic": "t", "payload": 1, "every": 60_000}
    assert (await site.post("/schedules?agent_id=bob", body)).status == 403
    assert (await site.post("/schedules?agent_id=alice", body)).status == 201
    assert (await site.request("DELETE", "/schedules/s?agent_id=bob")).status == 403
    system = {**body, "name": "x", "topic": "system.bus.audit"}
    assert (await site.post("/schedules", system)).status == 403
