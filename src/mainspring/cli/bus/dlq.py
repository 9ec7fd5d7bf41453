"""`mainspring dlq`: events a group gave up on: which, why, sending them back, and dropping them.

A dead letter is moved, never copied: sent back it leaves the dead-letter topic in the same step.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Final

import msgspec
import typer

from mainspring.cli.support.moments import date_text, moment_ms
from mainspring.cli.support.node_options import NodeOptions, TopicArgument, YesOption, complete_topic, confirm, path
from mainspring.cli.support.options import Commands
from mainspring.cli.support.output import JsonOption, compact, listing, safe, say, say_done, say_json, short
from mainspring.client import NodeConnection
from mainspring.loop import MonotonicClock

app: typer.Typer = Commands("List, show, send back and drop dead letters: what groups gave up on.")

_PAGE: Final = 500

GroupFilter = Annotated[str | None, typer.Option("--group", "-g", help="Only those this group gave up on.")]
KeyFilter = Annotated[str | None, typer.Option("--key", "-k", help="Only those with this key.")]
ReasonFilter = Annotated[str | None, typer.Option("--reason", help="Only those whose reason contains this.")]


@app.command("list")
def list_letters(
    topic: Annotated[
        str | None, typer.Argument(help="Without one: the topics with dead letters.", autocompletion=complete_topic)
    ] = None,
    group: GroupFilter = None,
    key: KeyFilter = None,
    reason: ReasonFilter = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many.")] = 100,
    *,
    at: NodeOptions,
    as_json: JsonOption = False,
) -> None:
    """List dead letters. Of one topic, oldest first; without one, the topics that have some."""
    with at.connect() as connection:
        if topic is None:
            _list_topics(connection, as_json)
            return
        letters = list(_letters(connection, topic, limit, {"group": group, "key": key, "reason": reason}))
    listing(
        letters,
        as_json,
        (">offset", "died", "group", ">attempts", "key", "reason", "payload"),
        lambda each: (
            each["offset"],
            date_text(each["ts"])[:19],
            each["group"],
            each["attempts"],
            each.get("key"),
            short(each["reason"], 60),
            short(compact(each["payload"]), 60),
        ),
        empty="no dead letters",
    )


@app.command()
def show(
    topic: TopicArgument,
    offset: Annotated[int, typer.Argument(min=1, help="Its offset, as `dlq list` shows it.")],
    *,
    at: NodeOptions,
    as_json: JsonOption = False,
) -> None:
    """Show a dead letter. Where it came from, who gave up on it and why, its headers and payload."""
    letter = at.get(path("dlq", topic, offset))
    if as_json:
        say_json(letter)
        return
    origin = f"{safe(letter['originalTopic'])} {letter['originalPartition']}:{letter['originalOffset']}"
    said = {
        "event": f"{origin}  {safe(letter['id'])}",
        "died": date_text(letter["ts"]),
        "group": safe(letter["group"]),
        "attempts": str(letter["attempts"]),
        "reason": safe(letter["reason"]),
        "key": safe(letter.get("key", "")),
    }
    for name, value in said.items():
        say(f"{name:10} {value}".rstrip())
    for name, value in letter["headers"].items():
        say(f"{'header':10} {safe(name)}: {safe(value)}")
    for line in msgspec.json.format(msgspec.json.encode(letter["payload"]), indent=2).decode().splitlines():
        say(safe(line))


OffsetOption = Annotated[list[int] | None, typer.Option("--offset", "-o", help="This one; may be repeated.")]
BeforeOption = Annotated[str | None, typer.Option(help="Only those that died before: 10m (ago) or a date.")]
LimitOption = Annotated[int | None, typer.Option("--limit", "-n", min=1, help="At most so many, oldest first.")]
AllOption = Annotated[bool, typer.Option("--all", help="All dead letters of the topic.")]


@app.command()
def redrive(
    topic: TopicArgument,
    offset: OffsetOption = None,
    group: GroupFilter = None,
    key: KeyFilter = None,
    reason: ReasonFilter = None,
    before: BeforeOption = None,
    limit: LimitOption = None,
    everything: AllOption = False,
    to_all: Annotated[
        bool, typer.Option("--to-all", help="To every group of the topic, not only to the one that gave up.")
    ] = False,
    yes: YesOption = False,
    *,
    at: NodeOptions,
    as_json: JsonOption = False,
) -> None:
    """Send dead letters back to the group that gave up on them. Its attempts are counted anew."""
    wanted = _wanted(offset, group, key, reason, before, limit, everything)
    which = "these dead letters" if wanted else "all dead letters"
    target = f"to every group of {safe(topic)}" if to_all else "to the groups that gave up on them"
    confirm(f"Send {which} of {safe(topic)} {target}?", yes)
    body = {**wanted, "toAll": True} if to_all else wanted
    moved = at.call("POST", path("dlq", topic, "redrive"), msgspec.json.encode(body))
    where = "to every group" if to_all else "back"
    say_done(moved, as_json, f"sent {_letters_text(moved['count'])} of {safe(topic)} {where}")


@app.command()
def drop(
    topic: TopicArgument,
    offset: OffsetOption = None,
    group: GroupFilter = None,
    key: KeyFilter = None,
    reason: ReasonFilter = None,
    before: BeforeOption = None,
    limit: LimitOption = None,
    everything: AllOption = False,
    yes: YesOption = False,
    *,
    at: NodeOptions,
    as_json: JsonOption = False,
) -> None:
    """Drop dead letters for good. Nobody gets them any more."""
    wanted = _wanted(offset, group, key, reason, before, limit, everything)
    which = "these dead letters" if wanted else "all dead letters"
    confirm(f"Drop {which} of {safe(topic)} for good?", yes)
    body = wanted or {"all": True}
    dropped = at.call("POST", path("dlq", topic, "drop"), msgspec.json.encode(body))
    say_done(dropped, as_json, f"dropped {_letters_text(dropped['count'])} of {safe(topic)}")


def _wanted(
    offset: list[int] | None,
    group: str | None,
    key: str | None,
    reason: str | None,
    before: str | None,
    limit: int | None,
    everything: bool,
) -> dict[str, Any]:
    """Which letters, as the node is told; empty: all of the topic, which must be said."""
    chosen: dict[str, Any] = {
        "offsets": offset or None,
        "group": group,
        "key": key,
        "reason": reason,
        "before": None if before is None else moment_ms(before, MonotonicClock().wall_ms(), "--before"),
        "limit": limit,
    }
    wanted = {name: value for name, value in chosen.items() if value is not None}
    if not wanted and not everything:
        raise typer.BadParameter("say which: --offset, --group, --key, --reason, --before, --limit, or --all")
    return wanted


def _letters_text(count: int) -> str:
    return "1 dead letter" if count == 1 else f"{count:,} dead letters"


def _list_topics(connection: NodeConnection, as_json: bool) -> None:
    found = connection.get("/dlq")["topics"]
    listing(
        found,
        as_json,
        ("topic", "dead letters in", ">letters"),
        lambda each: (each["topic"], each["deadLetterTopic"], each["count"]),
        empty="no dead letters",
    )


def _letters(
    connection: NodeConnection, topic: str, limit: int, filters: dict[str, str | None]
) -> Iterator[dict[str, Any]]:
    """Page by page, up to the limit."""
    offset: int | None = None
    while limit > 0:
        page = connection.get(path("dlq", topic), offset=offset, limit=min(limit, _PAGE), **filters)
        yield from page["letters"]
        limit -= len(page["letters"])
        offset = page.get("next")
        if offset is None:
            return
