"""What a user of pytest expects of a simulation: what passes there passes in a node."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mainspring import App, Context, Event, Fail
from mainspring.client import NodeRefused
from mainspring.testing import simulate
from tests.expectations.conftest import Start


def shop() -> App:
    app = App("shop")

    @app.query("Stock.Count")
    async def count(data: dict[str, Any], ctx: Context) -> int:
        await asyncio.sleep(0.2)
        return 3

    @app.query("Stock.Refuse")
    async def refuse(data: dict[str, Any], ctx: Context) -> int:
        raise Fail(409, "sold out")

    @app.query("Stock.Break")
    async def broken(data: dict[str, Any], ctx: Context) -> int:
        raise KeyError("sku")

    @app.consumer("orders", group="billing")
    async def bill(event: Event[dict[str, Any]]) -> None:
        event.publish("bills", event.payload)

    @app.task
    async def send_mail(to: str) -> None:
        await app.publish("mails", to)

    app.state.send_mail = send_mail
    return app


async def test_a_task_is_enqueued_from_the_test(start: Start) -> None:
    app = shop()
    async with start(app) as node:
        await app.state.send_mail.enqueue("ada")
        await node.comes("mails", "ada")


async def test_a_client_publishes_reads_and_subscribes(start: Start) -> None:
    async with start(shop()) as node:
        assert await node.bus.publish("orders", {"id": 1}) == 1
        assert await node.bus.publish_many("orders", [{"id": 2}, {"id": 3}]) == 2
        async with node.bus.subscribe("bills", group="test") as bills:
            for expected in (1, 2, 3):
                bill = await bills.get(timeout=20)
                assert bill.payload == {"id": expected}
                await bill.ack()
        assert [event.payload["id"] async for event in node.bus.replay("orders")] == [1, 2, 3]


async def test_a_page_follows_what_is_stored(start: Start) -> None:
    async with start(shop()) as node:
        await node.publish("orders", {"id": 1})
        async for event in node.bus.follow("orders", since="beginning"):
            assert event.payload == {"id": 1}
            break


async def test_a_client_goes_on_after_the_node_was_killed(start: Start) -> None:
    async with start(shop) as node:
        await node.publish("orders", {"id": 1})
        await node.crash()
        await node.publish("orders", {"id": 2})
        await node.comes("bills", {"id": 1}, {"id": 2})


@pytest.mark.parametrize(
    ("type", "data", "options", "code"),
    [
        ("No.Such", {}, {}, 404),
        ("Stock.Count", {}, {"timeout": 0.05}, 504),
        ("Stock.Count", [], {}, 422),
        ("Stock.Refuse", {}, {}, 409),
        ("Stock.Break", {}, {}, 500),
    ],
)
async def test_errors_have_the_same_code(
    start: Start, type: str, data: Any, options: dict[str, Any], code: int
) -> None:
    async with start(shop()) as node:
        with pytest.raises(Fail) as refused:
            await node.query(type, data, **options)
        assert refused.value.code == code


async def test_the_face_of_a_simulation_raises_what_a_client_gets() -> None:
    async with simulate(shop()) as world, world.client() as bus:
        for ask in (world.query, bus.query):
            with pytest.raises(Fail, match="sold out") as refused:
                await ask("Stock.Refuse", {})
            assert refused.value.code == 409


async def test_groups_are_the_same(start: Start) -> None:
    async with start(shop()) as node:
        await node.publish("orders", {"id": 1})
        await node.comes("bills", {"id": 1})
        found = await node.query("Bus.Groups", {"topic": "orders"})
        assert [each["group"] for each in found["groups"]] == ["billing"]


async def test_settings_hold(start: Start) -> None:
    async with start(shop(), max_frame_bytes=2_000) as node:
        with pytest.raises(NodeRefused) as refused:
            await node.publish("orders", "x" * 5_000)
        assert refused.value.code == "too_large"
