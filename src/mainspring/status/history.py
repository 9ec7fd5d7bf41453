"""What the node did in the last minutes, hours and days: figures at regular times, kept in bounded space.

A row is what was measured in one step of time: figures of the node, rates of its busiest topics, and how its groups
stood. There are four ranges, each with longer steps than the one before: a row of a longer step is made of the rows of
shorter ones. So a week costs as little as an hour.

Rows are stored in the log as records, some tens of rows in each, under the node's name. The number of records is fixed:
a new one takes the place of the oldest. So history survives a restart, on every engine. At most one minute of it is
lost with a node that is killed.
"""

from __future__ import annotations

import logging
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from itertools import groupby, islice
from typing import Any, Final

import msgspec

from mainspring.errors import MainspringError
from mainspring.log import Batch, DamagedRecord, Log

logger: logging.Logger = logging.getLogger("mainspring.node")

HISTORY: Final = "history"  # the space of its records
MOST_NAMED: Final = 100  # topics, and groups, in one row: the busiest ones
CHUNK: Final = 30  # rows in one record

RATES: Final = ("published", "delivered", "acks", "deadLetters", "runsStarted", "runsFailed", "turns")
GAUGES: Final = ("lag", "inflight")
FIGURES: Final = RATES + GAUGES


class HistoryRow(msgspec.Struct, frozen=True, array_like=True):
    """What was measured until `t` (epoch ms), in one step.

    `figures` are those in FIGURES: rates per second, and the highest of what is no rate. `topics`: published and
    delivered per second. `groups`, by topic and name: lag, settled per second, age in ms of the oldest unsettled event.
    What is missing was zero.
    """

    t: int
    figures: tuple[float, ...]
    topics: dict[str, tuple[float, float]] = {}
    groups: dict[str, tuple[int, float, int]] = {}


class HistoryRange(msgspec.Struct, frozen=True):
    """A time that can be looked back, and the time between two of its rows."""

    name: str
    span_ms: int
    step_ms: int

    @property
    def rows(self) -> int:
        return self.span_ms // self.step_ms

    @property
    def chunk_ms(self) -> int:
        return self.step_ms * CHUNK


MINUTE: Final = 60_000
_LONGER: Final = (
    HistoryRange("6h", 360 * MINUTE, MINUTE),
    HistoryRange("24h", 1_440 * MINUTE, 5 * MINUTE),
    HistoryRange("7d", 10_080 * MINUTE, 30 * MINUTE),
)
RANGES: Final = ("15m", *(each.name for each in _LONGER))

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(list[HistoryRow]).decode
_unpack: Final = msgspec.json.Decoder(bytes).decode


def group_key(topic: str, group: str) -> str:
    """How a row names a group."""
    return f"{topic}\n{group}"


def read_rows(_key: str, value: bytes) -> list[HistoryRow]:
    """The rows of a stored record: compressed, because they name the same topics and groups, as a JSON text in base64.

    Raises where it cannot be read.
    """
    try:
        return _decode(zlib.decompress(_unpack(value)))
    except zlib.error as error:
        raise msgspec.DecodeError(str(error)) from None


class NodeHistory:
    """The rows of one node. `step_ms` is the time between two rows of the shortest range."""

    def __init__(self, log: Log, node: str, step_ms: int) -> None:
        self._log = log
        self._node = node
        self.ranges: tuple[HistoryRange, ...] = (HistoryRange("15m", 15 * MINUTE, step_ms), *_LONGER)
        self._rows: dict[str, deque[HistoryRow]] = {each.name: deque(maxlen=each.rows) for each in self.ranges}
        self._unsaved: set[tuple[HistoryRange, int]] = set()

    def range(self, name: str) -> HistoryRange:
        """The range of this name. Raises KeyError."""
        return {each.name: each for each in self.ranges}[name]

    @property
    def last(self) -> HistoryRow | None:
        """What was measured last."""
        return self._rows["15m"][-1] if self._rows["15m"] else None

    def add(self, row: HistoryRow) -> None:
        """Add a row of the shortest range. It ends a row of a longer range where a new step of that begins."""
        self._append(self.ranges[0], row)
        for shorter, longer in zip(self.ranges, self.ranges[1:], strict=False):
            known = self._rows[longer.name]
            since = known[-1].t if known else 0
            ended = row.t // longer.step_ms * longer.step_ms
            new = [each for each in self._rows[shorter.name] if since < each.t <= ended]
            for step, rows in groupby(new, lambda each: -(-each.t // longer.step_ms)):  # noqa: B023
                self._append(longer, _merged(step * longer.step_ms, list(rows)))

    def _append(self, range: HistoryRange, row: HistoryRow) -> None:
        self._rows[range.name].append(row)
        self._unsaved.add((range, row.t // range.chunk_ms))

    def rows(self, name: str, now: int) -> list[HistoryRow]:
        """What is known of a range, oldest first; the last row may be of a step that is not over."""
        range = self.range(name)
        found = [each for each in self._rows[name] if each.t > now - range.span_ms]
        at = self.ranges.index(range)
        if at:
            since = found[-1].t if found else 0
            begun = [each for each in self.rows(self.ranges[at - 1].name, now) if each.t > since]
            if begun:
                found.append(_merged(begun[-1].t, begun))
        return found

    # -- what survives

    async def load(self, now: int) -> None:
        """Read what former lives of the node measured; remove what is too old, also of nodes that never came back."""
        old, own = Batch(), f"{self._node}/"
        found: dict[str, list[HistoryRow]] = {each.name: [] for each in self.ranges}
        spans = {each.name: each.span_ms for each in self.ranges}
        async for key, rows in self._stored():
            node_range = key.rpartition("/")[0]
            name = node_range.rpartition("/")[2]
            if not rows or rows[-1].t < now - spans.get(name, 0):
                old.delete(HISTORY, key)
            elif node_range == own + name:
                found[name] += rows
        for name, rows in found.items():
            first = self._rows[name][0].t if self._rows[name] else now + 1
            kept = sorted((each for each in rows if now - spans[name] < each.t < first), key=lambda each: each.t)
            self._rows[name].extendleft(reversed(kept))
        if old.operations:
            await self._log.commit(old)

    async def _stored(self) -> Any:
        after = ""
        while True:
            try:
                async for record in self._log.scan(HISTORY, "", after):
                    after = record.key
                    try:
                        yield record.key, read_rows(record.key, record.value)
                    except msgspec.DecodeError:
                        yield record.key, []
                return
            except DamagedRecord as error:
                after = error.key
                yield error.key, []

    async def save(self) -> None:
        """Store what is new. What cannot be stored now is stored the next time."""
        unsaved, self._unsaved = self._unsaved, set()
        batch = Batch()
        for range, chunk in unsaved:
            rows = [each for each in self._rows[range.name] if each.t // range.chunk_ms == chunk]
            place = chunk % (range.rows // CHUNK + 2)
            batch.put(HISTORY, f"{self._node}/{range.name}/{place:03d}", _encode(zlib.compress(_encode(rows), 1)))
        try:
            if batch.operations:
                await self._log.commit(batch)
        except MainspringError as error:
            self._unsaved |= unsaved
            logger.debug("history could not be stored yet: %s", error.message)


def _merged(t: int, rows: list[HistoryRow]) -> HistoryRow:
    """One row of several: the mean of rates, the highest of everything else."""
    count, rates = len(rows), len(RATES)
    columns = list(zip(*(row.figures for row in rows), strict=True))
    figures = [_rounded(sum(each) / count) for each in columns[:rates]] + [max(each) for each in columns[rates:]]
    topics: dict[str, tuple[float, float]] = {}
    groups: dict[str, tuple[int, float, int]] = {}
    for row in rows:
        for name, (published, delivered) in row.topics.items():
            former = topics.get(name, (0.0, 0.0))
            topics[name] = (former[0] + published / count, former[1] + delivered / count)
        for name, (lag, rate, oldest) in row.groups.items():
            known = groups.get(name, (0, 0.0, 0))
            groups[name] = (max(known[0], lag), known[1] + rate / count, max(known[2], oldest))
    return HistoryRow(
        t,
        tuple(figures),
        {name: (_rounded(one), _rounded(other)) for name, (one, other) in busiest(topics, sum).items()},
        {name: (lag, _rounded(rate), oldest) for name, (lag, rate, oldest) in busiest(groups, tuple).items()},
    )


def busiest(named: Mapping[str, Any], size: Callable[[Any], Any]) -> dict[str, Any]:
    """The largest ones, as many as a row may name."""
    if len(named) <= MOST_NAMED:
        return dict(named)
    ordered: Iterable[tuple[str, Any]] = sorted(named.items(), key=lambda item: size(item[1]), reverse=True)
    return dict(islice(ordered, MOST_NAMED))


def _rounded(rate: float) -> float:
    return round(rate, 3)
