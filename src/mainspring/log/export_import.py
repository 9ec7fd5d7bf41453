"""A log as lines of JSON: out of any engine, into any other, offsets and versions and all.

The first line names the format, the last one says how many lines of each kind came before it and has their checksum: a
file that was cut off or changed is noticed. In between come records, dedupe marks, and then topic by topic the events
of each partition and its tail. Records come first because they point at events (group positions, for instance): when a
node writes meanwhile, every event a record points at is still to come. For one exact moment in time, export from a
backup.

What belongs to running nodes and not to the data stays behind: who holds which lease and role, and what nodes have on
their way to each other. Whatever a node had claimed is taken over, wherever the log goes, as that of a node that died.

Payloads and values are JSON in nearly every log, so they are written as they are and stay readable; what is not JSON on
one line is written in base64 under a name of its own. Either way they come back byte for byte.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from hashlib import sha256
from typing import Annotated, Any, Final

import msgspec

from mainspring.errors import MainspringError
from mainspring.log.contract import (
    MAX_INT,
    MAX_PARTITION,
    MIN_INT,
    Bounds,
    DamagedEvent,
    DamagedRecord,
    Engine,
    FormatError,
    KeptRecord,
    KeptTail,
    Mark,
    Progress,
    Refused,
    Restorable,
    StoredEvent,
    silent,
)
from mainspring.log.unreadable import Reader, reader_of

EXPORT_FORMAT: Final = 1
PAGE: Final = 1_000
STEP_BYTES: Final = 4 << 20

# Space and beginning of the key. Nothing that stays has a version above all that moves: records that hold an epoch
# are written later, so epochs are not given again.
_OF_NODES: Final = (("leases", "node/"), ("leases", "role/"), ("nodes", ""))
_INBOXES: Final = "system.node|"

_NEW_LOG: Final = "import into a new log: a new data directory, or a new name in the engine's address"

MOST_LINE: Final = 64 << 20  # bytes; far beyond what a node takes as one event or record

CheckEvent = Callable[[StoredEvent], object]

_NOTHING: Final = msgspec.Raw()
_encode = msgspec.json.Encoder().encode


Text = Annotated[str, msgspec.Meta(min_length=1)]
Number = Annotated[int, msgspec.Meta(ge=0, le=MAX_INT)]
Positive = Annotated[int, msgspec.Meta(ge=1, le=MAX_INT)]
Partition = Annotated[int, msgspec.Meta(ge=0, le=MAX_PARTITION)]
Time = Annotated[int, msgspec.Meta(ge=MIN_INT, le=MAX_INT)]


class _Line(msgspec.Struct, tag_field="kind", forbid_unknown_fields=True):
    """Any line."""


class _LogLine(_Line, tag="log"):
    format: int
    engine: str = ""


class _RecordLine(_Line, tag="record"):
    space: Text
    key: Text
    version: Positive
    value: msgspec.Raw = _NOTHING
    value_b64: str | None = None


class _MarkLine(_Line, tag="mark"):
    topic: Text
    dedupe: str
    partition: Partition
    offset: Positive
    until: Time


class _EventLine(_Line, tag="event"):
    topic: Text
    offset: Positive
    partition: Partition = 0
    id: str = ""
    ts: Time = 0
    key: str | None = None
    headers: msgspec.Raw = _NOTHING
    headers_b64: str | None = None
    payload: msgspec.Raw = _NOTHING
    payload_b64: str | None = None


class _TailLine(_Line, tag="tail"):
    topic: Text
    partition: Partition
    tail: Number


class _EndLine(_Line, tag="end"):
    events: Number = 0
    records: Number = 0
    marks: Number = 0
    sha256: str = ""  # of all lines between the first and this one


_AnyLine = _LogLine | _RecordLine | _MarkLine | _EventLine | _TailLine | _EndLine
_decode = msgspec.json.Decoder(_AnyLine).decode


class Moved(msgspec.Struct):
    """How many of each; `damaged` names what was left out."""

    events: int = 0
    records: int = 0
    marks: int = 0
    damaged: list[str] = msgspec.field(default_factory=list)


class LogExport:
    """`async for line in LogExport(engine).lines()`: each ends with a newline. `moved` counts as it goes.

    Damage ends the export with its error, unless `skip_damaged` is set; then it is listed in `moved.damaged`. `change`
    may write a line in another way before it counts in the checksum.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        skip_damaged: bool = False,
        change: Callable[[bytes], bytes] | None = None,
        progress: Progress = silent,
    ) -> None:
        self._change = change
        self._engine = engine
        self._skip_damaged = skip_damaged
        self._progress = progress
        self.moved: Moved = Moved()

    async def lines(self) -> AsyncIterator[bytes]:
        """The whole log, line by line."""
        yield _line({"kind": "log", "format": EXPORT_FORMAT, "engine": self._engine.name})
        digest = sha256()
        async for line in self._contents():
            written = line if self._change is None else self._change(line)
            digest.update(written)
            yield written
        counts = {"events": self.moved.events, "records": self.moved.records, "marks": self.moved.marks}
        yield _line({"kind": "end"} | counts | {"sha256": digest.hexdigest()})

    async def _contents(self) -> AsyncIterator[bytes]:
        for space in await self._engine.spaces():
            async for line in self._records(space):
                yield line
        async for mark in self._engine.marks():
            self.moved.marks += 1
            yield _line({"kind": "mark"} | msgspec.structs.asdict(mark))
        names = [topic for topic in await self._engine.topics() if not topic.startswith(_INBOXES)]
        topics = [(topic, await self._engine.bounds(topic)) for topic in names]
        total = sum(bounds.events for _, all_bounds in topics for bounds in all_bounds)
        for topic, all_bounds in topics:
            for bounds in all_bounds:
                async for line in self._partition(topic, bounds, total):
                    yield line

    async def _records(self, space: str) -> AsyncIterator[bytes]:
        after = ""
        while True:
            try:
                async for record in self._engine.scan(space, after=after):
                    after = record.key
                    if any(space == each and record.key.startswith(begin) for each, begin in _OF_NODES):
                        continue
                    self.moved.records += 1
                    self._progress("records", self.moved.records, 0)
                    fields = {"kind": "record", "space": space, "key": record.key, "version": record.version}
                    yield _line(fields | _bytes_field("value", record.value))
                return
            except DamagedRecord as damage:
                self._damaged(damage)
                after = damage.key

    async def _partition(self, topic: str, bounds: Bounds, total: int) -> AsyncIterator[bytes]:
        """`bounds` from before the reading: a tail taken afterwards could count events that were not read."""
        partition, start = bounds.partition, bounds.head
        while True:
            try:
                page = await self._engine.read(topic, partition, start, PAGE)
            except DamagedEvent as damage:
                self._damaged(damage)
                start = damage.offset + 1
                continue
            if not page:
                break
            for event in page:
                yield _event_line(event)
            start = page[-1].offset + 1
            self.moved.events += len(page)
            self._progress("events", self.moved.events, total)
        tail = max(bounds.tail, start - 1)
        yield _line({"kind": "tail", "topic": topic, "partition": partition, "tail": tail})

    def _damaged(self, damage: MainspringError) -> None:
        if not self._skip_damaged:
            raise damage
        self.moved.damaged.append(damage.message)


async def import_lines(
    lines: Iterable[bytes],
    engine: Engine,
    progress: Progress = silent,
    *,
    readers: Mapping[str, Reader] | None = None,
    check_event: CheckEvent = lambda _: None,
) -> Moved:
    """Store an export in an engine that holds nothing. Raises `FormatError`, naming the line, if it is not an export.

    `readers` and `check_event` say what a node could not read: that is refused, too. When it raises, the engine may
    hold a part of the export: throw that engine away, or call `check_lines` first.
    """
    if await engine.topics() or await engine.spaces():
        raise Refused("the log to import into is not empty", remedy=_NEW_LOG)
    check = _ImportCheck(readers or {}, check_event)
    waiting: list[Restorable] = []
    size = 0
    for text in lines:
        found = check.take(text)
        if found is not None:
            waiting.append(found)
            size += len(text)
        if len(waiting) >= PAGE or size > STEP_BYTES:
            await engine.restore(waiting)
            waiting, size = [], 0
            progress("lines", check.number, 0)
    check.finish()
    await engine.restore(waiting)
    return check.moved


def check_lines(
    lines: Iterable[bytes],
    progress: Progress = silent,
    *,
    readers: Mapping[str, Reader] | None = None,
    check_event: CheckEvent = lambda _: None,
) -> None:
    """Raise what `import_lines` would raise, without storing anything."""
    check = _ImportCheck(readers or {}, check_event)
    for text in lines:
        check.take(text)
        if check.number % PAGE == 0:
            progress("checked", check.number, 0)
    check.finish()


class _ImportCheck:
    """Takes line after line, and raises `FormatError` at the first that is wrong."""

    def __init__(self, readers: Mapping[str, Reader], check_event: CheckEvent) -> None:
        self.moved = Moved()
        self.number = 0
        self._readers = readers
        self._check_event = check_event
        self._digest = sha256()
        self._end: _EndLine | None = None
        self._last_record = ("", "")
        self._spaces: set[str] = set()
        self._tails: dict[tuple[str, int], int] = {}  # the last offset of each partition so far

    def take(self, text: bytes) -> Restorable | None:
        """What the next line brings, if it brings something."""
        self.number += 1
        line = self._parsed(text)
        if isinstance(line, _LogLine) != (self.number == 1) or self._end is not None:
            raise self._wrong("the first line must be the only one of kind log, the last one of kind end")
        if isinstance(line, _LogLine):
            if line.format != EXPORT_FORMAT:
                raise self._wrong(f"format {line.format} is unknown")
            return None
        if isinstance(line, _EndLine):
            self._end = line
            return None
        self._digest.update(text if text.endswith(b"\n") else text + b"\n")
        try:
            return self._restorable(line)
        except UnicodeEncodeError:
            raise self._wrong("a text holds a lone surrogate") from None

    def finish(self) -> None:
        """There are no more lines."""
        end, moved = self._end, self.moved
        if end is None:
            raise self._wrong("it is cut off: there is no end line")
        if (end.events, end.records, end.marks) != (moved.events, moved.records, moved.marks):
            raise self._wrong("lines are missing: the counts of the end line do not fit")
        if end.sha256 and end.sha256 != self._digest.hexdigest():
            raise self._wrong("lines were changed: the checksum of the end line does not fit")

    def _parsed(self, text: bytes) -> _AnyLine:
        if len(text) > MOST_LINE:
            raise self._wrong(f"it has more than {MOST_LINE} bytes")
        try:
            line: _AnyLine = _decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise self._wrong(str(error)) from None
        return line

    def _restorable(self, line: _RecordLine | _MarkLine | _EventLine | _TailLine) -> Restorable:
        if isinstance(line, _EventLine):
            return self._event(line)
        if isinstance(line, _RecordLine):
            return self._record(line)
        line.topic.encode()
        if isinstance(line, _TailLine):
            if line.tail < self._tails.get((line.topic, line.partition), 0):
                raise self._wrong("there are events behind this tail")
            self._tails[line.topic, line.partition] = line.tail
            return KeptTail(line.topic, line.partition, line.tail)
        line.dedupe.encode()
        self.moved.marks += 1
        return Mark(line.topic, line.dedupe, line.partition, line.offset, line.until)

    def _event(self, line: _EventLine) -> StoredEvent:
        payload = self._bytes_of(line, "payload")
        if payload is None:
            raise self._wrong("an event needs a payload")
        if line.offset <= self._tails.get((line.topic, line.partition), 0):
            raise self._wrong(f"offset {line.offset} does not come after the one before it")
        for text in (line.topic, line.id, line.key or ""):
            text.encode()
        headers = self._bytes_of(line, "headers")
        event = StoredEvent(line.topic, line.partition, line.offset, line.id, line.ts, payload, line.key, headers)
        self._check(lambda: self._check_event(event))
        self._tails[line.topic, line.partition] = line.offset
        self.moved.events += 1
        return event

    def _record(self, line: _RecordLine) -> KeptRecord:
        value = self._bytes_of(line, "value")
        if value is None:
            raise self._wrong("a record needs a value")
        (line.space + line.key).encode()
        space, key = self._last_record
        if line.space != space and line.space in self._spaces:
            raise self._wrong(f"the records of {line.space!r} do not stand together")
        if line.space == space and line.key <= key:
            raise self._wrong(f"the key {line.key!r} is there twice, or not in order")
        reader = reader_of(line.space, self._readers)
        if reader is not None:
            self._check(lambda: reader(line.key, value))
        self._spaces.add(line.space)
        self._last_record = (line.space, line.key)
        self.moved.records += 1
        return KeptRecord(line.space, line.key, value, line.version)

    def _check(self, read: Callable[[], object]) -> None:
        try:
            read()
        except Exception as error:  # whatever a part of the node finds wrong with it
            why = error.message if isinstance(error, MainspringError) else f"{type(error).__name__}: {error}"
            raise self._wrong(f"no node could read it: {why[:200]}") from None

    def _bytes_of(self, line: _EventLine | _RecordLine, name: str) -> bytes | None:
        raw, coded = bytes(getattr(line, name)), getattr(line, f"{name}_b64")
        if raw and coded is not None:
            raise self._wrong(f"it has both {name} and {name}_b64")
        if raw or coded is None:
            return raw or None
        try:
            return base64.b64decode(coded, validate=True)
        except ValueError:
            raise self._wrong(f"{name}_b64 is not base64") from None

    def _wrong(self, why: str) -> FormatError:
        return FormatError(f"line {self.number} of the export does not fit: {why}", remedy=f"export again; {_NEW_LOG}")


def _line(fields: dict[str, Any]) -> bytes:
    return _encode(fields) + b"\n"


def _event_line(event: StoredEvent) -> bytes:
    names = ("topic", "partition", "offset", "id", "ts")
    fields: dict[str, Any] = {"kind": "event"} | {name: getattr(event, name) for name in names}
    if event.key is not None:
        fields["key"] = event.key
    if event.headers is not None:
        fields |= _bytes_field("headers", event.headers)
    return _line(fields | _bytes_field("payload", event.payload))


def _bytes_field(name: str, value: bytes) -> dict[str, Any]:
    """As JSON where the exact bytes can stand inside a line, else in base64."""
    if value and not value[:1].isspace() and not value[-1:].isspace() and b"\n" not in value and b"\r" not in value:
        try:
            msgspec.json.decode(value)
            value.decode()
            return {name: msgspec.Raw(value)}
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass
    return {f"{name}_b64": base64.b64encode(value).decode()}
