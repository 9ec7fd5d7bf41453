"""Two looks at a node, and what happened in between: the numbers behind `mainspring top`.

A node counts since it started; rates come from the difference of two samples. A counter that went backwards means that
the node was restarted, and there is no rate to tell until the next sample.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from mainspring.client import NodeConnection
from mainspring.loop import Clock

COUNTERS: Final = ("published", "delivered", "acks", "nacks", "redeliveries", "dlq")
_VERSION: Final = re.compile(r'^mainspring_build_info\{version="([^"]*)"\}', re.MULTILINE)
_LINE: Final = re.compile(r"^mainspring_(\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
_FAILED: Final = re.compile(r'(?:outcome|result)="(?:failed|fatal)"')


@dataclass(frozen=True, slots=True)
class Part:
    """A part besides the bus: what it does, what waits in it, what goes wrong in it; metrics and what they count."""

    name: str
    does: tuple[str, str]
    waits: tuple[str, str]
    fails: tuple[str, str]


PARTS: Final = (
    Part("loop", ("loop_turns_total", "turns"), ("loop_lane_depth", "turns"), ("loop_slow_turns_total", "slow turns")),
    Part(
        "log", ("log_commits_total", "commits"), ("log_fault", "faults"), ("log_failed_commits_total", "failed commits")
    ),
    Part(
        "kernel",
        ("kernel_requests_total", "requests"),
        ("kernel_pending_requests", "requests"),
        ("kernel_restarts_total", "restarts"),
    ),
    Part(
        "runs", ("runs_effects_total", "effects"), ("runs_live", "runs"), ("runs_outcomes_total:failed", "failed runs")
    ),
    Part("beats", ("beats_total", "beats"), ("beats_waiting", "signals"), ("beats_calls_total:failed", "failed calls")),
)


@dataclass(frozen=True, slots=True)
class Sample:
    """What the node said at one moment; `at_ms` is monotonic, `wall_ms` for people."""

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
        "parts": [_part(part, new, old, seconds) for part in PARTS if part.waits[0] in new.sums],
        "topics": [_topic(name, new, before, seconds) for name in sorted(new.partitions) if system or _shown(name)],
        "groups": [_group(each, old) for each in new.groups if system or _shown(each["topic"])],
    }


def _part(part: Part, new: Sample, old: Sample | None, seconds: float) -> dict[str, Any]:
    """What a node that has such a part says of it. A metric nobody has counted yet is 0."""
    now, before = new.sums.get(part.does[0], 0.0), None if old is None else old.sums.get(part.does[0], 0.0)
    return {
        "part": part.name,
        "does": part.does[1],
        "perSecond": rate(now, before, seconds),
        "waits": part.waits[1],
        "waiting": int(new.sums.get(part.waits[0], 0)),
        "fails": part.fails[1],
        "failed": int(new.sums.get(part.fails[0], 0)),
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
