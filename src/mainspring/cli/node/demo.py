"""`mainspring demo`: a node with a small living example, to look at with every other command.

Everything happens in one process and in memory, and is gone afterwards. Heartbeats tick; orders come in; `billing`
takes every order and starts a durable run for it; `shipping` is slow, so its lag can be watched; `mailer` fails for
some customers, so dead letters gather. The traffic goes through the same client and the same port as everybody
else's.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from mainspring.app import App
from mainspring.cli.support.output import INTERRUPTED, JsonOption, note, paint, say, say_json
from mainspring.client import Client, Closed, Event, connect
from mainspring.loop import new_event_loop
from mainspring.node import Node
from mainspring.runs import Effect, Runtime, Sleep, resume
from mainspring.settings import Settings
from mainspring.telemetry import configure_logging

_CUSTOMERS: Final = ("ada", "grace", "edsger", "barbara", "alan", "tony")
_NO_MAIL: Final = frozenset({"edsger", "tony"})  # their letters always fail
_ATTEMPTS: Final = 3


class Charge(Effect[str]):
    """Take money: an effect, answered once, remembered by the run."""

    customer: str
    cents: int


app: App = App("demo")


@app.handles(Charge)
async def charge(effect: Charge, ctx: Any) -> Any:
    return resume(f"receipt for {effect.customer}: {effect.cents / 100:.2f}")


@app.run
async def checkout(order: dict[str, Any], perform: Any) -> str:
    """A durable run: it would survive a crash between any two of its steps."""
    receipt: str = await perform(Charge(order["customer"], order["cents"]))
    await perform(Sleep(seconds=3))
    return receipt


def demo(
    port: Annotated[int, typer.Option(min=0, max=65535, show_default="a free one", help="Port to listen on.")] = 0,
    rate: Annotated[float, typer.Option(min=0.1, max=1000, help="Orders per second.")] = 2.0,
    seconds: Annotated[float | None, typer.Option(min=0.1, help="End by itself after so long.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Start a node with a small living example. Heartbeats, orders, a slow and a failing consumer; Ctrl-C ends it.

    Everything is in memory and gone afterwards. It prints what to try next.
    """
    with tempfile.TemporaryDirectory(prefix="ms-") as folder, asyncio.Runner(loop_factory=new_event_loop) as runner:
        settings = Settings(
            port=port,
            engine="memory",
            data=folder,
            kernel_socket=str(Path(folder) / "kernel.sock"),
            loop_socket=str(Path(folder) / "loop.sock"),
            log_level="warning",
            metrics_interval_ms=5_000,
        )
        configure_logging(settings)
        interrupted = runner.run(_demo(settings, rate, seconds, as_json))
    if interrupted:
        raise typer.Exit(INTERRUPTED)


async def _demo(settings: Settings, rate: float, seconds: float | None, as_json: bool) -> bool:
    """Live until a signal or the end of the time; whether it was a signal."""
    stopping = asyncio.Event()
    host = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        host.add_signal_handler(number, stopping.set)
    node = Node(settings, app)
    booted = await node.boot()
    try:
        (address,) = (each for each in booted.data["adapters"] if each.startswith("http:"))
        url = address.replace("http:", "ws:", 1)
        async with _traffic(url, rate, node.runtime):
            _introduce(url, settings.kernel_socket, as_json)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await stopping.wait()
    finally:
        await node.drain()
    return stopping.is_set()


# -- the example


@contextlib.asynccontextmanager
async def _traffic(url: str, rate: float, runtime: Runtime) -> AsyncIterator[None]:
    """Everybody who publishes and consumes, each with a connection of its own."""
    async with connect(url) as bus:
        await bus.put_topic("orders", partitions=4, maxAttempts=_ATTEMPTS)
        await bus.put_topic("heartbeat.received", retentionMs=600_000)
    chance = random.Random(7)
    parts: list[Callable[[Client], Coroutine[Any, Any, None]]] = [
        _heartbeats,
        lambda bus: _orders(bus, rate, chance),
        lambda bus: _consume(bus, "billing", lambda event: _bill(event, runtime)),
        lambda bus: _consume(bus, "shipping", lambda event: _ship(event, rate, chance)),
        lambda bus: _consume(bus, "mailer", _mail),
        lambda bus: _consume(bus, "monitor", _seen, topic="heartbeat.received"),
    ]

    async def connected(part: Callable[[Client], Coroutine[Any, Any, None]]) -> None:
        async with connect(url, drain_timeout=1.0) as bus:
            await part(bus)

    tasks = [asyncio.create_task(connected(part)) for part in parts]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(ended, Exception) and not isinstance(ended, Closed):
                note(f"mainspring: a part of the demo failed: {ended}")


async def _heartbeats(bus: Client) -> None:
    pid = os.getpid()
    while True:
        await bus.publish("heartbeat.received", {"pid": pid, "name": "demo", "ts": bus.wall_ms()}, key=f"proc:{pid}")
        await asyncio.sleep(1)


async def _orders(bus: Client, rate: float, chance: random.Random) -> None:
    for number in itertools.count(1):
        customer = chance.choice(_CUSTOMERS)
        sku, cents = chance.randint(1, 40), chance.randint(99, 9999)
        order = {"number": number, "customer": customer, "sku": sku, "cents": cents}
        await bus.publish("orders", order, key=customer, headers={"source": "demo"})
        await asyncio.sleep(1 / rate)


async def _consume(
    bus: Client, group: str, work: Callable[[Event[Any]], Coroutine[Any, Any, None]], topic: str = "orders"
) -> None:
    async for event in bus.subscribe(topic, group=group, max_inflight=8):
        try:
            await work(event)
        except ValueError as error:
            await event.nack(delay=0.5, reason=str(error))
        else:
            await event.ack()


async def _bill(event: Event[Any], runtime: Runtime) -> None:
    """Every order is one run; the event's id makes a second delivery find the first one's run."""
    runtime.start("checkout", event.payload, durable=True, id=event.id)


async def _ship(event: Event[Any], rate: float, chance: random.Random) -> None:
    """A little slower than orders come in, on average: the lag grows."""
    await asyncio.sleep(chance.uniform(0.8, 1.5) / rate)


async def _mail(event: Event[Any]) -> None:
    if event.payload["customer"] in _NO_MAIL:
        raise ValueError(f"no mail address for {event.payload['customer']}")


async def _seen(event: Event[Any]) -> None:
    """A heartbeat was seen."""


# -- what to try


def _introduce(url: str, kernel_socket: str, as_json: bool) -> None:
    http = url.replace("ws:", "http:", 1)
    if as_json:
        say_json({"url": url, "http": http, "kernel_socket": kernel_socket, "pid": os.getpid()})
        return
    say(f"a node is running in memory, until Ctrl-C. Its dashboard: {paint(http, bold=True)}")
    say("In another terminal:")
    say()
    say(paint(f"  export BUS_URL={url}", fg="green"))
    for command, what in (
        ("mainspring top", "everything at a glance"),
        ("mainspring tail -f orders", "orders as they come in"),
        ("mainspring tail orders --filter '.cents>9000' --since 1h", "only large ones"),
        ("mainspring groups list", "shipping falls behind"),
        ("mainspring dlq list orders", "what mailer gave up on, and why"),
        ("mainspring dlq redrive orders --group mailer --limit 1", "send one of them back to the mailer"),
        ("mainspring sub orders --group mine --from latest", "take part"),
        ('mainspring pub orders \'{"customer": "you", "cents": 1}\'', "publish an order yourself"),
        ("mainspring runs list", "the durable runs that billing started"),
        ("mainspring attention", "what needs a person: the mailer's dead letters"),
    ):
        say(f"  {command:58} {paint(what, dim=True)}")
