"""Declared schedules as rows of the log, and the consumers that call their functions.

A schedule is one of the bus: its next time is kept in the log, and firing it appends an event and moves that time in
one commit. The function is called by a consumer of that event. So a firing is never lost and never doubled, and a call
that was cut short by a crash is made again. A schedule that is declared as before keeps its next time over a restart;
one that no living node's program declares any more is removed when the next node boots.
"""

from __future__ import annotations

from typing import Any

import msgspec

from mainspring.app.app import App
from mainspring.app.declared import DeclaredConsumer, DeclaredSchedule
from mainspring.bus import Bus, Schedule, TopicConfig
from mainspring.cluster import DeclarationsInForce

_KEPT_FIRINGS = 1_000  # of each schedule, for people who look back


def schedule_name(app: App, declared: DeclaredSchedule) -> str:
    return f"app/{app.name}/{declared.name}"


def schedule_topic(app: App, declared: DeclaredSchedule) -> str:
    """Where the firings of a schedule are events: each schedule has its own, so that a slow one delays no other."""
    return f"schedules.{app.name}.{declared.name}"


def schedule_consumers(app: App) -> list[DeclaredConsumer]:
    """The consumers that call the scheduled functions."""
    return [
        DeclaredConsumer(
            schedule_topic(app, declared),
            app.name,
            declared.function,
            max_attempts=declared.max_attempts,
            backoff=declared.backoff,
            takes_event=declared.takes_event,
            store_each=True,
            schedule=declared.name,
        )
        for declared in app.schedules
    ]


def declared_schedules(app: App) -> dict[str, dict[str, Any]]:
    """The schedules of a program as other nodes read them, by their names in the log."""
    return {
        schedule_name(app, each): {"topic": schedule_topic(app, each), "every": each.every_ms, "cron": each.cron}
        for each in app.schedules
    }


async def plan_schedules(app: App, bus: Bus, in_force: DeclarationsInForce) -> None:
    """Make the rows of the log agree with what is in force. Raises Refused when that changed meanwhile."""
    for declared in app.schedules:
        topic = schedule_topic(app, declared)
        if not bus.topics.open(topic).stored:
            await bus.put_topic(TopicConfig(topic=topic, retention_count=_KEPT_FIRINGS))
    prefix = f"app/{app.name}/"
    wanted = {}
    for name, said in in_force.of("schedules").items():
        if name.startswith(prefix):
            payload = msgspec.Raw(msgspec.json.encode({"schedule": name.removeprefix(prefix)}))
            wanted[name] = bus.admission.accept_schedule(Schedule(name=name, payload=payload, **said[-1]), None)
    await bus.schedules.agree(prefix, wanted, in_force.guard)
