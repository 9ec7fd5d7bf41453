"""The program's own database in three kinds, and a node whose answers a test decides."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import psycopg

from mainspring.client.errors import CannotConnect, NodeRefused
from mainspring.loop import VirtualClock
from mainspring.outbox import open_outbox
from mainspring.outbox.drainer import Drainer, DrainOptions
from mainspring.outbox.outbox import Outbox

KINDS = ["sqlite", "postgresql"]


class Shop:
    """A program's database with a table of orders; its own connection, its own transactions."""

    def __init__(self, kind: str, url: str) -> None:
        self.kind = kind
        self.url = url
        with self.transaction() as connection:
            self.execute(connection, "CREATE TABLE orders (number INTEGER)")
            Outbox().create(connection)

    def connect(self) -> Any:
        if self.kind == "sqlite":
            return sqlite3.connect(self.url.removeprefix("sqlite:///"), timeout=30)
        return psycopg.connect(self.url)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Any]:
        """A connection whose transaction is committed at the end, or rolled back."""
        connection = self.connect()
        try:
            yield connection
        except BaseException:
            connection.rollback()
            raise
        else:
            connection.commit()
        finally:
            connection.close()

    def execute(self, connection: Any, statement: str, *values: Any) -> list[Any]:
        cursor = connection.cursor()
        cursor.execute(statement if self.kind == "sqlite" else statement.replace("?", "%s"), values)
        return list(cursor.fetchall()) if cursor.description else []

    def rows(self, columns: str = "*", where: str = "1 = 1") -> list[Any]:
        """Outbox rows, oldest first."""
        with self.transaction() as connection:
            return self.execute(connection, f"SELECT {columns} FROM mainspring_outbox WHERE {where} ORDER BY seq")

    def add(self, topic: str, *payloads: Any, key: str | None = None) -> list[str]:
        """Events in one transaction."""
        with self.transaction() as connection:
            return [Outbox().add(connection, topic, payload, key=key) for payload in payloads]


def sqlite_shop(folder: Path) -> Shop:
    return Shop("sqlite", f"sqlite:///{folder / 'shop.db'}")


@dataclass
class Published:
    id: str
    topic: str
    key: str | None
    payload: Any
    headers: dict[str, str]


@dataclass
class FakeNode:
    """Stores what it gets, each id once. `refuses` gives the code with which an event is refused; `away` is no node."""

    refuses: Callable[[Published], str | None] = lambda event: None
    away: bool = False
    before: Callable[[], None] = lambda: None
    after: Callable[[], None] = lambda: None
    stored: list[Published] = field(default_factory=list)
    requests: int = 0

    def call(self, method: str, path: str, body: bytes | None = None, **options: Any) -> Any:
        self.requests += 1
        self.before()
        if self.away:
            raise CannotConnect("no node answers")
        topic = path.split("/")[2]
        assert body is not None
        events = [
            Published(line["id"], topic, line.get("key"), line["payload"], line["headers"])
            for line in map(msgspec.json.decode, body.splitlines())
        ]
        for event in events:
            if code := self.refuses(event):
                raise NodeRefused(f"not taken: {event.payload}", code=code)
        known = {event.id for event in self.stored}
        self.stored += [event for event in events if event.id not in known]
        self.after()
        return {"offsets": [[0, 1 + self._place(event)] for event in events]}

    def close(self) -> None:
        """Nothing is open."""

    def _place(self, event: Published) -> int:
        return next(index for index, each in enumerate(self.stored) if each.id == event.id)


def drainer(shop: Shop, node: FakeNode, clock: VirtualClock, name: str = "d1", **options: Any) -> Drainer:
    return Drainer(open_outbox(shop.url), node, name, clock, lambda: 0.0, DrainOptions(**options))
