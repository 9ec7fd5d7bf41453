"""A line of beats in the log: how it is stored, loaded and continued.

A beat is one batch, so it happens entirely or not at all. In the space `beats`, below the line's name:

    head                            the last beat, its digest, whether the line is paused
    cell/<path>//<beat>             a version of a path: its value, the hash of it, or nothing
    cas/<sha256>                    a text of the content store
    refs/<beat>                     the hashes a beat's journal refers to
    queue/<beat>/<a|b><n>           impulses waiting for a beat; "a" stands before "b"
    left/<beat>                     where the signals begin that were over the beat's budget
    bindings/<beat>/<n>             binding records that count from a beat on
    registry/<beat>                 the registrations in force from a beat on
    rules/<beat>                    the rules in force from a beat on, when they are not the default
    dead/<beat>, digest/<beat>      kept when the beat's details are gone

and in the space `journal/beats/<line>` the journals, cut into pieces no engine finds too long. Waiting impulses are
kept until their beat's details go: that is how a fork knows what was queued at an old beat.

Every batch says which version of `head` it follows. Two processes that drive one line therefore cannot mix: the second
is refused.

`StoredLine` knows the records. `LineWriter` connects a state in memory to them: it collects what has to be written with
the next beat. Signals and bindings from outside are written with the next beat, or earlier on `flush`; what retention
lets go is deleted with the next beat. Nothing is written on its own account, so a beat is one batch.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import msgspec

from mainspring.beats.errors import DamagedJournal, InvalidRegistration, LineBusy
from mainspring.beats.matching.registry import Bind
from mainspring.beats.rules import Rules
from mainspring.beats.storage.cells import StoredValue, mentioned
from mainspring.beats.storage.journal import GENESIS, DeadSignal, Impulse
from mainspring.log import ABSENT, Batch, BlockingLog, DamagedRecord, Operation, Put, Receipt, Record, Refused

if TYPE_CHECKING:
    from mainspring.beats.state import Decided, LineState

T = TypeVar("T")

SPACE: Final = "beats"
# How many beats back an enzyme sees the runtime tree; the same with and without a log, so that replay sees it too.
RECENT_BEATS: Final = 64
_PIECE: Final = 256 << 10  # bytes of a journal per record; every engine stores that without trouble
_CHUNK: Final = 2000  # impulses or bindings per record
_FEW_BINDINGS: Final = 64  # not worth a rewrite


class AsyncLog(Protocol):
    """What a line needs of a log."""

    def commit(self, batch: Batch) -> Awaitable[Receipt]: ...

    def get(self, space: str, key: str) -> Awaitable[Record | None]: ...

    def scan(self, space: str, prefix: str = "", after: str = "") -> AsyncIterator[Record]: ...


class BlockingLogAdapter:
    """A blocking log with the methods of an async one. Its coroutines never suspend, so they need no loop."""

    def __init__(self, log: BlockingLog) -> None:
        self.log = log

    async def commit(self, batch: Batch) -> Receipt:
        return self.log.commit(batch)

    async def get(self, space: str, key: str) -> Record | None:
        return self.log.get(space, key)

    async def scan(self, space: str, prefix: str = "", after: str = "") -> AsyncIterator[Record]:
        for record in self.log.scan(space, prefix, after):
            yield record


# --- the records ------------------------------------------------------------------------------------------------------

LeftOver = tuple[int, int]  # the first beat with impulses left, and how many of those stored for it are done


class Head(msgspec.Struct, frozen=True, omit_defaults=True):
    beat: int = 0
    digest: str = GENESIS
    paused: bool = False
    oldest: int = 1  # the first beat whose details are kept
    parent: str = ""  # the line this one was forked from, and where
    forked_at: int = 0
    program: str = ""  # MODULE:APP whose enzymes ran last
    left: LeftOver | None = None  # where signals over the budget begin: see `Backlog`
    place: int = 0  # numbers the records that are kept in order of arrival


class Registered(msgspec.Struct, frozen=True, array_like=True):
    """What the log remembers of a registration: everything but its function."""

    name: str
    query: str
    match: str
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()


class QueuedImpulses(msgspec.Struct, frozen=True):
    """Impulses queued together, and the beat they were written with or, between beats, the one they came before."""

    since: int
    impulses: list[Impulse]


class LoadedLine(msgspec.Struct):
    """All of a line that a heartbeat holds in memory."""

    head: Head
    cells: list[tuple[str, int, StoredValue | None]]
    contents: dict[str, str]
    references: dict[int, list[str]]
    queues: dict[int, list[Impulse]]
    bindings: list[tuple[int, Bind]]
    registry: list[tuple[int, list[Registered]]]
    rules: list[tuple[int, Rules]]
    dead: dict[int, list[DeadSignal]]
    stored: dict[int, int]  # how many impulses are stored for a beat
    left_over: dict[int, LeftOver]
    queued: dict[str, list[Impulse]]  # the records of the queues, by key


class LineChanges(msgspec.Struct):
    """What a beat, or what came between beats, changes in a line."""

    head: Head
    journal: bytes = b""
    cells: Sequence[tuple[str, int, StoredValue | None]] = ()
    contents: Sequence[tuple[str, str]] = ()
    references: Sequence[str] = ()
    queued: Sequence[tuple[int, Impulse]] = ()
    front: Sequence[Impulse] = ()  # waits for the next beat, before everything else
    bindings: Sequence[tuple[int, Bind]] = ()  # and the beat each counts from
    registry: Sequence[Registered] | None = None
    rules: Rules | None = None
    dead: Sequence[DeadSignal] = ()
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


def piece_key(beat: int, place: int) -> str:
    return f"{number(beat)}.{place:06d}"


def cell_key(path: str, since: int) -> str:
    return f"cell/{path}//{number(since)}"  # no path holds "//", so this splits again without a doubt


def encode_value(stored: StoredValue | None) -> bytes:
    if stored is None:
        return b""
    return f"#{stored.content}".encode() if stored.content is not None else f"={stored.text}".encode()


def decode_value(value: bytes, contents: dict[str, str]) -> StoredValue | None:
    text = value.decode()
    if not text:
        return None
    if text[0] == "#":
        return StoredValue(None, text[1:], mentioned(contents.get(text[1:], "")))
    return StoredValue(text[1:], None, mentioned(text))


def queues_of(queued: dict[str, list[Impulse]], coming: int, done: int) -> dict[int, list[Impulse]]:
    """The impulses that wait for each beat. Of those queued for past beats, the first `done` are dealt with."""
    queues: dict[int, list[Impulse]] = {}
    front: list[Impulse] = []
    backlog: list[Impulse] = []
    for key in sorted(queued):
        lands, impulses = int(key[:16]), queued[key]
        if key[17] == "a":
            front.extend(impulses if lands == coming else ())
        else:
            (queues.setdefault(lands, []) if lands >= coming else backlog).extend(impulses)
    if front or backlog[done:]:
        queues[coming] = [*front, *backlog[done:], *queues.get(coming, ())]
    return queues


class StoredLine:
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
        self.version: int = ABSENT  # of the head as it was loaded or saved here
        self._place = 0
        # Keys written or read here, by beat: a line that forgets old beats need not look for them in the log.
        self._remembers_keys = forgets_beats
        self._journal_keys: dict[int, list[str]] = {}
        self._queue_keys: dict[int, list[str]] = {}
        self._queues_known_from = 1

    # --- writing ------------------------------------------------------------------------------------------------------

    async def save(self, changes: LineChanges) -> None:
        """Make the changes durable, together. `line_busy` when another process has written the line."""
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
        self.version = receipt.versions[-1 - len([op for op in changes.operations if isinstance(op, Put)])]
        self._place += len(records)
        if self._remembers_keys:
            self._remember(changes.head.beat, changes.journal, records)

    def _remember(self, beat: int, journal: bytes, records: list[tuple[str, bytes]]) -> None:
        if journal:
            self._journal_keys[beat] = [piece_key(beat, place) for place, _ in enumerate(_pieces(journal))]
        for key, _ in records:
            if key.startswith("queue/"):
                self._queue_keys.setdefault(int(key[6:22]), []).append(key)

    def _batch(self, changes: LineChanges, records: list[tuple[str, bytes]]) -> Batch:
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
        for path, since, stored in changes.cells:
            batch.put(SPACE, f"{name}/{cell_key(path, since)}", encode_value(stored))
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
        batch.put(SPACE, f"{name}/head", msgspec.json.encode(head), expect=self.version)
        batch.operations.extend(changes.operations)
        return batch

    # --- reading ------------------------------------------------------------------------------------------------------

    async def load(self) -> LoadedLine | None:
        """Everything of the line that is kept in memory; None when there is no such line yet."""
        record = await self.log.get(SPACE, f"{self.name}/head")
        if record is None:
            return None
        head = msgspec.json.decode(record.value, type=Head)
        self.version, self._place = record.version, head.place
        loaded = LoadedLine(head, [], {}, {}, {}, [], [], [], {}, {}, {}, {})
        async for key, value in self._records("cas/"):
            loaded.contents[key] = value.decode()
        async for key, value in self._records("cell/"):
            path, _, beat = key.rpartition("//")
            loaded.cells.append((path, int(beat), decode_value(value, loaded.contents)))
        async for key, value in self._records("refs/"):
            loaded.references[int(key)] = msgspec.json.decode(value, type=list[str])
        await self._load_queues(loaded)
        async for key, value in self._records("bindings/"):
            bindings = msgspec.json.decode(value, type=list[tuple[str, str, str]])
            loaded.bindings.extend((int(key[:16]), Bind(*binding)) for binding in bindings)
        async for key, value in self._records("registry/"):
            loaded.registry.append((int(key), msgspec.json.decode(value, type=list[Registered])))
        async for key, value in self._records("rules/"):
            loaded.rules.append((int(key), msgspec.json.decode(value, type=Rules)))
        async for key, value in self._records("dead/"):
            loaded.dead[int(key)] = msgspec.json.decode(value, type=list[DeadSignal])
        return loaded

    async def _load_queues(self, loaded: LoadedLine) -> None:
        coming = loaded.head.beat + 1
        first, done = loaded.head.left or (coming, 0)
        self._queues_known_from = first
        async for key, value in self._records("queue/", after=f"{number(first - 1)}/~"):
            self._queue_keys.setdefault(int(key[:16]), []).append(f"queue/{key}")
            lands, impulses = int(key[:16]), msgspec.json.decode(value, type=QueuedImpulses).impulses
            loaded.queued[key] = impulses
            if key[17] != "a":
                loaded.stored[lands] = loaded.stored.get(lands, 0) + len(impulses)
        loaded.queues = queues_of(loaded.queued, coming, done)
        async for key, value in self._records("left/"):
            loaded.left_over[int(key)] = msgspec.json.decode(value, type=LeftOver)

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


def _ordered_records(changes: LineChanges) -> list[tuple[str, bytes]]:
    """Impulses and bindings, by the beat they wait for, in the order they came."""
    beat = changes.head.beat
    since = beat if changes.journal else beat + 1
    queues: dict[int, list[Impulse]] = {}
    for lands, impulse in changes.queued:
        queues.setdefault(lands, []).append(impulse)
    sides = [(f"queue/{number(lands)}/b", impulses) for lands, impulses in queues.items()]
    if changes.front:
        sides.append((f"queue/{number(beat + 1)}/a", list(changes.front)))
    records = [(key, msgspec.json.encode(QueuedImpulses(since, part))) for key, each in sides for part in _chunks(each)]
    bindings: dict[int, list[Bind]] = {}
    for counts_from, binding in changes.bindings:
        bindings.setdefault(counts_from, []).append(binding)
    for counts_from, bound in bindings.items():
        for part in _chunks(bound):
            value = msgspec.json.encode([(binding.path, binding.name, binding.kind) for binding in part])
            records.append((f"bindings/{number(counts_from)}/", value))
    return records


def _pieces(journal: bytes) -> Iterable[bytes]:
    return (journal[start : start + _PIECE] for start in range(0, len(journal), _PIECE))


def _chunks(items: list[T]) -> Iterable[list[T]]:
    return (items[start : start + _CHUNK] for start in range(0, len(items), _CHUNK))


# --- between a state in memory and the records ------------------------------------------------------------------------


class LineWriter:
    """Collects what a line has to store with its next beat, and makes a state what the line holds."""

    def __init__(self, line: StoredLine, state: LineState, program: str = "") -> None:
        self.line = line
        self.program: str = program
        self._state = state
        self._signals: list[tuple[int, Impulse]] = []
        self._bindings: list[tuple[int, Bind]] = []
        self._registry: list[Registered] | None = None
        self._rules: Rules | None = None
        self._garbage: list[str] = []
        self._old_journals: list[str] = []
        self._saved_paused = False
        self._forked_from = ("", 0)
        self._backlog = Backlog()
        self._operations: list[Operation] = []

    async def load(self) -> None:
        """Make the state what the line holds. Bindings the program has declared meanwhile count from the next beat."""
        declared = self._state.bindings.records()
        loaded = await self.line.load()
        if loaded is not None:
            self._bindings.clear()
            await self.continue_from(loaded, declared)

    async def continue_from(self, loaded: LoadedLine, declared: Iterable[tuple[str, str, str]]) -> None:
        """Make the state what was loaded, with the bindings that the program declares."""
        state = self._state
        state.restore(loaded)
        self.program = self.program or loaded.head.program
        self._forked_from = loaded.head.parent, loaded.head.forked_at
        self._saved_paused = state.paused
        self._backlog.restore(loaded.head.left, loaded.stored, loaded.left_over)
        for record in declared:
            self.note_binding(state.change(Bind(*record)))
        for beat in range(max(state.oldest, state.beat - RECENT_BEATS), state.beat):
            journal = await self.line.journal(beat)
            if journal is not None:
                state.journals[beat] = journal
        await self._compact_bindings()
        await self.collect()

    async def _compact_bindings(self) -> None:
        """Replace records older than every kept beat by the latest of each path and name, once that saves enough."""
        bound, oldest = self._state.bound, self._state.oldest
        old = [binding for since in sorted(bound) if since <= oldest for binding in bound[since]]
        latest = list({(binding.path, binding.name): binding for binding in old}.values())
        if len(old) <= 2 * len(latest) + _FEW_BINDINGS:
            return
        self._garbage.extend(await self.line.binding_keys(oldest))
        self._bindings.extend((oldest, binding) for binding in latest)
        self._state.bound = {oldest: latest, **{since: each for since, each in bound.items() if since > oldest}}

    def save_with(self, operations: list[Operation]) -> None:
        """Store these operations with the next batch, instead of those given before."""
        self._operations = operations

    def note_signal(self, lands: int, impulse: Impulse) -> None:
        self._signals.append((lands, impulse))

    def note_binding(self, bound: Bind | None) -> None:
        if bound is not None:
            self._bindings.append((self._state.beat, bound))

    def note_beginning(self, registered: list[Registered] | None, rules: Rules | None) -> None:
        """The registrations and the rules of the beat that begins, where they have changed."""
        self._registry = registered or self._registry
        self._rules = rules or self._rules

    async def save_beat(self, decided: Decided, operations: Sequence[Operation]) -> None:
        """Write a beat and everything that waited for it, as one batch."""
        beat = self._state.beat
        unsaved = sum(lands == beat for lands, _ in self._signals)
        rest = self._backlog.remainder(beat, decided.carried, decided.overflow, unsaved)
        head = self._head(beat, decided.report.digest, rest.left)
        queued = [(lands, impulse) for lands, impulse in self._signals if lands > beat]
        queued += [*((beat, impulse) for impulse in rest.late), *decided.queued]
        bound = [(beat + 1, change) for change in decided.changes if isinstance(change, Bind)]
        await self.line.save(
            LineChanges(
                head=head,
                journal=decided.journal,
                cells=decided.cells,
                contents=decided.contents,
                references=decided.references,
                queued=queued,
                front=rest.front,
                bindings=[*self._bindings, *bound],
                registry=self._registry,
                rules=self._rules,
                dead=decided.dead,
                garbage=self._garbage,
                old_journals=self._old_journals,
                operations=[*operations, *self._operations],
            )
        )
        self._backlog.store(lands for lands, _ in queued)
        self._backlog.beat_ended(beat, rest.left)
        self._signals, self._bindings, self._registry, self._rules = [], [], None, None
        self._saved_paused = head.paused
        self._garbage, self._old_journals, self._operations = [], [], []

    async def save_between_beats(self) -> None:
        """Write what came from outside since the last beat."""
        state = self._state
        if not (self._signals or self._bindings or self._operations) and state.paused == self._saved_paused:
            return
        head = self._head(state.beat - 1, state.digest, self._backlog.left)
        await self.line.save(
            LineChanges(head, queued=self._signals, bindings=self._bindings, operations=self._operations)
        )
        self._backlog.store(lands for lands, _ in self._signals)
        self._signals, self._bindings, self._operations = [], [], []
        self._saved_paused = head.paused

    async def collect(self) -> None:
        """Note what retention lets go; it leaves the log with the next beat."""
        keys, beats = self._state.forget()
        self._garbage.extend(keys)
        for beat in beats:
            self._old_journals.extend(await self.line.journal_keys(beat))
        unneeded, gone = self._backlog.forget(self._state.oldest)
        self._garbage.extend(f"left/{number(beat)}" for beat in gone)
        for beat in unneeded:
            self._garbage.extend(await self.line.queue_keys(beat))

    def _head(self, beat: int, digest: str, left: LeftOver | None) -> Head:
        return Head(beat, digest, self._state.paused, self._state.oldest, *self._forked_from, self.program, left)


class Remainder(msgspec.Struct, frozen=True):
    """What to store of the signals a beat had no room for."""

    front: list[Impulse]  # for the next beat, before everything else
    late: list[Impulse]  # came for this beat and were not stored before
    left: LeftOver | None


class Backlog:
    """How many impulses are stored for each beat, and where those over the budget begin.

    Impulses are stored once, under the beat they were queued for, and stay there. What a beat has no room for is always
    the end of what waited, so two numbers say which impulses are left: a beat, and how many of those stored for it are
    done. A backlog of a million signals then costs each beat these two numbers. Only what is left of pairs whose runs
    did not suffice is stored anew, for the next beat, before everything else.
    """

    def __init__(self) -> None:
        self.left: LeftOver | None = None
        self._stored: dict[int, int] = {}
        self._left_over: dict[int, LeftOver] = {}  # of the beats one may still fork at
        self._floor = 1  # impulses of earlier beats are gone

    def restore(self, left: LeftOver | None, stored: dict[int, int], left_over: dict[int, LeftOver]) -> None:
        self.left, self._stored, self._left_over = left, stored, left_over
        self._floor = min(stored, default=1)

    def remainder(self, beat: int, carried: list[Impulse], overflow: int, unsaved: int) -> Remainder:
        """Of `carried`, the last `overflow` never entered the beat; the last `unsaved` that waited are not stored."""
        split = len(carried) - overflow
        if not overflow:
            return Remainder(carried, [], None)
        late = carried[max(split, len(carried) - unsaved) :]
        first, done = self.left or (beat, 0)
        missing = overflow
        for lands in range(beat, first - 1, -1):
            stored = self._stored.get(lands, 0) + (len(late) if lands == beat else 0)
            waiting = stored - (done if lands == first else 0)
            if missing <= waiting:
                return Remainder(carried[:split], late, (lands, stored - missing))
            missing -= waiting
        return Remainder(carried[: split + missing], late, (first, done))

    def store(self, lands: Iterable[int]) -> None:
        """Count impulses that were stored, each for the beat it waits for."""
        for beat in lands:
            self._stored[beat] = self._stored.get(beat, 0) + 1

    def beat_ended(self, beat: int, left: LeftOver | None) -> None:
        """A beat is over, and this is what it left."""
        self.left = left
        if left is not None:
            self._left_over[beat] = left
        first = left[0] if left is not None else beat + 1
        for old in [lands for lands in self._stored if lands < first]:
            del self._stored[old]

    def forget(self, oldest: int) -> tuple[range, list[int]]:
        """Beats whose impulses are no longer needed, and beats whose `left` is no longer needed.

        Lines can be forked from the beat before the oldest on.
        """
        gone = [beat for beat in self._left_over if beat < oldest - 1]
        for beat in gone:
            del self._left_over[beat]
        floor = min([oldest, *(first for first, _ in self._left_over.values())])
        unneeded = range(self._floor, max(self._floor, floor))
        self._floor = max(self._floor, floor)
        return unneeded, gone
