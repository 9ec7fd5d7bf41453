"""Events that are published later, and again and again.

schedule    one schedule: what is published when, its next time, how its last call went
schedules   delayed events and schedules: rows in the log that become events when their time comes
cron        cron lines: when a schedule fires next
"""

from __future__ import annotations

from mainspring.bus.schedules.cron import CronLine
from mainspring.bus.schedules.schedule import (
    DECLARED,
    LEAST_EVERY_MS,
    MOST_EVERY_MS,
    LastCall,
    Schedule,
    ScheduleInfo,
)
from mainspring.bus.schedules.schedules import Schedules

__all__ = [
    "DECLARED",
    "LEAST_EVERY_MS",
    "MOST_EVERY_MS",
    "CronLine",
    "LastCall",
    "Schedule",
    "ScheduleInfo",
    "Schedules",
]
