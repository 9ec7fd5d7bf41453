"""`mainspring top`: a node at a glance, again and again: rates, topics, groups with their lag, the parts, faults.

On a terminal it is a live view; in a pipe, or with `--once`, plain tables; with `--json` one object per look. A node
that goes away is shown as gone, and looked for again.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Annotated, Any, Final

import typer

from mainspring.cli.node.sampling import COUNTERS, Sample, report, take
from mainspring.cli.support.moments import clock_text, duration_ms
from mainspring.cli.support.node_options import NodeOptions
from mainspring.cli.support.output import JsonOption, coloured, make_table, note, number, say, say_json
from mainspring.client import CannotConnect, NodeConnection
from mainspring.loop import MonotonicClock

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
    as_json: JsonOption = False,
) -> None:
    """A live view of a node: topics, groups, lag, rates and faults. Ctrl-C ends it."""
    interval_s = max(_LEAST_MS, duration_ms(every, "--every")) / 1000
    with at.connect() as connection:
        looks = _looks(connection, interval_s, all, once)
        if as_json:
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


# -- on a terminal


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
    from rich.text import Text

    rates, totals = look["rates"], look["totals"]
    return make_table(
        ("", *(f">{_LABELS.get(name, name)}" for name in COUNTERS)),
        (
            ("per second", *(Text(_rate(rates[name]), _colour(name, rates[name])) for name in COUNTERS)),
            ("in all", *(totals[name] for name in COUNTERS)),
        ),
    )


def _inside(parts: list[dict[str, Any]]) -> Any:
    """What the parts besides the bus do, what waits in them, and what went wrong since the start."""
    return make_table(
        ("part", ">per second", "", ">now", "", ">in all", ""),
        (
            (
                each["part"],
                _rate(each["perSecond"]),
                each["does"],
                each["waiting"],
                each["waits"],
                _alarming(each["failed"]),
                each["fails"],
            )
            for each in parts
        ),
    )


def _topics(topics: list[dict[str, Any]]) -> Any:
    return make_table(
        ("topic", ">partitions", ">published", ">/s", ">delivered", ">/s", ">lag", ">dead letters"),
        (
            (
                each["topic"],
                each["partitions"],
                each["published"],
                _rate(each["publishedPerSecond"]),
                each["delivered"],
                _rate(each["deliveredPerSecond"]),
                each["lag"],
                _alarming(each["deadLetters"]),
            )
            for each in topics
        ),
    )


def _groups(groups: list[dict[str, Any]]) -> Any:
    return make_table(
        ("group", "of topic", ">members", ">lag", ">change", ">in flight"),
        (
            (each["group"], each["topic"], _members(each), each["lag"], _change(each["lagChange"]), each["inflight"])
            for each in groups
        ),
    )


def _rate(value: float | None) -> str:
    return "-" if value is None else number(value)


def _colour(name: str, value: float | None) -> str:
    return "red" if name in _FAULTS and value else ""


def _alarming(count: int) -> Any:
    from rich.text import Text

    return Text(number(count), "red" if count else "")


def _members(group: dict[str, Any]) -> Any:
    """A group nobody consumes while there is something to do stands out."""
    from rich.text import Text

    return Text(number(group["members"]), "red" if not group["members"] and group["lag"] else "")


def _change(value: int | None) -> Any:
    from rich.text import Text

    if not value:
        return Text("" if value is None else "0")
    return Text(f"{value:+,}", "red" if value > 0 else "green")
