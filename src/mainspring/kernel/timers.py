"""Timers: messages that are sent later, and messages that are sent again.

A scheduled message waits on the loop's wheel and is then routed like any other. It is stamped when it leaves: a fresh
time, the scheduling message as its cause, and the id it was given, unless a message with that id is still open. Nobody
waits for its answer. These timers are kept in memory; `durable/timers.py` has those that outlive the node.

A message with a `retry` that fails is sent again after a pause, as the policy says: a timer of kind `retry`. Only
errors that may pass are worth it: a crash, a timeout, a capability that is being restarted, and whatever a handler
refuses with 429 or a code from 500 on. Its requester waits until an attempt succeeds or the last one has failed. The
request keeps its place in the pending table meanwhile, in the mail that will be posted next. Cancelling the timer, or
stopping the node, makes the last error its outcome.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import msgspec

from mainspring.kernel.errors import is_passing
from mainspring.kernel.mail import Mail
from mainspring.message import Message, Metadata

if TYPE_CHECKING:
    from mainspring.kernel.exchange import Exchange
    from mainspring.kernel.mail import Origin


@dataclass(slots=True)
class ScheduledMessage:
    id: str
    deadline_ms: int  # epoch, for people; the wheel counts monotonic time
    message: Message
    cause: Metadata
    kind: Literal["scheduled", "retry"] = "scheduled"
    mail: Mail | None = None  # of a retry: the next attempt
    error: Message | None = None  # of a retry: of the attempt before
    on_due: Callable[[Message], Origin | None] | None = None  # of a durable one: gives where its answer goes
    handle: Hashable = None

    @property
    def durable(self) -> bool:
        return self.on_due is not None


class MessageTimers:
    """The messages of one kernel that are still to be sent."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._pending: dict[str, ScheduledMessage] = {}
        self.bytes: int = 0  # of the data of these messages
        exchange.try_again = self.try_again

    def __len__(self) -> int:
        return len(self._pending)

    def schedule(
        self,
        delay_ms: float,
        message: Message,
        cause: Metadata,
        *,
        id: str | None = None,
        on_due: Callable[[Message], Origin | None] | None = None,
    ) -> str:
        """Send `message` after `delay_ms`, as a consequence of `cause`; the id is for `cancel`."""
        exchange = self._exchange
        deadline_ms = exchange.clock.wall_ms() + int(delay_ms)
        timer = ScheduledMessage(id or exchange.ids(), deadline_ms, message, cause, on_due=on_due)
        self._add(timer, delay_ms)
        return timer.id

    def _add(self, timer: ScheduledMessage, delay_ms: float) -> None:
        timer.handle = self._exchange.loop.schedule(delay_ms, self._fire, timer, kind=timer.kind)
        self._pending[timer.id] = timer
        self.bytes += _size(timer.message)

    def cancel(self, id: str) -> bool:
        """True when the message will never be sent; False when it was, or was never scheduled."""
        timer = self._pending.pop(id, None)
        if timer is None:
            return False
        self.bytes -= _size(timer.message)
        self._exchange.loop.cancel(timer.handle)
        if timer.kind == "retry":
            self._give_up(timer)
        self._exchange.on_quiet()
        return True

    def get(self, id: str) -> ScheduledMessage | None:
        """A message that is still to be sent."""
        return self._pending.get(id)

    def pending(self) -> list[ScheduledMessage]:
        """What is still to come, earliest first."""
        return sorted(self._pending.values(), key=lambda timer: timer.deadline_ms)

    def clear(self) -> None:
        for id in tuple(self._pending):
            self.cancel(id)

    def _fire(self, timer: ScheduledMessage) -> None:
        if self._pending.pop(timer.id, None) is None:
            return
        exchange = self._exchange
        self.bytes -= _size(timer.message)
        if timer.kind == "retry":
            self._send_again(timer)
        else:
            due = self._stamped(timer)
            origin = timer.on_due(due) if timer.on_due is not None else None
            if due.kind == "event" and due.type[:4] != "Sys.":  # nobody but the kernel says what the kernel did
                exchange.turn_event((due, None))
            elif due.kind in ("command", "query"):
                exchange.turn_request((due, origin or exchange.no_reply))
            else:
                exchange.witness(due)
                exchange.sink(due)
        exchange.on_quiet()

    def _stamped(self, timer: ScheduledMessage) -> Message:
        exchange, given, cause = self._exchange, timer.message.metadata, timer.cause
        stamped = msgspec.structs.replace(
            given,
            id=exchange.ids() if given.id in exchange.no_reply.open else given.id,
            timestamp=exchange.clock.wall_ms(),
            correlation=cause.correlation or given.correlation,
            causation=cause.id,
        )
        return msgspec.structs.replace(timer.message, metadata=stamped)

    # --- sending again -------------------------------------------------------------------------------------------

    def try_again(self, mail: Mail, error: Message) -> bool:
        """Plan the next attempt of a message with a retry; False when there is none."""
        exchange, metadata = self._exchange, mail.message.metadata
        policy, attempt = metadata.retry, metadata.attempt
        if policy is None or exchange.closing or attempt >= policy.max_attempts or not is_passing(error.data):
            return False
        message = msgspec.structs.replace(mail.message, metadata=msgspec.structs.replace(metadata, attempt=attempt + 1))
        following = Mail(message, mail.contract, mail.slot, None, mail.origin)
        if mail.origin is not None:
            self._keep_place(mail, following)
        pause_ms = policy.pause_ms(attempt)
        deadline_ms = exchange.clock.wall_ms() + pause_ms
        timer = ScheduledMessage(exchange.ids(), deadline_ms, message, metadata, "retry", following, error)
        self._add(timer, pause_ms)
        return True

    def _keep_place(self, mail: Mail, following: Mail) -> None:
        """The next attempt takes the place of the one that failed, in the pending table and for its connection."""
        exchange, origin, id = self._exchange, mail.origin, mail.message.metadata.id
        assert origin is not None
        following.unrecorded, following.began_ns = mail.unrecorded, mail.began_ns
        if mail.unrecorded and exchange.durable is not None:
            exchange.durable.replace(mail, following)
            mail.unrecorded = False
        if mail.closed:  # the requester of a durable command stopped waiting
            following.closed = True
            return
        exchange.close(mail)
        origin.open[id] = following
        exchange.pending.add(following)

    def _send_again(self, timer: ScheduledMessage) -> None:
        exchange, mail = self._exchange, timer.mail
        assert mail is not None
        if mail.origin is None:
            exchange.witness(mail.message)
            exchange.open_events += 1
        elif not mail.unrecorded:
            origin = exchange.no_reply if mail.closed else mail.origin  # closed: its connection is gone
            if not mail.closed:
                exchange.close(mail)
            exchange.turn_request((mail.message, origin))
            return
        elif not mail.closed:
            mail.began_ns = exchange.clock.now_ns()
            exchange.deadlines.start(mail, mail.message.metadata.timeout)
        mail.value = mail.contract.input.decode(mail.message.raw)
        mail.slot.accept(mail)

    def _give_up(self, timer: ScheduledMessage) -> None:
        """The last error is the outcome. A durable command goes on when the node starts again."""
        exchange, mail, error = self._exchange, timer.mail, timer.error
        assert mail is not None
        assert error is not None
        if mail.unrecorded and exchange.closing:
            return
        retry = mail.message.metadata.retry
        assert retry is not None
        last = msgspec.structs.replace(mail.message.metadata, attempt=retry.max_attempts)
        mail.message = msgspec.structs.replace(mail.message, metadata=last)
        if mail.origin is None:
            exchange.sink(error, mail.message)
        elif not mail.closed or mail.unrecorded:
            exchange.turn_outcome((mail, error))


def _size(message: Message) -> int:
    return memoryview(message.raw).nbytes
