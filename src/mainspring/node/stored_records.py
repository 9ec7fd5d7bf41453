"""The records of a node's log: how each kind is read, and what of them a program's codec encodes.

**Reading.** The table of readers is how a record that nobody can read is found: a node passes over it and goes on
(`mainspring.log.unreadable`), `mainspring log check` lists it, and `mainspring log import` takes none.

**Encoding.** In the log of a program with a codec, what is the program's in the records of runs is encoded. Everything
else reaches the log encoded already: events, commands and tasks are encoded where they leave the program. Of a run, the
program's own are its arguments, the answers in its journal, signals, updates, its progress and its outcome. What stands
beside them (which program, which state, which effect) stays readable, so that every node can list and place runs. Texts
of errors stay readable, too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final

import msgspec

from mainspring import bus, cluster
from mainspring.builtin import MEMORY, read_value
from mainspring.codec import CodecError, Encoding
from mainspring.json_text import check_json
from mainspring.kernel import COMMANDS, read_command
from mainspring.log import Batch, Change, Engine, Log, Put, Reader, Record, Result, StoredEvent
from mainspring.runs.cluster import PLACEMENT_READERS
from mainspring.runs.durable import JOURNAL, JOURNAL_READERS, LIVE, PROGRESS, RUNS, SIGNALS, UPDATES
from mainspring.runs.durable import RECORD_READERS as RUN_READERS
from mainspring.status import HISTORY, read_rows

logger: logging.Logger = logging.getLogger("mainspring.node")

# The members of a record that are the program's; none: the whole value is.
_OWN: Final[dict[str, tuple[str, ...]]] = {
    LIVE: ("args",),
    RUNS: ("args", "value", "reason"),
    JOURNAL: ("args", "value", "note"),
    UPDATES: ("args",),
    SIGNALS: (),
    PROGRESS: (),
}
_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class EncodedLog(Log):
    """Encodes records of runs on their way to the engine, and decodes them on their way back.

    A record that cannot be decoded is given as it is stored, and reported: its run does not fit its program then, and
    is blocked until the codec has the key again.
    """

    def __init__(self, engine: Engine, encoding: Encoding) -> None:
        super().__init__(engine)
        self._encoding = encoding

    def submit(self, batch: Batch, callback: Callable[[Result], object]) -> None:
        if any(isinstance(each, Put) and each.space in _OWN for each in batch.operations):
            try:
                batch = Batch([self._sealed(each) if isinstance(each, Put) else each for each in batch.operations])
            except CodecError as error:
                asyncio.get_running_loop().call_soon(callback, error)
                return
        super().submit(batch, callback)

    async def get(self, space: str, key: str) -> Record | None:
        found = await super().get(space, key)
        return found if found is None or space not in _OWN else self._opened(space, found)

    async def scan(self, space: str, prefix: str = "", after: str = "") -> AsyncIterator[Record]:
        async for record in super().scan(space, prefix, after):
            yield record if space not in _OWN else self._opened(space, record)

    def watch(self, seen: Callable[[Change], None]) -> None:
        def see(change: Change) -> None:
            if any(each.space in _OWN for each in change.records):
                records = tuple(self._opened(each.space, each) for each in change.records)
                change = msgspec.structs.replace(change, records=records)
            seen(change)

        super().watch(see)

    def _sealed(self, put: Put) -> Put:
        if put.space not in _OWN:
            return put
        return msgspec.structs.replace(put, value=self._changed(put.space, put.value, self._encoding.seal))

    def _opened(self, space: str, record: Any) -> Any:
        if space not in _OWN:
            return record
        try:
            value = self._changed(space, record.value, self._encoding.open)
        except (CodecError, msgspec.DecodeError) as error:
            logger.error("the record %s of %s cannot be read: %s", record.key, space, error)
            return record
        return msgspec.structs.replace(record, value=value)

    def _changed(self, space: str, value: bytes, change: Callable[[bytes], bytes]) -> bytes:
        names = _OWN[space]
        if not names or not value:
            return change(value) if value else value
        members = _members(value)
        for name in names:
            if name in members:
                members[name] = msgspec.Raw(change(bytes(members[name])))
        return msgspec.json.encode(members)


# -- reading

RECORD_READERS: Final[Mapping[str, Reader]] = {
    **bus.RECORD_READERS,
    **cluster.RECORD_READERS,
    **RUN_READERS,
    **PLACEMENT_READERS,
    COMMANDS: read_command,
    MEMORY: read_value,
    HISTORY: read_rows,
}


def all_readers() -> Mapping[str, Reader]:
    """How records of every kind are read, also those whose part has to know that something is missing."""
    return {**RECORD_READERS, **JOURNAL_READERS}


def check_event(event: StoredEvent) -> None:
    """Raise where a node would not have stored an event like this."""
    if not event.topic.startswith(bus.SYSTEM):
        bus.check_name("topic", event.topic)
    check_json(event.payload)
    if event.headers is not None:
        msgspec.json.decode(event.headers, type=dict[str, str])


def read_with_care(log: Log) -> None:
    """Let a log pass over records that nobody can read.

    The id of a run stays taken, even where its record cannot be read: its journal may be there.
    """
    log.records.use(RECORD_READERS)
    log.records.permanent = frozenset((RUNS, LIVE))
