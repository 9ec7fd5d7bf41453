"""`mainspring log`: look at a log, verify it, copy it, move it.

`check`, `stats`, `export` and `backup` only read and may run beside a node that serves. `import` makes a new log.
`stats`, `export` and `import` work on every engine, so that a log can move from any to any other.

Exit codes: 0 done, 1 it could not be done, 2 the command line is wrong, 3 it was done and damage was found.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Annotated, Any, Literal

import msgspec
import typer

from mainspring.cli.program.codec import find_encoding
from mainspring.cli.program.runs import RunFilter, list_found, timeline
from mainspring.cli.support.log_options import FileOptions, LogOptions, existing_file, opened, reading, stored, visiting
from mainspring.cli.support.options import Commands
from mainspring.cli.support.output import (
    CommandFailed,
    JsonOption,
    note,
    progress,
    safe,
    say,
    say_done,
    say_json,
    table,
)
from mainspring.errors import SettingError
from mainspring.log import (
    MOST_LINE,
    SET_ASIDE,
    CheckReport,
    Engine,
    Log,
    LogExists,
    LogExport,
    Moved,
    SqliteEngine,
    Survey,
    check_lines,
    find_unreadable,
    import_lines,
    log_file,
    recover,
    survey,
    upgrade,
)
from mainspring.log import backup as copy_log
from mainspring.log import check as check_log
from mainspring.loop import MonotonicClock
from mainspring.node import all_readers, check_event
from mainspring.private_files import open_private, sync_path
from mainspring.runs.durable import RunListing, RunSelection, RunStore
from mainspring.settings import without_secrets

FOUND_DAMAGE = 3
_NAME_A_FILE = "name a file in a folder that is there"


app: typer.Typer = Commands("Look at the log, verify it, copy it, move it elsewhere.")


@app.command()
def check(at: FileOptions, as_json: JsonOption = False) -> None:
    """Verify the log: every checksum, offset and version. Changes nothing; may run while a node serves.

    Also lists records that are whole and that no part of a node can read, and what a node has set aside.
    Exit code 3: damage was found.
    """
    path = _existing(at)
    with progress() as show:
        report = check_log(path, show)
        aside = [] if any(each.kind == "structure" for each in report.problems) else _add_unreadable(path, report)
    if as_json:
        extra = {"file": str(path), "ok": not report.problems, "set_aside": aside}
        say_json(msgspec.structs.asdict(report) | extra)
    else:
        _print_report(path, report)
        for key in aside:
            say(safe(f"kept in {SET_ASIDE}, because something was written over it: {key}"))
    if report.problems:
        raise typer.Exit(FOUND_DAMAGE)


def _add_unreadable(path: Path, report: CheckReport) -> list[str]:
    """Add what cannot be read to the problems; gives what was written over since it was set aside."""
    aside: list[str] = []
    engine = SqliteEngine(path, read_only=True)

    async def look() -> None:
        async for each in find_unreadable(engine, all_readers()):
            if each.space == SET_ASIDE:
                aside.append(each.key)
            elif each.value is not None:  # else its checksum was reported
                report.add("unreadable", f"{each.space} {each.key}", f"a node sets it aside: {each.why}")

    opened(engine, look())
    return aside


@app.command()
def stats(at: LogOptions, as_json: JsonOption = False) -> None:
    """Count what is in the log. Events and bytes of each topic and partition, records of each kind; a file's size."""
    settings = stored(at)
    with reading(settings) as source, progress() as show:
        found = opened(source, survey(source, show))
    place, sizes = without_secrets(settings.engine), {}
    if settings.engine == "sqlite":
        path = log_file(settings.data)
        files = (("file_bytes", path), ("wal_bytes", path.with_name(path.name + "-wal")))
        place, sizes = str(path), {name: file.stat().st_size for name, file in files if file.exists()}
    if as_json:
        named = {"file" if settings.engine == "sqlite" else "engine": place}
        say_json(msgspec.structs.asdict(found) | named | sizes)
    else:
        _print_survey(place, found, sizes)


@app.command()
def runs(
    run_id: Annotated[str | None, typer.Argument(metavar="ID", help="Only this run, with its journal.")] = None,
    *,
    which: RunFilter,
    limit: Annotated[int, typer.Option(min=1, help="How many at most.")] = 100,
    as_json: JsonOption = False,
    at: LogOptions,
) -> None:
    """List the durable runs in the log, or show one, without a node.

    `mainspring runs` asks the node, which also knows what each run waits for. With an ID and --json the output is what
    `mainspring runs check` reads.
    """
    with reading(stored(at)) as engine:
        log = Log(engine)
        store = RunStore(log)
        if run_id is not None:
            history = opened(log, store.history(run_id))
        else:
            listing = RunListing(log, store, MonotonicClock())
            wanted = RunSelection(**which.members())
            found = opened(log, listing.newest(wanted, lambda _: True, limit=limit))
    if run_id is None:
        rows = ({**msgspec.json.decode(msgspec.json.encode(each)), "state": each.state} for each in found)
        list_found(rows, as_json)
    elif as_json:
        say(msgspec.json.encode(history).decode())
    else:
        for line in timeline(history):
            say(safe(line))


@app.command(name="export")
def export_command(
    target: Annotated[str, typer.Argument(metavar="FILE", help="Where to write; - is standard output.")] = "-",
    skip_damaged: Annotated[
        bool, typer.Option("--skip-damaged", help="Leave damaged entries out instead of stopping at them.")
    ] = False,
    reencode: Annotated[
        str | None,
        typer.Option(metavar="MODULE:APP", help="Encode payloads again, with the current key of this program's codec."),
    ] = None,
    *,
    at: LogOptions,
    as_json: JsonOption = False,
) -> None:
    """Write everything in the log as lines of JSON. May run while nodes serve. Exit code 3: damage was left out."""
    settings = stored(at)
    if as_json and target == "-":
        raise typer.BadParameter("--json and the export cannot share standard output; name a file", param_hint="FILE")
    again = None if reencode is None else find_encoding(reencode).reencode

    with reading(settings) as engine, progress() as show, _file(target, "xb") as out:
        export = LogExport(engine, skip_damaged=skip_damaged, change=again, progress=show)

        async def write() -> None:
            async for line in export.lines():
                out.write(line)
            out.flush()

        opened(engine, write())
    moved = export.moved
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
    """Make a new log from an export. Offsets and versions stay the same. There must be no log yet.

    Every line is checked before it is stored; the first one that is wrong is named, and no log is made.
    """
    settings = stored(at)
    new_log = (
        new_log_file(log_file(settings.data)) if settings.engine == "sqlite" else visiting(settings, may_make=True)
    )
    rules: Any = {"readers": all_readers(), "check_event": check_event}
    with progress() as show, _file(source, "rb") as given, new_log as engine, ExitStack() as undo:
        if settings.engine != "sqlite":  # what a server has got cannot be thrown away again: look at all of it first
            given = given if source != "-" else undo.enter_context(_spooled(given))
            check_lines(_lines(given), show, **rules)
            given.seek(0)
        moved = opened(engine, import_lines(_lines(given), engine, show, **rules))
    _print_moved("imported", moved, as_json)


def _lines(file: IO[bytes]) -> Iterator[bytes]:
    """Line by line, but never more of one than a line may have."""
    return iter(lambda: file.readline(MOST_LINE + 1), b"")


@contextmanager
def _spooled(given: IO[bytes]) -> Iterator[IO[bytes]]:
    """A copy of what can be read only once."""
    with TemporaryFile() as copy:
        shutil.copyfileobj(given, copy)
        copy.seek(0)
        yield copy


@contextmanager
def new_log_file(path: Path) -> Iterator[Engine]:
    """Under another name until it is whole."""
    if path.exists():
        raise LogExists(f"there is a log already: {path}", remedy="import into a new data directory")
    partial = path.with_name(path.name + ".partial")
    _remove_log(partial)
    try:
        yield SqliteEngine(partial)
        partial.rename(path)
        sync_path(path.parent)
    finally:
        _remove_log(partial)


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
        raise CommandFailed(f"there is no folder {target.parent}", remedy=_NAME_A_FILE)
    with progress() as show:
        size = copy_log(path, target, show)
    say_done({"file": str(target), "bytes": size}, as_json, f"copied {path} to {target}, {size:,} bytes")


@app.command(name="upgrade")
def upgrade_command(*, at: FileOptions, as_json: JsonOption = False) -> None:
    """Bring the log to the newest format now. No node may run on it; a node does the same in the background.

    It may be interrupted at any point, and goes on where it was. Make a backup first to be able to go back.
    """
    path = _existing(at)
    with progress() as show:
        done = upgrade(path, show)
    left = f"; {done.left:,} stay as they are, since one behind them is damaged" if done.left else ""
    found = msgspec.structs.asdict(done) | {"file": str(path)}
    say_done(found, as_json, f"{path} has format {done.format}; {done.events:,} events were moved{left}")


@app.command(name="recover")
def recover_command(
    discard: Annotated[
        bool,
        typer.Option("--discard", help="Give up the hidden commits; only keep their offsets from being used again."),
    ] = False,
    *,
    at: FileOptions,
    as_json: JsonOption = False,
) -> None:
    """Bring back commits that a damaged write-ahead log hides. No node may run on it; the files are copied first.

    Exit code 3: damage is left, and is listed.
    """
    path = _existing(at)
    with progress() as show:
        done = recover(path, discard=discard, progress=show)
    if done is None:
        say_done({"file": str(path), "commits": 0}, as_json, f"{path}: nothing is hidden")
        return
    if as_json:
        say_json(msgspec.structs.asdict(done) | {"file": str(path), "ok": not done.report.problems})
    else:
        for damage in done.damage:
            say(safe(f"damaged: {damage}"))
        say(f"{'gave up' if discard else 'brought back'} {done.commits:,} commits; as it was: {done.kept}")
        _print_report(path, done.report)
    if done.report.problems:
        raise typer.Exit(FOUND_DAMAGE)


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
        file = open(name, mode, opener=open_private)  # noqa: SIM115 - closed below
    except FileExistsError:
        raise LogExists(f"{name} exists already", remedy="name a file that does not exist yet") from None
    except OSError as error:
        verb, remedy = ("read", "name an export") if mode == "rb" else ("write", _NAME_A_FILE)
        raise CommandFailed(f"cannot {verb} {name}: {error.strerror}", remedy=remedy) from None
    with file:
        yield file


def _print_report(path: Path, report: CheckReport) -> None:
    say(
        f"{path}: format {report.format}, {report.events:,} events in {report.partitions:,} partitions of "
        f"{report.topics:,} topics, {report.records:,} records, {report.marks:,} dedupe marks"
    )
    for problem in report.problems:
        say(safe(f"{problem.kind}: {problem.where}: {problem.detail}"))
    if report.more_problems:
        say(f"and {report.more_problems:,} problems more")
    say("sound" if not report.problems else "damaged: restore from a backup, or see docs/how-to/back-up.md")


def _print_survey(place: str, found: Survey, sizes: dict[str, int]) -> None:
    table(
        ("topic", "partition", ">first", ">last", ">events", ">bytes"),
        (
            (topic.topic, str(each.partition), each.head, each.tail, each.events, each.bytes)
            for topic in found.topics
            for each in topic.partitions
        ),
        empty="no topics",
    )
    table(
        ("space", ">records", ">bytes"),
        ((each.space, each.records, each.bytes) for each in found.spaces),
        empty="no records",
    )
    sized = "".join(f"{name.removesuffix('_bytes')} {size:,} bytes, " for name, size in sizes.items())
    say(f"{place}: {sized}{found.marks:,} dedupe marks")


def _print_moved(verb: str, moved: Moved, as_json: bool) -> None:
    if as_json:
        say_json(moved)
        return
    note(f"{verb} {moved.events:,} events, {moved.records:,} records, {moved.marks:,} dedupe marks")
    for damage in moved.damaged:
        note(safe(f"left out: {damage}"))
