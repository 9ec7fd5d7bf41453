"""The order service: for real once, and on virtual time through crashes, refusals, dead letters and mornings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import order_service
from mainspring import Fail
from mainspring.bus import SchemaMismatch
from mainspring.testing import World, simulate
from order_service import PRICES, Outside, app


@pytest.fixture(autouse=True)
def outside(monkeypatch: pytest.MonkeyPatch) -> Outside:
    """A fresh world around the service; a crash of the node does not touch it."""
    fresh = Outside()
    monkeypatch.setattr(order_service, "outside", fresh)
    return fresh


def order(id: str, customer: str = "ada", sku: str = "tea", pieces: int = 1) -> dict[str, Any]:
    return {"id": id, "customer": customer, "sku": sku, "pieces": pieces}


def states(world: World) -> dict[str, str]:
    """How each shipment ended; each ended once."""
    told = [(each["order"], each["state"]) for each in world.events("shipments").payloads]
    assert len(told) == len(dict(told))
    return dict(told)


def test_a_day_at_the_shop(run_example: Callable[[str], str]) -> None:
    lines = run_example("order_service.py").splitlines()
    stop = lines.index("the node stops, and another one starts")
    assert lines[:stop] == [
        "o-1: {'id': 'o-1', 'cents': 900}",
        "o-1: {'id': 'o-1', 'cents': 900}",
        "o-2: {'id': 'o-2', 'cents': 400000}",
        "o-3: {'id': 'o-3', 'cents': 3600}",
        "o-4: {'id': 'o-4', 'cents': 450}",
        "o-5: we do not sell lamp: we sell tea, cup, piano",
        "o-6: Schema validation failed: data: Expected int >= 1 at $.pieces: "
        "`mainspring describe Order.Place` shows the schema",
        "o-1 came twice and is one order: it will be billed and shipped once",
    ]
    assert sorted(lines[stop + 1 : stop + 4]) == [
        "shipment of o-1: sent, parcel-o-1",
        "shipment of o-2: cancelled, no carrier takes it",
        "shipment of o-3: cancelled, sold out",
    ]
    assert lines[stop + 4 :] == [
        "dead letter: o-4, because cyd has no account",
        "sent again: {'count': 1}",
        "shipment of o-4: sent, parcel-o-4",
        "report: {'orders': 2, 'cents': 1350}",
    ]


async def test_an_order_is_billed_and_sent() -> None:
    async with simulate(app) as world:
        assert await world.command("Order.Place", order("o-1", pieces=2)) == {"id": "o-1", "cents": 900}
        assert (await world.outcome("ship-o-1")).value == "sent"
        assert world.events("invoices").payloads == [{"order": "o-1", "customer": "ada", "cents": 900}]
        assert states(world) == {"o-1": "sent"}


async def test_a_shipment_that_fails_undoes_what_was_done(outside: Outside) -> None:
    async with simulate(app) as world:
        await world.command("Order.Place", order("o-1", sku="piano"))
        assert outside.shelf["piano"] == 0
        await world.crash_and_restart()  # while it is packed
        assert (await world.outcome("ship-o-1")).value == "cancelled"
        assert outside.shelf["piano"] == 1
        assert [each["cents"] for each in world.events("invoices").payloads] == [400_000, -400_000]
        assert (world.read("/sales/cents"), world.read("/sales/orders")) == (0, 0)


@pytest.mark.seeds(12)
async def test_whatever_crashes_each_order_is_billed_and_shipped_once(outside: Outside, mainspring_seed: int) -> None:
    async with simulate(app, seed=mainspring_seed) as world:
        for number in range(12):
            sku = world.random.choice(["tea", "cup", "piano"])
            await world.begin("command", "Order.Place", order(f"o-{number}", world.random.choice(["ada", "ben"]), sku))
            if world.random.random() < 0.4:
                await world.crash_and_restart(down=world.random.choice([0, "2s"]))
            await world.advance(world.random.choice([0, "100ms", "400ms"]))
        await world.advance("1m")
        taken = {each["id"]: each for each in world.events("orders").payloads}
        ended = states(world)
        assert ended.keys() == taken.keys()
        sent = [taken[id]["sku"] for id, state in ended.items() if state == "sent"]
        assert "piano" not in sent
        assert outside.shelf == {sku: count - sent.count(sku) for sku, count in Outside().shelf.items()}
        assert sum(each["cents"] for each in world.events("invoices").payloads) == sum(PRICES[sku] for sku in sent)
        assert (world.read("/sales/cents") or 0, world.read("/sales/orders") or 0) == (
            sum(PRICES[sku] for sku in sent),
            len(sent),
        )


async def test_the_same_order_again_is_taken_once() -> None:
    async with simulate(app) as world:
        for _ in range(3):
            await world.command("Order.Place", order("o-1"))
            await world.crash_and_restart()
        await world.advance("1m")
        assert len(world.events("invoices")) == 1
        assert states(world) == {"o-1": "sent"}


async def test_an_order_that_cannot_be_billed_is_a_dead_letter_until_it_is_sent_again(outside: Outside) -> None:
    async with simulate(app) as world:
        await world.command("Order.Place", order("o-1", "cyd"))
        await world.advance("1m")
        (letter,) = world.dead_letters("orders")
        assert (letter.reason, letter.attempts) == ("cyd has no account", 3)
        assert len(world.events("invoices")) == 0
        outside.accounts.add("cyd")
        await world.command("Bus.Redrive", {"topic": "orders"})
        assert (await world.outcome("ship-o-1")).value == "sent"


@pytest.mark.parametrize(
    ("wrong", "code"),
    [({"sku": "lamp"}, 404), ({"pieces": 0}, 422), ({"pieces": "two"}, 422), ({"id": ""}, 422)],
)
async def test_an_order_that_makes_no_sense_is_refused(wrong: dict[str, Any], code: int) -> None:
    async with simulate(app) as world:
        with pytest.raises(Fail) as refused:
            await world.command("Order.Place", {**order("o-1"), **wrong})
        assert refused.value.code == code
        assert world.events("orders") == []


async def test_an_event_that_is_no_order_is_refused_whoever_publishes_it() -> None:
    async with simulate(app) as world:
        with pytest.raises(SchemaMismatch):
            await world.publish("orders", order("o-1", pieces=0))


async def test_sales_are_reported_every_morning_also_when_the_node_sleeps_through_one() -> None:
    async with simulate(app) as world:
        await world.command("Order.Place", order("o-1"))
        await world.advance("1d")
        await world.crash_and_restart(down="9h")
        await world.command("Order.Place", order("o-2", "ben"))
        await world.advance("2d")
        assert [each["cents"] for each in world.events("reports").payloads] == [450, 450, 900, 900]
