"""What a client makes of a refusal: what may pass is tried again, what is final is forgotten.

Whoever knows NATS, Kafka or a database driver expects that an election or a full disk of some seconds is waited out by
the client, and that nothing is ever delivered to a subscription that the program does not have.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from mainspring.client import Client, Closed, NodeRefused, connect
from mainspring.loop import VirtualClock
from tests.support.scripted_node import ScriptedNode, virtually


@asynccontextmanager
async def connected(clock: VirtualClock) -> AsyncIterator[tuple[ScriptedNode, Client]]:
    node = ScriptedNode()
    await node.start()
    async with connect(node.url, clock=clock, random=lambda: 0.0, stall_check=0.0) as bus:
        yield node, bus
    await node.vanish()


def with_client(story: Callable[[ScriptedNode, Client], Coroutine[Any, Any, None]]) -> None:
    async def main(clock: VirtualClock) -> None:
        async with connected(clock) as (node, bus):
            await story(node, bus)

    virtually(main)


async def again(node: ScriptedNode) -> None:
    """The node goes and comes back; the client has said what it has to say."""
    number = node.connections + 1
    await node.vanish()
    await node.start()
    await node.met(number)


@pytest.mark.parametrize("code", ["unavailable", "rate_limited"])
def test_a_subscription_that_cannot_be_taken_now_is_asked_for_until_it_is_taken(code: str) -> None:
    async def story(node: ScriptedNode, bus: Client) -> None:
        node.refused["SUBSCRIBE"] = [code] * 3
        async with bus.subscribe("t", group="g", from_="beginning") as events:
            assert [frame["from"]["kind"] for frame in node.told("SUBSCRIBE")] == ["offset"] * 4
            await node.deliver("t", "g", 1)
            assert (await events.get()).payload == 1

    with_client(story)


@pytest.mark.parametrize("code", ["forbidden", "limit_reached", "unknown_group"])
def test_a_final_refusal_is_raised_and_leaves_nothing_behind(code: str) -> None:
    async def story(node: ScriptedNode, bus: Client) -> None:
        node.refused["SUBSCRIBE"] = [code]
        with pytest.raises(NodeRefused) as refused:
            async with bus.subscribe("t", group="g"):
                pass
        assert refused.value.code == code
        await again(node)
        assert len(node.told("SUBSCRIBE")) == 1
        async with bus.subscribe("t", group="g"):  # the place is free
            assert len(node.told("SUBSCRIBE")) == 2

    with_client(story)


def test_a_subscription_closed_while_it_waits_to_be_asked_for_again_is_not_asked_for() -> None:
    async def story(node: ScriptedNode, bus: Client) -> None:
        node.refused["SUBSCRIBE"] = ["unavailable"] * 2
        events = bus.subscribe("t", group="g")
        await asyncio.sleep(0.15)
        assert len(node.told("SUBSCRIBE")) == 2
        await events.close()
        await asyncio.sleep(60)
        await again(node)
        assert len(node.told("SUBSCRIBE")) == 2

    with_client(story)


def test_a_block_that_was_never_entered_takes_no_events() -> None:
    async def story(node: ScriptedNode, bus: Client) -> None:
        node.mute = True
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5), bus.subscribe("t", group="g"):
                pass
        node.mute = False
        await asyncio.sleep(1)
        assert len(node.told("UNSUBSCRIBE")) == 1
        await again(node)
        assert len(node.told("SUBSCRIBE")) == 1

    with_client(story)


def test_a_connection_lost_while_a_subscription_waits_asks_for_it_once_on_the_next() -> None:
    async def story(node: ScriptedNode, bus: Client) -> None:
        node.refused["SUBSCRIBE"] = ["unavailable"]
        events = bus.subscribe("t", group="g")
        await asyncio.sleep(0.05)
        await again(node)
        await events.confirmed()
        await asyncio.sleep(60)
        assert len(node.told("SUBSCRIBE")) == 2

    with_client(story)


def test_a_subscription_that_the_node_ends_is_over_and_not_asked_for_again() -> None:
    async def story(node: ScriptedNode, bus: Client) -> None:
        async with bus.subscribe("t", group="g") as events:
            ended = {"type": "ERROR", "code": "forbidden", "message": "may not", "topic": "t", "group": "g"}
            await node.say({**ended, "in_reply_to": ""})
            with pytest.raises(NodeRefused, match="may not"):
                await events.get()
            await again(node)
            assert len(node.told("SUBSCRIBE")) == 1

    with_client(story)


def test_a_schedule_and_a_question_over_http_wait_until_the_node_can_answer() -> None:
    async def story(node: ScriptedNode, bus: Client) -> None:
        node.refused["SCHEDULE"] = ["unavailable", "unavailable"]
        await bus.schedule("s", "t", 1, every=5)
        assert len(node.told("SCHEDULE")) == 3
        node.refused["/schedules"] = ["unavailable", "rate_limited"]
        assert await bus.schedules() == []
        node.refused["/schedules"] = ["forbidden"]
        with pytest.raises(NodeRefused) as refused:
            await bus.schedules()
        assert refused.value.code == "forbidden"

    with_client(story)


def test_a_question_over_http_is_given_up_in_the_end() -> None:
    async def story(node: ScriptedNode, bus: Client) -> None:
        node.refused["/schedules"] = ["unavailable"] * 100
        with pytest.raises(NodeRefused) as refused:
            await bus.schedules()
        assert refused.value.code == "unavailable"

    with_client(story)


def test_closing_the_client_ends_what_waits() -> None:
    async def main(clock: VirtualClock) -> None:
        async with connected(clock) as (node, bus):
            node.refused["SUBSCRIBE"] = ["unavailable"] * 100
            events = bus.subscribe("t", group="g")
            await asyncio.sleep(1)
        with pytest.raises(Closed):
            await events.get()

    virtually(main)
