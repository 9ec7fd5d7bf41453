"""A model of the log that copies everything and thinks slowly, and random steps to compare an engine with it."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

from hypothesis import strategies as st

from mainspring.log import (
    ABSENT,
    ANY_VERSION,
    Append,
    AppendMany,
    Batch,
    Delete,
    Engine,
    Guard,
    Operation,
    Put,
    Receipt,
    Refused,
    Remove,
    Result,
    StoredEvent,
    Unmarked,
)

TOPICS = ["a", "b"]


PARTITIONS = [0, 1]


SPACES = ["s", "u"]


KEYS = ["k", "k/1", "l"]


@dataclass
class Model:
    """The log as dictionaries. Versions are numbered by write, to be matched with the engine's own as they appear."""

    events: dict[tuple[str, int], dict[int, StoredEvent]] = field(default_factory=dict)
    tails: dict[tuple[str, int], int] = field(default_factory=dict)
    marks: dict[tuple[str, str], tuple[int, int, int]] = field(default_factory=dict)
    records: dict[tuple[str, str], tuple[int, bytes]] = field(default_factory=dict)
    writes: int = 0

    def commit(self, batch: Batch) -> tuple[Model, Receipt] | None:
        """The model afterwards and the receipt; None when the batch is refused."""
        after = copy.deepcopy(self)
        offsets: list[tuple[int, int, bool]] = []
        versions: list[int] = []
        for operation in batch.operations:
            if not after._apply(operation, offsets, versions):
                return None
        return after, Receipt(tuple(offsets), tuple(versions))

    def _version(self, space: str, key: str) -> int:
        return self.records.get((space, key), (ABSENT, b""))[0]

    def _apply(self, op: Operation, offsets: list[tuple[int, int, bool]], versions: list[int]) -> bool:
        if isinstance(op, AppendMany):
            places: list[tuple[int, int, bool]] = []
            self._apply(op.first(), places, versions)
            if not places[0][2]:
                assert all(self._apply(each, places, versions) for each in op.each()[1:])
            offsets.append(places[0])
            return True
        if isinstance(op, Unmarked):
            mark = self.marks.get((op.topic, op.dedupe))
            return mark is None or mark[2] < op.ts
        if isinstance(op, Append):
            if op.dedupe is not None:
                mark = self.marks.get((op.topic, op.dedupe))
                if mark and mark[2] >= op.ts:
                    offsets.append((mark[0], mark[1], True))
                    return True
            place = (op.topic, op.partition)
            tail = self.tails.get(place, 0)
            if op.expect is not None and op.expect != tail:
                return False
            self.tails[place] = tail + 1
            self.events.setdefault(place, {})[tail + 1] = StoredEvent(
                op.topic, op.partition, tail + 1, op.id, op.ts, op.payload, op.key, op.headers
            )
            if op.dedupe is not None:
                self.marks[op.topic, op.dedupe] = (op.partition, tail + 1, op.dedupe_until)
            offsets.append((op.partition, tail + 1, False))
            return True
        if isinstance(op, Remove):
            held = self.events.get((op.topic, op.partition), {})
            for offset in [o for o in held if o < op.below or o in op.offsets]:
                del held[offset]
            return True
        expect = op.version if isinstance(op, Guard) else op.expect
        if expect not in (ANY_VERSION, self._version(op.space, op.key)):
            return False
        if isinstance(op, Put):
            self.writes += 1
            self.records[op.space, op.key] = (self.writes, op.value)
            versions.append(self.writes)
        elif isinstance(op, Delete):
            self.records.pop((op.space, op.key), None)
        return True


small = st.integers(0, 6)


appends = st.builds(
    Append,
    topic=st.sampled_from(TOPICS),
    partition=st.sampled_from(PARTITIONS),
    id=st.text(max_size=3),
    ts=st.integers(0, 20),
    payload=st.binary(max_size=20),
    key=st.none() | st.text(max_size=3),
    headers=st.none() | st.binary(max_size=5),
    dedupe=st.none() | st.sampled_from(["x", "y"]),
    dedupe_until=st.integers(0, 20),
    expect=st.none() | st.none() | small,
)


def _columns(rows: list[tuple[str, bytes, str | None, bytes | None]], **place: int | str | None) -> AppendMany:
    ids, payloads, keys, headers = map(list, zip(*rows, strict=True))
    columns = {
        "keys": keys if any(key is not None for key in keys) else None,
        "headers": headers if any(each is not None for each in headers) else None,
    }
    return AppendMany(ids=ids, payloads=payloads, **columns, **place)  # type: ignore[arg-type]


many = st.builds(
    _columns,
    st.lists(
        st.tuples(
            st.text(max_size=3),
            st.binary(max_size=20),
            st.none() | st.text(max_size=3),
            st.none() | st.binary(max_size=5),
        ),
        min_size=1,
        max_size=4,
    ),
    topic=st.sampled_from(TOPICS),
    partition=st.sampled_from(PARTITIONS),
    ts=st.integers(0, 20),
    dedupe=st.none() | st.sampled_from(["x", "y"]),
    dedupe_until=st.integers(0, 20),
)


unmarked = st.builds(Unmarked, topic=st.sampled_from(TOPICS), dedupe=st.sampled_from(["x", "y"]), ts=st.integers(0, 20))


places = {"space": st.sampled_from(SPACES), "key": st.sampled_from(KEYS)}


expects = st.sampled_from([ANY_VERSION, ANY_VERSION, ABSENT, 1, 2, 3, 4, 5])


operations = (
    appends
    | appends
    | many
    | unmarked
    | st.builds(Put, value=st.binary(max_size=4), expect=expects, **places)
    | st.builds(Delete, expect=expects, **places)
    | st.builds(Guard, version=small, **places)
    | st.builds(
        Remove,
        topic=st.sampled_from(TOPICS),
        partition=st.sampled_from(PARTITIONS),
        below=small,
        offsets=st.lists(small, max_size=3).map(tuple),
    )
)


commits = st.lists(st.builds(Batch, st.lists(operations, max_size=5)), min_size=1, max_size=4)


steps = st.lists(commits | st.just("reopen"), min_size=1, max_size=8)


class Comparison:
    """Runs the steps on both. The engine's versions are translated: the model calls its n-th write n."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.model = Model()
        self.real: dict[int, int] = {}  # the model's version -> the engine's

    async def commit(self, batches: list[Batch]) -> None:
        if not getattr(self.engine, "takes_many", False):
            batches = [_event_by_event(batch) for batch in batches]
        results = await self.engine.commit([_translated(batch, self.real) for batch in batches])
        assert len(results) == len(batches)
        known = {version: version for version in self.real}
        for batch, result in zip(batches, results, strict=True):
            self.compare(self.model.commit(_translated(batch, known)), result)

    def compare(self, expected: tuple[Model, Receipt] | None, result: Result) -> None:
        if expected is None:
            assert isinstance(result, Refused)
            return
        assert isinstance(result, Receipt)
        self.model, receipt = expected
        assert result.offsets == receipt.offsets
        assert list(result.versions) == sorted(set(result.versions))
        assert min(result.versions, default=1 << 60) > max(self.real.values(), default=0)
        self.real.update(zip(receipt.versions, result.versions, strict=True))

    async def check(self) -> None:
        model, engine = self.model, self.engine
        assert await engine.topics() == sorted({topic for topic, _ in model.tails})
        for topic in TOPICS:
            tails = {partition: tail for (name, partition), tail in model.tails.items() if name == topic}
            bounds = await engine.bounds(topic)
            assert {b.partition: b.tail for b in bounds} == tails
            for b in bounds:
                held = model.events[topic, b.partition]
                assert (b.head, b.events) == (min(held, default=b.tail + 1), len(held))
                assert b.bytes == sum(
                    len(e.payload) + len(e.id.encode()) + len((e.key or "").encode()) + len(e.headers or b"")
                    for e in held.values()
                )
                assert await engine.read(topic, b.partition, 1, 1000) == [held[o] for o in sorted(held)]
                for ts in (0, 5, 10, 21):
                    wanted = min((o for o, e in held.items() if e.ts >= ts), default=b.tail + 1)
                    assert await engine.offset_at(topic, b.partition, ts) == wanted
        found = {}
        for space in await engine.spaces():
            async for record in engine.scan(space):
                found[space, record.key] = (record.version, record.value)
        assert found == {place: (self.real[version], value) for place, (version, value) in model.records.items()}
        marks = {(m.topic, m.dedupe): (m.partition, m.offset, m.until) async for m in engine.marks()}
        assert marks == model.marks


def _event_by_event(batch: Batch) -> Batch:
    found: list[Operation] = []
    for op in batch.operations:
        if isinstance(op, AppendMany):
            found += op.each()
        elif not isinstance(op, Unmarked):
            found.append(op)
    return Batch(found)


def _translated(batch: Batch, versions: dict[int, int]) -> Batch:
    """Expected versions in the words of one side. Nobody can expect a version that was not given before the commit."""
    words = {ANY_VERSION: ANY_VERSION, ABSENT: ABSENT} | versions
    return Batch([_reworded(op, words) for op in batch.operations])


def _reworded(op: Operation, words: dict[int, int]) -> Operation:
    if isinstance(op, Guard):
        return Guard(op.space, op.key, words.get(op.version, 1 << 50))
    if isinstance(op, Put):
        return Put(op.space, op.key, op.value, words.get(op.expect, 1 << 50))
    if isinstance(op, Delete):
        return Delete(op.space, op.key, words.get(op.expect, 1 << 50))
    return op
