"""Consumers of a program: what returning, raising and crashing mean."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from mainspring import App, Event, Fail
from mainspring.bus import TopicConfig
from mainspring.kernel import CapabilityError
from mainspring.testing import simulate


@dataclass
class Order:
    id: str
    total: int = 0


async def test_an_event_comes_typed_with_everything_that_is_known_of_it() -> None:
    app, seen = App("shop"), []

    @app.consumer("orders", group="billing")
    async def bill(event: Event[Order]) -> None:
        seen.append(event)

    async with simulate(app) as world:
        published = await world.publish("orders", {"id": "o-1", "total": 3}, key="c-17", headers={"trace": "t"})
    (event,) = seen
    assert event.payload == Order("o-1", 3)
    assert (event.topic, event.group, event.partition, event.offset) == ("orders", "billing", 0, 1)
    assert (event.key, dict(event.headers), event.id, event.attempt) == ("c-17", {"trace": "t"}, published.id, 1)


async def test_returning_acknowledges_and_the_event_never_comes_again() -> None:
    app, seen = App("shop"), []

    @app.consumer("orders")
    def note(event: Event[Order]) -> None:
        seen.append(event.payload.id)

    async with simulate(app) as world:
        await world.publish("orders", {"id": "o-1"})
        await world.advance("1s")
        assert world.lag("orders", "shop.note") == 0
        await world.crash_and_restart()
        await world.advance("1d")
    assert seen == ["o-1"]


async def test_raising_refuses_with_back_off_until_it_is_a_dead_letter_that_says_why() -> None:
    app, at = App("shop"), []

    @app.consumer("orders", group="billing", max_attempts=4, backoff="1s")
    async def bill(event: Event[Order]) -> None:
        at.append((event.attempt, world.now_ms))
        raise ValueError("the card was refused")

    async with simulate(app) as world:
        start = world.now_ms
        await world.publish("orders", {"id": "o-1"})
        await world.advance("1h")
        (letter,) = world.dead_letters("orders")
    assert at[0] == (1, start)
    pauses = [later - earlier for (_, earlier), (_, later) in pairwise(at)]
    for pause_ms, most_ms in zip(pauses, (1_000, 2_000, 4_000), strict=True):
        assert most_ms / 2 <= pause_ms <= most_ms
    assert (letter.attempts, letter.group, letter.reason) == (4, "billing", "ValueError: the card was refused")


async def test_groups_of_one_topic_may_give_up_after_different_numbers_of_attempts() -> None:
    app, attempts = App("shop"), {"quick": 0, "patient": 0}

    @app.consumer("orders", group="quick", max_attempts=1)
    async def quick(event: Event[Any]) -> None:
        attempts["quick"] += 1
        raise ValueError

    @app.consumer("orders", group="patient", max_attempts=8)
    async def patient(event: Event[Any]) -> None:
        attempts["patient"] += 1
        raise ValueError

    async with simulate(app) as world:
        await world.publish("orders", {})
        await world.advance("2s")
        await world.crash_and_restart()
        await world.configure(TopicConfig(topic="orders", retention_count=100))
        await world.advance("1h")
        assert {letter.group: letter.attempts for letter in world.dead_letters("orders")} == {"quick": 1, "patient": 8}
    assert attempts == {"quick": 1, "patient": 8}


async def test_a_payload_that_does_not_fit_is_a_dead_letter_without_its_content() -> None:
    app = App("shop")

    @app.consumer("orders", max_attempts=1)
    async def bill(event: Event[Order]) -> None:
        raise AssertionError("never called")

    async with simulate(app) as world:
        await world.publish("orders", {"id": 5, "secret": "s3cret"})
        await world.advance("1s")
        (letter,) = world.dead_letters("orders")
    assert letter.reason == "the payload does not fit: Expected str, got int at $.id"


async def test_an_event_may_be_refused_by_hand_and_comes_when_it_said() -> None:
    app, seen = App("shop"), []

    @app.consumer("orders")
    async def later(event: Event[Any]) -> None:
        seen.append((event.attempt, world.now_ms))
        if event.attempt == 1:
            event.nack("too early", delay="10m")

    async with simulate(app) as world:
        start = world.now_ms
        await world.publish("orders", {})
        await world.advance("1h")
    assert seen == [(1, start), (2, start + 600_000)]


async def test_a_function_that_takes_longer_than_the_lease_keeps_its_event() -> None:
    app, seen = App("shop"), []

    @app.consumer("orders")
    async def slow(event: Event[Any]) -> None:
        await asyncio.sleep(600)
        seen.append(event.attempt)

    async with simulate(app, ack_timeout_ms=1_000) as world:
        await world.publish("orders", {})
        await world.advance("1h")
    assert seen == [1]


async def test_events_are_handled_in_order_and_as_many_at_a_time_as_the_program_says() -> None:
    app = App("shop")
    running, most, order = [0, 0], [0, 0], []

    def consumer(which: int, concurrency: int) -> Any:
        async def work(event: Event[Any]) -> None:
            running[which] += 1
            most[which] = max(most[which], running[which])
            await asyncio.sleep(1)
            running[which] -= 1
            if which == 0:
                order.append(event.payload)

        return work

    app.consumer("n", group="one", max_inflight=10)(consumer(0, 1))
    app.consumer("n", group="three", concurrency=3)(consumer(1, 3))
    async with simulate(app) as world:
        for n in range(9):
            await world.publish("n", n)
        await world.advance("1m")
    assert most == [1, 3]
    assert order == list(range(9))


async def test_a_new_group_starts_where_it_says_and_an_old_one_goes_on() -> None:
    def program(from_: Any) -> tuple[App, list[int]]:
        app, seen = App("shop"), []

        @app.consumer("n", from_=from_)
        async def note(event: Event[int]) -> None:
            seen.append(event.payload)

        return app, seen

    for from_, first in (("beginning", 0), ("latest", 3), (2, 1)):
        app, seen = program(from_)
        before = App("before")
        async with simulate(before) as world:
            for n in range(3):
                await world.publish("n", n)
            world._simulation.app = app
            await world.restart()
            await world.publish("n", 3)
            await world.advance("1s")
            await world.crash_and_restart()
            await world.advance("1s")
        assert seen == list(range(first, 4)), from_


async def test_several_partitions_are_one_stream_for_the_program() -> None:
    app, seen = App("shop"), set()

    @app.consumer("n", concurrency=2)
    async def note(event: Event[int]) -> None:
        seen.add((event.partition, event.payload))

    async with simulate(app) as world:
        await world.configure(TopicConfig(topic="n", partitions=4))
        for n in range(40):
            await world.publish("n", n, key=f"k{n}")
    assert {payload for _, payload in seen} == set(range(40))
    assert {partition for partition, _ in seen} == {0, 1, 2, 3}


async def test_a_consumer_asks_and_emits_as_the_event_it_handles() -> None:
    app, heard = App("shop"), []

    @app.command("Stock.Reserve")
    async def reserve(data: dict, ctx: Any) -> dict:
        if data["n"] > 3:
            raise Fail(409, "not so many")
        return {"left": 3 - data["n"]}

    @app.on("Stock.Low")
    async def low(data: dict, ctx: Any) -> None:
        heard.append((data, ctx.message.metadata.causation))

    @app.consumer("orders", max_attempts=1)
    async def bill(event: Event[dict]) -> None:
        left = await event.ask("command", "Stock.Reserve", event.payload)
        event.emit("Stock.Low", left)

    async with simulate(app) as world:
        published = await world.publish("orders", {"n": 2})
        await world.publish("orders", {"n": 4})
        await world.advance("1s")
        assert heard == [({"left": 1}, published.id)]
        assert "not so many" in world.dead_letters("orders")[0].reason


async def test_stopping_in_order_waits_for_functions_that_run() -> None:
    app, seen = App("shop"), []

    @app.consumer("n")
    async def slow(event: Event[int]) -> None:
        await asyncio.sleep(2)
        event.publish("done", event.payload)
        seen.append(event.payload)

    async with simulate(app) as world:
        await world.publish("n", 1)
        await world.publish("n", 2)
        await world.restart()
        assert seen == [1]
        await world.advance("1m")
        assert world.events("done").payloads == [1, 2]


async def test_a_function_that_outlives_the_stop_is_cancelled_and_its_event_comes_again() -> None:
    app, seen = App("shop"), []

    @app.consumer("n")
    async def slow(event: Event[int]) -> None:
        seen.append(event.attempt)
        await asyncio.sleep(3600)

    async with simulate(app, drain_ms=100) as world:
        await world.publish("n", 1)
        await world.restart()
        await world.settle()
    assert seen == [1, 2]


def test_what_cannot_be_a_consumer_is_refused_where_it_is_declared() -> None:
    app = App("shop")
    with pytest.raises(CapabilityError, match="must take the event"):
        app.consumer("orders")(lambda: None)
    with pytest.raises(CapabilityError, match=r"gets Event\[Order\]"):

        @app.consumer("orders")
        async def wrong(event: Order) -> None: ...

    with pytest.raises(CapabilityError, match="1 or more"):
        app.consumer("orders", concurrency=0)(lambda event: None)


class Struct(msgspec.Struct):
    id: str


@pytest.mark.parametrize(
    ("hint", "wanted"), [(Event, {"id": "x"}), (Event[Struct], Struct("x")), (Event[Order], Order("x"))]
)
async def test_payloads_are_structs_dataclasses_or_plain_json(hint: Any, wanted: Any) -> None:
    app, seen = App("shop"), []

    def note(event: Any) -> None:
        seen.append(event.payload)

    note.__annotations__["event"] = hint
    app.consumer("orders")(note)
    async with simulate(app) as world:
        await world.publish("orders", {"id": "x"})
    assert seen == [wanted]
