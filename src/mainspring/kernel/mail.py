"""Mail and Origin: which request waits for an answer, and where the answer goes.

A request enters the table before its actor can see it, so that an answer can never be faster than its entry. Ids
belong to the connection they came from: two clients may use the same id and each gets its own answer. A mail is
closed exactly once, by the first outcome that reaches it; every later one finds it closed and is dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import msgspec

from mainspring.errors import fail_from
from mainspring.message import Message
from mainspring.telemetry import OpenSpan

if TYPE_CHECKING:
    from mainspring.kernel.contracts import Contract, Shape
    from mainspring.kernel.supervisor import ActorSlot


class Origin(Protocol):
    """Where a message came from and where its answer goes: a connection, a waiting caller, or nowhere."""

    open: dict[str, Mail]

    @property
    def external(self) -> bool:
        """Whether it is a client: those are turned away while the kernel shuts down."""
        ...

    def deliver(self, message: Message) -> bool:
        """Take an answer. False when it does not fit what the other side can read; nothing was sent then."""
        ...

    def settled(self) -> None:
        """Something this origin handed in is done and gets no answer."""
        ...


class Mail(msgspec.Struct, eq=False):
    """One message on its way to one actor; for a command or a query also the entry in the pending table."""

    message: Message
    contract: Contract
    slot: ActorSlot
    value: Any  # the data, made for its handler
    origin: Origin | None  # None: an event, which has no answer
    closed: bool = False
    timer: Any = None
    seen_id: str = ""  # the id the actor knows it by, where that is not its own
    stored: bool = True  # a durable command waits for the log first
    unrecorded: bool = False  # a durable command whose outcome the log does not have yet
    began_ns: int = 0  # when it was opened, by the loop's clock
    key: Any = None  # what it is ordered by, where its handler has a key
    doing: OpenSpan | None = None  # its span, where spans are recorded


class NoReplyOrigin:
    """The origin of scheduled and recovered messages: nobody waits for their outcomes, which go to the sink."""

    external = False

    def __init__(self) -> None:
        self.open: dict[str, Mail] = {}

    def deliver(self, message: Message) -> bool:
        return True

    def settled(self) -> None:
        return


class KeptOrigin(NoReplyOrigin):
    """The origin of a message that a record keeps until it was handled: the outcome decides about the record."""

    def __init__(self, on_outcome: Callable[[Message], None]) -> None:
        super().__init__()
        self._on_outcome = on_outcome

    def deliver(self, message: Message) -> bool:
        self._on_outcome(message)
        return True


class SendOrigin(msgspec.Struct, eq=False):
    """The origin of one `ctx.send`: a future that gets the answer, whatever its size.

    `caller` is who asks, for those who answer to look at its rights; None: the node's own program. Ids belong to who
    asks: another one that sends the same id gets its own answer.
    """

    waiter: asyncio.Future[Any]
    caller: Any = None
    open: dict[str, Mail] = {}
    external: ClassVar[bool] = False

    def deliver(self, message: Message) -> bool:
        if not self.waiter.done():
            self.waiter.set_result(message)
        return True

    def settled(self) -> None:
        return


class AskOrigin(SendOrigin):
    """The origin of one `kernel.ask`: its future gives the reply's data, or raises the error."""

    def deliver(self, message: Message) -> bool:
        waiter = self.waiter
        if waiter.done():
            return True
        if message.kind == "reply":
            waiter.set_result(message.data)
        else:
            waiter.set_exception(fail_from(message.data, message.type))
        return True


def same_content(one: Message, other: Message, shape: Shape) -> bool:
    """Whether two messages with one id have the same content; a resend has a time stamp of its own.

    `shape` is that of their data: what a codec encodes twice looks different.
    """
    if one.kind != other.kind or one.type != other.type:
        return False
    if (one.metadata.correlation, one.metadata.causation) != (other.metadata.correlation, other.metadata.causation):
        return False
    if bytes(one.raw) == bytes(other.raw):
        return True
    return _equal(msgspec.json.decode(shape.opened(one.raw)), msgspec.json.decode(shape.opened(other.raw)))


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
