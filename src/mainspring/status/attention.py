"""What needs a person: what failed and will not mend itself, counted, with examples and a command to begin with.

Every count is of what is so now. It goes down when somebody deals with it: a run is retried or forgotten, a dead letter
sent back or dropped, what a transaction published is tried again or dropped, a capability started again, a schedule
succeeds or is paused, a group catches up, a node is back, a disk has room again.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from heapq import nlargest
from typing import Final, Literal

import msgspec

from mainspring.bus import Bus, Caller, Forbidden, GroupInfo, Who
from mainspring.cluster import Cluster
from mainspring.kernel import MOST_DEAD_MESSAGES, Inspector, Kernel
from mainspring.loop import Clock
from mainspring.runs import Runtime
from mainspring.runs.durable import LIVE, RUNS
from mainspring.status.history import group_key
from mainspring.status.refused import RefusedOutgoings
from mainspring.status.sampling import OWN_GROUPS, GroupWatch, lag_of

Kind = Literal[
    "disk",
    "failed_runs",
    "blocked_runs",
    "waiting_runs",
    "dead_letters",
    "dead_messages",
    "refused_outgoing",
    "capabilities",
    "groups",
    "schedules",
    "nodes",
]
KINDS: Final[tuple[Kind, ...]] = Kind.__args__  # type: ignore[attr-defined]
SHOWN: Final = 5  # examples of a kind
LOOK_MS: Final = 10_000  # between two looks at the oldest events of groups
PAUSE: Final = 20  # runs are counted again after so many times the time that counting them took
AWAY_MS: Final = 24 * 3_600_000  # a node that is away for longer is not missed
_DLQ: Final = ".DLQ"
_NAMED: Final = frozenset({"capabilities", "dead_letters"})  # kinds whose command needs a name

REMEDIES: Final[dict[Kind, str]] = {
    "disk": "mainspring topics list",
    "failed_runs": "mainspring runs retry --state failed",
    "blocked_runs": "mainspring runs list --state blocked",
    "waiting_runs": "mainspring runs list --state running",
    "dead_letters": "mainspring dlq list",
    "dead_messages": "mainspring dead-messages list",
    "refused_outgoing": "mainspring outgoing list",
    "capabilities": "mainspring actors restart",
    "groups": "mainspring groups list --lagging",
    "schedules": "mainspring schedules list",
    "nodes": "mainspring nodes",
}


class Example(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that needs a person. `of`: the topic, program or message it belongs to. `at`: since when, epoch ms."""

    name: str
    of: str = ""
    text: str = ""
    at: int = 0


class Need(msgspec.Struct, frozen=True):
    """Things of one kind that need a person: how many there are, some of them, and a command to begin with."""

    kind: Kind
    count: int
    examples: list[Example]
    remedy: str


class Attention(msgspec.Struct, frozen=True):
    """What needs a person, the most urgent kind first; kinds without anything are left out."""

    count: int
    needs: list[Need]


class _Run(msgspec.Struct):
    id: str
    program: str
    state: str
    updated: int
    error: dict[str, str] | None = None


_decode_run: Final = msgspec.json.Decoder(_Run).decode


@dataclass(slots=True)
class _RunCount:
    """Runs that need a person, by kind and program, and the latest of each."""

    counts: dict[Kind, Counter[str]] = field(default_factory=dict)
    latest: dict[tuple[Kind, str], list[_Run]] = field(default_factory=dict)

    def add(self, kind: Kind, run: _Run) -> None:
        self.counts.setdefault(kind, Counter())[run.program] += 1
        latest = self.latest.setdefault((kind, run.program), [])
        latest.append(run)
        if len(latest) >= 4 * SHOWN:
            latest[:] = _latest(latest)


def _latest(runs: Iterable[_Run]) -> list[_Run]:
    return nlargest(SHOWN, runs, key=lambda run: run.updated)


class AttentionDesk:
    """Finds what needs a person on one node, as far as its parts go."""

    def __init__(
        self,
        *,
        clock: Clock,
        bus: Bus | None = None,
        kernel: Kernel | None = None,
        runtime: Runtime | None = None,
        cluster: Cluster | None = None,
        watch: GroupWatch | None = None,
        behind_ms: int = 60_000,
        refused: RefusedOutgoings | None = None,
    ) -> None:
        """A group whose oldest event waits for `behind_ms` has fallen behind."""
        self._clock = clock
        self._bus = bus
        self._kernel = kernel
        self._runtime = runtime
        self._cluster = cluster
        self._watch = watch or (None if bus is None else GroupWatch(bus))
        self._behind_ms = behind_ms
        self.refused: RefusedOutgoings | None = refused
        self._runs = _RunCount()
        self._count_runs_at = 0.0

    @property
    def oldest_of_groups(self) -> dict[str, int]:
        """Since when the oldest event of a group waits (epoch ms), by `group_key`, as of the last look."""
        return {} if self._watch is None else self._watch.since

    async def report(self, who: Who = None) -> Attention:
        """What needs a person, as far as `who` may know of it."""
        found: dict[str, tuple[int, list[Example]]] = {}
        async for kind, count, examples in self._found(who):
            if count:
                found[kind] = (count, examples[:SHOWN])
        needs = [Need(kind, *found[kind], _remedy(kind, found[kind][1])) for kind in KINDS if kind in found]
        return Attention(sum(need.count for need in needs), needs)

    async def _found(self, who: Who) -> AsyncIterator[tuple[Kind, int, list[Example]]]:
        if self._runtime is not None:
            async for each in self._troubled_runs(self._runtime, who):
                yield each
        if self._bus is not None:
            yield "dead_letters", *await self._dead_letters(self._bus, who)
            yield "groups", *await self._groups(self._bus, who)
            yield "schedules", *await self._schedules(self._bus, who)
        if isinstance(who, Caller) and who.is_limited:
            return  # the rest tells of all parts at once
        if self._bus is not None:
            yield "disk", *self._disk(self._bus)
        if self._kernel is not None:
            yield "capabilities", *self._capabilities(self._kernel)
            yield "dead_messages", *await self._dead_messages(self._kernel)
        if self.refused is not None:
            latest = await self.refused.page(limit=SHOWN)
            examples = [Example(each.id, each.name, each.reason, each.at) for each in latest]
            yield "refused_outgoing", await self.refused.count() if latest else 0, examples
        if self._cluster is not None:
            away = [each for each in self._cluster.away() if self._clock.wall_ms() - each.since < AWAY_MS]
            examples = [Example(each.name, text="gone without saying goodbye", at=each.since) for each in away]
            yield "nodes", len(examples), examples

    # -- runs

    async def _troubled_runs(self, runtime: Runtime, who: Who) -> AsyncIterator[tuple[Kind, int, list[Example]]]:
        if self._clock.now_ms() >= self._count_runs_at:
            began = self._clock.now_ms()
            self._runs = await _count_runs(runtime)
            took = self._clock.now_ms() - began
            self._count_runs_at = self._clock.now_ms() + PAUSE * took
        for kind, programs in self._runs.counts.items():
            shown = [name for name in programs if _may_see_runs(who, name)]
            latest = _latest(run for name in shown for run in self._runs.latest[kind, name])
            examples = [Example(run.id, run.program, _why(run), run.updated) for run in latest]
            yield kind, sum(programs[name] for name in shown), examples

    # -- the bus

    async def _dead_letters(self, bus: Bus, who: Who) -> tuple[int, list[Example]]:
        total, examples = 0, []
        for config in bus.topics.configs():
            topic = config.topic.removesuffix(_DLQ)
            if topic == config.topic or not (count := await bus.dead_letters.count(topic)):
                continue
            try:
                await bus.access.check_letters(topic, who)
            except Forbidden:
                continue
            total += count
            examples.append(Example(topic, text=str(count)))
        return total, sorted(examples, key=lambda each: -int(each.text))

    async def _groups(self, bus: Bus, who: Who) -> tuple[int, list[Example]]:
        assert self._watch is not None
        infos = [each for each in bus.groups.infos() if not each.group.startswith(OWN_GROUPS)]
        await self._watch.look_again(infos, LOOK_MS)
        now, since, calls = bus.clock.wall_ms(), self._watch.since, bus.task_calls.topics()
        behind: list[tuple[int, GroupInfo]] = []
        for info in infos:
            begun = since.get(group_key(info.topic, info.group))
            if begun is None or not lag_of(info) or info.ttl_ms or now - begun < self._behind_ms:
                continue
            if bus.groups.is_waiting(info.topic, info.group, busy=info.topic not in calls):
                behind.append((begun, info))
        visible = await bus.access.allowed(who, "subscribe", {info.topic for _, info in behind})
        shown = sorted((each for each in behind if each[1].topic in visible), key=lambda each: each[0])
        return len(shown), [Example(info.group, info.topic, str(lag_of(info)), begun) for begun, info in shown]

    async def _schedules(self, bus: Bus, who: Who) -> tuple[int, list[Example]]:
        failed = [
            each for each in bus.schedules.all() if each.last and each.last.result == "failed" and not each.paused
        ]
        visible = await bus.access.visible(who, {each.topic for each in failed})
        shown = [
            Example(each.name, each.topic, each.last.reason, each.last.at_ms)
            for each in failed
            if each.topic in visible and each.last
        ]
        return len(shown), sorted(shown, key=lambda each: -each.at)

    def _disk(self, bus: Bus) -> tuple[int, list[Example]]:
        """A disk that fills is one thing; the examples are what takes the most."""
        examples = [Example(name, text=text) for name, text in bus.disk.shortage()]
        return min(1, len(examples)), examples

    # -- the kernel

    def _capabilities(self, kernel: Kernel) -> tuple[int, list[Example]]:
        given_up = kernel.given_up
        faults = Inspector(kernel).faults() if given_up else []
        examples = []
        for name in given_up:
            last = next((fault for fault in faults if fault.capability == name), None)
            examples.append(Example(name) if last is None else Example(name, last.request, last.message, last.at))
        return len(given_up), examples

    async def _dead_messages(self, kernel: Kernel) -> tuple[int, list[Example]]:
        letters = await kernel.dead_messages.page(limit=MOST_DEAD_MESSAGES)
        examples = [Example(each.id, each.message.type, each.text or each.error, each.at) for each in letters[-SHOWN:]]
        return len(letters), examples[::-1]


async def _count_runs(runtime: Runtime) -> _RunCount:
    durable, found = runtime.durable, _RunCount()
    for space in (RUNS, LIVE):
        async for stored in durable.store.rows(space, ""):
            try:
                run = _decode_run(stored.value)
            except msgspec.DecodeError:
                continue  # a record that cannot be read is reported elsewhere
            if run.state == "failed":
                found.add("failed_runs", run)
            elif run.state == "blocked":
                found.add("blocked_runs", run)
            elif space == LIVE and run.program not in durable.ownership.known_programs():
                found.add("waiting_runs", run)
    return found


def _remedy(kind: Kind, examples: list[Example]) -> str:
    """A command that can be typed as it stands."""
    return f"{REMEDIES[kind]} {shlex.quote(examples[0].name)}" if kind in _NAMED else REMEDIES[kind]


def _may_see_runs(who: Who, program: str) -> bool:
    return not isinstance(who, Caller) or who.may_use_runs("query", "Run.List", program)


def _why(run: _Run) -> str:
    return (run.error or {}).get("message", "") or f"no node has the program {run.program}"
