"""What programs stored in their own transactions (`mainspring.postgres`) and the node refused when it moved it.

It is kept, with the reason, until a person has it tried again or drops it.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from mainspring.log import Batch, Log, Record

REFUSED: Final = "outgoing_refused"
MOST: Final = 1_000  # that are retried or dropped in one commit
_BODY_SHOWN: Final = 2_000


class Refusal(msgspec.Struct, omit_defaults=True):
    """As it is kept. `again`: a person wants it tried again."""

    reason: str
    body: str
    at: int = 0
    again: bool = False


class RefusedOutgoing(msgspec.Struct, frozen=True):
    """An event or a run that a committed transaction asked for, and that the node refused."""

    id: Annotated[str, msgspec.Meta(description="Its place among all that programs stored.")]
    name: Annotated[str, msgspec.Meta(description="The topic, or the program of a run; empty when it is not readable.")]
    reason: Annotated[str, msgspec.Meta(description="Why it was refused.")]
    at: Annotated[int, msgspec.Meta(description="When it was refused, epoch ms; 0: not known.")]
    again: Annotated[bool, msgspec.Meta(description="Whether it is about to be tried again.")]
    body: Annotated[str, msgspec.Meta(description="What the program stored: the beginning of it, as text.")]


_decode: Final = msgspec.json.Decoder(Refusal).decode


class RefusedOutgoings:
    """Those of one log."""

    def __init__(self, log: Log) -> None:
        self._log = log

    async def page(self, after: str = "", limit: int = 100) -> list[RefusedOutgoing]:
        """In the order in which they were stored, behind `after`."""
        found = []
        async for record in self._log.scan(REFUSED, after=after):
            found.append(_shown(record.key, refusal_of(record)))
            if len(found) == limit:
                break
        return found

    async def count(self) -> int:
        return sum([1 async for _ in self._log.scan(REFUSED)])

    async def retry(self, ids: list[str] | None) -> int:
        """Have these tried again, None: all of them; how many there were."""
        batch = Batch()
        for record in await self._chosen(ids):
            kept = refusal_of(record)
            kept.again = True
            batch.put(REFUSED, record.key, msgspec.json.encode(kept), expect=record.version)
        return await self._commit(batch)

    async def drop(self, ids: list[str] | None) -> int:
        """Forget these, None: all of them; how many there were."""
        batch = Batch()
        for record in await self._chosen(ids):
            batch.delete(REFUSED, record.key, expect=record.version)
        return await self._commit(batch)

    async def _chosen(self, ids: list[str] | None) -> list[Record]:
        found: list[Record] = []
        async for record in self._log.scan(REFUSED):
            if (ids is None or record.key in ids) and len(found) < MOST:
                found.append(record)
        return found

    async def _commit(self, batch: Batch) -> int:
        count = len(batch.operations)
        if count:
            await self._log.commit(batch)
        return count


def refusal_of(record: Record) -> Refusal:
    try:
        return _decode(record.value)
    except msgspec.DecodeError as error:
        return Refusal(f"this record cannot be read: {error}", record.value.decode(errors="backslashreplace"))


def _shown(id: str, kept: Refusal) -> RefusedOutgoing:
    return RefusedOutgoing(id, _name(kept.body), kept.reason, kept.at, kept.again, kept.body[:_BODY_SHOWN])


def _name(body: str) -> str:
    """Both forms have it in the third place; see `mainspring.postgres`."""
    try:
        return str(msgspec.json.decode(body)[2])
    except (msgspec.DecodeError, LookupError, TypeError, RecursionError):
        return ""
