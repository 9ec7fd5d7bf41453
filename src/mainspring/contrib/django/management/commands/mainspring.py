"""`manage.py mainspring`: the node of the project, and the drainer that carries the outbox to it, in one process.

Started a second time on the same data, it stands by: it becomes the node when the first one goes.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
import threading
from typing import TYPE_CHECKING, Any

import uuid_utils
from django.core.management.base import CommandError
from django.db import connections

from mainspring.client import NodeConnection
from mainspring.contrib.django.conf import DjangoSettings, read_settings
from mainspring.errors import MainspringError
from mainspring.loop import MonotonicClock
from mainspring.node import load_program
from mainspring.outbox import Drainer, SqlStore
from mainspring.settings import Settings

if TYPE_CHECKING:
    BaseCommand = object  # Django has no types of its own
else:
    from django.core.management.base import BaseCommand


class Command(BaseCommand):
    """Serves the App that `MAINSPRING["app"]` names."""

    help: str = "Run the project's Mainspring node, and publish what the outbox holds."

    stdout: Any

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("--database", default="default", help="The database whose outbox is published.")
        parser.add_argument("--no-outbox", action="store_true", help="Leave the outbox to another process.")

    def handle(self, *_: Any, **options: Any) -> None:
        settings = read_settings()
        if not settings.app:
            raise CommandError('say which App to run: MAINSPRING = {"app": "shop.events:app"}')
        stopping, draining = threading.Event(), None
        if not (options["no_outbox"] or settings.log_is_in(connections[options["database"]])):
            drainer = drainer_of(settings, options["database"])
            draining = threading.Thread(target=drainer.run, args=(stopping.wait,), name="outbox", daemon=True)
            draining.start()
        try:
            asyncio.run(self.serve(settings))
        except MainspringError as error:
            raise CommandError(str(error)) from error
        finally:
            stopping.set()
            if draining is not None:
                draining.join()

    async def serve(self, settings: DjangoSettings) -> None:
        """Until a signal."""
        app, stopping = load_program(settings.app), asyncio.Event()
        assert app is not None
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stopping.set)
        async with app.running(**{"port": Settings().port, **settings.node}):
            self.stdout.write(f"{settings.app} is ready; the dashboard is at {settings.dashboard}")
            self.stdout.flush()
            await stopping.wait()


def drainer_of(settings: DjangoSettings, database: str) -> Drainer:
    """From the outbox of one of the project's databases to the node."""
    connection: Any = connections[database]
    parameters = connection.get_connection_params()
    if connection.vendor == "sqlite":

        def connect() -> Any:
            return sqlite3.connect(parameters["database"], timeout=30, isolation_level=None)

    else:

        def connect() -> Any:
            import psycopg

            of_django = ("context", "cursor_factory", "server_side_binding")
            return psycopg.connect(**{name: value for name, value in parameters.items() if name not in of_django})

    store = SqlStore(connect, connection.vendor, settings.table)
    node = NodeConnection(settings.url or "", settings.token)
    return Drainer(store, node, f"{os.getpid()}:{uuid_utils.uuid7()}", MonotonicClock(), random.random)
