"""`mainspring runs`: look at durable runs, start and steer them, check journals against a changed program.

`list` and `show` read the log and may run beside a node; the node of that log, if it runs, is asked which programs it
has. `check` needs neither node nor log. All others ask the running node, because a run needs somebody to execute it;
`cancel`, `fail` and `retry` change one run, or all that `--state`, `--program` and `--prefix` describe.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import typer

from mainspring.cli.support.log_options import LogOptions, opened, reading, stored
from mainspring.cli.support.messages import WireOptions
from mainspring.cli.support.options import Commands
from mainspring.cli.support.output import CommandFailed, JsonOption, note, safe, say, say_json
from mainspring.client import NodeRefused
from mainspring.errors import MainspringError
from mainspring.json_text import JsonRefused, read_value
from mainspring.log import Log
from mainspring.plain_text import plain_lines
from mainspring.runs import History, RunRecord, Runtime
from mainspring.runs import check as check_histories
from mainspring.runs.durable import RunStore
from mainspring.settings import Settings
from mainspring.unix_socket import is_listening, place_to_ask

T = TypeVar("T")

app: typer.Typer = Commands("List, show, start, steer and check durable runs.")

IdArgument = Annotated[str, typer.Argument(metavar="ID", help="The id of a run.")]

OneArgument = Annotated[str | None, typer.Argument(metavar="[ID]", help="The id of a run; or say which with --state.")]
State = Literal["running", "blocked", "value", "failed", "cancelled"]


@dataclass(frozen=True)
class RunFilter:
    """Which runs are meant."""

    state: Annotated[State | None, typer.Option(help="Only runs in this state.")] = None
    program: Annotated[str | None, typer.Option(help="Only runs of this program.")] = None
    prefix: Annotated[str, typer.Option(help="Only ids that start with this.")] = ""


WIDEST_VALUE = 60
UNFINISHED = ("running", "blocked")
STILL = {"running": "still running", "blocked": "blocked"}


# -- reading


@app.command("list")
def list_runs(
    *,
    which: RunFilter,
    limit: Annotated[int, typer.Option(min=1, help="How many at most.")] = 100,
    as_json: JsonOption = False,
    log: LogOptions,
) -> None:
    """List durable runs by id, with their state and when they began."""
    found = _read(stored(log), lambda store: store.runs(**asdict(which), limit=limit))
    if as_json:
        for record in found:
            say_json(msgspec.json.encode(record))
        return
    if not found:
        note("no runs")
    width = max((len(record.id) for record in found), default=2)
    programs = _programs(log) if any(record.state in UNFINISHED for record in found) else None
    for record in found:
        row = f"{record.id:{width}}  {record.state:9}  {_time(record.created)}  {record.program}"
        say(safe(row + (f"  waits for program {record.program}" if _is_waiting(record, programs) else "")))


def _programs(log: LogOptions) -> list[str] | None:
    """The programs that the nodes of this log have; None where none can be asked."""
    settings = log.load().settings
    place = place_to_ask(settings.kernel_socket, settings.data, "kernel.sock")
    if not is_listening(place):
        return None
    try:
        return list(WireOptions(socket_path=place).ask("Run.Programs", {}, "query")["programs"])
    except MainspringError:  # a node of another version
        return None


def _is_waiting(record: RunRecord, programs: list[str] | None) -> bool:
    return record.state in UNFINISHED and programs is not None and record.program not in programs


@app.command()
def show(run_id: IdArgument, as_json: JsonOption = False, *, log: LogOptions) -> None:
    """Show the timeline of a run. Each effect, its answer, when it was performed and how long the answer took.

    With --json the output is what `mainspring runs check` reads.
    """
    history = _read(stored(log), lambda store: store.history(run_id))
    if as_json:
        say_json(msgspec.json.encode(history))
        return
    for line in timeline(history, _programs(log) if history.run.state in UNFINISHED else None):
        say(plain_lines(line))


def timeline(history: History, programs: list[str] | None = None) -> Iterator[str]:
    """A run for people. `programs` are those of its nodes, where they are known."""
    run = history.run
    yield f"run {run.id}  {run.program}{bytes(run.args).decode()}  {run.state}"
    ended = f"ended {_time(run.updated)} after {run.updated - run.created} ms"
    yield f"started {_time(run.created)}, {STILL.get(run.state, ended)}"
    if _is_waiting(run, programs):
        yield f"waits for program {run.program}"
    if run.forked_from is not None:
        yield f"forked from {run.forked_from} at effect {run.forked_at}"
    if run.retries:
        yield f"retried {run.retries} times"
    for index, entry in enumerate(history.journal):
        tried = f" (attempt {entry.attempts})" if entry.attempts else ""
        asked = f"{entry.effect} {_short(entry.args)}{tried}"
        if entry.error is not None:
            answer = f"failed with {entry.error.get('type', '?')}: {entry.error.get('message', '')}"
        else:
            answer = f"-> {_short(entry.value)}" if entry.answered else "... unanswered"
        yield f"  {index:4}  +{max(0, entry.at - run.created):>9} ms  {entry.ms:>7} ms  {asked}  {answer}"
    error = run.error or {}
    if bytes(history.progress) != b"null":
        yield f"progress {_short(history.progress)}"
    if run.state == "value":
        yield f"value {_short(run.value)}"
    elif run.state == "failed":
        yield f"failed with {error.get('type', '?')}: {error.get('message', '')}"
    elif run.state == "blocked":
        yield f"blocked: {error.get('message', '')}"
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
    say(node.ask("Run.Start", {"program": program, "args": given, "id": run_id})["id"])


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
def query(
    run_id: IdArgument,
    name: Annotated[str, typer.Argument(help="A query that the run's program declares.")],
    args: Annotated[list[str] | None, typer.Argument(metavar="ARG", help="Arguments, each as JSON.")] = None,
    *,
    node: WireOptions,
) -> None:
    """Ask a live run something; prints the answer as JSON."""
    asked = {"id": run_id, "name": name, "args": [_json(text, "ARG") for text in args or ()]}
    say_json(node.ask("Run.Query", asked, "query")["value"])


@app.command()
def update(
    run_id: IdArgument,
    name: Annotated[str, typer.Argument(help="An update that the run's program declares.")],
    args: Annotated[list[str] | None, typer.Argument(metavar="ARG", help="Arguments, each as JSON.")] = None,
    *,
    node: WireOptions,
) -> None:
    """Change a live run; prints the answer as JSON. Durable when the command ends."""
    asked = {"id": run_id, "name": name, "args": [_json(text, "ARG") for text in args or ()]}
    say_json(node.ask("Run.Update", asked)["value"])


@app.command()
def cancel(
    run_id: OneArgument = None,
    reason: Annotated[str, typer.Option(help="Kept with the outcome; JSON or plain text.")] = "null",
    *,
    which: RunFilter,
    as_json: JsonOption = False,
    node: WireOptions,
) -> None:
    """Cancel a run, or all that the options describe."""
    try:
        given = read_value(reason, "the reason")
    except JsonRefused:
        given = reason
    if run_id is None:
        _bulk(node, "cancel", "cancelled", which, as_json, reason=given)
        return
    answer = node.ask("Run.Cancel", {"id": run_id, "reason": given})
    _done(answer["cancelled"], f"{run_id} was cancelled", f"run {run_id} is over or unknown")


@app.command()
def fail(
    run_id: OneArgument = None,
    why: Annotated[str, typer.Option(help="Kept with the outcome. A blocked run says what blocks it.")] = "",
    *,
    which: RunFilter,
    as_json: JsonOption = False,
    node: WireOptions,
) -> None:
    """Let a run fail, or all that the options describe."""
    if run_id is None:
        _bulk(node, "fail", "failed", which, as_json, reason=why or None)
        return
    answer = node.ask("Run.Fail", {"id": run_id, "why": why})
    _done(answer["failed"], f"{run_id} was failed", f"run {run_id} is over or unknown")


@app.command()
def retry(
    run_id: OneArgument = None,
    keep: Annotated[
        Literal["all", "fitting", "nothing"],
        typer.Option(help="Of the journal: all; what fits the program, of a blocked run; nothing, to begin anew."),
    ] = "all",
    *,
    which: RunFilter,
    as_json: JsonOption = False,
    node: WireOptions,
) -> None:
    """Go on with a run, or with all that the options describe.

    The program is the one that the node has now. `mainspring runs retry --state blocked --program checkout`
    """
    if run_id is None:
        _bulk(node, "retry", "retried", which, as_json, keep=keep)
        return
    say(node.ask("Run.Retry", {"id": run_id, "keep": keep})["id"])


def _bulk(
    node: WireOptions,
    action: str,
    done: str,
    which: RunFilter,
    as_json: bool,
    **more: Any,
) -> None:
    """Change many runs, page by page; says how many, and which could not be changed."""
    if which.state is None:
        raise CommandFailed("say which runs", remedy="give the ID of one, or --state and, if needed, --program")
    count, after = 0, ""
    refused: dict[str, str] = {}
    while True:
        asked = {"action": action, **asdict(which), "after": after, **more}
        changed = node.ask("Run.Bulk", asked)
        count += changed["count"]
        refused |= changed["refused"]
        after = changed.get("after") or ""
        if not after:
            break
    if as_json:
        say_json({"count": count, "refused": refused})
    else:
        for run_id, why in refused.items():
            note(f"{safe(run_id)}: {safe(why)}")
        say(f"{count} {'run was' if count == 1 else 'runs were'} {done}")
    if refused:
        raise typer.Exit(1)


@app.command()
def fork(
    run_id: IdArgument,
    at: Annotated[int, typer.Option("--at", min=0, help="How many answers the new run begins with.")],
    new_id: Annotated[str | None, typer.Option("--id", help="The id of the new run.")] = None,
    *,
    node: WireOptions,
) -> None:
    """Start a new run with the first answers of another. Prints its id."""
    say(node.ask("Run.Fork", {"id": run_id, "at": at, "newId": new_id})["id"])


def _json(text: str, name: str) -> Any:
    try:
        return read_value(text, name)
    except JsonRefused as error:
        raise NodeRefused(error.message, remedy="quote it for the shell: '\"text\"'") from None


def _done(happened: bool, said: str, otherwise: str) -> None:
    if not happened:
        raise NodeRefused(otherwise, remedy="`mainspring runs list` shows all")
    say(said)


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
        say(f"{fits}  {verdict.id}  {verdict.program}  {verdict.effects} effects")
        for line in verdict.problem.splitlines():
            say(f"       {safe(line)}")
    bad = sum(bool(verdict.problem) for verdict in verdicts)
    note(f"{len(verdicts)} journals, {bad} do not fit")
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
