"""Locate: find a program's function again, in another process.

A function cannot be sent to another process, only where it was written can be. The other process imports the same
module and looks there: first among the declarations of the module's apps, by what the function handles, because that
also finds functions made inside functions; then by the function's name. Both sides use this code, so that what cannot
be found is refused at boot and not at the first message.
"""

from __future__ import annotations

import importlib
import runpy
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final, cast

import msgspec

from mainspring.kernel.capability import Capability, Handler, handler_from
from mainspring.kernel.errors import CapabilityError

_MAIN: Final = "__main__"


class FunctionLocation(msgspec.Struct, frozen=True):
    """Where a function was written. For a function of the main script, `script` is its path."""

    module: str
    qualname: str
    script: str = ""


def location_of(function: Callable[..., Any]) -> FunctionLocation:
    module = getattr(function, "__module__", "") or ""
    qualname = getattr(function, "__qualname__", "") or ""
    if module != _MAIN:
        return FunctionLocation(module, qualname)
    main = sys.modules[_MAIN]
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return FunctionLocation(spec.name, qualname)
    return FunctionLocation(_MAIN, qualname, getattr(main, "__file__", "") or "")


def names_of(location: FunctionLocation) -> dict[str, Any]:
    """The names of the module a function is in; imports it, or runs the script without its main part."""
    if location.script:
        return runpy.run_path(location.script, run_name="__mainspring_actor__")
    return vars(importlib.import_module(location.module))


def find_handler(names: dict[str, Any], location: FunctionLocation, kind: str, type: str) -> Handler:
    """The handler of (kind, type) among a module's names."""
    for app in _apps(names):
        for declared in app.handlers:
            handler: Handler = declared.handler
            qualname = location_of(handler.function).qualname
            if (handler.kind, handler.type, qualname) == (kind, type, location.qualname):
                bound: Handler = app.bound(handler)
                return bound
    return handler_from(kind, type, _by_name(names, location))  # type: ignore[arg-type]


def find_spawn(names: dict[str, Any], location: FunctionLocation, id: str) -> Callable[[], Any]:
    """The spawn of the low-level capability `id` among a module's names."""
    for app in _apps(names):
        for capability in app.low_level:
            if capability.id == id and capability.spawn is not None:
                spawn: Callable[[], Any] = capability.spawn
                return spawn
    return _by_name(names, location)


def check_findable(capability: Capability) -> None:
    """Raise `CapabilityError` when another process would not find this capability's functions."""
    functions: list[Any] = [handler.function for handler in capability.handlers] or [capability.spawn]
    for function in functions:
        location = location_of(function)
        names = vars(sys.modules.get(location.module) or sys.modules[_MAIN])
        if "<" in location.qualname and not any(True for _ in _apps(names)):
            raise CapabilityError(
                f"capability {capability.id!r} runs in another process, which cannot find {location.qualname!r}",
                remedy="write the function, or the App it is declared in, at the top level of a module",
            )


def _apps(names: dict[str, Any]) -> Iterator[Any]:
    for value in tuple(names.values()):
        if isinstance(getattr(value, "handlers", None), list) and isinstance(getattr(value, "low_level", None), list):
            yield value


def _by_name(names: dict[str, Any], location: FunctionLocation) -> Callable[..., Any]:
    first, *rest = location.qualname.split(".")
    function: Any = names.get(first)
    for part in rest:
        function = getattr(function, part, None)
    if not callable(function):
        raise CapabilityError(f"{location.qualname!r} was not found in {location.script or location.module!r}")
    return cast("Callable[..., Any]", function)
