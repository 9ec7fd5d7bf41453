"""The outbox and inbox in a real MongoDB, where there is one: MONGO_URL, or `mongod` on the path.

Debian has no package of MongoDB, so elsewhere this file is not collected (see conftest.py). Transactions need a replica
set, which a server started here is.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import pytest
from pymongo import MongoClient

from mainspring.client.inbox import Inbox
from mainspring.client.outbox import Outbox
from mainspring.client.outbox_bind import NoTransaction
from mainspring.client.outbox_drain import Drainer, DrainOptions
from mainspring.client.outbox_open import open_outbox
from mainspring.loop import VirtualClock
from outbox.world import FakeNode

LEASE_MS = 60_000
_numbers = itertools.count(1)


@contextlib.contextmanager
def started_mongod() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="ms-mongo-", ignore_cleanup_errors=True) as folder:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command = ["mongod", "--dbpath", folder, "--port", str(port), "--bind_ip", "127.0.0.1", "--replSet", "rs0"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            client: Any = MongoClient(f"mongodb://127.0.0.1:{port}/?directConnection=true")
            client.admin.command("replSetInitiate")
            while not client.admin.command("hello").get("isWritablePrimary"):
                time.sleep(0.1)
            client.close()
            yield f"mongodb://127.0.0.1:{port}"
        finally:
            process.kill()
            process.wait(30)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    if url := os.environ.get("MONGO_URL"):
        yield url.rstrip("/")
        return
    with started_mongod() as url:
        yield url


@pytest.fixture
def database(address: str) -> Iterator[Any]:
    name = f"mainspring_test_{os.getpid()}_{next(_numbers)}"
    client: Any = MongoClient(f"{address}/{name}")
    yield client[name]
    client.drop_database(name)
    client.close()


def drainer(
    database: Any, address: str, node: FakeNode, clock: VirtualClock, name: str = "d1", **options: Any
) -> Drainer:
    store = open_outbox(f"{address}/{database.name}")
    return Drainer(store, node, name, clock, lambda: 1.0, DrainOptions(lease_ms=LEASE_MS, **options))


def test_rows_belong_to_the_session_s_transaction(database: Any, address: str) -> None:
    Outbox().create(database)
    database.create_collection("orders")
    with database.client.start_session() as session:
        with session.start_transaction():
            database.orders.insert_one({"n": 1}, session=session)
            id = Outbox().add(session, "orders", {"n": 1}, key="k", headers={"a": "b"})
        session.start_transaction()
        Outbox().add(session, "orders", {"n": 2})
        session.abort_transaction()
        with pytest.raises(NoTransaction):
            Outbox().add(session, "orders", 3)
    node = FakeNode()
    assert drainer(database, address, node, VirtualClock()).drain_all().sent == 1
    (event,) = node.stored
    assert (event.id, event.key, event.payload, event.headers) == (id, "k", {"n": 1}, {"a": "b", "x-outbox-id": id})


def test_claims_order_refusals_and_dead_drainers(database: Any, address: str) -> None:
    Outbox().create(database)
    for number, key in ((1, "a"), (2, "a"), (3, "b"), (4, None)):
        Outbox().add(database, "orders", number, key=key)
    clock = VirtualClock()
    node = FakeNode(refuses=lambda event: "bad_payload" if event.payload == 3 else None)
    dead = drainer(database, address, node, clock, "dead")
    assert [row.payload for row in dead.store.claim("dead", 0, LEASE_MS, 1)] == ["1"]
    alive = drainer(database, address, node, clock, "alive", max_attempts=2)
    alive.drain_all()
    assert [event.payload for event in node.stored] == [4]
    clock.advance(LEASE_MS)
    alive.drain_all()
    assert [event.payload for event in node.stored if event.key == "a"] == [1, 2]
    (row,) = alive.store.aside(10)
    assert (row.payload, row.attempts) == ("3", 2)
    assert alive.store.retry(None) == 1
    node.refuses = lambda event: None
    assert alive.drain_all().sent == 1
    clock.advance(1)
    assert alive.store.clean(clock.wall_ms()) == 4


def test_an_effect_and_its_mark_are_one_transaction(database: Any, address: str) -> None:
    inbox = Inbox("billing")
    database.create_collection("orders")
    database.create_collection(inbox.table)
    with database.client.start_session() as session:
        session.start_transaction()
        assert inbox.first_time(session, "e1")
        session.abort_transaction()
        for expected in (True, False):
            with session.start_transaction():
                assert inbox.first_time(session, "e1") is expected
