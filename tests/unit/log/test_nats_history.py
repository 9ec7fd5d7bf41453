"""The digest over a log's history, without a server."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("nats")

from mainspring.log import Receipt, Refused
from mainspring.log.engines.nats.encoding import COMMIT, StreamEnvelope
from mainspring.log.engines.nats.history import RESTART, SeenHistory, StreamMessage, numbers_of

Applied = tuple[StreamMessage, list[int]]


def message(seq: int, writer: str = "w", *, seen: int = 0, digest: bytes = b"") -> StreamMessage:
    return StreamMessage(seq, 1_000 + seq, 10, StreamEnvelope(writer, seq, COMMIT, b"", 0, 1, seen, digest))


def applied(count: int, start: int = 1) -> list[Applied]:
    return [(message(seq), numbers_of(Receipt(((0, seq, False),)))) for seq in range(start, start + count)]


def history(work: list[Applied], *sizes: int) -> SeenHistory:
    """As it is after the work, done in groups of these sizes and the rest at once."""
    seen = SeenHistory()
    at = 0
    for size in (*sizes, len(work)):
        if work[at : at + size]:
            seen.move(seen.after(work[at : at + size]))
        at += size
    return seen


@given(st.lists(st.integers(1, 5), max_size=6))
def test_how_messages_are_grouped_into_transactions_does_not_matter(sizes: list[int]) -> None:
    work = applied(20)
    assert history(work, *sizes).digest == history(work).digest != b""


@given(st.integers(0, 19), st.sampled_from(["message", "offset", "refused", "version"]))
def test_any_difference_is_a_difference_for_good(at: int, kind: str) -> None:
    work = applied(20)
    other = list(work)
    results: list[int] = {
        "message": work[at][1],
        "offset": numbers_of(Receipt(((0, 99, False),))),
        "refused": numbers_of(Refused("no")),
        "version": numbers_of(Receipt(((0, at + 1, False),), (7,))),
    }[kind]
    other[at] = (message(at + 1, "other") if kind == "message" else work[at][0], results)
    ours, theirs = history(work), history(other)
    assert ours.digest != theirs.digest
    told = message(21, seen=20, digest=theirs.digest).envelope
    assert told is not None
    assert ours.differs(told)
    assert ours.same_messages(told) is (kind != "message")


def test_a_history_that_was_not_followed_from_the_start_has_a_digest_from_the_next_restart_on() -> None:
    whole = history(applied(RESTART + 10))
    late = SeenHistory(RESTART - 5)
    late.move(late.after(applied(5, RESTART - 4)))
    assert late.digest == b""
    late.move(late.after(applied(10, RESTART + 1)))
    assert late.digest == whole.digest != b""


def test_what_is_not_known_any_more_or_never_was_is_no_difference() -> None:
    ours = history(applied(20))
    assert not ours.differs(message(21, seen=400, digest=b"x" * 12).envelope)
    assert not ours.differs(message(21).envelope)
    assert not ours.differs(None)
