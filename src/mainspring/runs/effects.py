"""Effects: what a program asks for, the three ways to answer, and the effects that every runtime knows.

An effect is a typed request that a program yields; it says what is wanted, never how. Its class is its identity: the
runtime finds the handler by the exact class and never falls back to a parent's handler, because a capability that is
missing must fail, not be replaced quietly by a similar one.

Effects are msgspec Structs (frozen): creating one costs a fraction of a dataclass, and a durable run can write its
arguments into the journal without a second description of their shape.

Handlers of built-in effects that need nothing from outside are at the end of this file. `Ask`, `Publish` and
`WaitEvent` reach other parts of a node; their handlers are made in `ports.py` from what the node passes in. `Join`,
`GroupEnd`, `HasEnded` and `Until` are what groups and joins perform; they are effects so that a durable run writes down
what it learned about its children.
"""

from __future__ import annotations

import random
import types
import typing
import uuid
from collections.abc import Callable, Generator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Literal, TypeVar

import msgspec

from mainspring.durations import Duration, duration_ms
from mainspring.runs.errors import ChildFailed, RunError
from mainspring.runs.run import Cancelled, Failed, Outcome, Value
from mainspring.runs.tree import when_ended
from mainspring.runs.values import decode, encode, encode_fields, error_fields, reason_json

if TYPE_CHECKING:
    from mainspring.runs.handlers import EffectContext, Later

T_co = TypeVar("T_co", covariant=True)

Kind = Literal["resume", "tail"]
KINDS: tuple[Kind, ...] = ("resume", "tail")

LONGEST_MS: Final = 10**15  # thirty thousand years: an endless wait outlives its node
WORTH_A_ROW_MS: Final = 50  # a shorter wait begins anew after a crash


class EffectMeta(msgspec.StructMeta):
    """Makes every effect class frozen and takes the `kind` keyword of the class statement."""

    def __new__(
        mcs,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        *,
        kind: str | None = None,
        journaled: bool | None = None,
        **options: Any,
    ) -> Any:
        if kind is not None and kind not in KINDS:
            raise TypeError(f"effect {name}: kind must be 'resume' or 'tail', not {kind!r}")
        options.setdefault("frozen", True)
        cls: Any = super().__new__(mcs, name, bases, namespace, **options)
        if kind is not None:
            cls.__kind__ = kind
        if journaled is not None:
            cls.__journaled__ = journaled
        return cls


class Effect(msgspec.Struct, Generic[T_co], metaclass=EffectMeta):
    """A request of a program; `T` is the type of its answer.

    Subclass it with annotated fields: `class Ask(Effect[int]): n: int`. An effect is of kind "resume" unless the class
    says `kind="tail"`; a resume effect is answered with `resume` or `end`, a tail effect with `tail` only.
    """

    __kind__: ClassVar[Kind] = "resume"
    __journaled__: ClassVar[bool] = True


def answer_type(effect: type[Effect[Any]]) -> Any:
    """The `T` in `class X(Effect[T])`, looked up along the bases; `Any` when the class does not say."""
    for cls in effect.__mro__:
        for base in getattr(cls, "__dict__", {}).get("__orig_bases__", ()):
            if typing.get_origin(base) is Effect:
                (argument,) = typing.get_args(base)
                return Any if isinstance(argument, TypeVar | str | typing.ForwardRef) else argument
    return Any


def journal_arguments(effect: Effect[Any]) -> bytes:
    """The arguments as the journal keeps them; raises Unserialisable."""
    own = getattr(effect, "__arguments__", None)
    return encode_fields(effect) if own is None else encode(own(), type(effect).__name__)


@types.coroutine
def suspend(effect: Effect[Any]) -> Generator[Any, Any, Any]:
    """Awaiting this hands the effect to the scheduler and gives back the answer."""
    return (yield effect)


# -- answers


class Answer:
    """What a handler returns. Made by `resume`, `tail` and `end`, compared by kind and value."""

    __slots__ = ("value",)
    kind: ClassVar[str] = ""

    def __init__(self, value: Any = None) -> None:
        self.value: Any = value

    def __repr__(self) -> str:
        return f"{self.kind}({self.value!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Answer) and other.kind == self.kind and bool(other.value == self.value)

    def __hash__(self) -> int:
        return hash((self.kind, self.value))


class resume(Answer):
    """Answer a resume effect: the program goes on with `value`."""

    __slots__ = ()
    kind = "resume"


class tail(Answer):
    """Answer a tail effect: the program goes on with `value`; nothing else may answer it."""

    __slots__ = ()
    kind = "tail"


class end(Answer):
    """End the run at this effect with `value` as its outcome; the program is not resumed."""

    __slots__ = ()
    kind = "end"


def whole_ms(ms: float) -> int:
    """A delay in whole milliseconds: fractions are cut, negative and NaN are 0, an endless one is `LONGEST_MS`."""
    if isinstance(ms, int) and 0 <= ms <= LONGEST_MS:
        return ms  # the usual case
    return int(min(ms, LONGEST_MS)) if ms > 0 else 0


def lasting_ms(duration: Duration) -> float:
    """A duration in milliseconds. A number of seconds may be computed, so it may be negative, NaN or endless."""
    if isinstance(duration, timedelta):
        duration = duration.total_seconds()
    return duration_ms(duration) if isinstance(duration, str) else duration * 1_000


# -- built-in effects


class Sleep(Effect[None]):
    """Wait: `Sleep(5)` is five seconds, as are `Sleep("5s")`, `Sleep(timedelta(seconds=5))` and `Sleep(ms=5000)`.

    What is given is added up. Fractions of a millisecond are cut; negative and NaN mean not at all.
    """

    duration: Duration = 0
    ms: float = 0
    seconds: float = 0
    minutes: float = 0
    hours: float = 0
    days: float = 0

    @property
    def total_ms(self) -> int:
        """All units together, in whole milliseconds; 0 for what is negative or not a number, endless stays so."""
        total = self.ms + 1000 * (self.seconds + 60 * (self.minutes + 60 * (self.hours + 24 * self.days)))
        return whole_ms(total + lasting_ms(self.duration) if self.duration else total)

    def __arguments__(self) -> Any:
        return {"ms": self.total_ms}


class Now(Effect[int]):
    """The wall-clock time in epoch milliseconds; the same one when the run is executed again."""


class Random(Effect[float]):
    """A number in [0, 1); the same one when the run is executed again."""


class Uuid(Effect[str]):
    """A random UUID as text; the same one when the run is executed again."""


class Version(Effect[int]):
    """Gate a change to a program that has running runs.

    A run that comes here for the first time gets `version` and keeps it; a run that passed this point before the gate
    was written gets 1.
    """

    name: str
    version: int = 1


class Progress(Effect[None], journaled=False):
    """Publish a value about the run while it runs: `perform.progress`. The last one is kept, also when it is over."""

    value: Any


class Spawn(Effect[Any], journaled=False):
    """Start an attached child, or a detached one; answered with its Run. For programs in generator form."""

    program: Any
    args: tuple[Any, ...] = ()
    detached: bool = False


class Signal(Effect[bool]):
    """Send a value to another run, where `WaitSignal` of the same name receives it. False when there is no such run."""

    run_id: str
    name: str
    value: Any = None


class _Waiting(msgspec.Struct):
    """What a journal keeps of `WaitSignal`."""

    name: str
    timeout_ms: int | None


class WaitSignal(Effect[Any]):
    """The next value sent to this run under `name`, also if it came before.

    When `timeout` has passed first, `WaitTimedOut` is raised; on a strict runtime the answer is None.
    """

    name: str
    timeout: Duration | None = None

    @property
    def timeout_ms(self) -> int | None:
        """The timeout in whole milliseconds."""
        return None if self.timeout is None else whole_ms(lasting_ms(self.timeout))

    def __arguments__(self) -> Any:
        return _Waiting(self.name, self.timeout_ms)


class _Asking(msgspec.Struct):
    """What a journal keeps of `Ask`."""

    type: str
    data: Any
    kind: str
    timeout_ms: int | None


class Ask(Effect[Any]):
    """Send a command or query to a capability; answered with the data of its reply."""

    type: str
    data: Any = None
    kind: str = "command"
    timeout: Duration | None = None

    @property
    def timeout_ms(self) -> int | None:
        """The timeout in whole milliseconds."""
        return None if self.timeout is None else whole_ms(lasting_ms(self.timeout))

    def __arguments__(self) -> Any:
        return _Asking(self.type, self.data, self.kind, self.timeout_ms)


class Publish(Effect[str]):
    """Append an event to a topic; answered with the event's id. In a durable run it happens exactly once.

    When `ttl` has passed since it was stored (0: never), groups that have not handled it do not get it any more.
    """

    topic: str
    payload: Any = None
    key: str | None = None
    headers: dict[str, str] | None = None
    ttl: Duration = 0

    def __arguments__(self) -> Any:
        said = {"topic": self.topic, "payload": self.payload, "key": self.key, "headers": self.headers}
        ttl_ms = duration_ms(self.ttl)
        return {**said, "ttl_ms": ttl_ms} if ttl_ms else said  # as it was before there was a ttl


class _Watching(msgspec.Struct):
    """What a journal keeps of `WaitEvent`."""

    topic: str
    filter: dict[str, Any] | None
    timeout_ms: int | None


class WaitEvent(Effect[Any]):
    """The first event published to `topic` from now on whose payload has the fields of `filter`.

    When `timeout` has passed first, `WaitTimedOut` is raised; on a strict runtime the answer is None.
    """

    topic: str
    filter: dict[str, Any] | None = None
    timeout: Duration | None = None

    @property
    def timeout_ms(self) -> int | None:
        """The timeout in whole milliseconds."""
        return None if self.timeout is None else whole_ms(lasting_ms(self.timeout))

    def __arguments__(self) -> Any:
        return _Watching(self.topic, self.filter, self.timeout_ms)


class Join(Effect[Any]):
    """The outcome of another run."""

    run: Any

    def __arguments__(self) -> Any:
        return {"run": self.run.id}

    @staticmethod
    def __dump__(outcome: Outcome[Any]) -> Any:
        if isinstance(outcome, Value):
            return {"value": outcome.value}
        if isinstance(outcome, Failed):
            return {"error": error_fields(outcome.error)}
        return {"reason": decode(reason_json(outcome.reason))}

    @staticmethod
    def __load__(stored: Any) -> Outcome[Any]:
        if "value" in stored:
            return Value(stored["value"])
        if "error" in stored:
            error = stored["error"]
            return Failed(ChildFailed(error.get("type", "?"), error.get("message", ""), error.get("code", "")))
        return Cancelled(stored["reason"])


class HasEnded(Effect[bool]):
    """Whether a run has ended."""

    run: Any

    def __arguments__(self) -> Any:
        return {"run": self.run.id}


class Until(Effect[tuple[bool, int]]):
    """Wait until a run ended or `ms` passed: whether it ended, and how many ms that took."""

    run: Any
    ms: float

    def __arguments__(self) -> Any:
        return {"run": self.run.id, "ms": whole_ms(self.ms)}


class GroupEnd(Effect[None]):
    """Wait until no child of a group is left that counts."""

    number: int
    group: Any

    def __arguments__(self) -> Any:
        return {"number": self.number}


# -- handlers of built-in effects


def _sleep(effect: Sleep, ctx: EffectContext) -> Later:
    later = ctx.later()
    ctx.after(time_left(ctx, effect.total_ms), later.resume)
    return later


def time_left(ctx: EffectContext, ms: float) -> int:
    """How long to wait: `ms`, or what was left of it when a durable run was interrupted."""
    until = ctx.recall()
    allowed = whole_ms(ms)
    if until is not None:
        return min(allowed, max(0, int(until) - ctx.wall_ms()))  # the clock may have been set back meanwhile
    if allowed >= WORTH_A_ROW_MS:
        ctx.remember(ctx.wall_ms() + allowed)
    return allowed


def _join(effect: Join, ctx: EffectContext) -> Any:
    if effect.run is ctx.run:
        raise RunError(f"run {ctx.run_id} waits for itself", remedy="join another run")
    outcome: Outcome[Any] | None = effect.run.outcome_now()
    if outcome is not None:
        when_ended(effect.run, lambda _: None)
        return resume(outcome)
    later = ctx.later()
    ctx.on_release(when_ended(effect.run, later.resume))
    return later


def _until(effect: Until, ctx: EffectContext) -> Any:
    if effect.run.outcome_now() is not None:
        return (True, 0)
    allowed = whole_ms(effect.ms)
    left = time_left(ctx, allowed)
    later, begun = ctx.later(), ctx.now_ms() - (allowed - left)

    def ended(_: Outcome[Any]) -> None:
        if not later.answered:
            later.resume((True, ctx.now_ms() - begun))

    def late() -> None:
        if not later.answered:
            later.resume((False, ctx.now_ms() - begun))

    ctx.on_release(when_ended(effect.run, ended))
    ctx.after(left, late)
    return later


def builtin_handlers(source: random.Random) -> dict[type[Effect[Any]], Callable[[Any, EffectContext], Any]]:
    """The handlers of the built-in effects; `source` gives `Random` and `Uuid` their numbers."""
    return {
        Sleep: _sleep,
        Now: lambda effect, ctx: ctx.wall_ms(),
        Random: lambda effect, ctx: source.random(),
        Uuid: lambda effect, ctx: str(uuid.UUID(int=source.getrandbits(128), version=4)),
        Version: lambda effect, ctx: effect.version,
        Progress: lambda effect, ctx: ctx.publish_progress(effect.value),
        Join: _join,
        HasEnded: lambda effect, ctx: effect.run.is_done(),
        Until: _until,
        GroupEnd: lambda effect, ctx: effect.group.end(ctx),
    }
