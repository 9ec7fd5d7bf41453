"""Middleware: functions of the program around every call of its handlers.

    @app.middleware
    async def timing(call: HandlerCall, next: Next) -> Any:
        began = time.perf_counter()
        try:
            return await next(call)
        finally:
            observe(call.kind, call.name, time.perf_counter() - began)

They surround commands, queries, kernel events, consumers, schedules, tasks, handlers of effects and steps of runs, each
attempt of them, in the node and in worker processes. The first declared is the outermost. Whether there is any is asked
when a node starts, so that a program without middleware pays nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal

from mainspring.kernel import CapabilityError

HandlerKind = Literal["command", "query", "event", "consumer", "schedule", "task", "effect", "step", "hook"]


@dataclass(frozen=True, slots=True)
class HandlerCall:
    """One call of a handler, as middleware sees it.

    `name` is the message's type, the consumer's group, or the name of the schedule, task, effect or step. `value` is
    what the function is for: the data, the Event (a list of them for a batch), the effect, the arguments of a task
    or a step; None for a schedule that takes nothing. `ctx` is what it is given besides, if anything. `attempt` of a
    batch is the highest of its events.
    """

    kind: HandlerKind
    name: str
    value: Any
    ctx: Any
    attempt: int


Next = Callable[[HandlerCall], Awaitable[Any]]
Middleware = Callable[[HandlerCall, Next], Awaitable[Any]]


class MiddlewareStack:
    """The middleware of an app, in the order it was declared."""

    def __init__(self) -> None:
        self._functions: list[Middleware] = []

    def __bool__(self) -> bool:
        return bool(self._functions)

    def add(self, function: Middleware) -> None:
        """Raises CapabilityError unless it is an async function of two arguments."""
        try:
            fits = inspect.iscoroutinefunction(function) and inspect.signature(function).bind(None, None)
        except TypeError:
            fits = False
        if not fits:
            raise CapabilityError(
                f"middleware is an async function of a call and the next one, not {function!r}",
                remedy="async def timing(call: HandlerCall, next: Next) -> Any: return await next(call)",
            )
        self._functions.append(function)

    def call(self, kind: HandlerKind, name: str, value: Any, ctx: Any, go: Callable[[], Any]) -> Awaitable[Any]:
        """Have `go` done, with everything around it."""

        async def innermost(_: HandlerCall) -> Any:
            result = go()
            return await result if inspect.isawaitable(result) else result

        next: Next = innermost
        for function in reversed(self._functions):
            next = _before(function, next)
        return next(call_of(kind, name, value, ctx))


def call_of(kind: HandlerKind, name: str, value: Any, ctx: Any) -> HandlerCall:
    """A call as middleware and providers see it."""
    source = value if ctx is None else ctx
    events = source if kind == "consumer" and isinstance(source, list) else [source]
    return HandlerCall(kind, name, value, ctx, max(getattr(each, "attempt", 1) for each in events))


def _before(function: Middleware, next: Next) -> Next:
    return lambda call: function(call, next)
