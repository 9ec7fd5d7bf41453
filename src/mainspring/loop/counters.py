"""What a loop tells about itself: its counters, and who was slow or failed.

The loop reads its clock once per turn, because the end of one turn is the start of the next. That single reading is
enough to know the longest turn and to name a slow one exactly; everything else is counted per slice.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Counters:
    """A snapshot. Counts grow from the loop's start; depths, ages and pending numbers are of this moment."""

    turns: int
    slices: int
    failed_turns: int
    slow_turns: int
    system_depth: int
    user_depth: int
    completions_waiting: int
    oldest_waiting_ms: int
    timers_pending: int
    longest_turn_ns: int
    longest_turn: str
    holds: int


@dataclass(frozen=True, slots=True)
class SlowTurn:
    """One turn that kept everything else waiting."""

    name: str
    """The function, with its module, and the type of its argument: `shop.orders.Cart.add(Order)`."""
    duration_ms: float
    limit_ms: float

    def __str__(self) -> str:
        return f"{self.name} took {self.duration_ms:.1f} ms (limit {self.limit_ms:g} ms); nothing else ran meanwhile"


@dataclass(frozen=True, slots=True)
class FailedTurn:
    """One turn that raised. The loop went on."""

    name: str
    error: BaseException
    function: Callable[[Any], object]
    argument: Any

    def __str__(self) -> str:
        return f"{self.name} raised {type(self.error).__name__}: {self.error}"


def turn_name(function: Callable[[Any], object], argument: object) -> str:
    """Who a turn is, for people: the function's qualified name and the type of the argument."""
    while isinstance(function, functools.partial):
        function = function.func
    owner = getattr(function, "__self__", None)
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    module = getattr(function, "__module__", None) or type(function).__module__
    if owner is not None and not isinstance(owner, type) and hasattr(function, "__func__"):
        # The class of the object at hand tells more than the class that happens to define the method.
        name = f"{type(owner).__qualname__}.{function.__name__}"
        module = type(owner).__module__
    return f"{module}.{name}({type(argument).__qualname__})"
