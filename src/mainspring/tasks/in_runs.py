"""Tasks of durable runs: `await perform.task(resize, image)`, and `perform.enqueue` for several at a time.

A run enqueues a task exactly once: the call is stored in the commit that stores the run's step. Waiting for its result
only reads, so it may be done again after a crash. Where the results topic ended when the first task was enqueued in
this life of the node is kept with the step: a later life looks for the result from there on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from mainspring.log import add_prepared
from mainspring.runs import Effect, EffectContext, PublishPort, Runtime
from mainspring.task_topics import NAME
from mainspring.tasks.results import TaskRecords
from mainspring.tasks.task import Task, TaskRegistry

if TYPE_CHECKING:
    from mainspring.runs import Perform

R = TypeVar("R")


class EnqueueTask(Effect[dict[str, Any]]):
    """Have a task done; answered with its id and where its result is looked for."""

    name: str
    call: Any


class TaskResult(Effect[Any]):
    """What a task returned."""

    name: str
    id: str
    after: Any = None


class StartedTask(Generic[R]):
    """A task that a run has enqueued."""

    def __init__(self, perform: Perform, task: Task[..., R], id: str, after: Any) -> None:
        self.id = id
        self._perform = perform
        self._task = task
        self._after = after

    async def result(self) -> R:
        """What the task returned, in the type that its function declares."""
        value = await self._perform(TaskResult(self._task.name, self.id, self._after))
        result: R = self._task.decode_result(msgspec.json.encode(value))
        return result


async def start(task: Task[..., R], perform: Perform, call: msgspec.Raw) -> StartedTask[R]:
    """Enqueue it in the run."""
    started = await perform(EnqueueTask(task.name, msgspec.json.decode(call)))
    return StartedTask(perform, task, started["id"], started["after"])


def install_effects(runtime: Runtime, tasks: TaskRegistry, publish: PublishPort) -> None:
    """Let the runs of a node have tasks done."""

    async def records_of(name: str) -> tuple[Task[..., Any], TaskRecords]:
        task = tasks.get(name)
        if task is None:
            raise LookupError(f"the program has no task {name!r}")
        await tasks.ready(task)
        return task, tasks.records(task)

    async def enqueue(effect: EnqueueTask, ctx: EffectContext) -> dict[str, Any]:
        task, records = await records_of(effect.name)
        after = await records.mark()
        payload = msgspec.json.encode(effect.call)
        headers = {NAME: task.name}
        if not ctx.durable:
            return {"id": await publish.publish(task.topic, payload, key=None, headers=headers), "after": after}
        prepared = publish.prepare(task.topic, payload, key=None, headers=headers, id=ctx.key)
        ctx.after_commit(add_prepared(ctx.batch, (prepared,)))
        return {"id": ctx.key, "after": after}

    async def result(effect: TaskResult, ctx: EffectContext) -> Any:
        _, records = await records_of(effect.name)
        mine = effect.after == await records.mark()
        record = await records.wait(effect.id, mine=mine, after=effect.after)
        return msgspec.json.decode(record.outcome(effect.id))

    runtime.handle(EnqueueTask, enqueue)
    runtime.handle(TaskResult, result)
