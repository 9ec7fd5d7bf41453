"""A task queue on topics: enqueue, run, retry, cancel, repeat.

- `queue`: `TaskQueue`; `queue_topics`: the topics behind it, and the headers of a task
- `task`: a declared task, its retries, and what it knows about itself while it runs
- `worker`: takes tasks, runs them, reports what became of them
- `results`: what became of tasks, and the handle that waits for it
- `dead_tasks`: tasks that failed for good
- `errors`: how a task can end badly
"""

from __future__ import annotations

from mainspring.tasks.dead_tasks import DeadTask
from mainspring.tasks.errors import NotBound, TaskCancelled, TaskError, TaskFailed, UnknownTask
from mainspring.tasks.queue import TaskQueue
from mainspring.tasks.results import TaskHandle
from mainspring.tasks.task import DeclaredTask, Retry, TaskContext
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
