"""`mainspring runs`: look at durable runs, start and steer them, check journals against a changed program.

`list` and `show` read the log and may run beside a node. `start`, `signal`, `cancel`, `retry` and `fork` ask the
running node, because a run needs somebody to execute it. `check` needs neither node nor log.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import typer

from mainspring.cli.support.log_options import LogOptions, opened, reading, stored
from mainspring.cli.support.messages import WireOptions
from mainspring.cli.support.options import Commands
from mainspring.cli.support.output import CommandFailed, JsonOption
from mainspring.client import NodeRefused
from mainspring.json_text import JsonRefused, read_value
from mainspring.log import Log
from mainspring.runs import History, Runtime
from mainspring.runs import check as check_histories
from mainspring.runs.durable import RunStore
from mainspring.settings import Settings

T = TypeVar("T")

app: typer.Typer = Commands("List, show, start, steer and check durable runs.")

IdArgument = Annotated[str, typer.Argument(metavar="ID", help="The id of a run.")]

WIDEST_VALUE = 60


# -- reading


@app.command("list")
def list_runs(
    state: Annotated[
        Literal["running", "value", "failed", "cancelled"] | None, typer.Option(help="Only runs in this state.")
    ] = None,
    prefix: Annotated[str, typer.Option(help="Only ids that start with this.")] = "",
    limit: Annotated[int, typer.Option(min=1, help="How many at most.")] = 100,
    as_json: JsonOption = False,
    *,
    log: LogOptions,
) -> None:
    """List durable runs by id, with their state and when they began."""
    found = _read(stored(log), lambda store: store.runs(state=state, prefix=prefix, limit=limit))
    if as_json:
        for record in found:
            typer.echo(msgspec.json.encode(record).decode())
        return
    if not found:
        typer.echo("no runs", err=True)
    width = max((len(record.id) for record in found), default=2)
    for record in found:
        typer.echo(f"{record.id:{width}}  {record.state:9}  {_time(record.created)}  {record.program}")


@app.command()
def show(run_id: IdArgument, as_json: JsonOption = False, *, log: LogOptions) -> None:
    """Show the timeline of a run. Each effect, its answer, when it was performed and how long the answer took.

    With --json the output is what `mainspring runs check` reads.
    """
    history = _read(stored(log), lambda store: store.history(run_id))
    if as_json:
        typer.echo(msgspec.json.encode(history).decode())
        return
    for line in timeline(history):
        typer.echo(line)


def timeline(history: History) -> Iterator[str]:
    """A run for people."""
    run = history.run
    yield f"run {run.id}  {run.program}{bytes(run.args).decode()}  {run.state}"
    ended = f"ended {_time(run.updated)} after {run.updated - run.created} ms"
    yield f"started {_time(run.created)}, {'still running' if run.state == 'running' else ended}"
    if run.forked_from is not None:
        yield f"forked from {run.forked_from} at effect {run.forked_at}"
    if run.retries:
        yield f"retried {run.retries} times"
    for index, entry in enumerate(history.journal):
        asked = f"{entry.effect} {_short(entry.args)}"
        answer = f"-> {_short(entry.value)}" if entry.answered else "... unanswered"
        yield f"  {index:4}  +{max(0, entry.at - run.created):>9} ms  {entry.ms:>7} ms  {asked}  {answer}"
    if run.state == "value":
        yield f"value {_short(run.value)}"
    elif run.state == "failed":
        error = run.error or {}
        yield f"failed with {error.get('type', '?')}: {error.get('message', '')}"
    elif run.state == "cancelled":
        yield f"cancelled, reason {_short(run.reason)}"


def _short(value: bytes | msgspec.Raw) -> str:
    text = bytes(value).decode()
    return text if len(text) <= WIDEST_VALUE else text[: WIDEST_VALUE - 3] + "..."


def _time(epoch_ms: int) -> str:
    return datetime.fromtimestamp(epoch_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"


def _read(settings: Settings, ask: Callable[[RunStore], Coroutine[Any, Any, T]]) -> T:
    """Open the log, beside a running node where the engine allows it, and ask it something."""
    with reading(settings) as engine:
        log = Log(engine)
        return opened(log, ask(RunStore(log)))


# -- asking the node


@app.command()
def start(
    program: Annotated[str, typer.Argument(help="The name of a run that the node's program declares.")],
    args: Annotated[list[str] | None, typer.Argument(metavar="ARG", help="Arguments, each as JSON.")] = None,
    run_id: Annotated[str | None, typer.Option("--id", help="Starting the same id again gives the same run.")] = None,
    *,
    node: WireOptions,
) -> None:
    """Start a durable run; prints its id."""
    given = [_json(text, "ARG") for text in args or ()]
    typer.echo(node.ask("Run.Start", {"program": program, "args": given, "id": run_id})["id"])


@app.command()
def signal(
    run_id: IdArgument,
    name: Annotated[str, typer.Argument(help="What the run waits for.")],
    value: Annotated[str, typer.Argument(help="JSON.")] = "null",
    *,
    node: WireOptions,
) -> None:
    """Send a value to a run; durable when the command ends."""
    answer = node.ask("Run.Signal", {"id": run_id, "name": name, "value": _json(value, "VALUE")})
    _done(answer["signalled"], f"{run_id} was signalled", f"run {run_id} is over or unknown")


@app.command()
def cancel(
    run_id: IdArgument,
    reason: Annotated[str, typer.Option(help="Kept with the outcome; JSON or plain text.")] = "null",
    *,
    node: WireOptions,
) -> None:
    """Cancel a run, wherever it is executed."""
    try:
        given = read_value(reason, "the reason")
    except JsonRefused:
        given = reason
    answer = node.ask("Run.Cancel", {"id": run_id, "reason": given})
    _done(answer["cancelled"], f"{run_id} was cancelled", f"run {run_id} is over or unknown")


@app.command()
def retry(run_id: IdArgument, *, node: WireOptions) -> None:
    """Go on with a run that failed or was cancelled, from its journal."""
    typer.echo(node.ask("Run.Retry", {"id": run_id})["id"])


@app.command()
def fork(
    run_id: IdArgument,
    at: Annotated[int, typer.Option("--at", min=0, help="How many answers the new run begins with.")],
    new_id: Annotated[str | None, typer.Option("--id", help="The id of the new run.")] = None,
    *,
    node: WireOptions,
) -> None:
    """Start a new run with the first answers of another. Prints its id."""
    typer.echo(node.ask("Run.Fork", {"id": run_id, "at": at, "newId": new_id})["id"])


def _json(text: str, name: str) -> Any:
    try:
        return read_value(text, name)
    except JsonRefused as error:
        raise NodeRefused(error.message, remedy="quote it for the shell: '\"text\"'") from None


def _done(happened: bool, said: str, otherwise: str) -> None:
    if not happened:
        raise NodeRefused(otherwise, remedy="`mainspring runs list` shows all")
    typer.echo(said)


# -- checking


@app.command()
def check(
    program: Annotated[str, typer.Argument(metavar="MODULE:APP", help="The program as it is now.")],
    journals: Annotated[
        list[Path], typer.Argument(metavar="JOURNAL", help="Files of `runs show --json`, or directories of them.")
    ],
) -> None:
    """Replay stored journals against the program as it is now. Exit code 1 when one does not fit."""
    from mainspring.node import load_program

    found, runtime = load_program(program), Runtime()
    assert found is not None
    found.install_runs(runtime)
    verdicts = check_histories(_histories(journals), runtime.programs)
    for verdict in verdicts:
        fits = "BAD" if verdict.problem else "ok "
        typer.echo(f"{fits}  {verdict.id}  {verdict.program}  {verdict.effects} effects")
        for line in verdict.problem.splitlines():
            typer.echo(f"       {line}")
    bad = sum(bool(verdict.problem) for verdict in verdicts)
    typer.echo(f"{len(verdicts)} journals, {bad} do not fit", err=True)
    if bad or not verdicts:
        raise typer.Exit(1)


def _histories(paths: list[Path]) -> Iterator[History]:
    for path in paths:
        files = sorted(path.rglob("*.json")) if path.is_dir() else [path]
        for file in files:
            try:
                for line in filter(bytes.strip, file.read_bytes().splitlines()):
                    yield msgspec.json.decode(line, type=History)
            except (OSError, msgspec.MsgspecError) as error:
                raise CommandFailed(
                    f"{file} holds no journal: {error}", remedy="write it with `mainspring runs show ID --json`"
                ) from None
