"""The verbs that a client and the node's own process have in common: `Client`, `SyncClient` and `App` have them alike.

Publishing, asking and following is done in two ways, over a connection and without one; all that can be said about runs
is asking. So a program that moves out of its node, or into it, keeps its code.
"""

from __future__ import annotations

import asyncio
import builtins
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypedDict, TypeVar, Unpack, overload

import msgspec

from mainspring.client.errors import BadArgument, TimedOut
from mainspring.client.frames import moment_ms
from mainspring.durations import Duration, duration_ms
from mainspring.errors import Fail
from mainspring.loop import time_limit
from mainspring.message import Retry
from mainspring.retries import Backoff

if TYPE_CHECKING:
    from mainspring.client.publishing import Place
    from mainspring.client.subscription import StoredEvent
    from mainspring.loop import Clock
    from mainspring.runs import Outcome

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
RUN_CHECK_MS: Final = 25  # between the first two looks at a run whose outcome is awaited
LIMIT_S: Final = 30.0  # a question about a run that takes longer is given up
SHORTEST_LOOK_S: Final = 1.0  # at a run whose outcome is awaited, however short the time for it is


@dataclass(frozen=True, slots=True)
class StartedRun(Generic[T_co]):
    """A run that was started here: its id, and the type of the value that its program declares."""

    id: str
    value_type: Any = Any

    def __str__(self) -> str:
        return self.id


class RunInfo(msgspec.Struct, rename="camel", kw_only=True):
    """How a run stands. `state` is running, blocked, done, failed or cancelled."""

    id: str
    program: str
    state: str
    created: int  # epoch ms
    updated: int
    value: Any = None
    error: dict[str, str] | None = None  # type and message: why it failed, or why it is blocked
    traceback: str = ""  # where it failed
    reason: Any = None
    progress: Any = None
    parent: str | None = None
    forked_from: str | None = None
    retries: int = 0
    owner: str | None = None  # the node that executes it, where several share a log
    waits_for: str | None = None  # "signal paid", "sleep", an effect; or "program checkout", which no node has
    waits_until: int | None = None  # until when at most, epoch ms


class RunOptions(TypedDict, total=False):
    """Which runs: those that fit every member given.

    `state` is running, blocked, done, failed or cancelled; `program` a function or its name; `prefix` the beginning of
    the id; `text` part of id, program, error or arguments. `since` and `until` are about when a run was created: a
    moment, or so long ago.
    """

    state: str
    program: Any
    prefix: str
    ids: Sequence[str]
    text: str
    since: datetime | timedelta | int
    until: datetime | timedelta | int


def _which(options: RunOptions, wall_ms: int) -> dict[str, Any]:
    """The same as a message says it."""
    asked: dict[str, Any] = dict(options)
    if not isinstance(program := asked.get("program", ""), str):
        asked["program"] = run_name(program)
    if "ids" in asked:
        asked["ids"] = list(asked["ids"])
    for name in ("since", "until"):
        if name in asked:
            asked[name] = moment_ms(asked[name], wall_ms)
    return asked


class _RunPage(msgspec.Struct):
    runs: list[RunInfo]


class NodeVerbs(ABC):
    """What can be asked of a node."""

    new_id: Callable[[], str]
    clock: Clock
    event_loop: asyncio.AbstractEventLoop | None = None  # on which it works, once it does

    @property
    @abstractmethod
    def run_check(self) -> Duration:
        """The longest time between two looks at a run whose outcome is awaited."""

    @abstractmethod
    async def publish(
        self,
        topic: str,
        payload: Any,
        *,
        key: str | None = None,
        headers: dict[str, str] | None = None,
        id: str | None = None,
        delay: Duration = 0,
        at: datetime | None = None,
        ttl: Duration = 0,
        expect: int | None = None,
        timeout: Duration | None = None,
    ) -> Place:
        """Publish one event; returns when it is durable: its offset. `Client.publish` says what the options mean."""

    @overload
    def follow(
        self,
        topic: str,
        *,
        since: Literal["latest", "beginning"] | datetime | timedelta = "latest",
        type: builtins.type[T],
    ) -> AsyncIterator[StoredEvent[T]]: ...

    @overload
    def follow(
        self, topic: str, *, since: Literal["latest", "beginning"] | datetime | timedelta = "latest", type: Any = None
    ) -> AsyncIterator[StoredEvent[Any]]: ...

    @abstractmethod
    def follow(
        self, topic: str, *, since: Literal["latest", "beginning"] | datetime | timedelta = "latest", type: Any = None
    ) -> AsyncIterator[StoredEvent[Any]]:
        """Events of a topic, or of a pattern, as they are stored, for ever, without a group."""

    @abstractmethod
    async def _ask(
        self,
        kind: str,
        type: str,
        data: Any,
        timeout: Duration | None,
        reply: Any,
        id: str | None = None,
        retry: Retry | None = None,
    ) -> Any:
        """`command` and `query` for the parts of a client."""

    @abstractmethod
    async def insist(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do something that may safely be done twice; while the node is away, again and again."""

    # -- commands and queries of the program

    @overload
    async def command(
        self,
        type: str,
        data: Any = None,
        *,
        id: str | None = None,
        timeout: Duration | None = None,
        retry: Retry | None = None,
        reply: builtins.type[T],
    ) -> T: ...

    @overload
    async def command(
        self,
        type: str,
        data: Any = None,
        *,
        id: str | None = None,
        timeout: Duration | None = None,
        retry: Retry | None = None,
        reply: Any = None,
    ) -> Any: ...

    async def command(
        self,
        type: str,
        data: Any = None,
        *,
        id: str | None = None,
        timeout: Duration | None = None,
        retry: Retry | None = None,
        reply: Any = None,
    ) -> Any:
        """Send a command to whoever serves it; the data of its reply, decoded into the type `reply`.

        Without a `timeout` the node's own counts. Raises `Fail` with code and text of the error:
        the one the handler raised, 500 if it failed, 504 if it took too long, 404 if nobody serves it. CannotConnect
        when the connection broke, in which case the command may have been carried out. A durable command that was
        given an `id` can be sent again then: it is carried out once, and every sender gets the one outcome.

        With `retry` the node sends the command again when it fails with an error that may pass (a crash, a timeout, 429
        or from 500 on): `timeout` counts for each attempt, and the error that is raised is the last. What fails to the
        end is kept as a dead letter (`Syscall.DeadLetters`).
        """
        return await self._ask("command", type, data, timeout, reply, id, retry)

    @overload
    async def query(
        self,
        type: str,
        data: Any = None,
        *,
        timeout: Duration | None = None,
        retry: Retry | None = None,
        reply: builtins.type[T],
    ) -> T: ...

    @overload
    async def query(
        self,
        type: str,
        data: Any = None,
        *,
        timeout: Duration | None = None,
        retry: Retry | None = None,
        reply: Any = None,
    ) -> Any: ...

    async def query(
        self,
        type: str,
        data: Any = None,
        *,
        timeout: Duration | None = None,
        retry: Retry | None = None,
        reply: Any = None,
    ) -> Any:
        """Ask something that changes nothing; otherwise like `command`."""
        return await self._ask("query", type, data, timeout, reply, None, retry)

    # -- durable runs

    @overload
    async def start_run(
        self, program: Callable[..., Coroutine[Any, Any, T]], /, *args: Any, id: str | None = None
    ) -> StartedRun[T]: ...

    @overload
    async def start_run(
        self, program: Callable[..., Generator[Any, Any, T]], /, *args: Any, id: str | None = None
    ) -> StartedRun[T]: ...

    @overload
    async def start_run(self, program: str, /, *args: Any, id: str | None = None) -> StartedRun[Any]: ...

    async def start_run(self, program: Any, /, *args: Any, id: str | None = None) -> StartedRun[Any]:
        """Start a durable run of a declared program, by function or by name; returns when it is stored.

        Starting the same id and arguments again gives the same run, so this is tried again while the node is away.
        Raises Fail: 404 for an unknown program, 409 when the id belongs to another run, 422 when the arguments do not
        fit.
        """
        name = program if isinstance(program, str) else run_name(program)
        asked = {"program": name, "args": list(args), "id": self.new_id() if id is None else id}
        started = await self.insist(lambda: self.command("Run.Start", asked, timeout=LIMIT_S))
        return StartedRun(started["id"], _value_type(program))

    async def signal(self, run: str | StartedRun[Any], name: str, value: Any = None) -> bool:
        """Send a value to a run, for `WaitSignal(name)`; durable when this returns. False when the run is over.

        For a run that has not started, or is blocked, it is kept.
        """
        answer = await self.command("Run.Signal", {"id": str(run), "name": name, "value": value}, timeout=LIMIT_S)
        return bool(answer["signalled"])

    async def cancel(self, run: str | StartedRun[Any], reason: Any = None) -> bool:
        """Cancel a run. False when it is over."""
        asked = {"id": str(run), "reason": reason}
        return bool((await self.command("Run.Cancel", asked, timeout=LIMIT_S))["cancelled"])

    @overload
    async def outcome(
        self, run: str, program: Callable[..., Coroutine[Any, Any, T]], /, *, timeout: Duration | None = None
    ) -> Outcome[T]: ...

    @overload
    async def outcome(self, run: StartedRun[T], /, *, timeout: Duration | None = None) -> Outcome[T]: ...

    @overload
    async def outcome(self, run: str, /, *, timeout: Duration | None = None) -> Outcome[Any]: ...

    async def outcome(
        self, run: str | StartedRun[Any], program: Any = None, /, *, timeout: Duration | None = None
    ) -> Outcome[Any]:
        """Wait until a run is over: `Value`, `Failed` or `Cancelled`. Without a `timeout` there is no end to it.

        The value has the type that the program declares, if the run was started here or `program` is given. Raises
        TimedOut, and Fail with 404 when there is no such run.
        """
        type = run.value_type if isinstance(run, StartedRun) else _value_type(program)
        pauses = Backoff(RUN_CHECK_MS, max(1, duration_ms(self.run_check))).series()
        ends_ms = None if timeout is None else self.clock.now_ms() + duration_ms(timeout)
        while True:
            await self._while_in_work_here(str(run), ends_ms)
            info = await self._look_at(str(run), ends_ms)
            if info is not None and (found := _outcome(info, type)) is not None:
                return found
            pause_ms, now_ms = pauses.failed(), self.clock.now_ms()
            if ends_ms is not None and now_ms >= ends_ms:
                raise _still_waiting(str(run), info)
            await asyncio.sleep((pause_ms if ends_ms is None else min(pause_ms, ends_ms - now_ms)) / 1000)

    async def _look_at(self, run: str, ends_ms: int | None) -> RunInfo | None:
        """How a run stands; None when the node did not say so in time, or cannot read its log now."""
        left_s = None if ends_ms is None else max((ends_ms - self.clock.now_ms()) / 1000, SHORTEST_LOOK_S)
        try:
            async with time_limit(left_s):
                return await self.insist(lambda: self.run_info(run))
        except TimeoutError:
            return None
        except Fail as error:
            if error.code not in (503, 504):
                raise
            return None

    async def _while_in_work_here(self, run: str, ends_ms: int | None) -> None:  # noqa: B027 (a client is elsewhere)
        """Where the run is executed by this process, wait for its end, instead of asking again and again."""

    async def run_info(self, run: str | StartedRun[Any]) -> RunInfo:
        """How a run stands now. Raises Fail with 404 when there is no such run."""
        found: RunInfo = await self.query("Run.Outcome", {"id": str(run)}, timeout=LIMIT_S, reply=RunInfo)
        return found

    async def runs(self, **which: Unpack[RunOptions]) -> AsyncIterator[RunInfo]:
        """Durable runs, the newest first, without values and tracebacks."""
        asked: dict[str, Any] = {**_which(which, self.clock.wall_ms()), "after": ""}
        while page := (await self.query("Run.List", asked, timeout=LIMIT_S, reply=_RunPage)).runs:
            for info in page:
                yield info
            asked["after"] = page[-1].id

    async def count_runs(self, **which: Unpack[RunOptions]) -> dict[str, int]:
        """How many durable runs there are in each state."""
        counts: dict[str, int] = {}
        for each in (await self.query("Run.Count", _which(which, self.clock.wall_ms()), timeout=LIMIT_S))["counts"]:
            counts[each["state"]] = counts.get(each["state"], 0) + each["count"]
        return counts

    async def query_run(self, run: str | StartedRun[Any], query: str, /, *args: Any, reply: Any = None) -> Any:
        """Ask a live run what its program declared with `perform.query`; decoded into the type `reply`.

        Raises Fail: 404 when there is no such run or query, 409 when the run is over or blocked.
        """
        asked = {"id": str(run), "name": query, "args": list(args)}
        value = (await self.query("Run.Query", asked, timeout=LIMIT_S))["value"]
        return value if reply is None else msgspec.convert(value, reply)

    async def update_run(self, run: str | StartedRun[Any], update: str, /, *args: Any, reply: Any = None) -> Any:
        """Change a live run through what its program declared with `perform.update`; what that gives, once stored.

        Raises Fail like `query_run`, and with 422 what the program's function raised.
        """
        asked = {"id": str(run), "name": update, "args": list(args)}
        value = (await self.command("Run.Update", asked, timeout=LIMIT_S))["value"]
        return value if reply is None else msgspec.convert(value, reply)

    async def change_runs(
        self,
        action: Literal["retry", "cancel", "fail", "signal", "fork"],
        *,
        keep: Literal["all", "fitting", "nothing"] = "all",
        reason: Any = None,
        name: str = "",
        value: Any = None,
        at: int = 0,
        **which: Unpack[RunOptions],
    ) -> dict[str, str]:
        """Retry, cancel, fail, signal or fork all runs that fit; why some could not be changed, by id.

        `keep` says how much of its journal a run that is retried keeps: all, what fits the program, or nothing.
        `reason` is of cancel and fail, `name` and `value` are of a signal, `at` is how many answers a forked run
        begins with.
        """
        if not which:
            raise BadArgument("say which runs", remedy="give state=, program=, ids=, prefix=, text=, since= or until=")
        asked = {"action": action, "keep": keep, "reason": reason, "name": name, "value": value, "at": at}
        asked |= _which(which, self.clock.wall_ms())
        refused: dict[str, str] = {}
        after: str | None = ""
        while after is not None:
            changed = await self.command("Run.Bulk", {**asked, "after": after}, timeout=LIMIT_S)
            refused |= changed["refused"]
            after = changed["after"]
        return refused

    async def retry_run(
        self, run: str | StartedRun[Any], *, keep: Literal["all", "fitting", "nothing"] = "all"
    ) -> None:
        """Go on with a run that failed, was cancelled or is blocked, with the program of now; see `change_runs`."""
        await self.command("Run.Retry", {"id": str(run), "keep": keep}, timeout=LIMIT_S)

    async def forget_run(self, run: str | StartedRun[Any]) -> int:
        """Remove a finished run and its journal, with the finished runs below it; how many. Its id can be used again.

        Raises Fail: 404 when there is no such run, 409 when it is not over.
        """
        return int((await self.command("Run.Forget", {"id": str(run)}, timeout=LIMIT_S))["count"])

    async def forget_runs(
        self,
        *,
        state: str | None = None,
        program: Any = None,
        prefix: str = "",
        before: datetime | timedelta | int | None = None,
    ) -> int:
        """Remove the finished runs that fit, and their journals; how many.

        In one state, of one program, whose ids start with `prefix`, that ended `before` a moment or so long ago. Runs
        of a run that is not over stay.
        """
        name = program if program is None or isinstance(program, str) else run_name(program)
        ended = None if before is None else moment_ms(before, self.clock.wall_ms())
        asked = {"action": "forget", "state": state, "program": name, "prefix": prefix, "endedBefore": ended}
        count = 0
        after: str | None = ""
        while after is not None:
            changed = await self.command("Run.Bulk", {**asked, "after": after}, timeout=LIMIT_S)
            count += changed["count"]
            after = changed["after"]
        return count


def run_name(program: Any) -> str:
    """The name under which a declared program is known."""
    return getattr(program, "__run_name__", None) or str(program.__name__)


def _value_type(program: Any) -> Any:
    from mainspring.runs import return_type  # who starts no runs need not pay for it

    return Any if program is None or isinstance(program, str) else return_type(program)


def _still_waiting(run: str, info: RunInfo | None) -> TimedOut:
    if info is None:
        return TimedOut(f"the node did not say in time how run {run} stands", remedy="is it running? ask again")
    why = f": {info.error['message']}" if info.error else ""
    return TimedOut(f"run {run} is still {info.state}{why}", remedy="ask again with a longer timeout")


def _outcome(info: RunInfo, type: Any) -> Outcome[Any] | None:
    from mainspring.runs import Cancelled, Failed, StoredFailure, Value

    if info.state == "done":
        try:
            return Value(msgspec.convert(info.value, type))
        except msgspec.ValidationError:  # from a former version of the program
            return Value(info.value)
    if info.state == "failed":
        error = info.error or {}
        return Failed(StoredFailure(error.get("type", "?"), error.get("message", ""), error.get("code", "")))
    return Cancelled(info.reason) if info.state == "cancelled" else None
