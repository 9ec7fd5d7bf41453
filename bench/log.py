"""The log by itself: what a commit costs, alone and in company, on an empty log and on a long one.

Every figure that depends on the disk stands beside the time of one fsync of the same disk, measured in turns with it.
`long_log` has 1,000,000 events, with `--long` 10,000,000; its `replay` reads them all, from the first on.
"""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from bench.harness import Figures, alternate_async, medians, options, progress, ratio, report, spread, summary
from mainspring.log import Append, Batch, Engine, Log, MemoryEngine, Put, Receipt, Result, SqliteEngine

PAYLOAD = b'{"text":"' + b"x" * 189 + b'"}'
ID = "0190b7f6-1234-7abc-8def-%012d"
TS = 1_700_000_000_000
ROUNDS = 15
OUTSTANDING = 4_096  # events submitted and not yet acknowledged while throughput is measured


def event(number: int, topic: str = "bench", dedupe: str | None = None) -> Append:
    return Append(topic, 0, ID % number, TS, PAYLOAD, dedupe=dedupe, dedupe_until=TS + 600_000)


async def pipelined(log: Log, batches: list[Batch]) -> float:
    """Seconds until all batches are durable, with a bounded number of events under way."""
    waiting = 0
    moved = asyncio.Event()

    def done(size: int, result: Result) -> None:
        nonlocal waiting
        assert isinstance(result, Receipt), result
        waiting -= size
        moved.set()

    start = time.perf_counter()
    for batch in batches:
        size = len(batch.operations)
        while waiting + size > OUTSTANDING:
            moved.clear()
            await moved.wait()
        waiting += size
        log.submit(batch, lambda result, size=size: done(size, result))  # type: ignore[misc]
    while waiting:
        moved.clear()
        await moved.wait()
    return time.perf_counter() - start


async def opened(engine: Engine) -> Log:
    log = Log(engine)
    await log.open()
    return log


async def throughput(make: Callable[[], Engine], size: int, total: int) -> float:
    """Events per second in batches of `size`, the best of three."""
    best = 0.0
    for _ in range(3):
        log = await opened(make())
        batches = [Batch([event(n + m) for m in range(size)]) for n in range(0, total, size)]
        best = max(best, total / await pipelined(log, batches))
        await log.close()
    return best


async def by_batch_size(place: Path) -> Figures:
    numbers = iter(range(1_000_000))
    result: Figures = {}
    for size, total in ((1, 60_000), (8, 100_000), (64, 200_000), (512, 200_000)):
        result[str(size)] = {
            "sqlite": round(await throughput(lambda: SqliteEngine(place / f"by-size-{next(numbers)}"), size, total)),
            "memory": round(await throughput(MemoryEngine, size, total)),
        }
    return result


async def other_writes(place: Path) -> Figures:
    """Single-operation batches per second of the kinds that are looked up first."""
    count = 20_000
    kinds: dict[str, Callable[[int], Batch]] = {
        "put": lambda n: Batch([Put("groups", f"{n % 1000}", PAYLOAD)]),
        "put_if_absent": lambda n: Batch([Put("journal", f"{n:09}", PAYLOAD, expect=0)]),
        "publish_once": lambda n: Batch([event(n, dedupe=ID % n)]),
    }
    result = {}
    for name, make in kinds.items():
        log = await opened(SqliteEngine(place / f"writes-{name}"))
        result[name] = round(count / await pipelined(log, [make(n) for n in range(count)]))
        await log.close()
    return result


async def lone(place: Path) -> Figures:
    """One publisher that waits for each acknowledgement, against one write and fsync of as many bytes."""
    log = await opened(SqliteEngine(place / "lone"))
    descriptor = os.open(place / "probe", os.O_RDWR | os.O_CREAT)
    os.pwrite(descriptor, b"\0" * (4120 * 1024), 0)
    os.fsync(descriptor)

    async def commits() -> float:
        times = []
        for n in range(40):
            start = time.perf_counter()
            await log.commit(Batch([event(n)]))
            times.append(time.perf_counter() - start)
        return statistics.median(times)

    async def fsyncs() -> float:
        times = []
        for n in range(40):
            start = time.perf_counter()
            os.pwrite(descriptor, PAYLOAD.ljust(4120, b"x"), 4120 * n)
            os.fdatasync(descriptor)
            times.append(time.perf_counter() - start)
        return statistics.median(times)

    pairs = await alternate_async(commits, fsyncs, ROUNDS)
    commit, fsync = medians(pairs)
    os.close(descriptor)
    await log.close()
    return {
        "commit_us": round(commit * 1e6, 1),
        "fsync_us": round(fsync * 1e6, 1),
        "ratio": ratio(pairs),
        "spread": spread(pairs),
    }


async def long_log(place: Path, count: int) -> Figures:
    """Cost per publish, boot, reads and memory with `count` events stored, against an empty log."""
    log = await opened(SqliteEngine(place / "long"))
    before = _memory_kb()
    start = time.perf_counter()
    for first in range(0, count, 100_000):
        await pipelined(log, [Batch([event(n + m) for m in range(500)]) for n in range(first, first + 100_000, 500)])
    filling = time.perf_counter() - start
    grown = _memory_kb() - before
    await log.close()
    start = time.perf_counter()
    log = await opened(SqliteEngine(place / "long"))
    boot = time.perf_counter() - start
    start = time.perf_counter()
    found = await log.offset_at("bench", 0, TS + 1)
    seeking = time.perf_counter() - start
    assert found == count + 1
    empty = await opened(SqliteEngine(place / "empty"))
    pairs = await alternate_async(lambda: _publishing(log), lambda: _publishing(empty), ROUNDS)
    replayed = await replay(log, count)
    await log.close()
    await empty.close()
    return {
        "events": count,
        "cost_to_empty": {"ratio": ratio(pairs, 3), "spread": spread(pairs, 3)},
        "fill_events_per_s": round(count / filling),
        "memory_grown_kb": grown,
        "boot_ms": round(boot * 1e3, 1),
        "offset_at_ms": round(seeking * 1e3, 2),
        "replay": replayed,
        "file_bytes_per_event": round((place / "long").stat().st_size / count),
    }


async def replay(log: Log, count: int, slices: int = 10) -> Figures:
    """Read everything from the first event on; each tenth of it is a round."""
    found, offset = [], 1
    for n in range(1, slices + 1):
        begun, spent, first = time.perf_counter(), time.process_time(), offset
        while offset <= count * n // slices:
            offset = (await log.read("bench", 0, offset, 512))[-1].offset + 1
        read = offset - first
        found.append((read / (time.perf_counter() - begun), (time.process_time() - spent) / read * 1e6))
    rates, cpu = zip(*found, strict=True)
    return {"events_per_s": summary(rates), "cpu_us_per_event": summary(cpu, 3)}


def _memory_kb() -> int:
    """What this process holds now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() // 1024


async def _publishing(log: Log) -> float:
    return await pipelined(log, [Batch([event(n)]) for n in range(4_000)])


async def measure(place: Path, count: int) -> Figures:
    steps: dict[str, Callable[[], Awaitable[Figures]]] = {
        "lone_publisher": lambda: lone(place),
        "events_per_s_by_batch_size": lambda: by_batch_size(place),
        "batches_per_s": lambda: other_writes(place),
        "long_log": lambda: long_log(place, count),
    }
    found: Figures = {}
    for name, step in steps.items():
        found[name] = await step()
        progress("log", name, found[name])
    return found


def main() -> None:
    given = options(__doc__)
    with tempfile.TemporaryDirectory(prefix="mainspring-bench-") as name:
        figures = asyncio.run(measure(Path(name), 10_000_000 if given.long else 100_000 if given.quick else 1_000_000))
        report(
            figures,
            payload_bytes=len(PAYLOAD),
            durability="SQLite WAL, synchronous=FULL: one fsync before every acknowledgement",
            outstanding_events=OUTSTANDING,
            sqlite=sqlite3.sqlite_version,
            free_disk_bytes=shutil.disk_usage(name).free,
        )


if __name__ == "__main__":
    main()
