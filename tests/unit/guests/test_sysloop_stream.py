"""The stream without I/O, under a clock that stands still: fragments, bounds, bad headers, timers to the nanosecond."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.guests.protocol.stream import OUTPUT_LIMIT, Stream
from mainspring.guests.socket.session import GuestSession
from mainspring.loop import VirtualClock
from tests.support.guests import (
    AGAIN,
    CLOSED,
    FOREVER,
    MS,
    TIMER,
    Answer,
    answers,
    arm,
    cancel,
    frame,
    poll,
    unwatch,
    watch,
)

MAX = 2**64 - 1


class Bench:
    """A loop on a virtual clock."""

    def __init__(self, start_ms: int = 1000) -> None:
        self.clock = VirtualClock(start_ms)
        self.session = GuestSession(self.clock)
        self.stream: Stream = self.session.stream

    def offer(self, data: bytes) -> list[Answer]:
        assert self.stream.offer(data) == len(data)
        return self.answers()

    def answers(self) -> list[Answer]:
        got = self.stream.read(1 << 20)
        return answers(got) if isinstance(got, bytes) else []

    def ask(self, request: bytes) -> Answer:
        (answer,) = self.offer(request)
        return answer

    def ticks(self, most: int = 64) -> list[int]:
        return self.ask(poll(most)).ids(TIMER)

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        self.session.close()


@pytest.fixture
def bench() -> Bench:
    return Bench()


# --- frames ---

REQUESTS = [
    watch(3, 1, 7),
    watch(3, 1, 7, flags=1),
    unwatch(5),
    arm(1, 0),
    arm(0, 0),
    cancel(1),
    poll(8, 0),
    poll(0, FOREVER),
    frame(0),
    frame(77, b"abc", rid=2**32 - 1),
    frame(5, b"short"),
    frame(5, bytes(8), reserved=1),
    frame(2, bytes(8), status=7),
]


@given(
    st.lists(st.sampled_from(REQUESTS), max_size=12),
    st.sampled_from([b"", b"X", b"ZCL", frame(5, version=2), frame(1, length=65513), bytes(40)]),
    st.data(),
)
@settings(max_examples=150)
def test_how_bytes_are_cut_changes_nothing(requests: list[bytes], tail: bytes, data: st.DataObject) -> None:
    stream = b"".join(requests) + tail
    with Bench() as whole, Bench() as cut:
        whole.stream.offer(stream)
        at = 0
        while at < len(stream):
            size = data.draw(st.integers(1, 40))
            taken = cut.stream.offer(stream[at : at + size])
            if taken == CLOSED:
                break
            at += taken
        assert whole.answers() == cut.answers()


@pytest.mark.parametrize(
    ("bad", "op", "rid", "why"),
    [
        (frame(5, rid=9, magic=b"ZCL2"), 0, 0, "bad magic"),
        (frame(5, rid=9, magic=b"1LCZ"), 0, 0, "bad magic"),
        (b"GET / HTTP/1.1\r\n\r\n", 0, 0, "bad magic"),
        (frame(5, rid=9, version=0), 5, 9, "unsupported version"),
        (frame(5, rid=9, version=2), 5, 9, "unsupported version"),
        (frame(1, rid=9, length=65513), 1, 9, "frame too large"),
        (frame(1, rid=9, length=2**32 - 1), 1, 9, "frame too large"),
    ],
)
def test_bytes_without_a_known_end_are_answered_once_and_end_the_stream(
    bench: Bench, bad: bytes, op: int, rid: int, why: str
) -> None:
    good, refusal = bench.offer(poll(rid=1) + bad + poll(rid=2))
    assert (good.rid, good.status) == (1, 1)
    assert (refusal.op, refusal.rid, refusal.error) == (op, rid, why)
    assert bench.stream.offer(poll()) == CLOSED
    assert bench.stream.read(10) == b""


def test_a_reserved_field_is_refused_alone(bench: Bench) -> None:
    refusal, good = bench.offer(frame(5, bytes(8), rid=9, reserved=1) + poll(rid=10))
    assert (refusal.op, refusal.rid, refusal.error) == (5, 9, "reserved must be 0")
    assert (good.rid, good.status) == (10, 1)


def test_the_largest_frame_is_judged_and_one_byte_more_is_too_large(bench: Bench) -> None:
    assert bench.ask(frame(1, bytes(65512))).error == "bad WATCH payload"
    assert bench.offer(frame(1, length=65513))[0].error == "frame too large"


# --- bounds ---


def test_unread_answers_hold_requests_back_and_nothing_is_lost(bench: Bench) -> None:
    taken = 0
    while (code := bench.stream.offer(unwatch(5, rid=taken + 1))) > 0:
        assert bench.stream.unread <= OUTPUT_LIMIT
        taken += 1
    assert code == AGAIN
    assert [answer.rid for answer in bench.answers()] == list(range(1, taken + 1))
    assert bench.ask(poll()).events == []


def test_a_batch_larger_than_the_room_for_answers_is_taken_in_part(bench: Bench) -> None:
    batch = b"".join(unwatch(5, rid=n) for n in range(3000))
    got: list[int] = []
    while batch:
        taken = bench.stream.offer(batch)
        assert taken > 0
        assert taken % 32 == 0, "no half request stays behind"
        batch = batch[taken:]
        got += [answer.rid for answer in bench.answers()]
    assert got == list(range(3000))


def test_the_last_byte_of_a_request_waits_for_room(bench: Bench) -> None:
    while bench.stream.offer(unwatch(5)) > 0:
        pass
    assert bench.stream.offer(poll(rid=77)[:-1]) == 31
    assert bench.stream.offer(poll(rid=77)[-1:]) == AGAIN
    bench.answers()
    assert [answer.rid for answer in bench.offer(poll(rid=77)[-1:])] == [77]


def test_an_answer_to_poll_fits_the_room_and_says_that_there_is_more(bench: Bench) -> None:
    for ident in range(1, 501):
        bench.ask(arm(ident, ident, flags=0))
    while bench.stream.unread < OUTPUT_LIMIT - 1000:
        bench.stream.offer(unwatch(5))
    bench.stream.offer(poll(500))
    answer = bench.answers()[-1]
    assert 0 < len(answer.events) < 500
    assert answer.more
    assert answer.ids(TIMER) + bench.ticks(500) == list(range(1, 501))


# --- timers ---


def test_a_poll_waits_for_exactly_its_timeout(bench: Bench) -> None:
    assert bench.offer(poll(8, 250)) == []
    assert bench.session.loop.wake_at() == bench.clock.now_ns() + 250 * MS
    bench.clock.advance(249)
    assert not bench.stream.resume()
    bench.clock.advance(1)
    assert bench.stream.resume()
    assert bench.answers()[0].events == []


def test_a_poll_for_ever_has_no_deadline_but_its_timers(bench: Bench) -> None:
    bench.offer(poll(8, FOREVER))
    assert bench.session.loop.wake_at() is None
    assert bench.stream.offer(poll()) == AGAIN, "nothing is taken while a request waits"
    bench.session.loop.interrupt()
    assert bench.stream.resume()
    bench.answers()
    bench.ask(arm(1, 5 * MS))
    bench.offer(poll(8, FOREVER))
    assert bench.session.loop.wake_at() == bench.clock.now_ns() + 5 * MS


def test_timers_come_by_deadline_and_equal_ones_as_they_were_armed(bench: Bench) -> None:
    for ident, due in [(1, 30), (2, 10), (3, 20), (4, 10), (5, 0)]:
        bench.ask(arm(ident, due, flags=0))
    assert (bench.ticks(2), bench.ticks()) == ([5, 2], [4, 3, 1])


def test_missed_ticks_are_one_event_and_the_grid_is_kept(bench: Bench) -> None:
    bench.ask(arm(1, 10 * MS, interval=10 * MS))
    bench.clock.advance(57)
    assert (bench.ticks(), bench.ticks()) == ([1], [])
    bench.clock.advance(2)
    assert bench.ticks() == []
    bench.clock.advance(1)
    assert bench.ticks() == [1], "60 ms after it was armed, however late the tick before was fetched"


def test_the_shortest_interval_is_one_event_per_poll(bench: Bench) -> None:
    bench.ask(arm(1, 0, interval=1))
    assert bench.ticks() == [1]
    assert bench.ticks() == [], "the clock stands still"
    bench.clock.advance(1)
    assert bench.ticks() == [1]


@pytest.mark.parametrize("due", [MAX, MAX - 1, 2**63, MAX - 1000 * MS + 1])
def test_far_deadlines_saturate_instead_of_wrapping(bench: Bench, due: int) -> None:
    bench.ask(arm(1, due))
    bench.ask(arm(2, 0, interval=MAX))
    assert (bench.ticks(), bench.ticks()) == ([2], [])
    assert bench.session.loop.wake_at() is not None


def test_arming_again_replaces(bench: Bench) -> None:
    bench.ask(arm(1, 0))
    bench.ask(arm(1, 5 * MS, interval=MS))
    assert bench.ticks() == []
    bench.ask(arm(1, 0))
    assert bench.ticks() == [1]
    assert bench.ask(cancel(1)).error == "unknown timer_id"


class Model:
    """Timers as a sorted list: what the loop must say."""

    def __init__(self, now: int) -> None:
        self.now = now
        self.timers: dict[int, tuple[int, int, int]] = {}  # id: deadline, order, interval
        self.order = 0

    def arm(self, ident: int, due: int, interval: int, relative: bool) -> None:
        self.order += 1
        self.timers[ident] = (min(self.now + due if relative else due, MAX), self.order, interval)

    def poll(self, most: int) -> list[int]:
        due = sorted((at, order, ident) for ident, (at, order, _) in self.timers.items() if at <= self.now)[:most]
        for at, _, ident in due:
            interval = self.timers.pop(ident)[2]
            if interval:
                self.arm(ident, at + ((self.now - at) // interval + 1) * interval, interval, False)
        return [ident for _, _, ident in due]


DUE = st.one_of(st.integers(0, 20), st.integers(0, 5000 * MS), st.sampled_from([0, 1000 * MS, MAX, 2**63]))
STEPS = st.one_of(
    st.tuples(st.just("arm"), st.integers(1, 8), DUE, st.one_of(st.just(0), DUE), st.booleans()),
    st.tuples(st.just("cancel"), st.integers(1, 8)),
    st.tuples(st.just("poll"), st.integers(1, 9)),
    st.tuples(st.just("pass"), st.integers(0, 2000)),
)


@given(st.lists(STEPS, max_size=40))
@settings(max_examples=200)
def test_timers_against_a_model(steps: list[tuple[object, ...]]) -> None:
    with Bench() as bench:
        model = Model(bench.clock.now_ns())
        for step in steps:
            match step:
                case ("arm", int(ident), int(due), int(interval), bool(relative)):
                    assert bench.ask(arm(ident, due, interval, int(relative))).status == 1
                    model.arm(ident, due, interval, relative)
                case ("cancel", int(ident)):
                    known = model.timers.pop(ident, None) is not None
                    assert bench.ask(cancel(ident)).status == int(known)
                case ("poll", int(most)):
                    answer = bench.ask(poll(most))
                    assert answer.ids(TIMER) == model.poll(most)
                    assert answer.more == any(at <= model.now for at, _, _ in model.timers.values())
                case ("pass", int(ms)):
                    bench.clock.advance(ms)
                    model.now = bench.clock.now_ns()
