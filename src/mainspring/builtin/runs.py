"""Run: durable runs as messages, and what runs need from a node.

`Run.Start` answers as soon as the run is written down; the outcome is asked with `Run.Outcome`, or comes as one of the
events `Run.Completed`, `Run.Failed` and `Run.Cancelled`. Nothing here waits for a run, because a capability answers one
message after the other.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import Annotated, Any, Final

import msgspec

from mainspring.builtin.answers import Messages, about
from mainspring.builtin.events import on_remote_change
from mainspring.bus import Bus
from mainspring.errors import MainspringError
from mainspring.kernel import Capability, Context, Fail, Kernel
from mainspring.log import Change, Prepared
from mainspring.runs import DurableRuns, Failed, Outcome, Run, RunRecord, Runtime, Value
from mainspring.runs.durable import ended_runs, error_fields, reason_json
from mainspring.telemetry import current_correlation

_PAGE: Final = 50
_EVENTS: Final = {"value": "Run.Completed", "failed": "Run.Failed", "cancelled": "Run.Cancelled"}

message: Final = Messages("Run", "Durable runs.")

RunId = Annotated[str, about("The id of a durable run.")]
NotOver = Annotated[bool, about("False when the run was over.")]


class RunState(msgspec.Struct, omit_defaults=True):
    id: str
    program: str
    state: Annotated[str, about("running, value, failed or cancelled.")]
    created: int
    updated: int
    value: Any = None
    error: dict[str, str] | None = None
    reason: Any = None
    parent: str | None = None
    forkedFrom: str | None = None
    retries: int = 0
    owner: Annotated[str | None, about("The node that executes it, where several share a log.")] = None
    waitsFor: Annotated[str | None, about("Why no node executes it, where that is so.")] = None


def run(kernel: Kernel, runtime: Runtime) -> Capability:
    """The capability `Run` of this node; also announces the ends of durable runs as events."""
    runtime.on_outcome(lambda ended, how: _announce(kernel, ended, how))
    on_remote_change(kernel, runtime.durable.log, lambda change: _stream_ended(kernel, change))
    return message.of(_RunMessages(kernel, runtime))


class _RunMessages:
    def __init__(self, kernel: Kernel, runtime: Runtime) -> None:
        self._kernel = kernel
        self._runtime = runtime
        self._durable = runtime.durable

    @message("command", "Run.Start", "StartRun", gives="StartedRun.id")
    async def start(
        self,
        ctx: Context,
        program: Annotated[str, about("The name under which the program is registered.")],
        args: Annotated[list[Any], about("Its arguments, in order.")] = [],  # noqa: B006
        id: Annotated[str | None, about("Starting the same id again gives the same run.")] = None,
    ) -> str:
        """Start a durable run of a registered program."""
        try:
            begun = self._runtime.start(program, *args, durable=True, id=id)
        except MainspringError:  # also when it is a TypeError
            raise
        except TypeError as error:  # the arguments are not the program's
            raise Fail(422, str(error)) from None
        await self._durable.written(begun)
        cause = ctx.message.metadata  # the run is part of the causation tree under its own id
        self._kernel.note("run", begun.program, begun.id, causation=cause.id, correlation=cause.correlation)
        return begun.id

    @message("command", "Run.Cancel", "CancelRun", gives="CancelledRun.cancelled")
    async def cancel(self, id: RunId, reason: Annotated[Any, about("Kept with the outcome.")] = None) -> NotOver:
        """Cancel a run, wherever it is executed."""
        return await self._durable.cancel(id, reason)

    @message("command", "Run.Signal", "SignalRun", gives="SignalledRun.signalled")
    async def signal(
        self,
        id: RunId,
        name: Annotated[str, about("What WaitSignal in the program waits for.")],
        value: Annotated[Any, about("What it receives.")] = None,
    ) -> NotOver:
        """Send a value to a run; durable when answered."""
        return await self._durable.signal(id, name, value)

    @message("query", "Run.Outcome", "AskRunOutcome")
    async def outcome(self, id: RunId) -> RunState:
        """How a run stands, and how it ended."""
        return _state(self._durable, await self._durable.store.record(id))

    @message("query", "Run.List", "ListRuns", gives="RunPage.runs")
    async def list_runs(
        self,
        state: Annotated[str | None, about("Only running, value, failed or cancelled ones.")] = None,
        prefix: Annotated[str, about("Only ids that start with this.")] = "",
        after: Annotated[str, about("Only ids greater than this: the next page.")] = "",
        limit: Annotated[int, msgspec.Meta(ge=1, le=_PAGE, description="How many at most.")] = _PAGE,
    ) -> list[RunState]:
        """Durable runs by id, at most fifty at a time, without their values."""
        found = await self._durable.store.runs(state=state, prefix=prefix, after=after, limit=limit)
        return [_state(self._durable, record, brief=True) for record in found]

    @message("query", "Run.History", "AskRunHistory")
    async def history(self, id: RunId) -> dict[str, Any]:
        """A run and its journal."""
        found = await self._durable.history(id)
        return {"run": found.run, "journal": found.journal}

    @message("command", "Run.Retry", "RetryRun", gives="StartedRun.id")
    async def retry(self, id: RunId) -> str:
        """Go on with a run that failed or was cancelled, from its journal."""
        return (await self._durable.retry(id)).id

    @message("command", "Run.Fork", "ForkRun", gives="StartedRun.id")
    async def fork(
        self,
        id: RunId,
        at: Annotated[int, msgspec.Meta(ge=0, description="How many answers the new run begins with.")],
        newId: Annotated[str | None, about("The id of the new run; one is made otherwise.")] = None,
    ) -> str:
        """Start a new run with the first answers of another."""
        return (await self._durable.fork(id, at, newId)).id


def _announce(kernel: Kernel, ended: Run[Any], outcome: Outcome[Any]) -> None:
    if not ended.is_durable:
        return
    data: dict[str, Any] = {"id": ended.id, "program": ended.program}
    if isinstance(outcome, Failed):
        data["error"] = error_fields(outcome.error)
    elif not isinstance(outcome, Value):
        data["reason"] = reason_json(outcome.reason)
    kernel.emit(_EVENTS[ended.state], data, causation=ended.id)


def _stream_ended(kernel: Kernel, change: Change) -> None:
    """Stream the ends of runs that were executed by another node."""
    for ended in ended_runs(change):
        data: dict[str, Any] = {"id": ended.id, "program": ended.program}
        if ended.state == "failed":
            data["error"] = ended.error
        elif ended.state == "cancelled":
            data["reason"] = ended.reason
        kernel.stream(_EVENTS[ended.state], data, causation=ended.id)


def _state(durable: DurableRuns, record: RunRecord, *, brief: bool = False) -> RunState:
    return RunState(
        id=record.id,
        program=record.program,
        state=record.state,
        created=record.created,
        updated=record.updated,
        value=None if brief or record.state != "value" else record.value,
        error=record.error,
        reason=None if brief or record.state != "cancelled" else record.reason,
        parent=record.parent,
        forkedFrom=record.forked_from,
        retries=record.retries,
        owner=durable.ownership.owner_of(record),
        waitsFor=durable.ownership.waits_for(record) or None,
    )


# -- what runs need from a node


class KernelPort:
    """`Ask` in a program reaches the capabilities of this kernel."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    async def ask(self, type: str, data: Any, *, kind: str, timeout_ms: int | None, key: str) -> Any:
        correlation = current_correlation()
        self._kernel.note("effect", "Ask", key, causation=key.rpartition("#")[0], correlation=correlation)
        correlation = correlation or key  # a run that no message started is a conversation of its own
        return await self._kernel.ask(kind, type, data, timeout_ms=timeout_ms, correlation=correlation, causation=key)


class BusPort:
    """`Publish` and `WaitEvent` in a program reach the topics of this bus."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    def prepare(
        self, topic: str, payload: bytes, *, key: str | None, headers: Mapping[str, str] | None, id: str
    ) -> Prepared:
        return self._bus.prepare(topic, payload, key=key, headers=headers, id=id)

    async def publish(self, topic: str, payload: bytes, *, key: str | None, headers: Mapping[str, str] | None) -> str:
        published = await self._bus.publish(topic, payload, key=key, headers=headers)
        return published.id

    async def position(self, topic: str) -> dict[str, int]:
        await self._bus.ensure_topic(topic)
        return {str(each.partition): each.tail for each in await self._bus.groups.offsets(topic)}

    async def follow(self, topic: str, position: Mapping[str, int]) -> AsyncIterator[Mapping[str, Any]]:
        after = {int(partition): offset for partition, offset in position.items()}
        async for events in self._bus.follow(topic, after=after):
            for event in events:
                yield {
                    "topic": event.topic,
                    "partition": event.partition,
                    "offset": event.offset,
                    "id": event.id,
                    "ts": event.ts,
                    "key": event.key,
                    "payload": json.loads(event.payload),  # lenient: 1e999 in one event fails no run
                }
