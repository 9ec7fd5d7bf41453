"""What a program stores in its own transaction, and how it waits there until a node moves it into the log."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
import uuid_utils

from mainspring.client import BadArgument, EventTooLarge, check_texts, run_name
from mainspring.durations import Duration, duration_ms
from mainspring.loop import MonotonicClock
from mainspring.message import encode_data
from mainspring.outbox import MAX_EVENT_BYTES, Steps, bind
from mainspring.tasks import EnqueueOptions, Task

SCHEMA: Final = "mainspring"

_NAME: Final = re.compile(r"[a-z_][a-z0-9_]{0,50}")
_LOCK: Final = "SELECT pg_advisory_xact_lock(hashtextextended(:name, 7071))"
_STORE: Final = """
WITH stored AS (INSERT INTO {schema}.outgoing (body) VALUES (:body) RETURNING id)
SELECT pg_notify('{schema}_outgoing', '') FROM stored"""
_clock: Final = MonotonicClock()


class OutgoingEvent(msgspec.Struct, array_like=True, tag="event", omit_defaults=True):
    """An event as it waits. Times are epoch ms of the program's clock; 0: none."""

    id: str
    topic: str
    payload: msgspec.Raw
    key: str | None = None
    headers: dict[str, str] | None = None
    not_before: int = 0
    ttl_ms: int = 0


class OutgoingRun(msgspec.Struct, array_like=True, tag="run"):
    """A durable run as it waits."""

    id: str
    program: str
    args: msgspec.Raw


def publish(
    connection: Any,
    topic: str,
    payload: Any,
    *,
    key: str | None = None,
    headers: Mapping[str, str] | None = None,
    id: str | None = None,
    delay: Duration = 0,
    ttl: Duration = 0,
    schema: str = SCHEMA,
) -> Any:
    """Publish an event with the caller's transaction; gives its id (awaited with an async connection).

    `schema` is that of the log. Raises NoTransaction where there is none, and NotEncodable or EventTooLarge now, while
    the program can still do something about it. What the topic's schema says is checked when the event is moved; one
    that is refused then is kept, and the node's log says so.
    """
    if not isinstance(topic, str) or not topic:
        raise BadArgument("a topic is text", remedy="give the name of the topic")
    given = None if headers is None else dict(headers)
    check_texts(key, given)
    event_id = str(uuid_utils.uuid7()) if id is None else id
    due = _clock.wall_ms() + duration_ms(delay) if delay else 0
    lived = duration_ms(ttl) if ttl else 0
    event = OutgoingEvent(event_id, topic, msgspec.Raw(encode_data(payload)), key, given, due, lived)
    return _store(connection, schema, event, None if key is None else f"{schema} {topic} {key}")


def start_run(
    connection: Any, program: Callable[..., Any] | str, *args: Any, id: str | None = None, schema: str = SCHEMA
) -> Any:
    """Start a durable run with the caller's transaction; gives its id (awaited with an async connection).

    `program` is a function declared with `@app.run`, or its name. The same id and arguments start one run.
    """
    name = program if isinstance(program, str) else run_name(program)
    run = OutgoingRun(str(uuid_utils.uuid7()) if id is None else id, name, msgspec.Raw(encode_data(list(args))))
    return _store(connection, schema, run, None)


def enqueue(
    connection: Any, task: Task[..., Any] | EnqueueOptions[..., Any], *args: Any, schema: str = SCHEMA, **kwargs: Any
) -> Any:
    """Have a task done with the caller's transaction; gives its id, for `task.handle(id)` (awaited with an async one).

    `task` is a function declared with `@app.task`, or one with options: `send_mail.options(delay="1h")`.
    """
    options = task if isinstance(task, EnqueueOptions) else task.options()
    topic, call = options.new_call(str(uuid_utils.uuid7()), args, kwargs, _clock.wall_ms)
    due = max(call.not_before, _clock.wall_ms() + call.delay_ms if call.delay_ms else 0)
    event = OutgoingEvent(call.id, topic, call.payload, call.key, call.headers, due)
    return _store(connection, schema, event, None if call.key is None else f"{schema} {topic} {call.key}")


def _store(connection: Any, schema: str, outgoing: OutgoingEvent | OutgoingRun, ordered_by: str | None) -> Any:
    if not _NAME.fullmatch(schema):
        raise BadArgument(f"{schema!r} cannot name a schema", remedy="use lower-case letters, digits and _")
    body = msgspec.json.encode(outgoing)
    if len(body) > MAX_EVENT_BYTES:
        raise EventTooLarge(
            f"this has {len(body)} bytes, more than {MAX_EVENT_BYTES}", remedy="store a reference to it"
        )
    bound = bind(connection)
    if bound.dialect != "postgresql":
        raise BadArgument(f"this connection is to {bound.dialect}", remedy="for other databases use the Outbox")

    def steps() -> Steps[str]:
        if ordered_by is not None:
            yield _LOCK, {"name": ordered_by}
        yield _STORE.format(schema=schema), {"body": body}
        return outgoing.id

    return bound.perform(steps())
