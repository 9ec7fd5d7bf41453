"""`mainspring pub`: publish one event, the same one many times, or every line of standard input.

    mainspring pub orders '{"sku": 1}' --key c-17
    mainspring pub orders @order.json
    generate | mainspring pub orders -

Lines are published as they arrive: what a read gave leaves as one batch, so a slow pipe is not held back and a fast one
is not slowed down. Each event has an id, so a batch whose answer was lost is sent again without being stored twice.
When the node refuses a batch, its lines are sent one by one: everything before the bad line is stored, nothing behind.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from threading import Event
from typing import Annotated, Any, Final

import msgspec
import typer
import uuid_utils

from mainspring.cli.support.moments import duration_option
from mainspring.cli.support.node_options import NodeOptions, TopicArgument
from mainspring.cli.support.output import CommandFailed, note, progress, safe, say_done
from mainspring.client import NDJSON, CannotConnect, NodeConnection, NodeRefused, path
from mainspring.errors import MainspringError
from mainspring.json_text import JsonRefused, check_json

Line = tuple[int, bytes]  # of the input: its number, and the event to publish
_READ_BYTES: Final = 1 << 20
_BATCH_EVENTS: Final = 5_000  # half of what the node takes
_BATCH_BYTES: Final = 4 << 20
_WAITS_S: Final = (0.5, 1, 2, 4)  # before a batch whose answer was lost is sent again


def pub(
    topic: TopicArgument,
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA|-|@FILE", help="JSON; @FILE: a file with JSON; -: a JSON value per line of standard input."
        ),
    ] = "-",
    key: Annotated[str | None, typer.Option("--key", "-k", help="Events of one key stay in order.")] = None,
    header: Annotated[list[str] | None, typer.Option("--header", "-H", help="NAME=VALUE; may be repeated.")] = None,
    delay: Annotated[str | None, typer.Option(help="Deliver so much later, like 10s or 5m.")] = None,
    ttl: Annotated[str | None, typer.Option(help="Deliver to nobody after so long, like 10s or 5m.")] = None,
    id: Annotated[str | None, typer.Option(help="Makes a repetition harmless: an id is stored once.")] = None,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="Publish it so many times.")] = 1,
    text: Annotated[bool, typer.Option("--text", help="DATA is plain text, not JSON.")] = False,
    envelopes: Annotated[
        bool, typer.Option("--envelopes", help="Lines are whole events, as `tail --json` writes them.")
    ] = False,
    *,
    at: NodeOptions,
) -> None:
    """Publish events: DATA, a file, or every line of standard input.

    Ends when everything is on stable storage. Each event gets an id, so a repetition after a lost answer stores nothing
    twice.

    Examples: `pub orders '{"sku": 1}' -k c-17`, `pub orders @order.json`, `pub orders < orders.ndjson`.
    """
    extras = _extras(key, header, delay, ttl)
    with at.connect() as connection:
        if data == "-":
            if count != 1 or id is not None:
                raise typer.BadParameter("--count and --id are for one event, not for lines of standard input")
            if sys.stdin.isatty():
                note("one JSON value per line; Ctrl-D ends")
            read = partial(_read_envelope, extras) if envelopes else partial(_read_value, extras, text)
            arrived = ((read(number, line) for number, line in lines) for lines in _input_lines())
            batches = (batch for lines in arrived for batch in _batches(lines))
            _publish_all(connection, topic, batches, None, at.as_json)
            return
        payload = _payload(data, text)
        if count == 1:
            _publish_one(connection, topic, _event(payload, extras, id), at.as_json)
        elif id is not None:
            raise typer.BadParameter("an id is stored once; leave out --count or --id")
        else:
            lines = ((number + 1, _event(payload, extras, _new_id())) for number in range(count))
            _publish_all(connection, topic, _batches(lines), count, at.as_json)


# -- what an event is


def _extras(key: str | None, header: list[str] | None, delay: str | None, ttl: str | None) -> dict[str, Any]:
    extras: dict[str, Any] = {}
    if key is not None:
        extras["key"] = key
    if header:
        extras["headers"] = dict(_header(each) for each in header)
    if delay is not None:
        extras["delay_ms"] = duration_option(delay, "--delay")
    if ttl is not None:
        extras["ttl_ms"] = duration_option(ttl, "--ttl")
    return extras


def _header(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise typer.BadParameter(f"{text!r} is no header; write NAME=VALUE", param_hint="--header")
    return name, value


def _payload(data: str, text: bool) -> bytes:
    """DATA's bytes as JSON."""
    if data.startswith("@"):
        try:
            given = sys.stdin.buffer.read() if data == "@-" else Path(data[1:]).read_bytes()
        except OSError as error:
            raise CommandFailed(f"cannot read {data[1:]}: {error.strerror}", remedy="check the path behind @") from None
    else:
        given = data.encode("utf-8", "surrogateescape")
    return _checked(given, text, "DATA", "quote it for the shell: '{\"sku\": 1}', or say --text")


def _checked(given: bytes, text: bool, what: str, remedy: str) -> bytes:
    try:
        if text:
            return json.dumps(given.decode(), ensure_ascii=False).encode()
        check_json(given, what)
    except UnicodeDecodeError as error:
        raise CommandFailed(f"{what} is not UTF-8: {error}", remedy=remedy) from None
    except JsonRefused as error:
        raise CommandFailed(error.message, remedy=remedy) from None
    return given.replace(b"\n", b" ").replace(b"\r", b" ").strip()


def _event(payload: bytes, extras: dict[str, Any], id: str | None) -> bytes:
    named = {**extras, **({} if id is None else {"id": id})}
    return msgspec.json.encode({**named, "payload": msgspec.Raw(payload)})


def _new_id() -> str:
    return str(uuid_utils.uuid7())


def _publish_one(connection: NodeConnection, topic: str, event: bytes, as_json: bool) -> None:
    place = connection.call("POST", path("topics", topic, "events"), event)
    where = f"{safe(topic)} {place['partition']}:{place['offset']}"
    if place.get("not_before"):
        where = f"{safe(topic)}, to be delivered later"
    already = "  (it was there already)" if place.get("duplicate") else ""
    say_done(place, as_json, f"published to {where}{already}  {safe(place['id'])}")


# -- many


def _input_lines() -> Iterator[list[tuple[int, bytes]]]:
    """The lines of standard input with their numbers, as many at a time as are there; empty ones are left out."""
    number, rest = 0, b""
    while chunk := os.read(sys.stdin.fileno(), _READ_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        numbered = [(number + index + 1, line) for index, line in enumerate(lines) if line.strip()]
        number += len(lines)
        if numbered:
            yield numbered
    if rest.strip():
        yield [(number + 1, rest)]


def _read_value(extras: dict[str, Any], text: bool, number: int, line: bytes) -> Line:
    remedy = "one JSON value per line; --text publishes lines as text"
    payload = _checked(line.rstrip(b"\r"), text, f"line {number}", remedy)
    return number, _event(payload, extras, _new_id())


class _Envelope(msgspec.Struct):
    payload: msgspec.Raw
    key: str | None = None
    headers: dict[str, str] | None = None


_decode_envelope: Final = msgspec.json.Decoder(_Envelope).decode


def _read_envelope(extras: dict[str, Any], number: int, line: bytes) -> Line:
    try:
        found = _decode_envelope(line)
    except (msgspec.DecodeError, RecursionError) as error:
        raise CommandFailed(f"line {number} is no event: {error}", remedy="`tail --json` writes events") from None
    said = {"key": found.key, "headers": found.headers}
    own = {name: value for name, value in said.items() if value is not None}
    return number, _event(bytes(found.payload), {**own, **extras}, _new_id())


def _batches(lines: Iterator[Line]) -> Iterator[list[Line]]:
    """Lines in parts the node takes. A bad line raises when everything before it was given."""
    batch: list[Line] = []
    size = 0
    bad: CommandFailed | None = None
    try:
        for number, event in lines:
            if batch and (len(batch) >= _BATCH_EVENTS or size + len(event) > _BATCH_BYTES):
                yield batch
                batch, size = [], 0
            batch.append((number, event))
            size += len(event) + 1
    except CommandFailed as error:
        bad = error
    if batch:
        yield batch
    if bad is not None:
        raise bad


def _publish_all(
    connection: NodeConnection, topic: str, batches: Iterator[list[Line]], total: int | None, as_json: bool
) -> None:
    stored = 0
    try:
        with progress(watched=not sys.stdin.isatty()) as show:
            for batch in batches:
                for sent in _publish_batch(connection, topic, batch):
                    stored += sent
                    show("publishing", stored, total or 0)
    except MainspringError as error:
        which = "events before it" if isinstance(error, NodeRefused) else "events"
        error.message += f"; {stored:,} {which} are stored"
        raise
    say_done({"topic": topic, "count": stored}, as_json, f"published {stored:,} events to {safe(topic)}")


def _publish_batch(connection: NodeConnection, topic: str, batch: list[Line]) -> Iterator[int]:
    """Send a batch; gives how many became durable, in steps."""
    where = path("topics", topic, "events")
    try:
        _persistently(connection, where, b"\n".join(event for _, event in batch))
        yield len(batch)
        return
    except NodeRefused as error:
        if error.code in ("forbidden", "unauthorized"):
            raise
    for number, event in batch:
        try:
            _persistently(connection, where, event)
        except NodeRefused as error:
            error.message = f"line {number} was refused: {error.message}"
            raise
        yield 1


def _persistently(connection: NodeConnection, where: str, body: bytes) -> None:
    """Send until there is an answer: the ids make a second time harmless."""
    for wait_s in (*_WAITS_S, None):
        try:
            connection.call("POST", where, body, content_type=NDJSON)
            return
        except CannotConnect:
            if wait_s is None:
                raise
        except NodeRefused as error:
            if wait_s is None or error.code not in ("unavailable", "log_unavailable", "rate_limited"):
                raise
            wait_s = max(wait_s, error.retry_after_ms / 1000)
        Event().wait(wait_s)
