"""`mainspring beats`: look at a line of beats, replay it, fork it, and signal it.

What only reads opens the log beside a running node. What changes something opens the log itself and, when a node owns
it or shares it, asks the node. `--socket` and `--url` say which node; with `--url` it is asked in any case.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Final

import typer

from mainspring.beats import BeatsProgram, Heartbeat
from mainspring.beats.history import follow, lines_of
from mainspring.cli.support.log_options import LogOptions, reading
from mainspring.cli.support.messages import WireOptions
from mainspring.cli.support.options import Commands
from mainspring.cli.support.output import JsonOption, json_text, note, say, say_done, say_json
from mainspring.client import NodeRefused
from mainspring.errors import BootError, MainspringError
from mainspring.import_path import find_object
from mainspring.log import BlockingLog, LogLocked, SqliteEngine, log_file
from mainspring.settings import Settings

app: typer.Typer = Commands("Show, replay, watch, compare, fork and signal a line of beats.")

MAIN: Final = "main"  # the line a node works on
BeatArgument = Annotated[int, typer.Argument(metavar="N", min=1, help="A beat.")]

_WATCH_S: Final = 0.2  # a beat is shown this late at most; looking costs one record


@dataclass(frozen=True)
class LineOptions(LogOptions):
    """A line of beats, and the log it is in."""

    line: Annotated[str, typer.Option("--line", help="Which line of beats.")] = MAIN

    @contextmanager
    def open(self, *, write: bool = False) -> Iterator[Heartbeat]:
        """The heartbeat of the line; read-only beside a running node where the engine allows it."""
        with _log(self.load().settings, write=write) as log:
            yield Heartbeat(log=log, line=self.line)


@contextmanager
def _log(settings: Settings, *, write: bool = False) -> Iterator[BlockingLog]:
    if settings.engine == "memory":
        raise NodeRefused("a log in memory is seen by its node only", remedy="use read, signal, pause, resume or fork")
    if write and settings.engine == "sqlite":
        with BlockingLog(SqliteEngine(log_file(settings.data))) as log:
            yield log
    else:
        with reading(settings) as engine, BlockingLog(engine) as log:
            yield log


def _print(value: Any, as_json: bool) -> None:
    """One line for programs; for people, laid out."""
    if as_json:
        say_json(value)
    else:
        say(json_text(value, 2, sort=True))


def _summary(beat: int, happened: dict[str, Any]) -> str:
    runs = sum(entry["result"] != "duplicate" for entry in happened["agenda"])
    notes = "".join(f"  {note['code']}({', '.join(note['names'])})" for note in happened["diagnostics"])
    return (
        f"beat {beat}  {happened['digest'][:12]}  {len(happened['inbox'])} signals  {runs} runs  "
        f"{len(happened['stage'])} staged  {len(happened['emitted'])} emitted{notes}"
    )


@app.command()
def show(
    beat: BeatArgument,
    journal: Annotated[bool, typer.Option("--journal", help="The records as they stand in the log.")] = False,
    *,
    as_json: JsonOption = False,
    beats: LineOptions,
) -> None:
    """Show what happened in a beat. Inbox, agenda with results, stage, emissions, diagnostics, digest."""
    with beats.open() as heartbeat:
        whole = heartbeat.read(f"/rt/beat/{beat}")
        if whole is None or "digest" not in whole:
            message, remedy = f"there are no details of beat {beat}", f"the next beat is {heartbeat.next_beat}"
            raise MainspringError(message, remedy=remedy, code="unknown_beat")
        if journal:
            for record in heartbeat.journal(beat).splitlines():
                say_json(record)
        else:
            _print(whole, as_json)


@app.command()
def read(
    path: Annotated[
        str,
        typer.Argument(
            metavar="PATH", help="A path of the state, of /rt (the beats themselves) or of /cas (large values)."
        ),
    ],
    at: Annotated[int | None, typer.Option("--at", min=1, help="As enzymes of this beat read it.")] = None,
    *,
    as_json: JsonOption = False,
    beats: LineOptions,
    node: WireOptions,
) -> None:
    """Read a path, now or as of a beat."""
    if node.url is not None or beats.load().settings.engine == "memory":
        found = _ask(beats, node, "Beat.Read", {"path": path, "at": at}, kind="query")["value"]
    else:
        with beats.open() as heartbeat:
            found = heartbeat.read(path, at=at)
    _print({"value": found} if as_json else found, as_json)


@app.command()
def diff(
    earlier: BeatArgument,
    later: Annotated[int, typer.Argument(metavar="M", min=1, help="Another beat.")],
    *,
    as_json: JsonOption = False,
    beats: LineOptions,
) -> None:
    """Compare what enzymes of two beats read. One JSON object for each path that differs."""
    with beats.open() as heartbeat:
        for each in heartbeat.diff(earlier, later):
            say_json({"path": each.path, str(earlier): each.earlier, str(later): each.later})


@app.command()
def watch(
    count: Annotated[int | None, typer.Option("--count", min=1, help="Stop after so many beats.")] = None,
    since: Annotated[int | None, typer.Option("--from", min=1, help="Start with this beat, not with the next.")] = None,
    *,
    as_json: JsonOption = False,
    beats: LineOptions,
) -> None:
    """Print a line for each beat as it happens, until interrupted."""
    pause = threading.Event()
    with _log(beats.load().settings) as log:
        followed = follow(log, beats.line, since, lambda: pause.wait(_WATCH_S))
        for beat, happened in itertools.islice(followed, count):
            if as_json:
                say_json({"beat": beat, **happened})
            else:
                say(_summary(beat, happened))


@app.command()
def lines(at: LogOptions, as_json: JsonOption = False) -> None:
    """List the lines of beats. Where each stands, and where it came from."""
    with _log(at.load().settings) as log:
        for name, head in lines_of(log).items():
            if as_json:
                origin_of = {"parent": head.parent, "forkedAt": head.forked_at} if head.parent else {}
                say_json({"line": name, "beat": head.beat, "digest": head.digest, "paused": head.paused, **origin_of})
                continue
            origin = f"  forked from {head.parent} at beat {head.forked_at}" if head.parent else ""
            state = "  paused" if head.paused else ""
            say(f"{name}  beat {head.beat}  {head.digest[:12]}{state}{origin}")


@app.command()
def verify(beats: LineOptions, as_json: JsonOption = False) -> None:
    """Check every kept journal against its digest. Exit code 1 when one is damaged."""
    with beats.open() as heartbeat:
        damaged = heartbeat.verify()
        last = heartbeat.next_beat - 1
    if as_json:
        say_json({"line": beats.line, "last": last, "digest": heartbeat.digest, "damaged": list(damaged)})
    elif not damaged:
        say(f"line {beats.line} is intact up to beat {last}, digest {heartbeat.digest}")
    for beat in () if as_json else damaged:
        say(f"beat {beat} is damaged; what beats made before it can be trusted")
    if damaged:
        raise typer.Exit(1)


@app.command()
def replay(
    program: Annotated[
        str | None, typer.Argument(metavar="MODULE:APP", help="The program.  [default: the one a node ran last]")
    ] = None,
    first: Annotated[int | None, typer.Option("--from", min=1, help="First beat.  [default: the first kept]")] = None,
    last: Annotated[int | None, typer.Option("--to", min=1, help="Last beat.  [default: the last there is]")] = None,
    *,
    as_json: JsonOption = False,
    beats: LineOptions,
) -> None:
    """Run old beats again and compare every record. Only what came from outside is taken from the log.

    Exit code 1 when a record differs.

    Enzymes are really called: those that touch the world outside their stage touch it again.
    """
    with beats.open() as heartbeat:
        name = program if program is not None else heartbeat.program
        if not name:
            raise BootError("the log does not say which program made its beats", remedy="name it: MODULE:APP")
        load_beats(name).install(heartbeat)
        found = heartbeat.replay(first, last)
    if found.divergence is not None:
        if as_json:
            say_json({"identical": False, "divergence": str(found.divergence)})
        note(str(found.divergence))
        raise typer.Exit(1)
    told = {"beats": found.beats, "first": found.first, "last": found.last, "digest": found.digest}
    words = f"{found.beats} beats, {found.first} to {found.last}: identical, digest {found.digest}"
    say_done({"identical": True, **told}, as_json, words)


def load_beats(program: str) -> BeatsProgram:
    """The beats of the app that MODULE:APP names."""
    found = find_object(program)
    declared = found if isinstance(found, BeatsProgram) else getattr(found, "beats", None)
    if not isinstance(declared, BeatsProgram):
        raise BootError(f"{program!r} declares no beats", remedy="use @app.enzyme")
    return declared


# --- what changes something -------------------------------------------------------------------------------------------


@app.command()
def signal(
    signal: Annotated[str, typer.Argument(metavar="SIGNAL", help="What: a path, or - for none.")],
    target: Annotated[str | None, typer.Argument(metavar="TARGET", help="Where: a path.")] = None,
    beat: Annotated[int | None, typer.Option("--beat", min=1, help="Land in this beat.  [default: the next]")] = None,
    *,
    as_json: JsonOption = False,
    beats: LineOptions,
    node: WireOptions,
) -> None:
    """Queue a signal; prints the beat it lands in. It is durable when the command ends."""
    what = None if signal == "-" else signal

    def directly(heartbeat: Heartbeat) -> dict[str, Any]:
        lands = heartbeat.signal(what, target, beat)
        heartbeat.flush()
        return {"beat": lands}

    answer = _change(beats, node, directly, "Beat.Signal", {"signal": what, "target": target, "beat": beat})
    say_done(answer, as_json, f"beat {answer['beat']}")


@app.command()
def pause(beats: LineOptions, node: WireOptions, as_json: JsonOption = False) -> None:
    """Let signals wait, in order and without loss."""
    _set_paused(beats, node, as_json, paused=True)


@app.command()
def resume(beats: LineOptions, node: WireOptions, as_json: JsonOption = False) -> None:
    """Work on waiting signals again."""
    _set_paused(beats, node, as_json, paused=False)


def _set_paused(beats: LineOptions, node: WireOptions, as_json: bool, *, paused: bool) -> None:
    def directly(heartbeat: Heartbeat) -> dict[str, Any]:
        (heartbeat.pause if paused else heartbeat.resume)()
        heartbeat.flush()
        return {"beat": heartbeat.next_beat}

    answer = _change(beats, node, directly, "Beat.Pause" if paused else "Beat.Resume", {})
    words = f"{'paused' if paused else 'running'} from beat {answer['beat']} on"
    say_done({"paused": paused, "beat": answer["beat"]}, as_json, words)


@app.command()
def fork(
    at: Annotated[int, typer.Option("--at", min=0, help="The last beat both lines share.")],
    new: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Name of the new line.  [default: LINE-at-N]")
    ] = None,
    *,
    as_json: JsonOption = False,
    beats: LineOptions,
    node: WireOptions,
) -> None:
    """Start a new line from an old beat. The old line stays as it is."""
    name = new if new is not None else f"{beats.line}-at-{at}"

    def directly(heartbeat: Heartbeat) -> dict[str, Any]:
        heartbeat.fork(at, name)
        return {}

    _change(beats, node, directly, "Beat.Fork", {"at": at, "name": name})
    made = {"line": name, "parent": beats.line, "forkedAt": at}
    say_done(made, as_json, f"line {name} continues line {beats.line} with beat {at + 1}")


def _change(
    beats: LineOptions,
    node: WireOptions,
    directly: Callable[[Heartbeat], dict[str, Any]],
    type: str,
    data: dict[str, Any],
) -> dict[str, Any]:
    """Change a line in its log, or, when a node owns the log or shares it, by asking the node."""
    if node.url is None and beats.load().settings.engine == "sqlite":
        try:
            with beats.open(write=True) as heartbeat:
                return directly(heartbeat)
        except LogLocked:
            if beats.line != MAIN:
                raise
    return _ask(beats, node, type, data)


def _ask(
    beats: LineOptions, node: WireOptions, type: str, data: dict[str, Any], kind: str = "command"
) -> dict[str, Any]:
    """A running node's answer."""
    if beats.line != MAIN:
        raise NodeRefused(
            f"a node answers for the line {MAIN} only, not for {beats.line}",
            remedy="leave --line out, or stop the node and work on its log with --data",
        )
    loaded = beats.load()
    return node.ask(type, data, kind, loaded=loaded, owner_of_data=loaded.settings.engine == "sqlite")
