"""Records that nobody can read: one of them must not end a node for good, nor be lost.

A byte that rotted, a program that writes to the engine by itself, an import by hand: any record may hold something else
than the part of the node that wrote it expects. Each part says how its records are read (`Reader`, by space). What
cannot be read is **set aside**: it is named once, in the node's log and in a notice, and counts as not being there. It
stays where it is, for people to look at (`mainspring log check`). When the part writes the record anew, the unreadable
value moves to the space `set_aside`, in the same commit, so that it is kept even then.

A space without a reader is left as it is: its part has to know that something is missing, as with the journal of a run.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Final

import msgspec

from mainspring.errors import MainspringError
from mainspring.log.contract import (
    ANY_VERSION,
    Batch,
    DamagedRecord,
    Delete,
    Engine,
    KeptRecord,
    Operation,
    Place,
    Progress,
    Put,
    Receipt,
    Record,
    Result,
    silent,
)

SET_ASIDE: Final = "set_aside"  # the space of what was written over; keys are `space/key`

Reader = Callable[[str, bytes], object]
"""Takes the key and the value of a record, and raises whatever it likes where it cannot read them."""

logger: logging.Logger = logging.getLogger("mainspring.log")


class Unreadable(msgspec.Struct, frozen=True):
    """A record that cannot be read, and why. `value` is None where not even its bytes are certain."""

    space: str
    key: str
    version: int
    why: str
    value: bytes | None = None


class RecordCheck:
    """Reads records with the readers of their parts, and remembers those that cannot be read."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.readers: Mapping[str, Reader] = {}
        self.permanent: frozenset[str] = frozenset()  # spaces in which nothing is written over what cannot be read
        self.found: dict[Place, Unreadable] = {}
        self.on_found: Callable[[Unreadable], object] = lambda _: None

    def use(self, readers: Mapping[str, Reader]) -> None:
        """Read these spaces so, too."""
        self.readers = {**self.readers, **readers}

    async def scan(self, space: str, prefix: str, after: str) -> AsyncIterator[Record]:
        """The records of a space that can be read."""
        reader = self.readers[space]
        while True:
            try:
                async for record in self._engine.scan(space, prefix, after):
                    after = record.key
                    if self._can_read(reader, space, record.key, record.value, record.version):
                        yield record
                return
            except DamagedRecord as damage:
                if damage.key <= after:
                    raise  # the engine does not come past it
                self._damaged(damage)
                after = damage.key

    async def get(self, space: str, key: str) -> Record | None:
        """The record, unless it is not there or cannot be read."""
        try:
            record = await self._engine.get(space, key)
        except DamagedRecord as damage:
            self._damaged(damage)
            return None
        if record is None or not self._can_read(self.readers[space], space, key, record.value, record.version):
            return None
        return record

    def is_readable(self, record: KeptRecord) -> bool:
        """Of a record that was just written, by this node or another; a deleted one is."""
        reader = self.readers.get(record.space)
        if reader is None or not record.version:
            self.found.pop((record.space, record.key), None)
            return True
        return self._can_read(reader, record.space, record.key, record.value, record.version)

    def _can_read(self, reader: Reader, space: str, key: str, value: bytes, version: int) -> bool:
        try:
            reader(key, value)
        except Exception as error:  # whatever a part finds wrong with it
            self._add(Unreadable(space, key, version, _reason(error), value))
            return False
        if self.found:
            self.found.pop((space, key), None)
        return True

    def _damaged(self, damage: DamagedRecord) -> None:
        self._add(Unreadable(damage.space, damage.key, damage.version, "its bytes are not what was written"))

    def _add(self, unreadable: Unreadable) -> None:
        known = self.found.get((unreadable.space, unreadable.key))
        if known == unreadable:
            return
        self.found[unreadable.space, unreadable.key] = unreadable
        logger.error(
            "the record %r in %r cannot be read and is set aside: %s",
            unreadable.key,
            unreadable.space,
            unreadable.why,
        )
        self.on_found(unreadable)

    # -- writing over one

    def over_unreadable(
        self, batch: Batch, callback: Callable[[Result], object]
    ) -> tuple[Batch, Callable[[Result], object]]:
        """The batch as it must be where it writes over such a record, and who gets its result.

        Who writes has seen none, so what it expects is what is there; and the value that goes is kept.
        """
        operations: list[Operation] = []
        gone: dict[Place, Unreadable] = {}
        for operation in batch.operations:
            if isinstance(operation, Put | Delete) and operation.space not in self.permanent:
                place = (operation.space, operation.key)
                found = self.found.get(place)
                if found is not None and place not in gone:
                    gone[place] = found
                    if operation.expect != ANY_VERSION:
                        operation = msgspec.structs.replace(operation, expect=found.version)
            operations.append(operation)
        if not gone:
            return batch, callback
        operations += [Put(SET_ASIDE, f"{each.space}/{each.key}", each.value or b"") for each in gone.values()]

        def done(result: Result) -> None:
            if isinstance(result, Receipt):
                for place in gone:
                    self.found.pop(place, None)
                result = Receipt(result.offsets, result.versions[: -len(gone)])
            callback(result)

        return Batch(operations), done


async def find_unreadable(
    engine: Engine, readers: Mapping[str, Reader], progress: Progress = silent
) -> AsyncIterator[Unreadable]:
    """Every record of a log that cannot be read, and those that were written over."""
    seen = 0
    for space in await engine.spaces():
        found: list[Unreadable] = []
        check = RecordCheck(engine)
        check.readers = {space: reader_of(space, readers) or (lambda _key, _value: None)}
        check.on_found = found.append
        async for record in check.scan(space, "", ""):
            seen += 1
            progress("records", seen, 0)
            if space == SET_ASIDE:
                found.append(Unreadable(space, record.key, record.version, "it was written over", record.value))
        for each in found:
            yield each


def reader_of(space: str, readers: Mapping[str, Reader]) -> Reader | None:
    """The reader of a space; one whose name ends with a slash is that of all spaces which begin so."""
    if space in readers:
        return readers[space]
    return next((reader for name, reader in readers.items() if name.endswith("/") and space.startswith(name)), None)


def _reason(error: Exception) -> str:
    return error.message if isinstance(error, MainspringError) else f"{type(error).__name__}: {error}"[:200]
