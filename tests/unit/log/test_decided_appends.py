"""What a writer decided is stored as it is, or decided again: the log is the same, byte for byte.

A stream of random commits is applied to replicas that were told different things: all that the writer decided, nothing
(as by an older version), what a writer decided that knew less than it should, or nonsense. All come to the same file,
the same digest and the same results.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from mainspring.log import Append, Batch, Delete, Guard, Operation, Put, Receipt, Remove
from mainspring.log.contract import change_of
from mainspring.log.engines.nats import encoding
from mainspring.log.engines.nats.encoding import StreamEnvelope
from mainspring.log.engines.nats.history import StreamMessage
from mainspring.log.engines.nats.replica import ApplyOutcome, ReplicaWriter
from mainspring.log.engines.sqlite.appends import AppendDecider, AppendRun, PartitionEnd, PartitionPlace
from tests.support.log_file import stored_events

TS = 1_700_000_000_000
TABLES = ("records", "marks", "replica", "writers")
PARTITIONS = (
    "SELECT id, topic, partition, removed, removed_bytes, head FROM partitions"  # its tail is of the last removal
)


class Stream:
    """Messages of two writers; a first replica says what each writer knows when it sends."""

    def __init__(self, place: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.writer = ReplicaWriter(place / "writer.sqlite3")
        self.messages: list[StreamMessage] = []
        self.outcomes: list[ApplyOutcome] = []
        self._ids = 0

    def operation(self, *, plain: bool) -> Operation:
        chance, kind = self.random, self.random.random()
        key, version = f"k{chance.randrange(4)}", chance.randrange(6) - 1
        if plain or kind < 0.6:
            self._ids += 1
            known = None if chance.random() < 0.5 else f"d{chance.randrange(self._ids, self._ids + 300) // 8}"
            return Append(
                chance.choice(("a", "b")),
                chance.randrange(2),
                f"id-{self._ids}",
                TS + self._ids + chance.choice((0, 0, 0, -50, 7)),
                b'{"n":%d}' % self._ids,
                chance.choice((None, "schl\u00fcssel")),
                chance.choice((None, b'{"h":"v"}')),
                known,
                TS + self._ids + chance.choice((-1, 10, 10_000)),
                None if plain or chance.random() < 0.7 else chance.randrange(40),
            )
        if kind < 0.75:
            return Put("s", key, b"v", version)
        if kind < 0.85:
            return Guard("s", key, max(version, 0))
        if kind < 0.95:
            return Delete("s", key)
        return Remove("a", 0, below=chance.randrange(10))

    def batch(self) -> Batch:
        plain = self.random.random() < 0.8
        return Batch([self.operation(plain=plain) for _ in range(self.random.choice((1, 1, 1, 3)))])

    def grow(self) -> None:
        """One more message, decided by a writer that has applied everything before it, or not yet the last."""
        batches = [self.batch() for _ in range(self.random.randrange(1, 12))]
        runs = AppendDecider(self.writer.log_state).decide([batch.operations for batch in batches])
        seq = len(self.messages) + 1
        body = encoding.join_batches([bytes(encoding.encode_batch(batch)) for batch in batches])  # type: ignore[arg-type]
        envelope = StreamEnvelope(f"w{seq % 2}", seq, encoding.COMMIT, body, runs=encoding.encode(runs))
        self.messages.append(StreamMessage(seq, TS + seq, len(body), envelope))
        if self.random.random() < 0.8:
            self.apply()

    def apply(self) -> None:
        self.outcomes += applied(self.writer, self.messages[len(self.outcomes) :], at_once=4)


def applied(writer: ReplicaWriter, messages: Sequence[StreamMessage], at_once: int) -> list[ApplyOutcome]:
    found: list[ApplyOutcome] = []
    for start in range(0, len(messages), at_once):
        outcomes, error = writer._apply(messages[start : start + at_once], True)
        assert error is None
        found += outcomes
    return found


def content(path: Path) -> dict[str, list[tuple[object, ...]]]:
    connection = sqlite3.connect(path)
    try:
        found = {table: connection.execute(f"SELECT * FROM {table}").fetchall() for table in TABLES}
        events = [tuple(msgspec.structs.astuple(event)) for event in stored_events(path)]
        ends = connection.execute("SELECT pos >> 43, max(last), max(total), max(high_ts) FROM chunks GROUP BY 1")
        return found | {
            "partitions": connection.execute(PARTITIONS).fetchall(),
            "events": events,  # how many are in a chunk depends on what came at once
            "ends": ends.fetchall(),
        }
    finally:
        connection.close()


def with_runs(messages: Sequence[StreamMessage], change: Callable[[bytes], bytes]) -> list[StreamMessage]:
    return [
        msgspec.structs.replace(
            message, envelope=msgspec.structs.replace(message.envelope, runs=change(message.envelope.runs))
        )
        for message in messages
        if message.envelope is not None
    ]


def wrong(runs: bytes) -> bytes:
    """Sound, but of another history: every partition is one event longer."""
    found = msgspec.msgpack.decode(runs, type=list[AppendRun])
    moved = [
        msgspec.structs.replace(
            run,
            before={
                topic: {partition: (id, tail + 1, total, high) for partition, (id, tail, total, high) in ends.items()}
                for topic, ends in run.before.items()
            },
        )
        for run in found
    ]
    return encoding.encode(moved)


def shortened(runs: bytes) -> bytes:
    """About more batches than there are, or fewer events."""
    found = msgspec.msgpack.decode(runs, type=list[AppendRun])
    return encoding.encode([msgspec.structs.replace(run, count=run.count + 40) for run in found])


@pytest.mark.parametrize("seed", range(12))
def test_every_replica_is_the_same_whatever_its_writer_decided(seed: int, tmp_path: Path) -> None:
    stream = Stream(tmp_path, seed)
    for _ in range(60):
        stream.grow()
    stream.apply()
    stream.writer.stop()
    expected = content(tmp_path / "writer.sqlite3")
    assert len(expected["events"]) > 50
    told: dict[str, Callable[[bytes], bytes]] = {
        "all": lambda runs: runs,
        "nothing": lambda _: b"",
        "wrong": wrong,
        "shortened": shortened,
        "noise": lambda _: b"noise",
    }
    for number, (name, change) in enumerate(told.items()):
        path = tmp_path / f"{name}.sqlite3"
        follower = ReplicaWriter(path)
        follower.me = "w1"
        outcomes = applied(follower, with_runs(stream.messages, change), at_once=1 + 7 * number)
        follower.stop()
        assert content(path) == expected, name
        assert [outcome.digest for outcome in outcomes] == [outcome.digest for outcome in stream.outcomes], name
        assert shown(outcomes) == shown(stream.outcomes), name
        check_own(outcomes)


def shown(outcomes: list[ApplyOutcome]) -> list[tuple[str, int, int]]:
    """What the changes say of events, one by one: runs are reported together."""
    return sorted(
        (each.topic, each.partition, offset)
        for outcome in outcomes
        for change in outcome.changes
        for each in change.appended
        for offset in range(each.first, each.last + 1)
    )


def check_own(outcomes: list[ApplyOutcome]) -> None:
    """The writer of a commit gets a result for each of its batches, and the changes say the same."""
    for outcome in outcomes:
        assert outcome.message.envelope is not None
        if outcome.message.envelope.writer != "w1":
            assert outcome.results == []
            continue
        batches = encoding.decode_commit(outcome.message.envelope).batches
        assert len(outcome.results) == len(batches)
        told = [
            change_of(Batch(batch), result, own=True)
            for batch, result in zip(batches, outcome.results, strict=True)
            if isinstance(batch, list) and isinstance(result, Receipt)
        ]
        assert shown([ApplyOutcome(outcome.message, changes=told)]) == shown([outcome])


class Known:
    def end_of(self, place: PartitionPlace) -> PartitionEnd | None:
        return {("a", 0): (1, 10, 100, TS)}.get(place)


def test_what_may_be_refused_is_not_decided() -> None:
    plain, marked = Append("a", 0, "i", TS, b"1"), Append("a", 0, "i", TS, b"1", dedupe="i", dedupe_until=TS)
    elsewhere, expecting = Append("b", 0, "i", TS, b"1"), Append("a", 0, "i", TS, b"1", expect=10)
    batches: list[list[Operation]] = [[plain], [plain, plain], [expecting], [marked], [elsewhere], [Put("s", "k", b"")]]
    runs = AppendDecider(Known()).decide([*batches, [Guard("s", "k", 1), plain], [plain]])
    assert [(run.first, run.count) for run in runs] == [(0, 2), (3, 1), (7, 1)]
    assert [list(run.offsets(run.places())) for run in runs] == [[11, 12, 13], [15], [17]]


def test_values_of_the_wrong_type_are_left_to_the_nodes_that_refuse_them() -> None:
    assert AppendDecider(Known()).decide([[Append("a", 0, "i", "late", b"1")]]) == []  # type: ignore[arg-type]
