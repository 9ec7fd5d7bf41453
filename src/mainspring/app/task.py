"""Tasks: functions of the program that the node calls later, at least once.

A task is an event of a topic of its own, `tasks.<app>.<name>`, and its function a consumer of it. So it is durable when
`enqueue` returns, comes again with back-off when it fails, and is a dead letter after its last attempt. For results,
priorities and workers in other processes there is `mainspring.client.TaskQueue`.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

import msgspec

from mainspring.app.declared import DeclaredConsumer, check_types, hints_of, place_of
from mainspring.app.event import Event
from mainspring.data_types import decode_as, json_encoder
from mainspring.durations import Duration, duration_ms
from mainspring.errors import MainspringError
from mainspring.loop import blocking_verb, identifies_work, runs_in_thread

if TYPE_CHECKING:
    from mainspring.app.app import App

P = ParamSpec("P")
R = TypeVar("R")

Publish = Callable[..., Awaitable[Any]]


class NotServed(MainspringError):
    """No node serves the program now, so nothing can be enqueued."""

    code = "not_served"


class Call(msgspec.Struct, omit_defaults=True):
    """The payload of a task's event."""

    args: list[msgspec.Raw] = []
    kwargs: dict[str, msgspec.Raw] = {}


class Task(Generic[P, R]):
    """A declared task. Calling it calls the function here and now; `enqueue` leaves it to the node."""

    def __init__(
        self, app: App, function: Callable[P, R], *, name: str, local_names: dict[str, Any], **options: Any
    ) -> None:
        self.name = name
        self.topic: str = f"tasks.{app.name}.{name}"
        self.function = function
        self._app = app
        self._signature = inspect.signature(function)
        self._hints = hints_of(function, f"the task {name!r}", local_names)
        check_types(f"the task {name!r}", {each: hint for each, hint in self._hints.items() if each != "return"})
        perform = self._perform_in_thread if runs_in_thread(function) else self._perform
        self.consumer: DeclaredConsumer = DeclaredConsumer(
            self.topic, app.name, perform, payload=Call, place=place_of(function), **options
        )

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    @blocking_verb
    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """Have it done soon; gives the event's id. Durable when it returns."""
        return await self._enqueue(self.payload(*args, **kwargs))

    @blocking_verb
    async def enqueue_in(self, delay: Duration, *args: P.args, **kwargs: P.kwargs) -> str:
        """Have it done after a while, at the earliest; survives restarts in between."""
        return await self._enqueue(self.payload(*args, **kwargs), delay_ms=duration_ms(delay))

    def payload(self, *args: P.args, **kwargs: P.kwargs) -> Call:
        """What to publish to `topic` to have it done: with a reply (`ctx.publish`) or an acknowledgement."""
        self._signature.bind(*args, **kwargs)
        encode = json_encoder().encode
        return Call(
            [msgspec.Raw(encode(value)) for value in args],
            {name: msgspec.Raw(encode(value)) for name, value in kwargs.items()},
        )

    async def _enqueue(self, call: Call, **options: Any) -> str:
        if self._app.publisher is None:
            raise NotServed(
                f"the program of task {self.name!r} is not served now",
                remedy="enqueue from inside a node or simulation",
            )
        published = await self._app.publisher(self.topic, call, **options)
        return str(published.id)

    @identifies_work(lambda known: ("task", known["self"].name))
    async def _perform(self, event: Event[Call]) -> None:
        bound = self._bound(event)
        await self.function(*bound.args, **bound.kwargs)  # type: ignore[misc]

    def _perform_in_thread(self, event: Event[Call]) -> Any:
        bound = self._bound(event)
        return self.function(*bound.args, **bound.kwargs)

    def _bound(self, event: Event[Call]) -> inspect.BoundArguments:
        bound = self._signature.bind(*event.payload.args, **event.payload.kwargs)
        for name, value in bound.arguments.items():
            bound.arguments[name] = self._decoded(name, value)
        return bound

    def _decoded(self, name: str, value: Any) -> Any:
        """An argument in the type its parameter declares; those of `*args` and `**kwargs` each."""
        hint = self._hints.get(name, Any)
        if isinstance(value, tuple):
            return tuple(decode_as(hint, each) for each in value)
        if isinstance(value, dict):
            return {key: decode_as(hint, each) for key, each in value.items()}
        return decode_as(hint, value)
