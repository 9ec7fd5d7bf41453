"""Structs that the garbage collector does not look into hold data only.

What such a struct refers to cannot be found by the collector. If the way leads back to the struct, over a task, a
traceback or a topic, nothing of the circle is ever freed.
"""

from __future__ import annotations

import importlib
import inspect
import types
import typing
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

import mainspring

DATA = (type(None), bool, int, float, str, bytes, msgspec.Raw, msgspec.UnsetType)
CONTAINERS = (list, tuple, dict, set, frozenset)
# Whatever a program sends or returns: data, except between callers in one process.
ANYTHING = {
    "mainspring.message.Message.data",
    "mainspring.client.frames.EventToPublish.payload",
    "mainspring.task_topics.NewCall.payload",
}


def untracked_structs() -> Iterator[type[msgspec.Struct]]:
    root = Path(mainspring.__file__).parent
    for path in sorted(root.rglob("*.py")):
        if "gc=False" not in path.read_text(encoding="utf-8"):
            continue
        name = ".".join(("mainspring", *path.relative_to(root).with_suffix("").parts))
        for _, found in inspect.getmembers(importlib.import_module(name), inspect.isclass):
            if issubclass(found, msgspec.Struct) and found.__module__ == name and not found.__struct_config__.gc:
                yield found


def holds_data_only(kind: object) -> bool:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return holds_data_only(arguments[0])
    if origin is typing.Literal or (arguments == () and kind is ...):
        return True
    if origin in (typing.Union, types.UnionType) or (isinstance(origin, type) and issubclass(origin, CONTAINERS)):
        return all(map(holds_data_only, arguments))
    if not isinstance(kind, type):
        return False
    fields = getattr(kind, "__struct_fields__", getattr(kind, "_fields", ()))  # a struct or a named tuple
    return kind in DATA or (bool(fields) and not refused_fields(kind, fields))


def refused_fields(kind: type, fields: Iterable[str]) -> list[str]:
    """Those that may hold something other than data."""
    hints = typing.get_type_hints(kind, include_extras=True)
    places = {f"{kind.__module__}.{kind.__qualname__}.{name}": hints[name] for name in fields}
    return [place for place, hint in places.items() if place not in ANYTHING and not holds_data_only(hint)]


def test_a_struct_that_is_not_tracked_holds_data_only() -> None:
    structs = list(untracked_structs())
    assert len(structs) > 50
    assert [place for each in structs for place in refused_fields(each, each.__struct_fields__)] == []
