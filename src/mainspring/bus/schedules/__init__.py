"""Events that are published later, and again and again.

schedules   delayed events and schedules: rows in the log that become events when their time comes
cron        cron lines: when a schedule fires next
"""

from __future__ import annotations

from mainspring.bus.schedules.cron import CronLine
from mainspring.bus.schedules.schedules import LEAST_EVERY_MS, Schedule, Schedules

__all__ = ["LEAST_EVERY_MS", "CronLine", "Schedule", "Schedules"]
