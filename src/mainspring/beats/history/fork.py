"""Forking: a new line of beats that starts at an old beat of another.

Everything the new line needs is copied: what was readable at that beat, its journals and digests, what waited then. The
old line is only read, so history is never rewritten, and each line can be driven, pruned and deleted on its own. The
head is written last: a copy that was interrupted is not a line yet.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import msgspec

from mainspring.beats.errors import LineExists, UnknownBeat
from mainspring.beats.storage.journal import GENESIS, BeginFact
from mainspring.beats.storage.line import SPACE, AsyncLog, QueuedImpulses, StoredLine, decode_value, number
from mainspring.log import ABSENT, Batch, Refused

_STEP: Final = 500  # records per batch: other writers get their turns in between


async def fork(log: AsyncLog, at: int, new: str, *, line: str = "main") -> None:
    """Start a line after beat `at` of another: its next beat is `at` + 1.

    Signals that came later do not come along. Bindings do that count from its next beat on, like a program's own.
    """
    source, target = StoredLine(log, line), StoredLine(log, new)
    head = await source.head()
    if head is None:
        raise UnknownBeat(f"there is no line {line!r}", remedy="`mainspring beats lines` shows all")
    if not head.oldest - 1 <= at <= head.beat:
        raise UnknownBeat(
            f"line {line!r} cannot be forked at beat {at}", remedy=f"beats {head.oldest - 1} to {head.beat} can"
        )
    if await target.head() is not None:
        raise LineExists(f"there is a line {new!r} already", remedy="choose another name")
    batch = Batch()
    async for space, key, value in _kept(log, line, new, at):
        batch.put(space, key, value)
        if len(batch.operations) >= _STEP:
            await log.commit(batch)
            batch = Batch()
    left = await log.get(SPACE, f"{line}/left/{number(at)}")
    forked = msgspec.structs.replace(
        head,
        beat=at,
        digest=await source.digest(at) or GENESIS,
        left=None if left is None else msgspec.json.decode(left.value, type=tuple[int, int]),
        paused=_was_paused(await source.journal(at)),
        parent=line,
        forked_at=at,
    )
    batch.put(SPACE, f"{new}/head", msgspec.json.encode(forked), expect=ABSENT)
    try:
        await log.commit(batch)
    except Refused as error:
        raise LineExists(f"there is a line {new!r} already", remedy="choose another name") from error


def _was_paused(journal: bytes | None) -> bool:
    """Whether the line was paused in a beat: its journal says so in its first record."""
    return journal is not None and msgspec.json.decode(journal.partition(b"\n")[0], type=BeginFact).paused


async def _kept(log: AsyncLog, line: str, new: str, at: int) -> AsyncIterator[tuple[str, str, bytes]]:
    """The records of a line that speak about beats up to `at`, under the new line's name."""
    contents = {record.key: record.value async for record in log.scan(SPACE, f"{line}/cas/")}
    wanted: set[str] = set()
    texts = {key.rpartition("/")[2]: value.decode() for key, value in contents.items()}
    async for record in log.scan(SPACE, f"{line}/cell/"):
        if int(record.key.rpartition("//")[2]) <= at + 1:
            stored = decode_value(record.value, texts.get)
            wanted.update(stored.hashes() if stored is not None else ())
            yield SPACE, new + record.key[len(line) :], record.value
    until = {"refs": at, "dead": at, "left": at, "digest": at, "registry": at, "rules": at, "bindings": at + 1}
    for kind, last in until.items():
        async for record in log.scan(SPACE, f"{line}/{kind}/"):
            if int(record.key.split("/")[2]) <= last:
                if kind == "refs":
                    wanted.update(msgspec.json.decode(record.value, type=list[str]))
                yield SPACE, new + record.key[len(line) :], record.value
    async for record in log.scan(SPACE, f"{line}/queue/"):
        if msgspec.json.decode(record.value, type=QueuedImpulses).since <= at:
            yield SPACE, new + record.key[len(line) :], record.value
    async for record in log.scan(f"journal/beats/{line}"):
        if int(record.key[:16]) <= at:
            yield f"journal/beats/{new}", record.key, record.value
    for sha256 in sorted(wanted):
        if sha256 in texts:
            yield SPACE, f"{new}/cas/{sha256}", texts[sha256].encode()
