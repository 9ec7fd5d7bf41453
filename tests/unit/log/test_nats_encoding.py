"""The bytes in the stream. Old messages must be read for ever, so the bytes themselves are compared."""

from __future__ import annotations

import pytest

from mainspring.log import (
    Append,
    Batch,
    Delete,
    FormatError,
    Guard,
    KeptRecord,
    KeptTail,
    Mark,
    Put,
    Refused,
    Remove,
    Restorable,
    StoredEvent,
)
from mainspring.log.contract import groups
from mainspring.log.engines.nats import encoding
from mainspring.log.engines.nats.encoding import Snapshot, StreamEnvelope
from mainspring.log.engines.sqlite.appends import AppendRun, RunMark, RunPlace
from mainspring.log.engines.sqlite.chunks import PackedEvents

OPERATIONS = Batch(
    [
        Append("t", 1, "id", 2, b"{}", "k", b"h", "d", 3, 4),
        Put("s", "k", b"v", 5),
        Delete("s", "k", 6),
        Guard("s", "k", 7),
        Remove("t", 1, 8, (9,)),
    ]
)
FORMAT_1 = bytes.fromhex(
    "91959ba161a17401a269640 2c4027b7da16bc40168a1640304 95a170a173a16bc4017605 94a164a173a16b06 94a167a173a16b07"
    "95a172a17401089109".replace(" ", "")
)


def commit(body: bytes) -> StreamEnvelope:
    return StreamEnvelope("w", 1, "commit", body)


def test_format_1_of_operations() -> None:
    encoded = encoding.encode_batch(OPERATIONS)
    assert isinstance(encoded, bytes)
    assert encoding.encode_commit([encoded]) == FORMAT_1
    assert encoding.decode_commit(commit(FORMAT_1)) == [OPERATIONS.operations]


def test_format_1_of_what_moves_between_engines() -> None:
    items: list[Restorable] = [
        StoredEvent("t", 1, 2, "id", 3, b"{}", "k", b"h"),
        KeptTail("t", 1, 4),
        KeptRecord("s", "k", b"v", 5),
        Mark("t", "d", 1, 2, 6),
    ]
    wire = bytes.fromhex(
        "94 99a165a1740102a2696403c4027b7da16bc40168 94a174a1740104 95a16ba173a16bc4017605 96a16da174a164010206"
    )
    assert encoding.encode_restorables(items) == wire
    assert encoding.decode_restorables(wire) == items


def test_format_2_of_an_envelope() -> None:
    envelope = StreamEnvelope("w", 1, "commit", b"\x90", 2, 3, 4, b"d")
    wire = b"MSJ\x02\x98\xa1w\x01\xa6commit\xc4\x01\x90\x02\x03\x04\xc4\x01d"
    assert encoding.encode_envelope(envelope) == wire
    assert encoding.decode_envelope(wire) == envelope
    later = b"MSJ\x02\x99" + wire[5:] + b"\x05"  # what a later version adds at the end is passed over
    assert encoding.decode_envelope(later) == envelope


def test_format_1_of_an_envelope() -> None:
    envelope = StreamEnvelope("w", 1, "commit", b"\x90", 2, 3, 4, b"d")
    decided = b"MSJ\x01\x99\xa1w\x01\xa6commit\xc4\x01\x90\x02\x03\x04\xc4\x01d\xc4\x01r"  # passed over
    assert encoding.decode_envelope(decided) == envelope
    assert encoding.decode_envelope(b"MSJ\x01\x94\xa1w\x01\xa6commit\xc4\x01\x90") == StreamEnvelope(
        "w", 1, "commit", b"\x90"
    )


def test_format_1_of_a_snapshot_note() -> None:
    assert encoding.encode(Snapshot(1, 2, 3)) == b"\x93\x01\x02\x03"
    assert encoding.decode_snapshot(b"\x93\x01\x02\x03") == Snapshot(1, 2, 3)


def test_a_message_of_a_newer_format_is_an_error_and_noise_is_none() -> None:
    with pytest.raises(FormatError, match="format 3"):
        encoding.decode_envelope(b"MSJ\x03" + encoding.encode(["writer", 1, "commit", b"", "something new"]))
    huge = encoding.encode(["writer", 2**64 - 1, "commit", b""])
    for noise in (
        b"MSJ\x03anything",
        b"MSJ\x03\xc1",
        b"MSJ\x01" + huge,
        b"",
        b"x",
        b"MSJ",
        b"MSJ\x01",
        b"MSJ\x01\xc1",
        b"MSJ\x01\x91\x01",
        b"msj\x01\x90",
    ):
        assert encoding.decode_envelope(noise) is None


def test_one_bad_batch_does_not_spoil_its_neighbours() -> None:
    good = encoding.encode_batch(OPERATIONS)
    bad = encoding.encode_batch(Batch([Put("s", "k", "text instead of bytes")]))  # type: ignore[arg-type]
    assert isinstance(good, bytes)
    assert isinstance(bad, bytes)
    first, second, third = encoding.decode_commit(commit(encoding.encode_commit([good, bad, good])))
    assert first == third == OPERATIONS.operations
    assert isinstance(second, Refused)


def test_format_2_of_events_that_were_packed() -> None:
    chunk = PackedEvents(6, 7, 2, 8, 9, 10, b"s", b"d")
    run = AppendRun([RunPlace("t", 3, 4, 5, [chunk])], [1, 1], [0, 0], [RunMark(1, "m", 11, 12)])
    wire = bytes.fromhex(
        "91 84 a6706c61636573 91 95 a174 03 04 05 91 98 06 07 02 08 09 0a c40173 c40164"
        "a573697a6573 92 01 01 a56f72646572 92 00 00 a56d61726b73 91 94 01 a16d 0b 0c"
    )
    assert encoding.encode_commit([run]) == wire
    assert encoding.decode_commit(commit(wire)) == [run]
    assert encoding.decode_commit(commit(encoding.encode_commit([AppendRun(run.places)]))) == [AppendRun(run.places)]


def test_what_cannot_be_written_is_refused_at_once() -> None:
    for operation in (
        Put("s", "\ud800", b""),
        Append("t", 0, "id", 1 << 70, b""),
        Put("s", "k", object()),  # type: ignore[arg-type]
    ):
        assert isinstance(encoding.encode_batch(Batch([operation])), Refused)


def test_batches_share_messages_up_to_the_limit() -> None:
    assert [list(group) for group in groups([4] * 5, 9)] == [[0, 1], [2, 3], [4]]
    assert [list(group) for group in groups([99, 1, 99], 9)] == [[0], [1], [2]]
    assert list(groups([], 9)) == []
    assert list(encoding.parts_of(b"abcdefg", 3)) == [b"abc", b"def", b"g"]
    assert list(encoding.parts_of(b"", 3)) == [b""]
