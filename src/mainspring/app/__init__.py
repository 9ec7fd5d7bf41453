"""App: what a program declares, and what its consumers get."""

from __future__ import annotations

from mainspring.app.app import App
from mainspring.app.declared import DeclaredConsumer, DeclaredSchedule
from mainspring.app.duration import BadDuration, Duration, duration_ms
from mainspring.app.event import Event
from mainspring.app.task import NotServed, Task

__all__ = [
    "App",
    "BadDuration",
    "DeclaredConsumer",
    "DeclaredSchedule",
    "Duration",
    "Event",
    "NotServed",
    "Task",
    "duration_ms",
]
