"""The `mainspring` command.

An error that Mainspring raises on purpose is printed as two lines, what happened and what to do, without a traceback;
anything else is a defect and shows itself in full.

`mainspring serve` is what a supervisor starts again after a crash, so it is looked at first, without the library that
reads command lines: importing that takes a fifth of the time until the first reply (`mainspring.cli.node.quick_serve`).
"""

from __future__ import annotations

import sys
from typing import NoReturn

from mainspring.cli.node.quick_serve import plain_serve
from mainspring.errors import MainspringError


def main(arguments: list[str] | None = None) -> NoReturn:
    """The entry point. Exit codes: 0 done, 1 it could not be done, 2 the command line is wrong, 130 Ctrl-C."""
    given = sys.argv[1:] if arguments is None else arguments
    if (plain := plain_serve(given)) is not None:
        sys.exit(plain.run())
    try:
        from mainspring.cli.commands import app

        app(arguments, prog_name="mainspring")
    except MainspringError as error:
        sys.stderr.write(f"mainspring: {error.message}\n")
        if error.remedy:
            sys.stderr.write(f"  {error.remedy}\n")
        sys.exit(1)
    except KeyboardInterrupt:  # so early that no command had begun
        sys.exit(130)
    sys.exit(0)
