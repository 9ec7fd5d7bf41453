"""The inbox: an effect and its mark are one transaction, so an event that comes twice has its effect once."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import sqlalchemy
from sqlalchemy.orm import Session

from mainspring.loop import VirtualClock
from mainspring.outbox.inbox import Inbox
from mainspring.outbox.sql import NoTransaction
from tests.support.outbox import Shop, sqlite_shop
from tests.support.paths import ROOT
from tests.support.serving import clean_environment, serving
from tests.support.terminal import Terminal, url_of

CONSUMER = ROOT / "tests" / "support" / "outbox_consumer.py"


@dataclass
class Delivered:
    id: str
    headers: dict[str, str] = field(default_factory=dict)


@pytest.fixture
def inbox(shop: Shop) -> Inbox:
    inbox = Inbox("billing")
    with shop.transaction() as connection:
        inbox.create(connection)
    return inbox


def handle(shop: Shop, inbox: Inbox, event: Delivered, *, fails: bool = False) -> bool:
    """The effect: one order. Whether it was done."""
    connection = shop.connect()
    try:
        first = inbox.first_time(connection, event)
        if first:
            shop.execute(connection, "INSERT INTO orders VALUES (?)", 1)
        if fails:
            connection.rollback()
            return False
        connection.commit()
        return first
    finally:
        connection.close()


def orders(shop: Shop) -> int:
    with shop.transaction() as connection:
        ((count,),) = shop.execute(connection, "SELECT count(*) FROM orders")
    return int(count)


def test_an_event_that_comes_twice_has_its_effect_once(shop: Shop, inbox: Inbox) -> None:
    assert handle(shop, inbox, Delivered("e1")) is True
    assert handle(shop, inbox, Delivered("e1")) is False
    assert handle(shop, inbox, Delivered("e2")) is True
    assert orders(shop) == 2


def test_an_effect_that_was_rolled_back_is_done_the_next_time(shop: Shop, inbox: Inbox) -> None:
    handle(shop, inbox, Delivered("e1"), fails=True)
    assert orders(shop) == 0
    assert handle(shop, inbox, Delivered("e1")) is True
    assert orders(shop) == 1


def test_two_consumers_each_have_their_own_effect(shop: Shop, inbox: Inbox) -> None:
    assert handle(shop, inbox, Delivered("e1"))
    assert handle(shop, Inbox("shipping"), Delivered("e1"))


def test_a_row_published_twice_under_two_event_ids_is_recognised_by_its_outbox_id(shop: Shop, inbox: Inbox) -> None:
    assert handle(shop, inbox, Delivered("e1", {"x-outbox-id": "row-1"}))
    assert not handle(shop, inbox, Delivered("e9", {"x-outbox-id": "row-1"}))


def test_two_transactions_that_mark_the_same_event_wait_for_each_other(shop: Shop, inbox: Inbox) -> None:
    first = shop.connect()
    assert inbox.first_time(first, "e1")
    answers: list[bool] = []

    def second() -> None:
        with shop.transaction() as connection:
            answers.append(inbox.first_time(connection, "e1"))

    thread = threading.Thread(target=second)
    thread.start()
    first.commit()
    first.close()
    thread.join(30)
    assert answers == [False]


def test_a_sqlalchemy_session_works_and_autocommit_is_refused(shop: Shop, inbox: Inbox) -> None:
    engine = sqlalchemy.create_engine(shop.url.replace("postgresql:", "postgresql+psycopg:"))
    for expected in (True, False):
        with Session(engine) as session:
            assert inbox.first_time(session, "e1") is expected
            session.commit()
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as alone, pytest.raises(NoTransaction):
        inbox.first_time(alone, "e2")
    engine.dispose()


def test_old_marks_are_forgotten(tmp_path: Path) -> None:
    shop = sqlite_shop(tmp_path)
    clock = VirtualClock()
    inbox = Inbox("billing", clock=clock)
    with shop.transaction() as connection:
        inbox.create(connection)
        inbox.first_time(connection, "old")
        clock.advance(1_000)
        inbox.first_time(connection, "new")
        assert inbox.clean(connection, 500) == 1
        assert inbox.first_time(connection, "new") is False


def test_a_consumer_killed_between_its_commit_and_its_acknowledgement_books_everything_once(tmp_path: Path) -> None:
    file = tmp_path / "billing.db"
    with sqlite3.connect(file) as connection:
        Inbox("billing").create(connection)
        connection.execute("CREATE TABLE booked (number INTEGER)")
    with serving(tmp_path, env={"BUS_ACK_TIMEOUT_MS": "2000"}) as node:
        url = url_of(node)
        Terminal(url).ok("pub", "orders", stdin="".join(f"{number}\n" for number in range(20)))
        for crash_after in (3, 1, 0):
            done = subprocess.run(
                [sys.executable, str(CONSUMER), url, "orders", str(file), str(crash_after)],
                env=clean_environment(),
                timeout=60,
                check=False,
            )
            assert done.returncode == (-signal.SIGKILL if crash_after else 0)
    with sqlite3.connect(file) as connection:
        booked = [number for (number,) in connection.execute("SELECT number FROM booked ORDER BY number")]
    assert booked == list(range(20))
