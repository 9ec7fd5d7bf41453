"""`system.bus.audit`: what the bus decided.

One audit event per event would double the work of the log. So decisions of one kind about one partition (and group)
within a short time become one record with a count and the last offset: an acknowledgement of ten thousand events costs
the same as one. The price is that up to `FLUSH_MS` of audit is lost when the node dies. Topics `system.*` are never
audited.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from mainspring.bus.topics.topic import Topic
from mainspring.loop import Loop

AUDIT_TOPIC: Final = "system.bus.audit"
FLUSH_MS: Final = 100

_encode = msgspec.json.Encoder().encode


class AuditRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """`count` decisions, the last one about `offset`."""

    action: str
    topic: str
    partition: int
    offset: int
    count: int
    group: str = ""


class Audit:
    """Collects decisions; `write` gets the payloads of what became of them."""

    def __init__(self, loop: Loop, write: Callable[[list[bytes]], None], *, enabled: bool) -> None:
        self._loop = loop
        self._write = write
        self._enabled = enabled
        self._noted: dict[tuple[str, str, int, str], list[int]] = {}

    def note(self, action: str, topic: Topic, partition: int, offset: int, count: int, group: str = "") -> None:
        if not self._enabled or not topic.audited:
            return
        about = (action, topic.name, partition, group)
        noted = self._noted.get(about)
        if noted is not None:
            noted[0] = offset
            noted[1] += count
            return
        if not self._noted:
            self._loop.schedule(FLUSH_MS, self.flush, None, ref=False)
        self._noted[about] = [offset, count]

    def flush(self, _: None = None) -> None:
        noted, self._noted = self._noted, {}
        if noted:
            self._write(
                [
                    _encode(AuditRecord(action, topic, partition, offset, count, group))
                    for (action, topic, partition, group), (offset, count) in noted.items()
                ]
            )
