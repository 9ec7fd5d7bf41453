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

`StoredLine` reads the records, `LineImage` applies them to a state in memory, and `LineWriter` collects what has to be
written with the next beat. Signals and bindings from outside are written with the next beat, or earlier on `flush`;
what retention lets go is deleted with the next beat. Nothing is written on its own account, so a beat is one batch.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from mainspring.beats.errors import DamagedJournal, InvalidRegistration, LineBusy
from mainspring.beats.matching.registry import Bind
from mainspring.beats.rules import Rules
from mainspring.beats.storage.cells import CellValue, mentioned
from mainspring.beats.storage.journal import GENESIS, DeadSignal, Impulse
from mainspring.log import ABSENT, Batch, BlockingLog, DamagedRecord, Log, Operation, Put, Receipt, Record, Refused

if TYPE_CHECKING:
    from mainspring.beats.state import Decided, LineState

T = TypeVar("T")

logger: logging.Logger = logging.getLogger("mainspring.beats")

SPACE: Final = "beats"
# How many beats back an enzyme sees the runtime tree; the same with and without a log, so that replay sees it too.
RECENT_BEATS: Final = 64
_PIECE: Final = 256 << 10  # bytes of a journal per record; every engine stores that without trouble
_CHUNK: Final = 2000  # impulses or bindings per record
_FEW_BINDINGS: Final = 64  # not worth a rewrite


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


AsyncLog = Log | BlockingLogAdapter


# --- the records ------------------------------------------------------------------------------------------------------

LeftOver = tuple[int, int]  # the first beat with impulses left, and how many of those stored for it are done
# Impulses for the next beat, before everything else; those that came for this beat and were not stored; what is left.
Remainder = tuple[list[Impulse], list[Impulse], LeftOver | None]


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


def number(beat: int) -> str:
    return f"{beat:016d}"


def journals_of(line: str) -> str:
    """The space of a line's journals."""
    return f"journal/beats/{line}"


def piece_key(beat: int, place: int) -> str:
    return f"{number(beat)}.{place:06d}"


def cell_key(path: str, since: int) -> str:
    return f"cell/{path}//{number(since)}"  # no path holds "//", so this splits again without a doubt


def encode_value(stored: CellValue | None) -> bytes:
    if stored is None:
        return b""
    return f"#{stored.content}".encode() if stored.content is not None else f"={stored.text}".encode()


def decode_value(value: bytes, content: Callable[[str], str | None]) -> CellValue | None:
    """`content` gives the text behind a hash."""
    text = value.decode()
    if not text:
        return None
    if text[0] == "#":
        return CellValue(None, text[1:], mentioned(content(text[1:]) or ""))
    return CellValue(text[1:], None, mentioned(text))


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


class LineImage:
    """The records of a line applied to a state. Applying the same record twice changes nothing."""

    def __init__(self, state: LineState, head: Head | None = None, version: int = ABSENT) -> None:
        self.state = state
        self.head: Head = head or Head()
        self.version = version  # of the head
        self.queued: dict[str, list[Impulse]] = {}  # the records of the queues, by key
        self.left_over: dict[int, LeftOver] = {}
        self._registered = {since for since, _ in state.registries}
        self._ruled = {since for since, _ in state.rulings}

    def apply(self, kind: str, key: str, value: bytes) -> None:
        """One record; `key` is what follows the kind in its key. The head comes last: it says which queues wait."""
        state = self.state
        match kind:
            case "cas":
                state.content.put(key, value.decode())
            case "cell":
                path, _, since = key.rpartition("//")
                if int(since) > state.cells.newest(path):
                    state.cells.put(path, int(since), decode_value(value, state.content.get))
            case "refs":
                state.refer(int(key), msgspec.json.decode(value, type=list[str]))
            case "queue":
                self.queued[key] = msgspec.json.decode(value, type=QueuedImpulses).impulses
            case "left":
                self.left_over[int(key)] = msgspec.json.decode(value, type=LeftOver)
            case "bindings":
                bound = state.bound.setdefault(int(key[:16]), [])
                for path, name, how in msgspec.json.decode(value, type=list[tuple[str, str, str]]):
                    binding = Bind(path, name, how)
                    if state.bindings.put(path, name, how) or binding not in bound:
                        bound.append(binding)
            case "registry" if int(key) not in self._registered:
                self._registered.add(int(key))
                state.registries.append((int(key), msgspec.json.decode(value, type=list[Registered])))
            case "rules" if int(key) not in self._ruled:
                self._ruled.add(int(key))
                state.rulings.append((int(key), msgspec.json.decode(value, type=Rules)))
            case "dead":
                state.dead[int(key)] = msgspec.json.decode(value, type=list[DeadSignal])
            case "digest":
                state.note_digest(int(key), value.decode())
            case "head":
                self.apply_head(msgspec.json.decode(value, type=Head))

    def apply_head(self, head: Head) -> None:
        state, self.head = self.state, head
        state.beat, state.digest, state.paused = head.beat + 1, head.digest, head.paused
        first, done = head.left or (state.beat, 0)
        for key in [key for key in self.queued if int(key[:16]) < first]:
            del self.queued[key]
        state.queues = queues_of(self.queued, state.beat, done)
        state.forget_before(head.oldest)


class StoredLine:
    """Reads one line of beats in a log."""

    def __init__(self, log: AsyncLog, name: str = "main") -> None:
        if not name or not all(c.isascii() and (c.isalnum() or c in "-_.") for c in name):
            raise InvalidRegistration(f"a line's name has letters, digits, '-', '_' and '.', not {name!r}")
        self.name: str = name
        self.log = log
        self.journals: str = journals_of(name)

    async def load(self, state: LineState) -> LineImage | None:
        """Make an empty state what the line holds; None when there is no such line yet."""
        record = await self.log.get(SPACE, f"{self.name}/head")
        if record is None:
            return None
        reading = "head"
        try:
            head = msgspec.json.decode(record.value, type=Head)
            image = LineImage(state, head, record.version)
            state.bound, state.oldest = {}, head.oldest
            for kind in ("cas", "cell", "refs", "left", "bindings", "registry", "rules", "dead"):
                async for key, value in self.records(f"{kind}/"):
                    reading = f"{kind}/{key}"
                    image.apply(kind, key, value)
            first, _ = head.left or (head.beat + 1, 0)
            async for key, value in self.records("queue/", after=f"{number(first - 1)}/~"):
                reading = f"queue/{key}"
                image.apply("queue", key, value)
        except (msgspec.DecodeError, ValueError, LookupError, TypeError) as error:
            raise DamagedRecord(SPACE, f"{self.name}/{reading}") from error  # nothing of a line can be left out
        image.apply_head(head)
        for impulses in state.queues.values():
            state.note_live_events(impulses)
        return image

    async def head(self) -> Head | None:
        """Where the line stands; None when there is no such line."""
        record = await self.log.get(SPACE, f"{self.name}/head")
        return None if record is None else msgspec.json.decode(record.value, type=Head)

    async def records(self, prefix: str, after: str = "") -> AsyncIterator[tuple[str, bytes]]:
        """The records of the line whose keys start with a prefix: the rest of each key, and its value."""
        whole = f"{self.name}/{prefix}"
        async for record in self.log.scan(SPACE, whole, whole + after if after else ""):
            yield record.key[len(whole) :], record.value

    async def journal(self, beat: int) -> bytes | None:
        """The journal of a beat as it was written; None when it is not kept."""
        try:
            pieces = [record.value async for record in self.log.scan(self.journals, f"{number(beat)}.")]
        except DamagedRecord as error:
            raise DamagedJournal(beat, "a piece of its journal fails its checksum") from error
        return b"".join(pieces) or None

    async def digest(self, beat: int) -> str | None:
        record = await self.log.get(SPACE, f"{self.name}/digest/{number(beat)}")
        return None if record is None else record.value.decode()


def _queue_records(since: int, queued: Iterable[tuple[int, Impulse]]) -> Iterator[tuple[str, bytes]]:
    """Impulses by the beat they wait for, in the order they came."""
    for lands, impulses in _by_beat(queued).items():
        yield from _chunked(f"queue/{number(lands)}/b", since, impulses)


def _chunked(key: str, since: int, impulses: list[Impulse]) -> Iterator[tuple[str, bytes]]:
    return ((key, msgspec.json.encode(QueuedImpulses(since, part))) for part in _chunks(impulses))


def _binding_records(bindings: Iterable[tuple[int, Bind]]) -> Iterator[tuple[str, bytes]]:
    """Bindings by the beat they count from, in the order they came."""
    for since, bound in _by_beat(bindings).items():
        for part in _chunks(bound):
            yield (
                f"bindings/{number(since)}/",
                msgspec.json.encode([(each.path, each.name, each.kind) for each in part]),
            )


def _by_beat(pairs: Iterable[tuple[int, T]]) -> dict[int, list[T]]:
    found: dict[int, list[T]] = {}
    for beat, each in pairs:
        found.setdefault(beat, []).append(each)
    return found


def _pieces(journal: bytes) -> Iterable[bytes]:
    return (journal[start : start + _PIECE] for start in range(0, len(journal), _PIECE))


def _chunks(items: list[T]) -> Iterable[list[T]]:
    return (items[start : start + _CHUNK] for start in range(0, len(items), _CHUNK))


# --- between a state in memory and the records ------------------------------------------------------------------------


class LineWriter:
    """Collects what a line has to store with its next beat, and continues a line that is stored."""

    def __init__(
        self,
        line: StoredLine,
        state: LineState,
        program: str = "",
        guard: Callable[[Batch], None] | None = None,
    ) -> None:
        """`guard` goes into every batch: where several nodes share the log, only one of them may write a line."""
        self.line = line
        self.program: str = program
        self._guard = guard
        self._state = state
        self._head_version = ABSENT
        self._place = 0  # of the next record that is kept in order of arrival
        self._signals: list[tuple[int, Impulse]] = []
        self._bindings: list[tuple[int, Bind]] = []
        self._registry: list[Registered] | None = None
        self._rules: Rules | None = None
        self._garbage: list[str] = []  # keys below the line's name
        self._old_journals: list[str] = []  # keys of journal pieces
        self._saved_paused = False
        self._forked_from = ("", 0)
        self._backlog = Backlog()
        self._operations: list[Operation] = []
        # Keys written or read here, by beat: a line that forgets old beats need not look for them in the log.
        self._remembers_keys = state.rules.retain_beats is not None
        self._journal_keys: dict[int, list[str]] = {}
        self._queue_keys: dict[int, list[str]] = {}
        self._queues_known_from = 1

    async def load(self) -> None:
        """Make the state what the line holds. Bindings the program has declared meanwhile count from the next beat."""
        declared = self._state.bindings.records()
        image = await self.line.load(self._state)
        if image is not None:
            self._bindings.clear()
            await self.continue_from(image, declared)

    async def continue_from(self, image: LineImage, declared: Iterable[tuple[str, str, str]]) -> None:
        """Go on where the line ends, with the bindings that the program declares."""
        state, head = self._state, image.head
        self._head_version, self._place = image.version, head.place
        self.program = self.program or head.program
        self._forked_from = head.parent, head.forked_at
        self._saved_paused = state.paused
        self._backlog.restore(image)
        self._queues_known_from, _ = head.left or (state.beat, 0)
        self._remember_queues(f"queue/{key}" for key in image.queued)
        for record in declared:
            self.note_binding(state.change(Bind(*record)))
        for beat in range(max(state.oldest, state.beat - RECENT_BEATS), state.beat):
            try:
                journal = await self.line.journal(beat)
            except DamagedJournal as error:  # what it led to is in the cells; only looking back is not possible
                logger.error("%s", error)
                continue
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
        async for key, _ in self.line.records("bindings/"):
            if int(key[:16]) <= oldest:
                self._garbage.append(f"bindings/{key}")
        self._bindings.extend((oldest, binding) for binding in latest)
        self._state.bound = {oldest: latest, **{since: each for since, each in bound.items() if since > oldest}}

    # --- what is to be written ----------------------------------------------------------------------------------------

    def note_signal(self, lands: int, impulse: Impulse) -> None:
        self._signals.append((lands, impulse))

    def note_binding(self, bound: Bind | None) -> None:
        if bound is not None:
            self._bindings.append((self._state.beat, bound))

    def note_beginning(self, registered: list[Registered] | None, rules: Rules | None) -> None:
        """The registrations and the rules of the beat that begins, where they have changed."""
        self._registry = registered or self._registry
        self._rules = rules or self._rules

    def save_with(self, operations: list[Operation]) -> None:
        """Store these operations with the next batch, instead of those given before."""
        self._operations = operations

    async def collect(self) -> None:
        """Note what retention lets go; it leaves the log with the next beat."""
        keys, beats = self._state.forget()
        self._garbage.extend(keys)
        for beat in beats:
            self._old_journals.extend(await self._keys_of_journal(beat))
        unneeded, gone = self._backlog.forget(self._state.oldest)
        self._garbage.extend(f"left/{number(beat)}" for beat in gone)
        for beat in unneeded:
            self._garbage.extend(await self._keys_of_queue(beat))

    async def _keys_of_journal(self, beat: int) -> list[str]:
        if beat in self._journal_keys:
            return self._journal_keys.pop(beat)
        return [record.key async for record in self.line.log.scan(self.line.journals, f"{number(beat)}.")]

    async def _keys_of_queue(self, beat: int) -> list[str]:
        if beat >= self._queues_known_from:
            return self._queue_keys.pop(beat, [])
        prefix = f"queue/{number(beat)}/"
        return [prefix + key async for key, _ in self.line.records(prefix)]

    def _remember_queues(self, keys: Iterable[str]) -> None:
        for key in keys:
            if key.startswith("queue/"):
                self._queue_keys.setdefault(int(key[6:22]), []).append(key)

    # --- writing ------------------------------------------------------------------------------------------------------

    async def save_beat(self, decided: Decided, operations: Sequence[Operation]) -> None:
        """Write a beat and everything that waited for it, as one batch."""
        beat, draft = self._state.beat, decided.draft
        unsaved = sum(lands == beat for lands, _ in self._signals)
        front, late, left = self._backlog.remainder(beat, draft.carried, len(draft.overflow), unsaved)
        queued = [(lands, impulse) for lands, impulse in self._signals if lands > beat]
        queued += [*((beat, impulse) for impulse in late), *decided.queued]
        bindings = [*self._bindings, *((beat + 1, each) for each in draft.changes if isinstance(each, Bind))]
        records = [
            *_queue_records(beat, queued),
            *_chunked(f"queue/{number(beat + 1)}/a", beat, front),
            *_binding_records(bindings),
        ]
        batch = self._beat_batch(decided, left)
        head = self._head(beat, decided.report.digest, left)
        await self._commit(batch, head, records, [*operations, *self._operations])
        if self._remembers_keys:
            self._journal_keys[beat] = [piece_key(beat, place) for place, _ in enumerate(_pieces(decided.journal))]
        self._backlog.store(lands for lands, _ in queued)
        self._backlog.beat_ended(beat, left)
        self._signals, self._bindings, self._registry, self._rules = [], [], None, None
        self._garbage, self._old_journals, self._operations = [], [], []

    async def save_between_beats(self) -> None:
        """Write what came from outside since the last beat."""
        state = self._state
        if not (self._signals or self._bindings or self._operations) and state.paused == self._saved_paused:
            return
        records = [*_queue_records(state.beat, self._signals), *_binding_records(self._bindings)]
        head = self._head(state.beat - 1, state.digest, self._backlog.left)
        await self._commit(self._new_batch(), head, records, self._operations)
        self._backlog.store(lands for lands, _ in self._signals)
        self._signals, self._bindings, self._operations = [], [], []

    def _head(self, beat: int, digest: str, left: LeftOver | None) -> Head:
        return Head(beat, digest, self._state.paused, self._state.oldest, *self._forked_from, self.program, left)

    def _new_batch(self) -> Batch:
        batch = Batch()
        if self._guard is not None:
            self._guard(batch)
        return batch

    def _beat_batch(self, decided: Decided, left: LeftOver | None) -> Batch:
        """Everything of a beat but its head and the records that are kept in order of arrival."""
        batch, beat = self._new_batch(), self._state.beat
        journals, name, at = self.line.journals, self.line.name, number(beat)
        for place, piece in enumerate(_pieces(decided.journal)):
            batch.put(journals, piece_key(beat, place), piece, expect=ABSENT)
        batch.put(SPACE, f"{name}/digest/{at}", decided.report.digest.encode(), expect=ABSENT)
        for sha256, text in decided.contents:
            batch.put(SPACE, f"{name}/cas/{sha256}", text.encode())
        for path, since, stored in decided.cells:
            batch.put(SPACE, f"{name}/{cell_key(path, since)}", encode_value(stored))
        if decided.references:
            batch.put(SPACE, f"{name}/refs/{at}", msgspec.json.encode(decided.references))
        if self._registry is not None:
            batch.put(SPACE, f"{name}/registry/{at}", msgspec.json.encode(self._registry))
        if self._rules is not None:
            batch.put(SPACE, f"{name}/rules/{at}", msgspec.json.encode(self._rules))
        if left is not None:
            batch.put(SPACE, f"{name}/left/{at}", msgspec.json.encode(left))
        if decided.draft.dead:
            batch.put(SPACE, f"{name}/dead/{at}", msgspec.json.encode(decided.draft.dead))
        for key in self._garbage:
            batch.delete(SPACE, f"{name}/{key}")
        for key in self._old_journals:
            batch.delete(journals, key)
        return batch

    async def _commit(
        self, batch: Batch, head: Head, records: list[tuple[str, bytes]], operations: list[Operation]
    ) -> None:
        """Add records in order of arrival, the head, and operations of others, and make all of it durable, together.

        `line_busy` when another process has written the line.
        """
        name, place = self.line.name, self._place + len(records)
        numbered = [(f"{key}{number(at)}", value) for at, (key, value) in enumerate(records, self._place)]
        for key, value in numbered:
            batch.put(SPACE, f"{name}/{key}", value, expect=ABSENT)
        value = msgspec.json.encode(msgspec.structs.replace(head, place=place))
        batch.put(SPACE, f"{name}/head", value, expect=self._head_version)
        batch.operations.extend(operations)
        try:
            receipt = await self.line.log.commit(batch)
        except Refused as error:
            raise LineBusy(
                f"line {name!r} was written by another process", remedy="open the heartbeat again; drive it once"
            ) from error
        self._head_version = receipt.versions[-1 - sum(isinstance(each, Put) for each in operations)]
        self._place, self._saved_paused = place, head.paused
        if self._remembers_keys:
            self._remember_queues(key for key, _ in numbered)


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

    def restore(self, image: LineImage) -> None:
        self.left, self._left_over = image.head.left, image.left_over
        for key, impulses in image.queued.items():
            if key[17] != "a":
                lands = int(key[:16])
                self._stored[lands] = self._stored.get(lands, 0) + len(impulses)
        self._floor = min(self._stored, default=1)

    def remainder(self, beat: int, carried: list[Impulse], overflow: int, unsaved: int) -> Remainder:
        """What to store of the signals a beat had no room for.

        Of `carried`, the last `overflow` never entered the beat; the last `unsaved` that waited are not stored.
        """
        split = len(carried) - overflow
        if not overflow:
            return carried, [], None
        late = carried[max(split, len(carried) - unsaved) :]
        first, done = self.left or (beat, 0)
        missing = overflow
        for lands in range(beat, first - 1, -1):
            stored = self._stored.get(lands, 0) + (len(late) if lands == beat else 0)
            waiting = stored - (done if lands == first else 0)
            if missing <= waiting:
                return carried[:split], late, (lands, stored - missing)
            missing -= waiting
        return carried[: split + missing], late, (first, done)

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
