"""Event: a client that wants to hear events says which.

Without it a connection only carries replies and errors. A subscription belongs to its connection and ends with it. A
client that reads too slowly misses events rather than making anyone wait; it is told how many.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Final

import msgspec

from mainspring.kernel import Capability, Context, Fail, Kernel, handler_from

MAX_PATTERNS: Final = 256
_PATTERN: Final = re.compile(r"\*|(\*|[A-Z][a-zA-Z0-9]*)\.(\*|[A-Z][a-zA-Z0-9]*)")

Types = Annotated[list[str], msgspec.Meta(description='Event types, like Stock.Changed, "Stock.*" or "*".')]


class Subscribe(msgspec.Struct):
    types: Annotated[Types, msgspec.Meta(min_length=1, max_length=MAX_PATTERNS)]


class Unsubscribe(msgspec.Struct):
    types: Types = []


class Subscribed(msgspec.Struct):
    types: Annotated[list[str], msgspec.Meta(description="Everything this connection hears now.")]


def event(kernel: Kernel) -> Capability:
    """The capability `Event` of this kernel."""

    def subscribe(data: Subscribe, ctx: Context) -> Subscribed:
        """Stream events of these types on this connection."""
        _check(data.types)
        wanted = list(dict.fromkeys([*_chosen_by(ctx), *data.types]))
        if len(wanted) > MAX_PATTERNS:
            raise Fail(422, f"Schema validation failed: data.types: at most {MAX_PATTERNS} patterns per connection")
        return _choose(ctx, wanted)

    def unsubscribe(data: Unsubscribe, ctx: Context) -> Subscribed:
        """Stop streaming these types; without types, all of them."""
        _check(data.types)
        left = [each for each in _chosen_by(ctx) if data.types and each not in data.types]
        return _choose(ctx, left)

    def _chosen_by(ctx: Context) -> list[str]:
        if not hasattr(ctx.origin, "stream"):
            raise Fail(409, "events are streamed on a connection", remedy="inside a program use kernel.observe")
        return getattr(kernel.exchange.streams.get(ctx.origin), "patterns", [])

    def _choose(ctx: Context, patterns: list[str]) -> Subscribed:
        if patterns and not ctx.origin.gone:
            kernel.exchange.streams[ctx.origin] = Wanted(patterns)
        else:
            kernel.exchange.streams.pop(ctx.origin, None)
        return Subscribed(patterns)

    handlers = [
        handler_from("command", "Event.Subscribe", subscribe),
        handler_from("command", "Event.Unsubscribe", unsubscribe),
    ]
    return Capability(id="Event", description="Events streamed to a connection.", handlers=handlers)


class Wanted:
    """The patterns of one connection, as a question: is this type wanted?"""

    def __init__(self, patterns: list[str]) -> None:
        self.patterns = patterns
        self._tests: list[Callable[[str], object]] = [
            re.compile(
                r"\.".join(r"[^.]+" if part == "*" else re.escape(part) for part in pattern.split("."))
                if pattern != "*"
                else r".+"
            ).fullmatch
            for pattern in patterns
        ]

    def __call__(self, type: str) -> bool:
        return any(test(type) for test in self._tests)


def _check(patterns: list[str]) -> None:
    if not all(_PATTERN.fullmatch(pattern) for pattern in patterns):
        raise Fail(422, 'Schema validation failed: data.types: a type, "Segment.*", "*.Name" or "*"')
