"""The table of the outbox, as a drainer expects it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import migrations, models

from mainspring.contrib.django.conf import read_settings
from mainspring.contrib.django.models import STATES
from mainspring.outbox import Outbox

if TYPE_CHECKING:
    BaseMigration = object  # Django has no types of its own
else:
    BaseMigration = migrations.Migration


def create(apps: Any, schema_editor: Any) -> None:
    vendor = schema_editor.connection.vendor
    if vendor not in ("sqlite", "postgresql"):
        raise NotImplementedError(f"mainspring.contrib.django knows SQLite and PostgreSQL, not {vendor}")
    for statement in Outbox(read_settings().table).statements(vendor):
        schema_editor.execute(statement)


def drop(apps: Any, schema_editor: Any) -> None:
    schema_editor.execute(f"DROP TABLE IF EXISTS {Outbox(read_settings().table).table}")


class Migration(BaseMigration):
    """Makes the table; the model only describes it."""

    initial: bool = True
    dependencies: tuple[Any, ...] = ()
    operations: tuple[Any, ...] = (
        migrations.RunPython(create, drop),
        migrations.CreateModel(
            "OutboxEvent",
            [
                ("seq", models.BigAutoField(primary_key=True, serialize=False)),
                ("id", models.TextField(unique=True)),
                ("topic", models.TextField()),
                ("event_key", models.TextField(null=True, verbose_name="key")),
                ("headers", models.TextField(null=True)),
                ("payload", models.TextField()),
                ("created_ms", models.BigIntegerField()),
                ("state", models.SmallIntegerField(choices=STATES)),
                ("attempts", models.IntegerField()),
                ("place", models.TextField(null=True)),
                ("error", models.TextField(null=True)),
            ],
            options={
                "managed": False,
                "db_table": read_settings().table,
                "ordering": ("-seq",),
                "verbose_name": "outbox event",
            },
        ),
    )
