"""Delayed events and schedules: what is published later, and again and again."""

from __future__ import annotations

from mainspring.bus.schedules.cron import CronLine

__all__ = ["CronLine"]
