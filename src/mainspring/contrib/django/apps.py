"""What `INSTALLED_APPS` finds. Where the log is in a database of the project, `migrate` makes its tables, too."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mainspring.contrib.django.conf import read_settings
from mainspring.log import EngineSetup, engine_factory

if TYPE_CHECKING:
    AppConfig = object  # Django has no types of its own
else:
    from django.apps import AppConfig


class MainspringConfig(AppConfig):
    """The app `mainspring.contrib.django`."""

    name: str = "mainspring.contrib.django"
    label: str = "mainspring_outbox"
    verbose_name: str = "Mainspring"
    default_auto_field: str = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Called by Django once everything is imported."""
        from django.db.models.signals import post_migrate

        post_migrate.connect(make_tables, sender=self)


def make_tables(using: str, **_: Any) -> None:
    """After `migrate`: a program may publish before a node has ever run."""
    from django.db import connections

    settings = read_settings()
    if settings.log_is_in(connections[using]):
        address = str(settings.node["engine"])
        asyncio.run(engine_factory(address).init(address, EngineSetup(Path(settings.node.get("data", "data")))))
