"""`mainspring schedules`: what fires when, how the last call went; pausing, resuming, running now and deleting."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from mainspring.cli.support.moments import date_text
from mainspring.cli.support.node_options import NodeOptions, YesOption, complete_schedule, confirm
from mainspring.cli.support.options import Commands
from mainspring.cli.support.output import compact, listing, safe, say, say_done, say_json, short
from mainspring.client import path
from mainspring.durations import duration_text

app: typer.Typer = Commands("List, show, run, pause, resume and delete schedules.")

NameArgument = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="The schedule's name, as in `mainspring schedules list`.",
        autocompletion=complete_schedule,
    ),
]
_REASON = 60  # characters of a reason in a table


@app.command("list")
def list_schedules(*, at: NodeOptions) -> None:
    """List schedules. When each fires next, when it did last, and how that call went."""
    listing(
        at.get("/schedules")["schedules"],
        at.as_json,
        ("schedule", "when", "next", "last", "result"),
        lambda each: (each["name"], _when(each), _next(each), _moment(each.get("lastMs")), _result(each.get("last"))),
        empty="no schedules; `@app.every` and `@app.cron` in a program make them",
    )


@app.command()
def show(name: NameArgument, *, at: NodeOptions) -> None:
    """Show a schedule. When it fires, what it publishes, and how its last call went."""
    found = at.get(path("schedules", name))
    if at.as_json:
        say_json(found)
        return
    last = found.get("last")
    said = {
        "schedule": found["name"],
        "when": _when(found),
        "next": _next(found),
        "last": _moment(found.get("lastMs")),
        "result": _result(last),
        "attempt": str(last["attempt"]) if last and last.get("attempt") else "",
        "overlap": found.get("overlap", "queue"),
        "topic": found["topic"],
        "payload": compact(found["payload"]),
        "key": found.get("key", ""),
        "owner": found.get("owner", ""),
        "declared": "by a program" if found.get("declared") else "",
    }
    for title, value in said.items():
        if value:
            say(f"{title:10} {safe(value)}")
    for line in (last or {}).get("failure", {}).get("traceback", "").splitlines():
        say(safe(line))


@app.command()
def pause(name: NameArgument, *, at: NodeOptions) -> None:
    """Pause a schedule. It publishes nothing until it is resumed, also after a restart."""
    say_done(at.call("POST", path("schedules", name, "pause")), at.as_json, f"paused {safe(name)}")


@app.command()
def resume(name: NameArgument, *, at: NodeOptions) -> None:
    """Resume a schedule. It goes on from now: what it missed is not made up."""
    resumed = at.call("POST", path("schedules", name, "resume"))
    say_done(resumed, at.as_json, f"resumed {safe(name)}; next at {_next(resumed)}")


@app.command()
def run(name: NameArgument, *, at: NodeOptions) -> None:
    """Run a schedule now, also while it is paused. Its next time stays."""
    event = at.call("POST", path("schedules", name, "run"))
    say_done(event, at.as_json, f"published to {safe(event['topic'])} {event['partition']}:{event['offset']}")


@app.command()
def delete(name: NameArgument, yes: YesOption = False, *, at: NodeOptions) -> None:
    """Delete a schedule. What it published stays. One that a program declares comes back when the program starts."""
    declared = at.get(path("schedules", name)).get("declared", False)
    back = "a program declares it, so it comes back when the program starts; pause it to stop it for good"
    confirm(f"Delete the schedule {safe(name)}?" + (f" Note: {back}." if declared else ""), yes)
    at.call("DELETE", path("schedules", name))
    deleted = {"name": name, "deleted": True, "declared": declared}
    say_done(deleted, at.as_json, f"deleted {safe(name)}" + (f" ({back})" if declared else ""))


def _when(each: dict[str, Any]) -> str:
    times = str(each["cron"]) if "cron" in each else f"every {duration_text(each['every'])}"
    zone = f" {each['timezone']}" if "timezone" in each else ""
    return times + zone + (f" +{duration_text(each['jitter'])}" if "jitter" in each else "")


def _next(each: dict[str, Any]) -> str:
    return "paused" if each.get("paused") else _moment(each["nextMs"])


def _moment(epoch_ms: int | None) -> str:
    return "" if epoch_ms is None else date_text(epoch_ms)


def _result(last: dict[str, Any] | None) -> str:
    if last is None:
        return ""
    if last["result"] == "skipped":
        return f"skipped: {short(last['reason'], _REASON)}"
    lasted = f"{last['result']} in {duration_text(last['durationMs']) if last.get('durationMs') else '0ms'}"
    return lasted + (f": {short(last['reason'], _REASON)}" if "reason" in last else "")
