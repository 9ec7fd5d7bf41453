"""The tasks of programs as the bus sees them, and their calls: what waits, what runs, what became of it.

A task is a topic (`mainspring.task_topics`), a call is an event in it. Whether that waits or is with a worker is what
its group says; what became of it is in the results topic of its app, and of one that failed there is a dead letter.
Nothing is kept for this: it is read when somebody asks, the newest first. Of results and cancellations the newest
`KEPT` of an app are remembered from one question to the next, so that only what is new is read.

Retrying a call that failed sends its dead letter back, discarding drops it, cancelling says so in the control topic.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple, get_args

import msgspec

from mainspring.bus.access.access import Access, Caller, Who
from mainspring.bus.audit import Audit
from mainspring.bus.errors import BadFrame, BusError, Conflict, Forbidden, Unavailable, UnknownCall, UnknownTask
from mainspring.bus.groups.dead_letters import DeadLetterQueue, read_letter
from mainspring.bus.groups.group import MAX_OPEN, LeaseView
from mainspring.bus.groups.registry import GroupRegistry
from mainspring.bus.names import DEAD_LETTERS
from mainspring.bus.results import DeadLetter, DeadLetterFilter, NewEvent
from mainspring.bus.schedules.schedules import DelayedEvent, Schedules
from mainspring.bus.topics.follow import read_on, sound
from mainspring.bus.topics.registry import TopicRegistry
from mainspring.bus.topics.topic import Topic
from mainspring.log import Log, StoredEvent
from mainspring.loop import Clock
from mainspring.task_topics import NAME, RESERVED, RESULTS_KEPT_MS, TASK_ID, TaskTopics
from mainspring.telemetry import KeptError

if TYPE_CHECKING:
    from mainspring.bus.bus import Bus

CallState = Literal["waiting", "delayed", "running", "retrying", "done", "failed", "discarded", "cancelled", "expired"]
OPEN: Final = frozenset({"waiting", "delayed", "running", "retrying"})
KEPT: Final = 10_000  # results of an app that are remembered
SHORT: Final = 1_000  # bytes of a result that are remembered with it; a longer one is read when somebody looks at it
WALKED: Final = 5_000  # calls that one question looks at
PAGE: Final = 100
MOST_DELAYED: Final = 10_000  # delayed events that one question looks at
APPS: Final = "tasks."  # what the topics of tasks begin with, unless a program says otherwise
MOST_CALLS: Final = 500

Place = tuple[str, int, int]  # topic, partition, offset

_decode_headers = msgspec.json.Decoder(dict[str, str]).decode


class TaskDuration(msgspec.Struct, frozen=True, rename="camel"):
    """How long calls of a task took that are done and whose results are kept."""

    mean_ms: float
    longest_ms: int


class TaskInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A task and how many calls of it there are.

    `waiting`, `delayed`, `running` (with a worker) and `retrying` calls are open. `failed` are dead letters; `done`,
    `discarded`, `cancelled` and `expired` count among the results that are kept. `workers` take calls of it now.
    `duration` is left out while none is done.
    """

    task: str
    topic: str
    group: str
    workers: int = 0
    waiting: int = 0
    delayed: int = 0
    running: int = 0
    retrying: int = 0
    done: int = 0
    failed: int = 0
    discarded: int = 0
    cancelled: int = 0
    expired: int = 0
    duration: TaskDuration | msgspec.UnsetType = msgspec.UNSET


class TaskCall(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One call of a task. `created` is when it was enqueued, `updated` when something became of it, both epoch ms.

    `nextMs` is when one that is delayed or retried is due, `durationMs` how long its last attempt took. `value` is what
    it returned, `progress` what it reported, `error` why it failed last; `failure` is the error with its traceback,
    where one call is asked for. `letter` is the offset of its dead letter.
    """

    id: str
    task: str
    state: CallState
    topic: str
    partition: int
    offset: int
    created: int
    updated: int = 0
    next_ms: int = 0
    duration_ms: int | msgspec.UnsetType = msgspec.UNSET
    attempts: int = 0
    args: list[msgspec.Raw] = []
    kwargs: dict[str, msgspec.Raw] = {}
    key: str | None = None
    value: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    progress: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    error: str = ""
    failure: KeptError | None = None
    letter: int = 0


class TaskCallPage(msgspec.Struct, frozen=True, omit_defaults=True):
    """Calls of one task, newest first. `next` is the cursor to go on with; it is left out behind the last one."""

    calls: list[TaskCall]
    next: str = ""


class CallFilter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which calls of a task: those with these `ids`, and only those that every other member given fits; or `all`.

    `error` is text that the error contains; `before` is epoch ms; `limit` is how many at most.
    """

    ids: Annotated[list[str], msgspec.Meta(min_length=1)] | None = None
    error: str | None = None
    before: Annotated[int, msgspec.Meta(ge=0, le=2**53)] | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=2**53)] | None = None
    all: bool = False

    def check(self) -> None:
        """Raises BadFrame where nothing is chosen."""
        if self == CallFilter():
            raise BadFrame("which calls?", remedy="give ids or a filter, or all: true for all of the task")

    def chooser(self) -> Callable[[TaskCall], bool]:
        """Says of each call whether it is what the members other than `limit` ask for."""
        ids = None if self.ids is None else frozenset(self.ids)  # a client may name many

        def fits(call: TaskCall) -> bool:
            return (
                (ids is None or call.id in ids)
                and (self.error is None or self.error in call.error)
                and (self.before is None or call.created < self.before)
            )

        return fits


class ChangedCalls(msgspec.Struct, frozen=True):
    """How many calls of a task were changed, and why others were not, by id."""

    task: str
    count: int
    refused: dict[str, str]


class _Task(NamedTuple):
    name: str  # as it is shown: shop.send
    own: str  # as calls in shared topics say it; "": all of them are its calls
    topics: TaskTopics
    shows_results: bool = True  # whether who asks may read the results topic


class _Report(msgspec.Struct, frozen=True):
    """A record of a results topic, as far as it is of interest here."""

    state: str
    name: str = ""
    attempt: int = 1
    value: msgspec.Raw = msgspec.Raw(b"null")
    error: str = ""
    failure: KeptError | None = None
    duration_ms: int | None = None


class _Result(msgspec.Struct, gc=False):
    """What is remembered of a call: its newest record, and where that is."""

    state: str
    name: str
    attempt: int
    error: str
    ts: int
    partition: int
    offset: int
    value: bytes | None
    duration_ms: int | None


class _Call(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    args: list[msgspec.Raw] = []
    kwargs: dict[str, msgspec.Raw] = {}


_ENDED: Final[dict[str, CallState]] = {"failed": "discarded", "cancelled": "cancelled", "expired": "expired"}

_decode_report = msgspec.json.Decoder(_Report).decode
_decode_call = msgspec.json.Decoder(_Call).decode


class TaskCalls:
    """Lists tasks and their calls; retries, cancels and discards calls."""

    def __init__(
        self,
        bus: Bus,
        log: Log,
        clock: Clock,
        topics: TopicRegistry,
        groups: GroupRegistry,
        letters: DeadLetterQueue,
        schedules: Schedules,
        access: Access,
        audit: Audit,
    ) -> None:
        self._bus = bus
        self._log = log
        self._clock = clock
        self._topics = topics
        self._groups = groups
        self._letters = letters
        self._schedules = schedules
        self._access = access
        self._audit = audit
        self._results: dict[str, _Results] = {}
        self._cancelled: dict[str, _Cancelled] = {}

    # -- tasks

    def _all(self) -> list[_Task]:
        """By name. An app has tasks where there are topics for their results and for their cancellation."""
        names = {topic.name for topic in self._topics.all() if topic.exists}
        apps = {
            name.removesuffix(".results")
            for name in names
            if name.endswith(".results") and f"{name.removesuffix('.results')}.control" in names
        }
        found: list[_Task] = []
        for name in sorted(names):
            if name in apps:
                found.append(_Task(name, "", TaskTopics(name, name)))
            elif name.startswith(APPS) and not name.endswith(DEAD_LETTERS):
                app = _longest_app(name, apps)
                own = name[len(app) + 1 :]
                if app and own not in RESERVED:
                    found.append(_Task(name.removeprefix(APPS), own, TaskTopics(name, app)))
        return found

    async def _get(self, name: str, who: Who) -> _Task:
        """By its name, or by the last part of it where that is clear. Raises UnknownTask.

        A limited token is told the same of one that is not there as of one that it may not see.
        """
        tasks = self._all()
        fitting = [each for each in tasks if each.name == name] or [each for each in tasks if each.own == name]
        visible = await self._access.visible(who, {each.topics.normal for each in fitting})
        fitting = [each for each in fitting if each.topics.normal in visible]
        if len(fitting) == 1:
            return fitting[0]
        if isinstance(who, Caller) and who.is_limited:
            raise Forbidden(f"this token may use no task {name!r}", remedy="use one with a scope for its topic")
        several = ", ".join(each.name for each in fitting)
        raise UnknownTask(
            f"{name!r} may be {several}" if several else f"there is no task {name!r}",
            remedy="`mainspring tasks list` shows the tasks there are",
        )

    def topics(self) -> set[str]:
        """The topics that hold calls."""
        return {lane for each in self._all() for lane in each.topics.lanes()}

    async def tasks(self, who: Who = None) -> list[TaskInfo]:
        """Every task whose topic `who` may read, by name."""
        tasks = self._all()
        readable = await self._access.allowed(who, "subscribe", {each.topics.normal for each in tasks})
        tasks = [each for each in tasks if each.topics.normal in readable]
        delayed = await self._schedules.delayed({lane for each in tasks for lane in each.topics.lanes()}, MOST_DELAYED)
        waits = Counter((each.topic, _name_in(each.headers)) for each in delayed)
        shared = {lane for each in tasks for lane in each.topics.lanes() if lane != each.topics.normal}
        in_shared = {lane: await self._count_shared(lane) for lane in shared if self._topics.find(lane) is not None}
        return [await self._info(each, waits, in_shared) for each in tasks]

    async def _info(
        self,
        task: _Task,
        delayed: Counter[tuple[str, str]],
        in_shared: Mapping[str, Counter[tuple[str, str]]],
    ) -> TaskInfo:
        topic = self._topics.get(task.topics.normal)
        counts: Counter[str] = await self._count_open(topic)
        counts["failed"] = await self._letters.count(topic.name)
        counts["delayed"] = sum(count for (lane, name), count in delayed.items() if _is_of(task, lane, name))
        for lane in task.topics.lanes():
            for (state, name), count in in_shared.get(lane, Counter()).items():
                if _is_of(task, lane, name):
                    counts[state] += count
        results = await self._records(task)
        for (state, name), count in results.counted().items():
            state = "discarded" if state == "failed" else state
            if state in ("done", "discarded", "cancelled", "expired") and (not task.own or name == task.own):
                counts[state] += count
        counts["discarded"] = max(0, counts["discarded"] - counts["failed"])  # those are among the results, too
        members = [self._groups.info(group) for group in topic.groups.values()]
        return TaskInfo(
            task=task.name,
            topic=topic.name,
            group=", ".join(sorted(topic.groups)),
            workers=sum(each.members for each in members),
            duration=results.duration(task.own),
            **{state: counts[state] for state in get_args(CallState)},
        )

    async def _count_open(self, topic: Topic) -> Counter[str]:
        """The open calls of a topic by their states, without reading them."""
        place = await self._standing(topic)
        counts: Counter[str] = Counter(_open_state(lease) for lease in place.open.values())
        counts["waiting"] += sum(max(0, tail.offset + 1 - place.begin(tail.partition)) for tail in topic.tails)
        return counts

    async def _count_shared(self, lane: str) -> Counter[tuple[str, str]]:
        """The open and failed calls of a topic that several tasks share, by state and name, as far as one looks."""
        counts: Counter[tuple[str, str]] = Counter()
        topic = self._topics.get(lane)
        place = await self._standing(topic)
        if any((await self._count_open(topic)).values()):
            walked = 0
            async for event in self._newest([lane]):
                state = place.state(event)
                if state is not None:
                    counts[state, _name_of(event)] += 1
                walked += 1
                if walked == WALKED:
                    break
        if await self._letters.count(lane):
            async for letter in self._letters.matching(lane, DeadLetterFilter(limit=WALKED)):
                counts["failed", letter.headers.get(NAME, "")] += 1
        return counts

    async def _standing(self, topic: Topic) -> _Standing:
        await self._topics.load(topic)
        return _Standing(topic, self._clock)

    # -- calls

    async def calls(
        self, name: str, *, state: CallState | None = None, limit: int = PAGE, cursor: str = "", who: Who = None
    ) -> TaskCallPage:
        """Calls of a task, newest first, all or those in one state. Raises UnknownTask, Forbidden, BadFrame.

        One question looks at so many calls (`WALKED`); a page may be short, or empty, and there may still be more.
        """
        task, lanes = await self._readable(name, who)
        before = _read_cursor(cursor)
        if state in ("delayed", "running", "retrying"):  # few, and maybe far behind others that wait
            few = self._delayed if state == "delayed" else self._held
            calls = [] if before else [each for each in await few(task, lanes) if each.state == state]
            return TaskCallPage(calls[:limit])
        over = state in ("done", "discarded", "cancelled", "expired")
        source = (
            self._failed(task, lanes, before) if state == "failed" else self._stored(task, lanes, before, over=over)
        )
        found: list[TaskCall] = [] if state or before else (await self._delayed(task, lanes))[:limit]
        walked, last = 0, None
        async for key, call in source:
            if len(found) >= limit or walked == WALKED:
                return TaskCallPage(found, _write_cursor(last) if last else "")
            walked, last = walked + 1, key
            if call is not None and (state is None or call.state == state):
                found.append(msgspec.structs.replace(call, failure=None))
        return TaskCallPage(found)

    async def call(self, name: str, id: str, *, who: Who = None) -> TaskCall:
        """One call, with the whole of its result. Raises UnknownTask, UnknownCall and Forbidden."""
        task, lanes = await self._readable(name, who)
        found = await self._find(task, lanes, id)
        result = (await self._records(task)).get(id)
        if result is None or not task.shows_results or found.state in ("waiting", "delayed", "failed"):
            return found
        events = sound(await read_on(self._log, task.topics.results, result.partition, result.offset, 1))
        if not events or events[0].offset != result.offset:
            return found
        report = _decode_report(events[0].payload)
        changes: dict[str, Any] = {"value": report.value} if found.state == "done" else {"failure": report.failure}
        return msgspec.structs.replace(found, **changes)

    async def _find(self, task: _Task, lanes: Collection[str], id: str) -> TaskCall:
        for call in [*await self._delayed(task, lanes), *await self._held(task, lanes)]:
            if call.id == id:
                return call
        async for _, failed in self._failed(task, lanes, None):
            if failed is not None and failed.id == id:
                return failed
        walked = 0
        async for _, call_or_none in self._stored(task, lanes, None):
            if call_or_none is not None and call_or_none.id == id:
                return call_or_none
            walked += 1
            if walked == KEPT:
                break
        raise UnknownCall(f"task {task.name!r} has no call {id!r} that is still kept", remedy="look at the newest ones")

    async def _readable(self, name: str, who: Who) -> tuple[_Task, list[str]]:
        """The task, and those of its topics that `who` may read, dead letters included."""
        task = await self._get(name, who)
        await self._access.check_letters(task.topics.normal, who)
        lanes = [lane for lane in task.topics.lanes() if self._topics.find(lane) is not None]
        asked = [task.topics.results, *lanes, *(lane + DEAD_LETTERS for lane in lanes)]
        allowed = await self._access.allowed(who, "subscribe", asked)
        readable = [lane for lane in lanes if lane in allowed and lane + DEAD_LETTERS in allowed]
        return _Task(task.name, task.own, task.topics, task.topics.results in allowed), readable

    async def _records(self, task: _Task) -> _Results:
        topic = task.topics.results
        results = self._results.setdefault(topic, _Results(self._log, topic))
        kept_ms = self._topics.config_of(topic).retention_ms or RESULTS_KEPT_MS
        await results.catch_up(self._clock.wall_ms() - kept_ms)
        return results

    async def _cancellations(self, task: _Task) -> _Cancelled:
        topic = task.topics.control
        cancelled = self._cancelled.setdefault(topic, _Cancelled(self._log, topic))
        await cancelled.catch_up()
        return cancelled

    async def _delayed(self, task: _Task, lanes: Collection[str]) -> list[TaskCall]:
        cancelled = await self._cancellations(task)
        found = await self._schedules.delayed(lanes, MOST_DELAYED)
        return [
            _delayed_call(task, each, each.id in cancelled.ids)
            for each in reversed(found)
            if _is_of(task, each.topic, _name_in(each.headers))
        ]

    async def _held(self, task: _Task, lanes: Collection[str]) -> list[TaskCall]:
        """What workers were given and have not settled, newest first."""
        results, cancelled = await self._records(task), await self._cancellations(task)
        found: list[TaskCall] = []
        for lane in lanes:
            standing = await self._standing(self._topics.get(lane))
            for partition, offset in sorted(standing.open, reverse=True)[:MOST_CALLS]:
                events = sound(await read_on(self._log, lane, partition, offset, 1))
                if events and events[0].offset == offset and _is_of(task, lane, _name_of(events[0])):
                    found.append(_call_of(task, events[0], standing, None, results, cancelled))
        return sorted(found, key=lambda call: call.created, reverse=True)

    async def _stored(
        self, task: _Task, lanes: Collection[str], before: tuple[int, Place] | None, *, over: bool = False
    ) -> AsyncIterator[tuple[tuple[int, Place], TaskCall | None]]:
        """Where each event of the lanes is, newest first, and the call that it is, if it is one of this task.

        `over`: without those behind which nobody was given anything yet.
        """
        results, cancelled = await self._records(task), await self._cancellations(task)
        standing = {lane: await self._standing(self._topics.get(lane)) for lane in lanes}
        letters: dict[str, dict[tuple[int, int], DeadLetter]] = {}
        async for event in self._newest(lanes, before, standing if over else None):
            key = (event.ts, (event.topic, event.partition, event.offset))
            if not _is_of(task, event.topic, _name_of(event)):
                yield key, None
                continue
            state = standing[event.topic].state(event)
            letter = None
            if state is None:
                if event.topic not in letters:
                    letters[event.topic] = await self._letters_of(event.topic)
                letter = letters[event.topic].get((event.partition, event.offset))
            yield key, _call_of(task, event, standing[event.topic], letter, results, cancelled)

    async def _letters_of(self, topic: str) -> dict[tuple[int, int], DeadLetter]:
        found: dict[tuple[int, int], DeadLetter] = {}
        async for event in self._newest([topic + DEAD_LETTERS]):
            letter = read_letter(event)
            found[letter.original_partition, letter.original_offset] = letter
            if len(found) == WALKED:
                break
        return found

    async def _failed(
        self, task: _Task, lanes: Collection[str], before: tuple[int, Place] | None
    ) -> AsyncIterator[tuple[tuple[int, Place], TaskCall | None]]:
        """The same for the dead letters of the lanes."""
        results = await self._records(task)
        async for event in self._newest([lane + DEAD_LETTERS for lane in lanes], before):
            letter = read_letter(event)
            key = (event.ts, (event.topic, event.partition, event.offset))
            lane = event.topic.removesuffix(DEAD_LETTERS)
            mine = _is_of(task, lane, letter.headers.get(NAME, ""))
            yield key, _failed_call(task, letter, results) if mine else None

    async def _newest(
        self,
        topics: Iterable[str],
        before: tuple[int, Place] | None = None,
        given: Mapping[str, _Standing] | None = None,
    ) -> AsyncIterator[StoredEvent]:
        """The events of all these topics, newest first: those before a place, and only what groups were `given`."""
        readers: list[_Backwards] = []
        for topic in topics:
            for bounds in await self._log.bounds(topic):
                tail = bounds.tail if given is None else min(bounds.tail, given[topic].begin(bounds.partition) - 1)
                readers.append(_Backwards(self._log, topic, bounds.partition, bounds.head, tail))
        if before is not None:
            for reader in readers:
                await reader.skip(before[0])
        heads = {reader: await reader.next() for reader in readers}
        while left := {reader: event for reader, event in heads.items() if event is not None}:
            reader = max(left, key=lambda each: _order(left[each]))
            if before is None or _order(left[reader]) < before:
                yield left[reader]
            heads[reader] = await reader.next()

    # -- changing calls

    async def check_change(self, name: str, who: Who, *, to_cancel: bool = False) -> None:
        """Raise Forbidden unless `who` may retry and discard calls of this task, or cancel them; UnknownTask too."""
        await self._changeable(name, who, to_cancel=to_cancel)

    async def _changeable(self, name: str, who: Who, *, to_cancel: bool = False) -> tuple[_Task, list[str]]:
        task, lanes = await self._readable(name, who)
        await self._access.check(task.topics.control if to_cancel else task.topics.normal, "publish", who)
        return task, lanes

    async def retry(self, name: str, wanted: CallFilter, *, who: Who = None) -> ChangedCalls:
        """Have calls that failed done again, with all their attempts: each goes back to the group that gave up.

        Raises Unavailable while the log cannot be written; some of several may have gone back then.
        """

        async def send(topic: str, offsets: list[int]) -> None:
            await self._letters.redrive(topic, DeadLetterFilter(offsets=offsets))

        changed = await self._change_failed(name, wanted, who, send)
        self._audit.did("changed", who, f"{changed.count} failed calls of task {changed.task} sent back")
        return changed

    async def discard(self, name: str, wanted: CallFilter, *, who: Who = None) -> ChangedCalls:
        """Drop the dead letters of calls that failed: nobody will do them.

        Raises Unavailable while the log cannot be written; some of several may be gone then.
        """

        async def drop(topic: str, offsets: list[int]) -> None:
            await self._letters.drop(topic, DeadLetterFilter(offsets=offsets))

        changed = await self._change_failed(name, wanted, who, drop)
        self._audit.did("deleted", who, f"{changed.count} failed calls of task {changed.task}")
        return changed

    async def _change_failed(
        self, name: str, wanted: CallFilter, who: Who, change: Callable[[str, list[int]], Awaitable[None]]
    ) -> ChangedCalls:
        task, lanes = await self._changeable(name, who)
        wanted.check()
        fits, left = wanted.chooser(), wanted.limit
        chosen: dict[str, dict[int, str]] = {}
        async for _, call in self._failed(task, lanes, None):
            if call is not None and fits(call):
                chosen.setdefault(call.topic, {})[call.letter] = call.id
                left = None if left is None else left - 1
                if left == 0:
                    break
        for topic in chosen:
            await self._access.check(topic, "publish", who)  # that they may be read is known
        refused = dict.fromkeys(wanted.ids or (), "it is not among the calls that failed")
        count = 0
        for topic, letters in chosen.items():
            for id in letters.values():
                refused.pop(id, None)
            changed, others = await _change_letters(topic, letters, change)
            count += changed
            refused |= others
        if wanted.ids is not None and len(wanted.ids) == 1 and not chosen:
            raise await self._why_not(task, lanes, wanted.ids[0])
        return ChangedCalls(task.name, count, refused)

    async def _why_not(self, task: _Task, lanes: Collection[str], id: str) -> BusError:
        """Why one call that somebody named cannot be changed."""
        call = await self._find(task, lanes, id)  # raises UnknownCall
        open_ = "cancel it, or wait" if call.state in OPEN else "enqueue it anew to have it done again"
        return Conflict(f"call {id!r} of {task.name!r} is {call.state}; it has not failed", remedy=open_)

    async def cancel(self, name: str, wanted: CallFilter, *, reason: str = "", who: Who = None) -> ChangedCalls:
        """Have calls that are open never begin, or interrupt them where they run; durable when it returns."""
        task, lanes = await self._changeable(name, who, to_cancel=True)
        wanted.check()
        fits = wanted.chooser()
        refused = dict.fromkeys(wanted.ids or (), "it is not among the calls that are still open")
        chosen: list[str] = []
        async for call in self._open_calls(task, lanes):
            if fits(call):
                chosen.append(call.id)
                refused.pop(call.id, None)
                if len(chosen) == wanted.limit or (wanted.ids is not None and not refused):
                    break
        if wanted.ids is not None and len(wanted.ids) == 1 and not chosen:
            found = await self._find(task, lanes, wanted.ids[0])  # raises UnknownCall
            remedy = "discard it, or retry it" if found.state == "failed" else "nothing is left to be cancelled"
            raise Conflict(f"call {found.id!r} of {task.name!r} is {found.state} already", remedy=remedy)
        for start in range(0, len(chosen), MOST_CALLS):
            events = [
                NewEvent(msgspec.json.encode({"cancel": id, "reason": reason}), id)
                for id in chosen[start : start + MOST_CALLS]
            ]
            await self._bus.publish_batch(task.topics.control, events, agent=who)
        if chosen:
            self._audit.did("changed", who, f"{len(chosen)} calls of task {task.name} cancelled", reason=reason)
        return ChangedCalls(task.name, len(chosen), refused)

    async def _open_calls(self, task: _Task, lanes: Collection[str]) -> AsyncIterator[TaskCall]:
        for delayed in await self._delayed(task, lanes):
            if delayed.state in OPEN:
                yield delayed
        first = {lane: (await self._standing(self._topics.get(lane))).first() for lane in lanes}
        async for (_, (topic, partition, offset)), call in self._stored(task, lanes, None):
            if call is not None and call.state in OPEN:
                yield call
            place = first[topic].get(partition)
            if place is not None and offset <= place:
                first[topic].pop(partition)
                if not any(first.values()):
                    return  # everything older is settled


async def _change_letters(
    topic: str, letters: Mapping[int, str], change: Callable[[str, list[int]], Awaitable[None]]
) -> tuple[int, dict[str, str]]:
    """All at once, or one by one where something speaks against one of them: how many, and why others not.

    Raises Unavailable, which speaks against none of them: who is told that has to ask again.
    """
    try:
        await change(topic, sorted(letters))
        return len(letters), {}
    except Unavailable:
        raise
    except BusError as error:
        if len(letters) == 1:
            return 0, dict.fromkeys(letters.values(), error.message)
    count = 0
    refused: dict[str, str] = {}
    for offset, id in sorted(letters.items()):
        one, others = await _change_letters(topic, {offset: id}, change)
        count += one
        refused |= others
    return count, refused


class _Standing:
    """Where the groups of a topic stand: what is open of it, and what nobody has been given yet."""

    def __init__(self, topic: Topic, clock: Clock) -> None:
        self.open: dict[tuple[int, int], LeaseView] = {}
        self._begin: dict[int, int] = {}  # by partition: nothing from here on was given to anybody
        for group in topic.groups.values():
            for lease in group.leases(clock, MAX_OPEN):
                self.open[lease.partition, lease.offset] = lease
            for partition, position in group.positions.items():
                self._begin[partition] = min(position.cursor, self._begin.get(partition, position.cursor))
        self._tails = {tail.partition: tail.offset for tail in topic.tails}
        self._heads = {tail.partition: max(1, tail.kept_from) for tail in topic.tails}

    def begin(self, partition: int) -> int:
        return max(self._begin.get(partition, 1), self._heads.get(partition, 1))

    def first(self) -> dict[int, int]:
        """By partition: the offset of the first event that is not settled; where everything is, none."""
        found = {partition: self.begin(partition) for partition in self._tails}
        for partition, offset in self.open:
            found[partition] = min(offset, found.get(partition, offset))
        return {partition: offset for partition, offset in found.items() if offset <= self._tails.get(partition, 0)}

    def lease(self, event: StoredEvent) -> LeaseView | None:
        return self.open.get((event.partition, event.offset))

    def state(self, event: StoredEvent) -> CallState | None:
        """None: it is settled."""
        lease = self.lease(event)
        if lease is not None:
            return _open_state(lease)
        return "waiting" if event.offset >= self._begin.get(event.partition, 1) else None


class _Backwards:
    """Reads one partition from its end to its beginning."""

    def __init__(self, log: Log, topic: str, partition: int, head: int, tail: int) -> None:
        self._log = log
        self._topic = topic
        self._partition = partition
        self._head = max(1, head)
        self._end = tail
        self._page: list[StoredEvent] = []

    async def skip(self, ts: int) -> None:
        """Begin with events of this time, or older ones."""
        self._end = min(self._end, await self._log.offset_at(self._topic, self._partition, ts + 1) - 1)

    async def next(self) -> StoredEvent | None:
        while not self._page and self._end >= self._head:
            start = max(self._head, self._end - PAGE + 1)
            at, end = start, self._end
            while at <= end and (entries := await read_on(self._log, self._topic, self._partition, at, end - at + 1)):
                self._page += [event for event in sound(entries) if event.offset <= end]
                at = entries[-1].offset + 1
            self._end = start - 1
        return self._page.pop() if self._page else None


class _NewOnes:
    """The events of a topic that came since somebody asked last; at first the newest ones."""

    def __init__(self, log: Log, topic: str) -> None:
        self._log = log
        self._topic = topic
        self._next: dict[int, int] = {}

    async def read(self) -> AsyncIterator[StoredEvent]:
        for bounds in await self._log.bounds(self._topic):
            at = self._next.get(bounds.partition, bounds.tail - KEPT + 1)
            at = max(bounds.head, at if at <= bounds.tail + 1 else 1)  # a topic may be deleted and made again
            while at <= bounds.tail:
                entries = await read_on(self._log, self._topic, bounds.partition, at, KEPT)
                for event in sound(entries):
                    yield event
                at = entries[-1].offset + 1 if entries else bounds.tail + 1
            self._next[bounds.partition] = at


class _Results:
    """The newest results of an app's calls, by call."""

    def __init__(self, log: Log, topic: str) -> None:
        self._new = _NewOnes(log, topic)
        self._by_id: OrderedDict[str, _Result] = OrderedDict()

    async def catch_up(self, since_ms: int) -> None:
        by_id = self._by_id
        async for event in self._new.read():
            if event.key is not None and (result := _result(event)) is not None:
                known = by_id.pop(event.key, None)
                final = known is not None and known.state not in ("progress", "retrying")
                late = known is not None and final and result.state == "progress"
                by_id[event.key] = known if late and known is not None else result
        while by_id and (len(by_id) > KEPT or next(iter(by_id.values())).ts < since_ms):
            by_id.popitem(last=False)

    def get(self, id: str) -> _Result | None:
        return self._by_id.get(id)

    def counted(self) -> Counter[tuple[str, str]]:
        """By state and name."""
        return Counter((each.state, each.name) for each in self._by_id.values())

    def duration(self, name: str) -> TaskDuration | msgspec.UnsetType:
        """Of calls that are done, of one task or of all."""
        done = [each for each in self._by_id.values() if each.state == "done" and (not name or each.name == name)]
        lasted = [each.duration_ms for each in done if each.duration_ms is not None]
        return TaskDuration(round(sum(lasted) / len(lasted), 1), max(lasted)) if lasted else msgspec.UNSET


class _Cancelled:
    """The calls of an app that somebody cancelled."""

    def __init__(self, log: Log, topic: str) -> None:
        self._new = _NewOnes(log, topic)
        self.ids: OrderedDict[str, None] = OrderedDict()

    async def catch_up(self) -> None:
        async for event in self._new.read():
            if event.key is not None:
                self.ids[event.key] = None
        while len(self.ids) > KEPT:
            self.ids.popitem(last=False)


def _result(event: StoredEvent) -> _Result | None:
    try:
        report = _decode_report(event.payload)
    except msgspec.MsgspecError:
        return None
    value = bytes(report.value)
    return _Result(
        report.state,
        report.name,
        report.attempt,
        report.error,
        event.ts,
        event.partition,
        event.offset,
        value if len(value) <= SHORT else None,
        report.duration_ms,
    )


def _longest_app(topic: str, apps: Collection[str]) -> str:
    """The app of a topic of calls; "" where it is of none."""
    while (topic := topic.rpartition(".")[0]) and topic not in apps:
        pass
    return topic


def _name_in(headers: Mapping[str, str] | None) -> str:
    return (headers or {}).get(NAME, "")


def _name_of(event: StoredEvent) -> str:
    return "" if event.headers is None else _decode_headers(event.headers).get(NAME, "")


def _is_of(task: _Task, lane: str, name: str) -> bool:
    return not task.own or lane == task.topics.normal or name == task.own


def _order(event: StoredEvent) -> tuple[int, Place]:
    return event.ts, (event.topic, event.partition, event.offset)


def _open_state(lease: LeaseView) -> CallState:
    if lease.state == "leased":
        return "running"
    if lease.state == "dying":
        return "failed"
    return "retrying" if lease.deliveries else "waiting"


def _arguments(payload: bytes) -> dict[str, Any]:
    """Those of a call; what is no call is the one argument."""
    try:
        call = _decode_call(payload)
    except msgspec.MsgspecError:
        return {"args": [msgspec.Raw(payload)]}
    return {"args": call.args, "kwargs": call.kwargs}


def _call_of(
    task: _Task,
    event: StoredEvent,
    standing: _Standing,
    letter: DeadLetter | None,
    results: _Results,
    cancelled: _Cancelled,
) -> TaskCall:
    headers = {} if event.headers is None else _decode_headers(event.headers)
    id = headers.get(TASK_ID) or event.id
    result, lease, state = results.get(id), standing.lease(event), standing.state(event)
    known: dict[str, Any] = {}
    if result is not None:
        known = {**_lasted(result), "attempts": result.attempt, "updated": result.ts}
    if result is not None and task.shows_results:
        known["error"] = result.error
        if result.value is not None and result.state in ("done", "progress") and state != "waiting":
            known["value" if result.state == "done" else "progress"] = msgspec.Raw(result.value)
    if lease is not None:
        known["attempts"] = lease.deliveries
        known["error"] = lease.reason or known.get("error", "")
        if state == "retrying":
            known["next_ms"] = lease.until
    if state is not None and id in cancelled.ids:
        state = "running" if state == "running" else "cancelled"
    elif letter is not None:
        state = "failed"
        known |= {"attempts": letter.attempts, "error": letter.reason, "updated": letter.ts, "letter": letter.offset}
    elif state is None:
        state = _ended_state(result)
    return TaskCall(
        id=id,
        task=task.name if task.own else headers.get(NAME, task.name),
        state=state,
        topic=event.topic,
        partition=event.partition,
        offset=event.offset,
        created=event.ts,
        key=event.key,
        **known,
        **_arguments(event.payload),
    )


def _lasted(result: _Result | None) -> dict[str, Any]:
    return {} if result is None or result.duration_ms is None else {"duration_ms": result.duration_ms}


def _ended_state(result: _Result | None) -> CallState:
    """Of a call that is settled and has no dead letter. One whose result is not kept was done."""
    return _ENDED.get("" if result is None else result.state, "done")


def _failed_call(task: _Task, letter: DeadLetter, results: _Results) -> TaskCall:
    id = letter.headers.get(TASK_ID) or letter.original_id
    return TaskCall(
        id=id,
        task=task.name if task.own else letter.headers.get(NAME, task.name),
        state="failed",
        topic=letter.topic.removesuffix(DEAD_LETTERS),
        partition=letter.original_partition,
        offset=letter.original_offset,
        created=letter.original_ts,
        updated=letter.ts,
        attempts=letter.attempts,
        error=letter.reason,
        failure=letter.failure,
        letter=letter.offset,
        key=letter.key,
        **_lasted(results.get(id)),
        **_arguments(bytes(letter.payload)),
    )


def _delayed_call(task: _Task, event: DelayedEvent, cancelled: bool) -> TaskCall:
    headers = event.headers or {}
    return TaskCall(
        id=headers.get(TASK_ID) or event.id,
        task=task.name if task.own else headers.get(NAME, task.name),
        state="cancelled" if cancelled else "delayed",
        topic=event.topic,
        partition=event.partition,
        offset=0,
        created=event.accepted,
        next_ms=event.due,
        key=event.key,
        **_arguments(bytes(event.payload)),
    )


def _write_cursor(key: tuple[int, Place]) -> str:
    ts, (topic, partition, offset) = key
    return f"{ts}.{partition}.{offset}.{topic}"


def _read_cursor(text: str) -> tuple[int, Place] | None:
    """Raises BadFrame."""
    if not text:
        return None
    try:
        ts, partition, offset, topic = text.split(".", 3)
        return int(ts), (topic, int(partition), int(offset))
    except ValueError:
        raise BadFrame(f"{text!r} is not a cursor", remedy="give the `next` of the page before") from None
