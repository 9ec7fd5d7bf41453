"""Inbox: a consumer's effect and the mark that it happened, in one transaction of the consumer's own database.

    inbox = Inbox("billing")
    async for event in bus.subscribe("orders", group="billing"):
        with sqlite3.connect("billing.db") as connection:
            if inbox.first_time(connection, event):
                connection.execute("INSERT INTO invoices ...")
        await event.ack()

The bus delivers at least once: after a crash, a timeout or a lost connection the same event comes again. Effect and
mark are committed together or not at all, so however often the event comes, the effect is there once.

The mark is the outbox's row id where the event came from an outbox, otherwise the event's id. A row that was published
twice, far apart in time, is therefore still recognised.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

from mainspring.loop import Clock, MonotonicClock
from mainspring.outbox.drainer import ID_HEADER
from mainspring.outbox.sql import Dialect, Steps, bind, create_table, table_name
from mainspring.outbox.store import is_mongo

TABLE: Final = "mainspring_inbox"

_SCHEMA: Final = (
    """
CREATE TABLE IF NOT EXISTS {table} (
    consumer TEXT NOT NULL,
    id TEXT NOT NULL,
    seen_ms BIGINT NOT NULL,
    PRIMARY KEY (consumer, id)
)""",
    "CREATE INDEX IF NOT EXISTS {index}_seen ON {table} (seen_ms)",
)
_MARK: Final = """
INSERT INTO {table} (consumer, id, seen_ms) VALUES (:consumer, :id, :now) ON CONFLICT (consumer, id) DO NOTHING"""
_CLEAN: Final = "DELETE FROM {table} WHERE consumer = :consumer AND seen_ms < :before"


class Seen(Protocol):
    """What of an event is looked at."""

    @property
    def id(self) -> str:
        """The event's id."""

    @property
    def headers(self) -> Any:
        """The event's headers."""


class Inbox:
    """Marks of one consumer, usually the group's name: two consumers of one topic each have their own effect."""

    def __init__(
        self, consumer: str, table: str = TABLE, *, database: str | None = None, clock: Clock | None = None
    ) -> None:
        self.consumer = consumer
        self.table: str = table_name(table)
        self._database = database
        self._clock = clock or MonotonicClock()

    def create(self, target: Any) -> Any:
        """Make the table where it is missing, in the caller's transaction. A MongoDB collection needs nothing.

        With an async connection, await it.
        """
        return None if is_mongo(target) else create_table(target, self.table, self.statements)

    def statements(self, dialect: Dialect) -> list[str]:
        """What `create` executes; the same in both dialects."""
        del dialect
        index = self.table.rpartition(".")[2]
        return [each.format(table=self.table, index=index) for each in _SCHEMA]

    def first_time(self, target: Any, event: Seen | str) -> Any:
        """Whether this event's effect is still to be done; marks it as done in the caller's transaction.

        With an async connection it gives an awaitable of that.

        `target` is what `Outbox.add` takes. While another transaction is just marking the same event, PostgreSQL and
        SQLite wait for its end. False: it was done before; acknowledge the event and go on.
        """
        id = event if isinstance(event, str) else str(event.headers.get(ID_HEADER) or event.id)
        if is_mongo(target):
            from mainspring.outbox.mongo import mark

            return mark(target, self.table, self._database, f"{self.consumer}\n{id}", self._clock.wall_ms())
        given = {"consumer": self.consumer, "id": id, "now": self._clock.wall_ms()}

        def steps() -> Steps[bool]:
            return (yield _MARK.format(table=self.table), given) == 1

        return bind(target).perform(steps())

    def clean(self, target: Any, older_than_ms: int) -> Any:
        """Forget marks older than this; longer than an event can come back: the topic's retention is a safe choice."""
        given = {"consumer": self.consumer, "before": self._clock.wall_ms() - older_than_ms}

        def steps() -> Steps[int]:
            return (yield _CLEAN.format(table=self.table), given)

        return bind(target, alone=True).perform(steps())
