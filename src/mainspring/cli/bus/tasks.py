"""`mainspring tasks`: the tasks of programs and their calls, by state; retrying, cancelling and discarding calls.

`retry`, `cancel` and `discard` change one call or several, by id, or all of a task that the options describe.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

import msgspec
import typer

from mainspring.cli.support.moments import date_text, moment_ms
from mainspring.cli.support.node_options import NodeOptions, YesOption, complete_task, confirm
from mainspring.cli.support.options import Commands
from mainspring.cli.support.output import compact, listing, note, safe, say, say_done, say_json, short
from mainspring.client import NodeConnection, path
from mainspring.durations import duration_text
from mainspring.loop import MonotonicClock

app: typer.Typer = Commands("List tasks and their calls; retry, cancel and discard calls.")

State = Literal["waiting", "delayed", "running", "retrying", "done", "failed", "discarded", "cancelled", "expired"]
TaskArgument = Annotated[
    str,
    typer.Argument(metavar="TASK", help="The task: shop.send_mail, or send_mail.", autocompletion=complete_task),
]
_PAGE: Final = 500
_COUNTED: Final = ("waiting", "delayed", "running", "retrying", "done", "failed", "cancelled")


@app.command("list")
def list_tasks(
    task: Annotated[
        str | None,
        typer.Argument(metavar="TASK", help="List calls of this task.", autocompletion=complete_task),
    ] = None,
    state: Annotated[State | None, typer.Option(help="List calls in this state, of one task or of all.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many calls.")] = 50,
    *,
    at: NodeOptions,
) -> None:
    """List tasks, or calls of a task. Tasks with their calls by state; calls newest first.

    Took is how long the last attempt of a call took, and of a task, the average of its calls that are done.

    Examples: `tasks list`, `tasks list shop.send_mail`, `tasks list --state failed`.
    """
    with at.connect() as connection:
        tasks = connection.get("/tasks")["tasks"] if task is None else []
        if task is None and state is None:
            _list_counts(tasks, at.as_json)
            return
        names = [each["task"] for each in tasks] if task is None else [task]
        found = [call for name in names for call in _calls(connection, name, state, limit)]
    found.sort(key=lambda call: call["created"], reverse=True)
    listing(
        found[:limit],
        at.as_json,
        ("call", "task", "state", "enqueued", ">attempts", ">took", "arguments", "result"),
        lambda each: (
            each["id"],
            each["task"],
            each["state"],
            date_text(each["created"])[:19] if each["created"] else "",
            each.get("attempts", 0),
            _took(each.get("durationMs")),
            short(_arguments(each), 50),
            short(_became(each), 60),
        ),
        empty="no calls",
    )


def _list_counts(tasks: list[dict[str, Any]], as_json: bool) -> None:
    listing(
        tasks,
        as_json,
        ("task", *(f">{name}" for name in _COUNTED), ">workers", ">took"),
        lambda each: (
            each["task"],
            *(each[name] for name in _COUNTED),
            each["workers"],
            _took(each.get("duration", {}).get("meanMs")),
        ),
        empty="no tasks; `@app.task` in a program makes them, and they are known when a node or a worker runs it",
    )


def _took(ms: float | None) -> str:
    return "" if ms is None else duration_text(round(ms)) if ms >= 1 else "0ms"


@app.command()
def show(
    task: TaskArgument, call: Annotated[str, typer.Argument(metavar="ID", help="Of the call.")], *, at: NodeOptions
) -> None:
    """Show a call of a task. Its state, arguments, attempts, and result or error."""
    found = at.get(path("tasks", task, "calls", call))
    if at.as_json:
        say_json(found)
        return
    said = {
        "call": found["id"],
        "task": found["task"],
        "state": found["state"],
        "enqueued": date_text(found["created"]) if found["created"] else "",
        "due": date_text(found["nextMs"]) if found.get("nextMs") else "",
        "changed": date_text(found["updated"]) if found.get("updated") else "",
        "attempts": str(found.get("attempts", "")),
        "took": _took(found.get("durationMs")),
        "key": found.get("key", ""),
        "event": f"{found['topic']} {found['partition']}:{found['offset']}",
        "letter": str(found.get("letter", "")),
    }
    for name, value in said.items():
        if value:
            say(f"{name:10} {safe(value)}")
    say(f"{'arguments':10} {safe(_arguments(found))}")
    for name in ("progress", "value", "error"):
        if name in found:
            text = found[name] if name == "error" else compact(found[name])
            say(f"{'result' if name == 'value' else name:10} {safe(text)}")
    for line in found.get("failure", {}).get("traceback", "").splitlines():
        say(safe(line))


@dataclass(frozen=True)
class ChosenCalls:
    """Which calls are to be changed; all of a task must be said."""

    error: Annotated[str | None, typer.Option("--error", help="Only those whose error contains this.")] = None
    before: Annotated[str | None, typer.Option(help="Only those enqueued before: 10m (ago) or a date.")] = None
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="At most so many.")] = None
    everything: Annotated[bool, typer.Option("--all", help="All of the task that can be changed so.")] = False

    def wanted(self, ids: list[str] | None) -> dict[str, Any]:
        """As the node is told."""
        given: dict[str, Any] = {
            "ids": ids or None,
            "error": self.error,
            "before": None if self.before is None else moment_ms(self.before, MonotonicClock().wall_ms(), "--before"),
            "limit": self.limit,
            "all": self.everything or None,
        }
        wanted = {name: value for name, value in given.items() if value is not None}
        if not wanted:
            raise typer.BadParameter("say which: IDs, --error, --before, --limit, or --all")
        return wanted


IdsArgument = Annotated[list[str] | None, typer.Argument(metavar="ID", help="Calls, as `tasks list` shows them.")]


@app.command()
def retry(
    task: TaskArgument, ids: IdsArgument = None, *, chosen: ChosenCalls, yes: YesOption = False, at: NodeOptions
) -> None:
    """Have calls that failed done again. They get all their attempts anew.

    Examples: `tasks retry send_mail 01980...`, `tasks retry send_mail --error timeout`.
    """
    _change(at, task, "retry", chosen.wanted(ids), "sent back", f"Retry {_which(ids, 'that failed')} of {task}?", yes)


@app.command()
def cancel(
    task: TaskArgument,
    ids: IdsArgument = None,
    reason: Annotated[str, typer.Option(help="Kept with the cancellation.")] = "",
    *,
    chosen: ChosenCalls,
    yes: YesOption = False,
    at: NodeOptions,
) -> None:
    """Cancel calls that are open. Those that wait never begin, those that run are interrupted."""
    wanted = {**chosen.wanted(ids), "reason": reason}
    _change(at, task, "cancel", wanted, "cancelled", f"Cancel {_which(ids, 'that are open')} of {task}?", yes)


@app.command()
def discard(
    task: TaskArgument, ids: IdsArgument = None, *, chosen: ChosenCalls, yes: YesOption = False, at: NodeOptions
) -> None:
    """Discard calls that failed. Nobody will do them any more."""
    question = f"Discard {_which(ids, 'that failed')} of {task} for good?"
    _change(at, task, "discard", chosen.wanted(ids), "discarded", question, yes)


def _change(at: NodeOptions, task: str, verb: str, wanted: dict[str, Any], done: str, question: str, yes: bool) -> None:
    confirm(question, yes)
    changed = at.call("POST", path("tasks", task, verb), msgspec.json.encode(wanted))
    if not at.as_json:
        for call, why in changed["refused"].items():
            note(safe(f"{call}: {why}"))
    words = "1 call was" if changed["count"] == 1 else f"{changed['count']:,} calls were"
    say_done(changed, at.as_json, f"{words} {done}")
    if changed["refused"]:
        raise typer.Exit(1)


def _which(ids: list[str] | None, else_: str) -> str:
    return f"calls {else_}" if not ids else "1 call" if len(ids) == 1 else f"{len(ids)} calls"


def _calls(connection: NodeConnection, task: str, state: str | None, limit: int) -> Iterator[dict[str, Any]]:
    """Page by page, up to the limit."""
    cursor: str | None = None
    while limit > 0:
        page = connection.get(path("tasks", task, "calls"), state=state, limit=min(limit, _PAGE), cursor=cursor)
        yield from page["calls"]
        limit -= len(page["calls"])
        cursor = page.get("next")
        if cursor is None:
            return


def _arguments(call: dict[str, Any]) -> str:
    """As they would be written in Python, but in JSON."""
    given = [compact(each) for each in call.get("args", ())]
    given += [f"{name}={compact(each)}" for name, each in call.get("kwargs", {}).items()]
    return ", ".join(given)


def _became(call: dict[str, Any]) -> str:
    if call.get("error") and call["state"] != "done":
        return str(call["error"])
    if call.get("nextMs"):
        return f"due {date_text(call['nextMs'])[:19]}"
    return compact(call["value"]) if "value" in call else compact(call["progress"]) if "progress" in call else ""
