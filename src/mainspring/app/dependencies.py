"""Dependencies: what a handler takes besides its event or data, made for each call by functions of the program.

    def get_session() -> Iterator[Session]:
        with Session(engine) as session, session.begin():
            yield session  # goes on after the call; an error of the call is raised here

    @app.consumer("orders")
    def bill(event: Event[Order], session: Annotated[Session, Depends(get_session)]) -> None: ...

    app.provide(Session, get_session)  # now `session: Session` is enough

Which parameters are dependencies is found out when a handler is declared, by whom they are provided when a node starts.
A handler that has some is then replaced by a function that makes them, calls it and closes what was opened. That
function is a plain one unless everything is `async def`, so it is called in a thread: there plain providers and a plain
handler run one after the other, and what has to be awaited goes back to the loop.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Literal, NamedTuple

from mainspring.app.declared import hints_of, place_of
from mainspring.app.middleware import HandlerCall, HandlerKind, call_of
from mainspring.kernel import CapabilityError
from mainspring.loop import HandlerThreads, current_threads, runs_in_thread
from mainspring.tasks import TaskContext

Provider = Callable[..., Any]
Form = Literal["plain", "async", "generator", "async generator"]

_EMPTY: Final = inspect.Parameter.empty
_REST: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
# How a node calls functions of these kinds; of what they do not take they are given nothing.
_SHAPES: Final = {
    kind: inspect.Signature([inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in names])
    for kind, names in {"effect": ("effect", "ctx"), "hook": ("app",)}.items()
}


class Depends:
    """Marks a parameter as made by `provider` for each call: `session: Annotated[Session, Depends(get_session)]`.

    A provider is `def`, `async def`, or a generator of either kind, which yields once and is closed after the call. It
    may have dependencies itself. Within one call it is asked once. Without `provider` the type itself is called.
    """

    __slots__ = ("provider",)

    def __init__(self, provider: Provider | None = None) -> None:
        self.provider: Provider | None = provider

    def __repr__(self) -> str:
        return f"Depends({getattr(self.provider, '__qualname__', self.provider or '')})"


class _Need(NamedTuple):
    """A parameter, and the function that provides it; None: the class of something that the call has."""

    name: str
    provider: Provider | None
    given: Any = None


class _Made(NamedTuple):
    """A provider as it was read."""

    function: Provider
    form: Form
    needs: tuple[_Need, ...]


class _Declared(NamedTuple):
    """A function with parameters that are dependencies, or may be if somebody provides their types."""

    function: Callable[..., Any]
    parameters: tuple[inspect.Parameter, ...]
    hints: Mapping[str, Any]
    names: dict[str, Any]  # of the place where it was declared
    ordinary: tuple[str, ...]  # the parameters that are not


class _Bound(NamedTuple):
    """A function whose dependencies are provided."""

    function: Callable[..., Any]
    kind: HandlerKind
    name: str
    needs: tuple[_Need, ...]
    places: tuple[tuple[int, str], ...]  # of dependencies among the positional parameters
    taken: int | None  # how many of the usual arguments it takes; None: all
    is_plain: bool


class _Do(NamedTuple):
    """Something to call next: in a thread if it is plain."""

    call: Callable[[], Any]
    is_plain: bool


class _Scope(NamedTuple):
    """One call of a handler: what was made for it, and what is to be closed."""

    call: HandlerCall
    known: dict[Any, Any]
    opened: list[tuple[Callable[..., Any], Any, bool]]


class Dependencies:
    """The providers of one program, and which of its functions need them."""

    def __init__(self) -> None:
        self._provided: dict[Any, Provider] = {}
        self._overrides: dict[Any, Provider] = {}
        self._declared: dict[int, _Declared] = {}
        self._steps: dict[Any, _Declared | None] = {}  # by code: what a step is made of is found out when it is used
        self._made: dict[Any, _Made] = {}

    # What is said

    def provide(self, type: Any, provider: Provider) -> None:
        """Raises CapabilityError when the type has a provider already, or this is none."""
        if not callable(provider):
            raise CapabilityError(f"{_name(type)} is provided by a function, not by {provider!r}")
        other = self._provided.setdefault(type, provider)
        if other is not provider:
            raise CapabilityError(
                f"{_name(type)} is provided twice: {_named(other)} and {_named(provider)}",
                remedy="a test replaces a provider with app.override",
            )
        self._steps.clear()
        self._made.clear()

    @contextmanager
    def override(self, provider: Any, by: Provider) -> Iterator[None]:
        """Ask another provider in place of this one, which may be given by the type it is for."""
        known = self._provided.get(provider, provider)
        if not callable(by):
            raise CapabilityError(f"{_name(known)} is replaced by a function, not by {by!r}", remedy="lambda: fake")
        before = dict(self._overrides)
        self._overrides[known] = by
        try:
            yield
        finally:
            self._overrides.clear()
            self._overrides.update(before)

    def declare(
        self, function: Callable[..., Any], usual: tuple[Any, ...], names: dict[str, Any], where: str
    ) -> Collection[str]:
        """Note what a function needs; gives the names of the parameters that are none of the `usual` ones.

        `usual` are the classes of what such a handler is called with; None for one that may be anything.
        """
        parameters = _parameters(function)
        hints = _hints(function, names, where if len(parameters) > len(usual) else "")
        ordinary: list[str] = []
        waiting = list(usual)
        for each in parameters:
            if each.kind in _REST:
                ordinary.append(each.name)
            elif (
                each.kind is not each.KEYWORD_ONLY
                and waiting
                and _mark(each, hints) is None
                and _may_be(waiting[0], hints.get(each.name, Any))
            ):
                waiting.pop(0)
                ordinary.append(each.name)
        others = [
            each for each in parameters if each.name not in ordinary and (each.name in hints or _mark(each, hints))
        ]
        if others:
            self._declared[id(function)] = _Declared(function, parameters, hints, names, tuple(ordinary))
        return {each.name for each in others if each.default is _EMPTY or isinstance(each.default, Depends)}

    def declare_call(self, function: Callable[..., Any], hints: Mapping[str, Any], names: dict[str, Any]) -> set[str]:
        """Note what a function with arguments of its own needs (a task); gives the names of its dependencies."""
        before = self._declared.get(id(function))
        declared = self._of_any_call(function, hints, before.names if before else names)
        needed = {each.name for each in declared.parameters} - set(declared.ordinary)
        if needed:
            self._declared[id(function)] = declared
        return needed

    def _of_any_call(self, function: Callable[..., Any], hints: Mapping[str, Any], names: dict[str, Any]) -> _Declared:
        parameters = _parameters(function)
        ordinary = [each.name for each in parameters if self._provider_of(each, hints) is None]
        return _Declared(function, parameters, hints, names, tuple(ordinary))

    # What it comes to when a node starts

    def bind(
        self, function: Callable[..., Any], kind: HandlerKind, name: str, gives: type | None = None
    ) -> Callable[..., Any]:
        """The function as a node calls it, without its dependencies; the same one if it has none.

        `gives` is the class of what a call has for providers. Raises CapabilityError for what nobody provides.
        """
        declared = self._declared.get(id(function))
        return function if declared is None else self._bind(declared, kind, name, gives)

    def bind_step(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function of a step as a program calls it."""
        code = getattr(function, "__code__", None)
        if code is None:
            return function
        if code not in self._steps:
            declared = self._of_any_call(function, _hints(function, {}, ""), {})
            self._steps[code] = declared if len(declared.ordinary) < len(declared.parameters) else None
        known = self._steps[code]
        if known is None:
            return function
        declared = _Declared(function, known.parameters, known.hints, known.names, known.ordinary)
        return self._bind(declared, "step", function.__name__, None)

    def _bind(self, declared: _Declared, kind: HandlerKind, name: str, gives: type | None) -> Callable[..., Any]:
        function, where = declared.function, f"{kind} {name} ({place_of(declared.function)})"
        needs = tuple(self._needs(declared, where))
        if not needs:
            return function
        needed = {each.name for each in needs}
        positional = [each.name for each in declared.parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
        places = tuple((place, each) for place, each in enumerate(positional) if each in needed)
        for each in needs:
            self._check(each, where, gives, declared.names, ())
        free = kind in ("task", "step")
        takes_more = any(each.kind is each.VAR_POSITIONAL for each in declared.parameters)
        taken = None if free or takes_more else len(declared.ordinary)
        bound = _Bound(function, kind, name, needs, places, taken, runs_in_thread(function))
        call = self._caller(bound)
        if free:
            rest = [each for each in declared.parameters if each.name not in needed]
            call.__signature__ = inspect.Signature(rest)  # type: ignore[attr-defined]
        elif kind in _SHAPES:
            call.__signature__ = _SHAPES[kind]  # type: ignore[attr-defined]
        return call

    def _needs(self, declared: _Declared, where: str) -> Iterator[_Need]:
        for each in declared.parameters:
            provider = None if each.name in declared.ordinary else self._provider_of(each, declared.hints)
            if provider is not None:
                if each.kind is each.POSITIONAL_ONLY:
                    raise CapabilityError(f"{where}: the dependency `{each.name}` is positional-only")
                yield _Need(each.name, provider)
            elif each.name not in declared.ordinary and each.default is _EMPTY:
                raise _missing(where, each.name, declared.hints)

    def _provider_of(self, parameter: inspect.Parameter, hints: Mapping[str, Any]) -> Provider | None:
        hint = _unmarked(hints.get(parameter.name, Any))
        mark = _mark(parameter, hints)
        try:
            known = self._provided.get(hint)
        except TypeError:  # a hint that cannot be a key is nobody's
            known = None
        if mark is None:
            return known
        return mark.provider or known or typing.cast("Provider", hint)

    def _read(self, provider: Provider, names: dict[str, Any]) -> _Made:
        """What a provider needs itself; read once."""
        made = self._made.get(provider)
        if made is None:
            where = f"the provider {_named(provider)}"
            hints = _hints(provider, names, where)
            needs = []
            for each in _parameters(provider):
                found = self._provider_of(each, hints)
                if found is not None:
                    needs.append(_Need(each.name, found))
                elif each.default is _EMPTY and each.kind not in _REST:
                    given = _class(hints.get(each.name))
                    if given is None:
                        raise _missing(where, each.name, hints)
                    needs.append(_Need(each.name, None, given))
            made = self._made[provider] = _Made(provider, _form(provider), tuple(needs))
        return made

    def _check(self, need: _Need, where: str, gives: type | None, names: dict[str, Any], path: tuple[Any, ...]) -> None:
        """Everything below a dependency can be made. Raises CapabilityError."""
        if need.provider is None:
            if need.given is HandlerCall or (gives is not None and issubclass(need.given, gives)):
                return
            raise _missing(f"{where}: its provider {_named(path[-1])}", need.name, {need.name: need.given})
        if need.provider in path:
            raise CapabilityError(f"{where}: the provider {_named(need.provider)} needs itself")
        if not callable(need.provider):
            raise CapabilityError(f"{where}: `{need.name}` is provided by a function, not by {need.provider!r}")
        provider = self._overrides.get(need.provider, need.provider)
        for each in self._read(provider, names).needs:
            self._check(each, where, gives, names, (*path, need.provider))

    def _caller(self, bound: _Bound) -> Callable[..., Any]:
        if not bound.is_plain and not any(self._has_plain(each) for each in bound.needs):

            @functools.wraps(bound.function)
            async def call_async(*args: Any, **kwargs: Any) -> Any:
                return await _finish(self._work(bound, args, kwargs), None)

            return call_async
        all_plain = bound.is_plain and all(self._is_all_plain(each) for each in bound.needs)

        @functools.wraps(bound.function)
        def call(*args: Any, **kwargs: Any) -> Any:
            work = self._work(bound, args, kwargs)
            changed = bool(self._overrides)
            if all_plain if not changed else bound.is_plain and all(map(self._is_all_plain, bound.needs)):
                return _finish_here(work)
            return _finish(work, current_threads())

        return call

    def _has_plain(self, need: _Need) -> bool:
        if need.provider is None:
            return False
        made = self._read(self._overrides.get(need.provider, need.provider), {})
        return made.form in ("plain", "generator") or any(map(self._has_plain, made.needs))

    def _is_all_plain(self, need: _Need) -> bool:
        if need.provider is None:
            return True
        made = self._read(self._overrides.get(need.provider, need.provider), {})
        return made.form in ("plain", "generator") and all(map(self._is_all_plain, made.needs))

    # One call

    def _work(self, bound: _Bound, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Generator[_Do, Any, Any]:
        """Make, call, close: yields what to call, and is sent what that returned."""
        scope = _Scope(_call_of(bound, args, kwargs), {}, [])
        result: Any = None
        error: BaseException | None = None
        try:
            made = yield from self._values(bound.needs, scope)
            result = yield _Do(_with(bound, args, kwargs, made), bound.is_plain)
        except GeneratorExit:
            raise
        except BaseException as raised:
            error = raised
        for close, generator, is_plain in reversed(scope.opened):
            try:
                yield _Do(functools.partial(close, generator, error), is_plain)
            except GeneratorExit:
                raise
            except BaseException as raised:
                error = raised
        if error is not None:
            raise error
        return result

    def _values(self, needs: tuple[_Need, ...], scope: _Scope) -> Generator[_Do, Any, dict[str, Any]]:
        values = {}
        for need in needs:
            values[need.name] = yield from self._value(need, scope)
        return values

    def _value(self, need: _Need, scope: _Scope) -> Generator[_Do, Any, Any]:
        provider = need.provider
        if provider is None:
            call = scope.call
            return call if need.given is HandlerCall else call.value if call.ctx is None else call.ctx
        if provider in scope.known:
            return scope.known[provider]
        made = self._read(self._overrides.get(provider, provider), {})
        values = yield from self._values(made.needs, scope)
        if made.form in ("plain", "async"):
            value = yield _Do(functools.partial(made.function, **values), made.form == "plain")
        else:
            is_plain = made.form == "generator"
            opening = functools.partial(made.function, **values)
            generator, value = yield _Do(functools.partial(_open if is_plain else _open_async, opening), is_plain)
            scope.opened.append((_close if is_plain else _close_async, generator, is_plain))
        scope.known[provider] = value
        return value


# Who carries out the work


def _finish_here(work: Generator[_Do, Any, Any]) -> Any:
    """Everything is plain: in the thread of the handler, one after the other."""
    value: Any = None
    error: BaseException | None = None
    try:
        while True:
            do = work.send(value) if error is None else work.throw(error)
            value = error = None
            try:
                value = do.call()
            except BaseException as raised:
                error = raised
    except StopIteration as done:
        return done.value


async def _finish(work: Generator[_Do, Any, Any], threads: HandlerThreads | None) -> Any:
    """On the loop: plain functions in a thread, if there are any that were known when the node started."""
    value: Any = None
    error: BaseException | None = None
    try:
        while True:
            do = work.send(value) if error is None else work.throw(error)
            value = error = None
            try:
                value = threads.call(do.call) if do.is_plain and threads is not None else do.call()
                if inspect.isawaitable(value):
                    value = await value
            except BaseException as raised:
                error = raised
    except StopIteration as done:
        return done.value


def _call_of(bound: _Bound, args: tuple[Any, ...], kwargs: dict[str, Any]) -> HandlerCall:
    if bound.kind == "task":
        return call_of("task", bound.name, (list(args), kwargs), TaskContext.current())
    if bound.kind == "step":
        return call_of("step", bound.name, args, None)
    value, ctx = (*args, None, None)[:2]
    return call_of(bound.kind, bound.name, value, ctx)


def _with(bound: _Bound, args: tuple[Any, ...], kwargs: dict[str, Any], made: dict[str, Any]) -> Callable[[], Any]:
    """The call of the function with what was made for it."""
    given = list(args[: bound.taken])
    for place, name in bound.places:
        if place > len(given):
            break
        given.insert(place, made.pop(name))
    return functools.partial(bound.function, *given, **kwargs, **made)


def _open(opening: Callable[[], Any]) -> tuple[Any, Any]:
    generator = opening()
    for value in generator:
        return generator, value
    raise RuntimeError(f"{generator.__qualname__} yields nothing")


async def _open_async(opening: Callable[[], Any]) -> tuple[Any, Any]:
    generator = opening()
    async for value in generator:
        return generator, value
    raise RuntimeError(f"{generator.__qualname__} yields nothing")


def _close(generator: Any, error: BaseException | None) -> None:
    """Go on behind the `yield`, with the error of the call. It stays an error, also if the provider catches it."""
    try:
        next(generator) if error is None else generator.throw(error)
    except StopIteration:
        return
    except BaseException as raised:
        if raised is error:
            return
        raise
    generator.close()
    raise RuntimeError(f"{generator.__qualname__} yields more than once")


async def _close_async(generator: Any, error: BaseException | None) -> None:
    try:
        await (anext(generator) if error is None else generator.athrow(error))
    except StopAsyncIteration:
        return
    except BaseException as raised:
        if raised is error:
            return
        raise
    await generator.aclose()
    raise RuntimeError(f"{generator.__qualname__} yields more than once")


# Reading functions


def _parameters(function: Callable[..., Any]) -> tuple[inspect.Parameter, ...]:
    try:
        return tuple(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # nothing is known of it
        return ()


def _hints(function: Any, names: dict[str, Any], where: str) -> dict[str, Any]:
    """Its type hints. With `where` raises CapabilityError when one is not known; else there are none then."""
    given = vars(function).get("__init__", function) if isinstance(function, type) else function
    try:
        return hints_of(given, where, names)
    except Exception:
        if where:
            raise
        return {}


def _mark(parameter: inspect.Parameter, hints: Mapping[str, Any]) -> Depends | None:
    if isinstance(parameter.default, Depends):
        return parameter.default
    noted = getattr(hints.get(parameter.name), "__metadata__", ())
    return next((each for each in noted if isinstance(each, Depends)), None)


def _unmarked(hint: Any) -> Any:
    return typing.get_args(hint)[0] if typing.get_origin(hint) is typing.Annotated else hint


def _class(hint: Any) -> type | None:
    plain = _unmarked(hint)
    found = typing.get_origin(plain) or plain
    return found if isinstance(found, type) and found is not Any else None


def _may_be(usual: Any, hint: Any) -> bool:
    """Whether a parameter with this hint takes what such a handler is called with."""
    found = _class(hint)
    if usual is None or found is None:
        return True
    try:
        return issubclass(found, usual) or issubclass(usual, found)
    except TypeError:  # a protocol that says nothing at run time
        return True


def _form(provider: Provider) -> Form:
    if inspect.isasyncgenfunction(provider):
        return "async generator"
    if inspect.isgeneratorfunction(provider):
        return "generator"
    return "plain" if runs_in_thread(provider) else "async"


def _missing(where: str, name: str, hints: Mapping[str, Any]) -> CapabilityError:
    hint = _name(_unmarked(hints[name])) if name in hints else ""
    told = f"`{name}: {hint}`" if hint else f"`{name}`, which has no type hint"
    kind = hint or "Session"
    return CapabilityError(
        f"{where}: nothing provides {told}",
        remedy=f"app.provide({kind}, provider), or {name}: Annotated[{kind}, Depends(provider)]",
    )


def _name(given: Any) -> str:
    return str(getattr(given, "__name__", given))


def _named(provider: Any) -> str:
    return f"{_name(provider)} ({place_of(provider) or 'built in'})"
