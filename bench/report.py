"""One run of the benchmarks as a page with plots: `python -m bench.report`, or `make bench-report`.

    python -m bench.report                        measure for some 25 minutes, and write docs/benchmarks
    python -m bench.report --quick                small numbers, into build/benchmarks: to see that it works
    python -m bench.report --from docs/benchmarks write the page and the plots again from what was measured

The folder gets README.md, the plots (SVG) and run.json, which has every figure.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import resource
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from bench.__main__ import ROOT, measure
from bench.harness import Figures
from bench.peers import servers as peers
from bench.plots import Bar, Point, bars, panels

# What a run measures, in this order, and what it is called on the page. The first five have sections of their own.
PARTS: dict[str, tuple[str, list[str]]] = {
    "limits": ("Raw limits", []),
    "bus": ("Bus", []),
    "sdk": ("Python client", []),
    "log": ("Log", ["--long"]),
    "sizes": ("Cost against size", ["--long"]),
    "tasks": ("Tasks", []),
    "runs": ("Runs", []),
    "kernel": ("Commands and queries", []),
    "loop": ("Loop", []),
    "beats": ("Beats", []),
    "web": ("In a web application", []),
    "start": ("Starting", []),
}
OWN_SECTIONS = ("limits", "bus", "sdk", "log", "sizes")
BUSY = 0.1  # of the machine, by others: more, and the page says that its figures are not to be quoted

NAMES = {
    "ours": "Mainspring, lean client",
    "client_many": "Mainspring client, publish_many",
    "client_each": "Mainspring client, awaited singly",
    "jetstream_default": "JetStream, default",
    "jetstream_always": "JetStream, fsync always",
    "redis_everysec": "Redis Streams, everysec",
    "redis_always": "Redis Streams, fsync always",
    "celery": "Celery on Redis, everysec",
    "taskiq_stream": "taskiq, Redis stream, everysec",
    "taskiq_list": "taskiq, Redis list, everysec",
}
SYNCED_LATER = ("jetstream_default", "redis_everysec", "celery", "taskiq_stream", "taskiq_list")
LEGEND = {
    "a": "Mainspring: on disk before the answer",
    "b": "peer: on disk before the answer",
    "c": "peer: on disk later",
}
LIMITS = {
    "fsyncs": "fsync of 4 KiB, one after the other",
    "round_trips": "200 bytes over loopback and back, one after the other",
    "messages": "200 bytes over loopback and back, 4,096 under way",
    "hand_overs": "a thread woken and the loop woken by it, one after the other",
    "callbacks_asyncio": "callbacks of the bare event loop, asyncio",
    "callbacks_uvloop": "callbacks of the bare event loop, uvloop",
}
SIZES = {
    "stored_events": "stored events",
    "topics": "topics",
    "partitions": "partitions",
    "groups": "groups",
    "connections": "connections",
    "timers": "pending timers",
    "handlers": "handlers",
    "enzymes": "enzymes of beats",
}


class Goal(NamedTuple):
    """A line of the first table: where its figure is in the run, and what it should be at least or at most."""

    text: str
    path: str
    goal: str


GOALS = (
    Goal(
        "publish in batches, times JetStream by default (it syncs every two minutes)",
        "bus.publish.times.ours.jetstream_default",
        "≥ 6",
    ),
    Goal(
        "the same by the shipped client, with ids (`publish_many`)",
        "bus.publish.times.client_many.jetstream_default",
        "≥ 4.5",
    ),
    Goal(
        "the same by the shipped client, each publish awaited", "bus.publish.times.client_each.jetstream_default", "≥ 3"
    ),
    Goal("publish in batches, times JetStream with fsync always", "bus.publish.times.ours.jetstream_always", "≥ 50"),
    Goal("publish in batches, times Redis with fsync every second", "bus.publish.times.ours.redis_everysec", "≥ 4"),
    Goal("publish, deliver, acknowledge, times the best peer", "bus.end_to_end.times.ours.best_peer", "≥ 3"),
    Goal("processor time of the log's writer per event, without ids, µs", "sdk.cpu_us.bare_publish.writer", "≤ 1.5"),
    Goal("the same by the shipped client, with ids, µs", "sdk.cpu_us.sdk_publish.writer", "≤ 2.2"),
    Goal("replay of {replayed} events, processor time per event, µs", "log.long_log.replay.cpu_us_per_event", "≤ 0.3"),
    Goal("bytes on disk per event of 200 bytes", "log.long_log.file_bytes_per_event", "≤ 250"),
    Goal("lone publisher, µs per durable publish", "bus.alone.publish_us", ""),
    Goal("the same, times another checkout in turns", "bus.alone.times_before", "≤ 0.85"),
    Goal("the same, times one fsync", "bus.alone.times_fsync", ""),
    Goal(
        "publish to delivery at 1,000/s, p50, in parts of JetStream's with fsync always",
        "bus.load.one_group.p50_times.jetstream_always",
        "≤ 0.9",
    ),
    Goal("the same, in parts of JetStream's by default", "bus.load.one_group.p50_times.jetstream_default", "≤ 1.8"),
    Goal(
        "publish with {stored} stored events and a thousandth as many topics, times the rate of an empty log",
        "sizes.stored_events.-1.rate",
        "≥ 0.95",
    ),
)


# -- what the page says beside the figures

INTRO = """\
Written by `make bench-report` from one run; [run.json](run.json) has every figure. A ratio compares two things that
took turns in the same run: it is the median of the rounds, and the spread is their smallest and their largest. A node
of Mainspring fsyncs before every acknowledgement; what a peer does is in its name.
[Comparison](../explanation/comparison.md#how-fast) says what such figures leave out."""
BUSY_NOTE = """\
> **The machine was busy with other work.** Do not quote these figures: they show what is measured, not how fast it
> is."""
QUICK_NOTE = "> **This was a quick run** with small numbers, to see that everything works."
SETTING = """\
Client and server share the machine. Payloads have 200 bytes; at most 4,096 events are under way. Quotas are off. Peers
run with their defaults but for what their name says; their clients are nats-py and redis-py, on uvloop like ours."""
GOALS_NOTE = """\
With `BENCH_BEFORE=OTHER` in the environment the lone publisher is compared with another checkout, in
turns."""
LIMITS_TEXT = """\
What the machine can do at most, whatever runs on it. A program that waits for each fsync stores no more than the disk
syncs; one that waits for each answer gets no more than loopback carries; and each commit
wakes a thread, which wakes the loop."""
PUBLISH_TEXT = """\
The lean client makes frames by joining bytes and gives no ids. The other two are the client that we ship, which
does."""
DELIVER_TEXT = "Until the last event is acknowledged; publisher and consumer are lean clients."
BESIDE = """
The machine's limits beside it: {fsyncs} fsyncs, {round_trips} round trips over loopback and {callbacks_asyncio}
callbacks of a bare asyncio loop per second, each one after the other."""
SIZES_TEXT = """\
The first five publish to a node that has so much and to a new one, in turns; cost is the processor time of the node per
event. Stored events come with a thousandth as many other topics. Events without keys go to all partitions, so that a
commit has a piece for each. The last three need no node: set and cancel a timer, ask a query, resolve a signal."""
REST = """\
- `python -m bench engines`: NATS JetStream, MongoDB and PostgreSQL as engines, against their own drivers;
  [what a cluster can do](../explanation/scale.md).
- `python -m bench checks`: what tokens, lists and schemas cost a publisher.
- `make bench-long ARGS=endurance`: whether memory or waits grow with 10,000 connections and much of everything else.

`python -m bench.PART --help` says what a part measures; `python -m bench --against OTHER PART` compares two
checkouts."""


# -- measuring


def measured(quick: bool) -> Figures:
    """One run of all parts."""
    busy, own = _busy_s(), _own_s()
    begun, load = time.time(), os.getloadavg()
    parts: Figures = {}
    for n, (part, (_, more)) in enumerate(PARTS.items(), 1):
        print(
            f"bench: {n} of {len(PARTS)}, after {(time.time() - begun) / 60:.1f} minutes", file=sys.stderr, flush=True
        )
        parts[part] = measure(part, ["--quick"] if quick else more)
    seconds, cores = time.time() - begun, os.cpu_count() or 1
    others = max(0.0, (_busy_s() - busy) - (_own_s() - own)) / (seconds * cores)
    return {"conditions": conditions(begun, seconds, load, others, quick), **parts}


def _busy_s() -> float:
    """Seconds that the processors of this machine have worked, for anybody."""
    user, nice, system, _, _, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def _own_s() -> float:
    """Seconds of it that were ours."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def conditions(begun: float, seconds: float, load: tuple[float, ...], others: float, quick: bool) -> Figures:
    cpu = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")), "")
    return {
        "date": f"{datetime.datetime.fromtimestamp(begun, datetime.UTC):%Y-%m-%d %H:%M} UTC",
        "minutes": round(seconds / 60, 1),
        "commit": _said(["git", "-C", str(ROOT), "describe", "--always", "--dirty"], 1),
        "cpu": f"{os.cpu_count()} cores, {cpu.partition(': ')[2] or platform.machine()}",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "peers": ", ".join(_said([each or "", "--version"], 3) for each in (peers.nats_server(), peers.redis_server())),
        "load_before": " ".join(f"{each:.1f}" for each in load),
        "used_by_others": round(others, 2),
        "quick": quick,
    }


def _said(command: list[str], words: int) -> str:
    """The first words that a program prints."""
    try:
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return f"{Path(command[0]).name or 'a peer'} is not installed"
    return " ".join(said.split()[:words])


# -- writing


def written(found: Figures, folder: Path) -> None:
    """The page, the plots and the figures themselves."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text(json.dumps(found, indent=1) + "\n")
    for name, text in {"README.md": page(found), **plots(found)}.items():
        (folder / name).write_text(text, encoding="utf-8")


def plots(found: Figures) -> dict[str, str]:
    """By the name of the file. What a run could not measure has no bar, no panel and no plot."""
    made = {}
    bus, told = found.get("bus", {}), found["conditions"]
    remark = " (busy machine)" if _busy(told) else " (quick run)" if told["quick"] else ""
    for name, key, title in (
        ("publish", "publish", "Publishing events of 200 bytes"),
        ("deliver", "end_to_end", "Publishing, delivering and acknowledging events of 200 bytes"),
    ):
        if key in bus:
            made[f"{name}.svg"] = bars(title + remark, "events per second", {"": _bars(bus[key])}, LEGEND)
    if "load" in bus:
        shapes = {"ten consumers in one group": "one_group", "ten groups of one consumer": "ten_groups"}
        groups = {text: _bars(bus["load"][shape]["p50_ms"]) for text, shape in shapes.items()}
        made["latency.svg"] = bars(
            f"From publish to delivery at 1,000 events per second{remark}", "milliseconds, p50", groups, LEGEND
        )
    if "end_to_end" in found.get("tasks", ()):
        shapes = {"enqueue": "enqueue", "workers start on a full queue": "drain", "enqueued to done": "end_to_end"}
        groups = {text: _bars(found["tasks"][shape], ours="Mainspring") for text, shape in shapes.items()}
        made["tasks.svg"] = bars(f"Tasks that do nothing{remark}", "tasks per second", groups, LEGEND)
    kinds = {text: _points(found.get("sizes", {}).get(kind, {})) for kind, text in SIZES.items()}
    if any(kinds.values()):
        axis = "cost of an operation, times its cost with little (dashed: the same); the number is for the largest size"
        made["sizes.svg"] = panels(
            f"Cost against size{remark}", axis, {text: points for text, points in kinds.items() if points}
        )
    return made


def _bars(figures: Figures, **named: str) -> list[Bar]:
    names = {**NAMES, **named}
    found = [(name, figures[name]["median"], figures[name]["spread"]) for name in NAMES if name in figures]
    return [Bar(names[name], value, low, high, _kind(name)) for name, value, (low, high) in found]


def _kind(name: str) -> str:
    return "c" if name in SYNCED_LATER else "b" if name.startswith(("jetstream", "redis")) else "a"


def _points(figures: Figures) -> list[Point]:
    return [Point(int(size), each["cost"]["ratio"], *each["cost"]["spread"]) for size, each in figures.items()]


def page(found: Figures) -> str:
    failed = [
        f"> **{title} is missing**: `python -m bench {part}` failed with {found[part]['failed']}."
        for part, (title, _) in PARTS.items()
        if "failed" in found.get(part, ())
    ]
    sections = [*_head(found["conditions"]), *failed, *_goals(found), *_limits(found), *_bus(found)]
    sections += [*_client_and_log(found), *_sizes(found.get("sizes", {}))]
    for part, (title, _) in PARTS.items():
        if part not in OWN_SECTIONS and part in found and "failed" not in found[part]:
            plot = [f"![{title}]({part}.svg)"] if part == "tasks" else []
            sections += [f"## {title}", *plot, *_part(part, found[part]), _repeat(part)]
    return "\n\n".join([*sections, "## Not in this run", REST]) + "\n"


def _busy(told: Figures) -> bool:
    return bool(told["used_by_others"] > BUSY or float(told["load_before"].split()[0]) > 1)


def _head(told: Figures) -> list[str]:
    rows = [(name.replace("_", " "), value) for name, value in told.items() if name not in ("used_by_others", "quick")]
    rows.append(("used by other programs meanwhile", f"{told['used_by_others']:.0%} of the machine"))
    warnings = []
    if _busy(told):
        warnings.append(BUSY_NOTE)
    if told["quick"]:
        warnings.append(QUICK_NOTE)
    return ["# Benchmarks", INTRO, *warnings, "## Conditions", _table(("", ""), rows), SETTING]


def _goals(found: Figures) -> list[str]:
    stored = max(map(int, _at(found, "sizes.stored_events") or {"0": {}}))
    replayed = _at(found, "log.long_log.events") or 0
    rows = []
    for goal in GOALS:
        figure = _at(found, goal.path)
        if figure is not None:
            text = goal.text.format(stored=f"{stored:,}", replayed=f"{replayed:,}")
            rows.append((text, *_figure(figure), goal.goal, _command(goal.path.partition(".")[0])))
    return ["## In short", _table(("", "measured", "spread", "goal", "repeat"), rows), GOALS_NOTE]


def _limits(found: Figures) -> list[str]:
    figures = found.get("limits", {}).get("per_s", {})
    rows = [(text, *_figure(figures[name])) for name, text in LIMITS.items() if name in figures]
    if not rows:
        return []
    return ["## Raw limits", LIMITS_TEXT, _table(("", "per second", "spread"), rows), _repeat("limits")]


def _bus(found: Figures) -> list[str]:
    bus, parts = found.get("bus", {}), []
    limits = {name: _figure(figure)[0] for name, figure in found.get("limits", {}).get("per_s", {}).items()}
    beside = BESIDE.format(**limits) if limits else ""
    for key, title, plot, text, owns in (
        ("publish", "Publishing", "publish.svg", PUBLISH_TEXT, ("ours", "client_many", "client_each")),
        ("end_to_end", "Publishing, delivering, acknowledging", "deliver.svg", DELIVER_TEXT, ("ours",)),
    ):
        if key not in bus:
            continue
        rows = []
        for name, shown in NAMES.items():
            if name in bus[key]:
                times = (_with_spread(_at(bus, f"{key}.times.{own}.{name}")) for own in owns)
                rows.append((shown, *_figure(bus[key][name]), *times))
        head = ("", "events per second", "spread", *(f"times, {NAMES[own].partition(', ')[2]}" for own in owns))
        parts += [
            f"## {title}",
            f"![{title}: events per second]({plot})",
            text + beside,
            _table(head, rows),
            _repeat("bus"),
        ]
    return [*parts, *_latency(bus.get("load", {}))]


def _latency(load: Figures) -> list[str]:
    rows = [
        (
            shape.replace("_", " "),
            shown,
            *_figure(each["p50_ms"][name]),
            *_figure(each["p99_ms"][name]),
            *_figure(_at(each, f"p50_times.{name}") or ""),
        )
        for shape, each in load.items()
        for name, shown in NAMES.items()
        if name in each["p50_ms"]
    ]
    head = ("", "", "p50, ms", "spread", "p99, ms", "spread", "our p50 in parts of it", "spread")
    plot = "![From publish to delivery at 1,000 events per second](latency.svg)"
    return ["## From publish to delivery", plot, _table(head, rows), _repeat("bus")] if rows else []


def _client_and_log(found: Figures) -> list[str]:
    names = {
        "bare_publish": "publish, lean client, no ids",
        "bare_publish_with_ids": "publish, lean client, ids",
        "sdk_publish": "publish, our client, `publish_many`",
        "sdk_publish_each": "publish, our client, awaited singly",
        "bare_consume": "consume, lean client",
        "sdk_consume": "consume, our client",
    }
    cpu = found.get("sdk", {}).get("cpu_us", {})
    threads = ("client", "loop", "writer")
    rows = [(text, *(_with_spread(cpu[name][each]) for each in threads)) for name, text in names.items() if name in cpu]
    head = ("microseconds per event", "client", "node: loop", "node: writer of the log")
    return [
        "## Processor time",
        _table(head, rows),
        _repeat("sdk"),
        "## The log",
        *_part("log", found.get("log", {})),
        _repeat("log"),
    ]


def _sizes(sizes: Figures) -> list[str]:
    rows = [
        (text, f"{int(size):,}", *_figure(each["us"]), *_figure(each["cost"]), *_figure(each.get("rate", "")))
        for kind, text in SIZES.items()
        for size, each in sizes.get(kind, {}).items()
    ]
    if not rows:
        return []
    head = (
        "",
        "size",
        "µs",
        "spread",
        "cost in parts of a small one's",
        "spread",
        "rate in parts of a new node's",
        "spread",
    )
    return [
        "## Cost against size",
        "![Cost against size](sizes.svg)",
        SIZES_TEXT,
        _table(head, rows),
        _repeat("sizes"),
    ]


def _part(part: str, figures: Figures) -> list[str]:
    """What a part says that it measures, and all of its figures."""
    text = (import_module(f"bench.{part}").__doc__ or "").partition("\n\n")[0].replace("\n", " ")
    return [text, _table(("", "measured", "spread"), list(_rows(figures)))]


def _rows(figures: Figures, path: str = "") -> Iterator[tuple[str, str, str]]:
    """Every figure of a part with its spread, where it has one."""
    for name, value in figures.items():
        if name in ("conditions", "goals", "goal", "spread") or isinstance(value, bool | str | list):
            continue
        here = f"{path}, {name.replace('_', ' ')}" if path else name.replace("_", " ")
        if isinstance(value, dict) and "spread" not in value:
            yield from _rows(value, here)
        elif isinstance(value, dict) and "median" not in value:  # how many times one of two fits into the other
            sides = [f"{text} {figure}" for text, figure, _ in _rows({**value, "ratio": True})]
            yield f"{here}, ratio" + (f" ({', '.join(sides)})" if sides else ""), *_figure(value)
        else:
            yield here, *_figure(value)


def _at(found: Any, path: str) -> Any:
    """The figure at a path; `-1` is the last of its kind. None where the run has none."""
    for name in path.split("."):
        if not isinstance(found, dict):
            return None
        found = list(found.values())[-1] if name == "-1" and found else found.get(name)
    return found


def _figure(found: Any) -> tuple[str, str]:
    """A figure and its spread, as they are printed."""
    if isinstance(found, Mapping):
        value = found["median"] if "median" in found else found["ratio"]
        low, high = found["spread"]
        return _number(value), f"{_number(low)} to {_number(high)}"
    return (_number(found) if found != "" else "", "")


def _with_spread(found: Any) -> str:
    figure, spread = _figure("" if found is None else found)
    return f"{figure} ({spread})" if spread else figure


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _table(head: tuple[str, ...], rows: list[Any]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def _command(part: str) -> str:
    return f"`python -m bench {' '.join([part, *PARTS[part][1]])}`"


def _repeat(part: str) -> str:
    return f"Repeat it: {_command(part)}"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.report", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small numbers: to see that it works, not to quote")
    parser.add_argument(
        "--from", dest="source", type=Path, metavar="FOLDER", help="measure nothing: take run.json there"
    )
    parser.add_argument("--to", type=Path, metavar="FOLDER", help="instead of docs/benchmarks")
    given = parser.parse_args()
    folder = given.to or given.source or ROOT / ("build/benchmarks" if given.quick else "docs/benchmarks")
    found = json.loads((given.source / "run.json").read_text()) if given.source else measured(given.quick)
    written(found, folder)
    print(folder / "README.md")
    return 1 if any("failed" in found[part] for part in PARTS if part in found) else 0


if __name__ == "__main__":
    sys.exit(main())
