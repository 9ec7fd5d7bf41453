"""A log as lines of JSON: out of any engine, into any other, offsets and versions and all.

The first line names the format, the last one says how many lines of each kind came before it: a file that was cut off
is noticed. In between come records, dedupe marks, and then topic by topic the events of each partition and its tail.
Records come first because they point at events (group positions, for instance): when a node writes meanwhile, every
event a record points at is still to come. For one exact moment in time, export from a backup.

What belongs to running nodes and not to the data stays behind: who holds which lease and role, and what nodes have on
their way to each other. Whatever a node had claimed is taken over, wherever the log goes, as that of a node that died.

Payloads and values are JSON in nearly every log, so they are written as they are and stay readable; what is not JSON on
one line is written in base64 under a name of its own. Either way they come back byte for byte.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Iterable
from typing import Any, Final

import msgspec

from mainspring.errors import MainspringError
from mainspring.log.contract import (
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

EXPORT_FORMAT: Final = 1
PAGE: Final = 1_000
STEP_BYTES: Final = 4 << 20

# Space and beginning of the key. Nothing that stays has a version above all that moves: records that hold an epoch
# are written later, so epochs are not given again.
_OF_NODES: Final = (("leases", "node/"), ("leases", "role/"), ("nodes", ""))
_INBOXES: Final = "system.node|"

_NEW_LOG: Final = "import into a new log: a new data directory, or a new name in the engine's address"

_NOTHING: Final = msgspec.Raw()
_encode = msgspec.json.Encoder().encode


class _Line(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """Any line. `kind` decides which fields it has."""

    kind: str
    format: int = 0
    engine: str = ""
    topic: str = ""
    partition: int = 0
    offset: int = 0
    tail: int = 0
    id: str = ""
    ts: int = 0
    key: str | None = None
    headers: msgspec.Raw = _NOTHING
    headers_b64: str | None = None
    payload: msgspec.Raw = _NOTHING
    payload_b64: str | None = None
    space: str = ""
    version: int = 0
    value: msgspec.Raw = _NOTHING
    value_b64: str | None = None
    dedupe: str = ""
    until: int = 0
    events: int = 0
    records: int = 0
    marks: int = 0


class Moved(msgspec.Struct):
    """How many of each; `damaged` names what was left out."""

    events: int = 0
    records: int = 0
    marks: int = 0
    damaged: list[str] = msgspec.field(default_factory=list)


class LogExport:
    """`async for line in LogExport(engine).lines()`: each ends with a newline. `moved` counts as it goes.

    Damage ends the export with its error, unless `skip_damaged` is set; then it is listed in `moved.damaged`.
    """

    def __init__(self, engine: Engine, *, skip_damaged: bool = False, progress: Progress = silent) -> None:
        self._engine = engine
        self._skip_damaged = skip_damaged
        self._progress = progress
        self.moved: Moved = Moved()

    async def lines(self) -> AsyncIterator[bytes]:
        """The whole log, line by line."""
        yield _line({"kind": "log", "format": EXPORT_FORMAT, "engine": self._engine.name})
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
        counts = {"events": self.moved.events, "records": self.moved.records, "marks": self.moved.marks}
        yield _line({"kind": "end"} | counts)

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


async def import_lines(lines: Iterable[bytes], engine: Engine, progress: Progress = silent) -> Moved:
    """Store an export in an engine that holds nothing. Raises `FormatError`, naming the line, if it is not an export.

    When it raises, the engine may hold a part of the export: throw that engine away.
    """
    if await engine.topics() or await engine.spaces():
        raise Refused("the log to import into is not empty", remedy=_NEW_LOG)
    moved = Moved()
    waiting: list[Restorable] = []
    size = 0
    end: _Line | None = None
    number = 0
    for number, text in enumerate(lines, 1):
        line = _parsed(text, number)
        if (line.kind == "log") != (number == 1) or end is not None:
            raise _no_export(number, "the first line must be the only one of kind log, the last one of kind end")
        if line.kind == "log" and line.format != EXPORT_FORMAT:
            raise _no_export(number, f"format {line.format} is unknown")
        if line.kind == "end":
            end = line
        elif line.kind != "log":
            waiting.append(_restorable(line, number, moved))
            size += len(text)
        if len(waiting) >= PAGE or size > STEP_BYTES:
            await engine.restore(waiting)
            waiting, size = [], 0
            progress("lines", number, 0)
    if end is None:
        raise _no_export(number, "it is cut off: there is no end line")
    if (end.events, end.records, end.marks) != (moved.events, moved.records, moved.marks):
        raise _no_export(number, "lines are missing: the counts of the end line do not fit")
    await engine.restore(waiting)
    return moved


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


def _bytes_of(line: _Line, name: str, number: int) -> bytes | None:
    raw = bytes(getattr(line, name))
    if raw:
        return raw
    coded = getattr(line, f"{name}_b64")
    if coded is None:
        return None
    try:
        return base64.b64decode(coded, validate=True)
    except ValueError as error:
        raise _no_export(number, f"{name}_b64 is not base64") from error


def _parsed(text: bytes, number: int) -> _Line:
    try:
        return msgspec.json.decode(text, type=_Line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _no_export(number, str(error)) from error


def _restorable(line: _Line, number: int, moved: Moved) -> Restorable:
    if line.kind == "event":
        payload = _bytes_of(line, "payload", number)
        if payload is None or line.offset < 1:
            raise _no_export(number, "an event needs a payload and an offset")
        moved.events += 1
        headers = _bytes_of(line, "headers", number)
        return StoredEvent(line.topic, line.partition, line.offset, line.id, line.ts, payload, line.key, headers)
    if line.kind == "tail":
        return KeptTail(line.topic, line.partition, line.tail)
    if line.kind == "record":
        value = _bytes_of(line, "value", number)
        if value is None or line.key is None:
            raise _no_export(number, "a record needs a key and a value")
        moved.records += 1
        return KeptRecord(line.space, line.key, value, line.version)
    if line.kind == "mark":
        moved.marks += 1
        return Mark(line.topic, line.dedupe, line.partition, line.offset, line.until)
    raise _no_export(number, f"the kind {line.kind!r} is unknown")


def _no_export(number: int, why: str) -> FormatError:
    return FormatError(f"line {number} of the export does not fit: {why}", remedy=f"export again; {_NEW_LOG}")
