"""Declared schedules as rows of the log, and the consumers that call their functions.

A schedule is one of the bus: its next time is kept in the log, and firing it appends an event and moves that time in
one commit. The function is called by a consumer of that event. So a firing is never lost and never doubled, and a call
that was cut short by a crash is made again. A schedule that is declared as before keeps its next time over a restart;
one that is no longer declared is removed.
"""

from __future__ import annotations

import msgspec

from mainspring.app.app import App
from mainspring.app.declared import DeclaredConsumer, DeclaredSchedule
from mainspring.bus import Bus, Schedule, TopicConfig

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
        )
        for declared in app.schedules
    ]


async def plan_schedules(app: App, bus: Bus) -> None:
    """Make the rows of the log agree with what the program declares."""
    wanted = {schedule_name(app, declared): declared for declared in app.schedules}
    for known in bus.schedules():
        if known.name.startswith(f"app/{app.name}/") and known.name not in wanted:
            await bus.delete_schedule(known.name)
    for name, declared in wanted.items():
        topic = schedule_topic(app, declared)
        if not bus.topic_table.open(topic).stored:
            await bus.put_topic(TopicConfig(topic=topic, retention_count=_KEPT_FIRINGS))
        found = bus.schedule_table.find(name)
        if found is None or (found.every, found.cron, found.topic) != (declared.every_ms, declared.cron, topic):
            payload = msgspec.Raw(msgspec.json.encode({"schedule": declared.name}))
            await bus.put_schedule(
                Schedule(name=name, topic=topic, payload=payload, every=declared.every_ms, cron=declared.cron)
            )
