"""How a command ends when someone else ends it: Ctrl-C is exit code 130, a reader that has seen enough is 0.

`mainspring tail orders | head -1` is a success. What Python would do by itself is a traceback, or a complaint while
the interpreter flushes a closed pipe on its way out; here the rest of the output goes nowhere instead.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

import typer

INTERRUPTED: Final = 130  # 128 + SIGINT, what a shell expects

P = ParamSpec("P")
R = TypeVar("R")


def ends_cleanly(command: Callable[P, R]) -> Callable[P, R]:
    """Decorate a command: an interrupt ends it with 130, a closed pipe with 0, and neither says anything."""

    @functools.wraps(command)
    def ended(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            result = command(*args, **kwargs)
            sys.stdout.flush()
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            _discard_output()
            raise typer.Exit(0) from None
        return result

    return ended


def _discard_output() -> None:
    """What is still buffered is for nobody; without this the interpreter would trip over it at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
