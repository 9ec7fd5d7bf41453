"""Capability: a contract the kernel routes to, and how to make the actor that keeps it.

There are two ways to write one. `Capability` is the low-level form: schemas of whole messages and a `spawn` that
gives a Worker-shaped actor. The form most programs use is `handlers`: functions with type hints, of which the kernel
makes the contract and the actor itself. Both end as a list of `Contract`s, one per (kind, type), so that routing,
validation, `Syscall.Describe` and the boot summary need to know only one thing.
"""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from mainspring.kernel.counters import Tally
from mainspring.kernel.discovery import Branch, discover, outline
from mainspring.kernel.errors import CapabilityError
from mainspring.kernel.shapes import Shape
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
    """One function of a declared capability and the message it is for."""

    kind: Literal["command", "query", "event"]
    type: str
    function: HandlerFunction
    description: str = ""
    input: Any = Any
    output: Any = Any


@dataclass(frozen=True, slots=True)
class Contract:
    """One (kind, type) a capability handles: what goes in, what comes out, and a declared one's function."""

    kind: str
    type: str
    description: str
    input: Shape
    output: Shape
    function: HandlerFunction | None = None
    tally: Tally = field(default_factory=Tally, compare=False, repr=False)  # of its requests in this kernel


@dataclass(frozen=True)
class Capability:
    """What the kernel needs to know to route, describe, supervise and restart.

    Low-level: give `description`, `inbound`, `outbound` and `spawn`. Declared: give `handlers`. `durable` writes
    commands to the log before they are accepted; `isolation="process"` runs the actor in a process of its own.
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


class Plan:
    """A capability, checked: its contracts by (kind, type), its subscriptions, and what it may say."""

    def __init__(self, capability: Capability) -> None:
        self.capability = capability
        self.contracts: list[Contract] = []
        self.listeners: dict[str, list[Contract]] = {}
        self.outbound: list[tuple[Branch, Shape]] = []
        where = f"capability {capability.id!r}"
        _check_settings(capability, where)
        if capability.handlers:
            self._from_handlers(capability, where)
        else:
            self._from_schemas(capability, where)

    @property
    def handles(self) -> list[str]:
        """As the boot summary shows them: `kind:Type`."""
        return [f"{contract.kind}:{contract.type}" for contract in self.contracts]

    def shape_of_output(self, kind: str, type: str) -> Shape | None:
        """The shape of data a low-level actor must give under this kind and type; None when it may not say it."""
        for branch, shape in self.outbound:
            if branch.kind in (None, kind) and (branch.types is None or type in branch.types):
                return shape
        return None

    def _from_handlers(self, capability: Capability, where: str) -> None:
        for handler in capability.handlers:
            described = handler.description or f"Handles {handler.type}."
            name = f"{where}, {handler.kind} {handler.type}"
            shapes = Shape(handler.input, where=name), Shape(handler.output, where=name)
            contract = Contract(handler.kind, handler.type, described, *shapes, handler.function)
            if handler.kind == "event":
                self.listeners.setdefault(handler.type, []).append(contract)
            else:
                self.contracts.append(contract)

    def _from_schemas(self, capability: Capability, where: str) -> None:
        if not capability.description:
            raise CapabilityError(f"{where} has no description", remedy="say in a sentence what it does")
        if capability.inbound is None or capability.outbound is None:
            raise CapabilityError(f"{where} needs an inbound and an outbound schema")
        if not callable(capability.spawn):
            raise CapabilityError(f"{where} has no spawn", remedy="give a function that returns a new actor")
        self.outbound = [
            (branch, Shape(branch.data, where=where)) for branch in outline(capability.outbound, where=where)
        ]
        heard: dict[str, Shape] = {}
        for branch in discover(capability.inbound, where=where):
            shape = Shape(branch.data, where=where)
            for name in branch.types or ():
                if branch.kind == "event":
                    heard[name] = shape
                    continue
                answer = self.shape_of_output("reply", name) or Shape(Any, where=where)
                self.contracts.append(Contract(branch.kind or "", name, capability.description, shape, answer))
        anything = Shape(Any, where=where)
        for name in capability.subscribes:
            contract = Contract("event", name, capability.description, heard.get(name, anything), anything)
            self.listeners[name] = [contract]


def _check_settings(capability: Capability, where: str) -> None:
    if not capability.id or not isinstance(capability.id, str):
        raise CapabilityError("a capability needs an id")
    if capability.isolation not in ("task", "process"):
        raise CapabilityError(f"{where}: isolation is 'task' or 'process'")
    if isinstance(capability.subscribes, str):
        raise CapabilityError(f"{where}: subscribes is a list of event types")
    for name in capability.subscribes:
        if not isinstance(name, str) or not is_type(name):
            raise CapabilityError(f"{where} subscribes to {name!r}, which is not an event type like Memory.Changed")


_REQUIRED: Final = 2


def handler_from(
    kind: Literal["command", "query", "event"],
    type: str,
    function: HandlerFunction,
    *,
    description: str = "",
    local_names: dict[str, Any] | None = None,
) -> Handler:
    """Read a function's hints: first parameter is the input, the return the output. Raises `CapabilityError`."""
    where = f"{kind} {type}"
    if not isinstance(type, str) or not is_type(type):
        raise CapabilityError(f"{type!r} is not a message type: two PascalCase segments, like Stock.Reserve")
    if kind != "event" and type.startswith("Sys."):
        raise CapabilityError(f"{where}: types in Sys.* belong to the kernel", remedy="use another first segment")
    try:
        signature = inspect.signature(function)
        signature.bind(*(None,) * _REQUIRED)
    except (TypeError, ValueError):
        raise CapabilityError(
            f"the handler of {where} must take (data, ctx)", remedy="def handler(data: Sku, ctx) -> int"
        ) from None
    hints = _hints(function, where, local_names or {})
    first = next(iter(signature.parameters))
    described = description or inspect.getdoc(function) or ""
    output = hints.get("return", Any)
    return Handler(kind, type, function, described, hints.get(first, Any), output)


def _hints(function: Any, where: str, local_names: dict[str, Any]) -> dict[str, Any]:
    target = function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004
    module = sys.modules.get(getattr(target, "__module__", None) or "", None)
    known = {**getattr(module, "__dict__", {}), **getattr(target, "__globals__", {})}
    try:
        return typing.get_type_hints(target, globalns=known, localns=local_names or None, include_extras=True)
    except NameError as error:
        raise CapabilityError(
            f"the handler of {where} has a type hint that is not known here: {error}",
            remedy="define the type before the handler",
        ) from None
