"""How long work tells how far it is. The command line shows it; tests and other callers may ignore it."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Called now and then with what is being done, how much is done, and of how much (0 when nobody knows)."""

    def __call__(self, what: str, done: int, total: int) -> None: ...


def silent(what: str, done: int, total: int) -> None:
    """Progress for nobody."""
