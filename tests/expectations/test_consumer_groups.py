"""What a Celery, Kafka or NATS user expects of consumers:

- two functions that consume one topic both get every event, without a word about groups;
- a group that is declared twice is a mistake, and the node that starts names both places;
- a program whose group got another name by an upgrade does not handle everything a second time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mainspring import App, Event
from mainspring.client import connect
from mainspring.errors import BootError
from mainspring.testing import serving, simulate


def _shop() -> tuple[App, dict[str, list[Any]]]:
    app, seen = App("shop"), {"mail": [], "bill": []}

    @app.consumer("orders")
    def mail(event: Event[int]) -> None:
        seen["mail"].append(event.payload)

    @app.consumer("orders")
    def bill(event: Event[int]) -> None:
        seen["bill"].append(event.payload)

    return app, seen


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - nobody tells us
            await asyncio.sleep(0.01)


async def test_two_consumers_of_a_topic_both_get_every_event_simulated() -> None:
    app, seen = _shop()
    async with simulate(app) as world:
        for n in range(10):
            await world.publish("orders", n)
        await world.advance("1s")
        assert {group.group for group in world.groups("orders")} == {"shop.mail", "shop.bill"}
    assert seen == {"mail": list(range(10)), "bill": list(range(10))}


async def test_two_consumers_of_a_topic_both_get_every_event_served() -> None:
    app, seen = _shop()
    async with serving(app) as node, connect(node.url) as bus:
        for n in range(10):
            await bus.publish("orders", n)
        await _until(lambda: len(seen["mail"]) + len(seen["bill"]) == 20)
    assert seen == {"mail": list(range(10)), "bill": list(range(10))}


async def test_a_group_that_is_declared_twice_is_refused_with_both_places() -> None:
    app = App("shop")

    @app.consumer("orders", group="post")
    def mail(event: Event[int]) -> None: ...

    @app.consumer("orders", group="post")
    def letter(event: Event[int]) -> None: ...

    with pytest.raises(BootError, match=r"group 'post' of topic 'orders' is declared twice") as refused:
        async with serving(app):
            pass
    places = [f"{__file__}:{each.__code__.co_firstlineno}" for each in (mail, letter)]
    assert all(place in str(refused.value) for place in places)


async def test_the_same_group_of_two_topics_is_two_groups() -> None:
    app, seen = App("shop"), []
    for topic in ("orders", "refunds"):
        app.consumer(topic, group="books")(lambda event: seen.append(event.payload))
    async with simulate(app) as world:
        await world.publish("orders", 1)
        await world.publish("refunds", 2)
        await world.advance("1s")
    assert seen == [1, 2]


async def test_a_group_that_had_the_name_of_the_app_is_never_left_behind_unnoticed(tmp_path: Path) -> None:
    def program(**options: Any) -> tuple[App, list[int]]:
        app, seen = App("shop"), []

        @app.consumer("orders", **options)
        def bill(event: Event[int]) -> None:
            seen.append(event.payload)

        return app, seen

    async def serve(payload: int, **options: Any) -> list[int]:
        app, seen = program(**options)
        async with serving(app, engine="sqlite", data=str(tmp_path)) as node, connect(node.url) as bus:
            await bus.publish("orders", payload)
            await _until(lambda: payload in seen)
        return seen

    assert await serve(1, group="shop") == [1]
    with pytest.raises(BootError, match=r"would start from the beginning as group 'shop.bill'") as refused:
        await serve(2)
    assert f"{__file__}:" in str(refused.value)
    assert await serve(2, group="shop") == [2]
    assert await serve(3, group="shop.bill") == [1, 2, 3]
    assert await serve(4) == [4]


def test_a_consumer_without_a_name_needs_a_group() -> None:
    with pytest.raises(Exception, match=r"has no name that its group could have"):
        App("shop").consumer("orders")(lambda event: None)
