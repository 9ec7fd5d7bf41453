"""What is sent. Input `number` of a face depends on nothing but the seed, the face and the number."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

Make = Callable[[random.Random], bytes]

TEXTS: Sequence[str] = (
    *("", "0", "-1", "1.5", "t", "orders", "a/b", "..", "a.b", "a.*", "**", "t.DLQ", "system.bus.audit", "app/x"),
    *("\x00", "\x1b[2J", "é", "東京", "😀", "\ud83d", "x" * 255, "x" * 256, "y" * 5_000, "null", "NaN", "1e999"),
    *("latest", "2026-01-31T12:00:00Z", "%00", "%", "'; drop", "\r\nX: 1", "__proto__", "#/$defs/a", "* * * * *"),
)
NUMBERS: Sequence[Any] = (0, 1, -1, 2, 10, 1.5, -0.0, 1e308, 2**31, 2**32, 2**53, 2**53 + 1, 2**63, 2**64, 10**400)
NOISE: Sequence[bytes] = (
    *(b"", b"{", b"[", b'"', b"null", b"{}", b"[]", b"[" * 200, b"[" * 200 + b"]" * 200, b'{"a":' * 150, b"\xff\xfe"),
    *(
        b'{"a":1,"a":2}',
        b"1e400",
        b"-",
        b'"\\ud800"',
        b'"\\u0000"',
        b"\x00" * 30,
        b"9" * 400,
        b"NaN",
        b"\xef\xbb\xbf{}",
    ),
)


def value(chance: random.Random, depth: int = 0) -> Any:
    """Any JSON value, seldom a large one."""
    kind = chance.random()
    if kind < 0.35:
        return chance.choice(TEXTS)
    if kind < 0.65:
        return chance.choice(NUMBERS)
    if kind < 0.75 or depth > 3:
        return chance.choice((None, True, False))
    if kind < 0.87:
        return [value(chance, depth + 1) for _ in range(chance.randrange(4))]
    return {chance.choice(TEXTS): value(chance, depth + 1) for _ in range(chance.randrange(4))}


def changed(chance: random.Random, members: dict[str, Any]) -> dict[str, Any]:
    """The members with some left out, some of other values, and perhaps one that nobody knows."""
    kept = {name: given for name, given in members.items() if chance.random() > 0.08}
    for name in kept:
        if chance.random() < 0.15:
            kept[name] = value(chance)
    if chance.random() < 0.1:
        kept[chance.choice(TEXTS)] = value(chance)
    return kept


def text_of(chance: random.Random, given: Any) -> bytes:
    """JSON text, sometimes with bytes changed, cut or doubled."""
    text = json.dumps(given, ensure_ascii=chance.random() < 0.5).encode("utf-8", "surrogatepass")
    if chance.random() < 0.2:
        text = damaged(chance, text)
    return text


def damaged(chance: random.Random, text: bytes) -> bytes:
    """The text with a few accidents."""
    found = bytearray(text)
    for _ in range(chance.randrange(1, 4)):
        at = chance.randrange(len(found) + 1)
        kind = chance.randrange(5)
        if kind == 0:
            del found[at : at + chance.randrange(1, 8)]
        elif kind == 1:
            found[at:at] = chance.choice(NOISE)
        elif kind == 2 and at < len(found):
            found[at] = chance.randrange(256)
        elif kind == 3:
            found[at:at] = found[at : at + 40]
        else:
            del found[at:]
    return bytes(found)


# -- frames of the WebSocket

_FRAMES: Sequence[dict[str, Any]] = (
    {"type": "PUBLISH", "topic": "t", "payload": {"n": 1}, "key": "k", "headers": {"h": "v"}, "id": "i", "ttl_ms": 5},
    {"type": "PUBLISH", "topic": "late", "payload": 1, "delay_ms": 1, "not_before": 1, "corr": 7},
    {"type": "PUBLISH", "topic": "t", "payload": [1], "expect": 0, "payload_sha256": "00", "corr": {"a": 1}},
    {"type": "PUBLISH_BATCH", "topic": "t", "events": [{"payload": 1}, {"payload": 2, "key": "k"}], "corr": 1},
    {"type": "PUBLISH_BATCH", "batch_id": "b", "topic": "t", "events": [{"payload": 1, "id": "i"}], "corr": 1},
    {"type": "SUBSCRIBE", "topic": "t", "group": "g", "from": {"kind": "latest"}, "filter": {"key": "k"}, "batch": 9},
    {"type": "SUBSCRIBE", "topic": "t", "group": "g2", "max_inflight": 5, "ack": "each", "sticky": True,
     "from": {"kind": "timestamp", "value": 5}, "filter": {"header": ["h", "v"]}},
    {"type": "UNSUBSCRIBE", "topic": "t", "group": "g"},
    {"type": "ACK", "topic": "t", "group": "g", "partition": 0, "offset": 1},
    {"type": "NACK", "topic": "t", "group": "g", "partition": 0, "offset": 1, "reason": "no", "delay_ms": 1},
    {"type": "EXTEND", "topic": "t", "group": "g2", "partition": 0, "offset": 1, "ms": 1000},
    {"type": "FLOW", "credits": 10},
    {"type": "SCHEDULE", "name": "s", "topic": "t", "payload": 1, "every": 3_600_000, "jitter": 5, "overlap": "skip"},
    {"type": "SCHEDULE", "name": "c", "topic": "t", "payload": 1, "cron": "0 3 * * *", "timezone": "Europe/Berlin"},
    {"type": "UNSCHEDULE", "name": "s"},
)  # fmt: skip


def frame(chance: random.Random) -> bytes:
    if chance.random() < 0.05:
        return chance.choice(NOISE)
    return text_of(chance, changed(chance, chance.choice(_FRAMES)))


# -- lines of the NDJSON socket


def line(chance: random.Random) -> bytes:
    """Never with a line feed inside: what follows one is another line."""
    if chance.random() < 0.05:
        return chance.choice(NOISE).replace(b"\n", b" ")
    kind, type, data = chance.choice(_MESSAGES)
    metadata = changed(chance, {"id": f"f{chance.randrange(1 << 40)}", "timestamp": 1, "timeout": 500})
    message = changed(chance, {"kind": kind, "type": type, "data": changed(chance, data), "metadata": metadata})
    return text_of(chance, message).replace(b"\n", b" ")


_MESSAGES: Sequence[tuple[str, str, dict[str, Any]]] = (
    ("query", "Syscall.Introspect", {}),
    ("query", "Memory.Get", {"path": "/a"}),
    ("command", "Memory.Set", {"path": "/a/b", "value": {"n": 1}}),
    ("query", "Memory.List", {"prefix": "/"}),
    ("command", "Timer.Schedule", {"delay": 3_600_000, "message": {"kind": "event", "type": "A.B", "data": {}}}),
    ("command", "Timer.Cancel", {"timerId": "x"}),
    ("query", "Timer.List", {"offset": 0}),
    ("command", "Bus.Publish", {"topic": "t", "payload": 1, "key": "k"}),
    ("query", "Bus.Schedules", {"after": ""}),
    ("command", "Bus.Schedule", {"name": "n", "topic": "t", "payload": 1, "every": 3_600_000}),
    ("query", "Run.List", {}),
    ("query", "Beat.Read", {"path": "/"}),
    ("event", "Some.Thing", {"n": 1}),
    ("command", "Nobody.Knows", {}),
)


# -- frames of the loop socket


def zcl1(chance: random.Random) -> bytes:
    """A request of `sys/loop@v1`, more or less. POLL does not wait: an answer must come at once."""
    op = chance.choice((1, 2, 3, 4, 5, 5, 1000, 0, 6, 65535))
    sizes = {1: 20, 2: 8, 3: 28, 4: 8, 5: 8, 1000: 4}
    payload = chance.randbytes(sizes.get(op, chance.randrange(40)))
    if op == 5:
        payload = chance.randrange(3000).to_bytes(4, "little") + bytes(4)
    elif chance.random() < 0.1:
        payload = chance.randbytes(chance.randrange(64))
    reserved = chance.randrange(1 << 32) if chance.random() < 0.05 else 0
    return (
        b"ZCL1" + (1).to_bytes(2, "little") + op.to_bytes(2, "little") + chance.randbytes(4) + bytes(4)
        + reserved.to_bytes(4, "little") + len(payload).to_bytes(4, "little") + payload
    )  # fmt: skip


# -- schemas, cron lines, filters, exports

_TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")


def schema(chance: random.Random, depth: int = 0) -> Any:
    """A JSON Schema, or nearly one; with references among its definitions, also circular ones."""
    if depth > 4 or chance.random() < 0.1:
        return chance.choice((True, False, {}, {"$ref": f"#/$defs/d{chance.randrange(4)}"}, {"$ref": "#"}))
    kind = chance.randrange(9)
    below = lambda: schema(chance, depth + 1)  # noqa: E731
    few = range(chance.randrange(4))
    found: dict[str, Any]
    if kind < 2:
        found = {"type": chance.choice(_TYPES)}
    elif kind == 2:
        found = {"type": "object", "properties": {chance.choice("abc"): below() for _ in few}, "required": ["a"]}
    elif kind == 3:
        found = {"type": "array", "items": below(), "minItems": chance.randrange(3)}
    elif kind == 4:
        found = {chance.choice(("anyOf", "oneOf", "allOf")): [below() for _ in range(1 + len(few))]}
    elif kind == 5:
        found = {"enum": [value(chance) for _ in range(1 + len(few))]}
    elif kind == 6:
        found = {"type": "string", "pattern": chance.choice(("^a", "(a|b)+$", "[", "(a{1,9}){1,9}", r"\d{3}"))}
    elif kind == 7:
        found = {"$ref": f"#/$defs/d{chance.randrange(4)}", chance.choice(("title", "type", "not")): value(chance)}
    else:
        found = {chance.choice(("minimum", "multipleOf", "additionalProperties", "if", "const")): value(chance)}
    if depth == 0:
        found["$defs"] = {f"d{number}": below() for number in range(4)}
    return found


def cron(chance: random.Random) -> str:
    parts = (
        "*",
        "0",
        "5",
        "*/5",
        "1-5",
        "1,2,3",
        "mon",
        "jan-mar",
        "31",
        "2",
        "*/0",
        "60",
        "7",
        "1-5/2",
        "",
        "-",
        "9-1",
    )
    line = " ".join(chance.choice(parts) for _ in range(5 if chance.random() < 0.9 else chance.randrange(8)))
    return line if chance.random() < 0.9 else line + chance.choice(TEXTS)
