"""`mainspring dlq`: events a group gave up on: which, why, sending them back, and dropping them.

A dead letter is moved, never copied: sent back it leaves the dead-letter topic in the same step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Final

import msgspec
import typer

from mainspring.cli.support.moments import date_text, moment_ms
from mainspring.cli.support.node_options import NodeOptions, TopicArgument, YesOption, complete_topic, confirm
from mainspring.cli.support.options import Commands
from mainspring.cli.support.output import compact, listing, safe, say, say_done, say_json, short
from mainspring.client import NodeConnection, path
from mainspring.loop import MonotonicClock

app: typer.Typer = Commands("List, send back and drop what groups gave up on.")

_PAGE: Final = 500


@dataclass(frozen=True)
class Filters:
    """Which dead letters are meant."""

    group: Annotated[str | None, typer.Option("--group", "-g", help="Only those this group gave up on.")] = None
    key: Annotated[str | None, typer.Option("--key", "-k", help="Only those with this key.")] = None
    reason: Annotated[str | None, typer.Option("--reason", help="Only those whose reason contains this.")] = None


@app.command("list")
def list_letters(
    topic: Annotated[
        str | None, typer.Argument(help="Without one: the topics with dead letters.", autocompletion=complete_topic)
    ] = None,
    *,
    filters: Filters,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many.")] = 100,
    at: NodeOptions,
) -> None:
    """List dead letters. Of one topic, oldest first; without one, the topics that have some."""
    if topic is None:
        listing(
            at.get("/dlq")["topics"],
            at.as_json,
            ("topic", "dead letters in", ">letters"),
            lambda each: (each["topic"], each["deadLetterTopic"], each["count"]),
            empty="no dead letters",
        )
        return
    with at.connect() as connection:
        letters = list(_letters(connection, topic, limit, filters))
    listing(
        letters,
        at.as_json,
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
) -> None:
    """Show a dead letter. Where it came from, who gave up on it and why, its headers and payload."""
    letter = at.get(path("dlq", topic, offset))
    if at.as_json:
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
    for line in letter.get("failure", {}).get("traceback", "").splitlines():
        say(safe(line))
    for name, value in letter["headers"].items():
        say(f"{'header':10} {safe(name)}: {safe(value)}")
    for line in msgspec.json.format(msgspec.json.encode(letter["payload"]), indent=2).decode().splitlines():
        say(safe(line))


@dataclass(frozen=True)
class ChosenLetters(Filters):
    """Which dead letters are to be changed; all of a topic must be said."""

    offset: Annotated[list[int] | None, typer.Option("--offset", "-o", help="This one; may be repeated.")] = None
    before: Annotated[str | None, typer.Option(help="Only those that died before: 10m (ago) or a date.")] = None
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="At most so many, oldest first.")] = None
    everything: Annotated[bool, typer.Option("--all", help="All dead letters of the topic.")] = False

    def wanted(self) -> dict[str, Any]:
        """As the node is told; empty: all of the topic."""
        chosen: dict[str, Any] = {
            "offsets": self.offset or None,
            "group": self.group,
            "key": self.key,
            "reason": self.reason,
            "before": None if self.before is None else moment_ms(self.before, MonotonicClock().wall_ms(), "--before"),
            "limit": self.limit,
        }
        wanted = {name: value for name, value in chosen.items() if value is not None}
        if not wanted and not self.everything:
            raise typer.BadParameter("say which: --offset, --group, --key, --reason, --before, --limit, or --all")
        return wanted


@app.command()
def redrive(
    topic: TopicArgument,
    *,
    chosen: ChosenLetters,
    to_all: Annotated[
        bool, typer.Option("--to-all", help="To every group of the topic, not only to the one that gave up.")
    ] = False,
    yes: YesOption = False,
    at: NodeOptions,
) -> None:
    """Send dead letters back to the group that gave up on them. Their attempts are counted anew."""
    wanted = chosen.wanted()
    target = "to every group of the topic" if to_all else "to the groups that gave up on them"
    confirm(f"Send {_which(wanted)} of {safe(topic)} {target}?", yes)
    moved = at.call("POST", path("dlq", topic, "redrive"), msgspec.json.encode({**wanted, "toAll": to_all}))
    where = "to every group" if to_all else "back"
    say_done(moved, at.as_json, f"sent {_counted(moved)} of {safe(topic)} {where}")


@app.command()
def drop(topic: TopicArgument, *, chosen: ChosenLetters, yes: YesOption = False, at: NodeOptions) -> None:
    """Drop dead letters for good. Nobody gets them any more."""
    wanted = chosen.wanted()
    confirm(f"Drop {_which(wanted)} of {safe(topic)} for good?", yes)
    dropped = at.call("POST", path("dlq", topic, "drop"), msgspec.json.encode(wanted or {"all": True}))
    say_done(dropped, at.as_json, f"dropped {_counted(dropped)} of {safe(topic)}")


def _which(wanted: dict[str, Any]) -> str:
    return "these dead letters" if wanted else "all dead letters"


def _counted(done: dict[str, Any]) -> str:
    return "1 dead letter" if done["count"] == 1 else f"{done['count']:,} dead letters"


def _letters(connection: NodeConnection, topic: str, limit: int, filters: Filters) -> Iterator[dict[str, Any]]:
    """Page by page, up to the limit."""
    offset: int | None = None
    while limit > 0:
        page = connection.get(path("dlq", topic), offset=offset, limit=min(limit, _PAGE), **asdict(filters))
        yield from page["letters"]
        limit -= len(page["letters"])
        offset = page.get("next")
        if offset is None:
            return
