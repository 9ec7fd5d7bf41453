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


class BusError(MainspringError):
    """A request the bus answers with an error; nothing of it was stored.

    `details` are further members of the answer, for programs.
    """

    code = "internal"
    details: Mapping[str, Any] = MappingProxyType({})


class BadJson(BusError):
    """The text is not JSON."""

    code = "bad_json"


class BadFrame(BusError):
    """A field is missing, has the wrong type, or a value that does not fit."""

    code = "bad_frame"


def bad_text(refused: JsonRefused) -> BusError:
    """What is wrong with a JSON text, as the bus says it."""
    error = BadJson if refused.code == BadJson.code else BadFrame
    return error(refused.message, remedy=refused.remedy)


class UnknownType(BusError):
    """The frame's `type` is none of the protocol's."""

    code = "unknown_type"


class Forbidden(BusError):
    """The caller may not do this to this topic."""

    code = "forbidden"


class NotSubscribed(BusError):
    """The connection holds no subscription for this topic and group."""

    code = "not_subscribed"


class BadOffset(BusError):
    """The offset was never delivered to this group."""

    code = "bad_offset"


class ExpectationFailed(BadOffset):
    """`expect` is not the partition's last offset; someone else published first."""


class TooLarge(BusError):
    """The frame or event is larger than the node accepts."""

    code = "too_large"


class RateLimited(BusError):
    """The connection or the topic takes no more events for now; `retry_after_ms` is when it would take these."""

    code = "rate_limited"
    retry_after_ms: int | None = None


class LimitReached(BusError):
    """A connection, or the node, holds as many of these as it may."""

    code = "limit_reached"


class Unavailable(BusError):
    """The log cannot be written now, or the node is stopping. Nothing was stored; try again."""

    code = "unavailable"


class UnknownTopic(BusError):
    """No such topic."""

    code = "unknown_topic"


class UnknownGroup(BusError):
    """No such group of this topic."""

    code = "unknown_group"


class UnknownEvent(BusError):
    """No event at this place: never given, removed, or damaged."""

    code = "unknown_event"


class UnknownSchedule(BusError):
    """No schedule of this name."""

    code = "unknown_schedule"


class SchemaMismatch(BusError):
    """The payload does not fit the schema of its topic; `details` has the path of the fault."""

    code = "schema_mismatch"

    def __init__(self, message: str, *, remedy: str = "", **details: Any) -> None:
        super().__init__(message, remedy=remedy)
        self.details: Mapping[str, Any] = details


class BadSchema(BusError, ValueError):
    """This is no JSON Schema, or one that cannot be used here."""

    code = "bad_schema"


class SchemaIncompatible(BusError):
    """The new schema breaks what the topic's compatibility promises; `details` has the differences."""

    code = "schema_incompatible"

    def __init__(self, message: str, *, remedy: str = "", differences: list[str]) -> None:
        super().__init__(message, remedy=remedy)
        self.details: Mapping[str, Any] = {"differences": differences}


class UnknownSchema(BusError):
    """The topic has no schema, or not this version of it."""

    code = "unknown_schema"


class Conflict(BusError):
    """The request contradicts what is there: partitions would shrink, a group still has members."""

    code = "conflict"
