"""`mainspring groups`: who consumes what, how far behind, and moving or deleting a group."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer

from mainspring.cli.node.status import RANGES, RangeOption
from mainspring.cli.support.moments import date_text, start_frame
from mainspring.cli.support.node_options import (
    GroupArgument,
    NodeOptions,
    TopicArgument,
    YesOption,
    complete_topic,
    confirm,
)
from mainspring.cli.support.options import Commands
from mainspring.cli.support.output import listing, safe, say, say_done, say_json, table
from mainspring.client import path
from mainspring.loop import MonotonicClock

app: typer.Typer = Commands("List, show, move and delete groups.")


@app.command("list")
def list_groups(
    topic: Annotated[
        str | None, typer.Argument(help="Only groups of this topic.", autocompletion=complete_topic)
    ] = None,
    lagging: Annotated[bool, typer.Option("--lagging", help="Only groups that have something to do.")] = False,
    *,
    at: NodeOptions,
) -> None:
    """List groups. Members, lag (events not settled), events in flight, and since when the oldest one waits."""
    groups = at.get("/groups", topic=topic)["groups"]
    shown = [each for each in groups if each["lag"] or not lagging]
    listing(
        shown,
        at.as_json,
        ("topic", "group", ">members", ">lag", ">in flight", "oldest"),
        lambda each: (
            each["topic"],
            each["group"],
            each["members"],
            each["lag"],
            each["inflight"],
            date_text(each["oldest"]) if each.get("oldest") else "",
        ),
        empty="no groups" + (" lag" if lagging else " yet; `mainspring sub TOPIC --group NAME` makes one"),
    )


@app.command()
def show(topic: TopicArgument, group: GroupArgument, *, at: NodeOptions) -> None:
    """Show a group: where it is in each partition, and who is in it."""
    with at.connect() as connection:
        _show(connection.get(path("groups", topic, group)), at.as_json)
        if not at.as_json:
            _show_members(connection.get(path("groups", topic, group, "members"))["members"], as_json=False)


@app.command()
def members(topic: TopicArgument, group: GroupArgument, *, at: NodeOptions) -> None:
    """List the members of a group. Who they are, since when, and how many events each holds."""
    _show_members(at.get(path("groups", topic, group, "members"))["members"], at.as_json)


def _show_members(found: list[dict[str, Any]], as_json: bool) -> None:
    several = any(each["node"] for each in found)
    listing(
        found,
        as_json,
        ("member", *(("node",) if several else ()), "address", "since", ">in flight"),
        lambda each: (
            "the node's program" if each["program"] else each["agent"] or "(no name)",
            *((each["node"],) if several else ()),
            each["address"],
            date_text(each["since"]) if each["since"] else "",
            each.get("inflight", ""),
        ),
        empty="it has no members now",
    )


@app.command()
def history(topic: TopicArgument, group: GroupArgument, span: RangeOption = RANGES[0], *, at: NodeOptions) -> None:
    """Show how a group stood over time. Lag, events settled per second, and how long the oldest one had waited."""
    points: list[dict[str, Any]] = at.get(path("groups", topic, group, "history"), range=span)["points"]
    listing(
        points,
        at.as_json,
        ("time", ">lag", ">settled/s", ">oldest waits"),
        lambda each: (date_text(each["t"]), int(each["lag"]), each["rate"], _wait(each["oldestMs"])),
        empty="nothing was measured yet",
    )


def _wait(ms: float) -> str:
    return f"{ms / 1000:.0f} s" if ms else ""


@app.command()
def seek(
    topic: TopicArgument,
    group: GroupArgument,
    to: Annotated[str, typer.Option("--to", help="latest, beginning, an offset, 10m (ago), or a date and time.")],
    partition: Annotated[int | None, typer.Option(min=0, help="Only in this partition.")] = None,
    yes: YesOption = False,
    *,
    at: NodeOptions,
) -> None:
    """Move a group. Its members give back what they hold; events behind the new place are delivered again."""
    place: dict[str, Any] = start_frame(to, MonotonicClock().wall_ms(), "--to")
    if partition is not None:
        place["partition"] = partition
    confirm(f"Move the group {safe(group)} of {safe(topic)} to {to}?", yes)
    _show(at.call("POST", path("groups", topic, group, "seek"), msgspec.json.encode(place)), at.as_json)


@app.command()
def delete(topic: TopicArgument, group: GroupArgument, yes: YesOption = False, *, at: NodeOptions) -> None:
    """Delete a group: where it stood is forgotten. Refused while it has members."""
    confirm(f"Delete the group {safe(group)} of {safe(topic)}? Where it stands is lost.", yes)
    at.call("DELETE", path("groups", topic, group))
    deleted = {"topic": topic, "group": group, "deleted": True}
    say_done(deleted, at.as_json, f"deleted {safe(group)} of {safe(topic)}")


def _members(count: int) -> str:
    return "1 member" if count == 1 else f"{count:,} members"


def _show(group: dict[str, Any], as_json: bool) -> None:
    if as_json:
        say_json(group)
        return
    say(
        f"{safe(group['group'])} of {safe(group['topic'])}: {_members(group['members'])}, lag {group['lag']:,}, "
        f"{group['inflight']:,} in flight"
        + (f", {group['rate']:g} settled per second" if group.get("rate") else "")
        + (f", the oldest is of {date_text(group['oldest'])}" if group.get("oldest") else "")
    )
    table(
        ("partition", ">committed", ">lag", ">in flight"),
        (
            (str(each["partition"]), each["lastCommitted"], each["lag"], each["inflight"])
            for each in group["partitions"]
        ),
    )
