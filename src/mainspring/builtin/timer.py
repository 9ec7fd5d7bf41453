"""Timer: messages that are sent later."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec

from mainspring.builtin.answers import Messages, about, caller_of
from mainspring.errors import MainspringError
from mainspring.kernel import Capability, Context, Fail, Kernel
from mainspring.message import Message, encode_data, parse

MAX_DELAY_MS: Final = 10 * 366 * 86_400_000  # ten years: beyond that it is a mistake, not a plan
MAX_TIMERS: Final = 100_000  # they are kept in memory
MAX_TIMER_BYTES: Final = 64 << 20  # of their messages' data
_PAGE: Final = 50


message: Final = Messages("Timer", "Messages that are sent later.")


class PendingTimer(msgspec.Struct, omit_defaults=True):
    timerId: str
    deadline: int
    kind: Annotated[Literal["scheduled", "retry"], about("Sent later, or sent again because it failed.")]
    type: Annotated[str, about("Of the message.")]
    messageKind: str
    durable: Annotated[bool, about("It outlives the node.")] = False
    elsewhere: Annotated[bool, about("Another node sends it.")] = False
    attempt: Annotated[int, about("Which attempt of a message with a retry this is.")] = 1


class TimersResult(msgspec.Struct):
    total: int
    timers: list[PendingTimer]


def timer_capability(kernel: Kernel) -> Capability:
    """The capability `Timer` of this kernel."""
    return message.of(kernel)


@message("command", "Timer.Schedule", "ScheduleMessageRequest", gives="ScheduledTimer.timerId")
async def schedule(
    kernel: Kernel,
    ctx: Context,
    delay: Annotated[
        Annotated[int, msgspec.Meta(ge=0, le=MAX_DELAY_MS)] | Annotated[float, msgspec.Meta(ge=0, le=MAX_DELAY_MS)],
        about("Milliseconds from now until the message is sent."),
    ],
    message: Annotated[
        dict[str, Any], about("The message to send: kind, type, data and metadata with an id and any timestamp.")
    ],
    durable: Annotated[bool, about("Keep it in the log: it is sent also if the node ends meanwhile.")] = False,
) -> Annotated[str, about("For Timer.Cancel.")]:
    """Send a message after a delay. It is caused by this command; its answer is dropped."""
    inner = _inner(message)
    _check_rights(ctx, inner)
    if len(kernel.timers) >= MAX_TIMERS or kernel.timers.bytes > MAX_TIMER_BYTES:
        raise Fail(
            429,
            f"{len(kernel.timers)} timers are set, as many as there may be",
            remedy="publish delayed events instead",
        )
    if not durable:
        return kernel.timers.schedule(delay, inner, ctx.message.metadata)
    if kernel.durable_timers is None:
        raise Fail(409, "this node has no log to keep a timer in", remedy="leave durable out, or serve with a log")
    return await kernel.durable_timers.schedule(delay, inner, ctx.message.metadata)


@message("command", "Timer.Cancel", "CancelTimerRequest", gives="CancelTimerResult.cancelled")
async def cancel(
    kernel: Kernel, timerId: Annotated[str, about("What Timer.Schedule answered.")]
) -> Annotated[bool, about("False when it already fired or never was.")]:
    """Stop a message that was not sent yet. One that would be sent again fails with its last error."""
    timer = kernel.timers.get(timerId)
    if timer is not None and not timer.durable:
        return kernel.timers.cancel(timerId)
    return kernel.durable_timers is not None and await kernel.durable_timers.cancel(timerId)


@message("query", "Timer.List", "ListTimersRequest")
async def list_timers(
    kernel: Kernel,
    offset: Annotated[int, msgspec.Meta(ge=0, description="How many to leave out, earliest first.")] = 0,
) -> TimersResult:
    """What is still to be sent, earliest first, by type; at most fifty at a time.

    The timers of this node, and the durable ones of other nodes that share its log.
    """
    here = [
        PendingTimer(
            each.id,
            each.deadline_ms,
            each.kind,
            each.message.type,
            each.message.kind,
            each.durable,
            attempt=each.message.metadata.attempt,
        )
        for each in kernel.timers.pending()
    ]
    others = [] if kernel.durable_timers is None else await kernel.durable_timers.elsewhere()
    there = [
        PendingTimer(id, each.deadline_ms, "scheduled", each.message.type, each.message.kind, True, True)
        for id, each in others
    ]
    pending = sorted(here + there, key=lambda timer: timer.deadline)
    return TimersResult(len(pending), pending[offset : offset + _PAGE])


def _check_rights(ctx: Context, inner: Message) -> None:
    """When it is sent nobody's rights are asked any more: so a limited token may send only what it may send anyhow.

    The rights on `Bus.*` depend on the topic, and those on `Timer.*` on one more message within.
    """
    caller = caller_of(ctx)
    if caller is None or not caller.is_limited:
        return
    may_depend = inner.type.partition(".")[0] in ("Bus", "Timer")
    if inner.kind not in ("command", "query") or may_depend or not caller.may_see(inner.kind, inner.type):
        raise Fail(403, "this token may not send the message later", remedy="use a token with the scope admin")


def _inner(given: dict[str, Any]) -> Message:
    """The scheduled message, held to the rules of one that comes over a socket, but for its timestamp."""
    try:
        return parse(bytes(encode_data(given)), any_timestamp=True)  # it gets a new one when it is sent
    except MainspringError as error:
        text = error.message.removeprefix("Schema validation failed: ")
        raise Fail(422, f"Schema validation failed: data.message: {text}") from None
