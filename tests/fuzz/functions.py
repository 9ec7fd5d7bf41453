"""What is called in this process. Whatever the input is, it is taken or refused with an error of ours."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import Callable
from typing import Final

from mainspring.bus.access.patterns import Pattern
from mainspring.bus.protocol import Rejected, decode
from mainspring.bus.results import DeadLetterFilter
from mainspring.bus.schedules.cron import CronLine
from mainspring.bus.schemas.compatibility import differences
from mainspring.bus.schemas.validator import SchemaValidator
from mainspring.errors import MainspringError
from mainspring.json_text import check_json
from mainspring.log import MemoryEngine, import_lines
from mainspring.server.http.call import decode_body
from mainspring.server.http.operations.events import parse_cursor
from tests.fuzz import inputs

_EXPORT: Final = [
    {"kind": "log", "format": 1, "engine": "memory"},
    {"kind": "record", "space": "topics", "key": "t", "version": 1, "value": {"topic": "t", "partitions": 2}},
    {"kind": "mark", "topic": "t", "dedupe": "i", "partition": 0, "offset": 1, "until": 5},
    {"kind": "event", "topic": "t", "partition": 0, "offset": 1, "id": "i", "ts": 1, "payload": {"n": 1}, "key": "k"},
    {"kind": "event", "topic": "t", "partition": 1, "offset": 1, "id": "j", "ts": 2, "payload_b64": "bnVsbA=="},
    {"kind": "tail", "topic": "t", "partition": 0, "tail": 1},
    {"kind": "end", "events": 2, "records": 1, "marks": 1},
]


def _text(chance: random.Random) -> bytes:
    return inputs.text_of(chance, [inputs.schema(chance), inputs.schema(chance), inputs.value(chance)])


def schemas(given: bytes) -> None:
    """Compile both, compare both ways, and ask whether the value fits."""
    try:
        writer, reader, value = json.loads(given)
    except (ValueError, TypeError, RecursionError):  # the text was changed beyond recognition
        return
    usable = []
    for schema in (writer, reader):
        if isinstance(schema, (dict, bool)):
            try:
                usable.append((schema, SchemaValidator(schema)))
            except MainspringError:
                continue
    payload = json.dumps(value).encode()
    for schema, validator in usable:
        with contextlib.suppress(MainspringError):
            check_json(payload)  # nothing is asked of a schema before
            validator.fault(payload)
        for other, _ in usable:
            differences(schema, other)


def cron(given: bytes) -> None:
    """Read a line, and find its next time."""
    line = CronLine(given.decode("utf-8", "replace"))
    at = line.next_after(len(given) * 1_000_000_007)
    assert line.next_after(at) > at


def _filter(chance: random.Random) -> bytes:
    kind = chance.randrange(3)
    if kind == 0:
        members = {"offsets": [1, 2], "group": "g", "key": "k", "reason": "x", "before": 5, "limit": 3}
        return b"d" + inputs.text_of(chance, inputs.changed(chance, members))
    if kind == 1:
        frame = {
            "type": "SUBSCRIBE",
            "topic": "t",
            "group": "g",
            "filter": inputs.changed(chance, {"key": "k", "header": ["a", "b"]}),
        }
        return b"s" + inputs.text_of(chance, frame)
    segments = [
        chance.choice(("*", "**", "a", "b", "", "a*", *inputs.TEXTS[:8])) for _ in range(chance.randrange(1, 12))
    ]
    return b"p" + ".".join(segments).encode("utf-8", "surrogatepass")


def filters(given: bytes) -> None:
    """Filters of dead letters and of subscriptions, patterns of names, cursors."""
    kind, text = given[:1], given[1:]
    if kind == b"d":
        decode_body(DeadLetterFilter, text)
    elif kind == b"s":
        decode(text)
    else:
        name = text.decode("utf-8", "surrogatepass")
        with contextlib.suppress(MainspringError):
            parse_cursor(name)
        Pattern(name).matches("a.b." * 60 + "a")


def _export(chance: random.Random) -> bytes:
    lines = [inputs.changed(chance, line) if chance.random() < 0.2 else line for line in _EXPORT]
    if chance.random() < 0.1:
        chance.shuffle(lines)
    return b"\n".join(
        inputs.text_of(chance, line) if chance.random() < 0.2 else json.dumps(line).encode() for line in lines
    )


def imports(given: bytes) -> None:
    """Store an export in an empty log."""
    asyncio.run(import_lines(given.split(b"\n"), MemoryEngine()))


def call(function: Callable[[bytes], None], given: bytes) -> None:
    """Raises what is not a refusal."""
    with contextlib.suppress(MainspringError, Rejected):
        function(given)


FUNCTIONS: Final[dict[str, tuple[inputs.Make, Callable[[bytes], None]]]] = {
    "schemas": (_text, schemas),
    "cron": (lambda chance: inputs.cron(chance).encode("utf-8", "surrogatepass"), cron),
    "filters": (_filter, filters),
    "imports": (_export, imports),
}
