"""What this machine can do at most, whatever program runs on it. Prints one JSON object.

- `fsyncs`: appending 4 KiB to a file and fsync, one after the other. Who waits for each write gets no more than this.
- `round_trips`: 200 bytes over loopback to another process and back, one after the other. Who waits for each answer
  gets no more than this.
- `messages`: the same with 4,096 under way, in writes of 256; nobody looks at the bytes.
- `hand_overs`: nothing to do, given to a sleeping thread and answered to the loop, one after the other. A commit and a
  read of the log are one each; the wake-ups cost five times as much on one virtual machine as on another.
- `callbacks`: `call_soon` of a callback that does nothing but the next `call_soon`, on each event loop.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import multiprocessing.connection
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from bench.harness import Figures, options, report, summary
from bench.loop import call_soon_chain, hosted, hosts
from bench.peers import servers as peers
from mainspring.loop import run

SIZE = 200
BATCH = 256
UNDER_WAY = 4_096


class Echo(asyncio.Protocol):
    """Sends back what arrives."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


def serve(ready: multiprocessing.connection.Connection) -> None:
    async def main() -> None:
        server = await asyncio.get_running_loop().create_server(Echo, "127.0.0.1", 0)
        ready.send(server.sockets[0].getsockname()[1])
        await asyncio.Event().wait()

    run(main())


class Sender(asyncio.Protocol):
    """Sends `count` messages, `batch` in a write, and never has more than `most` under way."""

    def __init__(self, count: int, batch: int, most: int) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._left = self._unanswered = count * SIZE
        self._batch = batch * SIZE
        self._most = most * SIZE

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport
        self._send()

    def data_received(self, data: bytes) -> None:
        self._unanswered -= len(data)
        self._send()
        if not self._unanswered:
            self.done.set_result(None)

    def _send(self) -> None:
        while self._left and self._unanswered - self._left + self._batch <= self._most:
            self.transport.write(bytes(self._batch))
            self._left -= self._batch


async def echoed(port: int, count: int, batch: int, most: int) -> float:
    """Messages per second, there and back."""
    start = time.perf_counter()
    transport, sender = await asyncio.get_running_loop().create_connection(
        lambda: Sender(count, batch, most), "127.0.0.1", port
    )
    await sender.done
    taken = time.perf_counter() - start
    transport.close()
    return count / taken


async def handed_over(count: int) -> float:
    """Hand-overs per second, to a thread and back."""
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(1) as thread:
        await loop.run_in_executor(thread, int)
        start = time.perf_counter()
        for _ in range(count):
            await loop.run_in_executor(thread, int)
        return count / (time.perf_counter() - start)


def measure(rounds: int) -> Figures:
    """Each once per round, in turn."""
    context = multiprocessing.get_context("spawn")
    ready, theirs = context.Pipe()
    server = context.Process(target=serve, args=(theirs,), daemon=True)
    server.start()
    port = ready.recv()
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        found.setdefault("fsyncs", []).append(1e6 / peers.fsync_us())
        found.setdefault("round_trips", []).append(run(echoed(port, 5_000, 1, 1)))
        found.setdefault("messages", []).append(run(echoed(port, 4_000 * BATCH, BATCH, UNDER_WAY)))
        found.setdefault("hand_overs", []).append(run(handed_over(2_000)))
        for name, factory in hosts().items():
            found.setdefault(f"callbacks_{name}", []).append(1e9 / hosted(factory, call_soon_chain(1, 100_000))())
    server.terminate()
    server.join()
    return {"per_s": {name: summary(values) for name, values in found.items()}}


def main() -> None:
    rounds = 2 if options(__doc__).quick else 7
    report(measure(rounds), message_bytes=SIZE, under_way=UNDER_WAY, batch=BATCH, rounds=rounds)


if __name__ == "__main__":
    main()
