"""Schedules over HTTP: events to be published again and again, by an interval or a cron expression."""

from __future__ import annotations

from typing import Final

OPERATIONS: Final = ()
