"""Your rows and your events in one transaction, where the log and your tables are in one PostgreSQL database.

    with psycopg.connect(DATABASE) as connection:                     # your own transaction
        connection.execute("INSERT INTO orders VALUES (%s, %s)", (17, "c-17"))
        publish(connection, "orders", {"order": 17}, key="c-17")

What `publish`, `start_run` and `enqueue` store belongs to the caller's transaction: it exists when that commits, and
never otherwise. A node of the log moves it into the log as soon as it is committed, each once; no other process is
needed, and while no node runs it waits. Transactions that publish to one topic with the same key wait for each other,
so that events of a key are in the order in which their transactions committed.

`connection` is what the program has open: a psycopg, asyncpg or Django connection, a SQLAlchemy Connection or Session.
With an async one, await what these functions give.

- `transactions`: `publish`, `start_run` and `enqueue`, and what they store
"""

from __future__ import annotations

from mainspring.postgres.transactions import OutgoingEvent, OutgoingRun, enqueue, publish, start_run

__all__ = ["OutgoingEvent", "OutgoingRun", "enqueue", "publish", "start_run"]
