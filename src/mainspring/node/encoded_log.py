"""The log of a program with a codec: what is the program's in the records of runs is encoded there, and nowhere else.

Everything else reaches the log encoded already: events, commands and tasks are encoded where they leave the program. Of
a run, the program's own are its arguments, the answers in its journal, signals, updates, its progress and its outcome.
What stands beside them (which program, which state, which effect) stays readable, so that every node can list and
place runs. Texts of errors stay readable, too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import msgspec

from mainspring.codec import CodecError, Encoding
from mainspring.log import Batch, Change, Engine, Log, Put, Record, Result
from mainspring.runs.durable import JOURNAL, LIVE, PROGRESS, RUNS, SIGNALS, UPDATES

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
        except CodecError as error:
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
