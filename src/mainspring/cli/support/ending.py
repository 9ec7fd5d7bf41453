"""How a command ends when someone else ends it: Ctrl-C is exit code 130, a reader that has seen enough is 0.

`mainspring tail orders | head -1` is a success. What Python would do by itself is a traceback, or a complaint while
the interpreter flushes a closed pipe on its way out; here the rest of the output goes nowhere instead.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import typer

INTERRUPTED: Final = 130  # 128 + SIGINT, what a shell expects


@contextmanager
def clean_ending() -> Iterator[None]:
    """Around a command: an interrupt ends it with 130, a closed pipe with 0, and neither says anything."""
    try:
        yield
        sys.stdout.flush()
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except BrokenPipeError:
        _discard_output()
        raise typer.Exit(0) from None


def _discard_output() -> None:
    """What is still buffered is for nobody; without this the interpreter would trip over it at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
