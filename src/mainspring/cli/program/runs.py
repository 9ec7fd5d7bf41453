"""`mainspring runs`: look at durable runs, start and steer them, check journals against a changed program.

All ask the running node but `check`, which needs neither node nor log. `mainspring log runs` reads the log of a node
that does not run. `signal`, `cancel`, `fail`, `retry` and `forget` change one run, or all that `--state`, `--program`
and `--prefix` describe.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
import typer

from mainspring.cli.support.messages import WireOptions, data_of
from mainspring.cli.support.moments import date_text, moment_ms
from mainspring.cli.support.node_options import YesOption, confirm
from mainspring.cli.support.options import Commands
from mainspring.cli.support.output import CommandFailed, JsonOption, listing, note, safe, say, say_done, say_json, short
from mainspring.client import NodeRefused
from mainspring.json_text import JsonRefused, read_value
from mainspring.loop import MonotonicClock
from mainspring.runs import History, Runtime
from mainspring.runs import check as check_histories

app: typer.Typer = Commands("List, show, start, steer and check durable runs.")

IdArgument = Annotated[str, typer.Argument(metavar="ID", help="The id of a run.")]

OneArgument = Annotated[str | None, typer.Argument(metavar="ID", help="The id of a run; or say which with --state.")]
State = Literal["running", "blocked", "done", "failed", "cancelled"]


@dataclass(frozen=True)
class RunFilter:
    """Which runs are meant."""

    state: Annotated[State | None, typer.Option(help="Only runs in this state.")] = None
    program: Annotated[str | None, typer.Option(help="Only runs of this program.")] = None
    prefix: Annotated[str, typer.Option(help="Only ids that start with this.")] = ""
    text: Annotated[str, typer.Option(help="Only with this text in id, program, error or arguments.")] = ""
    since: Annotated[str | None, typer.Option(help="Only runs created since: 10m (ago) or a date.")] = None
    until: Annotated[str | None, typer.Option(help="Only runs created before: 10m (ago) or a date.")] = None

    def members(self) -> dict[str, Any]:
        """As a message says it; empty: all runs."""
        wanted: dict[str, Any] = {name: value for name, value in asdict(self).items() if value}
        for name in ("since", "until"):
            if name in wanted:
                wanted[name] = moment_ms(wanted[name], MonotonicClock().wall_ms(), f"--{name}")
        return wanted


WIDEST_VALUE = 60
_PAGE: Final = 50  # of Run.List
STILL = {"running": "still running", "blocked": "blocked"}


# -- reading


@app.command("list")
def list_runs(
    *,
    which: RunFilter,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many at most.")] = 100,
    as_json: JsonOption = False,
    node: WireOptions,
) -> None:
    """List durable runs, the newest first, and what each waits for."""
    found: list[dict[str, Any]] = []
    with node.open() as wire:
        while len(found) < limit:
            wanted = min(limit - len(found), _PAGE)
            asked = {**which.members(), "after": found[-1]["id"] if found else "", "limit": wanted}
            page = data_of(wire.ask("query", "Run.List", asked))["runs"]
            found += page
            if len(page) < wanted:
                break
    list_found(found, as_json)


def list_found(found: Iterable[dict[str, Any]], as_json: bool) -> None:
    """Runs a line each, and what one waits for, where that is known."""

    def cells(run: dict[str, Any]) -> tuple[str, ...]:
        said = f"waits for {_waiting(run)}" if "waitsFor" in run else _error_text(run.get("error"))
        return run["id"], run["state"], date_text(run["created"]), run["program"], short(said, 80)

    listing(found, as_json, ("id", "state", "since", "program", ""), cells, empty="no runs")


def _waiting(run: dict[str, Any]) -> str:
    until = f" until {date_text(run['waitsUntil'])}" if run.get("waitsUntil") else ""
    return f"{run['waitsFor']}{until}"


def _error_text(error: dict[str, str] | None) -> str:
    return "" if error is None else f"{error.get('type', '?')}: {error.get('message', '')}"


@app.command()
def count(*, which: RunFilter, as_json: JsonOption = False, node: WireOptions) -> None:
    """Count durable runs by program and state."""
    counts = node.ask("Run.Count", which.members(), "query")["counts"]
    columns = ("program", "state", ">count")
    listing(counts, as_json, columns, lambda each: (each["program"], each["state"], each["count"]), empty="no runs")


@app.command()
def show(run_id: IdArgument, as_json: JsonOption = False, *, node: WireOptions) -> None:
    """Show the timeline of a run. Each effect, its answer, its failed attempts, and why the run failed.

    With --json the output is what `mainspring runs check` reads.
    """
    with node.open() as wire:
        history = data_of(wire.ask("query", "Run.History", {"id": run_id}))
        state = data_of(wire.ask("query", "Run.Outcome", {"id": run_id}))
    if as_json:
        say_json(history)
    else:
        found = msgspec.json.decode(msgspec.json.encode(history), type=History)
        for line in timeline(found, _waiting(state) if "waitsFor" in state else ""):
            say(safe(line))


def timeline(history: History, waits_for: str = "") -> Iterator[str]:
    """A run for people, and what it waits for, where that is known."""
    run = history.run
    yield f"run {run.id}  {run.program}{bytes(run.args).decode()}  {run.state}"
    ended = f"ended {date_text(run.updated)} after {run.updated - run.created} ms"
    yield f"started {date_text(run.created)}, {STILL.get(run.state, ended)}"
    if waits_for:
        yield f"waits for {waits_for}"
    if run.forked_from is not None:
        yield f"forked from {run.forked_from} at effect {run.forked_at}"
    if run.retries:
        yield f"retried {run.retries} times"
    for index, entry in enumerate(history.journal):
        tried = f" (attempt {entry.attempts})" if entry.attempts else ""
        asked = f"{entry.effect} {_short(entry.args)}{tried}"
        if entry.error is not None:
            answer = f"failed with {_error_text(entry.error)}"
        else:
            answer = f"-> {_short(entry.value)}" if entry.answered else "... unanswered"
        yield f"  {index:4}  +{max(0, entry.at - run.created):>9} ms  {entry.ms:>7} ms  {asked}  {answer}"
        first = entry.attempts - len(entry.failures) + (not entry.answered)
        for attempt, failed in enumerate(entry.failures, first):
            yield f"        attempt {attempt} failed {date_text(failed.at)}: {_error_text(failed.error)}"
        yield from _indented(entry.traceback or (entry.failures[-1].traceback if entry.failures else ""))
    error = run.error or {}
    if bytes(history.progress) != b"null":
        yield f"progress {_short(history.progress)}"
    if run.state == "done":
        yield f"value {_short(run.value)}"
    elif run.state == "failed":
        yield f"failed with {_error_text(error)}"
        yield from _indented(run.traceback)
    elif run.state == "blocked":
        yield f"blocked: {error.get('message', '')}"
    elif run.state == "cancelled":
        yield f"cancelled, reason {_short(run.reason)}"


def _indented(lines: str) -> Iterator[str]:
    for line in lines.splitlines():
        yield f"        {line}"


def _short(value: bytes | msgspec.Raw) -> str:
    text = bytes(value).decode()
    return text if len(text) <= WIDEST_VALUE else text[: WIDEST_VALUE - 3] + "..."


# -- asking the node


@app.command()
def start(
    program: Annotated[str, typer.Argument(help="The name of a run that the node's program declares.")],
    args: Annotated[list[str] | None, typer.Argument(metavar="ARG", help="Arguments, each as JSON.")] = None,
    run_id: Annotated[str | None, typer.Option("--id", help="Starting the same id again gives the same run.")] = None,
    *,
    as_json: JsonOption = False,
    node: WireOptions,
) -> None:
    """Start a durable run; prints its id."""
    given = [_json(text, "ARG") for text in args or ()]
    answer = node.ask("Run.Start", {"program": program, "args": given, "id": run_id})
    say_done(answer, as_json, answer["id"])


@app.command()
def signal(
    run_id: Annotated[str, typer.Argument(metavar="ID", help="The id of a run; `-`: all that the options describe.")],
    name: Annotated[str, typer.Argument(help="What the run waits for.")],
    value: Annotated[str, typer.Argument(help="JSON.")] = "null",
    yes: YesOption = False,
    *,
    which: RunFilter,
    as_json: JsonOption = False,
    node: WireOptions,
) -> None:
    """Send a value to a run, or to all that the options describe. Durable when the command ends.

    Examples: `runs signal o-17 paid`, `runs signal - paid true --program checkout --state running`.
    """
    given = _json(value, "VALUE")
    if run_id == "-":
        _bulk(node, "signal", "signalled", which, as_json, yes, name=name, value=given)
        return
    answer = node.ask("Run.Signal", {"id": run_id, "name": name, "value": given})
    _done(answer, "signalled", run_id, as_json)


@app.command()
def query(
    run_id: IdArgument,
    name: Annotated[str, typer.Argument(help="A query that the run's program declares.")],
    args: Annotated[list[str] | None, typer.Argument(metavar="ARG", help="Arguments, each as JSON.")] = None,
    *,
    as_json: JsonOption = False,
    node: WireOptions,
) -> None:
    """Ask a live run something; prints the answer as JSON."""
    asked = {"id": run_id, "name": name, "args": [_json(text, "ARG") for text in args or ()]}
    answer = node.ask("Run.Query", asked, "query")
    say_json(answer if as_json else answer["value"])


@app.command()
def update(
    run_id: IdArgument,
    name: Annotated[str, typer.Argument(help="An update that the run's program declares.")],
    args: Annotated[list[str] | None, typer.Argument(metavar="ARG", help="Arguments, each as JSON.")] = None,
    *,
    as_json: JsonOption = False,
    node: WireOptions,
) -> None:
    """Change a live run; prints the answer as JSON. Durable when the command ends."""
    asked = {"id": run_id, "name": name, "args": [_json(text, "ARG") for text in args or ()]}
    answer = node.ask("Run.Update", asked)
    say_json(answer if as_json else answer["value"])


@app.command()
def cancel(
    run_id: OneArgument = None,
    reason: Annotated[str, typer.Option(help="Kept with the outcome; JSON or plain text.")] = "null",
    yes: YesOption = False,
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
        _bulk(node, "cancel", "cancelled", which, as_json, yes, reason=given)
        return
    answer = node.ask("Run.Cancel", {"id": run_id, "reason": given})
    _done(answer, "cancelled", run_id, as_json)


@app.command()
def fail(
    run_id: OneArgument = None,
    why: Annotated[str, typer.Option(help="Kept with the outcome. A blocked run says what blocks it.")] = "",
    yes: YesOption = False,
    *,
    which: RunFilter,
    as_json: JsonOption = False,
    node: WireOptions,
) -> None:
    """Let a run fail, or all that the options describe."""
    if run_id is None:
        _bulk(node, "fail", "failed", which, as_json, yes, reason=why or None)
        return
    answer = node.ask("Run.Fail", {"id": run_id, "why": why})
    _done(answer, "failed", run_id, as_json)


@app.command()
def retry(
    run_id: OneArgument = None,
    keep: Annotated[
        Literal["all", "fitting", "nothing"],
        typer.Option(help="Of the journal: all; what fits the program, of a blocked run; nothing, to begin anew."),
    ] = "all",
    yes: YesOption = False,
    *,
    which: RunFilter,
    as_json: JsonOption = False,
    node: WireOptions,
) -> None:
    """Go on with a run, or with all that the options describe.

    The program is the one that the node has now. `mainspring runs retry --state blocked --program checkout`
    """
    if run_id is None:
        _bulk(node, "retry", "retried", which, as_json, yes, keep=keep)
        return
    answer = node.ask("Run.Retry", {"id": run_id, "keep": keep})
    say_done(answer, as_json, answer["id"])


@app.command()
def forget(
    run_id: OneArgument = None,
    before: Annotated[str | None, typer.Option(help="Only runs that ended before: 30d (ago) or a date.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All finished runs.")] = False,
    yes: YesOption = False,
    *,
    which: RunFilter,
    as_json: JsonOption = False,
    node: WireOptions,
) -> None:
    """Remove a finished run, or many by filter, for good.

    Its journal and the finished runs below it go with it; its id can be used again.
    `mainspring runs forget --state done --before 30d`
    """
    if run_id is not None:
        confirm(f"Remove run {safe(run_id)} for good?", yes)
        answer = node.ask("Run.Forget", {"id": run_id})
        say_done({"id": run_id, **answer}, as_json, f"{safe(run_id)} was forgotten")
        return
    if which == RunFilter() and before is None and not everything:
        remedy = "give the ID of one, or --state, --program, --prefix, --before, or --all"
        raise CommandFailed("say which runs", remedy=remedy)
    ended = None if before is None else moment_ms(before, MonotonicClock().wall_ms(), "--before")
    confirm("Remove all finished runs for good?" if everything else "Remove these finished runs for good?", yes)
    _change_all(node, "forget", "forgotten", which, as_json, endedBefore=ended)


def _bulk(
    node: WireOptions,
    action: str,
    done: str,
    which: RunFilter,
    as_json: bool,
    yes: bool,
    **more: Any,
) -> None:
    """Change many runs, after a person has seen how many."""
    if not which.members():
        raise CommandFailed("say which runs", remedy="give the ID of one, or --state and, if needed, --program")
    counts = node.ask("Run.Count", which.members(), "query")["counts"]
    many = sum(each["count"] for each in counts)
    confirm(f"{action.capitalize()} {'1 run' if many == 1 else f'{many:,} runs'}?", yes or not many)
    _change_all(node, action, done, which, as_json, **more)


def _change_all(
    node: WireOptions,
    action: str,
    done: str,
    which: RunFilter,
    as_json: bool,
    **more: Any,
) -> None:
    """Change many runs, page by page; says how many, and which could not be changed."""
    count, after = 0, ""
    refused: dict[str, str] = {}
    while True:
        asked = {"action": action, **which.members(), "after": after, **more}
        changed = node.ask("Run.Bulk", asked)
        count += changed["count"]
        refused |= changed["refused"]
        after = changed.get("after") or ""
        if not after:
            break
    if not as_json:
        for run_id, why in refused.items():
            note(safe(f"{run_id}: {why}"))
    words = f"{count} {'run was' if count == 1 else 'runs were'} {done}"
    say_done({"count": count, "refused": refused}, as_json, words)
    if refused:
        raise typer.Exit(1)


@app.command()
def fork(
    run_id: IdArgument,
    at: Annotated[int, typer.Option("--at", min=0, help="How many answers the new run begins with.")],
    new_id: Annotated[str | None, typer.Option("--id", help="The id of the new run.")] = None,
    *,
    as_json: JsonOption = False,
    node: WireOptions,
) -> None:
    """Start a new run with the first answers of another. Prints its id."""
    answer = node.ask("Run.Fork", {"id": run_id, "at": at, "newId": new_id})
    say_done(answer, as_json, answer["id"])


def _json(text: str, name: str) -> Any:
    try:
        return read_value(text, name)
    except JsonRefused as error:
        raise NodeRefused(error.message, remedy="quote it for the shell: '\"text\"'") from None


def _done(answer: dict[str, Any], done: str, run_id: str, as_json: bool) -> None:
    if not answer[done]:
        raise NodeRefused(f"run {run_id} is over or unknown", remedy="`mainspring runs list` shows all")
    say_done({"id": run_id, **answer}, as_json, f"{run_id} was {done}")


# -- checking


@app.command()
def check(
    program: Annotated[str, typer.Argument(metavar="MODULE:APP", help="The program as it is now.")],
    journals: Annotated[
        list[Path], typer.Argument(metavar="JOURNAL", help="Files of `runs show --json`, or directories of them.")
    ],
    as_json: JsonOption = False,
) -> None:
    """Replay stored journals against the program as it is now. Exit code 1 when one does not fit."""
    from mainspring.node import load_program

    found, runtime = load_program(program), Runtime()
    assert found is not None
    found.install_runs(runtime)
    verdicts = check_histories(_histories(journals), runtime.programs)
    for verdict in verdicts:
        if as_json:
            say_json({**msgspec.structs.asdict(verdict), "fits": not verdict.problem})
            continue
        fits = "BAD" if verdict.problem else "ok "
        say(f"{fits}  {verdict.id}  {verdict.program}  {verdict.effects} effects")
        for line in verdict.problem.splitlines():
            say(f"       {line}")
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
