"""App: what a program declares. Decorators note; nothing runs until a node or a kernel reads the notes.

Handlers of messages, programs of runs, answers to effects and enzymes of beats are all declared here. Handlers that
share the first segment of their type form one capability with one actor: `Stock.Reserve` and `Stock.Count` take turns,
`Order.Place` waits for neither. Declarations are plain data (`app.handlers`, `app.programs`, `app.beats`, ...), so that
whoever boots the app can look before anything is started.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, overload

from mainspring.beats import BeatsProgram
from mainspring.beats.program import TargetOf
from mainspring.bus import Checker
from mainspring.capabilities import kernel_capabilities
from mainspring.kernel import Capability, CapabilityError, Handler, Kernel, RestartPolicy, handler_from
from mainspring.kernel.capability import Isolation
from mainspring.runs import Effect, Runtime

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Declared:
    """One decorated function, and what was said about its capability."""

    handler: Handler
    durable: bool | None = None
    isolation: Isolation | None = None
    memory_mb: int | None = None


@dataclass(frozen=True, slots=True)
class DeclaredProgram:
    """A program that runs are made of."""

    function: Callable[..., Any]
    name: str | None = None


@dataclass(frozen=True, slots=True)
class DeclaredAnswer:
    """A function that answers an effect."""

    effect: type[Effect[Any]]
    function: Callable[..., Any]
    strict: bool = False
    timeout_ms: float | None = None


@dataclass
class App:
    """A named set of handlers. `restart` is the policy of every capability that does not bring its own."""

    name: str
    restart: RestartPolicy = field(default_factory=RestartPolicy)
    checker: Checker | None = None  # asked who may use a topic: (topic, action, {agent, scopes}) -> bool
    handlers: list[Declared] = field(default_factory=list, repr=False)
    low_level: list[Capability] = field(default_factory=list, repr=False)
    order: list[str] = field(default_factory=list, repr=False)  # capability ids as they were first mentioned
    programs: list[DeclaredProgram] = field(default_factory=list, repr=False)
    answers: list[DeclaredAnswer] = field(default_factory=list, repr=False)
    beats: BeatsProgram = field(default_factory=BeatsProgram, repr=False)

    def command(
        self,
        type: str,
        *,
        description: str = "",
        durable: bool | None = None,
        isolation: Isolation | None = None,
        memory_mb: int | None = None,
    ) -> Callable[[F], F]:
        """Handle a command: `(data, ctx)`; what the function returns is the reply's data.

        `durable`, `isolation` and `memory_mb` are properties of the whole capability; say them on one handler.
        """
        return self._declare("command", type, description, durable, isolation, memory_mb)

    def query(
        self, type: str, *, description: str = "", isolation: Isolation | None = None, memory_mb: int | None = None
    ) -> Callable[[F], F]:
        """Handle a query: like a command, but nothing changes by asking."""
        return self._declare("query", type, description, None, isolation, memory_mb)

    def on(self, type: str, *, isolation: Isolation | None = None) -> Callable[[F], F]:
        """Hear an event; nobody waits for what the function returns."""
        return self._declare("event", type, "", None, isolation, None)

    def capability(
        self,
        *,
        id: str,
        description: str,
        inbound: Any,
        outbound: Any,
        subscribes: Sequence[str] = (),
        spawn: Callable[[], Any],
        durable: bool = False,
        isolation: Isolation = "task",
        memory_mb: int | None = None,
        restart: RestartPolicy | None = None,
    ) -> None:
        """The low-level form: schemas of whole messages, and a `spawn` that gives a new Worker-shaped actor."""
        self.low_level.append(
            Capability(
                id=id,
                description=description,
                inbound=inbound,
                outbound=outbound,
                subscribes=subscribes,
                spawn=spawn,
                durable=durable,
                isolation=isolation,
                memory_mb=memory_mb,
                restart=restart or self.restart,
            )
        )
        self.order.append(id)

    # Runs

    @overload
    def run(self, program: F) -> F: ...

    @overload
    def run(self, *, name: str) -> Callable[[F], F]: ...

    def run(self, program: Any = None, *, name: str | None = None) -> Any:
        """Declare a program for durable runs, known by its function's name or the one given.

        `Run.Start`, `mainspring runs start` and `Spawn` start it by that name; after a crash it goes on where it was.
        """

        def decorate(function: F) -> F:
            self.programs.append(DeclaredProgram(function, name))
            return function

        return decorate if program is None else decorate(program)

    def handles(
        self, effect: type[Effect[Any]], *, strict: bool = False, timeout_ms: float | None = None
    ) -> Callable[[F], F]:
        """Answer an effect: `(effect, ctx)`; what the function returns is what the program goes on with."""

        def decorate(function: F) -> F:
            self.answers.append(DeclaredAnswer(effect, function, strict, timeout_ms))
            return function

        return decorate

    def install_runs(self, runtime: Runtime) -> None:
        """Make the declared programs and handlers known to a runtime."""
        for answer in self.answers:
            runtime.handle(answer.effect, answer.function, strict=answer.strict, timeout_ms=answer.timeout_ms)
        for program in self.programs:
            runtime.register(program.function, program.name or program.function.__name__)

    # Beats

    def enzyme(
        self,
        query: str,
        *,
        name: str | None = None,
        match: str = "exact",
        before: Sequence[str] = (),
        after: Sequence[str] = (),
    ) -> Callable[[F], F]:
        """Declare an enzyme: `(signal, target, stage)`, called in every beat with a signal that fits the query."""
        return self.beats.enzyme(query, name=name, match=match, before=before, after=after)

    def bind(self, path: str, name: str, propagate: bool = True) -> None:
        """Let an enzyme act on a target path, and below it unless `propagate` is False."""
        self.beats.bind(path, name, propagate)

    def unbind(self, path: str, name: str) -> None:
        """End a binding at this path and below it."""
        self.beats.unbind(path, name)

    def beats_from(self, topic: str, *, target: TargetOf | None = None) -> None:
        """Make each event of a topic one signal, exactly once: its position is stored with the beat."""
        self.beats.beats_from(topic, target=target)

    # What is declared, put together

    def capabilities(self, reserved: set[str] | frozenset[str] = frozenset()) -> list[Capability]:
        """Everything declared, as capabilities, in the order they were first mentioned.

        `reserved` are the ids the node already has. Commands and queries cannot join those; event handlers can hear
        what they say, in a capability of their own.
        """
        segments: dict[str, list[Declared]] = {}
        for declared in self.handlers:
            segments.setdefault(declared.handler.type.partition(".")[0], []).append(declared)
        for capability in self.low_level:
            if capability.id in reserved:
                raise CapabilityError(f"capability {capability.id!r} is built in", remedy="choose another id")
        joined = [self._join(name, declared, reserved) for name, declared in segments.items()]
        return sorted([*joined, *self.low_level], key=self._position)

    def kernel(self, **options: Any) -> Kernel:
        """A kernel with the built-in capabilities and this app, for programs without a node: `async with`."""
        options.setdefault("restart", self.restart)
        kernel = Kernel(**options)
        kernel.register(*kernel_capabilities(kernel))
        kernel.register(*self.capabilities(kernel.ids_taken))
        return kernel

    def _position(self, capability: Capability) -> int:
        name = capability.id.removeprefix(f"{self.name}.")
        return self.order.index(capability.id if capability.id in self.order else name)

    def _declare(
        self,
        kind: Literal["command", "query", "event"],
        type: str,
        description: str,
        durable: bool | None,
        isolation: Isolation | None,
        memory_mb: int | None,
    ) -> Callable[[F], F]:
        names = sys._getframe(2).f_locals

        def decorate(function: F) -> F:
            handler = handler_from(kind, type, function, description=description, local_names=names)
            self.handlers.append(Declared(handler, durable, isolation, memory_mb))
            self.order.append(type.partition(".")[0])
            return function

        return decorate

    def _join(self, name: str, declared: list[Declared], reserved: set[str] | frozenset[str]) -> Capability:
        handlers = [each.handler for each in declared]
        answers = [handler for handler in handlers if handler.kind != "event"]
        taken = name in reserved or any(capability.id == name for capability in self.low_level)
        if taken and answers:
            raise CapabilityError(
                f"{answers[0].kind} {answers[0].type}: the first segment {name!r} belongs to another capability",
                remedy="use a first segment of your own",
            )
        return Capability(
            id=f"{self.name}.{name}" if taken else name,
            description=f"Handlers of {name} in {self.name}.",
            subscribes=list(dict.fromkeys(handler.type for handler in handlers if handler.kind == "event")),
            handlers=handlers,
            durable=bool(_agreed(name, "durable", [each.durable for each in declared])),
            isolation=_agreed(name, "isolation", [each.isolation for each in declared]) or "task",
            memory_mb=_agreed(name, "memory_mb", [each.memory_mb for each in declared]),
            restart=self.restart,
        )


def _agreed(name: str, what: str, said: list[Any]) -> Any:
    """What the handlers of one capability say about it; they share an actor, so they must not disagree."""
    told = {value for value in said if value is not None}
    if len(told) > 1:
        raise CapabilityError(
            f"the handlers of {name!r} disagree about {what}", remedy="they share one actor: say it once"
        )
    return told.pop() if told else None
