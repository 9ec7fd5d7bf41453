"""`mainspring attention` and `mainspring history`: what needs a person, and the node's figures over time."""

from __future__ import annotations

from typing import Annotated, Any, Final, get_args

import typer

from mainspring.cli.support.moments import date_text
from mainspring.cli.support.node_options import NodeOptions
from mainspring.cli.support.output import listing, paint, safe, say, say_json, short
from mainspring.client import HistoryRange

RANGES: Final[tuple[str, ...]] = get_args(HistoryRange)

RangeOption = Annotated[str, typer.Option("--range", help=f"How far back: {', '.join(RANGES)}.")]

# kind -> what one is called, what several are called
WORDS: Final = {
    "failed_runs": ("run failed", "runs failed"),
    "blocked_runs": ("run is blocked", "runs are blocked"),
    "waiting_runs": ("run waits for a program that no node has", "runs wait for programs that no node has"),
    "dead_letters": ("dead letter", "dead letters"),
    "dead_messages": ("message reached nobody", "messages reached nobody"),
    "refused_outgoing": ("event of a transaction was refused", "events of transactions were refused"),
    "capabilities": ("capability gave up", "capabilities gave up"),
    "groups": ("group is behind", "groups are behind"),
    "schedules": ("schedule failed", "schedules failed"),
    "nodes": ("node is away", "nodes are away"),
    "disk": ("disk is nearly full", "disks are nearly full"),
}


def attention(at: NodeOptions) -> None:
    """Show what needs a person. Each with a count, examples and a command to begin with.

    Failed and blocked runs, dead letters, capabilities that gave up, groups that are behind, schedules that failed,
    nodes that are away. A count goes down when it is dealt with. The exit code is 0 in any case.
    """
    found: dict[str, Any] = at.get("/attention")
    if at.as_json:
        for need in found["needs"]:
            say_json(need)
        return
    if not found["needs"]:
        say("nothing needs a person")
    for need in found["needs"]:
        one, many = WORDS[need["kind"]]
        say(paint(f"{need['count']:,} {one if need['count'] == 1 else many}", bold=True))
        for each in need["examples"]:
            of = f" of {safe(each['of'])}" if each.get("of") else ""
            since = f"  {date_text(each['at'])}" if each.get("at") else ""
            text = f"  {short(each['text'], 100)}" if each.get("text") else ""
            say(f"  {safe(each['name'])}{of}{since}{text}")
        say(f"  {need['remedy']}")


def history(span: RangeOption = RANGES[0], *, at: NodeOptions) -> None:
    """Show the node's figures over time. Rates are per second.

    The node keeps them itself, in bounded space, also over restarts.
    """
    points: list[dict[str, Any]] = at.get("/history", range=span)["points"]
    listing(
        points,
        at.as_json,
        ("time", ">published", ">delivered", ">lag", ">in flight", ">dead letters", ">runs", ">failed"),
        lambda each: (
            date_text(each["t"]),
            float(each["published"]),
            float(each["delivered"]),
            int(each["lag"]),
            int(each["inflight"]),
            each["deadLetters"],
            each["runsStarted"],
            each["runsFailed"],
        ),
        empty="nothing was measured yet",
    )
