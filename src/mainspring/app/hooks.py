"""What a program does when its node starts and stops: open what handlers need, close it afterwards.

`app.state` is where it is put. The lifespan is entered first, then the start functions run in the order they were
declared; stopping goes the same way back. A start function that fails fails the boot: the lifespan is left, the stop
functions are not called, because what they close may not be open. Resources that must be closed belong in a lifespan.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any

Hook = Callable[..., Any]
Lifespan = Callable[[Any], AbstractAsyncContextManager[Any]]


class Hooks:
    """The declared functions of one program."""

    def __init__(self) -> None:
        self.lifespan: Lifespan | None = None
        self.on_start: list[Hook] = []
        self.on_stop: list[Hook] = []

    async def enter(self, app: Any, undo: AsyncExitStack) -> None:
        """Start; how to stop is pushed on `undo` at once."""
        if self.lifespan is not None:
            await undo.enter_async_context(self.lifespan(app))
        for hook in self.on_start:
            await _call(hook, app)
        for hook in self.on_stop:
            undo.push_async_callback(_call, hook, app)


async def _call(hook: Hook, app: Any) -> None:
    """A hook takes the app, or nothing."""
    result = hook(app) if _wants_app(hook) else hook()
    if inspect.isawaitable(result):
        await result


def _wants_app(hook: Hook) -> bool:
    try:
        inspect.signature(hook).bind(None)
    except TypeError:
        return False
    return True
