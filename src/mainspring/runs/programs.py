"""Programs: their two forms, their names, their code, and their arguments.

A program is a coroutine function or a generator function. Both forms are driven the same way, with `send` and `close`.
A coroutine program suspends by awaiting `perform(effect)`, which yields the effect to the scheduler and returns what is
sent back; a generator program yields the effect itself.

A durable run writes down the name of its program, which is looked up in `Programs` when the run is executed again. Its
arguments are kept as a JSON array, typed by the program's parameters.

The code of a program is a digest, so that nodes can tell an old program from a new one of the same name. It is made
from what the function does, not from how it is written: comments, line numbers, formatting and its docstring do not
count. Functions that it calls do not count either, nor does the code of a guest: then the digest says that two programs
are the same although they differ, and what happens is what would happen without it. Another minor version of Python is
another code.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import types
import typing
from collections.abc import Callable, Generator, Iterable
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

import msgspec

from mainspring.runs.errors import RunError, UnknownProgram
from mainspring.runs.values import Raw, decode, encode, usable

Program = Callable[..., Any]
P = TypeVar("P", bound=Program)

BUILT_IN: Final[dict[str, Program]] = {}  # programs that every runtime knows by name
MOST_NAMED: Final = 20  # programs in the text of an error

_COROUTINE = inspect.CO_COROUTINE
_GENERATOR = inspect.CO_GENERATOR


# -- form


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
        return program.__bind_program__(args, perform)
    try:
        return program(*args, perform) if form == "coroutine" else program(*args)
    except TypeError:
        raise TypeError(_wanted(program, form, len(args))) from None


def _wanted(program: Any, form: str, given: int) -> str:
    """What a program takes. Python's own words count `perform`, which is not given when a run is started."""
    parameters = list(map(str, inspect.signature(program).parameters.values()))
    if form == "coroutine":
        parameters = parameters[:-1]
    name = name_of(program).rpartition(".")[2]
    return f"{name} takes ({', '.join(parameters)}), and {given} argument{'' if given == 1 else 's'} came"


def name_of(program: Any) -> str:
    """The name of a program that was not given one: module and qualified name."""
    inner = program
    while isinstance(inner, functools.partial):
        inner = inner.func
    name = getattr(inner, "__qualname__", None) or type(inner).__qualname__
    return f"{getattr(inner, '__module__', None) or '?'}.{name}"


@types.coroutine
def inline(generator: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    """Run a generator program inside a coroutine program, as part of the same run."""
    return (yield from generator)


async def call_inline(program: Any, args: tuple[Any, ...], perform: Any) -> Any:
    """Run either form of program inside the current run."""
    bound = bind(program, args, perform)
    return await (bound if inspect.iscoroutine(bound) else inline(bound))


# -- names


def built_in(name: str) -> Callable[[P], P]:
    """Make a program known to every runtime under this name."""

    def register(program: P) -> P:
        BUILT_IN[name] = program
        return program

    return register


class Programs:
    """The programs that durable runs of one runtime may name."""

    def __init__(self) -> None:
        self._by_name: dict[str, Program] = dict(BUILT_IN)
        self._names: dict[Program, str] = {program: name for name, program in BUILT_IN.items()}
        self._codes: dict[str, str] = {}
        self.on_new: list[Callable[[str], object]] = []
        self.bind_step: Callable[[Program], Program] = lambda function: function  # gives a step its dependencies

    def register(self, program: Program, name: str | None = None) -> str:
        """Make a program known under `name` (module and qualified name unless given); gives the name."""
        form_of(program)
        name = name or name_of(program)
        known = self._by_name.get(name)
        if known is not None and known is not program and name_of(known) != name_of(program):
            raise RunError(f"program {name!r} is already registered as {name_of(known)}", remedy="choose another name")
        self._by_name[name] = program
        self._names[program] = name
        self._codes.pop(name, None)
        for listener in self.on_new:
            listener(name)
        return name

    def name_for(self, program: Program | str, *, declared: bool = False) -> str:
        """The registered name of a program; one that is new is registered under its own name.

        `declared`: raises UnknownProgram instead, because after a restart nobody would know such a program.
        """
        if isinstance(program, str):
            self.get(program)
            return program
        name = self._names.get(program)
        if name is None and declared:
            form_of(program)
            raise UnknownProgram(f"{name_of(program)} is not declared as a run", remedy="write @app.run above it")
        return name or self.register(program)

    def get(self, name: str) -> Program:
        """The program of that name. Raises UnknownProgram."""
        try:
            return self._by_name[name]
        except KeyError:
            known = ", ".join(self.names()[:MOST_NAMED]) or "none"
            raise UnknownProgram(
                f"no program named {name!r} is registered",
                remedy=f"known here: {known}; register one before its runs are recovered",
            ) from None

    def code(self, name: str) -> str:
        """The digest of the code of a program; empty where it is not known."""
        if name not in self._codes:
            program = self._by_name.get(name)
            self._codes[name] = "" if program is None or name in BUILT_IN else code_of(program)
        return self._codes[name]

    def codes(self) -> dict[str, str]:
        """The code of every registered program, by name, without the built-in ones."""
        return {name: self.code(name) for name in self.names()}

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def names(self) -> list[str]:
        """The names of all registered programs, sorted, without the built-in ones."""
        return sorted(self._by_name.keys() - BUILT_IN.keys())


# -- code


def code_of(program: Any) -> str:
    """The digest of a program's code; empty for one that has no Python code of its own."""
    while isinstance(program, functools.partial):
        program = program.func
    function = program if hasattr(program, "__code__") else getattr(type(program), "__call__", None)  # noqa: B004
    code = getattr(function, "__code__", None)
    if not isinstance(code, types.CodeType):
        return ""
    digest = hashlib.blake2b(digest_size=8)
    for part in _parts(code):
        digest.update(part.encode())
        digest.update(b"\0")
    return digest.hexdigest()


def _parts(code: types.CodeType) -> Iterable[str]:
    yield code.co_code.hex()
    yield repr((code.co_argcount, code.co_kwonlyargcount, code.co_flags))
    yield repr((code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars))
    for number, constant in enumerate(code.co_consts):
        if isinstance(constant, types.CodeType):
            yield from _parts(constant)
        elif isinstance(constant, frozenset):  # its order is another one in every process
            yield repr(sorted(map(repr, constant)))
        elif number or not isinstance(constant, str):  # the first may be the docstring
            yield repr(constant)


# -- arguments


def encode_arguments(program: Program, args: tuple[Any, ...]) -> Raw:
    """The arguments as a JSON array; Unserialisable names the parameter and the path inside it."""
    declared, names = _parameter_types(program), _parameter_names(program)
    texts = []
    for index, argument in enumerate(args):
        path = names[index] if index < len(names) else f"args[{index}]"
        texts.append(encode(argument, path, declared[index] if index < len(declared) else Any))
    return Raw(b"[" + b",".join(texts) + b"]")


def decode_arguments(program: Program, args: Raw) -> tuple[Any, ...]:
    """The arguments again, as the types of the program's parameters."""
    declared = _parameter_types(program)
    parts = msgspec.json.decode(args, type=list[Raw])
    return tuple(decode(part, declared[i] if i < len(declared) else Any) for i, part in enumerate(parts))


def return_type(program: Any) -> Any:
    """The declared type of a program's value; Any where it says nothing usable."""
    return _declared(program)[1]


def _parameter_types(program: Any) -> list[Any]:
    """The declared types of a program's positional parameters, in order; Any where it says nothing usable."""
    return _declared(program)[0]


def _declared(program: Any) -> tuple[list[Any], Any]:
    """The types of its parameters and of its value, found once; a program that is gone is not kept for them."""
    function = getattr(program, "__func__", program)
    try:
        found = _types_of.get(function)
    except TypeError:  # nothing can refer to it weakly
        return _find_types(function)
    if found is None:
        found = _types_of[function] = _find_types(function)
    return found


_types_of: Final[WeakKeyDictionary[Any, tuple[list[Any], Any]]] = WeakKeyDictionary()


def _find_types(program: Any) -> tuple[list[Any], Any]:
    hints = type_hints_of(program)
    return [usable(hints.get(name, Any)) for name in _parameter_names(program)], usable(hints.get("return", Any))


def _parameter_names(program: Program) -> tuple[str, ...]:
    code = getattr(program, "__code__", None)
    return () if code is None else code.co_varnames[: code.co_argcount]


def type_hints_of(program: Any) -> dict[str, Any]:
    """The declared types of a function; none when one of them exists only for type checkers."""
    try:
        return typing.get_type_hints(program)
    except Exception:  # annotations of names that exist only for type checkers
        return {}
