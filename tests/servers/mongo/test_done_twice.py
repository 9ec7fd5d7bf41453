"""Putting entries in place that are in place: what it asks of the server does not grow with what they hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from pymongo import AsyncMongoClient
from pymongo.monitoring import CommandListener, CommandStartedEvent

from mainspring.log.engines.history import CommitMark
from mainspring.log.engines.mongo import documents as docs
from mainspring.log.engines.mongo.applier import Applier
from mainspring.log.engines.mongo.documents import (
    Body,
    Effects,
    JournalEntry,
    JournalMark,
    JournalRecord,
    PartitionStanding,
)

_MANY = 30


class _Replacements(CommandListener):
    """How many documents are replaced, with a condition each, by collection."""

    def __init__(self) -> None:
        self.sent: Counter[str] = Counter()

    def started(self, event: CommandStartedEvent) -> None:
        if event.command_name == "update":
            self.sent[event.command["update"]] += len(event.command["updates"])

    def succeeded(self, event: object) -> None:
        pass

    failed = succeeded


@pytest.fixture
def sent() -> _Replacements:
    return _Replacements()


@pytest.fixture
async def database(address: str, sent: _Replacements) -> AsyncIterator[Any]:
    client: Any = AsyncMongoClient(address, event_listeners=[sent])
    found = client.get_default_database()
    await docs.create(found)
    sent.sent.clear()
    yield found
    await client.drop_database(found.name)
    await client.close()


def entry(number: int, most: int = _MANY) -> JournalEntry:
    records = [JournalRecord("s", str(n), number, b"%d" % number) for n in range(most)]
    marks = [JournalMark("t", str(n), 0, n, 99) for n in range(most)]
    standings = [PartitionStanding("t", n, number) for n in range(most)]
    body = Body([Effects(records=records, marks=marks)], standings, number)
    return JournalEntry(number, "node", "", 0, body, b"", CommitMark(number))


def applier(database: Any) -> Applier:
    return Applier(database, lambda _: None)


async def values(database: Any) -> list[bytes]:
    return [document["value"] async for document in database[docs.RECORDS].find({}).sort("key", 1)]


async def test_a_node_that_takes_over_replaces_nothing_that_is_in_place(database: Any, sent: _Replacements) -> None:
    await applier(database).apply([entry(1)])
    await applier(database).apply([entry(1)])
    assert sent.sent == {}


async def test_what_is_left_of_half_an_entry_is_replaced(database: Any, sent: _Replacements) -> None:
    await applier(database).apply([entry(1)])
    await applier(database).apply([entry(2, most=_MANY - 2)])  # this far came a node before it died
    sent.sent.clear()
    await applier(database).apply([entry(2)])
    assert sent.sent == {docs.RECORDS: 2, docs.MARKS: 2, docs.COUNTERS: 2}
    assert await values(database) == [b"2"] * _MANY


async def test_who_tries_again_replaces_nothing_that_is_in_place(database: Any, sent: _Replacements) -> None:
    node = applier(database)
    await node.apply([entry(1)])
    await node.apply([entry(2)])
    sent.sent.clear()
    node.forget()
    await node.apply([entry(2)])
    assert sent.sent == {}
    assert await values(database) == [b"2"] * _MANY


async def test_something_newer_stays(database: Any) -> None:
    await applier(database).apply([entry(2)])
    await applier(database).apply([entry(1)])
    assert await values(database) == [b"2"] * _MANY
