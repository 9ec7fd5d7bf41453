"""Mainspring: one event runtime for Python programs.

Commands, events, timers, effects and beats turn on one loop and rest in one durable log. The names a program needs are
here and are imported when first used, so that a small program does not pay for parts it leaves alone.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from mainspring.app import App as App
    from mainspring.errors import MainspringError as MainspringError
    from mainspring.kernel import Fail as Fail
    from mainspring.kernel import RestartPolicy as RestartPolicy

_HOMES: Final = {
    "App": "mainspring.app",
    "Fail": "mainspring.kernel",
    "MainspringError": "mainspring.errors",
    "RestartPolicy": "mainspring.kernel",
}

__all__ = ["App", "Fail", "MainspringError", "RestartPolicy"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'mainspring' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
