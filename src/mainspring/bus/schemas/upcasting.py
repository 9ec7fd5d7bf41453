"""Old events in the shape of today: functions that turn a payload of version n into one of version n + 1.

They are applied when an event is read, and only when its header `x-schema-version` names a version that has one. The
log keeps what was published. An event without the header is passed on as it is: it is older than the first schema, and
nobody can say what it looks like. Where a step is missing the chain ends, and the header says the version that was
really reached. A function that fails changes nothing: the event is passed on as it was stored, and the failure logged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import msgspec

from mainspring.bus.errors import BadSchema
from mainspring.bus.schemas.registry import SCHEMA_HEADER
from mainspring.log import StoredEvent

logger: logging.Logger = logging.getLogger("mainspring.bus.schemas")

Step = Callable[[Any], Any]

_headers = msgspec.json.Decoder(dict[str, str]).decode


class Upcaster:
    """The steps of one topic. Calling it with an event gives the event as it is read."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._steps: dict[int, Step] = {}
        self._marks: set[bytes] = set()

    def add(self, version: int, step: Step) -> None:
        """`step` turns payloads of `version` into payloads of the next. Raises BadSchema for a second one."""
        if version < 1 or version in self._steps:
            raise BadSchema(
                f"version {version} of {self._topic!r} cannot get another upcaster",
                remedy="versions count from 1, and each has one step to the next",
            )
        self._steps[version] = step
        self._marks = {b'"%b":"%d"' % (SCHEMA_HEADER.encode(), each) for each in self._steps}

    def __call__(self, event: StoredEvent) -> StoredEvent:
        text = event.headers
        if text is None or not any(mark in text for mark in self._marks):
            return event
        headers = _headers(text)
        given = headers.get(SCHEMA_HEADER, "")
        version = reached = int(given) if given.isascii() and given.isdigit() else 0
        if version not in self._steps:
            return event
        try:
            payload = msgspec.json.decode(event.payload)
            while reached in self._steps:
                payload = self._steps[reached](payload)
                reached += 1
            encoded = msgspec.json.encode(payload)
        except Exception:
            where = f"offset {event.offset} of partition {event.partition}"
            logger.exception("the upcaster of %r from version %d failed at %s", self._topic, reached, where)
            return event
        headers[SCHEMA_HEADER] = str(reached)
        return msgspec.structs.replace(event, payload=encoded, headers=msgspec.json.encode(headers))
