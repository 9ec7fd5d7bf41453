"""What a user of Kafka, SQS or Celery-batches expects of a consumer of batches."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mainspring import App, Event, Reject
from mainspring.kernel import CapabilityError
from mainspring.testing import simulate
from tests.expectations.conftest import Start


def summing() -> App:
    app = App("shop")

    @app.consumer("orders", batch=10, wait="20ms")
    async def store(events: list[Event[int]]) -> None:
        for event in events:
            event.publish("stored", event.payload)

    return app


async def test_a_function_gets_many_events_at_once_and_all_are_handled(start: Start) -> None:
    app, sizes = App("shop"), []

    @app.consumer("orders", batch=10, wait="20ms")
    async def store(events: list[Event[int]]) -> None:
        sizes.append(len(events))
        for event in events:
            event.publish("stored", event.payload)

    async with start(app) as node:
        await node.publish_many("orders", range(35))
        await node.comes("stored", *range(35))
        assert sum(sizes) == 35
        assert max(sizes) == 10


async def test_a_batch_that_is_not_full_does_not_wait_longer_than_said(start: Start) -> None:
    async with start(summing()) as node:
        await node.publish("orders", 1)
        await node.comes("stored", 1)


async def test_every_event_of_every_batch_is_handled_once_over_a_crash(start: Start) -> None:
    async with start(summing) as node:
        await node.publish_many("orders", range(50))
        await node.crash()
        await node.comes("stored", *range(50))


async def test_raising_refuses_all_of_them_each_with_its_own_attempt(start: Start) -> None:
    app, attempts = App("shop"), []

    @app.consumer("orders", batch=3, wait="20ms", backoff="10ms", max_attempts=2)
    def store(events: list[Event[int]]) -> None:
        attempts.extend((event.payload, event.attempt) for event in events)
        raise ValueError("the database is closed")

    async with start(app) as node:
        await node.publish_many("orders", range(3))
        letters = await node.until(lambda: _when(node.dead_letters("orders"), 3))
        assert {letter["reason"] for letter in letters} == {"ValueError: the database is closed"}
        assert sorted(attempts) == [(number, attempt) for number in range(3) for attempt in (1, 2)]


async def test_single_events_are_refused_and_rejected_and_the_others_acknowledged(start: Start) -> None:
    app = App("shop")

    @app.consumer("orders", batch=5, wait="20ms")
    async def store(events: list[Event[int]]) -> None:
        for event in events:
            event.publish("stored", event.payload)  # of those that are refused nothing is stored
            if event.payload == 1 and event.attempt == 1:
                event.nack("later", delay="10ms")
            if event.payload == 2:
                event.reject("sold out")

    async with start(app) as node:
        await node.publish_many("orders", range(5))
        await node.comes("stored", 0, 1, 3, 4)
        (letter,) = await node.until(lambda: node.dead_letters("orders"))
        assert letter["reason"] == "sold out"


async def test_a_payload_that_does_not_fit_stands_in_nobodys_way(start: Start) -> None:
    app = App("shop")

    @app.consumer("orders", batch=3, wait="20ms", max_attempts=1)
    async def store(events: list[Event[int]]) -> None:
        for event in events:
            event.publish("stored", event.payload)

    async with start(app) as node:
        await node.publish_many("orders", [1, "two", 3])
        await node.comes("stored", 1, 3)
        (letter,) = await node.until(lambda: node.dead_letters("orders"))
        assert "the payload does not fit" in letter["reason"]


async def test_reject_gives_up_all_of_a_batch(start: Start) -> None:
    app = App("shop")

    @app.consumer("orders", batch=2, wait="20ms")
    async def store(events: list[Event[int]]) -> None:
        raise Reject("closed for ever")

    async with start(app) as node:
        await node.publish_many("orders", range(2))
        letters = await node.until(lambda: _when(node.dead_letters("orders"), 2))
        assert {letter["reason"] for letter in letters} == {"closed for ever"}


async def test_what_a_batch_publishes_is_one_commit_with_its_acknowledgements() -> None:
    app, commits = App("shop"), []

    @app.consumer("orders", batch=10, wait="20ms")
    async def store(events: list[Event[int]]) -> None:
        for event in events:
            event.publish("stored", event.payload)

    async with simulate(app) as world:
        submit = world.node.log.submit

        def noted(batch: Any, done: Any) -> None:
            appended = [each for each in batch.operations if getattr(each, "topic", "") == "stored"]
            if appended:
                kept = [each for each in batch.operations if getattr(each, "space", "") == "groups"]
                commits.append((len(appended), len(kept)))
            submit(batch, done)

        world.node.log.submit = noted  # type: ignore[method-assign]
        for number in range(10):
            await world.publish("orders", number)
        await world.until(lambda: len(world.events("stored")) == 10)
        assert commits == [(10, 1)]
        assert world.lag("orders", "shop.store") == 0


def test_a_mistake_is_refused_where_it_is_written() -> None:
    app = App("shop")
    with pytest.raises(CapabilityError, match=r"gets list\[Event\[Order\]\]"):

        @app.consumer("orders", batch=10)
        async def one(event: Event[int]) -> None: ...

    with pytest.raises(CapabilityError, match=r"gets Event\[Order\]"):

        @app.consumer("orders")
        async def many(events: list[Event[int]]) -> None: ...

    with pytest.raises(CapabilityError, match="batch is 1 or more"):

        @app.consumer("orders", batch=0)
        async def none(events: list[Event[int]]) -> None: ...


async def _when(found: Any, count: int) -> list[Any]:
    held = list(await found)
    return held if len(held) == count else []


async def test_a_node_that_stops_handles_what_was_collected() -> None:
    app, seen = App("shop"), []

    @app.consumer("orders", batch=10, wait="1h")
    async def store(events: list[Event[int]]) -> None:
        await asyncio.sleep(0)
        seen.append([event.payload for event in events])

    async with simulate(app) as world:
        await world.publish("orders", 1)
        await world.publish("orders", 2)
        await world.advance("10m")  # their leases are kept meanwhile
        assert seen == []
    assert seen == [[1, 2]]
