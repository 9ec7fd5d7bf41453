"""Batch: messages from standard input, answers to standard output, and then the end.

The same lines as on the socket, from a file or a pipe. The input ends, the last request is answered, the last timer has
fired and the last line is written: then nothing can happen any more, and the run is over. `Syscall.Shutdown` ends it
sooner: no further line is taken, and no timer is waited for.

Answers are written when they come, not when more input does: a program that feeds a pipe line by line may wait
for each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from mainspring.kernel import Kernel
from mainspring.loop import wake
from mainspring.message import Message
from mainspring.server.ndjson import MAX_OPEN, LineOrigin, Lines

CHUNK_BYTES: Final = 1 << 16


class BatchOrigin(LineOrigin):
    """Standard input and output as one peer of the kernel."""

    external = False

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self.failed: int = 0  # how many lines were answered with an error
        self._outgoing: list[bytes] = []
        self._written = asyncio.Event()
        self._room: asyncio.Future[None] | None = None

    def deliver(self, message: Message) -> bool:
        delivered = super().deliver(message)
        if delivered and message.kind == "error":
            self.failed += 1
        return delivered

    def write(self, line: bytes) -> None:
        self._outgoing.append(line + b"\n")
        self._written.set()

    def progressed(self) -> None:
        if self._room is not None:
            wake(self._room)

    async def room(self) -> None:
        """Wait until the kernel has finished enough to take more."""
        while self.unfinished >= MAX_OPEN:
            self._room = asyncio.get_running_loop().create_future()
            await self._room

    async def written(self) -> bytes:
        """What is to be written next; the caller does it. Nothing when `end` was called and nothing is left."""
        await self._written.wait()
        if not self.gone:
            self._written.clear()
        text, self._outgoing = b"".join(self._outgoing), []
        return text

    def end(self) -> None:
        """Nothing more will be written."""
        self.gone = True
        self._written.set()


async def run_batch(
    kernel: Kernel,
    read: Callable[[int], bytes],
    write: Callable[[bytes], object],
    *,
    end_input: Callable[[], object] = lambda: None,
) -> int:
    """Feed everything `read` gives to a running kernel until nothing is left to do; how many lines failed.

    `read(n)` gives at most n bytes, none at the end; `write` takes whole lines. Both may block: they run in a thread.
    `end_input` makes a `read` that waits give nothing.
    """
    origin, lines, stopped = BatchOrigin(kernel), Lines(), False

    def stop() -> None:
        nonlocal stopped
        stopped = True
        kernel.timers.clear()
        end_input()

    async def write_all() -> None:
        try:
            while text := await origin.written():
                await asyncio.to_thread(write, text)
        except BaseException:  # nobody reads any more
            stop()
            raise

    kernel.on_shutdown = stop
    writing = asyncio.get_running_loop().create_task(write_all())
    try:
        while not stopped and (data := await asyncio.to_thread(read, CHUNK_BYTES)):
            for line in lines.feed(data):
                await origin.room()
                if not stopped:
                    origin.take(line)
        for line in () if stopped else lines.end():
            origin.take(line)
        await kernel.quiescent()
    finally:
        end_input()
        origin.end()
        await writing
    return origin.failed
