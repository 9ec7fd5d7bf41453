"""What the kernel costs, as ratios to bare things measured in the same run.

    python -m bench.kernel [--quick]

Prints one JSON object. Ratios are medians over rounds in which both sides take turns, because a shared machine is never
quiet for long.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from bench.harness import options, ratio, report, spread, versus
from mainspring import App
from mainspring.kernel import Kernel
from mainspring.loop import new_event_loop
from mainspring.server.ndjson import NdjsonServer

DATA = {"payload": "x" * 186}  # 200 bytes as JSON
IN_FLIGHT = 64


def app() -> App:
    made = App("bench")

    @made.query("Bench.Echo")
    async def echo(data: dict[str, Any], ctx: Any) -> dict[str, Any]:
        return data

    return made


class Bare:
    """Ask and reply with nothing but a deque and futures: no checks, no copies, no timeouts, no lineage."""

    def __init__(self) -> None:
        self._mail: deque[tuple[Any, asyncio.Future[Any]]] = deque()
        self._wake: asyncio.Future[None] | None = None
        self._task = asyncio.get_running_loop().create_task(self._serve())

    def ask(self, data: Any) -> asyncio.Future[Any]:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._mail.append((data, answer))
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)
        return answer

    async def _serve(self) -> None:
        while True:
            if not self._mail:
                self._wake = asyncio.get_running_loop().create_future()
                await self._wake
            data, answer = self._mail.popleft()
            answer.set_result(await self._echo(data))

    async def _echo(self, data: Any) -> Any:
        return data

    def stop(self) -> None:
        self._task.cancel()


async def seconds(count: int, once: Callable[[], Awaitable[Any]]) -> float:
    """Per call, one after the other."""
    begun = time.perf_counter()
    for _ in range(count):
        await once()
    return (time.perf_counter() - begun) / count


async def ask_and_reply(rounds: int, count: int) -> dict[str, Any]:
    bare = Bare()
    async with app().kernel() as kernel:
        pairs = []
        for _ in range(rounds):
            alone = await seconds(count, lambda: bare.ask({"payload": 1}))
            asked = await seconds(count, lambda: kernel.ask("query", "Bench.Echo", {"payload": 1}))
            pairs.append((alone, asked))
    bare.stop()
    return {
        "kernel_us": round(min(asked for _, asked in pairs) * 1e6, 2),
        "bare_us": round(min(alone for alone, _ in pairs) * 1e6, 2),
        "ratio": ratio(pairs),
        "spread": spread(pairs),
    }


def pykka_us(count: int) -> float:
    import pykka

    class Echo(pykka.ThreadingActor):
        def on_receive(self, message: Any) -> Any:
            return message

    actor = Echo.start()
    begun = time.perf_counter()
    for _ in range(count):
        actor.ask({"payload": 1})
    spent = (time.perf_counter() - begun) / count
    actor.stop()
    return spent * 1e6


# --- NDJSON -------------------------------------------------------------------------------------------------------


async def serve_kernel(path: str) -> None:
    async with app().kernel() as kernel:
        await NdjsonServer(kernel, path).start()
        await asyncio.Event().wait()


async def serve_bare_streams(path: str) -> None:
    """A line server of asyncio streams: read a line, decode, encode, write."""
    decode, encode = msgspec.json.decode, msgspec.json.encode

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(encode(decode(line)) + b"\n")
            await writer.drain()

    async with await asyncio.start_unix_server(serve, path):
        await asyncio.Event().wait()


async def serve_bare_protocol(path: str) -> None:
    """The same as a bare protocol: no task, no drain, one write for all lines of a read."""
    decode, encode = msgspec.json.decode, msgspec.json.encode

    class Lines(asyncio.Protocol):
        tail = b""

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport: Any = transport

        def data_received(self, data: bytes) -> None:
            *lines, self.tail = (self.tail + data).split(b"\n")
            self.transport.write(b"".join([encode(decode(line)) + b"\n" for line in lines]))

    await asyncio.get_running_loop().create_unix_server(Lines, path)
    await asyncio.Event().wait()


SERVERS = {"kernel": serve_kernel, "streams": serve_bare_streams, "protocol": serve_bare_protocol}


class LineClient:
    """Keeps 64 requests in flight; every answer is followed by the next request."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        self._number = 0

    def _request(self) -> bytes:
        self._number += 1
        message = {"kind": "query", "type": "Bench.Echo", "data": DATA}
        message["metadata"] = {"id": f"b{self._number}", "timestamp": 1}
        return json.dumps(message, separators=(",", ":")).encode() + b"\n"

    def per_second(self, count: int) -> float:
        requests = [self._request() for _ in range(count)]
        begun = time.perf_counter()
        self._socket.sendall(b"".join(requests[:IN_FLIGHT]))
        sent, answered = IN_FLIGHT, 0
        while answered < count:
            arrived = self._socket.recv(1 << 18).count(b"\n")
            answered += arrived
            following = requests[sent : sent + arrived]
            sent += len(following)
            if following:
                self._socket.sendall(b"".join(following))
        return count / (time.perf_counter() - begun)


def ndjson(rounds: int, count: int, folder: str) -> dict[str, Any]:
    processes, clients = [], {}
    try:
        for name in SERVERS:
            path = os.path.join(folder, f"{name}.sock")
            processes.append(subprocess.Popen([sys.executable, __file__, "--serve", name, path]))
            while not os.path.exists(path):
                time.sleep(0.02)
            time.sleep(0.2)
            clients[name] = LineClient(path)
            clients[name].per_second(count // 4)
        measured: dict[str, list[float]] = {name: [] for name in SERVERS}
        for _ in range(rounds):
            for name, client in clients.items():
                measured[name].append(client.per_second(count))
    finally:
        for process in processes:
            process.kill()
            process.wait()
    kernel = measured["kernel"]
    return {
        "to_bare_streams": versus(kernel, measured["streams"]),
        "to_bare_protocol": versus(kernel, measured["protocol"]),
        "kernel_per_second": round(max(kernel)),
        "streams_per_second": round(max(measured["streams"])),
        "protocol_per_second": round(max(measured["protocol"])),
        "in_flight": IN_FLIGHT,
        "data_bytes": len(msgspec.json.encode(DATA)),
    }


# --- many capabilities, many requests ------------------------------------------------------------------------------


def crowded(count: int) -> App:
    made = App("crowd")
    for number in range(count):
        made.query(f"Cap{number}.Echo")(_echo)
    return made


async def _echo(data: dict[str, Any], ctx: Any) -> dict[str, Any]:
    return data


async def ask_each(kernel: Kernel, names: list[str], count: int) -> float:
    begun = time.perf_counter()
    for number in range(count):
        await kernel.ask("query", names[number % 10], {"payload": 1})
    return (time.perf_counter() - begun) / count


async def in_flight(count: int) -> dict[str, Any]:
    made, release = App("waits"), asyncio.Event()
    for number in range(100):

        @made.query(f"Wait{number}.Open")
        async def wait(data: dict[str, Any], ctx: Any) -> None:
            await release.wait()

    @made.query("Quick.Echo")
    async def quick(data: dict[str, Any], ctx: Any) -> dict[str, Any]:
        return data

    async with made.kernel(default_timeout_ms=600_000) as kernel:
        before = memory_mb()
        begun = time.perf_counter()
        asked = [kernel.ask("query", f"Wait{number % 100}.Open", {"n": number}) for number in range(count)]
        await kernel.ask("query", "Quick.Echo", {})
        opened = time.perf_counter() - begun
        held = memory_mb() - before
        times = []
        for _ in range(1000):
            start = time.perf_counter()
            await kernel.ask("query", "Quick.Echo", {"payload": 1})
            times.append(time.perf_counter() - start)
        release.set()
        begun = time.perf_counter()
        await asyncio.gather(*asked)
        closed = time.perf_counter() - begun
    times.sort()
    return {
        "requests": count,
        "memory_mb": round(held, 1),
        "bytes_each": round(held * (1 << 20) / count),
        "open_us_each": round(opened / count * 1e6, 2),
        "answer_us_each": round(closed / count * 1e6, 2),
        "another_ask_meanwhile_us": {"median": round(times[500] * 1e6, 1), "p99": round(times[990] * 1e6, 1)},
    }


def memory_mb() -> float:
    """What the process holds now, where the system says so; else the most it ever held."""
    status = Path("/proc/self/statm")
    if status.exists():
        return int(status.read_text().split()[1]) * resource.getpagesize() / (1 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def on(factory: Callable[[], asyncio.AbstractEventLoop], work: Callable[[], Any]) -> Any:
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(work())


def measure(quick: bool) -> dict[str, Any]:
    rounds, count = (5, 500) if quick else (21, 3_000)
    asyncio_ask = on(asyncio.new_event_loop, lambda: ask_and_reply(rounds, count))
    fast_ask = on(new_event_loop, lambda: ask_and_reply(rounds, count))
    threads = min(pykka_us(count // 2) for _ in range(3))
    with tempfile.TemporaryDirectory(prefix="msb-") as folder:
        lines = ndjson(5 if quick else 11, 2_000 if quick else 20_000, folder)
    return {
        "ask_on_asyncio": asyncio_ask,
        "ask_on_fastest_loop": fast_ask,
        "ask_to_pykka": {
            "kernel_times_faster": round(threads / asyncio_ask["kernel_us"], 1),
            "pykka_us": round(threads, 2),
        },
        "ndjson": lines,
        "in_flight": on(asyncio.new_event_loop, lambda: in_flight(10_000 if quick else 100_000)),
    }


def main() -> None:
    if sys.argv[1:2] == ["--serve"]:  # one of the servers that are measured, in a process of its own
        name, path = sys.argv[2:]
        on(new_event_loop, lambda: SERVERS[name](path))
        return
    quick = options(__doc__).quick
    report(
        measure(quick),
        payload="small object for asks; 200 bytes of data per line",
        fsync="none: nothing here is durable",
        quick=quick,
    )


if __name__ == "__main__":
    main()
