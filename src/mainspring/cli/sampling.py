"""Two looks at a node, and what happened in between: the numbers behind `mainspring top`.

A node counts since it started; rates come from the difference of two samples. A counter that went backwards means that
the node was restarted, and there is no rate to tell until the next sample.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from mainspring.client.blocking_http import NodeConnection
from mainspring.loop import Clock

COUNTERS: Final = ("published", "delivered", "acks", "nacks", "redeliveries", "dlq")
_METRIC: Final = re.compile(r"^mainspring_(ready|build_info)(?:\{version=\"([^\"]*)\"\})? (\S+)", re.MULTILINE)


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


def take(connection: NodeConnection, clock: Clock) -> Sample:
    """Ask the node for everything once."""
    stats = connection.get("/stats")
    at_ms = clock.now_ms()
    metrics = connection.fetch("GET", "/metrics").decode("utf-8", "replace")
    found = {name: (version, value) for name, version, value in _METRIC.findall(metrics)}
    return Sample(
        at_ms=at_ms,
        wall_ms=clock.wall_ms(),
        version=found.get("build_info", ("", ""))[0],
        ready=float(found.get("ready", ("", "0"))[1]) == 1.0,
        stats=stats,
        partitions={each["topic"]: each["partitions"] for each in connection.get("/topics")["topics"]},
        groups=connection.get("/groups")["groups"],
        dead={each["topic"]: each["atMost"] for each in connection.get("/dlq")["topics"]},
    )


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
        "topics": [_topic(name, new, before, seconds) for name in sorted(new.partitions) if system or _shown(name)],
        "groups": [_group(each, old) for each in new.groups if system or _shown(each["topic"])],
    }


def rate(now: int, before: int | None, seconds: float) -> float | None:
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
