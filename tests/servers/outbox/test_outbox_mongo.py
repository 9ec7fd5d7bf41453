"""The outbox and inbox on a real server: MONGO_URL, else `mongod`, else FerretDB (see servers/mongo_server.py)."""

from __future__ import annotations

from typing import Any

import pytest

from mainspring.loop import VirtualClock
from mainspring.outbox import OutboxUnavailable, open_outbox
from mainspring.outbox.inbox import Inbox
from mainspring.outbox.outbox import Outbox
from tests.support.mongo_server import free_port
from tests.support.outbox import FakeNode
from tests.support.outbox_mongo import LEASE_MS, drainer


def test_a_row_arrives_as_an_event(database: Any, address: str) -> None:
    Outbox().create(database)
    Outbox().create(database)
    id = Outbox().add(database, "orders", {"n": 1, "$odd.name": [[1]], "big": 2**70}, key="k", headers={"a": "b"})
    node = FakeNode()
    first = drainer(database, address, node, VirtualClock())
    assert first.store.count().waiting == 1
    assert first.drain_all().sent == 1
    (event,) = node.stored
    assert (event.id, event.key, event.headers) == (id, "k", {"a": "b", "x-outbox-id": id})
    assert event.payload == {"n": 1, "$odd.name": [[1]], "big": 2**70}
    assert first.drain_all().sent == 0
    assert first.store.count().waiting == 0


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


def test_a_drainer_that_stops_gives_back_what_it_claimed(database: Any, address: str) -> None:
    Outbox().create(database)
    ids = [Outbox().add(database, "orders", n) for n in range(3)]
    store = open_outbox(f"{address}/{database.name}")
    assert [row.id for row in store.claim("one", 0, LEASE_MS, 2)] == ids[:2]
    assert [row.id for row in store.claim("two", 0, LEASE_MS, 9)] == ids[2:]
    assert store.release("one") == 2
    assert [row.id for row in store.claim("three", 0, LEASE_MS, 9)] == ids[:2]
    store.close()


def test_an_inbox_knows_an_event_again(database: Any) -> None:
    inbox = Inbox("billing")
    inbox.create(database)
    assert [inbox.first_time(database, id) for id in ("e1", "e2", "e1")] == [True, True, False]


def test_a_server_that_is_away_is_said() -> None:
    store = open_outbox(f"mongodb://127.0.0.1:{free_port()}/x?serverSelectionTimeoutMS=200")
    with pytest.raises(OutboxUnavailable):
        store.count()
    store.close()
