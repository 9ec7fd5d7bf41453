"""Event: a client that wants events says which.

Without it a connection only carries replies and errors. A subscription belongs to its connection and ends with it. A
client that reads too slowly misses events rather than making anyone wait; it is told how many. A token hears events of
the types that it may query (`query:Stock.*`).

Handlers of an event are called on the node where it happened, and nowhere else: what they do must be done once. But a
connection that subscribed to events does not know, and need not know, which node something happened on. So events that
can be read from the changes of a shared log are streamed to the connections of every node.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Final

import msgspec

from mainspring.builtin.answers import Messages, about, caller_of
from mainspring.kernel import Capability, Context, Fail, Kernel
from mainspring.log import Change, Log

MAX_PATTERNS: Final = 256
_PATTERN: Final = re.compile(r"\*|(\*|[A-Z][a-zA-Z0-9]*)\.(\*|[A-Z][a-zA-Z0-9]*)")

Types = Annotated[list[str], about('Event types, like Stock.Changed, "Stock.*" or "*".')]


Streamed = Annotated[list[str], about("Everything this connection gets now.")]

message: Final = Messages("Event", "Events streamed to a connection.")


def event_capability(kernel: Kernel) -> Capability:
    """The capability `Event` of this kernel."""
    return message.of(kernel)


@message("command", "Event.Subscribe", "SubscribeRequest", gives="SubscribedTypes.types")
def subscribe(
    kernel: Kernel, ctx: Context, types: Annotated[Types, msgspec.Meta(min_length=1, max_length=MAX_PATTERNS)]
) -> Streamed:
    """Stream events of these types on this connection."""
    wanted = list(dict.fromkeys([*_patterns_of(kernel, ctx, types), *types]))
    if len(wanted) > MAX_PATTERNS:
        raise Fail(422, f"Schema validation failed: data.types: at most {MAX_PATTERNS} patterns per connection")
    return _set_patterns(kernel, ctx, wanted)


@message("command", "Event.Unsubscribe", "UnsubscribeRequest", gives="SubscribedTypes.types")
def unsubscribe(kernel: Kernel, ctx: Context, types: Types = []) -> Streamed:  # noqa: B006
    """Stop streaming these types; without types, all of them."""
    left = [each for each in _patterns_of(kernel, ctx, types) if types and each not in types]
    return _set_patterns(kernel, ctx, left)


def _patterns_of(kernel: Kernel, ctx: Context, given: list[str]) -> list[str]:
    """What the connection gets now, if it is one and the given types are patterns."""
    if not all(_PATTERN.fullmatch(pattern) for pattern in given):
        raise Fail(422, 'Schema validation failed: data.types: a type, "Segment.*", "*.Name" or "*"')
    if not hasattr(ctx.origin, "stream"):
        raise Fail(409, "events are streamed on a connection", remedy="inside a program use kernel.observe")
    return getattr(kernel.streams.get(ctx.origin), "patterns", [])


def _set_patterns(kernel: Kernel, ctx: Context, patterns: list[str]) -> list[str]:
    if patterns and not ctx.origin.gone:
        caller = caller_of(ctx)
        kernel.streams[ctx.origin] = TypePatterns(patterns, None if caller is None else caller.may_hear)
    else:
        kernel.streams.pop(ctx.origin, None)
    return patterns


def on_remote_change(kernel: Kernel, log: Log | None, callback: Callable[[Change], object]) -> None:
    """Call with the changes of records by other nodes, as long as a connection of this node listens to events."""

    def on_change(change: Change) -> None:
        if not change.own and kernel.streams:
            callback(change)

    if log is not None:
        log.watch_records(on_change)


class TypePatterns:
    """The patterns of one connection. Call it to ask whether it wants a type, and may hear it."""

    def __init__(self, patterns: list[str], may_hear: Callable[[str], bool] | None = None) -> None:
        self.patterns = patterns
        self._may_hear = may_hear
        self._tests: list[Callable[[str], object]] = [
            re.compile(
                r"\.".join(r"[^.]+" if part == "*" else re.escape(part) for part in pattern.split("."))
                if pattern != "*"
                else r".+"
            ).fullmatch
            for pattern in patterns
        ]

    def __call__(self, type: str) -> bool:
        return any(test(type) for test in self._tests) and (self._may_hear is None or self._may_hear(type))
