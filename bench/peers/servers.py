"""The peers of the bus, started for one measurement and ended after it: a node of ours, nats-server, redis-server.

Each is given its best: the fastest event loop, pipelines or batches as large as ours, and nothing else on its disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import NamedTuple

# What one caller may have. Here it has what thousands would, so none of them holds.
QUOTAS = ("CONNECTIONS", "SUBSCRIPTIONS", "GROUPS", "TOPICS", "SCHEDULES", "EVENTS_PER_SECOND", "BYTES_PER_SECOND")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def _process(command: list[str], **options: object) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **options)  # type: ignore[call-overload]
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class ThreadTimes(NamedTuple):
    """Seconds of the thread of the loop, and of all others: nearly all of it is the writer's of the log."""

    loop: float
    writer: float


class Node:
    """A running node."""

    def __init__(self, port: int, process: subprocess.Popen[bytes]) -> None:
        self.port = port
        self.process = process

    def memory_mb(self) -> float:
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
        return 0.0

    def cpu_s(self) -> ThreadTimes:
        """Processor time so far, as the scheduler counts it: in nanoseconds, not in clock ticks."""
        threads = Path(f"/proc/{self.process.pid}/task").glob("*/schedstat")
        found = {int(each.parent.name): int(each.read_text().split()[0]) / 1e9 for each in threads}
        loop = found.pop(self.process.pid)
        return ThreadTimes(loop, sum(found.values()))


@contextlib.asynccontextmanager
async def node(folder: Path | None = None, program: str = "", **env: str) -> AsyncIterator[Node]:
    """`mainspring serve` on SQLite, fsync before every acknowledgement, no quotas; `program` is found in the folder.

    One of another checkout (`PYTHONPATH`) keeps its quotas: before there were any, it refuses to be told of them.
    """
    with tempfile.TemporaryDirectory(prefix="ms-bench-") as made:
        root = folder or Path(made)
        command = [sys.executable, "-m", "mainspring", "serve", *([program] if program else [])]
        command += ["--port", "0", "--data", str(root / "data")]
        command += ["--kernel-socket", f"{made}/k", "--loop-socket", f"{made}/l"]
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("MAINSPRING_", "BUS_"))}
        if "PYTHONPATH" not in env:
            clean |= {f"MAINSPRING_QUOTA_{name}": "0" for name in QUOTAS}
        with _process(command, stdout=subprocess.PIPE, env={**clean, **env}, cwd=folder) as process:
            assert process.stdout is not None
            line = await asyncio.to_thread(process.stdout.readline)
            address = next(one for one in json.loads(line)["data"]["adapters"] if one.startswith("http:"))
            yield Node(int(address.rsplit(":", 1)[1]), process)


def nats_server() -> str | None:
    beside = Path(sys.executable).parent / "nats-server"
    return str(beside) if beside.exists() else shutil.which("nats-server")


@contextlib.asynccontextmanager
async def nats(*, always: bool) -> AsyncIterator[int]:
    """JetStream with file storage; `always` syncs every write, the default every two minutes."""
    program = nats_server()
    assert program is not None
    with tempfile.TemporaryDirectory(prefix="nats-bench-") as folder:
        port = free_port()
        sync = "sync_interval: always" if always else ""
        conf = Path(folder) / "server.conf"
        conf.write_text(f'host: 127.0.0.1\nport: {port}\njetstream {{ store_dir: "{folder}/js"\n{sync} }}\n')
        with _process([program, "-c", str(conf)], stdout=subprocess.DEVNULL):
            await _listening(port)
            yield port


def redis_server() -> str | None:
    return shutil.which("redis-server")


@contextlib.asynccontextmanager
async def redis(*, always: bool) -> AsyncIterator[int]:
    """Redis with its append-only file; `always` syncs before every answer, `everysec` once a second."""
    program = redis_server()
    assert program is not None
    with tempfile.TemporaryDirectory(prefix="redis-bench-") as folder:
        port = free_port()
        options = ["--port", str(port), "--bind", "127.0.0.1", "--dir", folder, "--save", "", "--appendonly", "yes"]
        options += ["--appendfsync", "always" if always else "everysec"]
        with _process([program, *options], stdout=subprocess.DEVNULL):
            await _listening(port)
            yield port


async def _listening(port: int) -> None:
    for _ in range(500):
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            await asyncio.sleep(0.1)
            return
        await asyncio.sleep(0.02)
    raise RuntimeError(f"nothing listens on port {port}")


def cpu_s(pid: int) -> float:
    """Processor time of a process and of what it started, what has ended included."""
    total, found = 0, {pid}
    for status in sorted(Path("/proc").glob("[0-9]*/stat"), key=lambda path: int(path.parent.name)):
        with contextlib.suppress(OSError):  # it has just ended
            fields = status.read_text().rpartition(")")[2].split()
            own = int(status.parent.name)
            if own in found or int(fields[1]) in found:
                found.add(own)
                total += sum(int(field) for field in fields[11:15])  # user, system, and both of its ended children
    return total / os.sysconf("SC_CLK_TCK")


def fsync_us(rounds: int = 400) -> float:
    """One append of 4 KiB and fsync on the disk that the nodes use: the median."""
    with tempfile.TemporaryDirectory(prefix="ms-bench-") as folder:
        file = os.open(f"{folder}/x", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        taken = []
        for _ in range(rounds):
            start = time.perf_counter()
            os.write(file, bytes(4096))
            os.fsync(file)
            taken.append(time.perf_counter() - start)
        os.close(file)
        return sorted(taken)[rounds // 2] * 1e6
