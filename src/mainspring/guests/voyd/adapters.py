"""Handlers for what a guest's standard library asks of its host: time, random numbers, log lines.

They are registered when a module is loaded, as the protocol's own host does it; `guest.handle` and `handle_named`
replace them. An operation that none of them knows (files, network, environment) has no handler: the run that performs
it fails, and its host decides what it may do.

Time is the runtime's, so virtual time works, and so are random numbers. A durable run keeps the answers like those of
every effect, and a sleep goes on where it was. The answers are fitted to the schema of the operation, because versions
of the standard library differ in it: `{ok: true}` with or without a code and a message.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Mapping
from typing import Any, Final

from mainspring.guests.voyd.module import GuestOperation
from mainspring.guests.voyd.schema import Schema
from mainspring.runs import resume, tail

logger: logging.Logger = logging.getLogger("mainspring.guest")

_MOST_RANDOM_BYTES: Final = 1_000_000
_LEVELS: Final = {"trace": logging.DEBUG, "debug": logging.DEBUG, "warn": logging.WARNING, "error": logging.ERROR}
_WORTH_KEEPING_MS: Final = 1_000  # shorter sleeps begin again when a durable run is executed again
_EMPTY: Final = {"bool": False, "i32": 0, "i64": 0, "f32": 0.0, "f64": 0.0, "string": "", "bytes": b"", "array": []}

Handler = Callable[[Any, Any], Any]


def default_handler(
    operation: GuestOperation, result: Schema | None, source: random.Random, most_bytes: int
) -> Handler | None:
    """The handler of an operation of the standard library; None for one that its host has to handle.

    `source` gives random numbers; `most_bytes` fit one message to the guest.
    """
    answer = tail if operation.kind == "tail" else resume

    def give(value: Any) -> Any:
        return answer(fitted(result, value))

    match operation.effect, operation.label.rpartition("::")[2]:
        case ("voyd.std.time", "monotonic_now_millis"):
            return lambda _, ctx: give(ctx.now_ms())
        case ("voyd.std.time", "system_now_millis"):
            return lambda _, ctx: give(ctx.wall_ms())
        case ("voyd.std.time", "sleep_millis"):
            return lambda asked, ctx: _sleep(max(0, int(asked.args[0])), ctx, lambda: give({"ok": True}))
        case ("voyd.std.random", "next_i64"):
            return lambda _, ctx: give(source.getrandbits(64) - (1 << 63))
        case ("voyd.std.random", "fill_bytes"):
            # A number of a list takes up to two bytes.
            most = min(_MOST_RANDOM_BYTES, max(0, most_bytes // 2 - 256))
            return lambda asked, ctx: give(source.randbytes(min(most, max(0, int(asked.args[0])))))
        case ("voyd.std.log", "emit"):
            return lambda asked, ctx: _log(asked.args, ctx, give)
    return None


def fitted(schema: Schema | None, value: Any) -> Any:
    """The value as the operation's result wants it: nothing, bytes or numbers, a record with the fields it has."""
    if schema is not None and schema.kind == "void":
        return None
    if isinstance(value, bytes) and (schema is None or schema.kind != "bytes"):
        return list(value)
    if schema is None or schema.kind != "record" or not isinstance(value, Mapping):
        return value
    fields = {name: _EMPTY.get(kind.kind) for name, is_optional, kind in schema.fields if not is_optional}
    return fields | {name: value[name] for name, _, _ in schema.fields if name in value}


def _sleep(ms: int, ctx: Any, answer: Callable[[], Any]) -> Any:
    until = ctx.recall()
    if until is not None:
        ms = min(ms, max(0, int(until) - ctx.wall_ms()))
    elif ms >= _WORTH_KEEPING_MS:
        ctx.remember(ctx.wall_ms() + ms)
    later = ctx.later()
    ctx.after(ms, lambda: later.answer(answer()))
    return later


def _log(args: list[Any], ctx: Any, give: Callable[[Any], Any]) -> Any:
    """One line of the log: `{level, message, fields: [{key, value}]}`."""
    payload = args[0] if args and isinstance(args[0], Mapping) else {}
    fields = payload.get("fields")
    shown = [f"{each.get('key')}={each.get('value')!r}" for each in fields or () if isinstance(each, Mapping)]
    level = _LEVELS.get(str(payload.get("level")), logging.INFO)
    logger.log(level, "%s", " ".join([str(payload.get("message", "")), *shown]), extra={"run": ctx.run_id})
    return give(None)
