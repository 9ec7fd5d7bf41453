"""Adding rows: they live and die with the program's own transaction, in whatever it holds in its hand."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiosqlite
import asyncpg
import msgspec
import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from mainspring.client.errors import BadArgument, EventTooLarge, NotEncodable
from mainspring.loop import VirtualClock
from mainspring.outbox import Inbox, NoTransaction, Outbox
from tests.support.outbox import FakeNode, Shop, drainer, sqlite_shop


@dataclass
class Order:
    number: int


def sent(shop: Shop) -> list[Any]:
    node = FakeNode()
    drainer(shop, node, VirtualClock()).drain_all()
    return node.stored


def engine_of(shop: Shop, **options: Any) -> sqlalchemy.Engine:
    return sqlalchemy.create_engine(shop.url.replace("postgresql:", "postgresql+psycopg:"), **options)


def test_what_is_committed_is_published_and_what_is_rolled_back_never_was(shop: Shop) -> None:
    with shop.transaction() as connection:
        shop.execute(connection, "INSERT INTO orders VALUES (?)", 1)
        id = Outbox().add(connection, "orders", Order(1), key="c-17", headers={"ct": "json"})
    connection = shop.connect()
    shop.execute(connection, "INSERT INTO orders VALUES (?)", 2)
    Outbox().add(connection, "orders", Order(2))
    connection.rollback()
    connection.close()
    (event,) = sent(shop)
    assert (event.id, event.topic, event.key, event.payload) == (id, "orders", "c-17", {"number": 1})
    assert event.headers == {"ct": "json", "x-outbox-id": id}
    assert sent(shop) == []


def test_a_row_of_an_open_transaction_is_not_seen(shop: Shop) -> None:
    connection = shop.connect()
    Outbox().add(connection, "orders", 1)
    if shop.kind == "postgresql":  # SQLite's one writer would make the drainer wait for the end of the transaction
        assert sent(shop) == []
    connection.commit()
    connection.close()
    assert [event.payload for event in sent(shop)] == [1]


def test_a_sqlalchemy_session_and_connection_take_rows_in_their_transaction(shop: Shop) -> None:
    engine = engine_of(shop)
    with Session(engine) as session:
        session.execute(sqlalchemy.text("INSERT INTO orders VALUES (1)"))
        Outbox().add(session, "orders", "by session")
        session.commit()
        Outbox().add(session, "orders", "never")
        session.rollback()
    with engine.begin() as connection:
        Outbox().add(connection, "orders", "by connection")
    with engine.connect() as connection:
        Outbox().add(connection, "orders", "never")
    engine.dispose()
    assert [event.payload for event in sent(shop)] == ["by session", "by connection"]


def test_a_connection_that_commits_by_itself_is_refused(shop: Shop) -> None:
    with engine_of(shop, isolation_level="AUTOCOMMIT").connect() as alone, pytest.raises(NoTransaction) as told:
        Outbox().add(alone, "orders", 1)
    assert "autocommit" in told.value.remedy
    connection = shop.connect()
    if shop.kind == "sqlite":
        connection.isolation_level = None
    else:
        connection.autocommit = True
    with pytest.raises(NoTransaction):
        Outbox().add(connection, "orders", 1)
    connection.cursor().execute("BEGIN")
    Outbox().add(connection, "orders", "begun by hand")
    connection.cursor().execute("COMMIT")
    connection.close()
    assert [event.payload for event in sent(shop)] == ["begun by hand"]


def test_making_the_table_twice_and_at_the_same_time_is_harmless(shop: Shop) -> None:
    for _ in range(2):
        with shop.transaction() as connection:
            Outbox().create(connection)
    assert Outbox("other").statements("postgresql" if shop.kind == "postgresql" else "sqlite")[0].count("other") == 1


def test_a_table_of_another_name_is_an_outbox_of_its_own(shop: Shop) -> None:
    outbox = Outbox("audit_outbox")
    with shop.transaction() as connection:
        outbox.create(connection)
        outbox.add(connection, "audit", 1)
    assert sent(shop) == []


@pytest.mark.parametrize("name", ["a b", "x;drop table orders", "1a", "a.b.c", ""])
def test_a_name_that_could_be_something_else_in_a_statement_is_refused(name: str) -> None:
    with pytest.raises(BadArgument):
        Outbox(name)


def test_what_cannot_be_published_is_told_while_the_transaction_can_still_change(tmp_path: Path) -> None:
    shop = sqlite_shop(tmp_path)
    with shop.transaction() as connection:
        with pytest.raises(NotEncodable):
            Outbox().add(connection, "orders", object())
        with pytest.raises(EventTooLarge):
            Outbox().add(connection, "orders", "x" * 1_100_000)
        with pytest.raises(BadArgument):
            Outbox().add(connection, "", 1)
        with pytest.raises(BadArgument):
            Outbox().add(connection, "orders", 1, key=7)  # type: ignore[arg-type]
        with pytest.raises(BadArgument):
            Outbox().add(connection, "orders", 1, headers={"a": 1})  # type: ignore[dict-item]
    assert shop.rows() == []


def test_what_is_no_connection_is_refused_with_what_to_give_instead(tmp_path: Path) -> None:
    for wrong in (object(), "sqlite:///shop.db", sqlalchemy.create_engine("sqlite://")):
        with pytest.raises(BadArgument) as told:
            Outbox().add(wrong, "orders", 1)
        assert told.value.remedy


def test_payloads_arrive_as_they_were_added(shop: Shop) -> None:
    payloads = [None, True, 2**60, 0.1, "é \u0000 \U0001f986 %s :name", [1, {"a": {}}], ""]
    shop.add("orders", *payloads)
    assert [event.payload for event in sent(shop)] == payloads


def test_a_database_that_is_full_fails_the_whole_transaction(tmp_path: Path) -> None:
    shop = sqlite_shop(tmp_path)
    connection = shop.connect()
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages + 2}")
    connection.execute("INSERT INTO orders VALUES (1)")
    with pytest.raises(sqlite3.OperationalError, match="full"):
        Outbox().add(connection, "orders", "x" * 500_000)
    connection.rollback()
    assert connection.execute("SELECT count(*) FROM orders").fetchone() == (0,)
    connection.close()
    assert sent(shop) == []


def test_rows_survive_as_plain_json_that_anybody_can_read(shop: Shop) -> None:
    shop.add("orders", {"sku": 1}, key="k")
    ((payload, headers),) = shop.rows("payload, headers")
    assert msgspec.json.decode(payload) == {"sku": 1}
    assert headers is None


async def test_async_connections_take_rows(new_database: Callable[[], str], tmp_path: Path) -> None:
    shop = Shop("postgresql", new_database())
    outbox = Outbox()
    async with await psycopg.AsyncConnection.connect(shop.url) as connection:
        await outbox.create(connection)
        await outbox.add(connection, "orders", "psycopg")
    plain = await asyncpg.connect(shop.url)
    with pytest.raises(NoTransaction):
        await outbox.add(plain, "orders", 1)
    async with plain.transaction():
        await outbox.add(plain, "orders", "asyncpg")
    await plain.close()
    for driver in ("psycopg", "asyncpg"):
        engine = create_async_engine(shop.url.replace("postgresql:", f"postgresql+{driver}:"))
        async with AsyncSession(engine) as session, session.begin():
            await outbox.add(session, "orders", f"session {driver}")
        await engine.dispose()
    assert [event.payload for event in sent(shop)] == ["psycopg", "asyncpg", "session psycopg", "session asyncpg"]
    small = sqlite_shop(tmp_path)
    async with aiosqlite.connect(small.url.removeprefix("sqlite:///")) as connection:
        await outbox.add(connection, "orders", "aiosqlite")
        await connection.commit()
    assert [event.payload for event in sent(small)] == ["aiosqlite"]


async def test_async_connections_mark_the_inbox(new_database: Callable[[], str]) -> None:
    url, inbox = new_database(), Inbox("billing")
    plain = await asyncpg.connect(url)
    async with plain.transaction():
        await inbox.create(plain)
        assert await inbox.first_time(plain, "e-1") is True
        assert await inbox.first_time(plain, "e-1") is False
    await plain.close()
    async with await psycopg.AsyncConnection.connect(url) as connection:
        assert await inbox.first_time(connection, "e-1") is False
        assert await inbox.first_time(connection, "e-2") is True
        assert await inbox.clean(connection, 0) >= 0


def test_a_django_connection_takes_rows(new_database: Callable[[], str]) -> None:
    """In a process of its own: Django's settings are one for a process."""
    shop = Shop("postgresql", new_database())
    done = subprocess.run([sys.executable, "-c", _DJANGO, shop.url], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [event.payload for event in sent(shop)] == ["django"]


_DJANGO = """
import sys
from urllib.parse import urlsplit
import django
from django.conf import settings
url = urlsplit(sys.argv[1])
settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", "NAME": url.path[1:],
    "USER": url.username, "HOST": url.hostname, "PORT": url.port}})
django.setup()
from django.db import connection, transaction
from mainspring.outbox import NoTransaction, Outbox
outbox = Outbox()
try:
    outbox.add(connection, "orders", 1)
    sys.exit("took a row without a transaction")
except NoTransaction:
    pass
with transaction.atomic():
    outbox.create(connection)
    outbox.add(connection, "orders", "django")
try:
    with transaction.atomic():
        outbox.add(connection, "orders", "rolled back")
        raise KeyError
except KeyError:
    pass
"""
