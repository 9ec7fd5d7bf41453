"""Batch: messages from standard input, answers to standard output, and then the end.

The same lines as on the socket, from a file or a pipe. The input ends, the last request is answered, the last timer has
fired and the last line is written: then nothing can happen any more, and the run is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from mainspring.kernel import Kernel
from mainspring.message import Message
from mainspring.wire.ndjson import MAX_OPEN, LineOrigin, Lines

CHUNK_BYTES: Final = 1 << 16


class BatchOrigin(LineOrigin):
    """Standard input and output as one peer of the kernel."""

    external = False

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self.failed = 0  # how many lines were answered with an error
        self._outgoing: list[bytes] = []
        self._room: asyncio.Future[None] | None = None

    def deliver(self, message: Message) -> bool:
        delivered = super().deliver(message)
        if delivered and message.kind == "error":
            self.failed += 1
        return delivered

    def write(self, line: bytes) -> None:
        self._outgoing.append(line + b"\n")

    def progressed(self) -> None:
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    async def room(self) -> None:
        """Wait until the kernel has finished enough to take more."""
        while self.unfinished >= MAX_OPEN:
            self._room = asyncio.get_running_loop().create_future()
            await self._room

    def written(self) -> bytes:
        """What is to be written; the caller does it."""
        text, self._outgoing = b"".join(self._outgoing), []
        return text


async def run_batch(kernel: Kernel, read: Callable[[int], bytes], write: Callable[[bytes], object]) -> int:
    """Feed everything `read` gives to a running kernel until nothing is left to do; how many lines failed.

    `read(n)` gives at most n bytes, none at the end; `write` takes whole lines. Both may block: they run in a thread.
    """
    origin, lines = BatchOrigin(kernel), Lines()
    while data := await asyncio.to_thread(read, CHUNK_BYTES):
        for line in lines.feed(data):
            await origin.room()
            origin.take(line)
        await _flush(origin, write)
    for line in lines.end():
        origin.take(line)
    await kernel.quiescent()
    await _flush(origin, write)
    return origin.failed


async def _flush(origin: BatchOrigin, write: Callable[[bytes], object]) -> None:
    text = origin.written()
    if text:
        await asyncio.to_thread(write, text)
