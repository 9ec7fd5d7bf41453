"""The trace in the log: headers of messages that survive the node, for whoever asks for it (`keep_trace`).

The kernel remembers the headers of the latest messages to draw causation trees. Here they are also written to a topic
of the log that no client can name, some hundred in one event and every fraction of a second, and read back at the next
start. Only headers are kept, never data. A crash loses the last fraction of a second.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mainspring.errors import MainspringError
from mainspring.log import Append, Batch, DamagedEvent, Log, Receipt
from mainspring.message import Metadata

if TYPE_CHECKING:
    from mainspring.kernel.exchange import Exchange

logger: logging.Logger = logging.getLogger("mainspring.kernel")

_WRITE_MS: Final = 200
_AT_ONCE: Final = 500  # headers in one event

Header = tuple[str, str, Metadata]

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(list[Header]).decode


class KeptHeaders(deque[Header]):
    """The latest headers; what is added is also handed to `on_added`."""

    def __init__(self, headers: deque[Header], on_added: Any) -> None:
        super().__init__(headers, headers.maxlen)
        self._on_added = on_added

    def append(self, header: Header) -> None:
        super().append(header)
        self._on_added(header)


class KeptTrace:
    """Writes the headers of one node's messages, and reads those of its last life."""

    def __init__(self, log: Log, exchange: Exchange, node: str) -> None:
        self._log = log
        self._exchange = exchange
        self._topic = f"system.trace|{node}"  # the bus knows no name with `|`
        self._waiting: list[Header] = []
        self._written: deque[tuple[int, int]] = deque()  # offset and headers of each event
        self._kept = 0
        self._planned = False

    async def start(self) -> None:
        """Read what is there, and write from now on."""
        exchange = self._exchange
        headers = exchange.recent_headers
        bounds = await self._log.bounds(self._topic)
        start = bounds[0].head if bounds else 1
        while True:
            try:
                events = await self._log.read(self._topic, 0, start, 100)
            except DamagedEvent as damage:
                start = damage.offset + 1
                continue
            if not events:
                break
            for event in events:
                found = _decode(event.payload)
                headers.extend(found)
                self._count(event.offset, len(found))
            start = events[-1].offset + 1
        exchange.recent_headers = KeptHeaders(headers, self._added)

    def _added(self, header: Header) -> None:
        self._waiting.append(header)
        if len(self._waiting) >= _AT_ONCE:
            self._write(None)
        elif not self._planned:
            self._planned = True
            self._exchange.loop.schedule(_WRITE_MS, self._write, None, ref=False)

    def _write(self, _: Any) -> None:
        self._planned = False
        batch, taken = self._batch()
        if taken:
            self._log.submit(batch, lambda result: self._settled(result, taken))

    def _batch(self) -> tuple[Batch, int]:
        taken, self._waiting = self._waiting, []
        batch = Batch()
        if taken:
            now, id = self._exchange.clock.wall_ms(), self._exchange.ids()
            batch.append(Append(self._topic, 0, id, now, _encode(taken)))
            below = self._surplus()
            if below:
                batch.remove(self._topic, 0, below=below)
        return batch, len(taken)

    def _settled(self, result: Any, taken: int) -> None:
        if isinstance(result, Receipt):
            self._count(result.offsets[0][1], taken)
        else:
            logger.warning("headers of %d messages could not be written to the trace", taken)

    def _count(self, offset: int, headers: int) -> None:
        self._written.append((offset, headers))
        self._kept += headers

    def _surplus(self) -> int:
        """The offset below which the events hold headers that are remembered no more; 0: there are none."""
        most, below = self._exchange.recent_headers.maxlen or 0, 0
        while self._written and self._kept - self._written[0][1] >= most:
            offset, headers = self._written.popleft()
            self._kept -= headers
            below = offset + 1
        return below

    async def close(self) -> None:
        """Write what waits."""
        batch, taken = self._batch()
        if taken:
            try:
                await self._log.commit(batch)
            except MainspringError as error:
                logger.warning("the last headers of the trace could not be written: %s", error.message)
