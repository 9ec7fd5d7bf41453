"""App: what a program declares, and what its consumers get."""

from __future__ import annotations

from mainspring.app.app import App
from mainspring.app.declared import DeclaredConsumer, DeclaredSchedule
from mainspring.app.event import Event
from mainspring.app.task import NotServed, Task

__all__ = [
    "App",
    "DeclaredConsumer",
    "DeclaredSchedule",
    "Event",
    "NotServed",
    "Task",
]
