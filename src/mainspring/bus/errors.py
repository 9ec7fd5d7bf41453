"""What the bus refuses, and why.

Each class is one code of the protocol. The same error reaches a WebSocket client as an ERROR frame, an HTTP client as
problem+json and a Python caller as an exception, so its message must make sense to all three.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from mainspring.errors import MainspringError
from mainspring.json_text import JsonRefused


class BusError(MainspringError, code="internal"):
    """A request the bus answers with an error; nothing of it was stored.

    `details` are further members of the answer, for programs.
    """

    details: Mapping[str, Any] = MappingProxyType({})


class BadJson(BusError, code="bad_json"):
    """The text is not JSON."""


class BadFrame(BusError, code="bad_frame"):
    """A field is missing, has the wrong type, or a value that does not fit."""


def bad_text(refused: JsonRefused) -> BusError:
    """What is wrong with a JSON text, as the bus says it."""
    error = BadJson if refused.code == BadJson.code else BadFrame
    return error(refused.message, remedy=refused.remedy)


class UnknownType(BusError, code="unknown_type"):
    """The frame's `type` is none of the protocol's."""


class Forbidden(BusError, code="forbidden"):
    """The caller may not do this to this topic."""


class NotSubscribed(BusError, code="not_subscribed"):
    """The connection holds no subscription for this topic and group."""


class BadOffset(BusError, code="bad_offset"):
    """The offset was never delivered to this group."""


class ExpectationFailed(BadOffset):
    """`expect` is not the partition's last offset; someone else published first."""


class TooLarge(BusError, code="too_large"):
    """The frame or event is larger than the node accepts."""


class RateLimited(BusError, code="rate_limited"):
    """A quota of the caller, or the rate of the connection or the topic, is used up.

    `retry_after_ms` is how long to wait before trying again; None where the same request is never taken.
    """

    def __init__(self, message: str, *, remedy: str = "", retry_after_ms: int | None = None) -> None:
        super().__init__(message, remedy=remedy)
        self.retry_after_ms = retry_after_ms
        if retry_after_ms is not None:
            self.details: Mapping[str, Any] = {"retry_after_ms": retry_after_ms}


class LimitReached(BusError, code="limit_reached"):
    """A connection, or the node, holds as many of these as it may."""


class Unavailable(BusError, code="unavailable"):
    """The log cannot be written now, or the node is stopping. Nothing was stored; try again."""


class UnknownTopic(BusError, code="unknown_topic"):
    """No such topic."""


class UnknownGroup(BusError, code="unknown_group"):
    """No such group of this topic."""


class UnknownEvent(BusError, code="unknown_event"):
    """No event at this place: never given, removed, or damaged."""


class UnknownSchedule(BusError, code="unknown_schedule"):
    """No schedule of this name."""


class UnknownTask(BusError, code="unknown_task"):
    """No task of this name."""


class UnknownCall(BusError, code="unknown_call"):
    """No call of the task with this id, or none that is still kept."""


def hidden_schedule(name: str) -> Forbidden:
    """What a limited token is told of a schedule that is not there, or that it may not see: the same."""
    return Forbidden(f"this token may use no schedule {name!r}", remedy="use one with a scope for its topic")


class SchemaMismatch(BusError, code="schema_mismatch"):
    """The payload does not fit the schema of its topic; `details` has the path of the fault."""

    def __init__(self, message: str, *, remedy: str = "", **details: Any) -> None:
        super().__init__(message, remedy=remedy)
        self.details: Mapping[str, Any] = details


class BadSchema(BusError, ValueError, code="bad_schema"):
    """This is no JSON Schema, or one that cannot be used here."""


class SchemaIncompatible(BusError, code="schema_incompatible"):
    """The new schema breaks what the topic's compatibility promises; `details` has the differences."""

    def __init__(self, message: str, *, remedy: str = "", differences: list[str]) -> None:
        super().__init__(message, remedy=remedy)
        self.details: Mapping[str, Any] = {"differences": differences}


class UnknownSchema(BusError, code="unknown_schema"):
    """The topic has no schema, or not this version of it."""


class Conflict(BusError, code="conflict"):
    """The request contradicts what is there: partitions would shrink, a group still has members."""
