"""Rows and marks inside transactions of MongoDB, which need a replica set: MONGO_URL, or `mongod` on the path.

FerretDB has no transactions, so where it is the server this file is not collected (see conftest.py).
"""

from __future__ import annotations

from typing import Any

import pytest

from mainspring.loop import VirtualClock
from mainspring.outbox.inbox import Inbox
from mainspring.outbox.outbox import NoTransaction, Outbox
from tests.support.outbox import FakeNode
from tests.support.outbox_mongo import drainer


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
