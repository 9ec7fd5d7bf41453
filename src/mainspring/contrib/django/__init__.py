"""A Django app: publish with your own transaction, ask the node from views, run the node with `manage.py mainspring`.

    INSTALLED_APPS = [..., "mainspring.contrib.django"]
    MAINSPRING = {"app": "shop.events:app", "data": BASE_DIR / "data"}

- `publish`: an event that is published exactly when the transaction commits; `client`: the node, for views
- `node`: `embed`, which runs the node in the web processes themselves
- `conf`: the settings. `apps`, `models`, `admin`, `migrations`, `management`: what Django looks for
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from mainspring.client import SyncClient
from mainspring.contrib.django.conf import read_settings
from mainspring.contrib.django.node import EmbeddedNode, embed
from mainspring.outbox import Outbox


def publish(
    topic: str,
    payload: Any,
    *,
    key: str | None = None,
    headers: Mapping[str, str] | None = None,
    id: str | None = None,
    using: str | None = None,
) -> str:
    """Publish an event with the present transaction of a database; gives its id.

    It is written beside your rows, in the same transaction: a rollback takes it back, and a commit that succeeded is
    published even if the process ends right after it. Where the node's log is in PostgreSQL, the event goes straight
    there; otherwise `manage.py mainspring` carries it to the node. Events of one key and topic are published in order.
    """
    from django.db import transaction

    settings = read_settings()
    with transaction.atomic(using=using):
        connection: Any = transaction.get_connection(using)
        if settings.log_is_in(connection):
            from mainspring import postgres

            given = None if headers is None else dict(headers)
            options: dict[str, Any] = {"key": key, "headers": given, "id": id, "schema": settings.schema}
            return str(postgres.publish(connection, topic, payload, **options))
        raw = connection.connection
        return str(Outbox(settings.table).add(raw, topic, payload, key=key, headers=headers, id=id))


@cache
def client() -> SyncClient:
    """The client of this process, for views: `client().command("Order.Place", {...})`. It may be forked."""
    settings = read_settings()
    return SyncClient(settings.url, settings.token)


__all__ = ["EmbeddedNode", "client", "embed", "publish"]
