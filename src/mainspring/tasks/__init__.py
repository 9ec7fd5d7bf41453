"""A task queue on topics: enqueue, run, retry, cancel, repeat."""

from __future__ import annotations

from mainspring.tasks.context import TaskContext
from mainspring.tasks.dead_tasks import DeadTask
from mainspring.tasks.errors import NotBound, TaskCancelled, TaskError, TaskFailed, UnknownTask
from mainspring.tasks.handle import TaskHandle
from mainspring.tasks.queue import TaskQueue
from mainspring.tasks.retry import Retry
from mainspring.tasks.task import DeclaredTask
from mainspring.tasks.worker import Worker

__all__ = [
    "DeadTask",
    "DeclaredTask",
    "NotBound",
    "Retry",
    "TaskCancelled",
    "TaskContext",
    "TaskError",
    "TaskFailed",
    "TaskHandle",
    "TaskQueue",
    "UnknownTask",
    "Worker",
]
