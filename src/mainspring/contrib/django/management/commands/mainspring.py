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
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
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
        drainer = None
        if not (options["no_outbox"] or settings.log_is_in(connections[options["database"]])):
            drainer = drainer_of(settings, options["database"])
        try:
            asyncio.run(self.serve(settings, drainer))
        except MainspringError as error:
            raise CommandError(str(error)) from error

    async def serve(self, settings: DjangoSettings, drainer: Drainer | None) -> None:
        """Until a signal. The outbox is published while the node is there: before, its port may be somebody else's."""
        app, stopping = load_program(settings.app), asyncio.Event()
        assert app is not None
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stopping.set)
        async with app.running(**{"port": Settings().port, **settings.node}):
            self.stdout.write(f"{settings.app} is ready; the dashboard is at {settings.dashboard}")
            self.stdout.flush()
            async with publishing(drainer):
                await stopping.wait()


@asynccontextmanager
async def publishing(drainer: Drainer | None) -> AsyncIterator[None]:
    """In a thread of its own; the node goes on until the thread has its last answer."""
    if drainer is None:
        yield
        return
    stopping = threading.Event()
    thread = threading.Thread(target=drainer.run, args=(stopping.wait,), name="outbox", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        await asyncio.to_thread(thread.join)


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
