"""Names of a package that are imported when they are first used, so that importing the package stays cheap."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def lazy_imports(namespace: dict[str, Any], homes: Mapping[str, str]) -> Callable[[str], Any]:
    """A module's `__getattr__`: finds a name in the module that `homes` says, and remembers it in `namespace`."""

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {namespace['__name__']!r} has no attribute {name!r}")
        namespace[name] = value = getattr(importlib.import_module(homes[name]), name)
        return value

    return find


__all__ = ["lazy_imports"]
