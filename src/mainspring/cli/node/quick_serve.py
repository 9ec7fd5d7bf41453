"""`mainspring serve`, read without the library that reads command lines.

`mainspring.cli.node.serve` is the command: its help, its errors, its completion. This module knows the flags that are
settings and understands only what nobody could misunderstand, such as `serve shop:app --port 7071`. Whatever else it
meets (a flag it does not know, a value that is missing, a number that is none, `--help`, `--reload`) it leaves to the
command, so that there is one place for everything that is said to people. A test holds the two together.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

TEXTS: Final = ("host", "engine", "node", "kernel_tcp", "log_level", "log_format")
PATHS: Final = ("data", "kernel_socket", "loop_socket")
NUMBERS: Final = ("port", "wait_for_engine")
SWITCHES: Final = ("require_durable",)
CONFIG: Final = "config"

_NAMES: Final = {f"--{name.replace('_', '-')}": name for name in (*TEXTS, *PATHS, *NUMBERS, *SWITCHES, CONFIG)}


@dataclass
class PlainServe:
    """What was asked for: the program, the file with settings, and the flags as settings."""

    program: str | None = None
    config: Path | None = None
    flags: dict[str, object] = field(default_factory=dict)

    def run(self) -> int:
        """Serve until told to stop; the exit code."""
        # Importing makes what stays; looking for garbage meanwhile would take an eighth of the time.
        gc.disable()
        try:
            from mainspring.cli.node.process import run
            from mainspring.settings import load_all

            return run(lambda: load_all(self.config, **self.flags).settings, self.program)
        except KeyboardInterrupt:
            return 130


def plain_serve(arguments: Sequence[str]) -> PlainServe | None:
    """What a command line that begins with `serve` asks for; None where the command itself has to look."""
    if not arguments or arguments[0] != "serve" or "_MAINSPRING_COMPLETE" in os.environ:
        return None
    asked = PlainServe()
    rest = iter(arguments[1:])
    for word in rest:
        if not word.startswith("-"):
            if asked.program is not None or not word:
                return None
            asked.program = word
            continue
        flag, equals, value = word.partition("=")
        name = _NAMES.get(flag)
        if name in SWITCHES and not equals:
            asked.flags[name] = True
            continue
        value = value if equals else next(rest, "")
        if name is None or name in SWITCHES or not value or value.startswith("-"):
            return None
        if name in NUMBERS and not (value.isascii() and value.isdigit()):
            return None
        if name == CONFIG:
            asked.config = Path(value)
        else:
            asked.flags[name] = int(value) if name in NUMBERS else Path(value) if name in PATHS else value
    return asked
