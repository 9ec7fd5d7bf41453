"""A declared task: a function, and what was said about it.

The function takes the payload, or the payload and a `TaskContext`, or nothing. The payload is decoded into the type of
its parameter. An ordinary function runs in a thread; a coroutine function runs on the worker's event loop.
"""

from __future__ import annotations

import asyncio
import inspect
import typing
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from mainspring.client import BadArgument, decoder
from mainspring.durations import Duration, seconds

if TYPE_CHECKING:
    from mainspring.tasks.queue import TaskQueue
    from mainspring.tasks.results import TaskHandle


@dataclass(frozen=True, slots=True)
class Retry:
    """How often a task is tried, and how long it waits in between.

    After attempt k it waits `first * factor**(k-1)`, at most `longest`, shortened at random by up to `jitter`
    of it. After `attempts` deliveries it is a dead letter. The policy travels with the task, in a header, so that a
    task keeps the promise it was enqueued with, whichever worker gets it. The node counts the attempts and does the
    waiting: a worker that stops loses nothing.
    """

    attempts: int = 5
    first: Duration = 1.0
    factor: float = 2.0
    longest: Duration = 600.0
    jitter: float = 0.5

    def __post_init__(self) -> None:
        seconds(self.first)  # refused where it is said
        seconds(self.longest)
        if self.attempts < 1 or self.factor < 1 or not 0 <= self.jitter <= 1:
            raise BadArgument(f"{self} makes no sense", remedy="attempts >= 1, factor >= 1, jitter 0 to 1")

    def delay(self, attempt: int, random: Callable[[], float]) -> float:
        """Seconds to wait after this attempt failed."""
        full = min(seconds(self.first) * self.factor ** min(attempt - 1, 64), seconds(self.longest))
        return full * (1 - self.jitter * random())

    def header(self) -> str:
        """As it travels with a task."""
        first, longest = seconds(self.first), seconds(self.longest)
        return f"{self.attempts} {first:g} {self.factor:g} {longest:g} {self.jitter:g}"

    @classmethod
    def from_header(cls, text: str | None, default: Retry) -> Retry:
        """The policy of a task; a header that makes no sense counts as none."""
        if not text:
            return default
        try:
            attempts, first, factor, longest, jitter = text.split(" ")
            return cls(int(attempts), float(first), float(factor), float(longest), float(jitter))
        except (ValueError, BadArgument):
            return default


NEVER = Retry(attempts=1)


class TaskContext:
    """Handed to a task that takes two arguments."""

    __slots__ = ("_report", "attempt", "cancelled", "enqueued_ms", "headers", "id", "key", "name")

    def __init__(
        self,
        *,
        id: str,
        name: str,
        attempt: int,
        key: str | None,
        headers: Mapping[str, str],
        enqueued_ms: int,
        report: Callable[[TaskContext, Any], None],
    ) -> None:
        self.id: str = id
        self.name: str = name
        self.attempt: int = attempt  # 1 the first time
        self.key: str | None = key
        self.headers: Mapping[str, str] = headers
        self.enqueued_ms: int = enqueued_ms  # epoch ms
        self.cancelled: bool = False  # for functions that run in a thread: nothing else can interrupt them
        self._report = report

    def progress(self, value: Any) -> None:
        """Report progress: any JSON, for instance `{"done": 3, "of": 10}`. Does not wait; works from a thread, too."""
        self._report(self, value)


P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class TaskSchedule:
    """When a task enqueues itself: five fields in UTC, or an interval."""

    cron: str | None
    every: Duration | None
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
        timeout: Duration | None,
        keep_result: bool,
        cron: TaskSchedule | None,
    ) -> None:
        self.queue = queue
        self.function = function
        self.name = name
        self.retry = retry
        self.timeout: float | None = None if timeout is None else seconds(timeout)
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
