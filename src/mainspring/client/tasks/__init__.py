"""A task queue on topics: enqueue, run, retry, cancel, repeat."""

from __future__ import annotations

from mainspring.client.tasks.context import TaskContext
from mainspring.client.tasks.declared import DeclaredTask
from mainspring.client.tasks.errors import NotBound, TaskCancelled, TaskError, TaskFailed, UnknownTask
from mainspring.client.tasks.handle import TaskHandle
from mainspring.client.tasks.letters import DeadTask
from mainspring.client.tasks.queue import TaskQueue
from mainspring.client.tasks.retry import Retry
from mainspring.client.tasks.worker import Worker

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
