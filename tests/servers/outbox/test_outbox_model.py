"""Any number of drainers, killed, refused, cut off at any moment: every row arrives once, and keys keep their order."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.client.errors import CannotConnect
from mainspring.loop import VirtualClock
from tests.support.outbox import FakeNode, Published, Shop, drainer, sqlite_shop

LEASE_MS = 10_000
ATTEMPTS = 3
KEYS = [None, "a", "b"]


class Killed(BaseException):
    """The drainer's process is gone."""


step = st.one_of(
    st.tuples(st.just("add"), st.sampled_from(KEYS), st.integers(1, 4)),
    st.tuples(st.just("drain"), st.sampled_from(["d1", "d2", "d3"]), st.integers(1, 5)),
    st.tuples(st.just("killed before"), st.sampled_from(["d1", "d2"]), st.integers(1, 5)),
    st.tuples(st.just("killed after"), st.sampled_from(["d1", "d2"]), st.integers(1, 5)),
    st.tuples(st.just("claimed"), st.just("d4"), st.integers(1, 3)),
    st.tuples(st.just("away"), st.just("d1"), st.just(1)),
    st.tuples(st.just("wait"), st.just(""), st.sampled_from([1, 700, LEASE_MS])),
)


class World:
    """One outbox, one node, and what must be true of them."""

    def __init__(self, shop: Shop, poison: set[int], flaky: set[int]) -> None:
        self.shop = shop
        self.clock = VirtualClock()
        self.node = FakeNode(refuses=self.refuses)
        self.poison = poison
        self.flaky = set(flaky)
        self.added: list[tuple[str | None, int]] = []
        self.tried: dict[int, int] = {}

    def refuses(self, event: Published) -> str | None:
        number = event.payload
        if number in self.poison:
            return "bad_payload"
        if number in self.flaky:
            self.flaky.discard(number)
            return "schema_mismatch"
        return None

    def drainer(self, name: str, batch: int) -> Any:
        return drainer(
            self.shop, self.node, self.clock, name, batch=batch, lease_ms=LEASE_MS, max_attempts=ATTEMPTS,
            retry_first_ms=500,
        )  # fmt: skip

    def step(self, what: str, who: Any, number: int) -> None:
        if what == "add":
            numbers = range(len(self.added), len(self.added) + number)
            self.shop.add("orders", *numbers, key=who)
            self.added += [(who, each) for each in numbers]
        elif what == "drain":
            self.drainer(who, number).drain_once()
        elif what == "wait":
            self.clock.advance(number)
        elif what == "claimed":
            self.drainer(who, number).store.claim(who, self.clock.wall_ms(), LEASE_MS, number)
        elif what == "away":
            self.node.away = True
            with contextlib.suppress(CannotConnect):
                self.drainer(who, number).drain_once()
            self.node.away = False
        else:
            self.kill(who, number, before=what == "killed before")

    def kill(self, name: str, batch: int, *, before: bool) -> None:
        doomed = self.drainer(name, batch)
        doomed.store.release = lambda drainer: 0

        def die() -> None:
            raise Killed

        if before:
            self.node.before = die
        else:
            self.node.after = die
        with contextlib.suppress(Killed):
            doomed.drain_once()
        self.node.before = self.node.after = lambda: None

    def check(self) -> None:
        """Let everything end, then look."""
        for _ in range(ATTEMPTS * 4 + 4):
            self.clock.advance(LEASE_MS)
            self.drainer("last", 100).drain_all()
        healthy = [(key, number) for key, number in self.added if number not in self.poison]
        arrived = [(event.key, event.payload) for event in self.node.stored]
        assert sorted(arrived, key=lambda each: each[1]) == healthy
        for key in KEYS[1:]:
            assert [number for k, number in arrived if k == key] == [number for k, number in healthy if k == key]
        states = dict(self.shop.rows("payload, state"))
        assert all(states[str(number)] == (2 if number in self.poison else 1) for _, number in self.added)


@settings(max_examples=60)
@given(st.lists(step, max_size=25), st.sets(st.integers(0, 8), max_size=2), st.sets(st.integers(0, 8), max_size=3))
def test_every_row_arrives_once_and_every_key_in_order(
    steps: list[tuple[str, Any, int]], poison: set[int], flaky: set[int]
) -> None:
    with tempfile.TemporaryDirectory(prefix="ms-") as folder:
        world = World(sqlite_shop(Path(folder)), poison, flaky)
        for each in steps:
            world.step(*each)
        world.check()


def test_the_same_story_in_every_database(shop: Shop) -> None:
    world = World(shop, poison={1}, flaky={0, 6})
    for each in (
        ("add", "a", 3), ("add", "b", 2), ("killed after", "d1", 2), ("drain", "d2", 5), ("add", None, 2),
        ("away", "d1", 1), ("claimed", "d4", 2), ("drain", "d3", 5), ("add", "a", 2), ("wait", "", LEASE_MS),
        ("killed before", "d2", 3),
        ("drain", "d1", 1), ("add", "b", 3), ("wait", "", 700), ("drain", "d2", 5),
    ):  # fmt: skip
        world.step(*each)
    world.check()
