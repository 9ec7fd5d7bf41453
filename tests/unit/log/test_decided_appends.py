"""What a writer packed is stored as it is, or decided again: the log is the same, byte for byte.

A stream of random commits is applied to replicas that were told different things: what the writer packed, the same
batches one by one (as by an older version), or what a writer packed that knew less than it should. All come to the same
file, the same digest and the same results.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from mainspring.log import Append, Batch, Delete, Guard, Operation, Put, Receipt, Refused, Remove
from mainspring.log.contract import change_of
from mainspring.log.engines.nats import encoding
from mainspring.log.engines.nats.encoding import StreamEnvelope
from mainspring.log.engines.nats.history import StreamMessage
from mainspring.log.engines.nats.replica import ApplyOutcome, ReplicaWriter
from mainspring.log.engines.sqlite import appends
from mainspring.log.engines.sqlite.appends import AppendDecider, AppendRun, KnownEnds, PartitionEnd, PartitionPlace
from tests.support.log_file import stored_events

TS = 1_700_000_000_000
TABLES = ("records", "marks", "replica", "writers")
PARTITIONS = (
    "SELECT id, topic, partition, removed, removed_bytes, head FROM partitions"  # its tail is of the last removal
)


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every event that may be packed is, however few there are."""
    monkeypatch.setattr(appends, "FEW_EVENTS", 1)


def body_of(batches: Sequence[Sequence[Operation]], known: KnownEnds) -> bytes:
    decider = AppendDecider(known)
    joins = [decider.size_in_run(batch) > 0 for batch in batches]
    return encoding.encode_commit(
        [
            item if isinstance(item, AppendRun) else encoding.encode(batches[item])
            for item in decider.decide(batches, joins)
        ]
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
        seq = len(self.messages) + 1
        body = body_of([batch.operations for batch in batches], self.writer.log_state)
        envelope = StreamEnvelope(f"w{seq % 2}", seq, encoding.COMMIT, body)
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


def batches_of(message: StreamMessage) -> list[list[Operation]]:
    assert message.envelope is not None
    found: list[list[Operation]] = []
    for item in encoding.decode_commit(message.envelope):
        assert not isinstance(item, Refused)
        found += item.batches() if isinstance(item, AppendRun) else [item]
    return found


def told(messages: Sequence[StreamMessage], tell: Callable[[list[list[Operation]]], bytes]) -> list[StreamMessage]:
    return [
        msgspec.structs.replace(
            message, envelope=msgspec.structs.replace(message.envelope, body=tell(batches_of(message)))
        )
        for message in messages
        if message.envelope is not None
    ]


class Elsewhere:
    """Knows every partition, and each with another end than it has."""

    def end_of(self, place: PartitionPlace) -> PartitionEnd | None:
        return (7, 1_000)


@pytest.mark.parametrize("seed", range(12))
def test_every_replica_is_the_same_whatever_its_writer_decided(seed: int, tmp_path: Path) -> None:
    stream = Stream(tmp_path, seed)
    for _ in range(60):
        stream.grow()
    stream.apply()
    stream.writer.stop()
    expected = content(tmp_path / "writer.sqlite3")
    assert len(expected["events"]) > 50
    ways: dict[str, Callable[[list[list[Operation]]], bytes] | None] = {
        "packed": None,
        "one by one": lambda batches: encoding.encode_commit([encoding.encode(batch) for batch in batches]),
        "wrong": lambda batches: body_of(batches, Elsewhere()),
    }
    for number, (name, tell) in enumerate(ways.items()):
        path = tmp_path / f"{name}.sqlite3"
        follower = ReplicaWriter(path)
        follower.me = "w1"
        messages = stream.messages if tell is None else told(stream.messages, tell)
        outcomes = applied(follower, messages, at_once=1 + 7 * number)
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
        batches = batches_of(outcome.message)
        assert len(outcome.results) == len(batches)
        changes = [
            change_of(Batch(batch), result, own=True)
            for batch, result in zip(batches, outcome.results, strict=True)
            if isinstance(result, Receipt)
        ]
        assert shown([ApplyOutcome(outcome.message, changes=changes)]) == shown([outcome])


class Known:
    def end_of(self, place: PartitionPlace) -> PartitionEnd | None:
        return {("a", 0): (1, 10), ("a", 1): (2, 5)}.get(place)


PLAIN, MARKED = Append("a", 0, "i", TS, b"1"), Append("a", 1, "i", TS, b"1", dedupe="i", dedupe_until=TS)


def decided(*batches: list[Operation]) -> list[AppendRun | int]:
    decider = AppendDecider(Known())
    return decider.decide(batches, [decider.size_in_run(batch) > 0 for batch in batches])


def test_what_may_be_refused_is_not_packed() -> None:
    elsewhere, expecting = Append("b", 0, "i", TS, b"1"), Append("a", 0, "i", TS, b"1", expect=10)
    items = decided(
        [PLAIN],
        [PLAIN, MARKED],
        [expecting],
        [MARKED],
        [elsewhere],
        [Put("s", "k", b"")],
        [Guard("s", "k", 1), PLAIN],
        [PLAIN],
    )
    assert [type(item) for item in items] == [AppendRun, int, AppendRun, int, int, int, AppendRun]
    runs = [item for item in items if isinstance(item, AppendRun)]
    assert [list(run.offsets()) for run in runs] == [[11, 12, 6], [7], [15]]
    assert [run.batches() for run in runs] == [[[PLAIN], [PLAIN, MARKED]], [[MARKED]], [[PLAIN]]]
    assert [run.count_batches() for run in runs] == [2, 1, 1]


def test_few_events_go_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appends, "FEW_EVENTS", 3)
    assert decided([PLAIN], [PLAIN]) == [0, 1]
    assert isinstance(decided([PLAIN], [PLAIN, PLAIN])[0], AppendRun)


def test_values_of_the_wrong_type_are_left_to_the_nodes_that_refuse_them() -> None:
    replace = msgspec.structs.replace
    for wrong in (
        replace(PLAIN, ts="late"),
        replace(PLAIN, ts=1.5),
        replace(PLAIN, ts=1 << 70),
        replace(PLAIN, partition=False),
        replace(PLAIN, id=b"i"),
        replace(PLAIN, id="\ud800"),
        replace(PLAIN, key=b"k"),
        replace(PLAIN, payload="text"),
        replace(MARKED, dedupe=b"i"),
        replace(MARKED, dedupe_until=1.5),
    ):
        assert decided([wrong]) == [0], wrong


@pytest.mark.parametrize(
    "wrong",
    [
        {"sizes": [1, 1, 2]},
        {"sizes": [4, -1]},
        {"order": [0, 0]},
        {"order": [0, 1, 1]},
        {"order": [0, 0, 7]},
        {"order": []},
        {"places": []},
        {"marks": [appends.RunMark(3, "d", TS, 1)]},
    ],
)
def test_a_run_whose_parts_do_not_fit_is_refused_by_every_node(wrong: dict[str, object], tmp_path: Path) -> None:
    (run,) = decided([PLAIN], [PLAIN, MARKED])
    assert isinstance(run, AppendRun)
    assert run.is_sound()
    refused(msgspec.structs.replace(run, **wrong), tmp_path)


def test_a_run_with_a_flipped_bit_is_refused_by_every_node(tmp_path: Path) -> None:
    (run,) = decided([PLAIN], [PLAIN])
    assert isinstance(run, AppendRun)
    place = run.places[0]
    chunk = place.chunks[0]
    for damaged in (
        chunk._replace(data=chunk.data[:-1] + bytes((chunk.data[-1] ^ 1,))),
        chunk._replace(first=12),
        chunk._replace(last=13),
        chunk._replace(events=0),
    ):
        refused(msgspec.structs.replace(run, places=[place._replace(chunks=[damaged])]), tmp_path)


def refused(run: AppendRun, place: Path) -> None:
    """Applying it stores nothing, and the node goes on."""
    writer = ReplicaWriter(place / "replica.sqlite3")
    try:
        following = writer.state.applied + 1
        envelope = StreamEnvelope("w", following, encoding.COMMIT, encoding.encode_commit([run]))
        (outcome,) = applied(writer, [StreamMessage(following, TS, 1, envelope)], at_once=1)
        assert outcome.came_to == [-1]
        assert outcome.changes == []
        assert writer.log_state.partitions == {}
    finally:
        writer.stop()
