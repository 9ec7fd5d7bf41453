"""How a task can end badly, as seen by who waits for its result."""

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


class UnknownTask(TaskError):
    """No task of this name is declared in this queue."""

    code = "unknown_task"


class NotBound(TaskError):
    """The queue has no connection yet."""

    code = "not_bound"
