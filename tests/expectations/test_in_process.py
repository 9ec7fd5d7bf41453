"""What a FastAPI or Celery user expects of a program inside its own process: `app.publish`, `app.command`, ... .

The verbs are those of a client, by name, signature and error, so that code moves out of the node's process, or into it,
by the name in front of them. They work in a simulation, in a node, and in `async with app.running()`.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from mainspring import App, Client, Context, Event, Fail, SyncClient, WaitSignal, connect
from mainspring.client import NodeRefused, NodeVerbs
from mainspring.errors import BootError
from mainspring.node import InProcess
from mainspring.runs import Perform, Value
from mainspring.tasks import NotServed
from tests.expectations.conftest import Start
from tests.support.nats_server import free_port

VERBS = ("publish", "command", "query", "start_run", "signal", "outcome", "follow", "cancel", "run_info")


def shop() -> App:
    app = App("shop")
    app.state.seen = []

    @app.command("Order.Place")
    async def place(data: dict[str, Any], ctx: Context) -> dict[str, Any]:
        if data.get("sku") == "gone":
            raise Fail(409, "sold out")
        await app.publish("orders", data, key=data["sku"])
        return {"placed": data["sku"]}

    @app.query("Order.Count")
    async def count(data: dict[str, Any], ctx: Context) -> int:
        return len(app.state.seen)

    @app.consumer("orders")
    def take(event: Event[dict[str, Any]]) -> None:
        app.state.seen.append(event.payload)
        app.publish("taken", event.payload)  # type: ignore[unused-coroutine] # in a plain function it waits

    @app.task
    async def mail(to: str) -> str:
        return f"sent to {to}"

    @app.run
    async def checkout(cents: int, perform: Perform) -> int:
        return cents + int(await perform(WaitSignal("tip")))

    app.state.mail, app.state.checkout = mail, checkout
    return app


async def uses_every_verb(app: App, until: Any) -> None:
    """The story of all three kinds of node."""
    place = await app.publish("orders", {"sku": "pen"}, key="pen", headers={"x": "y"})
    assert (place.topic, place.partition, place.offset) == ("orders", 0, 1)
    assert await app.command("Order.Place", {"sku": "cup"}) == {"placed": "cup"}
    with pytest.raises(Fail) as refused:
        await app.command("Order.Place", {"sku": "gone"})
    assert refused.value.code == 409
    await until(lambda: len(app.state.seen) == 2)
    assert await app.query("Order.Count") == 2
    assert await app.query("Order.Count", {}, timeout="5s", reply=int) == 2

    run = await app.start_run(app.state.checkout, 100, id="c-1")
    assert await app.signal(run, "tip", 20)
    assert await app.outcome(run, timeout="30s") == Value(120)
    assert (await app.run_info("c-1")).state == "done"

    handle = await app.state.mail.enqueue("ada")
    assert await handle.result(timeout=30) == "sent to ada"

    taken = []
    async for event in app.follow("taken", since="beginning"):
        taken.append(event.payload)
        if len(taken) == 2:
            break
    assert taken == [{"sku": "pen"}, {"sku": "cup"}]


async def test_a_program_uses_its_verbs_where_it_is_served(start: Start) -> None:
    app = shop()
    async with start(app) as node:
        await uses_every_verb(app, node.until)


async def until(condition: Any) -> None:
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def test_a_program_runs_inside_this_process_with_no_port_and_no_socket(tmp_path: Path) -> None:
    app, data = shop(), tmp_path / "data"
    async with app.running(engine=f"sqlite:{data}", port=None):
        await uses_every_verb(app, until)
        assert not [each for each in os.listdir(data) if "sock" in each]
    async with app.running(engine=f"sqlite:{data}"):
        assert (await app.run_info("c-1")).value == 120  # it was in the log


async def test_a_port_is_opened_where_one_is_asked_for(tmp_path: Path) -> None:
    app, port = shop(), free_port()
    async with app.running(data=tmp_path, port=port), connect(f"ws://127.0.0.1:{port}") as bus:
        assert await bus.command("Order.Place", {"sku": "pen"}) == {"placed": "pen"}


async def test_the_same_code_works_through_a_client(tmp_path: Path) -> None:
    served, remote, port = shop(), shop(), free_port()
    remote.state.seen = served.state.seen
    async with served.running(data=tmp_path, port=port), connect(f"ws://127.0.0.1:{port}") as bus:
        remote.use(bus)
        await uses_every_verb(remote, until)


async def test_patterns_and_moments_are_followed_in_process_too(tmp_path: Path) -> None:
    app = App("shop")
    async with app.running(engine="memory"):
        await app.publish("orders.eu", 1)
        await app.publish("orders.us", 2)
        for since in ("beginning", timedelta(hours=1)):
            found = set()
            async for event in app.follow("orders.*", since=since, type=int):  # type: ignore[arg-type]
                found.add((event.topic, event.payload))
                if len(found) == 2:
                    break
            assert found == {("orders.eu", 1), ("orders.us", 2)}


async def test_what_is_refused_is_refused_as_a_client_is(start: Start) -> None:
    app = App("shop")
    async with start(app) as node:
        for refused in (
            lambda verbs: verbs.publish("no name!", 1),
            lambda verbs: verbs.publish("orders", 1, expect=7),
            lambda verbs: verbs.command("nothing", {}),
        ):
            errors = []
            for verbs in (app, node.bus):
                with pytest.raises(NodeRefused) as caught:
                    await refused(verbs)
                errors.append(caught.value.code)
            assert errors[0] == errors[1]
        for verbs in (app, node.bus):
            with pytest.raises(Fail) as unknown:
                await verbs.command("No.Body")
            assert unknown.value.code == 404


async def test_outside_of_its_node_a_verb_says_what_to_do() -> None:
    app = shop()
    for verb in (
        lambda: app.publish("orders", 1),
        lambda: app.query("Order.Count", {}),
        lambda: app.start_run(app.state.checkout, 1),
        lambda: app.follow("orders"),
        lambda: app.state.mail.enqueue("ada"),
    ):
        with pytest.raises(NotServed, match=r"app\.running\(\)"):
            verb()
    with pytest.raises(NotServed, match="lifespan"):
        await app.query("Order.Count")


async def test_an_app_runs_once_at_a_time() -> None:
    app = shop()
    async with app.running(engine="memory"):
        with pytest.raises(BootError, match="running already"):
            async with app.running(engine="memory"):
                pass
    async with app.running(engine="memory"):
        await app.publish("orders", {"sku": "pen"})


async def test_a_thread_of_the_process_waits_for_what_it_asks(tmp_path: Path) -> None:
    """Like a plain `def` route of FastAPI, which runs in a thread that has no event loop."""
    app = shop()

    def route() -> Any:
        app.state.mail.enqueue("ada")
        return app.command("Order.Place", {"sku": "pen"})

    async with app.running(engine="memory"):
        assert await asyncio.to_thread(route) == {"placed": "pen"}


@pytest.mark.parametrize("name", VERBS)
def test_verbs_have_the_same_signature_everywhere(name: str) -> None:
    def parameters(kind: type) -> dict[str, Any]:
        given = inspect.signature(getattr(kind, name)).parameters
        return {each: (one.kind, one.default) for each, one in given.items()}

    wanted = parameters(NodeVerbs)
    assert parameters(Client) == parameters(SyncClient) == parameters(InProcess) == wanted
    if name in ("command", "query"):  # they declare handlers, too
        assert set(wanted) <= set(parameters(App))
    else:
        assert parameters(App) == wanted


async def test_a_node_that_ends_takes_its_threads_along(tmp_path: Path) -> None:
    app = App("shop")
    app.schema("orders")(int)
    before = set(threading.enumerate())
    async with app.running(data=tmp_path):
        assert await app.publish("orders", 1) == 1
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("mainspring"):
            await asyncio.to_thread(thread.join, 30)
            assert not thread.is_alive(), thread.name
