"""Drainers: what carries events from the program's database, where they were written with its own rows, to the nodes.

The database is a real SQLite file, the drainer is the real one; what it stands on is simulated. It waits where others
await, so it runs in a thread of its own, which only runs while the event loop of its process waits for it: nothing
depends on how the machine shares its time.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections import deque
from collections.abc import Callable, Coroutine
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, Final

from mainspring.client import CannotConnect
from mainspring.outbox import Drainer, DrainOptions, Outbox, OutboxStore, open_outbox
from mainspring.testing.simulation.machines import System, SystemHttp
from mainspring.testing.simulation.processes import SimulatedProcess

OPTIONS: Final = DrainOptions(batch=5, lease_ms=4_000, retry_first_ms=100, retry_last_ms=1_000, poll_ms=250)

Work = Callable[[], Coroutine[Any, Any, Any]]


class OutboxDatabase:
    """The database of a simulated program: a file with an outbox in it."""

    def __init__(self, folder: Path) -> None:
        self._url = f"sqlite:///{folder / 'program.db'}"
        self.connection: sqlite3.Connection = sqlite3.connect(folder / "program.db")
        self.connection.execute("PRAGMA journal_mode = MEMORY")
        with self.connection:
            Outbox().create(self.connection)

    def open(self) -> OutboxStore:
        """The rows, for one drainer."""
        return open_outbox(self._url)

    def waiting(self) -> int:
        """How many rows no node has."""
        store = self.open()
        try:
            return store.count().waiting
        finally:
            store.close()


class DrainerMachine:
    """One host, and the drainer that runs on it, over all its lives."""

    def __init__(self, system: System, name: str, database: OutboxDatabase) -> None:
        self.name = name
        self.process: SimulatedProcess | None = None
        self._system = system
        self._database = database
        self._lives = 0
        self._thread: BlockingThread | None = None

    def boot(self) -> None:
        if self.process is not None:
            return
        self._lives += 1
        life, system = f"{self.name}.{self._lives}", self._system
        source = random.Random(f"{system.seed}/{life}")
        self.process = process = system.new_process(self.name, source)
        system.network.machine_is_back(self.name)
        self._thread = thread = BlockingThread()
        node: Any = _NodeConnection(thread, [machine.name for machine in system.machines])
        store = self._database.open()
        drainer = Drainer(store, node, life, process.clock, source.random, OPTIONS)

        def work() -> None:
            try:
                drainer.run(lambda s: bool(thread.ask(lambda: asyncio.sleep(s))))
            finally:
                store.close()

        process.spawn(thread.run(work))

    def kill(self, down_ms: float) -> None:
        """End it at once; it is started again after so long."""
        process = self.process
        if process is not None:
            self.end()
            self._system.network.end_process(process, silently=False)
            self._system.timeline.after(down_ms, self.boot)

    def end(self) -> None:
        """It does nothing more, neither here nor in the database."""
        if self.process is not None and self._thread is not None:
            self.process.kill()
            self._thread.end()
            self.process = None


class _Ended(BaseException):
    """Of the process: nothing of it may catch this and go on."""


class BlockingThread:
    """Code that waits, for a process that is simulated."""

    def __init__(self) -> None:
        self._asked: SimpleQueue[Work | None] = SimpleQueue()
        self._answers: SimpleQueue[Any] = SimpleQueue()
        self._thread: Thread | None = None
        self._is_over = False

    async def run(self, work: Callable[[], None]) -> None:
        """Have it done; what it asks for is done here meanwhile."""

        def whole() -> None:
            try:
                work()
            except _Ended:
                pass
            finally:
                self._asked.put(None)

        self._thread = Thread(target=whole, daemon=True)
        self._thread.start()
        while (asked := self._asked.get()) is not None:
            try:
                answer = await asked()
            except Exception as error:
                answer = error
            self._answers.put(answer)

    def ask(self, work: Work) -> Any:
        """In the thread: what the event loop gives, or raises."""
        if self._is_over:
            raise _Ended
        self._asked.put(work)
        answer = self._answers.get()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def end(self) -> None:
        """The process is gone, and the thread with it."""
        self._is_over = True
        if self._thread is not None:
            self._answers.put(_Ended())
            self._thread.join()


class _NodeConnection:
    """What a drainer has of a `NodeConnection`: the first node that can be reached is asked."""

    def __init__(self, thread: BlockingThread, hosts: list[str]) -> None:
        self._thread = thread
        self._hosts = deque(hosts)
        self._http: SystemHttp | None = None

    def call(self, method: str, path: str, body: bytes, *, content_type: str) -> Any:
        return self._thread.ask(lambda: self._call(method, path, body, content_type))

    async def _call(self, method: str, path: str, body: bytes, content_type: str) -> Any:
        if self._http is None:
            self._http = SystemHttp(f"ws://{self._hosts[0]}:7070", None)
        try:
            return await self._http.send(method, path, body, content_type)
        except CannotConnect:
            self._hosts.rotate(-1)
            http, self._http = self._http, None
            await http.close()
            raise

    def close(self) -> None:
        """The process ends with its connections."""
