"""Consuming with a function: policies, failures, hangs, time limits, stopping. Against a real node."""

from __future__ import annotations

import asyncio

import pytest

from mainspring.client import Client, Event, NodeRefused, ReplyError, TimedOut, connect
from tests.support.client_node import Node, eventually


@pytest.fixture
async def bus(node: Node) -> Client:
    async with connect(node.url) as client:
        yield client


async def test_every_event_is_handled_and_acknowledged(bus: Client, name: str) -> None:
    seen: list[int] = []

    async def handle(event: Event[int]) -> None:
        seen.append(event.payload)

    consumer = bus.consume(name, handle, group="g")
    await bus.publish_many(name, range(200))
    await eventually(lambda: settled(bus, name))
    assert seen == list(range(200))
    await consumer.stop()


async def test_a_consumer_stops_at_the_end_of_its_block(bus: Client, name: str) -> None:
    seen: list[int] = []

    async def handle(event: Event[int]) -> None:
        seen.append(event.payload)

    async with bus.consume(name, handle, group="g"):
        await bus.publish(name, 1)
        await eventually(lambda: settled(bus, name))
    await bus.publish(name, 2)
    assert seen == [1]
    assert await bus.lag(name, "g") == 1


async def settled(bus: Client, topic: str, group: str = "g") -> bool:
    return await bus.lag(topic, group) == 0


async def test_as_many_at_a_time_as_was_asked_for(bus: Client, name: str) -> None:
    running = most = 0

    async def handle(_: Event[int]) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1

    consumer = bus.consume(name, handle, group="g", concurrency=5)
    await bus.publish_many(name, range(50))
    await eventually(lambda: settled(bus, name))
    assert most == 5
    await consumer.stop()


async def test_a_handler_that_raises_gets_its_event_again_and_then_it_is_a_dead_letter(bus: Client, name: str) -> None:
    await bus.put_topic(name, maxAttempts=3)
    attempts: list[int] = []

    async def handle(event: Event[str]) -> None:
        attempts.append(event.attempt)
        raise ValueError("boom")

    consumer = bus.consume(name, handle, group="g", retry_delay=lambda attempt: 0.01 * attempt)
    async with bus.subscribe(f"{name}.DLQ", group="watch") as letters:
        await bus.publish(name, "x")
        letter = await letters.get(60)
    assert attempts == [1, 2, 3]
    assert letter.payload == "x"
    assert letter.headers["x-reason"] == "ValueError: boom"
    assert consumer.failures == 3
    await consumer.stop()


async def test_a_handler_that_hangs_is_ended_by_its_time_limit(bus: Client, name: str) -> None:
    seen: list[int] = []

    async def handle(event: Event[str]) -> None:
        seen.append(event.attempt)
        if event.attempt == 1:
            await asyncio.Event().wait()

    consumer = bus.consume(name, handle, group="g", timeout=0.1, retry_delay=0.0)
    await bus.publish(name, "x")
    await eventually(lambda: settled(bus, name))
    assert seen == [1, 2]
    await consumer.stop()


async def test_a_slow_handler_keeps_its_lease(bus: Client, name: str) -> None:
    await bus.put_topic(name, ackTimeoutMs=2_000)
    seen: list[int] = []

    async def handle(event: Event[str]) -> None:
        seen.append(event.attempt)
        await asyncio.sleep(4)

    consumer = bus.consume(name, handle, group="g", lease=2)
    await bus.publish(name, "x")
    await eventually(lambda: settled(bus, name))
    assert seen == [1]
    await consumer.stop()


async def test_stopping_lets_running_handlers_finish(bus: Client, name: str) -> None:
    begun, done = asyncio.Event(), asyncio.Event()

    async def handle(_: Event[str]) -> None:
        begun.set()
        await asyncio.sleep(0.2)
        done.set()

    consumer = bus.consume(name, handle, group="g")
    await bus.publish(name, "x")
    await begun.wait()
    await consumer.stop()
    assert done.is_set()
    await eventually(lambda: settled(bus, name))


async def test_a_handler_that_does_not_finish_is_cancelled_and_its_event_given_back(bus: Client, name: str) -> None:
    begun = asyncio.Event()

    async def handle(_: Event[str]) -> None:
        begun.set()
        await asyncio.Event().wait()

    consumer = bus.consume(name, handle, group="g")
    await bus.publish(name, "x")
    await begun.wait()
    await consumer.stop(timeout=0.05)
    async with bus.subscribe(name, group="g") as events:
        assert (await events.get(60)).attempt == 2


async def test_at_most_once_acknowledges_before_the_handler(bus: Client, name: str) -> None:
    seen: list[int] = []

    async def handle(event: Event[str]) -> None:
        seen.append(event.attempt)
        raise ValueError

    consumer = bus.consume(name, handle, group="g", policy="before", retry_delay=0.0)
    await bus.publish(name, "x")
    await eventually(lambda: settled(bus, name))
    await asyncio.sleep(0.1)
    assert seen == [1]
    await consumer.stop()


async def test_by_hand_nothing_is_acknowledged_for_the_handler(bus: Client, name: str) -> None:
    held: list[Event[str]] = []

    async def handle(event: Event[str]) -> None:
        held.append(event)

    consumer = bus.consume(name, handle, group="g", policy="manual")
    await bus.publish(name, "x")

    async def delivered() -> bool:
        return bool(held)

    await eventually(delivered)
    assert await bus.lag(name, "g") == 1
    await held[0].ack()
    await eventually(lambda: settled(bus, name))
    await consumer.stop()


async def test_a_consumer_that_is_not_let_in_says_so(bus: Client) -> None:
    async def handle(_: Event[str]) -> None: ...

    with pytest.raises(NodeRefused):
        await bus.consume("no spaces", handle, group="g").wait()


async def test_a_request_gets_its_reply(bus: Client, node: Node, name: str) -> None:
    async def price(event: Event[dict[str, int]]) -> dict[str, int]:
        return {"price": event.payload["sku"] * 10}

    async with connect(node.url) as shop:
        answering = shop.respond(name, price, group="shop", concurrency=4)
        assert await bus.request(name, {"sku": 7}, timeout=60) == {"price": 70}
        many = await asyncio.gather(*(bus.request(name, {"sku": n}, timeout=60) for n in range(50)))
        assert [each["price"] for each in many] == [n * 10 for n in range(50)]
        await answering.stop()


async def test_a_responder_that_fails_answers_with_its_error(bus: Client, name: str) -> None:
    async def refuse(_: Event[int]) -> None:
        raise LookupError("no such thing")

    answering = bus.respond(name, refuse, group="shop")
    with pytest.raises(ReplyError, match="no such thing") as failed:
        await bus.request(name, 1, timeout=60)
    assert failed.value.code == "LookupError"
    await answering.stop()


async def test_nobody_answers(bus: Client, name: str) -> None:
    with pytest.raises(TimedOut, match="responder"):
        await bus.request(name, 1, timeout=0.2)


async def test_a_requester_leaves_no_group_behind(node: Node, bus: Client, name: str) -> None:
    async with connect(node.url) as asking:
        with pytest.raises(TimedOut):
            await asking.request(name, 1, timeout=0.2)
    groups = await bus.http.call("GET", "/groups", params={"topic": f"{name}.replies"})
    assert groups["groups"] == []


async def test_what_is_no_request_cannot_be_answered(bus: Client, name: str) -> None:
    await bus.publish(name, 1)
    async with bus.subscribe(name, group="g") as events:
        with pytest.raises(Exception, match="is no request"):
            await bus.reply(await events.get(60), 2)
