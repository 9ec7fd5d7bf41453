"""Timers: messages that are sent later.

A scheduled message waits on the loop's wheel and is then routed like any other. It is stamped when it leaves: a fresh
time, the scheduling message as its cause, and the id it was given, unless a message with that id is still open. Nobody
waits for its answer. Timers are kept in memory and do not outlive the node.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from mainspring.message import Message, Metadata

if TYPE_CHECKING:
    from mainspring.kernel.exchange import Exchange


@dataclass(slots=True)
class ScheduledMessage:
    id: str
    deadline_ms: int  # epoch, for people; the wheel counts monotonic time
    message: Message
    cause: Metadata
    handle: Hashable = None


class MessageTimers:
    """The messages of one kernel that are still to be sent."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._pending: dict[str, ScheduledMessage] = {}
        self.bytes: int = 0  # of the data of these messages

    def __len__(self) -> int:
        return len(self._pending)

    def schedule(self, delay_ms: float, message: Message, cause: Message, *, id: str | None = None) -> str:
        """Send `message` after `delay_ms`, as a consequence of `cause`; the id is for `cancel`."""
        exchange = self._exchange
        deadline_ms = exchange.clock.wall_ms() + int(delay_ms)
        timer = ScheduledMessage(id or exchange.ids(), deadline_ms, message, cause.metadata)
        timer.handle = exchange.loop.schedule(delay_ms, self._fire, timer)
        self._pending[timer.id] = timer
        self.bytes += _size(message)
        return timer.id

    def cancel(self, id: str) -> bool:
        """True when the message will never be sent; False when it was, or was never scheduled."""
        timer = self._pending.pop(id, None)
        if timer is None:
            return False
        self.bytes -= _size(timer.message)
        self._exchange.loop.cancel(timer.handle)
        self._exchange.on_quiet()
        return True

    def pending(self) -> list[ScheduledMessage]:
        """What is still to come, earliest first."""
        return sorted(self._pending.values(), key=lambda timer: timer.deadline_ms)

    def clear(self) -> None:
        for id in tuple(self._pending):
            self.cancel(id)

    def _fire(self, timer: ScheduledMessage) -> None:
        if self._pending.pop(timer.id, None) is None:
            return
        exchange, message, cause = self._exchange, timer.message, timer.cause
        self.bytes -= _size(message)
        given = message.metadata
        stamped = Metadata(
            exchange.ids() if given.id in exchange.no_reply.open else given.id,
            exchange.clock.wall_ms(),
            cause.correlation or given.correlation,
            cause.id,
            given.timeout,
            given.traceparent,
        )
        due = msgspec.structs.replace(message, metadata=stamped)
        if due.kind == "event":
            exchange.turn_event((due, None))
        elif due.kind in ("command", "query"):
            exchange.turn_request((due, exchange.no_reply))
        else:
            exchange.witness(due)
            exchange.sink(due)
        exchange.on_quiet()


def _size(message: Message) -> int:
    return memoryview(message.raw).nbytes
