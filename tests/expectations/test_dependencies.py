"""What a FastAPI user expects of dependencies, in handlers of every kind:

- `Annotated[Session, Depends(get_session)]` gives each call a session of its own, which is closed after the call;
- after `app.provide(Session, get_session)` the type alone is enough;
- a provider is `def`, `async def` or a generator, has dependencies itself, and is asked once per call;
- an error of the handler is raised in the provider, so that it can roll back; catching it there does not hide it;
- a test replaces a provider;
- what nobody provides is refused before the first call, with the file and line.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest

from mainspring import App, Context, Depends, Event, Fail, TaskContext
from mainspring.app import HandlerCall, Next
from mainspring.errors import MainspringError
from mainspring.runs import Effect, EffectContext, Perform
from mainspring.tasks import Worker
from mainspring.testing import simulate
from tests.expectations.conftest import Start

trail: list[str] = []  # what sessions of the running test did


@pytest.fixture(autouse=True)
def new_trail() -> None:
    trail.clear()


class Database:
    """One for the whole program."""

    name = "real"


class Session:
    """What a handler works with; says nothing about its members, so it is nothing that could be in a payload."""

    def __init__(self, of: str) -> None:
        self.of = of
        self.thread = threading.get_ident()
        trail.append("open")

    def end(self, how: str) -> None:
        trail.append(how)


class Tenant:
    def __init__(self, name: str) -> None:
        self.name = name


class Charge(Effect[str]):
    cents: int


def get_database() -> Database:
    return Database()


async def get_session(database: Annotated[Database, Depends(get_database)]) -> AsyncIterator[Session]:
    session = Session(database.name)
    try:
        yield session
    except BaseException as error:
        session.end(f"roll back {type(error).__name__}")
        raise
    session.end("commit")


def get_plain_session() -> Iterator[Session]:
    session = Session("plain")
    try:
        yield session
    except BaseException as error:
        session.end(f"roll back {type(error).__name__}")
        raise
    session.end("commit")


Async = Annotated[Session, Depends(get_session)]
Plain = Annotated[Session, Depends(get_plain_session)]


async def pack(sku: str, session: Async) -> str:
    return f"packed {sku} with {session.of}"


def seal(session: Plain, sku: str) -> str:
    return f"sealed {sku} with {session.of}"


def shop() -> App:
    """A handler of each kind; each needs a session."""
    app = App("shop")

    @app.command("Order.Place")
    async def place(data: dict[str, Any], ctx: Context, session: Async) -> str:
        if not data:
            raise Fail(409, "nothing to place")
        return session.of

    @app.query("Order.Count")
    def count(data: dict[str, Any], ctx: Context, session: Plain) -> bool:
        return session.thread == threading.get_ident()

    @app.consumer("orders", group="billing", backoff="10ms")
    def bill(event: Event[str], session: Async) -> None:
        if event.attempt == 1:
            raise KeyError(event.payload)
        event.publish("billed", f"{event.payload} {session.of}")

    @app.consumer("parcels", group="store", batch=10, wait="10ms")
    async def store(events: list[Event[str]], session: Plain) -> None:
        events[0].publish("stored", f"{len(events)} {session.of}")

    @app.every("50ms", name="nightly")
    def nightly(session: Plain) -> None: ...

    @app.task(max_attempts=1)
    def send(to: str, session: Plain, task: TaskContext, subject: str = "hello") -> str:
        return f"{subject} {to} {session.of} {task.attempt}"

    @app.run
    async def checkout(perform: Perform) -> list[str]:
        return [await perform(Charge(5)), await perform.step(pack, "pen"), await perform.step(seal, "pen")]

    @app.handles(Charge)
    async def charge(effect: Charge, session: Async) -> str:
        return f"{effect.cents} {session.of}"

    return app


async def test_commands_and_queries_get_a_session_that_is_closed_after_the_call(start: Start) -> None:
    async with start(shop()) as node:
        assert await node.command("Order.Place", {"sku": "pen"}) == "real"
        assert trail[-2:] == ["open", "commit"]
        assert await node.query("Order.Count", {})  # a plain handler and its plain provider share a thread
        with pytest.raises(Fail, match="nothing to place") as caught:
            await node.command("Order.Place", {})
        assert caught.value.code == 409
        assert "roll back Fail" in trail


async def test_each_attempt_of_a_consumer_has_its_own(start: Start) -> None:
    async with start(shop()) as node:
        await node.publish("orders", "pen")
        await node.comes("billed", "pen real")
        await node.until(lambda: "roll back KeyError" in trail)


async def test_batches_schedules_and_tasks(start: Start) -> None:
    app = shop()
    async with start(app) as node:
        await node.publish_many("parcels", ["a", "b"])
        await node.until(lambda: "commit" in trail)
        (send,) = app.tasks
        handle = await node.enqueue(send, "ada", subject="hi")
        assert handle
        await node.until(lambda: trail.count("commit") > 3)  # and the schedule goes on


async def test_the_arguments_of_a_task_are_those_that_nobody_provides() -> None:
    app = shop()
    (send,) = app.tasks
    async with simulate(app):
        assert await (await send.enqueue("ada")).result() == "hello ada plain 1"
        assert await (await send.enqueue("ada", subject="hi")).result() == "hi ada plain 1"
        with pytest.raises(TypeError):
            await send.enqueue("ada", session="mine")


async def test_effects_and_steps_of_runs(start: Start) -> None:
    async with start(shop()) as node:
        run = await node.start_run("checkout")
        assert (await node.outcome(run)).value == ["5 real", "packed pen with real", "sealed pen with plain"]


async def test_a_type_that_is_provided_needs_no_mark_also_if_it_is_provided_later(start: Start) -> None:
    app, started = App("shop"), []

    @app.command("Order.Place")
    def place(data: dict[str, Any], ctx: Context, session: Session, *, tenant: Tenant) -> str:
        return f"{session.of} {tenant.name}"

    @app.handles(Charge)
    async def charge(effect: Charge, session: Session) -> str:
        return session.of

    @app.run
    async def pay(perform: Perform) -> list[str]:
        return [await perform(Charge(5)), await perform.step(write, "pen")]

    def write(sku: str, session: Session) -> str:
        return f"{sku} {session.of}"

    @app.on_start
    async def begin(app: App, session: Session) -> None:
        started.append(f"{app.name} {session.of}")

    @app.on_stop
    def stop(session: Session) -> None:
        started.append(session.of)

    app.provide(Session, get_plain_session)
    app.provide(Tenant, lambda: Tenant("ada"))
    async with start(app) as node:
        assert await node.command("Order.Place", {}) == "plain ada"
        run = await node.start_run("pay")
        assert (await node.outcome(run)).value == ["plain", "pen plain"]
    assert started == ["shop plain", "plain"]


async def test_a_provider_is_asked_once_per_call_and_takes_what_the_call_has(start: Start) -> None:
    app, asked = App("shop"), []

    def get_tenant(ctx: Context) -> Tenant:
        asked.append(ctx.message.type)
        return Tenant(ctx.message.data["tenant"])

    async def get_name(tenant: Annotated[Tenant, Depends(get_tenant)], call: HandlerCall) -> str:
        return f"{call.kind} {call.name} {tenant.name}"

    @app.command("Order.Place")
    async def place(
        data: dict[str, Any],
        ctx: Context,
        name: Annotated[str, Depends(get_name)],
        tenant: Annotated[Tenant, Depends(get_tenant)],
    ) -> str:
        return f"{name} {tenant.name}"

    def topic_of(event: Event[Any]) -> str:
        event.publish("seen", event.topic)  # a plain provider has blocking verbs
        return event.topic

    @app.consumer("orders")
    async def bill(event: Event[Any], topic: Annotated[str, Depends(topic_of)]) -> None:
        event.publish("billed", topic)

    async with start(app) as node:
        assert await node.command("Order.Place", {"tenant": "ada"}) == "command Order.Place ada ada"
        assert await node.command("Order.Place", {"tenant": "eve"}) == "command Order.Place eve eve"
        await node.publish("orders", 1)
        await node.comes("billed", "orders")
        await node.comes("seen", "orders")
    assert asked == ["Order.Place", "Order.Place"]


async def test_sessions_are_closed_in_reverse_and_an_error_cannot_be_hidden(start: Start) -> None:
    app, seen = App("shop"), []

    def outer() -> Iterator[str]:
        try:
            yield "outer"
        except Exception as error:
            seen.append(f"outer {error}")  # and forgets to raise it

    async def inner(outer: Annotated[str, Depends(outer)]) -> AsyncIterator[str]:
        try:
            yield f"{outer} inner"
        except Exception as error:
            raise Fail(503, f"after {error.args[-1]}") from error

    @app.middleware
    async def watch(call: HandlerCall, next: Next) -> Any:
        try:
            return await next(call)
        except Exception as error:
            seen.append(f"middleware {error}")
            raise

    @app.command("Order.Place")
    def place(data: Any, ctx: Context, both: Annotated[str, Depends(inner)]) -> str:
        raise Fail(409, "sold out")

    async with start(app) as node:
        with pytest.raises(Fail, match="after sold out"):
            await node.command("Order.Place", {})
    assert seen == ["outer 503 after sold out", "middleware 503 after sold out"]


async def test_what_fails_behind_the_yield_fails_the_call(start: Start) -> None:
    app, commits = App("shop"), []

    def session() -> Iterator[int]:
        yield 1
        commits.append(1)
        if len(commits) == 1:
            raise ConnectionError("the database is gone")

    @app.consumer("orders", backoff="10ms")
    def bill(event: Event[str], session: Annotated[int, Depends(session)]) -> None:
        event.publish("billed", event.attempt)

    async with start(app) as node:
        await node.publish("orders", "pen")
        await node.comes("billed", 2)


@pytest.mark.parametrize("fake", [lambda: Session("fake"), get_plain_session])
async def test_a_test_replaces_a_provider(start: Start, fake: Callable[[], Any]) -> None:
    app, wanted = shop(), "fake" if inspect.isfunction(fake) and fake.__name__ == "<lambda>" else "plain"
    async with start(app) as node:
        with app.override(get_session, fake):
            assert await node.command("Order.Place", {"sku": "pen"}) == wanted
        assert await node.command("Order.Place", {"sku": "pen"}) == "real"


async def test_a_fake_may_be_async_where_the_provider_is_plain_and_is_found_by_its_type() -> None:
    app = App("shop")
    app.provide(Session, get_plain_session)

    @app.query("Order.Count")
    def count(data: Any, ctx: Context, session: Session) -> str:
        return session.of

    async def fake() -> Session:
        return Session("fake")

    with app.override(Session, fake):
        async with simulate(app) as world:
            assert await world.query("Order.Count", {}) == "fake"
    async with simulate(app) as world:
        assert await world.query("Order.Count", {}) == "plain"


def _command(app: App) -> None:
    @app.command("Order.Place")
    async def place(data: Any, ctx: Context, session: Session) -> None: ...


def _consumer(app: App) -> None:
    @app.consumer("orders")
    def bill(event: Event[Any], session: Session) -> None: ...


def _schedule(app: App) -> None:
    @app.every("1h")
    def nightly(session: Session) -> None: ...


def _answer(app: App) -> None:
    @app.handles(Charge)
    async def charge(effect: Charge, ctx: EffectContext, session: Session) -> str: ...


def _hook(app: App) -> None:
    @app.on_start
    async def begin(session: Session) -> None: ...


@pytest.mark.parametrize("declare", [_command, _consumer, _schedule, _answer, _hook])
async def test_what_nobody_provides_is_refused_at_boot_with_its_place(declare: Callable[[App], None]) -> None:
    app = App("shop")
    declare(app)
    with pytest.raises(MainspringError, match="nothing provides `session: Session`") as caught:
        async with simulate(app):
            pass
    line = inspect.getsourcelines(declare)[1] + 1
    assert f"{Path(__file__).name}:{line})" in caught.value.message
    assert "app.provide(Session, provider)" in caught.value.remedy


async def test_a_provider_that_cannot_be_called_is_refused_at_boot() -> None:
    def of_event(event: Event[Any]) -> str:
        return event.topic

    def unknown(session: Session) -> str:
        return session.of

    def itself(again: Any) -> str:
        return ""

    itself.__annotations__["again"] = Annotated[str, Depends(itself)]

    for provider, text in {
        of_event: "nothing provides `event: Event`",
        unknown: "nothing provides `session: Session`",
        itself: "needs itself",
    }.items():
        app = App("shop")

        async def place(data: Any, ctx: Context, value: Any) -> None: ...

        place.__annotations__["value"] = Annotated[str, Depends(provider)]
        app.command("Order.Place")(place)
        with pytest.raises(MainspringError, match=text) as caught:
            async with simulate(app):
                pass
        assert Path(__file__).name in caught.value.message


async def test_a_type_is_provided_once() -> None:
    app = App("shop")
    app.provide(Session, get_plain_session)
    with pytest.raises(MainspringError, match=r"Session is provided twice: get_plain_session .* and get_session"):
        app.provide(Session, get_session)


async def test_a_worker_refuses_a_task_whose_dependency_cannot_be_made() -> None:
    app = App("shop")

    def of_event(event: Event[Any]) -> str:
        return event.topic

    @app.task
    def send(to: str, topic: Annotated[str, Depends(of_event)]) -> None: ...

    with pytest.raises(MainspringError, match=r"task send .*: its provider of_event"):
        Worker(app.tasks)


async def test_code_that_is_called_directly_is_given_its_dependencies_by_hand() -> None:
    app = shop()
    (send,) = app.tasks
    context: Any = type("Given", (), {"attempt": 1})
    assert send("ada", Session("mine"), context) == "hello ada mine 1"
