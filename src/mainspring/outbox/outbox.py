"""Outbox: an event that is published exactly when the program's own transaction commits.

    outbox = Outbox()
    with sqlite3.connect("shop.db") as connection:            # the program's own transaction
        connection.execute("INSERT INTO orders VALUES (?, ?)", (17, "c-17"))
        outbox.add(connection, "orders", {"order": 17}, key="c-17")

Writing to a database and publishing to a bus are two steps, and a crash between them loses one of them. So the event is
written where the order is written, as a row beside it, and a drainer (`mainspring outbox drain`, or `Drainer`) carries
it to the bus afterwards: until the node has said that it is durable, the row stays.

A row's id is the event's publish id. A drainer that dies between publishing and stamping publishes the same row again,
and the node, which remembers ids for a while, stores it once. For longer than that, consumers have the header
`x-outbox-id` and the inbox.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import uuid_utils

from mainspring.client import BadArgument, EventTooLarge, NotEncodable, check_texts
from mainspring.codec import Codec, encoding_of
from mainspring.data_types import json_encoder
from mainspring.loop import Clock, MonotonicClock
from mainspring.outbox.sql import ADD, Dialect, Steps, bind, create_table, schema, table_name
from mainspring.outbox.store import TABLE, is_mongo

MAX_EVENT_BYTES: Final = 1_000_000  # a little less than the node's default limit of a frame, for key and headers


class Outbox:
    """Adds rows. `table` may have a schema before a dot; for MongoDB it names the collection.

    With a `codec` payloads are encoded before they are written, as those of `App(codec=...)` are.
    """

    def __init__(
        self,
        table: str = TABLE,
        *,
        database: str | None = None,
        max_event_bytes: int = MAX_EVENT_BYTES,
        clock: Clock | None = None,
        new_id: Callable[[], str] = lambda: str(uuid_utils.uuid7()),
        codec: Codec | None = None,
    ) -> None:
        self.table: str = table_name(table)
        self._database = database
        self._max_event_bytes = max_event_bytes
        self._encoding = encoding_of(codec)
        self._clock = clock or MonotonicClock()
        self._new_id = new_id

    def create(self, target: Any) -> Any:
        """Make the table and its indexes where they are missing, in the caller's transaction; commit it.

        For MongoDB give a Database: the indexes of the collection are made. With an async connection, await it.
        """
        if is_mongo(target):
            from mainspring.outbox.mongo import collection_of, create_indexes

            return create_indexes(collection_of(target, self.table, self._database))
        return create_table(target, self.table, self.statements)

    def statements(self, dialect: Dialect) -> list[str]:
        """What `create` executes, for those who keep their schema in migrations."""
        return schema(self.table, dialect)

    def add(
        self,
        target: Any,
        topic: str,
        payload: Any,
        *,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        id: str | None = None,
    ) -> Any:
        """Write one event into the caller's transaction; gives its id, or with an async connection an awaitable of it.

        `target` is a sqlite3, aiosqlite, psycopg, asyncpg or Django connection, a SQLAlchemy Connection or Session
        (blocking or async), or a pymongo ClientSession (blocking or async). Nothing is committed here. Events of one
        key and topic are published in the order in which they were added. Raises NotEncodable and EventTooLarge now,
        while the program can still do something about it.
        """
        row = self._row(topic, payload, key, headers, id)
        if is_mongo(target):
            from mainspring.outbox.mongo import add

            return add(target, self.table, self._database, row)

        def steps() -> Steps[str]:
            yield ADD.format(table=self.table), row
            return str(row["id"])

        return bind(target).perform(steps())

    def _row(
        self, topic: str, payload: Any, key: str | None, headers: Mapping[str, str] | None, id: str | None
    ) -> dict[str, Any]:
        if not isinstance(topic, str) or not topic:
            raise BadArgument("a topic is text", remedy="give the name of the topic")
        given = None if headers is None else dict(headers)
        check_texts(key, given)
        text = _encoded(payload)
        if self._encoding is not None:
            text = self._encoding.seal(text.encode()).decode()
        written = None if given is None else _encoded(given)
        size = len(text) + len(written or "") + len(key or "")
        if size > self._max_event_bytes:
            raise EventTooLarge(
                f"the event has {size} bytes, more than {self._max_event_bytes}",
                remedy="add a reference to it, or raise max_event_bytes here and max_frame_bytes at the node",
            )
        return {
            "id": id or self._new_id(),
            "topic": topic,
            "key": key,
            "headers": written,
            "payload": text,
            "created_ms": self._clock.wall_ms(),
        }


_encode: Final = json_encoder().encode


def _encoded(value: Any) -> str:
    try:
        return _encode(value).decode()
    except (TypeError, ValueError, RecursionError) as error:
        raise NotEncodable(
            f"the event cannot be written as JSON: {error}",
            remedy="give dataclasses, msgspec Structs, TypedDicts, Pydantic models, or what JSON has",
        ) from None
