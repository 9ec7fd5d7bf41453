"""Capability: what a program declares, so that the kernel can route to it, describe it and restart its actor.

There are two ways to write one. `Capability` is the low-level form: schemas of whole messages and a `spawn` that
returns a Worker-shaped actor. Most programs use `handlers`: functions with type hints, from which the kernel makes the
contracts and the actor itself.
"""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from mainspring.codec import Encoding
from mainspring.kernel.errors import CapabilityError
from mainspring.loop import runs_in_thread
from mainspring.message import is_type

Isolation = Literal["task", "process"]
HandlerFunction = Callable[[Any, Any], Any]


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """How often an actor may be replaced. The fault after the last allowed restart makes its capability unhealthy.

    Three in a minute, a second apart: a passing trouble is survived, a lasting one is reported instead of repeated.
    """

    max_restarts: int = 3
    window_ms: int = 60_000
    backoff_ms: int = 1_000

    def __post_init__(self) -> None:
        if self.max_restarts < 0 or self.window_ms <= 0 or self.backoff_ms < 0:
            raise ValueError("a restart policy has max_restarts >= 0, window_ms > 0 and backoff_ms >= 0")


@dataclass(frozen=True, slots=True)
class Handler:
    """One function of a declared capability and the message it is for.

    `in_thread`: it is a plain function that may block, and runs in a thread. `concurrency`: so many of its messages at
    a time, counted apart from the others of the capability. `key` of the data: messages of the capability with the same
    key are handled one at a time, in order.
    """

    kind: Literal["command", "query", "event"]
    type: str
    function: HandlerFunction
    description: str = ""
    input: Any = Any
    output: Any = Any
    in_thread: bool = False
    concurrency: int | None = None
    key: Callable[[Any], Any] | None = None
    everywhere: bool = False  # an event: also when it happened on another node that shares the log
    around: Callable[..., Awaitable[Any]] | None = None  # called with kind, type, data, ctx and what does the work
    encoding: Encoding | None = None  # of data that is sent and received


@dataclass(frozen=True)
class Capability:
    """What the kernel needs to know to route, describe, supervise and restart.

    Low-level: give `description`, `inbound`, `outbound` and `spawn`. Declared: give `handlers`. `durable` writes
    commands to the log before they are accepted; `isolation="process"` runs the actor in a process of its own.
    `concurrency` is how many messages its handlers take at a time, a process always one. Low-level actors and processes
    are supervised; handlers only with `restart`, else an exception is an error for its requester and nothing more.
    """

    id: str
    description: str = ""
    inbound: Any = None
    outbound: Any = None
    subscribes: Sequence[str] = ()
    spawn: Callable[[], Any] | None = None
    handlers: Sequence[Handler] = ()
    durable: bool = False
    isolation: Isolation = "task"
    memory_mb: int | None = None
    restart: RestartPolicy | None = None
    concurrency: int = 1


_FIELDS: Final = ("__struct_fields__", "__dataclass_fields__", "model_fields", "__annotations__")  # of data's types
_REQUIRED: Final = 2  # parameters of a handler: data and ctx


def handler_from(
    kind: Literal["command", "query", "event"],
    type: str,
    function: HandlerFunction,
    *,
    description: str = "",
    local_names: dict[str, Any] | None = None,
    may_block: bool = False,
    concurrency: int | None = None,
    key: str | Callable[[Any], Any] | None = None,
    everywhere: bool = False,
    others: Collection[str] = (),
) -> Handler:
    """Read a function's hints: first parameter is the input, the return the output. Raises `CapabilityError`.

    A plain function that `may_block` runs in a thread; without it, on the loop. `key` is the name of a field of the
    data, or a function of the data. `others` are parameters that somebody else will give.
    """
    where = f"{kind} {type}"
    if not isinstance(type, str) or not is_type(type):
        raise CapabilityError(f"{type!r} is not a message type: two PascalCase segments, like Stock.Reserve")
    if kind != "event" and type.startswith("Sys."):
        raise CapabilityError(f"{where}: types in Sys.* belong to the kernel", remedy="use another first segment")
    try:
        signature = inspect.signature(function)
        own = [each for each in signature.parameters.values() if each.name not in others]
        signature.replace(parameters=own).bind(*(None,) * _REQUIRED)
    except (TypeError, ValueError):
        raise CapabilityError(
            f"the handler of {where} must take (data, ctx)", remedy="def handler(data: Sku, ctx) -> int"
        ) from None
    hints = _hints(function, where, local_names or {})
    first = own[0].name
    description = description or inspect.getdoc(function) or ""
    given, returned = hints.get(first, Any), hints.get("return", Any)
    threaded = may_block and runs_in_thread(function)
    key_of = _key_function(key, given, where) if isinstance(key, str) else key
    return Handler(kind, type, function, description, given, returned, threaded, concurrency, key_of, everywhere)


def _key_function(field: str, given: Any, where: str) -> Callable[[Any], Any]:
    """From data to the value of one field; that it has this field is checked now where its type says so."""
    fields = next((getattr(given, name) for name in _FIELDS if hasattr(given, name)), None)
    if fields is not None and field not in fields:
        raise CapabilityError(
            f"{where} is ordered by {field!r}, and its data has no such field", remedy=f"it has {', '.join(fields)}"
        )
    return lambda data: data[field] if isinstance(data, dict) else getattr(data, field)


def _hints(function: Any, where: str, local_names: dict[str, Any]) -> dict[str, Any]:
    target = function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004
    module = sys.modules.get(getattr(target, "__module__", None) or "", None)
    names = {**getattr(module, "__dict__", {}), **getattr(target, "__globals__", {})}
    try:
        return typing.get_type_hints(target, globalns=names, localns=local_names or None, include_extras=True)
    except NameError as error:
        raise CapabilityError(
            f"the handler of {where} has a type hint that is not known here: {error}",
            remedy="define the type before the handler",
        ) from None
