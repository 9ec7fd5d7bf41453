"""Tasks of a guest: what it spawns is a run of its own, a child of the run that spawned it.

A guest imports `voyd.task.spawn_attached__X`, `spawn_detached__X`, `cancel` and `take_value`, and waits with the effect
`voyd.std.task.runtime`. All of it is the structured tasks of `mainspring.runs`: an attached child is waited for, ends
with its owner, and fails it when nobody looked at its failure; a detached one outlives an owner that returned.

A task is named by a number. What it returned stays in the guest's memory, as a reference that the table holds until it
is taken or the last task of the run is over; then the buffer of the run is free again, too. The tasks of one run share
that buffer: a message in it is read or written in one go.

References cannot be stored, so a durable run spawns no tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import Any, Final

from mainspring.guests.voyd.errors import GuestProtocolError, GuestTrap
from mainspring.guests.voyd.machine import Machine, Ref
from mainspring.runs import Failed, Join, Now, Value

IMPORTS: Final = "voyd.task"
TASK_EFFECT: Final = "voyd.std.task.runtime"
ATTACHED, DETACHED = "spawn_attached__", "spawn_detached__"
_WAIT, _YIELD, _FAILURE_MESSAGE = range(3)
_FIRST: Final = 2  # the run itself is task 1

Body = Callable[["GuestTask", Ref, int], Generator[Any, Any, Ref]]


@dataclass(eq=False)
class Spawned:
    """A task that was spawned: its run, and what it returned."""

    run: Any = None
    value: Ref | None = None


class TaskTable:
    """The tasks of one run that somebody started, by number. `release` gets the buffer when all of them are over."""

    def __init__(self, machine: Machine, body: Body, buffer: int, release: Callable[[int], object]) -> None:
        self.machine = machine
        self.body = body
        self.buffer = buffer
        self._release = release
        self._spawned: dict[int, Spawned] = {}
        self._live = 0

    def begin(self) -> None:
        self._live += 1

    def end(self) -> None:
        """One of the tasks is over."""
        self._live -= 1
        if not self._live:
            for each in self._spawned.values():
                if each.value is not None:
                    each.value.release()
            self._spawned.clear()
            self._release(self.buffer)

    def add(self, spawned: Spawned) -> int:
        number = _FIRST + len(self._spawned)
        self._spawned[number] = spawned
        return number

    def find(self, number: int) -> Spawned:
        spawned = self._spawned.get(number)
        if spawned is None:
            raise GuestProtocolError(f"the guest asked for task {number}, which this run has not spawned")
        return spawned


class GuestTask:
    """One run that executes the guest: the references it holds, and what it may do with tasks. `finish` it."""

    def __init__(self, table: TaskTable, perform: Any, held: Iterable[Ref] = ()) -> None:
        self.table = table
        self.perform = perform
        self._machine = table.machine
        self._held: list[Ref] = list(held)
        self._is_finished = False
        table.begin()

    def finish(self) -> None:
        """Give back what it holds. Idempotent."""
        if not self._is_finished:
            self._is_finished = True
            release_all(self._held)
            self._held.clear()
            self.table.end()

    # -- calls into the guest

    def call(self, name: str, *args: int | Ref) -> Ref:
        """Call an export that gives a reference, and hold it until it is dropped."""
        ref = self._machine.call(name, *args, caller=self)
        if not isinstance(ref, Ref):
            raise GuestProtocolError(f"export {name} gave a number instead of a reference")
        self._held.append(ref)
        return ref

    def drop(self, ref: Ref) -> None:
        self._held.remove(ref)
        ref.release()

    def keep(self, ref: Ref) -> Ref:
        """Hold a reference no longer: somebody else does."""
        self._held.remove(ref)
        return ref

    # -- what the guest imports

    def spawn(self, starter: str, detached: bool, work: tuple[int | Ref, ...]) -> int:
        """Start a task with what its starter takes; it runs soon, never inline."""
        if self.perform.run.is_durable:
            release_all(work)
            raise GuestProtocolError(
                "a durable run of a guest cannot spawn tasks: they live in the guest's memory",
                remedy="start it without durable, or start several durable runs",
            )
        spawned = Spawned()
        number = self.table.add(spawned)
        entry = TaskEntry(self.table, starter, work, spawned, number)
        spawned.run = (self.perform.detach if detached else self.perform.spawn)(entry)
        return number

    def cancel(self, number: int) -> int:
        """End a task, and those it has attached; 1 when it was not over."""
        return int(self.table.find(number).run.cancel())

    def take_value(self, number: int) -> Ref:
        """What a task returned; once."""
        spawned = self.table.find(number)
        value, spawned.value = spawned.value, None
        if value is None:
            raise GuestProtocolError(f"task {number} has no value, or it was taken")
        return value

    # -- the effect of the task runtime

    def answer(self, op: int, args: list[Any]) -> Generator[Any, Any, Any]:
        """Perform an operation of the effect with our own effects."""
        if op == _YIELD:
            yield Now()  # everything that waits has its turn first
            return None
        spawned = self.table.find(args[0] if args and isinstance(args[0], int) else 0)
        if op == _WAIT:
            outcome = yield Join(spawned.run)
            return 0 if isinstance(outcome, Value) else 1 if isinstance(outcome, Failed) else 2
        outcome = spawned.run.outcome_now()
        if op != _FAILURE_MESSAGE or not isinstance(outcome, Failed):
            raise GuestProtocolError(f"task {args[0]} has no failure message")
        error = outcome.error
        return (error.panic if isinstance(error, GuestTrap) else "") or getattr(error, "message", "") or str(error)


class TaskEntry:
    """A spawned task as a program."""

    def __init__(
        self, table: TaskTable, starter: str, work: tuple[int | Ref, ...], spawned: Spawned, number: int
    ) -> None:
        self._table = table
        self._starter = starter
        self._work = work
        self._spawned = spawned
        self._number = number
        self.__qualname__ = starter
        self.__module__ = "guest"

    def __bind_program__(self, args: tuple[Any, ...], perform: Any) -> TaskProgram:
        task = GuestTask(self._table, perform, [each for each in self._work if isinstance(each, Ref)])
        return TaskProgram(self._run(task), task.finish)

    def _run(self, task: GuestTask) -> Generator[Any, Any, None]:
        try:
            outcome = task.call(self._starter, *self._work)
            for each in self._work:
                if isinstance(each, Ref):
                    task.drop(each)
            self._spawned.value = task.keep((yield from self._table.body(task, outcome, self._number)))
        finally:
            task.finish()


class TaskProgram:
    """A generator and what is to be done when it is closed, also before its first step."""

    def __init__(self, generator: Generator[Any, Any, None], finish: Callable[[], None]) -> None:
        self.send: Callable[[Any], Any] = generator.send
        self.throw: Callable[..., Any] = generator.throw
        self._generator = generator
        self._finish = finish

    def close(self) -> None:
        self._generator.close()
        self._finish()


def release_all(refs: Iterable[int | Ref]) -> None:
    for each in refs:
        if isinstance(each, Ref):
            each.release()


def task_import(name: str, active: Callable[[], GuestTask | None]) -> Callable[..., int | Ref] | None:
    """What a guest imports from `voyd.task` under this name; None for what is not known. `active` is who calls."""

    def caller() -> GuestTask:
        task = active()
        if task is None:
            raise GuestProtocolError(
                f"the guest called {IMPORTS}.{name} outside of a run",
                remedy="tasks are spawned by exports that perform effects",
            )
        return task

    if name.startswith((ATTACHED, DETACHED)):
        is_detached, starter = name.startswith(DETACHED), name.partition("__")[2]
        return lambda *work: caller().spawn(starter, is_detached, work)
    match name:
        case "cancel":
            return lambda number: caller().cancel(number)
        case "take_value":
            return lambda number: caller().take_value(number)
    return None
