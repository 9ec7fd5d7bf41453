"""What comes from outside to a line that several nodes share: a topic that all of them append to and its leader reads.

A signal, a binding, or the wish to pause is appended by the node it came to, together with a record of that node that
says what it sent last. When the answer of the log gets lost, the same is tried again: if it had been stored, the record
is not what the second try expects, and says so. The leader takes what stands there in the log's order, as if it had
come to it, and stores how far it got in the batch of the beat that works on it. So each reaches one beat, once,
although any node may die anywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from mainspring.beats.inlets import POSITIONS
from mainspring.beats.lineage import SignalOrigin
from mainspring.beats.storage.line import LineWriter
from mainspring.log import ABSENT, Append, Batch, InDoubt, Log, Operation, Put, Refused, Remove
from mainspring.loop import Clock, MonotonicClock

MOST_PER_BEAT: Final = 2_000  # taken for one beat; the rest waits for the next
SENT: Final = "beats.sent"  # what each node sent last, by line and node
_MOST_PER_BATCH: Final = 500  # servers have a longest message
_TRIES: Final = 3


class LineInput(msgspec.Struct, omit_defaults=True, kw_only=True):
    """One thing from outside: a signal, with its beat if one was named; a binding; or whether to pause."""

    signal: str | None = None
    target: str | None = None
    beat: int | None = None
    origin: SignalOrigin | None = None
    bind: tuple[str, str, str] | None = None
    pause: bool | None = None


class SignalTopic:
    """One node's side of a line's topic: it sends, and it reads when it leads."""

    def __init__(self, log: Log, line: str, node: str, epoch: Callable[[], int], clock: Clock) -> None:
        self.name: str = f"system.beats.{line}"
        self._log = log
        self._node = node
        self._epoch = epoch
        self._record_key = f"{line}/{node}"
        self._version = ABSENT  # of this node's record
        self._trying: tuple[bytes, int] | None = None  # what the record says then, and how many that sends
        self._clock = clock
        self._position_key = f"beats.{line}/~intake"
        self._unsent: list[Append] = []
        self._sent = 0
        self._next = 1
        self.tail: int = 0  # the last offset that this node knows of

    # --- sending ------------------------------------------------------------------------------------------------------

    @property
    def unsent(self) -> int:
        return len(self._unsent)

    def add(self, item: LineInput) -> None:
        """Have something sent with the next `send`."""
        self._sent += 1
        name = f"{self._node}.{self._epoch()}.{self._sent}"
        self._unsent.append(Append(self.name, 0, name, self._clock.wall_ms(), msgspec.json.encode(item)))

    async def send(self) -> None:
        """Make durable what was added. What the log may have stored is sent again, and is there once all the same."""
        doubts = 0
        while self._unsent:
            if self._trying is None:
                count = min(len(self._unsent), _MOST_PER_BATCH)
                self._trying = self._unsent[count - 1].id.encode(), count
            try:
                await self._try(*self._trying)
            except InDoubt:
                doubts += 1
                if doubts == _TRIES:
                    raise

    async def _try(self, last: bytes, count: int) -> None:
        record = Put(SENT, self._record_key, last, self._version)
        try:
            receipt = await self._log.commit(Batch([*self._unsent[:count], record]))
            self._version = receipt.versions[0]
        except Refused:
            found = await self._log.get(SENT, self._record_key)
            self._version = ABSENT if found is None else found.version
            if found is None or found.value != last:
                return  # an earlier process of this node had sent something: now the version is known
        del self._unsent[:count]
        self._trying = None

    # --- taking -------------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Find out how far the line got, and how much there is."""
        record = await self._log.get(POSITIONS, self._position_key)
        self._next = 1 if record is None else msgspec.json.decode(record.value, type=dict[str, int])["next"]
        for bounds in await self._log.bounds(self.name):
            self.tail = max(self.tail, bounds.tail)

    @property
    def waits(self) -> bool:
        """Whether something is there that was not taken."""
        return self._next <= self.tail

    async def take(self) -> list[LineInput]:
        """What came next; `operations` say how far that is."""
        if not self.waits:
            return []
        events = await self._log.read(self.name, 0, self._next, MOST_PER_BEAT)
        self._next = events[-1].offset + 1 if events else self.tail + 1
        return [msgspec.json.decode(event.payload, type=LineInput) for event in events]

    def operations(self) -> list[Operation]:
        """What is stored together with what was taken."""
        value = msgspec.json.encode({"next": self._next, "partition": 0})
        return [Put(POSITIONS, self._position_key, value), Remove(self.name, 0, below=self._next)]


async def take_leftover_input(log: Log, line: str, accept: Callable[[LineInput], None], writer: LineWriter) -> None:
    """A log that several nodes shared may hold what none of them had taken when it became one node's own."""
    topic = SignalTopic(log, line, "", lambda: 0, MonotonicClock())
    await topic.open()
    while topic.waits:
        for item in await topic.take():
            accept(item)
        writer.save_with(topic.operations())
