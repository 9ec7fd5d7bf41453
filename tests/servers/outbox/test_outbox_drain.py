"""Draining against a node whose answers the test decides, in virtual time: order, claims, refusals, absence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mainspring.client.errors import CannotConnect, NodeRefused
from mainspring.loop import VirtualClock
from mainspring.outbox.drainer import Drained
from mainspring.outbox.sql import SqlStore
from mainspring.outbox.store import OutboxUnavailable
from tests.support.outbox import FakeNode, Published, Shop, drainer, sqlite_shop

LEASE_MS = 60_000


class Killed(BaseException):
    """The process is gone: nothing that would run afterwards runs."""


def refusing(*payloads: Any) -> Callable[[Published], str | None]:
    return lambda event: "bad_payload" if event.payload in payloads else None


def die() -> None:
    raise Killed


def killed_drainer(shop: Shop, node: FakeNode, clock: VirtualClock, name: str) -> None:
    """A drainer that is killed when the node's hook says so: it does not give back what it holds."""
    doomed = drainer(shop, node, clock, name)
    doomed.store.release = lambda drainer: 0  # type: ignore[method-assign]
    with pytest.raises(Killed):
        doomed.drain_once()
    node.before = node.after = lambda: None


def test_rows_go_out_oldest_first_and_are_stamped_with_their_place(shop: Shop) -> None:
    shop.add("orders", 1, 2)
    shop.add("invoices", 3)
    shop.add("orders", 4)
    node, clock = FakeNode(), VirtualClock(wall_ms=1_000)
    assert drainer(shop, node, clock).drain_all().sent == 4
    assert [(event.topic, event.payload) for event in node.stored if event.topic == "orders"] == [
        ("orders", 1),
        ("orders", 2),
        ("orders", 4),
    ]
    assert shop.rows("state, sent_ms, attempts, claimed_by") == [(1, 1_000, 1, None)] * 4
    assert shop.rows("place", "topic = 'orders'") == [("0:1",), ("0:2",), ("0:3",)]


def test_nothing_is_stamped_before_the_node_has_it(shop: Shop) -> None:
    shop.add("orders", 1)
    node = FakeNode()
    node.before = lambda: states.append(shop.rows("state"))
    states: list[Any] = []
    drainer(shop, node, VirtualClock()).drain_all()
    assert states == [[(0,)]]


def test_two_drainers_share_the_work_and_never_hold_the_same_row(shop: Shop) -> None:
    shop.add("orders", *range(10))
    clock, node = VirtualClock(), FakeNode()
    first, second = drainer(shop, node, clock, "d1"), drainer(shop, node, clock, "d2")
    held = first.store.claim("d1", clock.wall_ms(), LEASE_MS, 4)
    assert len(held) == 4
    assert second.drain_all().sent == 6
    first.store.release("d1")
    assert first.drain_all().sent == 4


def test_a_later_row_of_a_key_waits_while_an_earlier_one_is_claimed_by_another(shop: Shop) -> None:
    shop.add("orders", 1, 2, 3, key="a")
    shop.add("orders", 4, key="b")
    shop.add("other", 5, key="a")
    clock, node = VirtualClock(), FakeNode()
    first = drainer(shop, node, clock, "d1")
    assert [row.payload for row in first.store.claim("d1", 0, LEASE_MS, 1)] == ["1"]
    drainer(shop, node, clock, "d2").drain_all()
    assert sorted(event.payload for event in node.stored) == [4, 5]
    clock.advance(LEASE_MS)
    drainer(shop, node, clock, "d2").drain_all()
    assert [event.payload for event in node.stored if event.topic == "orders" and event.key == "a"] == [1, 2, 3]


def test_a_killed_drainer_s_rows_are_sent_by_another_when_its_claim_has_ended(shop: Shop) -> None:
    shop.add("orders", 1, 2)
    clock, node = VirtualClock(), FakeNode(before=die)
    killed_drainer(shop, node, clock, "dead")
    other = drainer(shop, node, clock, "alive")
    assert other.drain_all().sent == 0
    clock.advance(LEASE_MS)
    assert other.drain_all().sent == 2
    assert [event.payload for event in node.stored] == [1, 2]


def test_killed_between_publishing_and_stamping_the_same_ids_are_sent_again(shop: Shop) -> None:
    ids = shop.add("orders", 1, 2)
    clock, node = VirtualClock(), FakeNode(after=die)
    killed_drainer(shop, node, clock, "dead")
    assert shop.rows("state") == [(0,), (0,)]
    clock.advance(LEASE_MS)
    assert drainer(shop, node, clock, "alive").drain_all().sent == 2
    assert node.requests == 2
    assert [event.id for event in node.stored] == ids


def test_a_refused_row_holds_back_its_key_and_nothing_else(shop: Shop) -> None:
    shop.add("orders", "bad", "behind", key="a")
    shop.add("orders", "free", key="b")
    shop.add("orders", "keyless")
    clock, node = VirtualClock(), FakeNode(refuses=refusing("bad"))
    one = drainer(shop, node, clock, max_attempts=3, retry_first_ms=1_000)
    assert one.drain_all() == Drained(sent=2, refused=1, held=1)
    assert [event.payload for event in node.stored] == ["free", "keyless"]
    clock.advance(999)
    assert one.drain_all().rows == 0  # it waits, and what is behind it waits too
    clock.advance(1)
    assert one.drain_all().refused == 1
    clock.advance(2_000)
    assert one.drain_all() == Drained(sent=1, refused=1, set_aside=1, held=1)
    assert [event.payload for event in node.stored] == ["free", "keyless", "behind"]
    ((state, attempts, error),) = shop.rows("state, attempts, error", "payload = '\"bad\"'")
    assert (state, attempts) == (2, 3)
    assert error == "bad_payload: not taken: bad"


def test_a_row_set_aside_can_be_tried_again(shop: Shop) -> None:
    (bad,) = shop.add("orders", "bad", key="a")
    clock, node = VirtualClock(), FakeNode(refuses=refusing("bad"))
    one = drainer(shop, node, clock, max_attempts=1)
    one.drain_all()
    assert [row.id for row in one.store.aside(10)] == [bad]
    assert one.store.count().set_aside == 1
    assert one.store.retry(["nobody"]) == 0
    assert one.store.retry(None) == 1
    node.refuses = lambda event: None
    assert one.drain_all().sent == 1
    assert one.store.count() == type(one.store.count())(0, None, 0)


def test_waits_between_refusals_double_up_to_the_limit(tmp_path: Path) -> None:
    shop = sqlite_shop(tmp_path)
    shop.add("orders", "bad")
    clock, node = VirtualClock(), FakeNode(refuses=refusing("bad"))
    one = drainer(shop, node, clock, max_attempts=8, retry_first_ms=1_000, retry_last_ms=10_000)
    waits = []
    for _ in range(7):
        one.drain_once()
        ((due,),) = shop.rows("due_ms")
        waits.append(due - clock.wall_ms())
        clock.move_to(due)
    assert waits == [1_000, 2_000, 4_000, 8_000, 10_000, 10_000, 10_000]


def test_a_node_that_is_away_for_an_hour_costs_no_row_an_attempt(tmp_path: Path) -> None:
    shop = sqlite_shop(tmp_path)
    shop.add("orders", 1, 2, key="a")
    clock, node = VirtualClock(), FakeNode(away=True)
    one = drainer(shop, node, clock)
    waits: list[float] = []

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        clock.advance(seconds * 1000)
        node.away = clock.now_ms() < 3_600_000
        return len(node.stored) == 2

    one.run(wait)
    assert waits[:7] == [0, 0.5, 1, 2, 4, 8, 10]
    assert set(waits[7:-1]) == {10}
    assert [event.payload for event in node.stored] == [1, 2]
    assert shop.rows("attempts, claimed_by") == [(1, None), (1, None)]


@pytest.mark.parametrize("code", ["unavailable", "log_unavailable", "rate_limited", "unauthorized"])
def test_what_is_not_the_row_s_fault_is_not_counted_against_it(tmp_path: Path, code: str) -> None:
    shop = sqlite_shop(tmp_path)
    shop.add("orders", 1)
    node = FakeNode(refuses=lambda event: code)
    with pytest.raises(NodeRefused):
        drainer(shop, node, VirtualClock()).drain_all()
    assert shop.rows("state, attempts, claimed_by, claimed_until_ms") == [(0, 0, None, 0)]
    with pytest.raises(CannotConnect):
        drainer(shop, FakeNode(away=True), VirtualClock()).drain_all()
    assert shop.rows("state, attempts, claimed_by, claimed_until_ms") == [(0, 0, None, 0)]


def test_a_drainer_that_slept_through_its_claim_publishes_nothing_more(tmp_path: Path) -> None:
    shop = sqlite_shop(tmp_path)
    shop.add("a", 1)
    shop.add("b", 2)
    clock, node = VirtualClock(), FakeNode()
    node.after = lambda: clock.advance(LEASE_MS)  # the machine was suspended behind the first request
    slept = drainer(shop, node, clock, lease_ms=LEASE_MS)
    assert slept.drain_once() == Drained(sent=1, held=1)
    assert [event.payload for event in node.stored] == [1]


def test_sent_rows_are_forgotten_after_their_time_and_waiting_ones_never(shop: Shop) -> None:
    shop.add("orders", *range(1500))
    clock, node = VirtualClock(), FakeNode()
    one = drainer(shop, node, clock, batch=5000, keep_ms=1_000)
    one.drain_all()
    shop.add("orders", "later")
    assert one.store.clean(clock.wall_ms()) == 0
    clock.advance(1)
    assert one.store.clean(clock.wall_ms()) == 1500
    assert shop.rows("payload") == [('"later"',)]


def test_cleaning_happens_while_draining_and_not_every_round(tmp_path: Path) -> None:
    shop = sqlite_shop(tmp_path)
    shop.add("orders", 1)
    clock, node = VirtualClock(), FakeNode()
    one = drainer(shop, node, clock, keep_ms=120_000)
    cleaned: list[int] = []

    def wait(seconds: float) -> bool:
        clock.advance(seconds * 1000)
        return clock.now_ms() > 200_000

    one.run(wait, lambda drained: cleaned.append(drained.cleaned))
    assert sum(cleaned) == 1
    assert shop.rows() == []


def test_many_large_rows_are_sent_in_parts_the_node_takes(tmp_path: Path) -> None:
    shop = sqlite_shop(tmp_path)
    shop.add("orders", *("x" * 900_000 for _ in range(10)), key="k")
    node = FakeNode()
    assert drainer(shop, node, VirtualClock()).drain_all().sent == 10
    assert node.requests == 3


def test_a_disk_that_is_full_stops_the_drainer_and_loses_nothing(tmp_path: Path) -> None:
    shop = sqlite_shop(tmp_path)
    shop.add("orders", *("x" * 40 for _ in range(200)))
    full = True

    def connect() -> Any:
        import sqlite3

        connection = sqlite3.connect(tmp_path / "shop.db", isolation_level=None)
        if full:
            (pages,) = connection.execute("PRAGMA page_count").fetchone()
            connection.execute(f"PRAGMA max_page_count = {pages}")
        return connection

    clock, node = VirtualClock(), FakeNode()
    one = drainer(shop, node, clock, "d" * 200, batch=200)
    one.store = SqlStore(connect, "sqlite", "mainspring_outbox")
    with pytest.raises(OutboxUnavailable, match="full") as told:
        one.drain_all()
    assert "make room" in told.value.remedy
    assert node.stored == []
    full = False
    assert one.drain_all().sent == 200


def test_a_disk_that_fills_between_publishing_and_stamping_sends_no_event_twice(tmp_path: Path) -> None:
    shop = sqlite_shop(tmp_path)
    ids = shop.add("orders", 1, 2, 3)
    clock, node = VirtualClock(), FakeNode()
    one = drainer(shop, node, clock)
    stamp = one.store.sent

    def full(*arguments: Any) -> None:
        raise OutboxUnavailable("the outbox cannot be used: database or disk is full")

    one.store.sent = full  # type: ignore[method-assign]
    with pytest.raises(OutboxUnavailable):
        one.drain_once()
    one.store.sent = stamp  # type: ignore[method-assign]
    assert one.drain_once().sent == 3
    assert [event.id for event in node.stored] == ids


def test_a_mongodb_that_is_not_there_is_told() -> None:
    from pymongo import MongoClient

    from mainspring.outbox.mongo import MongoStore

    client: Any = MongoClient("mongodb://127.0.0.1:1/x", serverSelectionTimeoutMS=100)
    with pytest.raises(OutboxUnavailable) as told:
        MongoStore(client.x.rows).count()
    assert "is MongoDB running" in told.value.remedy
    client.close()


def test_a_missing_table_or_file_is_told_with_the_remedy(tmp_path: Path) -> None:
    from mainspring.outbox import open_outbox

    with pytest.raises(OutboxUnavailable, match="there is no file"):
        open_outbox(f"sqlite:///{tmp_path / 'none.db'}").count()
    assert not (tmp_path / "none.db").exists()
    shop = sqlite_shop(tmp_path)
    with pytest.raises(OutboxUnavailable) as told:
        open_outbox(shop.url, "another").count()
    assert "outbox create" in told.value.remedy
