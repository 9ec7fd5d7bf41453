"""A client that sends more events than their handlers manage waits, and nothing else does."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mainspring import App, RestartPolicy
from mainspring.kernel import Inspector
from mainspring.loop import VirtualClock
from tests.support.kernel import command, message, ping, served, virtual

FLOOD = 40_000
KEPT = 15_000  # what may wait at once: ten thousand, and what one client has under way


def waiting(kernel: Any, name: str) -> int:
    return next(actor.waiting for actor in Inspector(kernel).actors() if actor.id == name)


async def poured(client: Any, count: int = FLOOD) -> None:
    """Sends events as fast as the kernel takes them, for ever if it does not."""
    for number in range(count):
        client.send(message("event", "Flood.Came", number))
        if not number % 500:
            await client.writer.drain()
    await client.writer.drain()


@pytest.mark.slow
@virtual
async def test_events_a_slow_handler_cannot_manage_stay_with_their_sender(clock: VirtualClock) -> None:
    app, handled, most = App("slow"), [], 0

    @app.on("Flood.Came")
    async def came(data: int, ctx: Any) -> None:
        nonlocal most
        most = max(most, waiting(site.kernel, "Flood")) if not data % 100 else most
        handled.append(data)
        await ctx.sleep(0.001)

    async with served(app, clock) as site:
        sender, other = await site.connect(), await site.connect()
        pouring = asyncio.create_task(poured(sender))
        for _ in range(20):
            await other.call(ping("others are served meanwhile"))
            await asyncio.sleep(0.01)
        assert not pouring.done(), "the sender is held back"
        await pouring
        await sender.call(ping("behind all of them"))
        await site.kernel.quiescent()
        assert handled == list(range(FLOOD)), "all of them, in order"
        assert most <= KEPT


@pytest.mark.parametrize("restarts", [0, 3])
@virtual
async def test_a_sender_of_events_is_not_held_back_for_ever_by_an_actor_that_fails(
    clock: VirtualClock, restarts: int
) -> None:
    app = App("failing", restart=RestartPolicy(max_restarts=restarts, backoff_ms=10))

    @app.on("Flood.Came")
    async def came(data: int, ctx: Any) -> None:
        if not data:
            await ctx.sleep(60)
            raise RuntimeError("boom")

    @app.command("Flood.Ask")
    async def ask(data: dict, ctx: Any) -> dict:
        return {}

    async with served(app, clock) as site:
        client = await site.connect()
        await poured(client)
        answer = await client.call(command("Flood.Ask", {}))
        assert (answer["kind"], answer["type"]) == (("reply", "Flood.Ask") if restarts else ("error", "Sys.Unhealthy"))


@virtual
async def test_a_sender_behind_whose_event_only_requests_wait_goes_on_too(clock: VirtualClock) -> None:
    """Half-closed, its connection ends when its event is taken, although no further event is ever handled."""
    app = App("mixed")

    @app.query("Flood.Wait")
    async def wait(data: int, ctx: Any) -> int:
        await ctx.sleep(0.001)
        return data

    @app.on("Flood.Came")
    async def came(data: int, ctx: Any) -> None: ...

    async with served(app, clock) as site:
        client = await site.connect()
        before = [site.kernel.ask("query", "Flood.Wait", number) for number in range(10_500)]
        client.send(message("event", "Flood.Came", 1), ping("taken"))
        await client.line()
        behind = [site.kernel.ask("query", "Flood.Wait", number) for number in range(8_000)]
        client.writer.write_eof()
        assert await client.to_end() == []
        await asyncio.gather(*before, *behind)


@virtual
async def test_a_sender_that_leaves_while_it_is_held_back_is_forgotten(clock: VirtualClock) -> None:
    app, handled = App("left"), 0

    @app.on("Flood.Came")
    async def came(data: int, ctx: Any) -> None:
        nonlocal handled
        handled += 1
        await ctx.sleep(0.001)

    async with served(app, clock) as site:
        client = await site.connect()
        pouring = asyncio.create_task(poured(client))
        await asyncio.sleep(1)
        client.writer.transport.abort()
        with pytest.raises(ConnectionError):
            await pouring
        await site.kernel.quiescent()
        assert 0 < handled < FLOOD
        assert (await (await site.connect()).call(ping(1)))["kind"] == "reply"
