"""How a run ends: with a value, failed, or cancelled. Exactly one of them, and the first one wins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Value(Generic[T_co]):
    """The program returned `value`, or a handler answered `end(value)`."""

    value: T_co


@dataclass(frozen=True, slots=True)
class Failed:
    """The program or a handler raised `error`, or the contract between them was broken."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class Cancelled:
    """Somebody called `cancel(reason)`. Not a failure: no failure sink hears of it."""

    reason: Any = None


Outcome = Value[T_co] | Failed | Cancelled


def kind_of(outcome: Outcome[Any]) -> str:
    """The word for an outcome in traces, records and events: value, failed or cancelled."""
    if isinstance(outcome, Value):
        return "value"
    return "failed" if isinstance(outcome, Failed) else "cancelled"
