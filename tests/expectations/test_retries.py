"""What a user of Celery expects of retries: which errors, how often, how long; and a way to give up at once."""

from __future__ import annotations

import asyncio
import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from mainspring import App, EffectFailed, Event, Perform, Reject
from mainspring.kernel import CapabilityError
from mainspring.testing import simulate
from tests.expectations.conftest import Start
from tests.support.running_node import running_node


def raising(error: Exception, **options: Any) -> tuple[App, list[int]]:
    app, attempts = App("shop"), []

    @app.consumer("orders", max_attempts=3, backoff="10ms", **options)
    async def bill(event: Event[str]) -> None:
        attempts.append(event.attempt)
        raise error

    return app, attempts


@pytest.mark.parametrize(
    ("error", "options", "attempts", "reason"),
    [
        (ConnectionError("no bank"), {"retry_on": ConnectionError}, [1, 2, 3], "ConnectionError: no bank"),
        (ConnectionError("no bank"), {"retry_on": (ValueError, OSError)}, [1, 2, 3], "ConnectionError: no bank"),
        (KeyError("sku"), {"retry_on": ConnectionError}, [1], "KeyError: 'sku'"),
        (KeyError("sku"), {"give_up_on": LookupError}, [1], "KeyError: 'sku'"),
        (ConnectionError("no bank"), {"give_up_on": LookupError}, [1, 2, 3], "ConnectionError: no bank"),
        (Reject("no such customer"), {}, [1], "no such customer"),
        (Reject("no such customer"), {"retry_on": Exception, "give_up_on": ()}, [1], "no such customer"),
    ],
)
async def test_errors_decide_whether_an_event_comes_again(
    start: Start, error: Exception, options: dict[str, Any], attempts: list[int], reason: str
) -> None:
    app, made = raising(error, **options)
    async with start(app) as node:
        await node.publish("orders", "o-1")
        (letter,) = await node.until(lambda: node.dead_letters("orders"))
        assert letter["reason"] == reason
        assert letter["attempts"] == len(attempts)
        assert made == attempts


async def test_an_event_is_rejected_without_an_exception(start: Start) -> None:
    app = App("shop")

    @app.consumer("orders")
    def bill(event: Event[str]) -> None:
        event.publish("bills", event.payload)
        event.reject("sold out")

    async with start(app) as node:
        await node.publish("orders", "o-1")
        (letter,) = await node.until(lambda: node.dead_letters("orders"))
        assert (letter["reason"], letter["attempts"]) == ("sold out", 1)
        assert await node.events("bills") == []


async def test_an_async_function_that_takes_too_long_is_cancelled_and_comes_again(start: Start) -> None:
    app, seen = App("shop"), []

    @app.consumer("orders", timeout="50ms", backoff="10ms")
    async def bill(event: Event[str]) -> None:
        if event.attempt == 1:
            try:
                await asyncio.Event().wait()
            finally:
                seen.append("cancelled")
        event.publish("bills", event.payload)

    async with start(app) as node:
        await node.publish("orders", "o-1")
        await node.comes("bills", "o-1")
        assert seen == ["cancelled"]


async def test_what_always_takes_too_long_is_a_dead_letter_that_says_so(start: Start) -> None:
    app = App("shop")

    @app.consumer("orders", timeout="50ms", backoff="10ms", max_attempts=2)
    async def bill(event: Event[str]) -> None:
        await asyncio.Event().wait()

    async with start(app) as node:
        await node.publish("orders", "o-1")
        (letter,) = await node.until(lambda: node.dead_letters("orders"))
        assert letter["reason"] == "HandlerTimeout: the attempt took longer than 50ms"


@pytest.mark.process
async def test_a_plain_function_that_takes_too_long_is_left_alone_and_its_thread_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app, go_on = App("shop"), threading.Event()

    @app.consumer("orders", timeout="50ms", backoff="10ms", concurrency=2)
    def bill(event: Event[str]) -> None:
        if event.attempt == 1:
            go_on.wait()
        event.publish("bills", event.payload)

    caplog.set_level(logging.WARNING, logger="mainspring.loop")
    async with running_node("served", app, tmp_path, {}) as node:
        await node.publish("orders", "o-1")
        await node.comes("bills", "o-1")
        go_on.set()
    (line,) = [record.getMessage() for record in caplog.records if "not waited for" in record.getMessage()]
    assert "bill took longer than 50ms" in line
    assert "thread mainspring-handler-" in line


async def test_a_schedule_gives_up_too(start: Start) -> None:
    app = App("shop")

    @app.every("50ms", name="sweep", max_attempts=5, give_up_on=ValueError)
    def sweep() -> None:
        raise ValueError("no broom")

    async with start(app) as node:
        letters = await node.until(lambda: node.dead_letters("schedules.shop.sweep"))
        assert letters[0]["reason"] == "ValueError: no broom"
        assert letters[0]["attempts"] == 1


def test_pauses_differ_from_event_to_event_and_are_the_same_for_a_seed() -> None:
    def pauses(seed: int) -> list[int]:
        app, times = App("shop"), []

        @app.consumer("orders", backoff="10s", max_attempts=2, concurrency=100)
        async def bill(event: Event[int]) -> None:
            if event.attempt == 2:
                times.append(world.now_ms - start_ms)
            raise ValueError("no")

        async def story() -> None:
            for number in range(20):
                await world.publish("orders", number)
            await world.until(lambda: len(times) == 20)

        with simulate(app, seed=seed) as world:
            start_ms = world.now_ms
            asyncio.run(story())
        return times

    first = pauses(1)
    assert first == pauses(1)
    assert len(set(first)) > 10
    assert all(5_000 <= pause <= 10_000 for pause in first)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"retry_on": "ValueError"}, "exception classes"),
        ({"give_up_on": (ValueError, 3)}, "exception classes"),
        ({"max_attempts": 0}, "max_attempts is 1 or more"),
        ({"timeout": 0}, "timeout is a millisecond or more"),
    ],
)
def test_a_mistake_is_refused_where_it_is_written(options: dict[str, Any], text: str) -> None:
    app = App("shop")
    with pytest.raises(CapabilityError, match=text):

        @app.consumer("orders", **options)
        async def bill(event: Event[str]) -> None: ...


async def test_a_step_of_a_run_is_rejected_at_once_too(start: Start) -> None:
    app, attempts = App("shop"), []

    async def charge() -> None:
        attempts.append(1)
        raise Reject("no such card")

    @app.run
    async def checkout(perform: Perform) -> str:
        try:
            await perform.step(charge, max_attempts=5)
        except EffectFailed as error:
            return str(error)
        return "charged"

    async with start(app) as node:
        outcome = await node.outcome(await node.start_run(checkout))
        assert "no such card" in outcome.value
        assert attempts == [1]


async def test_a_client_rejects_events_too(start: Start) -> None:
    async with start(App("shop")) as node:
        await node.publish_many("orders", [1, 2])

        async def bill(event: Any) -> None:
            if event.payload == 1:
                raise Reject("no such customer")
            await event.reject("sold out")

        consumer = node.bus.consume("orders", bill, group="billing", policy="manual")
        letters = await node.until(lambda: _both(node.dead_letters("orders")))
        await consumer.stop()
        assert {(letter["reason"], letter["attempts"]) for letter in letters} == {
            ("no such customer", 1),
            ("sold out", 1),
        }


async def _both(found: Any) -> list[Any]:
    letters = list(await found)
    return letters if len(letters) == 2 else []
