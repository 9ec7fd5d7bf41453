"""The project's node and the drainer that carries the outbox to it, as `manage.py mainspring` and `embed` run them."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import uuid_utils

from mainspring.client import NodeConnection
from mainspring.contrib.django.conf import DjangoSettings, read_settings
from mainspring.errors import MainspringError, SettingError
from mainspring.loop import MonotonicClock, new_event_loop
from mainspring.node import load_program
from mainspring.outbox import Drainer, SqlStore
from mainspring.settings import Settings

logger: logging.Logger = logging.getLogger("mainspring.django")

_AGAIN_S: Final = 1.0  # before a node that could not start is tried again


async def serve(
    settings: DjangoSettings, drainer: Drainer | None, stopping: asyncio.Event, ready: Callable[[], object]
) -> None:
    """Until `stopping`. The outbox is published while the node is there: before, its port may be somebody else's."""
    app = load_program(settings.app)
    assert app is not None
    async with app.running(**{"port": Settings().port, **settings.node}):
        ready()
        async with _publishing(drainer):
            await stopping.wait()


@asynccontextmanager
async def _publishing(drainer: Drainer | None) -> AsyncIterator[None]:
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


def drainer_of(settings: DjangoSettings, database: str) -> Drainer | None:
    """From the outbox of one of the project's databases to the node; None where the log is in that database."""
    from django.db import connections

    connection: Any = connections[database]
    if settings.log_is_in(connection):
        return None
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


class EmbeddedNode:
    """The node, or a stand-by for it, on a thread of a web process."""

    def __init__(self, settings: DjangoSettings) -> None:
        self.process: int = os.getpid()
        self._settings = settings
        self._aio = new_event_loop()
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(target=self._turn, name="mainspring", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Finish what was accepted, and give the place to another process. Without this, it ends as by a crash."""
        self._aio.call_soon_threadsafe(self._stopping.set)
        self._thread.join()

    def _turn(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._aio) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        while not self._stopping.is_set():
            try:
                await serve(self._settings, drainer_of(self._settings, "default"), self._stopping, lambda: None)
            except MainspringError as error:
                logger.error("this process has no node, and tries again: %s", error)
                await asyncio.sleep(_AGAIN_S)


_embedded: EmbeddedNode | None = None


def embed() -> EmbeddedNode:
    """Run the node in the web processes, where no `manage.py mainspring` is wanted; once in each, after a fork.

    The first process on the data directory is the node, the others stand by; when it goes, another takes its place
    within seconds. For logs in files of this machine: where several nodes share a log, start `manage.py mainspring`.
    """
    global _embedded
    settings = read_settings()
    if not settings.app:
        raise SettingError("no App to run", remedy='MAINSPRING = {"app": "shop.events:app"}')
    if not str(settings.node.get("engine", "sqlite")).startswith("sqlite"):
        raise SettingError(
            "web processes are the node only where the log is a file of this machine",
            remedy="start `manage.py mainspring` beside them, as often as you like",
        )
    if _embedded is None or _embedded.process != os.getpid():
        _embedded = EmbeddedNode(settings)
    return _embedded
