"""The `mainspring` command.

An error that Mainspring raises on purpose is printed as two lines, what happened and what to do, without a traceback;
anything else is a defect and shows itself in full.

`mainspring serve` is what a supervisor starts again after a crash, so it is looked at first, without the library that
reads command lines: importing that takes a fifth of the time until the first reply (`mainspring.cli.node.quick_serve`).
"""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn

from mainspring.cli.node.quick_serve import plain_serve
from mainspring.errors import MainspringError, plain_lines

# A token, and the password in an address, as they stand among the arguments: each argument ends with a zero byte.
_SECRETS: Final = re.compile(
    rb"(?<=\0--token[=\0])[^\0]+|(?<=://)[^\0]*(?=@)|(?<=[?&]token=)[^\0&]+|(?<=password=)[^\0&]+"
)
_ARG_START: Final = 45  # where /proc/self/stat says at which address the arguments begin, behind the command's name


def _hide_secrets() -> None:
    """Take secrets out of the arguments that other users of the machine can read, as far as the system allows that.

    They could be read until now: a token is better given as `BUS_TOKEN`, and an address in a file.
    """
    with suppress(OSError, ValueError, IndexError):
        shown = Path("/proc/self/cmdline").read_bytes()
        hidden = _SECRETS.sub(lambda found: b"*" * len(found[0]), shown)
        if hidden != shown:
            start = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[_ARG_START])
            with open("/proc/self/mem", "r+b", buffering=0) as memory:
                memory.seek(start)
                memory.write(hidden)


def main(arguments: list[str] | None = None) -> NoReturn:
    """The entry point. Exit codes: 0 done, 1 it could not be done, 2 the command line is wrong, 130 Ctrl-C."""
    given = sys.argv[1:] if arguments is None else arguments
    if arguments is None:
        _hide_secrets()
    if (served := plain_serve(given)) is not None:
        sys.exit(served.run())
    try:
        from mainspring.cli.commands import app

        app(arguments, prog_name="mainspring")
    except MainspringError as error:
        sys.stderr.write(f"mainspring: {plain_lines(error.message)}\n")  # a node's error may hold what others sent
        if error.remedy:
            sys.stderr.write(f"  {plain_lines(error.remedy)}\n")
        sys.exit(1)
    except KeyboardInterrupt:  # so early that no command had begun
        sys.exit(130)
    sys.exit(0)
