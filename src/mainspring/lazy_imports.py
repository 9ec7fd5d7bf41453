"""What a package offers: the names it imports under their own names, and those it imports when they are first used.

A package lists each name once, as an import. Names that are imported later keep importing the package cheap.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, Final

_NOT_OFFERED: Final = frozenset({"TYPE_CHECKING", "Final", "lazy_imports", "offer"})


def offer(namespace: dict[str, Any]) -> None:
    """Gives a package its `__all__`: what its globals hold by now, submodules left out."""
    here = {name for name, value in namespace.items() if name[0] != "_" and not isinstance(value, ModuleType)}
    namespace["__all__"] = sorted(here - _NOT_OFFERED)


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
