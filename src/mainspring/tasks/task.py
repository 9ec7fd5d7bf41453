"""A declared task: a function, and what was said about it.

The function takes the payload, or the payload and a `TaskContext`, or nothing. The payload is decoded into the type of
its parameter. An ordinary function runs in a thread; a coroutine function runs on the worker's event loop.
"""

from __future__ import annotations

import asyncio
import inspect
import typing
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from mainspring.client.errors import BadArgument
from mainspring.client.event import decoder
from mainspring.tasks.retry import Retry

if TYPE_CHECKING:
    from mainspring.tasks.context import TaskContext
    from mainspring.tasks.handle import TaskHandle
    from mainspring.tasks.queue import TaskQueue

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Cron:
    """When a task enqueues itself: five fields in UTC, or every so many seconds."""

    cron: str | None
    every: float | None
    payload: Any


class DeclaredTask(Generic[P, R]):
    """Made by `@queue.task`. Still callable as the function it is; `enqueue` puts it on the queue."""

    def __init__(
        self,
        queue: TaskQueue,
        function: Callable[P, R],
        name: str,
        *,
        retry: Retry | None,
        timeout: float | None,
        keep_result: bool,
        cron: Cron | None,
    ) -> None:
        self.queue = queue
        self.function = function
        self.name = name
        self.retry = retry
        self.timeout = timeout
        self.keep_result = keep_result
        self.cron = cron
        self.is_async: bool = inspect.iscoroutinefunction(function)
        parameters = [
            each
            for each in inspect.signature(function).parameters.values()
            if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
        ]
        if len(parameters) > 2:
            raise BadArgument(
                f"task {name!r} takes {len(parameters)} arguments", remedy="take the payload, and a TaskContext"
            )
        self._arguments = len(parameters)
        self._decode = decoder(_type_of(function, parameters[0].name) if parameters else None)
        self.__doc__ = function.__doc__
        self.__name__ = name

    def __call__(self, *arguments: P.args, **named: P.kwargs) -> R:
        return self.function(*arguments, **named)

    async def enqueue(self, payload: Any = None, **options: Any) -> TaskHandle:
        """`TaskQueue.enqueue` for this task."""
        return await self.queue.enqueue(self, payload, **options)

    def call(self, raw: Any, context: TaskContext) -> Awaitable[Any]:
        """Begin to run it. Raises what decoding raises when the payload does not fit."""
        payload = self._decode(raw)
        arguments = (payload, context)[: self._arguments]
        function: Any = self.function
        return function(*arguments) if self.is_async else asyncio.to_thread(function, *arguments)


def _type_of(function: Callable[..., Any], parameter: str) -> Any:
    try:
        return typing.get_type_hints(function).get(parameter)
    except NameError as error:
        raise BadArgument(
            f"the type of {parameter!r} is not known here: {error}", remedy="define it before the task, at module level"
        ) from error
