"""The bus as messages: what a script with nothing but a socket can do with it."""

from __future__ import annotations

from typing import Any

import pytest

from mainspring import App, Event, Fail
from mainspring.testing import World


@pytest.fixture
def app() -> App:
    app = App("shop")

    @app.consumer("orders", group="billing", max_attempts=1)
    async def bill(event: Event[Any]) -> None:
        if event.payload == "bad":
            raise ValueError("bad")

    return app


async def test_what_is_published_is_read_page_by_page(world: World) -> None:
    first = await world.command("Bus.Publish", {"topic": "notes", "payload": {"n": 0}, "key": "k"})
    assert (first["topic"], first["partition"], first["offset"]) == ("notes", 0, 1)
    for n in range(1, 60):
        await world.command("Bus.Publish", {"topic": "notes", "payload": {"n": n, "text": "x" * 500}})
    read: list[int] = []
    offset = 1
    while True:
        page = await world.query("Bus.Read", {"topic": "notes", "offset": offset, "limit": 1000})
        if not page["events"]:
            break
        read += [event["payload"]["n"] for event in page["events"]]
        offset = page["next"]
    assert read == list(range(60))
    assert world.events("notes")[0].headers["x-causation"]


async def test_topics_offsets_groups_and_numbers_can_be_asked(world: World) -> None:
    created = await world.command("Bus.CreateTopic", {"topic": "orders", "settings": {"partitions": 2}})
    assert created == {"settings": {"topic": "orders", "partitions": 2}, "created": False}
    await world.command("Bus.Publish", {"topic": "orders", "payload": 1, "key": "a"})
    await world.advance("1s")
    topics = await world.query("Bus.Topics", {})
    assert {"topic": "orders", "partitions": 2} in topics["topics"]
    assert topics["more"] is False
    offsets = await world.query("Bus.Offsets", {"topic": "orders"})
    assert sorted(each["tail"] for each in offsets["partitions"]) == [0, 1]
    (group,) = (await world.query("Bus.Groups", {"topic": "orders"}))["groups"]
    assert (group["group"], group["members"]) == ("billing", 1)
    assert (await world.query("Bus.Stats", {}))["published"] == 1


async def test_dead_letters_are_looked_at_and_sent_back(world: World) -> None:
    await world.publish("orders", "bad")
    await world.advance("1s")
    (letter,) = (await world.query("Bus.DeadLetters", {"topic": "orders"}))["letters"]
    assert letter["reason"] == "ValueError: bad"
    assert await world.command("Bus.Redrive", {"topic": "orders", "group": "nobody"}) == {"count": 0}
    assert await world.command("Bus.Redrive", {"topic": "orders"}) == {"count": 1}
    await world.advance("1s")
    assert len(world.events("orders")) == 1
    assert await world.command("Bus.Redrive", {"topic": "orders", "toAll": True}) == {"count": 1}
    await world.advance("1s")
    assert len(world.events("orders")) == 2
    with pytest.raises(Fail, match="which dead letters"):
        await world.command("Bus.DropDeadLetters", {"topic": "orders"})
    assert await world.command("Bus.DropDeadLetters", {"topic": "orders", "all": True}) == {"count": 1}
    assert (await world.query("Bus.DeadLetters", {"topic": "orders"}))["letters"] == []


async def test_a_group_is_moved_and_forgotten(world: World) -> None:
    await world.publish("orders", 1)
    moved = await world.command("Bus.Seek", {"topic": "orders", "group": "billing", "kind": "offset", "value": 1})
    assert moved["group"] == "billing"
    with pytest.raises(Fail) as caught:
        await world.command("Bus.DeleteGroup", {"topic": "orders", "group": "billing"})
    assert caught.value.code == 409


async def test_schedules_are_made_and_ended(world: World) -> None:
    planned = await world.command("Bus.Schedule", {"name": "tick", "topic": "ticks", "payload": 1, "every": 1000})
    assert planned["next"] == world.now_ms + 1000
    await world.advance("3s")
    assert world.events("ticks").payloads == [1, 1, 1]
    listed = (await world.query("Bus.Schedules", {}))["schedules"]
    assert [each["name"] for each in listed] == ["tick"]
    await world.command("Bus.Unschedule", {"name": "tick"})
    await world.advance("3s")
    assert len(world.events("ticks")) == 3


@pytest.mark.parametrize(
    ("kind", "type", "data", "code"),
    [
        ("query", "Bus.Read", {"topic": "nothing"}, 404),
        ("query", "Bus.Offsets", {"topic": "nothing"}, 404),
        ("command", "Bus.Publish", {"topic": "no spaces", "payload": 1}, 422),
        ("command", "Bus.Unschedule", {"name": "nothing"}, 404),
        ("command", "Bus.Schedule", {"name": "x", "topic": "t"}, 422),
        ("command", "Bus.CreateTopic", {"topic": "t", "settings": {"what": 1}}, 422),
    ],
)
async def test_what_cannot_be_done_says_so(world: World, kind: str, type: str, data: Any, code: int) -> None:
    with pytest.raises(Fail) as caught:
        await world.send(kind, type, data)
    assert caught.value.code == code


async def test_describe_shows_every_message_of_the_bus_with_a_description(world: World) -> None:
    page, types = 0, []
    while True:
        answer = await world.query("Syscall.List", {"page": page})
        types += answer["types"]
        page += 1
        if page >= answer["pages"]:
            break
    ours = [each for each in types if each["type"].startswith("Bus.")]
    assert len(ours) == 29
    assert all(each["description"] and not each["description"].startswith("Handles") for each in ours)
