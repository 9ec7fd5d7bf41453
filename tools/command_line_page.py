"""Makes docs/reference/command-line.md from the help texts, so that the page cannot say something else.

python -m tools.command_line_page > docs/reference/command-line.md
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, Final

import typer

from mainspring.cli.commands import app

WIDTH: Final = 100

INTRODUCTION: Final = """\
# Command line

This page is made from the help texts: `python -m tools.command_line_page` writes it.

- `--json` gives one JSON object per line, for programs; without it the output is for people and may change.
- Colour only on a terminal; `NO_COLOR` turns it off. Control characters in names and payloads are shown as escapes.
- Commands that talk to a node find it by `--url`, `MAINSPRING_URL` or `BUS_URL`, or the setting `url`, in this order;
  several addresses of nodes on one log are separated by commas, and the first that answers is asked. A token is given
  by `--token` or, better, `MAINSPRING_TOKEN` or `BUS_TOKEN`: the arguments of a process can be read by others on the
  machine.
- `send`, `describe`, `trace`, `mcp`, and what steers runs and beats, also go over a node's unix socket: the one
  `--socket` names, or, when nothing names an address, the one of the node with this data directory. Whoever may open
  the socket needs no token. Events of the kernel go over the socket only.
- Exit codes: 0 done, 1 it could not be done, 2 the command line is wrong, 130 ended by Ctrl-C. A reader that closes the
  pipe (`| head`) is a success.
- An error is two lines on standard error: what happened, and what to do.
- `mainspring --install-completion bash` (or `zsh`) installs completion; names of topics and groups come from the node.
- Durations are written `500ms`, `10s`, `5m`, `1h30m`, `7d`; a moment is a duration (so long ago) or a date and time.
"""


def page() -> str:
    """The whole page."""
    return INTRODUCTION + "".join(_section(name, text) for name, text in _helps())


def _section(name: str, text: str) -> str:
    level = "#" * (2 if name.count(" ") < 2 else 3)
    return f"\n{level} {name}\n\n```text\n{text}\n```\n"


def _helps() -> Iterator[tuple[str, str]]:
    """Every command and subcommand with its help, as a terminal of WIDTH columns shows it."""
    root: Any = typer.main.get_command(app)
    with root.make_context("mainspring", [], resilient_parsing=True, terminal_width=WIDTH) as context:
        yield "mainspring", _text(root, context)
        for name in root.list_commands(context):
            yield from _help_of(root.get_command(context, name), f"mainspring {name}", context)


def _help_of(command: Any, name: str, parent: Any) -> Iterator[tuple[str, str]]:
    with command.make_context(
        name.rpartition(" ")[2], [], parent=parent, resilient_parsing=True, terminal_width=WIDTH
    ) as context:
        yield name, _text(command, context)
        for each in command.list_commands(context) if hasattr(command, "list_commands") else ():
            yield from _help_of(command.get_command(context, each), f"{name} {each}", context)


def _text(command: Any, context: Any) -> str:
    return "\n".join(line.rstrip() for line in command.get_help(context).strip().splitlines())


if __name__ == "__main__":
    sys.stdout.write(page())
