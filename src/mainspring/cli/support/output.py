"""What people see: tables, coloured lines, JSON. Colour only on a terminal, and no character that moves its cursor.

Names, keys and payloads come from whoever published them. Printed as they are, one with an escape sequence in it could
repaint the screen of the person who looks; so control characters are shown as escapes. With `--json` the text is JSON,
which escapes them, too. `say` and `note` are the last ones to look: whatever a command forgot leaves as an escape.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from mainspring.cli.support.moments import clock_text, rfc3339
from mainspring.errors import MainspringError, plain

if TYPE_CHECKING:
    from mainspring.log import Progress

JsonOption = Annotated[bool, typer.Option("--json", help="JSON for programs, one object per line.")]

SpeaksJsonOption = Annotated[bool, typer.Option("--json", help="JSON lines, which it speaks in any case.")]

INTERRUPTED: Final = 130  # 128 + SIGINT, what a shell expects
_COLOUR: Final = re.compile("(\x1b\\[[0-9;]*m)")
_CUT: Final = "\N{HORIZONTAL ELLIPSIS}"


class CommandFailed(MainspringError):
    """What a command was asked for cannot be done; message and remedy are for whoever typed it."""

    code = "command_failed"


def coloured() -> bool:
    """Whether standard output is a terminal whose owner has not asked for plain text."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def paint(text: str, **style: Any) -> str:
    return typer.style(text, **style) if coloured() else text


def safe(text: object) -> str:
    """The text with everything that is not printable written as an escape."""
    return plain(text)


def short(text: object, most: int) -> str:
    written = safe(text)
    return written if len(written) <= most else written[: most - 1] + _CUT


def compact(value: Any) -> str:
    """A payload as one line of JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def say(text: str = "") -> None:
    """One line on standard output, at once: a pipe's reader should not wait for a full buffer."""
    sys.stdout.write(f"{_harmless(text)}\n")
    sys.stdout.flush()


def _harmless(text: str) -> str:
    """The text with nothing in it that changes a terminal, but for the colours that `paint` gave it."""
    if text.isprintable():
        return text
    parts = _COLOUR.split(text) if coloured() else [text]
    return "".join(part if number % 2 else plain(part, "\n\t") for number, part in enumerate(parts))


# Members that are epoch milliseconds, and what stands beside each for people; others in a payload are not ours.
_MOMENTS: Final = {
    "ts": "time",
    "originalTs": "originalTime",
    "t": "time",
    "timestamp": "time",
    "not_before": "notBeforeTime",
    **{
        name: f"{name.removesuffix('Ms')}Time"
        for name in (
            *("created", "updated", "ended", "started", "since", "until", "oldest", "at", "waitsUntil"),
            *("nextMs", "lastMs", "atMs"),
        )
    },
}
_FIRST_MOMENT_MS: Final = 100_000_000_000  # 1973: members of these names that are smaller count something else
_NOT_OURS: Final = frozenset({"payload", "headers", "data", "value", "args", "journal", "updates", "progress"})


def _with_times(value: Any) -> Any:
    """The value with the RFC 3339 form of each moment behind it."""
    if isinstance(value, list):
        return [_with_times(each) for each in value]
    if not isinstance(value, dict):
        return value
    made: dict[str, Any] = {}
    for name, each in value.items():
        made[name] = each if name in _NOT_OURS else _with_times(each)
        if name in _MOMENTS and type(each) is int and each > _FIRST_MOMENT_MS:
            made[_MOMENTS[name]] = rfc3339(each)
    return made


def say_json(value: Any, indent: int | None = None, *, sort: bool = False) -> None:
    """The value, which may hold structs, as one line of JSON (or several), with each moment also in words.

    Bytes are JSON already.
    """
    say(json_text(value if isinstance(value, bytes) else _with_times(value), indent, sort=sort))


def json_text(value: Any, indent: int | None = None, *, sort: bool = False) -> str:
    """JSON that every terminal can show: what this one cannot or should not see is written as JSON's own escapes."""
    if isinstance(value, bytes):
        text = value.decode()
    else:
        separators = None if indent else (",", ":")
        form: dict[str, Any] = {"indent": indent, "separators": separators, "default": msgspec.to_builtins}
        text = json.dumps(value, ensure_ascii=False, sort_keys=sort, **form)
    encoding = sys.stdout.encoding or "ascii"
    if text.isprintable() and (text.isascii() or encoding.lower() == "utf-8"):
        return text
    return "".join(each if each in "\n" or _can_show(each, encoding) else _escape(each) for each in text)


def _can_show(character: str, encoding: str) -> bool:
    try:
        return character.isprintable() and bool(character.encode(encoding))
    except UnicodeEncodeError:
        return False


def _escape(character: str) -> str:
    return "\\u007f" if character == "\x7f" else json.dumps(character)[1:-1]


def say_done(result: Any, as_json: bool, sentence: str) -> None:
    """What a command did: the result for programs, else one sentence."""
    if as_json:
        say_json(result)
    else:
        say(sentence)


def note(text: str) -> None:
    """A remark for the person, on standard error."""
    typer.echo(_harmless(text), err=True)


def on_change(say: Callable[[str], object], texts: dict[str, str]) -> Callable[[str], None]:
    """For `on_state` of a client: says what a state means when it changes, from the first connection on."""
    said = texts["open"]
    has_met = False  # a node that was never there is not gone

    def on_state(state: str) -> None:
        nonlocal said, has_met
        has_met = has_met or state == "open"
        if has_met and texts.get(state, said) != said:
            said = texts[state]
            say(said)

    return on_state


def event_line(envelope: dict[str, Any], *, several_topics: bool = True, attempt: int = 1) -> str:
    """An event on one line: when, where, key, headers, payload."""
    where = f"{envelope.get('partition', 0)}:{envelope['offset']}"
    parts = [paint(clock_text(envelope["ts"]), dim=True)]
    if several_topics:
        parts.append(paint(safe(envelope["topic"]), fg="cyan"))
    parts.append(paint(where, fg="blue"))
    if envelope.get("key") is not None:
        parts.append(paint(f"key={safe(envelope['key'])}", fg="yellow"))
    parts.extend(
        paint(f"{safe(name)}={short(value, 40)}", dim=True) for name, value in (envelope.get("headers") or {}).items()
    )
    if attempt > 1:
        parts.append(paint(f"attempt={attempt}", fg="red"))
    parts.append(safe(compact(envelope["payload"])))
    return "  ".join(parts)


def number(value: int | float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, empty: str = "nothing there") -> None:
    """A table without lines around it; columns that begin with `>` are right-aligned. Long cells wrap, none is lost."""
    from rich.console import Console

    made = make_table(columns, rows)
    piped = not sys.stdout.isatty()  # a pipe has no width: whoever greps a table wants each row on one line
    if made.row_count == 0:
        note(empty)
    else:
        Console(highlight=False, soft_wrap=piped, width=400 if piped else None).print(made)


def listing(
    found: Iterable[dict[str, Any]],
    as_json: bool,
    columns: Sequence[str],
    cells: Callable[[dict[str, Any]], Sequence[Any]],
    *,
    empty: str = "nothing there",
) -> None:
    """What was found: an object a line for programs, else a table with these cells of each."""
    if as_json:
        for each in found:
            say_json(each)
    else:
        table(columns, map(cells, found), empty=empty)


def make_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], title: str = "") -> Any:
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), title=title or None, title_justify="left")
    for column in columns:
        made.add_column(
            column.removeprefix(">"), justify="right" if column.startswith(">") else "left", overflow="fold"
        )
    for row in rows:
        made.add_row(*(each if isinstance(each, Text) else Text(_cell(each)) for each in row))
    return made


def _cell(value: Any) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return number(value)
    return "" if value is None else safe(value)


@contextmanager
def progress(*, watched: bool = True) -> Iterator[Progress]:
    """Bars on standard error when somebody watches it: `show(what, done, total)`, 0 for a total that is not known."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bars(*columns, console=console, transient=True, disable=not (watched and console.is_terminal)) as bars:
        tasks: dict[str, Any] = {}

        def show(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total or None)
            bars.update(tasks[what], completed=done, total=total or None)

        yield show


@contextmanager
def clean_ending() -> Iterator[None]:
    """Around a command: an interrupt ends it with 130, a closed pipe with 0, and neither says anything."""
    try:
        yield
        sys.stdout.flush()
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except BrokenPipeError:
        # What is still buffered is for nobody; without this the interpreter would trip over it at exit.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
        raise typer.Exit(0) from None
