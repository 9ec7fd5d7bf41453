"""Names of a package that are imported when they are first used, so that importing the package stays cheap."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def lazy_imports(namespace: dict[str, Any], homes: Mapping[str, str]) -> Callable[[str], Any]:
    """A package's `__getattr__`. `homes` maps a module to the names it has, with spaces between them.

    A name that was found is remembered in `namespace`, the package's globals; there `__all__` is completed, too.
    """
    found = {name: module for module, names in homes.items() for name in names.split()}
    namespace["__all__"] = sorted({*namespace.get("__all__", ()), *found})

    def find(name: str) -> Any:
        if name not in found:
            raise AttributeError(f"module {namespace['__name__']!r} has no attribute {name!r}")
        namespace[name] = value = getattr(importlib.import_module(found[name]), name)
        return value

    return find
