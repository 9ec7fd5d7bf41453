"""Measuring a node at regular times, for its history. Nothing is counted for it: counters of the parts are compared."""

from __future__ import annotations

import logging
from typing import Final

import msgspec

from mainspring.bus import SYSTEM, Bus, GroupInfo, Stats
from mainspring.errors import MainspringError
from mainspring.loop import BackgroundTasks, Loop, pause
from mainspring.runs import Runtime
from mainspring.status.history import MINUTE, MOST_NAMED, HistoryRow, NodeHistory, busiest, group_key

logger: logging.Logger = logging.getLogger("mainspring.node")

OWN_GROUPS: Final = "dashboard."  # groups of pages that follow a topic; they are nobody's backlog


class _Seen(msgspec.Struct, frozen=True):
    """Counters at one moment."""

    t: int
    stats: Stats
    settled: dict[str, int]
    runs: tuple[int, int]
    turns: int


class GroupWatch:
    """Since when the oldest unsettled event of each group waits, of those that are furthest behind."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self.since: dict[str, int] = {}  # epoch ms, by `group_key`
        self._looked_ms = -(1 << 40)

    async def look(self, infos: list[GroupInfo]) -> None:
        """Read it from the log: one event of each partition in which a group is behind."""
        self._looked_ms = self._bus.clock.now_ms()
        behind = sorted((info for info in infos if lag_of(info)), key=lag_of, reverse=True)[:MOST_NAMED]
        self.since = {
            group_key(info.topic, info.group): since
            for info in behind
            if (since := await self._bus.groups.oldest_unsettled(info)) is not None
        }

    async def look_again(self, infos: list[GroupInfo], after_ms: int) -> None:
        """Look, unless that was done so shortly ago."""
        if self._bus.clock.now_ms() - self._looked_ms >= after_ms:
            await self.look(infos)


def lag_of(info: GroupInfo) -> int:
    """How many events the group has not settled."""
    return sum(each.lag for each in info.partitions.values())


class Sampler:
    """Adds a row to the history for every step, at round times."""

    def __init__(self, bus: Bus, runtime: Runtime, loop: Loop, history: NodeHistory, watch: GroupWatch) -> None:
        self._bus = bus
        self._runtime = runtime
        self._loop = loop
        self._history = history
        self._watch = watch
        self._step_ms = history.ranges[0].step_ms
        self._before: _Seen | None = None
        self._tasks = BackgroundTasks(logger, "history")

    async def start(self) -> None:
        """Begin to measure. Former rows are read beside: nothing waits for them."""
        self._before = self._look(self._groups())
        self._tasks.start(self._run(), "history")

    async def stop(self) -> None:
        await self._tasks.cancel()
        await self._history.save()

    async def _run(self) -> None:
        clock = self._bus.clock
        try:
            await self._history.load(clock.wall_ms())
        except MainspringError as error:
            logger.warning("former history cannot be read: %s", error.message)
        saved = clock.now_ms()
        while True:
            await pause(self._loop, self._step_ms - clock.wall_ms() % self._step_ms, ref=False)
            try:
                await self._measure()
            except MainspringError as error:
                logger.debug("nothing could be measured: %s", error.message)
            if clock.now_ms() - saved >= MINUTE:
                saved = clock.now_ms()
                await self._history.save()

    async def _measure(self) -> None:
        infos = self._groups()
        seen, before = self._look(infos), self._before
        if before is not None and 0 <= seen.t - before.t < self._step_ms / 2:
            return  # the time of day was set, or the timer was early: too short for a rate
        self._before = seen
        await self._watch.look(infos)
        if before is not None and seen.t > before.t:
            self._history.add(self._row(before, seen, infos))

    def _groups(self) -> list[GroupInfo]:
        return [each for each in self._bus.groups.infos() if not each.group.startswith(OWN_GROUPS)]

    def _look(self, infos: list[GroupInfo]) -> _Seen:
        counts = self._runtime.counts()
        failed = sum(number for (_, how), number in counts.outcomes.items() if how == "failed")
        settled = {
            group_key(each.topic, each.group): sum(place.last_committed for place in each.partitions.values())
            for each in infos
        }
        runs = (sum(counts.begun.values()), failed)
        return _Seen(self._bus.clock.wall_ms(), self._bus.stats(), settled, runs, self._loop.counters().turns)

    def _row(self, before: _Seen, now: _Seen, infos: list[GroupInfo]) -> HistoryRow:
        seconds = (now.t - before.t) / 1000

        def rate(later: int, earlier: int) -> float:
            return round(max(0, later - earlier) / seconds, 3)

        nothing, former = (0, 0), before.stats.by_topic
        topics: dict[str, tuple[float, float]] = {}
        for name, count in now.stats.by_topic.items():
            earlier = (former[name].published, former[name].delivered) if name in former else nothing
            if not name.startswith(SYSTEM) and earlier != (count.published, count.delivered):
                topics[name] = (rate(count.published, earlier[0]), rate(count.delivered, earlier[1]))
        groups = {}
        for info in infos:
            key, lag = group_key(info.topic, info.group), lag_of(info)
            settled = rate(now.settled[key], before.settled.get(key, now.settled[key]))
            if lag or settled:
                since = self._watch.since.get(key, now.t) if lag else now.t
                groups[key] = (lag, settled, max(0, now.t - since))
        figures = (
            round(sum(published for published, _ in topics.values()), 3),
            round(sum(delivered for _, delivered in topics.values()), 3),
            rate(now.stats.acks, before.stats.acks),
            rate(now.stats.dlq, before.stats.dlq),
            rate(now.runs[0], before.runs[0]),
            rate(now.runs[1], before.runs[1]),
            rate(now.turns, before.turns),
            sum(lag_of(info) for info in infos),
            now.stats.inflight,
        )
        return HistoryRow(now.t, figures, busiest(topics, sum), busiest(groups, tuple))
