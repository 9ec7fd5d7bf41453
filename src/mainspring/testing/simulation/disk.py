"""Where the logs of a simulation rest: a disk of one node's own, or a server that several nodes share.

Both keep what they have in a `MemoryEngine`, and a commit takes time. What is durable is there when its fsync ends (or
when the server has it), never before, and only then is it acknowledged. A node that is killed meanwhile leaves behind
nothing of that commit, or all of it, or the first of its batches: whatever the contract of the log allows.

- A disk can be full, fail (what was refused may be there after a crash, unless it was overwritten), be slow, and lose
  bytes of stored events: those are reported as damaged when they are read, as the real engines do by their checksums.
- A server can be out of reach. Then a commit is in doubt: it was never stored, it is, or it will be. Changes are
  reported to each node in the log's order, later than they happened.

`SqliteDisk` is the real engine on a file, for some of the seeds. A loss of power leaves of its write-ahead log what was
synced, and any part of what was not.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from mainspring.log import (
    Batch,
    Change,
    DamagedEvent,
    Durability,
    Engine,
    InDoubt,
    LogUnavailable,
    MemoryEngine,
    Outline,
    ReadThrough,
    Receipt,
    Restorable,
    Result,
    SharedMemory,
    SharedMemoryEngine,
    SqliteEngine,
    StoredEvent,
    change_of,
)
from mainspring.log.engines.sqlite import SqliteWriter
from mainspring.testing.simulation.network import Network
from mainspring.testing.simulation.processes import MS, START_MS, SimulatedProcess, Timeline

PATIENCE_MS: Final = 3_000  # a commit that the server has not answered by then is in doubt
UPKEEP_CHANCE: Final = 0.1  # that the log is kept up after a commit
SERVER: Final = "log server"  # its name as a host
_DURABLE: Final = Durability(True, "simulated: an acknowledgement is on the simulated disk")


class Storage(Protocol):
    """What a machine keeps its log on, over the lives of its node."""

    def engine(self, process: SimulatedProcess) -> Engine:
        """The engine of one life."""
        ...

    def process_ended(self, process: SimulatedProcess) -> None:
        """That life is over, at whatever it was doing."""

    def heal(self) -> None:
        """Nothing goes wrong any more; what was damaged stays so."""

    def close(self) -> None:
        """The simulation is over."""


class Disk:
    """One machine's own disk."""

    def __init__(self, timeline: Timeline, seed: str, met: Counter[str]) -> None:
        self.state: MemoryEngine = MemoryEngine()
        self.random: random.Random = random.Random(seed)
        self.damaged: set[tuple[str, int, int]] = set()
        self.unsynced: list[Batch] = []  # written and refused: it may be there after a crash, unless overwritten before
        self.met = met
        self._timeline = timeline
        self._until: dict[str, int] = {}
        self.refuses_commits: Callable[[], bool] = lambda: self.has("failing") and self.random.random() < 0.6
        self.refuses_reads: Callable[[], bool] = lambda: self.has("failing") and self.random.random() < 0.3
        self._engine: DiskEngine | None = None

    def engine(self, process: SimulatedProcess) -> Engine:
        self._engine = DiskEngine(self)
        return self._engine

    def process_ended(self, process: SimulatedProcess) -> None:
        batches, self.unsynced = self.unsynced, []
        if self._engine is not None and self._engine.under_way:
            batches = self._engine.under_way
        if batches:
            self.met["commit cut short"] += 1
            self.state.submit(
                batches[: self.random.choice((0, len(batches), self.random.randint(0, len(batches))))], _ignore
            )

    # -- what goes wrong

    def trouble(self, kind: str, ms: float) -> None:
        """For so long it is `full`, `failing` or `slow`."""
        self._until[kind] = self._timeline.now_ns + int(ms * MS)

    def has(self, kind: str) -> bool:
        return self._until.get(kind, 0) > self._timeline.now_ns

    def heal(self) -> None:
        self._until.clear()

    def close(self) -> None:
        """Nothing to let go of."""

    def commit_s(self) -> float:
        if self.has("slow"):
            return self.random.uniform(0.1, 1.5)
        return self.random.choice((0.0003, 0.001, 0.004)) * self.random.uniform(0.5, 1.5)


class DiskEngine(ReadThrough):
    """The engine of one life on a disk."""

    name: str = "simulated disk"
    takes_many: bool = True

    def __init__(self, disk: Disk) -> None:
        super().__init__(disk.state)
        self._disk = disk
        self.under_way: list[Batch] = []

    async def open(self) -> None:
        """What was stored before is there."""

    async def close(self) -> None:
        """It stays for the next life."""

    async def durability(self) -> Durability:
        return _DURABLE

    async def commit(self, batches: Sequence[Batch]) -> list[Result]:
        disk = self._disk
        self.under_way = list(batches)
        await asyncio.sleep(disk.commit_s())
        self.under_way = []
        if disk.has("full"):
            disk.met["commit refused: full"] += 1
            return [LogUnavailable("the disk is full", remedy="free some space")] * len(batches)
        if disk.refuses_commits():
            disk.met["commit refused: error"] += 1
            disk.unsynced = list(batches)
            return [LogUnavailable("the disk reported an error", remedy="check the disk")] * len(batches)
        disk.unsynced = []
        return await disk.state.commit(batches)

    async def read(
        self, topic: str, partition: int, start: int, limit: int, max_bytes: int = 4 << 20
    ) -> list[StoredEvent]:
        if self._disk.refuses_reads():
            self._disk.met["read refused: error"] += 1
            raise LogUnavailable("the disk reported an error", remedy="check the disk")
        return self._sound(await self._disk.state.read(topic, partition, start, limit, max_bytes), topic, partition)

    async def outline(self, topic: str, partition: int, start: int, limit: int) -> list[Outline]:
        return self._sound(await self._disk.state.outline(topic, partition, start, limit), topic, partition)

    def _sound(self, found: list[Any], topic: str, partition: int) -> list[Any]:
        for at, event in enumerate(found):
            if (topic, partition, event.offset) in self._disk.damaged:
                if not at:
                    self._disk.met["damaged event read"] += 1
                    raise DamagedEvent(topic, partition, event.offset)
                return found[:at]
        return found

    def forget_dedupe(self, now: int) -> Coroutine[Any, Any, int]:
        return self._disk.state.forget_dedupe(now)

    def restore(self, items: Sequence[Restorable]) -> Coroutine[Any, Any, None]:
        return self._disk.state.restore(items)


def _ignore(results: list[Result]) -> None:
    pass


# -- a log that several nodes share


class LogServer:
    """The server; every machine has the same one."""

    def __init__(self, timeline: Timeline, network: Network, seed: str, met: Counter[str]) -> None:
        self.shared: SharedMemory = SharedMemory()
        self.state: MemoryEngine = self.shared.state
        self.timeline = timeline
        self.network = network
        self.random: random.Random = random.Random(seed)
        self.met = met

    def engine(self, process: SimulatedProcess) -> Engine:
        engine = ServedEngine(self, process)
        self.shared.engines.append(engine)
        return engine

    def process_ended(self, process: SimulatedProcess) -> None:
        for engine in self.shared.engines:
            if isinstance(engine, ServedEngine) and engine.process is process:
                self.shared.engines.remove(engine)
                if engine.under_way and self.random.random() < 0.5:
                    self.met["commit cut short"] += 1
                    self.store(engine, engine.under_way)
                return

    def heal(self) -> None:
        """What goes wrong here is the network's."""

    def close(self) -> None:
        """Nothing to let go of."""

    def store(self, by: ServedEngine, batches: Sequence[Batch]) -> list[Result]:
        """At the server: decide the batches, and tell every node what changed."""
        results: list[Result] = []
        self.state.submit(batches, results.extend)
        for batch, result in zip(batches, results, strict=True):
            if isinstance(result, Receipt):
                for engine in self.shared.engines:
                    engine.committed(change_of(batch, result, own=engine is by))
        return results


class ServedEngine(SharedMemoryEngine):
    """One life's connection to the server."""

    name: str = "simulated server"

    def __init__(self, server: LogServer, process: SimulatedProcess) -> None:
        super().__init__(server.shared)
        self.process = process
        self.under_way: list[Batch] = []
        self._server = server

    async def durability(self) -> Durability:
        return _DURABLE

    async def commit(self, batches: Sequence[Batch]) -> list[Result]:
        server, here = self._server, self.process.host
        ends_ns = server.timeline.now_ns + PATIENCE_MS * MS
        self.under_way = list(batches)
        try:
            if not await self._reach(here, SERVER, ends_ns):
                if server.random.random() < 0.3:  # it is on its way all the same
                    wait_ns = server.network.blocked_ns(here, SERVER) + server.random.randrange(1, 2_000) * MS
                    server.timeline.at(wait_ns, lambda: self._store_late(batches))
                return self._in_doubt(batches)
            results = server.store(self, batches)
        finally:
            self.under_way = []
        if not await self._reach(SERVER, here, ends_ns):
            return self._in_doubt(batches)
        super()._report_waiting()  # what a node has committed it knows before the answer
        return results

    async def time_ms(self) -> int:
        """What time it is at the server, whose clock nobody sets."""
        server, here = self._server, self.process.host
        ends_ns = server.timeline.now_ns + PATIENCE_MS * MS
        if await self._reach(here, SERVER, ends_ns):
            time_ms = START_MS + server.timeline.now_ms
            if await self._reach(SERVER, here, ends_ns):
                return time_ms
        raise LogUnavailable("the server did not say what time it is", remedy="try again")

    async def _reach(self, source: str, target: str, ends_ns: int) -> bool:
        """Wait for the way to the server or back; False when patience ends before."""
        server = self._server
        arrives_ns = max(server.timeline.now_ns, server.network.blocked_ns(source, target))
        arrives_ns += server.network.delay_ns(source, target)
        await asyncio.sleep((min(arrives_ns, ends_ns) - server.timeline.now_ns) / 1e9)
        return arrives_ns <= ends_ns

    def _in_doubt(self, batches: Sequence[Batch]) -> list[Result]:
        self._server.met["commit in doubt"] += 1
        return [InDoubt("the server did not answer in time", remedy="try again with the same id")] * len(batches)

    def _store_late(self, batches: Sequence[Batch]) -> None:
        self._server.met["commit stored late"] += 1
        self._server.store(self, batches)

    def committed(self, change: Change) -> None:
        server = self._server
        if self._loop is None:
            return
        self._unreported.append(change)
        arrives_ns = max(server.timeline.now_ns, server.network.blocked_ns(SERVER, self.process.host))
        arrives_ns += server.network.delay_ns(SERVER, self.process.host)
        server.timeline.at(arrives_ns, lambda: self.process.do(self._report_waiting))

    def _report_waiting(self) -> None:
        if self._loop is None or self._server.network.blocked_ns(SERVER, self.process.host):
            return
        super()._report_waiting()


# -- the real engine on a file


class SqliteDisk(Disk):
    """A disk with a real SQLite file on it. Each life has a copy of what the one before has left there."""

    def __init__(self, timeline: Timeline, seed: str, met: Counter[str], folder: Path) -> None:
        super().__init__(timeline, seed, met)
        self._folder = folder
        self._engines: list[SqliteOnDisk] = []

    def engine(self, process: SimulatedProcess) -> Engine:
        folder = self._folder / str(len(self._engines))
        folder.mkdir(parents=True, exist_ok=True)
        self._engines.append(SqliteOnDisk(self, folder / "log.sqlite3"))
        return self._engines[-1]

    def process_ended(self, process: SimulatedProcess) -> None:
        engine = self._engines[-1]
        synced = engine.write_ahead_log().stat().st_size if engine.write_ahead_log().exists() else 0
        if engine.under_way and self.random.random() < 0.7:
            self.met["commit cut short"] += 1
            engine.write(engine.under_way, _ignore)
        folder = self._folder / str(len(self._engines))
        folder.mkdir(parents=True, exist_ok=True)
        for file in (engine.path, engine.write_ahead_log()):
            if file.exists():
                shutil.copy(file, folder / file.name)
        self._tear(folder / engine.write_ahead_log().name, synced)

    def _tear(self, file: Path, synced: int) -> None:
        """Of what was written and not synced, any part is there, or something else in its place."""
        if not file.exists() or file.stat().st_size <= synced:
            return
        data = bytearray(file.read_bytes())
        if self.random.random() < 0.3:
            data[self.random.randrange(synced, len(data))] ^= 0xFF
        file.write_bytes(data[: self.random.randint(synced, len(data))])

    def close(self) -> None:
        for engine in self._engines:
            engine.let_go()


class SqliteOnDisk(SqliteEngine):
    """The engine; its commits take virtual time and may fail."""

    def __init__(self, disk: SqliteDisk, path: Path) -> None:
        super().__init__(path)
        self.disk = disk
        self.under_way: list[Batch] = []

    def _make_writer(self) -> SqliteWriter:
        return _WriterInPlace(self.path, self.disk)

    def write_ahead_log(self) -> Path:
        return self.path.with_name(self.path.name + "-wal")

    def write(self, batches: Sequence[Batch], done: Callable[[list[Result]], None]) -> None:
        self.under_way = []
        super().submit(batches, done)

    def submit(self, batches: Sequence[Batch], done: Callable[[list[Result]], None]) -> None:
        self.under_way = list(batches)
        asyncio.get_running_loop().call_later(self.disk.commit_s(), self.write, batches, done)

    def let_go(self) -> None:
        if self._pool is not None:
            self._close(self._pool)
            self._pool = None


class _WriterInPlace(SqliteWriter):
    """Writes where it is asked, and keeps the file up there, too: its own thread only waits for the end."""

    def __init__(self, path: Path, disk: SqliteDisk) -> None:
        super().__init__(path)
        self._disk = disk

    def _run(self) -> None:
        self._jobs.get()

    def submit(self, batches: Sequence[Batch], done: Callable[[list[Result]], None]) -> None:
        self._appended = 0
        done(self._commit(batches))
        self._after_job()
        if self._disk.random.random() < UPKEEP_CHANCE:  # as when nothing is written for a moment
            self.keep_up()

    def call(self, work: Callable[[SqliteWriter], object], done: Callable[[object], None]) -> None:
        done(self._call(work))

    def _store(self, plan: Any, also: Any = ()) -> None:
        disk = self._disk
        if disk.has("full"):
            disk.met["commit refused: full"] += 1
            raise _error(13, "database or disk is full")
        if disk.refuses_commits():
            disk.met["commit refused: error"] += 1
            raise _error(10, "disk I/O error")
        super()._store(plan, also)


def _error(code: int, text: str) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError(text)
    error.sqlite_errorcode = code
    return error
