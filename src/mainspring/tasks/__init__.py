"""Tasks: functions of a program that are called later, at least once, in the node or in worker processes.

- `task`: a declared task, its parameters, and what it knows about itself while it runs
- `worker`: takes tasks, runs them, reports what became of them
- `results`: what became of tasks, and the handle that waits for it
- `in_runs`: tasks that a durable run starts and waits for
- `ports`: how tasks reach a node
- `errors`: how a task can end badly

The topics behind tasks are described in `mainspring.task_topics`, which the bus knows as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.lazy_imports import lazy_imports

if TYPE_CHECKING:
    from mainspring.tasks.errors import NotServed as NotServed
    from mainspring.tasks.errors import TaskCancelled as TaskCancelled
    from mainspring.tasks.errors import TaskError as TaskError
    from mainspring.tasks.errors import TaskExpired as TaskExpired
    from mainspring.tasks.errors import TaskFailed as TaskFailed
    from mainspring.tasks.errors import not_served as not_served
    from mainspring.tasks.in_runs import StartedTask as StartedTask
    from mainspring.tasks.in_runs import install_effects as install_effects
    from mainspring.tasks.ports import Report as Report
    from mainspring.tasks.ports import Then as Then
    from mainspring.tasks.results import BlockingTaskHandle as BlockingTaskHandle
    from mainspring.tasks.results import BlockingTaskHandles as BlockingTaskHandles
    from mainspring.tasks.results import TaskHandle as TaskHandle
    from mainspring.tasks.task import BadTask as BadTask
    from mainspring.tasks.task import EnqueueOptions as EnqueueOptions
    from mainspring.tasks.task import Task as Task
    from mainspring.tasks.task import TaskContext as TaskContext
    from mainspring.tasks.task import TaskRegistry as TaskRegistry
    from mainspring.tasks.task import starts_per_second as starts_per_second
    from mainspring.tasks.worker import Worker as Worker

_HOMES: Final = {
    "mainspring.tasks.errors": "NotServed TaskCancelled TaskError TaskExpired TaskFailed not_served",
    "mainspring.tasks.in_runs": "StartedTask install_effects",
    "mainspring.tasks.ports": "Report Then",
    "mainspring.tasks.results": "BlockingTaskHandle BlockingTaskHandles TaskHandle",
    "mainspring.tasks.task": "BadTask EnqueueOptions Task TaskContext TaskRegistry starts_per_second",
    "mainspring.tasks.worker": "Worker",
}
__getattr__ = lazy_imports(globals(), _HOMES)
