"""`mainspring log`: look at a log, verify it, copy it, move it.

`check`, `stats`, `export` and `backup` only read and may run beside a node that serves. `import` makes a new log.
`stats`, `export` and `import` work on every engine, so that a log can move from any to any other.

Exit codes: 0 done, 1 it could not be done, 2 the command line is wrong, 3 it was done and damage was found.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Annotated, Any, Literal, TypeVar

import msgspec
import typer

from mainspring.cli.support.log_options import FileOptions, LogOptions, existing_file, reading, stored, visiting
from mainspring.cli.support.options import Commands
from mainspring.cli.support.output import JsonOption, say_done
from mainspring.errors import MainspringError, SettingError
from mainspring.log import (
    CheckReport,
    Engine,
    LogExists,
    LogExport,
    Moved,
    Progress,
    SqliteEngine,
    Survey,
    import_lines,
    log_file,
    survey,
)
from mainspring.log import backup as copy_log
from mainspring.log import check as check_log
from mainspring.settings import Settings, without_secrets

FOUND_DAMAGE = 3
_NAME_A_FILE = "name a file in a folder that is there"


class CannotUseFile(MainspringError):
    """A file named on the command line cannot be read or written."""

    code = "cannot_use_file"


T = TypeVar("T")

app: typer.Typer = Commands("Look at the log, verify it, copy it, move it elsewhere.")


@app.command()
def check(at: FileOptions, as_json: JsonOption = False) -> None:
    """Verify the log: every checksum, offset and version. Changes nothing; may run while a node serves.

    Exit code 3: damage was found.
    """
    path = _existing(at)
    with _progress() as progress:
        report = check_log(path, progress)
    if as_json:
        _print_json(msgspec.structs.asdict(report) | {"file": str(path), "ok": not report.problems})
    else:
        _print_report(path, report)
    if report.problems:
        raise typer.Exit(FOUND_DAMAGE)


@app.command()
def stats(at: LogOptions, as_json: JsonOption = False) -> None:
    """Count what is in the log. Events and bytes of each topic and partition, records of each kind; a file's size."""
    settings = stored(at)
    with reading(settings) as source, _progress() as progress:
        found = _with_engine(source, lambda engine: survey(engine, progress))
    place, sizes = without_secrets(settings.engine), {}
    if settings.engine == "sqlite":
        path = log_file(settings.data)
        files = (("file_bytes", path), ("wal_bytes", path.with_name(path.name + "-wal")))
        place, sizes = str(path), {name: file.stat().st_size for name, file in files if file.exists()}
    if as_json:
        named = {"file" if settings.engine == "sqlite" else "engine": place}
        _print_json(msgspec.structs.asdict(found) | named | sizes)
    else:
        _print_survey(place, found, sizes)


@app.command(name="export")
def export_command(
    target: Annotated[str, typer.Argument(metavar="FILE", help="Where to write; - is standard output.")] = "-",
    skip_damaged: Annotated[
        bool, typer.Option("--skip-damaged", help="Leave damaged entries out instead of stopping at them.")
    ] = False,
    *,
    at: LogOptions,
    as_json: JsonOption = False,
) -> None:
    """Write everything in the log as lines of JSON. May run while nodes serve. Exit code 3: damage was left out."""
    settings = stored(at)
    if as_json and target == "-":
        raise typer.BadParameter("--json and the export cannot share standard output; name a file", param_hint="FILE")

    async def work(engine: Engine, out: IO[bytes], progress: Progress) -> Moved:
        export = LogExport(engine, skip_damaged=skip_damaged, progress=progress)
        async for line in export.lines():
            out.write(line)
        out.flush()
        return export.moved

    with reading(settings) as found, _progress() as progress, _file(target, "xb") as out:
        moved = _with_engine(found, lambda engine: work(engine, out, progress))
    _print_moved("exported", moved, as_json)
    if moved.damaged:
        raise typer.Exit(FOUND_DAMAGE)


@app.command(name="import")
def import_command(
    source: Annotated[str, typer.Argument(metavar="FILE", help="What to read; - is standard input.")] = "-",
    *,
    at: LogOptions,
    as_json: JsonOption = False,
) -> None:
    """Make a new log from an export. Offsets and versions stay the same. There must be no log yet."""
    settings = stored(at)
    with _progress() as progress, _file(source, "rb") as lines:

        async def work(engine: Engine) -> Moved:
            return await import_lines(lines, engine, progress)

        moved = _new_file(log_file(settings.data), work) if settings.engine == "sqlite" else _new_log(settings, work)
    _print_moved("imported", moved, as_json)


def _new_file(path: Path, work: Callable[[Engine], Coroutine[Any, Any, Moved]]) -> Moved:
    if path.exists():
        raise LogExists(f"there is a log already: {path}", remedy="import into a new data directory")
    partial = path.with_name(path.name + ".partial")
    _remove_log(partial)
    try:
        moved = _with_engine(SqliteEngine(partial), work)
        partial.rename(path)
    finally:
        _remove_log(partial)
    return moved


def _new_log(settings: Settings, work: Callable[[Engine], Coroutine[Any, Any, Moved]]) -> Moved:
    with visiting(settings, may_make=True) as engine:
        return _with_engine(engine, work)


@app.command()
def backup(
    target: Annotated[Path, typer.Argument(metavar="FILE", help="The copy; must not exist yet.")],
    *,
    at: FileOptions,
    as_json: JsonOption = False,
) -> None:
    """Copy the log as it is at one moment, while a node serves. The copy is a log: put it in a data directory."""
    path = _existing(at)
    if not target.parent.is_dir():
        raise CannotUseFile(f"there is no folder {target.parent}", remedy=_NAME_A_FILE)
    with _progress() as progress:
        size = copy_log(path, target, progress)
    say_done({"file": str(target), "bytes": size}, as_json, f"copied {path} to {target}, {size:,} bytes")


# -- where things are


def _existing(at: FileOptions) -> Path:
    settings = stored(at)
    if settings.engine != "sqlite":
        shown = settings.engine.partition(":")[0]
        raise SettingError(
            f"this command works on the log of the sqlite engine; the settings name {shown!r}",
            remedy="set MAINSPRING_ENGINE=sqlite, or use the tools of the server that holds the log",
        )
    return existing_file(settings)


def _remove_log(path: Path) -> None:
    for suffix in ("", "-wal", "-shm", ".lock"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


@contextmanager
def _file(name: str, mode: Literal["rb", "xb"]) -> Iterator[IO[bytes]]:
    """The file, or for `-` standard input or output."""
    if name == "-":
        yield sys.stdin.buffer if mode == "rb" else sys.stdout.buffer
        return
    try:
        file = open(name, mode)  # noqa: SIM115 - closed below
    except FileExistsError:
        raise LogExists(f"{name} exists already", remedy="name a file that does not exist yet") from None
    except OSError as error:
        verb, remedy = ("read", "name an export") if mode == "rb" else ("write", _NAME_A_FILE)
        raise CannotUseFile(f"cannot {verb} {name}: {error.strerror}", remedy=remedy) from None
    with file:
        yield file


def _with_engine(engine: Engine, work: Callable[[Engine], Coroutine[Any, Any, T]]) -> T:
    async def run() -> T:
        await engine.open()
        try:
            return await work(engine)
        finally:
            await engine.close()

    return asyncio.run(run())


# -- what people see


@contextmanager
def _progress() -> Iterator[Progress]:
    """A bar on standard error when somebody watches it; nothing otherwise."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Bars(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        tasks: dict[str, Any] = {}

        def show(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total or None)
            bars.update(tasks[what], completed=done, total=total or None)

        yield show


def _print_json(value: object) -> None:
    typer.echo(msgspec.json.encode(value).decode())


def _print_report(path: Path, report: CheckReport) -> None:
    typer.echo(
        f"{path}: format {report.format}, {report.events:,} events in {report.partitions:,} partitions of "
        f"{report.topics:,} topics, {report.records:,} records, {report.marks:,} dedupe marks"
    )
    for problem in report.problems:
        typer.echo(f"{problem.kind}: {problem.where}: {problem.detail}")
    if report.more_problems:
        typer.echo(f"and {report.more_problems:,} problems more")
    typer.echo("sound" if not report.problems else "damaged: restore from a backup, or see docs/how-to/back-up.md")


def _print_survey(place: str, found: Survey, sizes: dict[str, int]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table("topic", "partition", "first", "last", "events", "bytes", box=None, pad_edge=False)
    for topic in found.topics:
        for bounds in topic.partitions:
            numbers = (bounds.partition, bounds.head, bounds.tail, bounds.events, bounds.bytes)
            table.add_row(topic.topic, *(f"{number:,}" for number in numbers))
    console.print(table)
    table = Table("space", "records", "bytes", box=None, pad_edge=False)
    for space in found.spaces:
        table.add_row(space.space, f"{space.records:,}", f"{space.bytes:,}")
    console.print(table)
    sized = "".join(f"{name.removesuffix('_bytes')} {size:,} bytes, " for name, size in sizes.items())
    console.print(f"{place}: {sized}{found.marks:,} dedupe marks", soft_wrap=True)


def _print_moved(verb: str, moved: Moved, as_json: bool) -> None:
    if as_json:
        _print_json(moved)
        return
    typer.echo(f"{verb} {moved.events:,} events, {moved.records:,} records, {moved.marks:,} dedupe marks", err=True)
    for damage in moved.damaged:
        typer.echo(f"left out: {damage}", err=True)
