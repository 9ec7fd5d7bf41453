"""`mainspring top`: a node at a glance, again and again: rates, topics, groups with their lag, the parts, faults.

On a terminal it is a live view; in a pipe, or with `--once`, plain tables; with `--json` one object per look. A node
that goes away is shown as gone, and looked for again.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Final

import typer

from mainspring.cli.support.moments import clock_text, duration_option
from mainspring.cli.support.node_options import NodeOptions
from mainspring.cli.support.output import coloured, make_table, note, number, say, say_json
from mainspring.client import CannotConnect, NodeConnection
from mainspring.loop import Clock, MonotonicClock

COUNTERS: Final = ("published", "delivered", "acks", "nacks", "redeliveries", "dlq")
_VERSION: Final = re.compile(r'^mainspring_build_info\{version="([^"]*)"\}', re.MULTILINE)
_LINE: Final = re.compile(r"^mainspring_(\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
_FAILED: Final = re.compile(r'(?:outcome|result)="(?:failed|fatal)"')

# Parts besides the bus: what each does, what waits in it, what goes wrong in it; each a metric and what it counts.
PARTS: Final = (
    ("loop", "turns_total", "turns", "lane_depth", "turns", "slow_turns_total", "slow turns"),
    ("log", "commits_total", "commits", "fault", "faults", "failed_commits_total", "failed commits"),
    ("kernel", "requests_total", "requests", "pending_requests", "requests", "restarts_total", "restarts"),
    ("runs", "effects_total", "effects", "live", "runs", "outcomes_total:failed", "failed runs"),
    ("beats", "total", "beats", "waiting", "signals", "calls_total:failed", "failed calls"),
)


@dataclass(frozen=True, slots=True)
class Sample:
    """What the node said at one moment; `at_ms` is monotonic, `wall_ms` for people.

    A node counts since it started; rates come from the difference of two samples. A counter that went backwards means
    that the node was restarted, and there is no rate until the next sample.
    """

    at_ms: int
    wall_ms: int
    version: str
    ready: bool
    stats: dict[str, Any]
    partitions: dict[str, int]
    groups: list[dict[str, Any]]
    dead: dict[str, int]
    sums: dict[str, float]  # of each metric over its labels; `:failed` of those that say so


def take(connection: NodeConnection, clock: Clock) -> Sample:
    """Ask the node for everything once."""
    stats = connection.get("/stats")
    at_ms = clock.now_ms()
    metrics = connection.fetch("GET", "/metrics").decode("utf-8", "replace")
    version, sums = _VERSION.search(metrics), _sums(metrics)
    return Sample(
        at_ms=at_ms,
        wall_ms=clock.wall_ms(),
        version=version[1] if version is not None else "",
        ready=sums.get("ready") == 1.0,
        stats=stats,
        partitions={each["topic"]: each["partitions"] for each in connection.get("/topics")["topics"]},
        groups=connection.get("/groups")["groups"],
        dead={each["topic"]: each["atMost"] for each in connection.get("/dlq")["topics"]},
        sums=sums,
    )


def _sums(metrics: str) -> dict[str, float]:
    sums: dict[str, float] = {}
    for name, labels, value in _LINE.findall(metrics):
        sums[name] = sums.get(name, 0.0) + float(value)
        if _FAILED.search(labels):
            sums[f"{name}:failed"] = sums.get(f"{name}:failed", 0.0) + float(value)
    return sums


def report(new: Sample, old: Sample | None, *, system: bool = False) -> dict[str, Any]:
    """Both samples as one plain object: totals and, per second, what came in between. Rates are null without two."""
    before = old.stats if old is not None else {}
    seconds = (new.at_ms - old.at_ms) / 1000 if old is not None else 0.0
    return {
        "ts": new.wall_ms,
        "version": new.version,
        "ready": new.ready,
        "connections": new.stats["connections"],
        "inflight": new.stats["inflight"],
        "totals": {name: new.stats[name] for name in COUNTERS},
        "rates": {name: rate(new.stats[name], before.get(name), seconds) for name in COUNTERS},
        "parts": [_part(each, new, old, seconds) for each in PARTS if f"{each[0]}_{each[3]}" in new.sums],
        "topics": [_topic(name, new, before, seconds) for name in sorted(new.partitions) if system or _shown(name)],
        "groups": [_group(each, old) for each in new.groups if system or _shown(each["topic"])],
    }


def _part(row: tuple[str, ...], new: Sample, old: Sample | None, seconds: float) -> dict[str, Any]:
    """What a node that has such a part says of it. A metric nobody has counted yet is 0."""
    part, done, does, held, waits, failed, fails = row

    def metric(sample: Sample, name: str) -> float:
        return sample.sums.get(f"{part}_{name}", 0.0)

    return {
        "part": part,
        "does": does,
        "perSecond": rate(metric(new, done), None if old is None else metric(old, done), seconds),
        "waits": waits,
        "waiting": int(metric(new, held)),
        "fails": fails,
        "failed": int(metric(new, failed)),
    }


def rate(now: float, before: float | None, seconds: float) -> float | None:
    if before is None or now < before or seconds <= 0:
        return None
    return round((now - before) / seconds, 1)


def _shown(topic: str) -> bool:
    return not topic.startswith("system.")


def _topic(name: str, new: Sample, before: dict[str, Any], seconds: float) -> dict[str, Any]:
    now = new.stats["byTopic"].get(name, {"pub": 0, "del": 0})
    then = before.get("byTopic", {}).get(name, {"pub": 0, "del": 0}) if before else {}
    return {
        "topic": name,
        "partitions": new.partitions[name],
        "published": now["pub"],
        "delivered": now["del"],
        "publishedPerSecond": rate(now["pub"], then.get("pub"), seconds),
        "deliveredPerSecond": rate(now["del"], then.get("del"), seconds),
        "lag": max((each["lag"] for each in new.groups if each["topic"] == name), default=0),
        "deadLetters": new.dead.get(name, 0),
    }


def _group(group: dict[str, Any], old: Sample | None) -> dict[str, Any]:
    name = (group["topic"], group["group"])
    then = next((each for each in old.groups if (each["topic"], each["group"]) == name), None) if old else None
    return {
        "topic": group["topic"],
        "group": group["group"],
        "members": group["members"],
        "lag": group["lag"],
        "lagChange": None if then is None else group["lag"] - then["lag"],
        "inflight": group["inflight"],
    }


_LEAST_MS: Final = 100  # a look costs the node five requests
_LABELS: Final = {"dlq": "dead letters"}
_FAULTS: Final = ("nacks", "redeliveries", "dlq")


def top(
    every: Annotated[str, typer.Option("--every", "-e", help="Time between two looks, like 500ms or 2s.")] = "1s",
    once: Annotated[
        bool, typer.Option("--once", help="Two looks for the rates, one answer, and end. For scripts.")
    ] = False,
    all: Annotated[bool, typer.Option("--all", "-a", help="Also the node's own topics, system.*")] = False,
    rows: Annotated[int, typer.Option(min=1, help="At most so many topics and groups, the busiest first.")] = 20,
    *,
    at: NodeOptions,
) -> None:
    """A live view of a node: topics, groups, lag, rates and faults. Ctrl-C ends it."""
    interval_s = max(_LEAST_MS, duration_option(every, "--every")) / 1000
    with at.connect() as connection:
        looks = _looks(connection, interval_s, all, once)
        if at.as_json:
            for look in looks:
                if look is not None:
                    say_json(look)
        elif once or not coloured():
            _plain(connection, looks, rows)
        else:
            _live(connection, looks, rows)


def _looks(connection: NodeConnection, interval_s: float, system: bool, once: bool) -> Iterator[dict[str, Any] | None]:
    """Reports, one per interval; None while the node does not answer. The first failure is an error."""
    clock, pause = MonotonicClock(), threading.Event()
    old: Sample | None = take(connection, clock)
    if not once:
        assert old is not None
        yield report(old, None, system=system)
    while True:
        pause.wait(interval_s)
        try:
            new = take(connection, clock)
        except CannotConnect:
            if once:
                raise
            old = None
            yield None
            continue
        yield report(new, old, system=system)
        if once:
            return
        old = new


def _live(connection: NodeConnection, looks: Iterator[dict[str, Any] | None], rows: int) -> None:
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    last: dict[str, Any] | None = None
    with Live(screen=True, auto_refresh=False) as live:
        for look in looks:
            shown: list[Any] = [Text(connection.address, "bold")]
            if look is None:
                shown.append(Text("the node does not answer; looking again", "bold red"))
            last = look or last
            shown += _parts(last, rows) if last is not None else []
            live.update(Group(*shown, Text("\nCtrl-C ends", "dim")), refresh=True)


def _plain(connection: NodeConnection, looks: Iterator[dict[str, Any] | None], rows: int) -> None:
    from rich.console import Console

    for look in looks:
        if look is None:
            note(f"mainspring: the node at {connection.address} does not answer; looking again")
            continue
        console = Console(highlight=False, width=160)
        with console.capture() as captured:
            for part in _parts(look, rows):
                console.print(part)
        say("\n".join(line.rstrip() for line in captured.get().splitlines()))


def _parts(look: dict[str, Any], rows: int) -> list[Any]:
    """The view from top to bottom."""
    from rich.text import Text

    state = Text("ready", "green") if look["ready"] else Text("not ready", "bold red")
    head = Text.assemble(
        f"mainspring {look['version']}  ",
        state,
        f"  {look['connections']:,} connections  {look['inflight']:,} in flight  {clock_text(look['ts'])[:8]}",
    )
    topics = sorted(look["topics"], key=lambda each: (-(each["publishedPerSecond"] or 0), -each["lag"], each["topic"]))
    groups = sorted(look["groups"], key=lambda each: (-each["lag"], each["topic"], each["group"]))
    parts = [head, Text(), _counters(look), Text(), _topics(topics[:rows])]
    if len(topics) > rows:
        parts.append(Text(f"and {len(topics) - rows:,} topics more", "dim"))
    if groups:
        parts += [Text(), _groups(groups[:rows])]
    if len(groups) > rows:
        parts.append(Text(f"and {len(groups) - rows:,} groups more", "dim"))
    if look["parts"]:
        parts += [Text(), _inside(look["parts"])]
    return parts


def _counters(look: dict[str, Any]) -> Any:
    """Rates and totals side by side; a fault that is happening now is red."""
    rates, totals = look["rates"], look["totals"]
    return make_table(
        ("", *(f">{_LABELS.get(name, name)}" for name in COUNTERS)),
        (
            ("per second", *(_red(_rate(rates[name]), name in _FAULTS and rates[name]) for name in COUNTERS)),
            ("in all", *(totals[name] for name in COUNTERS)),
        ),
    )


def _inside(parts: list[dict[str, Any]]) -> Any:
    """What the parts besides the bus do, what waits in them, and what went wrong since the start."""
    titles = ("part", ">per second", "", ">now", "", ">in all", "")
    return make_table(titles, _cells(parts, "part perSecond does waiting waits failed fails"))


def _topics(topics: list[dict[str, Any]]) -> Any:
    titles = ("topic", ">partitions", ">published", ">/s", ">delivered", ">/s", ">lag", ">dead letters")
    names = "topic partitions published publishedPerSecond delivered deliveredPerSecond lag deadLetters"
    return make_table(titles, _cells(topics, names))


def _cells(rows: list[dict[str, Any]], names: str) -> list[list[Any]]:
    """These members of each row; a rate that is not known is a dash, a count of faults is red."""

    def cell(name: str, value: Any) -> Any:
        if name.lower().endswith("persecond"):
            return _rate(value)
        return _red(number(value), value) if name in ("failed", "deadLetters") else value

    return [[cell(name, each[name]) for name in names.split()] for each in rows]


def _groups(groups: list[dict[str, Any]]) -> Any:
    """A group nobody consumes while there is something to do stands out."""
    rows = []
    for each in groups:
        members = _red(number(each["members"]), not each["members"] and each["lag"])
        change = _change(each["lagChange"])
        rows.append((each["group"], each["topic"], members, each["lag"], change, each["inflight"]))
    return make_table(("group", "of topic", ">members", ">lag", ">change", ">in flight"), rows)


def _rate(value: float | None) -> str:
    return "-" if value is None else number(value)


def _red(text: str, when: object) -> Any:
    from rich.text import Text

    return Text(text, "red" if when else "")


def _change(value: int | None) -> Any:
    from rich.text import Text

    if not value:
        return Text("" if value is None else "0")
    return Text(f"{value:+,}", "red" if value > 0 else "green")
