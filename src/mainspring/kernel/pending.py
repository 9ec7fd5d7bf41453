"""Mail and Origin: who waits for what.

A request enters the table before its actor can see it, so that an answer can never be faster than its entry. Ids
belong to the connection they came from: two clients may use the same id and each gets its own answer. A mail is
closed exactly once, by the first outcome that reaches it; every later one finds it closed and is dropped.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

from mainspring.message import Message

if TYPE_CHECKING:
    from mainspring.kernel.capability import Contract
    from mainspring.kernel.supervisor import Slot


class Origin(Protocol):
    """Where a message came from and where its answer goes: a connection, a waiting caller, or nobody."""

    open: dict[str, Mail]
    external: bool  # a client: turned away while the kernel shuts down

    def deliver(self, message: Message) -> bool:
        """Take an answer. False when it does not fit what the other side can read; nothing was sent then."""
        ...

    def settled(self) -> None:
        """Something this origin handed in is done and gets no answer."""
        ...


class Mail:
    """One message on its way to one actor; for a command or a query also the entry in the pending table."""

    __slots__ = ("closed", "contract", "message", "origin", "seen_id", "slot", "stored", "timer", "unrecorded", "value")

    def __init__(self, message: Message, contract: Contract, slot: Slot, value: Any, origin: Origin | None) -> None:
        self.message = message
        self.contract = contract
        self.slot = slot
        self.value = value
        self.origin = origin  # None: an event, which nobody waits for
        self.timer: Any = None
        self.seen_id = message.metadata.id  # the id the actor knows it by
        self.closed = origin is None
        self.stored = True  # a durable command waits for the log first
        self.unrecorded = False  # a durable command whose outcome the log does not have yet


class Nobody:
    """The origin of scheduled and recovered messages: their answers go to the sink."""

    external = False

    def __init__(self) -> None:
        self.open: dict[str, Mail] = {}

    def deliver(self, message: Message) -> bool:
        return True

    def settled(self) -> None:
        return


class Caller:
    """The origin of one `kernel.ask` or `ctx.send`: a future that gets the answer, whatever its size."""

    __slots__ = ("_waiter", "open")
    external = False

    def __init__(self, waiter: asyncio.Future[Message], open: dict[str, Mail]) -> None:
        self._waiter = waiter
        self.open = open

    def deliver(self, message: Message) -> bool:
        if not self._waiter.done():
            self._waiter.set_result(message)
        return True

    def settled(self) -> None:
        return


def same_content(one: Message, other: Message) -> bool:
    """Whether two messages with one id say the same; time stamps may differ, because a resend has a new one."""
    if one.kind != other.kind or one.type != other.type:
        return False
    if (one.metadata.correlation, one.metadata.causation) != (other.metadata.correlation, other.metadata.causation):
        return False
    return bytes(one.raw) == bytes(other.raw) or _equal(one.data, other.data)


def _equal(one: Any, other: Any) -> bool:
    """JSON equality: true, 1 and 1.0 are three values."""
    waiting = [(one, other)]
    while waiting:
        left, right = waiting.pop()
        if type(left) is not type(right):
            return False
        if isinstance(left, dict):
            if left.keys() != right.keys():
                return False
            waiting += [(left[name], right[name]) for name in left]
        elif isinstance(left, list):
            if len(left) != len(right):
                return False
            waiting += zip(left, right, strict=True)
        elif left != right:
            return False
    return True
