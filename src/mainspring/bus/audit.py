"""`system.bus.audit`: what the bus decided, and who did what.

One audit event per event would double the work of the log. So decisions of one kind about one partition (and group)
within a short time become one record with a count and the last offset: an acknowledgement of ten thousand events costs
the same as one. The price is that up to `FLUSH_MS` of audit is lost when the node dies. Where nodes share the log, each
commit costs all of them, so the records wait longer (`SHARED_FLUSH_MS`) for a commit that they can be part of. Topics
`system.*` are never audited.

Who was refused, and who changed something, is also a line in the log (logger `mainspring.audit`). Anybody can be
refused again and again: of refusals only so many are written (`REFUSALS_PER_S`), and the rest is counted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from http import HTTPStatus
from typing import Any, Final

import msgspec

from mainspring.bus.access.access import Caller, Who
from mainspring.bus.names import SYSTEM
from mainspring.bus.publishing.rate_limit import TokenBucket
from mainspring.bus.topics.topic import Topic
from mainspring.errors import without_tokens
from mainspring.loop import Loop

logger: logging.Logger = logging.getLogger("mainspring.audit")

AUDIT_TOPIC: Final = "system.bus.audit"
FLUSH_MS: Final = 100
SHARED_FLUSH_MS: Final = 1_000  # of decisions of the bus; who did what is written as soon as ever
REFUSALS_PER_S: Final = 20  # of different callers or about different things: enough to see who it is
REFUSALS_AT_ONCE: Final = 200
LONGEST: Final = 200  # characters of what a caller chose itself

# Commands that change what others rely on.
_AUDITED: Final = frozenset(
    f"{capability}.{name}"
    for capability, names in {
        "Syscall": "Shutdown Restart Redrive DropDeadLetters",
        "Bus": "CreateTopic Seek DeleteGroup Redrive DropDeadLetters Schedule Unschedule PauseSchedule ResumeSchedule "
        "RunSchedule",
        "Run": "Cancel Retry Fail Bulk Fork",
        "Beat": "Pause Resume Fork",
        "Memory": "Delete",
    }.items()
    for name in names.split()
)

_encode = msgspec.json.Encoder().encode


class AuditRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """`count` decisions, the last one about `offset`."""

    action: str
    topic: str
    partition: int
    offset: int
    count: int
    group: str = ""


class ActionRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """Somebody was refused something or did something, `count` times. `about` says what: an operation, a message.

    `action` is login_refused, right_refused, subscription_ended, changed, deleted, command, token_added, token_removed,
    schedule_paused, record_set_aside or shutdown; `more`: refusals that were not written.
    """

    action: str
    topic: str = ""
    agent: str = ""
    address: str = ""
    about: str = ""
    reason: str = ""
    count: int = 1


class Audit:
    """Collects decisions; `write` gets the payloads of what became of them."""

    def __init__(self, loop: Loop, write: Callable[[list[bytes]], None], *, enabled: bool, shared: bool) -> None:
        self._loop = loop
        self._note_ms = SHARED_FLUSH_MS if shared else FLUSH_MS
        self._timer: tuple[int, Hashable] | None = None  # when it fires
        self._write = write
        self._enabled = enabled
        self._noted: dict[tuple[str, str, int, str], list[int]] = {}
        self._actions: dict[ActionRecord, int] = {}
        self._refusals = TokenBucket(REFUSALS_PER_S, REFUSALS_AT_ONCE, loop.clock.now_ms())
        self._left_out = 0

    def refused(self, action: str, who: Who, about: str, reason: str = "", *, address: str = "") -> None:
        """Somebody was refused. Of many refusals some are only counted."""
        record = _record(action, who, about, "", reason, address)
        if record in self._actions:
            self._actions[record] += 1
        elif self._refusals.take(1, self._loop.clock.now_ms()):
            self._add(record, logging.WARNING)
        else:
            self._left_out += 1

    def did(self, action: str, who: Who = None, about: str = "", *, topic: str = "", reason: str = "") -> None:
        """Somebody changed something, or the node did for a reason."""
        record = _record(action, who, about, topic, reason)
        if record in self._actions:
            self._actions[record] += 1
        else:
            self._add(record, logging.INFO)

    def answered(self, who: Who, kind: str, type: str, error: Any = None) -> None:
        """A message was answered, with the data of an error or without.

        Told: who was refused by the one that answers, who used the rights of an admin, and who changed what others
        rely on.
        """
        if error is not None:
            found: Any = error if isinstance(error, dict) else {}
            if found.get("code") == HTTPStatus.FORBIDDEN:
                self.refused("right_refused", who, type, str(found.get("message")))
        elif kind == "command" and ((isinstance(who, Caller) and who.is_admin) or type in _AUDITED):
            self.did("command", who, type)

    def _add(self, record: ActionRecord, level: int) -> None:
        self._flush_within(FLUSH_MS)
        self._actions[record] = 1
        named = msgspec.structs.asdict(record).items()
        logger.log(level, "%s", " ".join(f"{name}={value!r}" for name, value in named if value and name != "count"))

    def note(self, action: str, topic: Topic, partition: int, offset: int, count: int, group: str = "") -> None:
        """The bus decided something about `count` events of a partition, the last one at `offset`."""
        if not self._enabled or not topic.audited:
            return
        about = (action, topic.name, partition, group)
        noted = self._noted.get(about)
        if noted is not None:
            noted[0] = offset
            noted[1] += count
            return
        if not self._noted:
            self._flush_within(self._note_ms)
        self._noted[about] = [offset, count]

    def _flush_within(self, ms: int) -> None:
        at = self._loop.clock.now_ms() + ms
        if self._timer is not None:
            if self._timer[0] <= at:
                return
            self._loop.cancel(self._timer[1])
        self._timer = (at, self._loop.schedule(ms, self.flush, None, ref=False))

    def flush(self, _: None = None) -> None:
        """Write what was collected."""
        if self._timer is not None:
            self._loop.cancel(self._timer[1])
            self._timer = None
        noted, self._noted = self._noted, {}
        actions, self._actions = self._actions, {}
        if self._left_out and actions:
            logger.warning("%d more refusals are not listed", self._left_out)
            actions[ActionRecord("more", reason="refusals that are not listed")] = self._left_out
            self._left_out = 0
        written = [
            _encode(AuditRecord(action, topic, partition, offset, count, group))
            for (action, topic, partition, group), (offset, count) in noted.items()
        ]
        written += [_encode(msgspec.structs.replace(record, count=count)) for record, count in actions.items()]
        if written and self._enabled:
            self._write(written)


def _record(action: str, who: Who, about: str, topic: str, reason: str, address: str = "") -> ActionRecord:
    agent = who.agent if isinstance(who, Caller) else who
    if isinstance(who, Caller):
        address = who.address
    return ActionRecord(
        action=action,
        topic="" if topic.startswith(SYSTEM) else topic,
        agent=without_tokens(agent or "")[:LONGEST],
        address=address,
        about=without_tokens(about)[:LONGEST],
        reason=without_tokens(reason)[:LONGEST],
    )
