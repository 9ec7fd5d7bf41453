"""What a user of Temporal expects of workflow ids: one id, one run; a second one with other arguments is an error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from mainspring import App, Event, Perform, WaitSignal
from mainspring.runs import UnknownProgram
from mainspring.testing import simulate
from tests.expectations.conftest import Start


@dataclass
class Order:
    id: str
    cents: int = 100


def shop() -> App:
    app = App("shop")

    @app.run
    async def checkout(order: Order, perform: Perform) -> str:
        await perform(WaitSignal("paid"))
        return order.id

    @app.run
    async def refund(order: Order, perform: Perform) -> str:
        return order.id

    @app.consumer("orders", max_attempts=2, backoff="10ms")
    async def begin(event: Event[dict[str, Any]]) -> None:
        event.start_run(checkout, Order(event.payload["order"]), id=event.payload.get("id", event.id))

    return app


async def test_each_event_starts_its_run_with_the_events_id(start: Start) -> None:
    async with start(shop()) as node:
        for n in range(8):
            await node.publish("orders", {"order": f"o-{n}"}, key=str(n))
        listed = await node.until(lambda: runs(node, 8))
        assert len(listed) == 8


async def test_the_same_id_and_arguments_are_the_same_run(start: Start) -> None:
    async with start(shop()) as node:
        assert await node.start_run("checkout", {"id": "o-1"}, id="c") == "c"
        assert await node.start_run("checkout", {"cents": 100, "id": "o-1"}, id="c") == "c"
        await node.signal("c", "paid")
        assert (await node.outcome("c")).value == "o-1"
        assert await node.start_run("checkout", {"id": "o-1"}, id="c") == "c"


async def test_the_same_id_with_other_arguments_or_another_program_is_refused(start: Start) -> None:
    async with start(shop()) as node:
        await node.start_run("checkout", {"id": "o-1"}, id="c")
        for program, order in (("checkout", {"id": "o-2"}), ("refund", {"id": "o-1"})):
            with pytest.raises(Exception, match=r"run c (is a run of checkout|of checkout was started with other)"):
                await node.start_run(program, order, id="c")
        await node.signal("c", "paid")
        assert (await node.outcome("c")).value == "o-1"
        with pytest.raises(Exception, match="other arguments"):
            await node.start_run("checkout", {"id": "o-2"}, id="c")


async def test_an_event_whose_run_has_anothers_id_is_a_dead_letter_with_the_reason(start: Start) -> None:
    async with start(shop()) as node:
        await node.publish("orders", {"order": "o-1", "id": "same"})
        await node.publish("orders", {"order": "o-2", "id": "same"})
        (letter,) = await node.until(lambda: node.dead_letters("orders"))
        assert "run same of checkout was started with other arguments" in str(letter)


async def test_only_a_declared_run_can_be_started() -> None:
    app = shop()

    async def forgotten(perform: Perform) -> None: ...

    @app.consumer("letters", max_attempts=1)
    async def begin(event: Event[Any]) -> None:
        event.start_run(forgotten)

    async with simulate(app) as world:
        with pytest.raises(UnknownProgram, match=r"forgotten is not declared as a run \(write @app.run above it\)"):
            await world.start_run(forgotten)
        await world.publish("letters", {})
        await world.advance("1m")
        (letter,) = world.dead_letters("letters")
        assert "forgotten is not declared as a run" in str(letter)


async def runs(node: Any, count: int) -> list[Any] | None:
    found: list[Any] = (await node.query("Run.List", {}))["runs"]
    return found if len(found) == count else None
