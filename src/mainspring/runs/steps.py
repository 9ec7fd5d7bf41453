"""Steps: ordinary functions that a program has called once per success: `await perform.step(charge, order)`.

A step is an effect without the ceremony. Each function has an effect class of its own, made when it is first used: its
name, the arguments by the names of the parameters and the declared types are what the journal keeps. `async def`
functions run on the loop, plain ones in a thread. There is no handler to declare, so a test replaces the function
itself (`app.replace_step`).
"""

from __future__ import annotations

import contextvars
import functools
import inspect
import types
import weakref
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ClassVar, Never, NoReturn

from mainspring.data_types import USABLE, decoder_of
from mainspring.loop import HandlerThreads, runs_in_thread
from mainspring.runs.effects import Effect, EffectMeta
from mainspring.runs.errors import RunError
from mainspring.runs.handlers import Attempts, EffectContext, RegisteredHandler, try_until_it_succeeds
from mainspring.runs.programs import type_hints_of
from mainspring.runs.values import Raw, encode, usable

Around = Callable[..., Awaitable[Any]]
"""Called in place of an attempt: with its kind, its name, its value, its context and what makes the attempt."""

_key: contextvars.ContextVar[str] = contextvars.ContextVar("mainspring_step_key")
_classes: dict[tuple[Any, ...], type[Step]] = {}
_signatures: weakref.WeakKeyDictionary[Callable[..., Any], inspect.Signature] = weakref.WeakKeyDictionary()


class Step(Effect[Any]):
    """One call of a function. Made by `perform.step`."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    attempts: Attempts
    named: dict[str, Any]  # the arguments, by the names of the parameters

    __hints__: ClassVar[dict[str, Any]]

    def __arguments__(self) -> Any:
        name, hints = type(self).__name__, self.__hints__
        return {each: Raw(encode(value, f"{name}({each})", hints.get(each, Any))) for each, value in self.named.items()}


class StepHandler(RegisteredHandler):
    """Calls the function of a step, as often as that step may be tried."""

    __slots__ = ("_around", "_replaced", "_threads")

    def __init__(
        self,
        step: type[Step],
        threads: HandlerThreads,
        replaced: Mapping[str, Callable[..., Any]],
        around: Around | None = None,
    ) -> None:
        """`replaced` has functions that stand in for those of steps in a test, by the names of the steps."""
        super().__init__(step, self._call)
        self._threads = threads
        self._replaced = replaced
        self._around = around

    def most_begun(self, effect: Step) -> int | None:
        return effect.attempts.most_begun

    def _call(self, effect: Step, ctx: EffectContext) -> Any:
        function = self._replaced.get(self.name, effect.function)
        _key.set(ctx.key)
        called = functools.partial(function, *effect.args, **effect.kwargs)
        once = functools.partial(self._threads.call, called) if runs_in_thread(function) else called
        if self._around is not None:
            once = functools.partial(self._around, "step", self.name, effect.args, ctx, once)
        return try_until_it_succeeds(once, effect.attempts, ctx, self.name)


def step_of(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], name: str | None, attempts: Attempts
) -> Step:
    """The effect that calls this function. TypeError when the arguments do not fit, or the function has no name."""
    if not callable(function):
        raise TypeError(f"perform.step takes a function and its arguments, not {function!r}")
    inner: Any = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    name = name or str(getattr(inner, "__name__", type(inner).__name__))
    key = (getattr(inspect.unwrap(inner), "__code__", inner), name)
    found = _classes.get(key)
    if found is None:
        if name == "<lambda>":
            raise RunError("a step needs a name, and a lambda has none", remedy="give it one: name=...")
        declared = type_hints_of(inner)
        _check_result(name, inner, declared.get("return", Any))
        hints = {each: usable(hint) for each, hint in declared.items()}
        namespace = {
            "__module__": getattr(inner, "__module__", __name__),
            "__doc__": f"The step {name}.",
            "__orig_bases__": (Effect[hints.get("return", Any)],),  # type: ignore[misc]
            "__hints__": hints,
        }
        found = _classes[key] = EffectMeta(name, (Step,), namespace)
    return found(function, args, kwargs, attempts, _signature(function).bind(*args, **kwargs).arguments)


def _check_result(name: str, function: Callable[..., Any], hint: Any) -> None:
    """Refuse a step whose result could not be stored, before it is executed: afterwards would be too late."""
    if hint in (NoReturn, Never):
        return
    try:
        decoder_of(hint)
    except TypeError as error:
        code = getattr(inspect.unwrap(function), "__code__", None)
        place = "" if code is None else f" ({code.co_filename}:{code.co_firstlineno})"
        raise RunError(f"the step {name}{place}: the result has an unusable type: {error}", remedy=USABLE) from None


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    """Kept, because a program calls the same function again and again."""
    if not isinstance(function, types.FunctionType):  # a method or a partial is another object each time
        return inspect.signature(function)
    signature = _signatures.get(function)
    if signature is None:
        signature = _signatures[function] = inspect.signature(function)
    return signature


def idempotency_key() -> str:
    """In a step: the same text for this call of this run, also when it is tried again or after a crash.

    Give it to whatever must not happen twice.
    """
    try:
        return _key.get()
    except LookupError:
        raise RunError("no step is being executed here", remedy="call idempotency_key() inside a step") from None
