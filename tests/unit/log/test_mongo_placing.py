"""Entries of MongoDB's journal come in place on a server that is slow, and while other nodes do the same work."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, cast

import pytest
from pymongo.errors import AutoReconnect

from mainspring.log import LogUnavailable
from mainspring.log.engines.history import CommitMark, NewLink
from mainspring.log.engines.mongo.applier import Placing
from mainspring.log.engines.mongo.connection import parse_address
from mainspring.log.engines.mongo.documents import Body, Effects, JournalEntry, JournalRemoval
from mainspring.log.engines.mongo.plan import MongoLogState
from mainspring.loop import VirtualClock, run_virtual

_OWN, _OTHER = "a0", "b0"


class _Journal:
    """The journal and the collections: `work` is what putting entries in place means in a test."""

    node = _OWN

    def __init__(self, clock: VirtualClock, work: Callable[[_Journal], Awaitable[None]]) -> None:
        self.clock = clock
        self.history = self
        self.applied = 0
        self.tries = 0
        self.looks_first = False  # before it replaces what may be in place
        self._work = work
        self._entries: list[JournalEntry] = []
        self._state = MongoLogState(0, 0, [])
        address = parse_address("mongodb://nowhere/x?patience_ms=10000&takeover_ms=1000")
        self.placing: Placing = Placing(cast("Any", self), self._state, cast("Any", self), address)

    def commit(self, node: str) -> None:
        """One more entry, that this node hears of; no other is put in place together with it."""
        number = len(self._entries) + 1
        body = Body([Effects(removed=[JournalRemoval("t", 0, 1)])], [], number)
        entry = JournalEntry(number, node, "", 0, body, b"", CommitMark(number))
        self._entries.append(entry)
        self._state.absorb(entry)
        self.placing.add(entry)

    async def write(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except NewLink:
            await work()

    async def after(self, position: int) -> list[JournalEntry]:
        return self._entries[position : position + 2]

    async def reached(self, _: str) -> tuple[int, int]:
        return self.applied, self.applied

    async def set_applied(self, number: int, _: int) -> None:
        self.applied = max(self.applied, number)

    async def apply(self, _: Sequence[JournalEntry]) -> None:
        self.tries += 1
        await self._work(self)

    def forget(self) -> None:
        self.looks_first = True


def _told(
    story: Callable[[_Journal], Coroutine[Any, Any, None]], work: Callable[[_Journal], Awaitable[None]]
) -> _Journal:
    clock = VirtualClock()

    async def run() -> _Journal:
        journal = _Journal(clock, work)
        placing = asyncio.create_task(journal.placing.run())
        try:
            await story(journal)
        finally:
            placing.cancel()
        return journal

    return run_virtual(run(), clock=clock)


def test_a_wait_goes_on_for_as_long_as_entries_come_in_place() -> None:
    async def slowly(_: _Journal) -> None:
        await asyncio.sleep(8)

    async def story(journal: _Journal) -> None:
        for _ in range(5):
            journal.commit(_OWN)
        await journal.placing.reached()

    assert _told(story, slowly).applied == 5


def test_a_wait_ends_when_nothing_comes_in_place() -> None:
    async def never(_: _Journal) -> None:
        await asyncio.Event().wait()

    async def story(journal: _Journal) -> None:
        journal.commit(_OWN)
        with pytest.raises(LogUnavailable):
            await journal.placing.reached()

    _told(story, never)


def test_who_failed_looks_whether_another_node_did_the_work() -> None:
    async def fail(journal: _Journal) -> None:
        journal.applied = 1  # by the other node
        raise AutoReconnect("no answer in time")

    async def story(journal: _Journal) -> None:
        journal.commit(_OWN)
        await journal.placing.reached()

    assert _told(story, fail).tries == 1


@pytest.mark.parametrize("failure", [AutoReconnect("no answer in time"), NewLink()])
def test_who_failed_looks_what_of_its_work_is_done(failure: BaseException) -> None:
    looked: list[bool] = []

    async def fail_once(journal: _Journal) -> None:
        looked.append(journal.looks_first)
        if journal.tries == 1:
            raise failure

    async def story(journal: _Journal) -> None:
        journal.commit(_OWN)
        await journal.placing.reached()

    _told(story, fail_once)
    assert looked == [False, True]


def test_doing_again_what_another_node_did_ends_while_others_go_on_committing() -> None:
    async def meanwhile(journal: _Journal) -> None:
        await asyncio.sleep(1)
        journal.commit(_OTHER)
        journal.applied += 1  # the other node was not dead, only slow

    async def story(journal: _Journal) -> None:
        journal.commit(_OTHER)
        await journal.placing.reached(1)

    assert _told(story, meanwhile).tries == 3  # once, and again all that was in the journal by then
