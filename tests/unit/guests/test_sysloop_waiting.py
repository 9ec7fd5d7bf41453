"""POLL in a guest of this process: who is reported, in what order, and when it waits."""

from __future__ import annotations

import itertools
import os
import resource
import select
import socket
from collections.abc import Iterator

import pytest

from mainspring.guests import Guest, NeedsLinux, NotAttachable, open_loop
from tests.support.guests import (
    AGAIN,
    ERROR,
    FOREVER,
    HUP,
    MS,
    READABLE,
    READY,
    TIMER,
    WRITABLE,
    Host,
    Loop,
    answers,
    arm,
    cancel,
    nothing_left_behind,
    poll,
    unwatch,
    watch,
)


def always_ready(loop: Loop, host: Host, count: int) -> list[int]:
    """Watches on `count` handles that are writable for ever, under the ids 1, 2, 3 ..."""
    handles = [loop.guest.attach(host.event()) for _ in range(count)]
    for ident, handle in enumerate(handles, 1):
        loop.watch(handle, WRITABLE, ident)
    return handles


# --- fairness ---


@pytest.mark.parametrize("most", [1, 2, 3, 7, 9])
def test_ready_watches_take_turns(loop: Loop, host: Host, most: int) -> None:
    always_ready(loop, host, 10)
    served: list[int] = []
    while len(served) < 200:
        served += loop.poll(most).ids(READY)
    for start in range(0, 190, 10):
        assert len(set(served[start : start + 10])) == 10, "ten in a row are ten different ones"


def test_timers_and_watches_share_single_places(loop: Loop, host: Host) -> None:
    always_ready(loop, host, 3)
    for ident in range(1, 4):
        loop.ok(arm(ident, 0, interval=1, flags=0))
    seen = [loop.poll(1).events[0] for _ in range(60)]
    assert [kind for kind, *_ in seen[:6]] in ([READY, TIMER] * 3, [TIMER, READY] * 3)
    assert {(kind, ident) for kind, _, _, ident in seen[:6]} == {(kind, n) for kind in (1, 2) for n in (1, 2, 3)}


def test_one_side_gets_all_places_the_other_does_not_need(loop: Loop, host: Host) -> None:
    always_ready(loop, host, 2)
    for ident in range(1, 11):
        loop.ok(arm(ident, ident, flags=0))
    answer = loop.poll(8)
    assert (len(answer.ids(READY)), answer.ids(TIMER), answer.more) == (2, [1, 2, 3, 4, 5, 6], True)


@pytest.mark.parametrize("most", range(1, 8))
def test_the_more_flag_tells_the_truth(loop: Loop, host: Host, most: int) -> None:
    always_ready(loop, host, 3)
    for ident in (1, 2):
        loop.ok(arm(ident, 1, flags=0))
    left = 2
    for _ in range(6):
        answer = loop.poll(most)
        ready = 3 + left
        assert len(answer.events) == min(most, ready)
        assert answer.more == (ready > most)
        left -= len(answer.ids(TIMER))


def test_the_more_flag_looks_past_watches_that_are_no_longer_ready(loop: Loop, host: Host) -> None:
    events = [host.event(1) for _ in range(4)]
    for ident, event in enumerate(events, 1):
        loop.watch(loop.guest.attach(event), READABLE, ident)
    assert loop.poll(1).more
    for event in events[1:]:
        os.eventfd_read(event.fileno())
    answer = loop.poll(1)
    assert (answer.ids(READY), answer.more) == ([1], False)


def test_more_events_than_a_frame_holds_come_in_several_answers(loop: Loop) -> None:
    for ident in range(1, 3001):
        loop.ok(arm(ident, ident, flags=0))
    first, second = loop.poll(FOREVER), loop.poll(FOREVER)
    assert (len(first.events), first.more, second.more) == (2046, True, False)
    assert first.ids(TIMER) + second.ids(TIMER) == list(range(1, 3001))


# --- hangups ---


def test_a_hangup_nobody_asked_for_leaves_others_alone(loop: Loop, host: Host) -> None:
    reader, writer = host.pipe()
    loop.watch(loop.guest.attach(reader), READABLE, 1)
    writer.close()
    before = loop.guest.waits
    loop.ok(arm(5, 30 * MS))
    assert loop.poll(8, FOREVER).events == [(TIMER, 0, 0, 5)]
    assert loop.guest.waits - before <= 3, "it slept instead of running in circles"


def test_a_dead_pipe_wakes_a_watch_that_comes_later(loop: Loop, host: Host) -> None:
    reader, writer = host.pipe()
    handle = loop.guest.attach(reader)
    loop.watch(handle, READABLE, 1)
    writer.close()
    assert loop.poll().events == []
    loop.watch(handle, HUP, 2)
    assert loop.poll(8, FOREVER).events == [(READY, HUP, handle, 2)]


def test_each_watch_gets_only_its_own_bits(loop: Loop, host: Host) -> None:
    stream, peer = host.unix_pair()
    handle = loop.guest.attach(stream)
    for events in range(1, 16):
        loop.watch(handle, events, events)
    peer.close()
    true = READABLE | WRITABLE | HUP
    expected = {(READY, events & true, handle, events) for events in range(1, 16) if events & true}
    assert set(loop.poll().events) == expected


def test_an_orderly_tcp_close_is_a_hangup(loop: Loop, host: Host) -> None:
    stream, peer = host.tcp_pair()
    handle = loop.guest.attach(stream)
    loop.watch(handle, HUP, 1)
    assert loop.poll().events == []
    peer.close()
    assert loop.poll(8, FOREVER).events == [(READY, HUP, handle, 1)]


def test_error_on_a_pipe_whose_reader_is_gone(loop: Loop, host: Host) -> None:
    reader, writer = host.pipe()
    handle = loop.guest.attach(writer)
    loop.watch(handle, ERROR, 1)
    loop.watch(handle, READABLE, 2)
    reader.close()
    assert loop.poll(8, FOREVER).events == [(READY, ERROR, handle, 1)]


# --- level-triggered ---


def test_what_is_still_true_is_reported_again_and_what_is_not_is_not(loop: Loop, host: Host) -> None:
    event = host.event()
    handle = loop.guest.attach(event)
    loop.watch(handle, READABLE, 1)
    for _ in range(3):
        assert loop.poll().events == []
        os.eventfd_write(event.fileno(), 5)
        assert loop.poll().events == loop.poll().events == [(READY, READABLE, handle, 1)]
        os.eventfd_read(event.fileno())


def test_a_waiting_poll_is_woken_by_data(loop: Loop, host: Host) -> None:
    reader, writer = host.pipe()
    handle = loop.guest.attach(reader)
    loop.watch(handle, READABLE, 1)
    assert loop.poll().events == []
    host.later(0.02, lambda: writer.write(b"x"))
    assert loop.poll(8, FOREVER).events == [(READY, READABLE, handle, 1)]


def test_files_and_directories_are_always_ready(loop: Loop, host: Host, tmp_path: object) -> None:
    file = loop.guest.attach(host.file())
    null = os.open("/dev/null", os.O_RDWR)
    device = loop.guest.attach(null)
    os.close(null)
    loop.watch(file, READABLE | WRITABLE, 1)
    loop.watch(file, READABLE, 2)
    loop.watch(file, HUP, 3)
    loop.watch(device, READABLE, 4)
    both = READABLE | WRITABLE
    for _ in range(2):
        expected = [(READY, both, file, 1), (READY, READABLE, file, 2), (READY, READABLE, device, 4)]
        assert sorted(loop.poll(8, FOREVER).events, key=lambda event: event[3]) == expected
    for ident in (1, 2, 3, 4):
        loop.ok(unwatch(ident))
    assert loop.poll().events == []


def test_one_handle_in_two_loops(guest: Guest, host: Host) -> None:
    one, other = Loop(guest), Loop(guest)
    event = host.event(1)
    handle = guest.attach(event)
    one.watch(handle, READABLE, 1)
    other.watch(handle, READABLE | WRITABLE, 1)
    assert one.poll().events == [(READY, READABLE, handle, 1)]
    assert other.poll().events == [(READY, READABLE | WRITABLE, handle, 1)]
    one.ok(unwatch(1))
    assert (one.poll().events, len(other.poll().events)) == ([], 1)


def test_unwatching_one_of_two_leaves_the_other_its_bits(loop: Loop, host: Host) -> None:
    event = host.event()
    handle = loop.guest.attach(event)
    loop.watch(handle, READABLE, 1)
    loop.watch(handle, WRITABLE, 2)
    loop.ok(unwatch(2))
    assert loop.poll().events == []
    os.eventfd_write(event.fileno(), 1)
    assert loop.poll(8, FOREVER).events == [(READY, READABLE, handle, 1)]


def test_a_loop_cannot_watch_loops_itself_or_the_standard_streams(guest: Guest, loop: Loop, host: Host) -> None:
    guest.reserve(0, host.event(1))
    for handle in (0, 1, 2, loop.handle, Loop(guest).handle, guest.open("sys", "info"), 99, 2**31, 2**32 - 1):
        assert loop.ask(watch(handle, 1, 1)).error == "watch failed"


def test_an_epoll_descriptor_can_be_watched_and_its_failure_is_an_answer(loop: Loop, host: Host) -> None:
    chain = [host.keep(select.epoll()) for _ in range(8)]
    for outer, inner in itertools.pairwise(chain):
        try:
            outer.register(inner.fileno(), select.EPOLLIN)
        except OSError:
            break  # as deep as the kernel nests them
    assert loop.ask(watch(loop.guest.attach(chain[0]), 1, 1)).error == "watch failed"
    assert loop.poll().events == []


# --- handles ---


def test_ending_a_handle_ends_its_watches_in_every_loop(guest: Guest, host: Host) -> None:
    one, other = Loop(guest), Loop(guest)
    handle, stays = guest.attach(host.event()), guest.attach(host.event())
    for loop in (one, other):
        loop.watch(handle, WRITABLE, 1)
        loop.watch(stays, WRITABLE, 2)
    assert guest.end(handle) == 0
    for loop in (one, other):
        assert loop.poll().events == [(READY, WRITABLE, stays, 2)]
        assert loop.ask(unwatch(1)).error == "unknown watch_id"
        assert loop.ask(watch(handle, WRITABLE, 3)).error == "watch failed"


def test_the_host_may_close_its_copy(loop: Loop, host: Host) -> None:
    reader, writer = host.pipe()
    handle = loop.guest.attach(reader)
    reader.close()
    loop.watch(handle, READABLE, 1)
    writer.write(b"still here")
    assert loop.poll(8, FOREVER).events == [(READY, READABLE, handle, 1)]
    assert loop.guest.read(handle, 100) == b"still here"


def test_attached_handles_read_and_write_without_blocking(guest: Guest) -> None:
    ours, theirs = socket.socketpair()  # both blocking
    with ours, theirs:
        handle = guest.attach(ours)
        assert guest.read(handle, 10) == AGAIN
        assert guest.read(handle, 0) == b""
        assert guest.write(handle, b"ping") == 4
        assert theirs.recv(10) == b"ping"
        sent = 0
        while (count := guest.write(handle, bytes(100_000))) > 0:
            sent += count
        assert count == AGAIN
        assert sent > 0
        theirs.close()
        assert guest.write(handle, b"x") == -9


def test_what_is_no_descriptor_cannot_be_attached(guest: Guest) -> None:
    with socket.socket() as closed:
        pass
    for thing in (closed, 99_999, -1):
        with pytest.raises(NotAttachable) as caught:
            guest.attach(thing)
        assert caught.value.code == "not_attachable"


def test_a_full_table_refuses_and_leaks_nothing(host: Host) -> None:
    event = host.event()
    with nothing_left_behind(), Guest(max_handles=2) as guest:
        assert (guest.open("sys", "loop"), guest.attach(event)) == (3, 4)
        assert (guest.open("sys", "info"), guest.open("sys", "loop"), guest.attach(0)) == (-8, -8, -8)
        assert guest.end(4) == 0
        assert guest.open("sys", "info") == 5


def test_everything_ends_with_the_guest(host: Host) -> None:
    events = [host.event() for _ in range(5)]
    with nothing_left_behind():
        guest = Guest()
        loop = Loop(guest)
        for ident, event in enumerate(events, 1):
            loop.watch(guest.attach(event), WRITABLE, ident)
        assert len(loop.poll().events) == 5
        del loop, guest


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_ten_thousand_watches(loop: Loop, host: Host, many_descriptors: None) -> None:
    events = [host.event() for _ in range(1000)]
    handles = [loop.guest.attach(event) for event in events]
    for ident in range(1, 10_001):
        loop.watch(handles[ident % 1000], READABLE, ident)
    assert loop.poll().events == []
    os.eventfd_write(events[7].fileno(), 1)
    expected = {(READY, READABLE, handles[7], ident) for ident in range(7, 10_001, 1000)}
    assert set(loop.poll().events) == expected
    for event in events:
        os.eventfd_write(event.fileno(), 1)
    seen: list[int] = []
    while len(seen) < 10_000:
        answer = loop.poll(1000)
        seen += answer.ids(READY)
        assert answer.more
    assert sorted(seen) == list(range(1, 10_001)), "each once before any comes again"


def test_without_epoll_the_reason_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(select, "epoll")
    with nothing_left_behind(), pytest.raises(NeedsLinux) as caught:
        Guest()
    assert "Linux" in caught.value.remedy


# --- interruption ---


def test_an_interrupted_poll_has_no_events(loop: Loop, host: Host) -> None:
    host.later(0.02, loop.guest.interrupt)
    answer = loop.poll(8, FOREVER)
    assert (answer.status, answer.events, answer.more) == (1, [], False)


def test_an_interruption_that_came_early_is_for_the_next_poll_that_would_wait(loop: Loop, host: Host) -> None:
    always_ready(loop, host, 1)
    loop.guest.interrupt()
    assert len(loop.poll(8, FOREVER).events) == 1
    loop.ok(unwatch(1))
    assert loop.poll(8, FOREVER).events == []
    loop.ok(arm(1, 0))
    assert loop.poll(8, FOREVER).ids(TIMER) == [1]


def test_requests_behind_a_poll_in_one_write_wait_for_it(loop: Loop, host: Host) -> None:
    loop.ok(arm(1, 20 * MS))
    batch = poll(8, FOREVER, rid=1) + arm(2, 0, rid=2) + poll(8, FOREVER, rid=3) + cancel(2, rid=4)
    assert loop.guest.write(loop.handle, batch) == len(batch)
    first, second, third, fourth = answers(loop.drain())
    assert (first.ids(TIMER), second.rid, third.ids(TIMER), fourth.error) == ([1], 2, [2], "unknown timer_id")


def test_the_client_works_inside_too(guest: Guest, host: Host) -> None:
    event = host.event()
    with nothing_left_behind(), open_loop(guest) as loop:
        handle = loop.attach(event)
        loop.watch(handle, WRITABLE, 1)
        assert [(event.id, event.events) for event in loop.poll().events] == [(1, WRITABLE)]
        loop.end(handle)
        assert loop.poll(timeout_ms=0).events == []


def test_a_limit_of_descriptors_that_was_lowered_later_does_not_matter(loop: Loop, host: Host) -> None:
    always_ready(loop, host, 100)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (40, hard))
    try:
        assert sorted(loop.poll(500).ids(READY)) == list(range(1, 101))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_interrupting_a_guest_that_has_ended_touches_nobody() -> None:
    guest = Guest()
    guest.close()
    others = [os.eventfd(0, os.EFD_NONBLOCK) for _ in range(8)]  # one of them has the number of the guest's bell now
    guest.interrupt()
    for other in others:
        with pytest.raises(BlockingIOError):
            os.eventfd_read(other)
        os.close(other)
