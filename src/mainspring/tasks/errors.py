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
    """No node serves the program here and no client is in use, so nothing can be published, asked or enqueued."""

    code = "not_served"


def not_served(app: str) -> NotServed:
    """What a verb of a program raises where there is no node to carry it out."""
    return NotServed(
        f"the program {app!r} is not served here",
        remedy="call it inside `async with app.running():`, or give your web framework `lifespan=app.lifespan`; where "
        "the node is another process, give the app a client: app.use(connect(...))",
    )
