"""A line of beats in the log: how it is stored, loaded and continued.

A beat is one batch, so it happens entirely or not at all. In the space `beats`, below the line's name:

    head                            the last beat, its digest, whether the line is paused
    cell/<path>//<beat>             a version of a path: its value, the hash of it, or nothing
    cas/<sha256>                    a text of the content store
    refs/<beat>                     the hashes a beat's journal refers to
    queue/<beat>/<a|b><n>           impulses waiting for a beat; "a" stands before "b"
    left/<beat>                     where the signals begin that were over the beat's budget
    bindings/<beat>/<n>             binding records that count from a beat on
    registry/<beat>                 who was registered from a beat on
    rules/<beat>                    which rules were in force from a beat on, when they are not the default
    dead/<beat>, digest/<beat>      kept when the beat's details are gone

and in the space `journal/beats/<line>` the journals, cut into pieces no engine finds too long. Waiting impulses are
kept until their beat's details go: that is how a fork knows what was queued at an old beat.

Every batch says which version of `head` it follows. Two processes that drive one line therefore cannot mix: the second
is refused.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Final, Protocol, TypeVar

import msgspec

from mainspring.beats.errors import DamagedJournal, InvalidRegistration, LineBusy
from mainspring.beats.matching.changes import Bind
from mainspring.beats.rules import Rules
from mainspring.beats.storage.cells import Held
from mainspring.beats.storage.journal import GENESIS, Dead, Impulse
from mainspring.beats.storage.values import mentioned
from mainspring.log import ABSENT, Batch, BlockingLog, DamagedRecord, Operation, Put, Receipt, Record, Refused

SPACE: Final = "beats"
_PIECE: Final = 256 << 10  # bytes of a journal per record; every engine stores that without thinking
_CHUNK: Final = 2000  # impulses or bindings per record


class AsyncLog(Protocol):
    """What a line needs of a log."""

    def commit(self, batch: Batch) -> Awaitable[Receipt]: ...

    def get(self, space: str, key: str) -> Awaitable[Record | None]: ...

    def scan(self, space: str, prefix: str = "", after: str = "") -> AsyncIterator[Record]: ...


class Unhurried:
    """A blocking log behind the face of an async one. Its coroutines never suspend, so they need no loop."""

    def __init__(self, log: BlockingLog) -> None:
        self.log = log

    async def commit(self, batch: Batch) -> Receipt:
        return self.log.commit(batch)

    async def get(self, space: str, key: str) -> Record | None:
        return self.log.get(space, key)

    async def scan(self, space: str, prefix: str = "", after: str = "") -> AsyncIterator[Record]:
        for record in self.log.scan(space, prefix, after):
            yield record


class Head(msgspec.Struct, frozen=True, omit_defaults=True):
    beat: int = 0
    digest: str = GENESIS
    paused: bool = False
    oldest: int = 1  # the first beat whose details are kept
    parent: str = ""  # the line this one was forked from, and where
    forked_at: int = 0
    program: str = ""  # MODULE:APP whose enzymes ran last
    left: tuple[int, int] | None = None  # where signals over the budget begin: see `backlog`
    place: int = 0  # numbers the records that are kept in order of arrival


class Registered(msgspec.Struct, frozen=True, array_like=True):
    """What the log remembers of a registration: everything but its function."""

    name: str
    query: str
    match: str
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()


class Kept(msgspec.Struct):
    """All of a line that a heartbeat holds in memory."""

    head: Head
    cells: list[tuple[str, int, Held | None]]
    contents: dict[str, str]
    references: dict[int, list[str]]
    queues: dict[int, list[Impulse]]
    bindings: list[tuple[int, Bind]]
    registry: list[tuple[int, list[Registered]]]
    rules: list[tuple[int, Rules]]
    dead: dict[int, list[Dead]]
    stored: dict[int, int]  # how many impulses stand for a beat
    lefts: dict[int, tuple[int, int]]
    waiting: dict[str, list[Impulse]]  # what stands in the queues, by key


class Changes(msgspec.Struct):
    """What a beat, or what came between beats, changes in a line."""

    head: Head
    journal: bytes = b""
    cells: Sequence[tuple[str, int, Held | None]] = ()
    contents: Sequence[tuple[str, str]] = ()
    references: Sequence[str] = ()
    queued: Sequence[tuple[int, Impulse]] = ()
    front: Sequence[Impulse] = ()  # waits for the next beat, before everything else
    bindings: Sequence[tuple[int, Bind]] = ()  # and the beat each counts from
    registry: Sequence[Registered] | None = None
    rules: Rules | None = None
    dead: Sequence[Dead] = ()
    garbage: Sequence[str] = ()  # keys below the line's name
    old_journals: Sequence[str] = ()  # keys of journal pieces
    operations: Sequence[Operation] = ()  # of others, that must happen together with the beat


def checked_line(name: str) -> str:
    if not name or not all(c.isascii() and (c.isalnum() or c in "-_.") for c in name):
        raise InvalidRegistration(f"a line's name has letters, digits, '-', '_' and '.', not {name!r}")
    return name


def number(beat: int) -> str:
    return f"{beat:016d}"


def journals_of(line: str) -> str:
    """The space of a line's journals."""
    return f"journal/beats/{line}"


class Line:
    """One line of beats in a log."""

    def __init__(
        self,
        log: AsyncLog,
        name: str = "main",
        *,
        forgets_beats: bool = False,
        guard: Callable[[Batch], None] | None = None,
    ) -> None:
        """`guard` goes into every batch: where several nodes share the log, only one of them may write a line."""
        self.name: str = checked_line(name)
        self._guard = guard
        self.log = log
        self._journals = journals_of(name)
        self._head_version = ABSENT  # none is there yet
        self._place = 0
        # Keys written or read here, by beat: a line that forgets old beats need not look for them in the log.
        self._remembers_keys = forgets_beats
        self._journal_keys: dict[int, list[str]] = {}
        self._queue_keys: dict[int, list[str]] = {}
        self._queues_known_from = 1

    # --- writing ------------------------------------------------------------------------------------------------------

    async def save(self, changes: Changes) -> None:
        """Make the changes durable, together. `line_busy` when somebody else has written the line."""
        records = [
            (f"{key}{number(place)}", value)
            for place, (key, value) in enumerate(_ordered_records(changes), self._place)
        ]
        batch = self._batch(changes, records)
        try:
            receipt = await self.log.commit(batch)
        except Refused as error:
            raise LineBusy(
                f"line {self.name!r} was written by somebody else", remedy="open the heartbeat again; drive it once"
            ) from error
        self._head_version = receipt.versions[-1 - len([op for op in changes.operations if isinstance(op, Put)])]
        self._place += len(records)
        if self._remembers_keys:
            self._remember(changes.head.beat, changes.journal, records)

    def _remember(self, beat: int, journal: bytes, records: list[tuple[str, bytes]]) -> None:
        if journal:
            self._journal_keys[beat] = [piece_key(beat, place) for place, _ in enumerate(_pieces(journal))]
        for key, _ in records:
            if key.startswith("queue/"):
                self._queue_keys.setdefault(int(key[6:22]), []).append(key)

    def _batch(self, changes: Changes, records: list[tuple[str, bytes]]) -> Batch:
        name, beat = self.name, changes.head.beat
        batch = Batch()
        if self._guard is not None:
            self._guard(batch)
        if changes.journal:
            for place, piece in enumerate(_pieces(changes.journal)):
                batch.put(self._journals, piece_key(beat, place), piece, expect=ABSENT)
            batch.put(SPACE, f"{name}/digest/{number(beat)}", changes.head.digest.encode(), expect=ABSENT)
        for sha256, text in changes.contents:
            batch.put(SPACE, f"{name}/cas/{sha256}", text.encode())
        for path, since, held in changes.cells:
            batch.put(SPACE, f"{name}/{cell_key(path, since)}", encode_held(held))
        if changes.references:
            batch.put(SPACE, f"{name}/refs/{number(beat)}", msgspec.json.encode(list(changes.references)))
        if changes.registry is not None:
            batch.put(SPACE, f"{name}/registry/{number(beat)}", msgspec.json.encode(changes.registry))
        if changes.rules is not None:
            batch.put(SPACE, f"{name}/rules/{number(beat)}", msgspec.json.encode(changes.rules))
        if changes.journal and changes.head.left is not None:
            batch.put(SPACE, f"{name}/left/{number(beat)}", msgspec.json.encode(changes.head.left))
        if changes.dead:
            batch.put(SPACE, f"{name}/dead/{number(beat)}", msgspec.json.encode(changes.dead))
        for key in changes.garbage:
            batch.delete(SPACE, f"{name}/{key}")
        for key in changes.old_journals:
            batch.delete(self._journals, key)
        for key, value in records:
            batch.put(SPACE, f"{name}/{key}", value, expect=ABSENT)
        head = msgspec.structs.replace(changes.head, place=self._place + len(records))
        batch.put(SPACE, f"{name}/head", msgspec.json.encode(head), expect=self._head_version)
        batch.operations.extend(changes.operations)
        return batch

    # --- reading ------------------------------------------------------------------------------------------------------

    async def load(self) -> Kept | None:
        """Everything of the line that is kept in memory; None when there is no such line yet."""
        record = await self.log.get(SPACE, f"{self.name}/head")
        if record is None:
            return None
        head = msgspec.json.decode(record.value, type=Head)
        self._head_version, self._place = record.version, head.place
        kept = Kept(head, [], {}, {}, {}, [], [], [], {}, {}, {}, {})
        async for key, value in self._records("cas/"):
            kept.contents[key] = value.decode()
        async for key, value in self._records("cell/"):
            path, _, beat = key.rpartition("//")
            kept.cells.append((path, int(beat), decode_held(value, kept.contents)))
        async for key, value in self._records("refs/"):
            kept.references[int(key)] = msgspec.json.decode(value, type=list[str])
        await self._load_queues(kept)
        async for key, value in self._records("bindings/"):
            bindings = msgspec.json.decode(value, type=list[tuple[str, str, str]])
            kept.bindings.extend((int(key[:16]), Bind(*binding)) for binding in bindings)
        async for key, value in self._records("registry/"):
            kept.registry.append((int(key), msgspec.json.decode(value, type=list[Registered])))
        async for key, value in self._records("rules/"):
            kept.rules.append((int(key), msgspec.json.decode(value, type=Rules)))
        async for key, value in self._records("dead/"):
            kept.dead[int(key)] = msgspec.json.decode(value, type=list[Dead])
        return kept

    async def _load_queues(self, kept: Kept) -> None:
        coming = kept.head.beat + 1
        first, done = kept.head.left or (coming, 0)
        self._queues_known_from = first
        async for key, value in self._records("queue/", after=f"{number(first - 1)}/~"):
            self._queue_keys.setdefault(int(key[:16]), []).append(f"queue/{key}")
            lands, impulses = int(key[:16]), msgspec.json.decode(value, type=Waiting).impulses
            kept.waiting[key] = impulses
            if key[17] != "a":
                kept.stored[lands] = kept.stored.get(lands, 0) + len(impulses)
        kept.queues = queues_of(kept.waiting, coming, done)
        async for key, value in self._records("left/"):
            kept.lefts[int(key)] = msgspec.json.decode(value, type=tuple[int, int])

    @property
    def version(self) -> int:
        """Of the line's head as it was loaded or saved here."""
        return self._head_version

    async def head(self) -> Head:
        """Where the line stands; before its first beat when there is no such line."""
        record = await self.log.get(SPACE, f"{self.name}/head")
        return Head() if record is None else msgspec.json.decode(record.value, type=Head)

    async def _records(self, kind: str, after: str = "") -> AsyncIterator[tuple[str, bytes]]:
        prefix = f"{self.name}/{kind}"
        async for record in self.log.scan(SPACE, prefix, prefix + after if after else ""):
            yield record.key[len(prefix) :], record.value

    async def journal(self, beat: int) -> bytes | None:
        """The journal of a beat as it was written; None when it is not kept."""
        try:
            pieces = [record.value async for record in self.log.scan(self._journals, f"{number(beat)}.")]
        except DamagedRecord as error:
            raise DamagedJournal(beat, "a piece of its journal fails its checksum") from error
        return b"".join(pieces) or None

    async def journal_keys(self, beat: int) -> list[str]:
        """The keys of a beat's journal; each is given once."""
        if beat in self._journal_keys:
            return self._journal_keys.pop(beat)
        return [record.key async for record in self.log.scan(self._journals, f"{number(beat)}.")]

    async def queue_keys(self, beat: int) -> list[str]:
        """The keys of what was ever queued for a beat; each is given once."""
        if beat >= self._queues_known_from:
            return self._queue_keys.pop(beat, [])
        prefix = f"queue/{number(beat)}/"
        return [prefix + key async for key, _ in self._records(prefix)]

    async def binding_keys(self, last: int) -> list[str]:
        """The keys of binding records that count from a beat on or from an earlier one."""
        return [f"bindings/{key}" async for key, _ in self._records("bindings/") if int(key[:16]) <= last]

    async def digest(self, beat: int) -> str | None:
        record = await self.log.get(SPACE, f"{self.name}/digest/{number(beat)}")
        return None if record is None else record.value.decode()


def queues_of(waiting: dict[str, list[Impulse]], coming: int, done: int) -> dict[int, list[Impulse]]:
    """Who waits for which beat. Of those queued for beats that are over, the first `done` are dealt with."""
    queues: dict[int, list[Impulse]] = {}
    front: list[Impulse] = []
    backlog: list[Impulse] = []
    for key in sorted(waiting):
        lands, impulses = int(key[:16]), waiting[key]
        if key[17] == "a":
            front.extend(impulses if lands == coming else ())
        else:
            (queues.setdefault(lands, []) if lands >= coming else backlog).extend(impulses)
    if front or backlog[done:]:
        queues[coming] = [*front, *backlog[done:], *queues.get(coming, ())]
    return queues


class Waiting(msgspec.Struct, frozen=True):
    """Impulses queued together, and the beat they were written with or, between beats, the one they came before."""

    since: int
    impulses: list[Impulse]


def piece_key(beat: int, place: int) -> str:
    return f"{number(beat)}.{place:06d}"


def cell_key(path: str, since: int) -> str:
    return f"cell/{path}//{number(since)}"  # no path holds "//", so this splits again without a doubt


def encode_held(held: Held | None) -> bytes:
    if held is None:
        return b""
    return f"#{held.content}".encode() if held.content is not None else f"={held.text}".encode()


def decode_held(value: bytes, contents: dict[str, str]) -> Held | None:
    text = value.decode()
    if not text:
        return None
    if text[0] == "#":
        return Held(None, text[1:], mentioned(contents.get(text[1:], "")))
    return Held(text[1:], None, mentioned(text))


def _ordered_records(changes: Changes) -> list[tuple[str, bytes]]:
    """Impulses and bindings, by the beat they wait for, in the order they came."""
    beat = changes.head.beat
    known = beat if changes.journal else beat + 1
    queues: dict[int, list[Impulse]] = {}
    for lands, impulse in changes.queued:
        queues.setdefault(lands, []).append(impulse)
    sides = [(f"queue/{number(lands)}/b", impulses) for lands, impulses in queues.items()]
    if changes.front:
        sides.append((f"queue/{number(beat + 1)}/a", list(changes.front)))
    records = [(key, msgspec.json.encode(Waiting(known, part))) for key, each in sides for part in _chunks(each)]
    bindings: dict[int, list[Bind]] = {}
    for since, binding in changes.bindings:
        bindings.setdefault(since, []).append(binding)
    for since, bound in bindings.items():
        for part in _chunks(bound):
            value = msgspec.json.encode([(binding.path, binding.name, binding.kind) for binding in part])
            records.append((f"bindings/{number(since)}/", value))
    return records


def _pieces(journal: bytes) -> Iterable[bytes]:
    return (journal[start : start + _PIECE] for start in range(0, len(journal), _PIECE))


T = TypeVar("T")


def _chunks(items: list[T]) -> Iterable[list[T]]:
    return (items[start : start + _CHUNK] for start in range(0, len(items), _CHUNK))
