"""Timer: messages that are sent later, for everyone who can send a message now."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

from mainspring.errors import MainspringError
from mainspring.kernel import Capability, Context, Fail, Kernel, handler_from
from mainspring.message import Message, encode_data, parse

MAX_DELAY_MS: Final = 10 * 366 * 86_400_000  # ten years: beyond that it is a mistake, not a plan
_PAGE: Final = 50


class Schedule(msgspec.Struct):
    delay: Annotated[
        Annotated[int, msgspec.Meta(ge=0, le=MAX_DELAY_MS)] | Annotated[float, msgspec.Meta(ge=0, le=MAX_DELAY_MS)],
        msgspec.Meta(description="Milliseconds from now until the message is sent."),
    ]
    message: Annotated[
        dict[str, Any],
        msgspec.Meta(description="The message to send: kind, type, data and metadata with an id and any timestamp."),
    ]


class Scheduled(msgspec.Struct):
    timerId: Annotated[str, msgspec.Meta(description="For Timer.Cancel.")]


class Cancel(msgspec.Struct):
    timerId: Annotated[str, msgspec.Meta(description="What Timer.Schedule answered.")]


class Cancelled(msgspec.Struct):
    cancelled: Annotated[bool, msgspec.Meta(description="False when it already fired or never was.")]


class ListTimers(msgspec.Struct):
    offset: Annotated[int, msgspec.Meta(ge=0, description="How many to leave out, earliest first.")] = 0


class Pending(msgspec.Struct):
    timerId: str
    deadline: int
    kind: str
    type: str


class Timers(msgspec.Struct):
    total: int
    timers: list[Pending]


def timer(kernel: Kernel) -> Capability:
    """The capability `Timer` of this kernel."""

    def schedule(data: Schedule, ctx: Context) -> Scheduled:
        """Send a message after a delay. It is caused by this command; its answer goes nowhere."""
        return Scheduled(kernel.timers.schedule(data.delay, _inner(data.message), ctx.message))

    def cancel(data: Cancel, ctx: Context) -> Cancelled:
        """Stop a message that was not sent yet."""
        return Cancelled(kernel.timers.cancel(data.timerId))

    def list_timers(data: ListTimers, ctx: Context) -> Timers:
        """What is still to be sent, earliest first, by type; at most fifty at a time."""
        pending = kernel.timers.pending()
        page = pending[data.offset : data.offset + _PAGE]
        shown = [Pending(each.id, each.deadline_ms, each.message.kind, each.message.type) for each in page]
        return Timers(len(pending), shown)

    handlers = [
        handler_from("command", "Timer.Schedule", schedule),
        handler_from("command", "Timer.Cancel", cancel),
        handler_from("query", "Timer.List", list_timers),
    ]
    return Capability(id="Timer", description="Messages that are sent later.", handlers=handlers)


def _inner(given: dict[str, Any]) -> Message:
    """The scheduled message, held to the same rules as one that comes over a socket."""
    try:
        return parse(bytes(encode_data(given)))
    except MainspringError as error:
        text = error.message.removeprefix("Schema validation failed: ")
        raise Fail(422, f"Schema validation failed: data.message: {text}") from None
