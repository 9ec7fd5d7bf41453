"""Programs: coroutine functions and generator functions, bound to their arguments.

Both forms are driven the same way, with `send` and `close`. A coroutine program suspends by awaiting `perform(effect)`,
which yields the effect to the scheduler and returns what is sent back; a generator program yields the effect itself.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Generator
from typing import Any

Program = Callable[..., Any]

_COROUTINE = inspect.CO_COROUTINE
_GENERATOR = inspect.CO_GENERATOR


def form_of(program: Any) -> str:
    """ "coroutine" or "generator", or "bound" for an object that binds itself; TypeError for what is no program."""
    if hasattr(program, "__bind_program__"):
        return "bound"
    code = getattr(program, "__code__", None)
    if code is None:
        inner = program
        while isinstance(inner, functools.partial):
            inner = inner.func
        if not inspect.isroutine(inner) and callable(inner) and not isinstance(inner, type):
            inner = type(inner).__call__
        code = getattr(inner, "__code__", None) or getattr(getattr(inner, "__func__", None), "__code__", None)
    flags = 0 if code is None else code.co_flags
    if flags & _COROUTINE:
        return "coroutine"
    if flags & _GENERATOR:
        return "generator"
    raise TypeError(
        f"{program!r} is not a program: write `async def program(..., perform)` or a generator that yields effects"
    )


def bind(program: Any, args: tuple[Any, ...], perform: Any) -> Any:
    """The coroutine or generator object; TypeError when the arguments do not fit. Runs nothing of the body."""
    form = form_of(program)
    if form == "bound":
        return program.__bind_program__(args)
    try:
        return program(*args, perform) if form == "coroutine" else program(*args)
    except TypeError:
        raise TypeError(_wanted(program, form, len(args))) from None


def _wanted(program: Any, form: str, given: int) -> str:
    """What a program takes. Python's own words count `perform`, which whoever starts a run does not give."""
    parameters = list(map(str, inspect.signature(program).parameters.values()))
    if form == "coroutine":
        parameters = parameters[:-1]
    name = name_of(program).rpartition(".")[2]
    return f"{name} takes ({', '.join(parameters)}), and {given} argument{'' if given == 1 else 's'} came"


def name_of(program: Any) -> str:
    """The name under which a program is known when nobody gave it one: module and qualified name."""
    inner = program
    while isinstance(inner, functools.partial):
        inner = inner.func
    name = getattr(inner, "__qualname__", None) or type(inner).__qualname__
    return f"{getattr(inner, '__module__', None) or '?'}.{name}"


@types.coroutine
def suspend(effect: Any) -> Generator[Any, Any, Any]:
    """Awaiting this hands the effect to the scheduler and gives back the answer."""
    return (yield effect)


@types.coroutine
def inline(generator: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    """Run a generator program inside a coroutine program, as part of the same run."""
    return (yield from generator)


async def call_inline(program: Any, args: tuple[Any, ...], perform: Any) -> Any:
    """Run either form of program inside the current run."""
    bound = bind(program, args, perform)
    return await (bound if inspect.iscoroutine(bound) else inline(bound))
