"""The outbox as Django sees it: for the admin, to look at. `publish` writes it, and the node's drainer reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import models

from mainspring.contrib.django.conf import read_settings

if TYPE_CHECKING:
    Model = object  # Django has no types of its own
else:
    from django.db.models import Model

STATES: list[tuple[int, str]] = [(0, "waits"), (1, "sent"), (2, "set aside")]


class OutboxEvent(Model):
    """One row."""

    seq: Any = models.BigAutoField(primary_key=True)
    id: Any = models.TextField(unique=True)
    topic: Any = models.TextField()
    event_key: Any = models.TextField("key", null=True)
    headers: Any = models.TextField(null=True)
    payload: Any = models.TextField()
    created_ms: Any = models.BigIntegerField()
    state: Any = models.SmallIntegerField(choices=STATES)
    attempts: Any = models.IntegerField()
    place: Any = models.TextField(null=True)
    error: Any = models.TextField(null=True)

    class Meta:
        managed: bool = False  # the migration makes the table that a drainer expects
        db_table: str = read_settings().table
        ordering: tuple[str, ...] = ("-seq",)
        verbose_name: str = "outbox event"

    def __str__(self) -> str:
        return f"{self.topic} {self.id}"
