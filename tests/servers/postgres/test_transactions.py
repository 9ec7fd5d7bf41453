"""Your rows and your events in one transaction: what commits is delivered once, in order; what rolls back never was.

What users of an outbox (Debezium, Celery's `on_commit`, Oban, River) expect, without a drainer of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

import asyncpg
import django
import django.db
import django.db.transaction
import psycopg
import psycopg.conninfo
import pytest
import sqlalchemy
from django.conf import settings
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from mainspring import App, Fail, connect
from mainspring.app import Event
from mainspring.client import BadArgument, EventTooLarge
from mainspring.kernel import CapabilityError
from mainspring.log.engines.postgres import PostgresEngine
from mainspring.node import BootFailure
from mainspring.outbox import NoTransaction
from mainspring.postgres import enqueue, publish, start_run
from mainspring.runs import Perform
from mainspring.testing import serving
from mainspring.testing.serving import Served
from tests.support.client_node import eventually
from tests.support.postgres import shared_postgres
from tests.support.serving import clean_environment


@pytest.fixture
def schema(address: str) -> str:
    return address.rpartition("=")[2]


@pytest.fixture
def database() -> str:
    return shared_postgres().url("postgres")


class Shop:
    """A program that keeps what it was given."""

    def __init__(self) -> None:
        self.app = App("shop")
        self.seen: list[Any] = []
        self.done: list[Any] = []

        @self.app.consumer("orders", group="g", key_concurrency=1)
        async def take(event: Event[Any]) -> None:
            self.seen.append(event.payload)

        @self.app.task
        async def mail(to: str, times: int = 1) -> None:
            self.done.append((to, times))

        @self.app.run
        async def ship(order: int, perform: Perform) -> int:
            self.done.append(order)
            return order

        self.mail, self.ship = mail, ship

    async def until(self, *payloads: Any, of: str = "seen") -> None:
        async def are_there() -> bool:
            return sorted(map(repr, getattr(self, of))) == sorted(map(repr, payloads))

        await eventually(are_there)


@contextlib.asynccontextmanager
async def shop_on(address: str) -> AsyncIterator[tuple[Shop, Served]]:
    shop = Shop()
    async with serving(shop.app, engine=address) as served:
        yield shop, served


async def test_what_commits_is_delivered_and_what_rolls_back_never_was(
    address: str, database: str, schema: str
) -> None:
    async with shop_on(address) as (shop, _):
        with psycopg.connect(database) as connection:
            publish(connection, "orders", 1, schema=schema)
            connection.rollback()
            id = publish(connection, "orders", {"order": 2}, key="c", headers={"h": "1"}, schema=schema)
            enqueue(connection, shop.mail, "ada", times=2, schema=schema)
            enqueue(connection, shop.mail.options(delay="10ms"), "bob", schema=schema)
            run = start_run(connection, shop.ship, 17, id="ship-17", schema=schema)
        assert (len(id), run) == (36, "ship-17")
        await shop.until({"order": 2})
        await shop.until(("ada", 2), ("bob", 1), 17, of="done")


def _of_psycopg(database: str) -> Any:
    return psycopg.connect(database)


def _of_sqlalchemy(database: str) -> Any:
    engine = sqlalchemy.create_engine(database.replace("postgresql://", "postgresql+psycopg://"))
    return engine.begin()


@pytest.mark.parametrize("connect", [_of_psycopg, _of_sqlalchemy])
async def test_every_blocking_connection_takes_them(
    address: str, database: str, schema: str, connect: Callable[[str], Any]
) -> None:
    async with shop_on(address) as (shop, _):
        with connect(database) as connection:
            publish(connection, "orders", "in", key="k", schema=schema)
        await shop.until("in")


async def test_the_connection_of_django_takes_them(address: str, database: str, schema: str) -> None:
    def in_a_view(shop: Shop) -> None:
        if not settings.configured:
            settings.configure(DATABASES={"default": _as_django_writes(database)}, LOGGING_CONFIG=None)
            django.setup()
        with contextlib.closing(django.db.connection):
            with contextlib.suppress(ZeroDivisionError), django.db.transaction.atomic():
                enqueue(django.db.connection, shop.mail, "nobody", schema=schema)
                raise ZeroDivisionError
            with django.db.transaction.atomic():
                publish(django.db.connection, "orders", "in", key="k", schema=schema)
                enqueue(django.db.connection, shop.mail, "ada", times=2, schema=schema)
                start_run(django.db.connection, shop.ship, 5, schema=schema)

    async with shop_on(address) as (shop, _):
        await asyncio.to_thread(in_a_view, shop)
        await shop.until("in")
        await shop.until(("ada", 2), 5, of="done")


def _as_django_writes(database: str) -> dict[str, Any]:
    parts = psycopg.conninfo.conninfo_to_dict(database)
    names = {"NAME": "dbname", "USER": "user", "PASSWORD": "password", "HOST": "host", "PORT": "port"}
    found = {key: parts[name] for key, name in names.items() if name in parts}
    return {"ENGINE": "django.db.backends.postgresql", **found}


async def test_every_async_connection_takes_them(address: str, database: str, schema: str) -> None:
    async with shop_on(address) as (shop, _):
        async with await psycopg.AsyncConnection.connect(database) as connection:
            await publish(connection, "orders", "psycopg", key="k", schema=schema)
        plain = await asyncpg.connect(database)
        async with plain.transaction():
            await publish(plain, "orders", "asyncpg", key="k", schema=schema)
        await plain.close()
        async with asyncpg.create_pool(database, min_size=1) as pool, pool.acquire() as pooled, pooled.transaction():
            await start_run(pooled, "ship", 3, schema=schema)
        for driver in ("psycopg", "asyncpg"):
            engine = create_async_engine(database.replace("postgresql://", f"postgresql+{driver}://"))
            async with AsyncSession(engine) as session, session.begin():
                await session.execute(sqlalchemy.text("SELECT 1"))
                await publish(session, "orders", f"session {driver}", schema=schema)
            async with engine.begin() as sqlalchemy_connection:
                await enqueue(sqlalchemy_connection, shop.mail, driver, schema=schema)
            await engine.dispose()
        await shop.until("psycopg", "asyncpg", "session psycopg", "session asyncpg")
        await shop.until(3, ("psycopg", 1), ("asyncpg", 1), of="done")


async def test_events_of_a_key_are_in_the_order_of_commits(address: str, database: str, schema: str) -> None:
    """Many transactions at once, each as long as it likes; two nodes, one of which stops in the middle."""
    async with shop_on(address) as (shop, _):
        committed: list[int] = []

        async def write(number: int) -> None:
            connection = await asyncpg.connect(database)
            async with connection.transaction():
                await connection.execute("SELECT pg_sleep(random() / 100)")
                await publish(connection, "orders", number, key="same", schema=schema)
                committed.append(number)  # nobody else with this key is here before it commits
                await connection.execute("SELECT pg_sleep(random() / 100)")
            await connection.close()

        async with shop_on(address) as (other, _):
            await asyncio.gather(*map(write, range(20)))
        await asyncio.gather(*map(write, range(20, 30)))
        seen: list[int] = []

        async def all_seen() -> bool:
            seen[:] = [*other.seen, *shop.seen]
            return len(seen) >= 30

        await eventually(all_seen)
        assert await stored_in(address, "orders") == committed
        assert sorted(seen) == list(range(30))


async def stored_in(address: str, topic: str) -> list[Any]:
    """The payloads of a topic, by partition and offset."""
    engine = PostgresEngine(address)
    await engine.open()
    bounds = await engine.bounds(topic)
    found = [event for each in bounds for event in await engine.read(topic, each.partition, 1, 99)]
    await engine.close()
    return [json.loads(event.payload) for event in found]


async def test_what_was_stored_while_no_node_ran_is_moved_by_the_next(address: str, database: str, schema: str) -> None:
    async with shop_on(address):
        pass
    with psycopg.connect(database) as connection:
        for number in range(5):
            publish(connection, "orders", number, key="k", schema=schema)
    async with shop_on(address) as (shop, _):
        await shop.until(0, 1, 2, 3, 4)
        assert shop.seen == [0, 1, 2, 3, 4]


async def test_what_can_never_be_moved_is_set_aside_and_holds_up_nothing(
    address: str, database: str, schema: str
) -> None:
    async with shop_on(address) as (shop, served):
        with psycopg.connect(database) as connection:
            publish(connection, "not a topic!", 1, schema=schema)
            start_run(connection, shop.ship, "no", "number", schema=schema)
            start_run(connection, "nobody_has_this", schema=schema)
            publish(connection, "orders", "behind", schema=schema)
        await shop.until("behind")
        log = served.node.log

        async def aside() -> bool:
            return len([record async for record in log.scan("outgoing_refused")]) == 2

        await eventually(aside)
        assert len([record async for record in log.scan("outgoing")]) == 1  # waits for a node that has the program


async def test_mistakes_are_refused_in_the_program(address: str, database: str, schema: str) -> None:
    async with shop_on(address):
        with psycopg.connect(database, autocommit=True) as connection:
            with pytest.raises(NoTransaction):
                publish(connection, "orders", 1, schema=schema)
            with connection.transaction(), pytest.raises(EventTooLarge):
                publish(connection, "orders", "x" * 2_000_000, schema=schema)
            with connection.transaction(), pytest.raises(BadArgument):
                publish(connection, "", 1, schema=schema)
            with connection.transaction(), pytest.raises(BadArgument):
                publish(connection, "orders", 1, schema="A;")
        with pytest.raises(BadArgument, match="no connection"):
            publish("database", "orders", 1)


def billing(fails: list[str]) -> App:
    """A program whose effect is a row; it fails as told, before or after its statements."""
    app = App("billing")

    @app.consumer("orders", transaction=True, backoff="1ms")
    async def bill(event: Event[int]) -> None:
        await event.connection.execute("INSERT INTO invoices (number) VALUES ($1)", event.payload)
        event.publish("billed", event.payload, key="k")
        await enqueue(event.connection, sent, event.payload, schema=event.headers["schema"])
        if fails:
            failure = fails.pop()
            if failure == "refuse":
                event.nack("not now")
            elif failure == "statement":
                await event.connection.execute("SELECT 1 / 0")
            elif failure == "kill":
                await event.connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")
            else:
                raise RuntimeError(failure)

    done: list[int] = []

    @app.task
    async def sent(number: int) -> None:
        done.append(number)

    app.state.done = done
    return app


async def test_the_commit_of_a_consumers_rows_is_its_acknowledgement(
    address: str, database: str, schema: str, sql: Any
) -> None:
    await sql.execute("DROP TABLE IF EXISTS invoices")
    await sql.execute("CREATE TABLE invoices (number int)")
    app = billing(["refuse", "statement", "kill", "raise"])
    async with serving(app, engine=address):
        for number in range(6):
            with psycopg.connect(database) as connection:
                publish(connection, "orders", number, headers={"schema": schema}, schema=schema)

        async def all_billed() -> bool:
            return len(app.state.done) == 6 and await sql.fetchval("SELECT count(*) FROM invoices") == 6  # type: ignore[no-any-return]

        await eventually(all_billed)
    assert sorted(await stored_in(address, "billed")) == list(range(6))
    assert sorted(app.state.done) == list(range(6))
    async with serving(app, engine=address):  # nothing comes again
        with psycopg.connect(database) as connection:
            publish(connection, "orders", 6, headers={"schema": schema}, schema=schema)

        async def one_more() -> bool:
            return await sql.fetchval("SELECT count(*) FROM invoices") == 7  # type: ignore[no-any-return]

        await eventually(one_more)
    await sql.execute("DROP TABLE invoices")


async def test_a_transaction_needs_a_database_and_an_async_function() -> None:
    app = App("billing")

    @app.consumer("orders", transaction=True)
    async def bill(event: Event[int]) -> None: ...

    with pytest.raises(BootFailure, match="postgresql://"):
        async with serving(app):
            pass
    with pytest.raises(CapabilityError, match="async function"):

        @app.consumer("orders", transaction=True)
        def plain(event: Event[int]) -> None: ...

    with pytest.raises(CapabilityError, match="one by one"):

        @app.consumer("orders", transaction=True, batch=10)
        async def many(events: list[Event[int]]) -> None: ...


async def test_what_was_refused_is_listed_tried_again_and_dropped(address: str, database: str, schema: str) -> None:
    async with shop_on(address) as (shop, served), connect(served.url) as client:
        await client.http.call("POST", "/schemas/orders", {"schema": {"type": "string"}})
        with psycopg.connect(database) as connection:
            publish(connection, "orders", 17, schema=schema)
            start_run(connection, shop.ship, "no", "number", schema=schema)
            publish(connection, "orders", "behind", schema=schema)
        await shop.until("behind")

        async def refused() -> list[tuple[str, str]]:
            found = (await client.http.call("GET", "/outgoing"))["refused"]
            return [(each["id"], each["name"]) for each in found]

        (event, _), (run, program) = await refused()
        assert program == "ship"
        (need,) = [each for each in (await client.attention())["needs"] if each["kind"] == "refused_outgoing"]
        assert (need["count"], need["examples"][0]["of"]) == (2, "orders")
        assert "schema" in need["examples"][0]["text"].lower()
        assert need["remedy"] == "mainspring outgoing list"
        listed = await cli(served, "list", "--json")
        assert [json.loads(line)["id"] for line in listed.splitlines()] == [event, run]

        widened = {"schema": {"type": ["string", "integer"]}}
        await client.http.call("POST", "/schemas/orders", widened)
        assert "2 are tried again" in await cli(served, "retry", "--all")
        await shop.until("behind", 17)

        async def only_the_run() -> bool:
            (kept,) = (await client.http.call("GET", "/outgoing"))["refused"]
            return (kept["id"], kept["again"]) == (run, False)  # refused again

        await eventually(only_the_run)
        assert "dropped 1" in await cli(served, "drop", run, "--yes")
        assert await refused() == []
        assert not [each for each in (await client.attention())["needs"] if each["kind"] == "refused_outgoing"]
        with pytest.raises(Fail, match="one of them"):
            await client.command("Bus.DropOutgoing", {})
        assert shop.seen == ["behind", 17]


async def cli(served: Served, *arguments: str) -> str:
    command = [sys.executable, "-m", "mainspring", "outgoing", *arguments, "--url", served.url]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, env=clean_environment()
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output
    return output.decode()
