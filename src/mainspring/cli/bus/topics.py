"""`mainspring topics`: which there are, what they hold, what they are set to.

A topic's settings are replaced as a whole by the node; `alter` reads them, changes what was asked for and writes them
back, so that what nobody mentioned stays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec
import typer

from mainspring.cli.support.moments import duration_option
from mainspring.cli.support.node_options import NodeOptions, TopicArgument, YesOption, confirm_by_name
from mainspring.cli.support.options import Commands
from mainspring.cli.support.output import CommandFailed, listing, safe, say, say_done, say_json, table
from mainspring.client import NodeConnection, NodeRefused, path
from mainspring.durations import duration_text

app: typer.Typer = Commands("List, show, create, alter, purge and delete topics.")

MAX_PARTITIONS: Final = 1024  # the node's own limit, which would be slow to import
Agents = list[str] | None


@dataclass(frozen=True)
class TopicOptions:
    """What a topic can be set to; None is what nobody mentioned."""

    partitions: Annotated[int | None, typer.Option(min=1, max=MAX_PARTITIONS, help="Partitions; they only grow.")] = (
        None
    )
    retention: Annotated[str | None, typer.Option(help="Forget events after so long, like 7d. 0: never.")] = None
    retention_bytes: Annotated[
        int | None, typer.Option(min=0, help="Forget the oldest beyond so many bytes. 0: never.")
    ] = None
    retention_count: Annotated[
        int | None, typer.Option(min=0, help="Forget the oldest beyond so many events. 0: never.")
    ] = None
    max_attempts: Annotated[
        int | None,
        typer.Option(min=0, help="Deliveries before an event is a dead letter. 0: as the node's settings say."),
    ] = None
    ack_timeout: Annotated[str | None, typer.Option(help="Time a consumer has to acknowledge, like 30s.")] = None
    compact: Annotated[bool | None, typer.Option(help="Keep only the newest event of each key.")] = None
    audit: Annotated[bool | None, typer.Option(help="Write what happens to system.bus.audit.")] = None
    rate: Annotated[int | None, typer.Option(min=0, help="Events per second it takes. 0: no limit.")] = None
    allow_publish: Annotated[Agents, typer.Option(help="An agent that may publish; may be repeated.")] = None
    deny_publish: Annotated[Agents, typer.Option(help="An agent that may not publish; may be repeated.")] = None
    allow_subscribe: Annotated[Agents, typer.Option(help="An agent that may read; may be repeated.")] = None
    deny_subscribe: Annotated[Agents, typer.Option(help="An agent that may not read; may be repeated.")] = None

    def settings(self) -> dict[str, Any]:
        """What was mentioned, in the node's words."""
        given = {
            "partitions": self.partitions,
            "retentionMs": _span(self.retention, "--retention"),
            "retentionBytes": self.retention_bytes,
            "retentionCount": self.retention_count,
            "maxAttempts": self.max_attempts,
            "ackTimeoutMs": _span(self.ack_timeout, "--ack-timeout"),
            "compact": self.compact,
            "audit": self.audit,
            "ratePerSecond": self.rate,
        }
        return {name: value for name, value in given.items() if value is not None}

    def access(self, now: dict[str, Any]) -> dict[str, Any]:
        """The access lists that were mentioned; of a topic that has lists now, the others of the same stay."""
        changed: dict[str, Any] = {}
        for name, allow, deny in (
            ("publishACL", self.allow_publish, self.deny_publish),
            ("subscribeACL", self.allow_subscribe, self.deny_subscribe),
        ):
            # An option never given arrives as None or as an empty list.
            given = {verb: agents for verb, agents in (("allow", allow), ("deny", deny)) if agents}
            if given:
                changed[name] = {**now.get(name, {}), **given}
        return changed


@app.command("list")
def list_topics(
    prefix: Annotated[str, typer.Argument(help="Only topics that begin so.")] = "",
    all: Annotated[bool, typer.Option("--all", "-a", help="Also the node's own topics, system.*")] = False,
    *,
    at: NodeOptions,
) -> None:
    """List topics. Partitions, events, groups and the largest lag, and how long events are kept."""
    with at.connect() as connection:
        found = connection.get("/topics", prefix=prefix or None)["topics"]
        shown = [each for each in found if all or prefix or not each["topic"].startswith("system.")]
        groups = connection.get("/groups")["groups"]
        rows = [_summary(connection, each, groups) for each in shown]
    listing(
        rows,
        at.as_json,
        ("topic", ">partitions", ">events", ">last offset", ">groups", ">lag", "keeps"),
        lambda r: (r["topic"], r["partitions"], r["events"], r["tail"], r["groups"], r["lag"], r["keeps"]),
        empty="no topics yet; `mainspring pub TOPIC DATA` makes one",
    )


@app.command()
def show(topic: TopicArgument, *, at: NodeOptions) -> None:
    """Show a topic. Its settings, the first and last event of each partition, and where each group stands."""
    with at.connect() as connection:
        settings = connection.get(path("topics", topic))
        offsets = connection.get(path("topics", topic, "offsets"))["partitions"]
    if at.as_json:
        say_json({**settings, "offsets": offsets})
        return
    _say_settings(settings)
    say()
    table(
        ("partition", ">first", ">last", ">events"),
        ((str(each["partition"]), each["head"], each["tail"], _held(each)) for each in offsets),
    )
    rows = [
        (name, str(each["partition"]), group["lastCommitted"], group["lag"], group["inflight"])
        for each in offsets
        for name, group in sorted(each["groups"].items())
    ]
    if rows:
        say()
        table(("group", "partition", ">committed", ">lag", ">in flight"), sorted(rows))


@app.command()
def create(topic: Annotated[str, typer.Argument(help="Its name.")], *, options: TopicOptions, at: NodeOptions) -> None:
    """Create a topic. Topics also come into being when someone publishes; this is for settings of its own."""
    wanted = options.settings() | options.access({})
    with at.connect() as connection:
        try:
            connection.get(path("topics", topic))
        except NodeRefused as error:
            if error.code != "unknown_topic":
                raise
        else:
            raise CommandFailed(
                f"there is a topic {safe(topic)!r} already", remedy="change it with `mainspring topics alter`"
            )
        _put(connection, {"topic": topic, **wanted}, at.as_json)


@app.command()
def alter(topic: TopicArgument, *, options: TopicOptions, at: NodeOptions) -> None:
    """Change settings of a topic; what is not mentioned stays. An access list given here replaces that list."""
    wanted = options.settings()
    with at.connect() as connection:
        now = connection.get(path("topics", topic))
        wanted |= options.access(now)
        if not wanted:
            raise typer.BadParameter("say what to change; `mainspring topics alter --help` lists the settings")
        _put(connection, {**now, **wanted}, at.as_json)


@app.command()
def purge(topic: TopicArgument, yes: YesOption = False, *, at: NodeOptions) -> None:
    """Remove every event of a topic. Its settings and groups stay."""
    confirm_by_name(f"Remove every event of {safe(topic)}?", topic, yes)
    done = at.call("POST", path("topics", topic, "purge"))
    say_done(done, at.as_json, f"removed {done['removed']:,} events of {safe(topic)}")


@app.command()
def delete(topic: TopicArgument, yes: YesOption = False, *, at: NodeOptions) -> None:
    """Delete a topic. With its groups, schedules, schemas and dead letters; refused while a group has members."""
    confirm_by_name(f"Delete {safe(topic)} with its groups, schedules, schemas and dead letters?", topic, yes)
    at.call("DELETE", path("topics", topic))
    say_done({"topic": topic, "deleted": True}, at.as_json, f"deleted {safe(topic)}")


def _span(text: str | None, option: str) -> int | None:
    if text is None:
        return None
    return 0 if text == "0" else duration_option(text, option)


def _put(connection: NodeConnection, settings: dict[str, Any], as_json: bool) -> None:
    now = connection.call("POST", "/topics", msgspec.json.encode(settings))
    if as_json:
        say_json(now)
    else:
        _say_settings(now)


def _say_settings(settings: dict[str, Any]) -> None:
    for name, value in settings.items():
        if name.endswith("Ms"):
            value = duration_text(value)
        said = safe(value) if isinstance(value, str) else msgspec.json.encode(value).decode()
        say(f"{name:16} {said}")


def _held(partition: dict[str, Any]) -> int:
    """Offsets from the first to the last; retention by key may have left fewer."""
    return int(partition["tail"] - partition["head"] + 1) if partition["tail"] else 0


def _summary(connection: NodeConnection, settings: dict[str, Any], groups: list[dict[str, Any]]) -> dict[str, Any]:
    offsets = connection.get(path("topics", settings["topic"], "offsets"))["partitions"]
    kept = [said(settings[name]) for name, said in _KEEPS.items() if settings.get(name)]
    lags = [each["lag"] for each in groups if each["topic"] == settings["topic"]]
    return {
        **settings,
        "events": sum(_held(each) for each in offsets),
        "tail": max((each["tail"] for each in offsets), default=0),
        "groups": len(lags),
        "lag": max(lags, default=0),
        "keeps": ", ".join(kept) or "everything",
    }


_KEEPS: Final[dict[str, Callable[[Any], str]]] = {
    "retentionMs": duration_text,
    "retentionBytes": "{:,} bytes".format,
    "retentionCount": "{:,} events".format,
    "compact": lambda _: "newest of each key",
}
