"""The effects every runtime knows, and the handlers of those that need nothing from outside.

`Ask`, `Publish` and `WaitEvent` reach other parts of a node; their handlers are made in `ports.py` from what the node
passes in. `Join`, `GroupEnd`, `HasEnded` and `Until` are what groups and joins perform; they are effects so that a
durable run writes down what it learned about its children.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from typing import Any, Final

from mainspring.runs.alarms import whole_ms
from mainspring.runs.context import Context, Later
from mainspring.runs.durable.records import error_fields, reason_json, stored_failure
from mainspring.runs.effects import Effect, resume
from mainspring.runs.errors import RunError
from mainspring.runs.outcome import Cancelled, Failed, Outcome, Value
from mainspring.runs.tree import when_ended
from mainspring.runs.values import decode

WORTH_A_ROW_MS: Final = 50  # a shorter wait begins anew after a crash


class Sleep(Effect[None]):
    """Wait. Fractions of a millisecond are cut; negative and NaN mean not at all."""

    ms: float = 0
    seconds: float = 0
    minutes: float = 0
    hours: float = 0
    days: float = 0

    @property
    def total_ms(self) -> int:
        """All units together, in whole milliseconds; 0 for what is negative or not a number, endless stays so."""
        total = self.ms + 1000 * (self.seconds + 60 * (self.minutes + 60 * (self.hours + 24 * self.days)))
        return whole_ms(total)

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


class WaitSignal(Effect[Any]):
    """The next value sent to this run under `name`, also if it came before; None when `timeout_ms` passed first."""

    name: str
    timeout_ms: float | None = None


class Ask(Effect[Any]):
    """Send a command or query to a capability; answered with the data of its reply."""

    type: str
    data: Any = None
    kind: str = "command"
    timeout_ms: int | None = None


class Publish(Effect[str]):
    """Append an event to a topic; answered with the event's id. In a durable run it happens exactly once."""

    topic: str
    payload: Any = None
    key: str | None = None
    headers: dict[str, str] | None = None


class WaitEvent(Effect[Any]):
    """The first event published to `topic` from now on whose payload has the fields of `filter`; None on timeout."""

    topic: str
    filter: dict[str, Any] | None = None
    timeout_ms: float | None = None


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
            return Failed(stored_failure(stored["error"]))
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


def sleep(effect: Sleep, ctx: Context) -> Later:
    later = ctx.later()
    ctx.after(time_left(ctx, effect.total_ms), later.resume)
    return later


def time_left(ctx: Context, ms: float) -> int:
    """How long to wait: `ms`, or what was left of it when a durable run was interrupted."""
    until = ctx.recall()
    if until is not None:
        return max(0, int(until) - ctx.wall_ms())
    allowed = whole_ms(ms)
    if allowed >= WORTH_A_ROW_MS:
        ctx.remember(ctx.wall_ms() + allowed)
    return allowed


def join(effect: Join, ctx: Context) -> Any:
    if effect.run is ctx.run:
        raise RunError(f"run {ctx.run_id} waits for itself", remedy="join another run")
    outcome: Outcome[Any] | None = effect.run.outcome_now()
    if outcome is not None:
        when_ended(effect.run, lambda _: None)
        return resume(outcome)
    later = ctx.later()
    ctx.on_release(when_ended(effect.run, later.resume))
    return later


def has_ended(effect: HasEnded, ctx: Context) -> bool:
    return bool(effect.run.is_done())


def until(effect: Until, ctx: Context) -> Any:
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


def version(effect: Version, ctx: Context) -> int:
    return effect.version


def handlers(source: random.Random) -> dict[type[Effect[Any]], Callable[[Any, Context], Any]]:
    """The handlers of the built-in effects; `source` gives `Random` and `Uuid` their numbers."""
    return {
        Sleep: sleep,
        Now: lambda effect, ctx: ctx.wall_ms(),
        Random: lambda effect, ctx: source.random(),
        Uuid: lambda effect, ctx: str(uuid.UUID(int=source.getrandbits(128), version=4)),
        Version: version,
        Join: join,
        HasEnded: has_ended,
        Until: until,
        GroupEnd: lambda effect, ctx: effect.group.end(ctx),
    }
