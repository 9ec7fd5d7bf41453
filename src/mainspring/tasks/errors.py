"""What can go wrong with tasks, as seen by who enqueues them or waits for their results."""

from __future__ import annotations

from mainspring.client import ClientError


class TaskError(ClientError):
    """Base of what waiting for a task raises. `task_id` says which."""

    code = "task"

    def __init__(self, message: str, *, remedy: str = "", task_id: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.task_id = task_id


class TaskFailed(TaskError):
    """The task failed for good and is a dead letter now."""

    code = "task_failed"


class TaskCancelled(TaskError):
    """Someone cancelled the task."""

    code = "task_cancelled"


class TaskExpired(TaskError):
    """The task was not started within its `ttl`."""

    code = "task_expired"


class NotServed(TaskError):
    """No node serves the program here and no client is in use, so nothing can be enqueued."""

    code = "not_served"
