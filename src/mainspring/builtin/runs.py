"""Run: durable runs as messages, and what runs need from a node.

`Run.Start` answers as soon as the run is written down; the outcome is asked with `Run.Outcome`, or comes as one of the
events `Run.Completed`, `Run.Failed` and `Run.Cancelled`; `Run.Blocked` is the event of a run that cannot go on. Nothing
here waits for a run, because messages about one run are answered one after the other.

A token with the scope `run:<program>` may send all of them about runs of that program; one with `command:Run.Start` and
the like, about every run.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Annotated, Any, Final, Literal

import msgspec

from mainspring.builtin.answers import Messages, about, caller_of, is_passed_on
from mainspring.builtin.events import on_remote_change
from mainspring.bus import Audit, Bus, Forbidden
from mainspring.codec import Encoding
from mainspring.durations import Duration
from mainspring.errors import MainspringError
from mainspring.kernel import DEFAULT_TIMEOUT_MS, Capability, Context, Fail, Kernel
from mainspring.log import Change, Prepared
from mainspring.message import encode_bytes
from mainspring.runs import (
    DurableRuns,
    Failed,
    NotExecuted,
    Outcome,
    ReplayMismatch,
    Run,
    RunError,
    RunRecord,
    Runtime,
    TakenOver,
    UnknownRun,
    Value,
)
from mainspring.runs.durable import RunSelection, ended_runs, error_fields, reason_json
from mainspring.telemetry import current_correlation

_PAGE: Final = 50
_ANY_TIME: Final = 2**53
PROGRAMS_OWN: Final = frozenset({"args", "value", "reason", "note", "progress"})  # members that a codec encodes
_EVENTS: Final = {"done": "Run.Completed", "failed": "Run.Failed", "cancelled": "Run.Cancelled"}

_AT_ONCE: Final = 256  # messages that are answered at a time: what they write then shares commits


def _run_of(data: Any) -> Any:
    """Messages about one run are answered in order; one without an id has an order of its own."""
    return getattr(data, "id", None) or object()


message: Final = Messages("Run", "Durable runs.", concurrency=_AT_ONCE, key=_run_of)

RunId = Annotated[str, about("The id of a durable run.")]
NotOver = Annotated[bool, about("False when the run was over.")]


OnlyState = Annotated[str | None, about("Only running, blocked, done, failed or cancelled ones.")]
OnlyProgram = Annotated[str | None, about("Only runs of this program.")]
OnlyPrefix = Annotated[str, about("Only ids that start with this.")]
OnlyIds = Annotated[list[str] | None, about("Only these.")]
OnlyText = Annotated[str, about("Only runs with this text in id, program, error or arguments.")]
OnlySince = Annotated[int | None, about("Only runs created at or after this time (epoch ms).")]
OnlyUntil = Annotated[int | None, about("Only runs created before this time (epoch ms).")]
OnlyRoots = Annotated[bool, about("Only runs without a parent.")]
KeepMember = Annotated[
    Literal["all", "fitting", "nothing"],
    about("Of the journal: all; what fits the program, of a blocked run; or nothing, to begin anew."),
]


QuestionName = Annotated[str, about("The name of the function that the program declared.")]
QuestionArguments = Annotated[list[Any], about("Its arguments, in order.")]
Question = Callable[[str, str, list[Any]], Awaitable[Any]]


class ChangedRuns(msgspec.Struct):
    count: Annotated[int, about("How many runs were changed.")] = 0
    refused: Annotated[dict[str, str], about("Why others were not, by id.")] = {}
    after: Annotated[str | None, about("There may be more: ask again with this.")] = None


class RunState(msgspec.Struct, omit_defaults=True):
    id: str
    program: str
    state: Annotated[str, about("running, blocked, done, failed or cancelled.")]
    created: int
    updated: int
    value: Any = None
    error: Annotated[dict[str, str] | None, about("Why it failed, or why it is blocked.")] = None
    traceback: Annotated[str, about("Where it failed.")] = ""
    reason: Any = None
    parent: str | None = None
    forkedFrom: str | None = None
    retries: int = 0
    progress: Annotated[Any, about("What it published last about its progress.")] = None
    owner: Annotated[str | None, about("The node that executes it, where several share a log.")] = None
    waitsFor: Annotated[
        str | None, about("What it waits for: signal NAME, sleep, an effect; program NAME that no living node has.")
    ] = None
    waitsUntil: Annotated[int | None, about("Until when it waits at most (epoch ms).")] = None


class RunCount(msgspec.Struct):
    program: str
    state: str
    count: int


def run(kernel: Kernel, runtime: Runtime, encoding: Encoding | None = None, audit: Audit | None = None) -> Capability:
    """The capability `Run` of this node; also announces the ends of durable runs as events.

    With `encoding`, what is the program's is encoded in everything that is said about runs. `audit` is told which runs
    were forgotten.
    """
    if audit is not None:
        runtime.durable.recovery.on_forgotten.append(
            lambda count: audit.did("deleted", about=f"{count} runs", reason="runs_retention_ms")
        )
    runtime.on_outcome(lambda ended, how: _announce(kernel, ended, how, encoding))
    runtime.durable.blocked.on_blocked.append(lambda blocked, why: _announce_blocked(kernel, blocked, why))
    on_remote_change(kernel, runtime.durable.log, lambda change: _stream_ended(kernel, change, encoding))
    capability = message.of(_RunMessages(kernel, runtime, encoding, audit))
    if encoding is None:
        return capability
    handlers = [replace(each, function=_encoded(each.function, encoding)) for each in capability.handlers]
    return replace(capability, handlers=handlers)


def _encoded(function: Callable[..., Any], encoding: Encoding) -> Callable[..., Any]:
    """A handler that is given what was encoded, and whose answer is encoded."""

    async def call(data: Any, ctx: Context) -> Any:
        for name in PROGRAMS_OWN.intersection(data.__struct_fields__):
            setattr(data, name, encoding.open_value(getattr(data, name)))
        return _sealed(await function(data, ctx), encoding)

    return call


def _sealed(value: Any, encoding: Encoding) -> Any:
    return encoding.seal_members(msgspec.json.decode(msgspec.json.encode(value)), PROGRAMS_OWN)


class _RunMessages:
    def __init__(self, kernel: Kernel, runtime: Runtime, encoding: Encoding | None, audit: Audit | None) -> None:
        self._kernel = kernel
        self._audit = audit
        self._runtime = runtime
        self._encoding = encoding
        self._durable = runtime.durable

    @message("command", "Run.Start", "StartRun", gives="StartedRun.id")
    async def start(
        self,
        ctx: Context,
        program: Annotated[str, about("The name under which the program is registered.")],
        args: Annotated[list[Any], about("Its arguments, in order.")] = [],  # noqa: B006
        id: Annotated[str | None, about("Starting the same id and arguments again gives the same run.")] = None,
    ) -> str:
        """Start a durable run of a registered program."""
        _check_program(ctx, program)
        try:
            begun = self._runtime.start(program, *args, durable=True, id=id)
            await self._durable.written(begun)
        except MainspringError:  # also when it is a TypeError
            raise
        except TypeError as error:  # the arguments are not the program's
            raise Fail(422, str(error)) from None
        cause = ctx.message.metadata  # the run is part of the causation tree under its own id
        self._kernel.note("run", begun.program, begun.id, causation=cause.id, correlation=cause.correlation)
        return begun.id

    @message("command", "Run.Cancel", "CancelRun", gives="CancelledRun.cancelled")
    async def cancel(
        self, ctx: Context, id: RunId, reason: Annotated[Any, about("Kept with the outcome.")] = None
    ) -> NotOver:
        """Cancel a run, wherever it is executed."""
        await self._check(ctx, id)
        return await self._durable.cancel(id, reason)

    @message("command", "Run.Signal", "SignalRun", gives="SignalledRun.signalled")
    async def signal(
        self,
        ctx: Context,
        id: RunId,
        name: Annotated[str, about("What WaitSignal in the program waits for.")],
        value: Annotated[Any, about("What it receives.")] = None,
    ) -> NotOver:
        """Send a value to a run; durable when answered."""
        await self._check(ctx, id)
        return await self._durable.signal(id, name, value)

    @message("query", "Run.Outcome", "AskRunOutcome")
    async def outcome(self, ctx: Context, id: RunId) -> RunState:
        """How a run stands, and how it ended."""
        await self._check(ctx, id)
        state = await _state(self._durable, await self._durable.store.record(id))
        state.progress = msgspec.json.decode(await self._durable.store.progress(id))
        return state

    @message("query", "Run.List", "ListRuns", gives="RunPage.runs")
    async def list_runs(
        self,
        ctx: Context,
        state: OnlyState = None,
        program: OnlyProgram = None,
        prefix: OnlyPrefix = "",
        ids: OnlyIds = None,
        text: OnlyText = "",
        since: OnlySince = None,
        until: OnlyUntil = None,
        roots: OnlyRoots = False,
        after: Annotated[str, about("Go on behind the run of this id: the next page.")] = "",
        limit: Annotated[int, msgspec.Meta(ge=1, le=_PAGE, description="How many at most.")] = _PAGE,
    ) -> list[RunState]:
        """Durable runs, the newest first, at most fifty at a time, without values and tracebacks."""
        wanted = self._filter(
            state=state, program=program, prefix=prefix, ids=ids, text=text, since=since, until=until, roots=roots
        )
        found = await self._durable.listing.newest(wanted, _visible(ctx), after=after, limit=limit)
        return [await _state(self._durable, record, brief=True) for record in found]

    @message("query", "Run.Count", "CountRuns", gives="RunCounts.counts")
    async def count(
        self,
        ctx: Context,
        state: OnlyState = None,
        program: OnlyProgram = None,
        prefix: OnlyPrefix = "",
        ids: OnlyIds = None,
        text: OnlyText = "",
        since: OnlySince = None,
        until: OnlyUntil = None,
        roots: OnlyRoots = False,
    ) -> list[RunCount]:
        """How many durable runs there are, by program and state."""
        wanted = self._filter(
            state=state, program=program, prefix=prefix, ids=ids, text=text, since=since, until=until, roots=roots
        )
        counted = await self._durable.listing.counts(wanted, _visible(ctx))
        return [RunCount(*of, count) for of, count in sorted(counted.items())]

    def _filter(self, **members: Any) -> RunSelection:
        if self._encoding is not None and members["text"]:
            raise Fail(422, "arguments are encoded here: runs cannot be searched for text", remedy="search for an id")
        ids = members.pop("ids")
        return RunSelection(**members, ids=None if ids is None else frozenset(ids))

    @message("query", "Run.History", "AskRunHistory")
    async def history(self, ctx: Context, id: RunId) -> dict[str, Any]:
        """A run and its journal."""
        await self._check(ctx, id)
        found = await self._durable.history(id)
        return {
            "run": found.run,
            "journal": found.journal,
            "progress": found.progress,
            "updates": {str(at): updates for at, updates in found.updates.items()},
        }

    @message("command", "Run.Retry", "RetryRun", gives="StartedRun.id")
    async def retry(self, ctx: Context, id: RunId, keep: KeepMember = "all") -> str:
        """Go on with a run that failed, was cancelled or is blocked, with the program of now."""
        await self._check(ctx, id)
        return (await self._durable.retry(id, keep)).id

    @message("command", "Run.Fail", "FailRun", gives="FailedRun.failed")
    async def fail(self, ctx: Context, id: RunId, why: Annotated[str, about("Kept with the outcome.")] = "") -> NotOver:
        """Let a run fail, wherever it is executed; a blocked one with what blocks it."""
        await self._check(ctx, id)
        return await self._durable.fail(id, why)

    @message("command", "Run.Forget", "ForgetRun", gives="ForgottenRun.count")
    async def forget(self, ctx: Context, id: RunId) -> Annotated[int, about("How many runs: it, and those below it.")]:
        """Remove a finished run and its journal, with the finished runs below it. Its id can be used again."""
        await self._check(ctx, id)
        count = await self._durable.forget(id)
        self._forgot(ctx, f"run {id}")
        return count

    def _forgot(self, ctx: Context, what: str) -> None:
        if self._audit is not None:
            self._audit.did("deleted", caller_of(ctx), what)

    @message("command", "Run.Bulk", "ChangeRuns")
    async def bulk(
        self,
        ctx: Context,
        action: Annotated[
            Literal["retry", "cancel", "fail", "signal", "fork", "forget"], about("What is done to each.")
        ],
        state: OnlyState = None,
        program: OnlyProgram = None,
        prefix: OnlyPrefix = "",
        ids: OnlyIds = None,
        text: OnlyText = "",
        since: OnlySince = None,
        until: OnlyUntil = None,
        after: Annotated[str, about("Only ids greater than this: the next ones.")] = "",
        keep: KeepMember = "all",
        reason: Annotated[Any, about("Kept with the outcome, by cancel and fail.")] = None,
        name: Annotated[str, about("Of the signal.")] = "",
        value: Annotated[Any, about("Of the signal.")] = None,
        at: Annotated[int, msgspec.Meta(ge=0, description="How many answers a forked run begins with.")] = 0,
        endedBefore: Annotated[int | None, about("Only runs that ended before this: epoch ms.")] = None,
    ) -> ChangedRuns:
        """Change all runs that fit; at most fifty at a time, the next ones with `after`.

        Only finished runs are forgotten, whatever else fits. 503 while the node cannot write: some may be changed then.
        """
        if action == "forget" and endedBefore is None:
            endedBefore = _ANY_TIME
        only: dict[str, Any] = {"state": state, "program": program, "prefix": prefix, "ids": ids, "text": text}
        wanted = self._filter(**only, since=since, until=until, ended_before=endedBefore)
        changes: dict[str, Callable[[str], Awaitable[Any]]] = {
            "retry": lambda id: self._durable.retry(id, keep),
            "cancel": lambda id: self._durable.cancel(id, reason),
            "fail": lambda id: self._durable.fail(id, "" if reason is None else str(reason)),
            "signal": lambda id: self._durable.signal(id, name, value),
            "fork": lambda id: self._durable.fork(id, at),
            "forget": self._durable.forget,
        }
        found = await self._durable.listing.page(wanted, after=after, limit=_PAGE)
        changed = ChangedRuns(after=found[-1].id if len(found) == _PAGE else None)
        try:
            for record in found:
                if _may_use(ctx, record.program):
                    await _change_one(record.id, changes[action], changed)
        finally:
            if action == "forget" and changed.count:
                self._forgot(ctx, f"{changed.count} runs")
        return changed

    @message("query", "Run.Query", "QueryRun", gives="RunAnswer.value")
    async def query(
        self,
        ctx: Context,
        id: RunId,
        name: QuestionName,
        args: QuestionArguments = [],  # noqa: B006
    ) -> Any:
        """Ask a live run what its program declared with `perform.query`."""
        await self._check(ctx, id)
        return await self._ask_run(ctx, self._durable.questions.query, id, name, args)

    @message("command", "Run.Update", "UpdateRun", gives="RunAnswer.value")
    async def update(
        self,
        ctx: Context,
        id: RunId,
        name: QuestionName,
        args: QuestionArguments = [],  # noqa: B006
    ) -> Any:
        """Change a live run through what its program declared with `perform.update`; stored when answered."""
        await self._check(ctx, id)
        return await self._ask_run(ctx, self._durable.questions.update, id, name, args)

    @message("query", "Run.Programs", gives="RunPrograms.programs")
    async def programs(self, ctx: Context) -> list[str]:
        """The programs that runs can be started of: those of all living nodes."""
        return [program for program in self._durable.ownership.known_programs() if _may_use(ctx, program)]

    @message("command", "Run.Fork", "ForkRun", gives="StartedRun.id")
    async def fork(
        self,
        ctx: Context,
        id: RunId,
        at: Annotated[int, msgspec.Meta(ge=0, description="How many answers the new run begins with.")],
        newId: Annotated[str | None, about("The id of the new run; one is made otherwise.")] = None,
    ) -> str:
        """Start a new run with the first answers of another."""
        await self._check(ctx, id)
        return (await self._durable.fork(id, at, newId)).id

    async def _ask_run(self, ctx: Context, ask: Question, id: str, name: str, args: list[Any]) -> Any:
        """Ask a run here, or have the node asked that executes it."""
        try:
            return await ask(id, name, args)
        except NotExecuted as error:
            if not error.node or is_passed_on(ctx):
                raise
            return await self._ask_owner(ctx, error.node, {"id": id, "name": name, "args": args})
        except MainspringError:
            raise
        except Exception as error:  # of the program's function: its caller's
            raise Fail(422, f"{type(error).__name__}: {error}") from None

    async def _ask_owner(self, ctx: Context, name: str, data: dict[str, Any]) -> Any:
        node = next((each for each in self._kernel.cluster.nodes() if each.name == name), None)
        if node is None or node.here:  # the run has not come to another node yet
            raise NotExecuted(f"node {name}, which executed run {data['id']}, is gone", remedy="try again in a moment")
        kind, type, timeout_ms = ctx.message.kind, ctx.message.type, ctx.message.metadata.timeout or DEFAULT_TIMEOUT_MS
        if self._encoding is not None:
            data["args"] = [self._encoding.seal_value(each) for each in data["args"]]
        answer = await self._kernel.ask_node(node, kind, type, data, timeout_ms=timeout_ms)
        value = answer.get("value")
        return value if self._encoding is None else self._encoding.open_value(value)

    async def _check(self, ctx: Context, id: str) -> None:
        """Raise Forbidden unless the caller may send this message about the run. Of one that is not there, the same."""
        caller, message = caller_of(ctx), ctx.message
        if caller is None or caller.may_see(message.kind, message.type):
            return
        try:
            program = (await self._durable.store.record(id)).program
        except UnknownRun:
            program = None
        if program is None or not _may_use(ctx, program):
            raise Forbidden("this token may use no run of this id", remedy="use one with a scope for its program")


def _may_use(ctx: Context, program: str) -> bool:
    caller = caller_of(ctx)
    return caller is None or caller.may_use_runs(ctx.message.kind, ctx.message.type, program)


def _visible(ctx: Context) -> Callable[[RunRecord], bool]:
    return lambda record: _may_use(ctx, record.program)


def _check_program(ctx: Context, program: str) -> None:
    if not _may_use(ctx, program):
        remedy = f"use a token with the scope run:{program}"
        raise Forbidden(f"this token may start no runs of {program!r}", remedy=remedy)


def _announce(kernel: Kernel, ended: Run[Any], outcome: Outcome[Any], encoding: Encoding | None) -> None:
    if not ended.is_durable:
        return
    data: dict[str, Any] = {"id": ended.id, "program": ended.program}
    if isinstance(outcome, Failed):
        data["error"] = error_fields(outcome.error)
    elif not isinstance(outcome, Value):
        data["reason"] = reason_json(outcome.reason)
    kernel.emit(_EVENTS[ended.state], data if encoding is None else _sealed(data, encoding), causation=ended.id)


def _announce_blocked(kernel: Kernel, blocked: Run[Any], why: ReplayMismatch) -> None:
    data = {"id": blocked.id, "program": blocked.program, "error": error_fields(why)}
    kernel.emit("Run.Blocked", data, causation=blocked.id)


def _stream_ended(kernel: Kernel, change: Change, encoding: Encoding | None) -> None:
    """Stream the ends of runs that were executed by another node."""
    for ended in ended_runs(change):
        data: dict[str, Any] = {"id": ended.id, "program": ended.program}
        if ended.state == "failed":
            data["error"] = ended.error
        elif ended.state == "cancelled":
            data["reason"] = ended.reason
        kernel.stream(_EVENTS[ended.state], data if encoding is None else _sealed(data, encoding), causation=ended.id)


async def _change_one(id: str, change: Callable[[str], Awaitable[Any]], changed: ChangedRuns) -> None:
    """Raises TakenOver, which speaks against no run: who is told that has to ask again."""
    try:
        done = await change(id)
    except TakenOver:
        raise
    except UnknownRun:  # it was removed with the one that started it
        return
    except RunError as error:
        changed.refused[id] = error.message
    else:
        changed.count += int(done) if isinstance(done, int) else 1


async def _state(durable: DurableRuns, record: RunRecord, *, brief: bool = False) -> RunState:
    waits_for, waits_until = await durable.waits(record)
    return RunState(
        id=record.id,
        program=record.program,
        state=record.state,
        created=record.created,
        updated=record.updated,
        value=None if brief or record.state != "done" else record.value,
        error=record.error,
        traceback="" if brief else record.traceback,
        reason=None if brief or record.state != "cancelled" else record.reason,
        parent=record.parent,
        forkedFrom=record.forked_from,
        retries=record.retries,
        owner=durable.ownership.owner_of(record),
        waitsFor=waits_for or None,
        waitsUntil=waits_until,
    )


# -- what runs need from a node


class KernelPort:
    """`Ask` in a program reaches the capabilities of this kernel."""

    def __init__(self, kernel: Kernel, encoding: Encoding | None = None) -> None:
        self._kernel = kernel
        self._encoding = encoding

    async def ask(self, type: str, data: Any, *, kind: str, timeout_ms: int | None, key: str) -> Any:
        correlation = current_correlation()
        self._kernel.note("effect", "Ask", key, causation=key.rpartition("#")[0], correlation=correlation)
        correlation = correlation or key  # a run that no message started is a conversation of its own
        timeout = None if timeout_ms is None else timeout_ms / 1_000
        asked, encoding = {} if data is None else data, self._encoding
        if encoding is not None:
            asked = encoding.seal_data(type, encode_bytes(asked))
        answer = await self._kernel.ask(kind, type, asked, timeout=timeout, correlation=correlation, causation=key)
        return answer if encoding is None else encoding.open_value(answer)


def _unchanged(text: bytes) -> bytes:
    return text


class BusPort:
    """`Publish` and `WaitEvent` in a program reach the topics of this bus."""

    def __init__(self, bus: Bus, encoding: Encoding | None = None) -> None:
        self._bus = bus
        self._sealed: Callable[[bytes], bytes] = _unchanged if encoding is None else encoding.seal
        self._opened: Callable[[bytes], bytes] = _unchanged if encoding is None else encoding.open

    def prepare(
        self,
        topic: str,
        payload: bytes,
        *,
        key: str | None,
        headers: Mapping[str, str] | None,
        id: str,
        ttl: Duration = 0,
    ) -> Prepared:
        return self._bus.prepare(topic, self._sealed(payload), key=key, headers=headers, id=id, ttl=ttl)

    async def publish(
        self, topic: str, payload: bytes, *, key: str | None, headers: Mapping[str, str] | None, ttl: Duration = 0
    ) -> str:
        published = await self._bus.publish(topic, self._sealed(payload), key=key, headers=headers, ttl=ttl)
        return published.id

    async def position(self, topic: str) -> dict[str, int]:
        await self._bus.ensure_topic(topic)
        return {str(each.partition): each.tail for each in await self._bus.groups.offsets(topic)}

    async def follow(self, topic: str, position: Mapping[str, int]) -> AsyncIterator[Mapping[str, Any]]:
        after = {int(partition): offset for partition, offset in position.items()}
        async for events in self._bus.follow(topic, after=after):
            for event in events:
                payload = self._opened(event.payload)
                yield {
                    "topic": event.topic,
                    "partition": event.partition,
                    "offset": event.offset,
                    "id": event.id,
                    "ts": event.ts,
                    "key": event.key,
                    "payload": json.loads(payload),  # lenient: 1e999 in one event fails no run
                }
