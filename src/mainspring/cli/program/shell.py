"""`mainspring shell`: one command after the other in one process, typed at a prompt or read from a file or a pipe.

Starting Python takes longer than most commands do, so a thousand of them are one `mainspring shell < commands`. Each
line is a command as it is typed in any shell, with or without `mainspring` before it; quotes and backslashes mean what
they mean there. What a line does cannot end the others but by failing.
"""

from __future__ import annotations

import importlib
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from mainspring.cli.support.output import INTERRUPTED, CommandFailed, JsonOption, note, safe, say_json

PROMPT: Final = "mainspring> "
KEPT: Final = 1_000  # lines of history
_LEAVE: Final = ("exit", "quit")
_SECRET: Final = "--token"  # a line with it is not kept


def shell(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="Read lines from here.  [default: standard input]")
    ] = None,
    keep_going: Annotated[bool, typer.Option("--keep-going", "-k", help="Go on after a line that failed.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Run many commands in one process. At a terminal, with history and completion by Tab.

    Each line is a command without `mainspring`; empty lines and lines that begin with `#` are skipped. Lines that are
    not typed stop at the first that fails, with its exit code; with --keep-going all are run, and the exit code is 1 if
    one failed. With --json every command gives JSON, and after it comes an object with its line and exit code.

    Examples: `shell`, `shell < commands`, `shell --keep-going retries.txt`.
    """
    if file is None and sys.stdin.isatty():
        raise typer.Exit(_at_prompt(as_json))
    try:
        lines = sys.stdin.read() if file is None else file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandFailed(f"{file or 'standard input'} cannot be read: {error}") from None
    with _nothing_to_read():
        raise typer.Exit(_run_all(lines.splitlines(), keep_going, as_json))


def _run_all(lines: list[str], keep_going: bool, as_json: bool) -> int:
    failed = 0
    for number, line in enumerate(lines, 1):
        if (code := _run(line, as_json)) is None:
            continue
        if as_json:
            say_json({"line": number, "command": line.strip(), "exitCode": code})
        if code:
            note(f"line {number} failed with exit code {code}: {safe(line.strip())}")
            failed += 1
            if not keep_going or code == INTERRUPTED:
                return code
    return 1 if failed else 0


def _run(line: str, as_json: bool = False) -> int | None:
    """Run one line; its exit code, or None where there is nothing in it."""
    from mainspring.cli import main

    try:
        arguments = shlex.split(line, comments=True)
    except ValueError as error:
        note(f"mainspring: {error}: {safe(line.strip())}")
        return 2
    if arguments[:1] == ["mainspring"]:
        del arguments[0]
    if not arguments:
        return None
    if arguments[0] == "shell":
        note("mainspring: this is the shell already")
        return 2
    if arguments == ["help"]:
        arguments = ["--help"]
    if as_json and "--json" not in arguments:
        arguments.append("--json")
    try:
        main(arguments)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 1 if ended.code else 0


@contextmanager
def _nothing_to_read() -> Iterator[None]:
    """The lines are the shell's: a command that reads standard input finds it empty."""
    kept = sys.stdin
    with open(os.devnull) as sys.stdin:
        try:
            yield
        finally:
            sys.stdin = kept


# -- at a terminal


def _at_prompt(as_json: bool) -> int:
    note("Type commands without `mainspring`; Tab completes, `help` lists them, `exit` or Ctrl-D leaves.")
    code = 0
    with _line_editing():
        while True:
            try:
                line = input(PROMPT)
            except EOFError:
                sys.stdout.write("\n")
                return code
            except KeyboardInterrupt:
                sys.stdout.write("\n")
                continue
            if line.strip() in _LEAVE:
                return code
            ended = _run(line, as_json)
            code = code if ended is None else ended


@contextmanager
def _line_editing() -> Iterator[None]:
    """History and completion, where Python was built with them."""
    try:
        import readline
    except ImportError:
        yield
        return
    place = _history_place()
    with suppress(OSError):
        readline.read_history_file(place)
    readline.set_history_length(KEPT)
    readline.set_completer_delims(" \t\n")
    readline.set_completer(_Completer(readline).complete)
    readline.parse_and_bind("tab: complete")
    try:
        yield
    finally:
        readline.set_completer(None)
        for at in range(readline.get_current_history_length(), 0, -1):
            if _SECRET in (readline.get_history_item(at) or ""):
                readline.remove_history_item(at - 1)
        with suppress(OSError):
            place.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(place, os.O_CREAT | os.O_WRONLY, 0o600))
            readline.write_history_file(place)


def _history_place() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "mainspring" / "history"


class _Completer:
    """What may follow in a line: what the completion of any other shell offers."""

    def __init__(self, readline: Any) -> None:
        self._readline = readline
        self._found: list[str] = []

    def complete(self, text: str, state: int) -> str | None:
        if state == 0:
            before = self._readline.get_line_buffer()[: self._readline.get_begidx()]
            self._found = offered(before, text)
        return self._found[state] if state < len(self._found) else None


def offered(before: str, incomplete: str) -> list[str]:
    """Words that may stand behind what is typed already."""
    from mainspring.cli.commands import app

    try:
        words = shlex.split(before)
    except ValueError:
        return []
    if words[:1] == ["mainspring"]:
        del words[0]
    click = typer.BadParameter.__module__.rpartition(".")[0]  # Typer may have a copy of its own
    base: Any = importlib.import_module(f"{click}.shell_completion").ShellComplete
    asked = type("Words", (base,), dict.fromkeys(("format_completion", "get_completion_args", "source_vars")))
    found = asked(typer.main.get_command(app), {}, "mainspring", "").get_completions(words, incomplete)
    return [f"{each.value} " for each in found if each.value.startswith(incomplete)]
