"""The loop socket: guests next to each other, descriptors that travel, and every way to leave."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import socket
import stat
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from mainspring.guests.socket import LoopSocketServer, SocketTaken
from mainspring.loop import MonotonicClock
from tests.support.guests import (
    FOREVER,
    HUP,
    MS,
    READABLE,
    READY,
    TIMER,
    WRITABLE,
    Host,
    arm,
    frame,
    open_descriptors,
    poll,
    unwatch,
    watch,
)
from tests.support.loop_server import LOOPS, Served, Visitor, serving


@pytest.fixture(params=LOOPS)
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    with serving(LOOPS[request.param]) as running:
        yield running


def waiting(served: Served, host: Host) -> tuple[Visitor, object]:
    """A guest in a POLL for ever, and the pipe end that wakes it."""
    reader, writer = host.pipe()
    guest = host.keep(SocketOf(served.connect()))
    guest.visitor.ask(watch(3, READABLE | HUP, 1), reader)
    reader.close()
    guest.visitor.send(poll(8, FOREVER, rid=99))
    return guest.visitor, writer


class SocketOf:
    def __init__(self, visitor: Visitor) -> None:
        self.visitor = visitor

    def close(self) -> None:
        self.visitor.sock.close()


# --- one guest ---


def test_a_guest_watches_waits_and_is_told(served: Served, host: Host) -> None:
    reader, writer = host.pipe()
    with served.connect() as guest:
        assert guest.ask(watch(3, READABLE | HUP, 7), reader).status == 1
        assert guest.ask(poll()).events == []
        writer.write(b"x")
        for _ in range(2):
            assert guest.ask(poll(8, FOREVER)).events == [(READY, READABLE, 3, 7)]
        os.read(reader.fileno(), 1)
        assert guest.ask(arm(9, 10 * MS)).status == 1
        assert guest.ask(poll(8, FOREVER)).events == [(TIMER, 0, 0, 9)]
        assert guest.ask(poll(8, 10)).events == []
        writer.close()
        assert guest.ask(poll(8, FOREVER)).events == [(READY, HUP, 3, 7)]
        assert guest.ask(watch(4, 1, 8)).error == "watch failed"


def test_descriptors_are_numbered_as_they_come(served: Served, host: Host) -> None:
    events = [host.event() for _ in range(253)]
    with served.connect() as guest:
        guest.ask(watch(3, READABLE, 1), events[0])
        guest.ask(watch(252, READABLE, 2), *events[1:250])
        guest.ask(watch(255, READABLE, 3), *events[250:])
        for number in (0, 249, 252):
            os.eventfd_write(events[number].fileno(), 1)
        assert sorted(guest.ask(poll()).ids(READY)) == [1, 2, 3]
        assert guest.ask(watch(256, READABLE, 4)).error == "watch failed"


def test_a_handle_can_be_ended_and_its_number_does_not_come_again(served: Served, host: Host) -> None:
    reader, writer = host.pipe()
    with served.connect() as guest:
        guest.ask(watch(3, READABLE, 1), reader)
        reader.close()
        assert guest.ask(frame(1000, struct.pack("<I", 3))).status == 1
        question = select.poll()
        question.register(writer.fileno(), select.POLLERR)
        assert question.poll(10_000) == [(writer.fileno(), select.POLLERR)], "the node's copy is closed"
        assert guest.ask(unwatch(1)).error == "unknown watch_id"
        assert guest.ask(frame(1000, struct.pack("<I", 3))).error == "unknown handle"
        assert guest.ask(frame(1000, b"x")).error == "bad HANDLE_END payload"
        assert guest.ask(watch(4, WRITABLE, 2), host.event()).status == 1


def test_requests_behind_a_waiting_poll_keep_their_turn(served: Served, host: Host) -> None:
    guest, writer = waiting(served, host)
    guest.send(poll(rid=2) + unwatch(1, rid=3))
    assert guest.silent()
    writer.write(b"x")  # type: ignore[attr-defined]
    assert [guest.receive().rid for _ in range(3)] == [99, 2, 3]


def test_a_guest_that_sends_no_more_still_gets_its_answers(served: Served) -> None:
    with served.connect() as guest:
        guest.send(arm(1, 30 * MS, rid=1) + poll(8, FOREVER, rid=2))
        guest.sock.shutdown(socket.SHUT_WR)
        assert [answer.rid for answer in guest.rest()] == [1, 2]


# --- many guests ---


def test_forty_guests_wait_and_each_is_woken_alone(served: Served, host: Host) -> None:
    guests = [waiting(served, host) for _ in range(40)]
    with served.connect() as other:
        assert other.ask(poll()).status == 1
    for number, (guest, writer) in enumerate(guests):
        writer.write(b"x")  # type: ignore[attr-defined]
        assert guest.receive().ids(READY) == [1]
        assert all(later.silent() for later, _ in guests[number + 1 :: 7])


def test_guests_may_watch_one_file_more_often_than_the_kernel_likes(served: Served, host: Host) -> None:
    """Nested epoll sets have room for 500 ways to one file; three guests have 600, and begin to wait all at once."""
    event, gate = host.event(), threading.Event()
    guests = [host.keep(SocketOf(served.connect())).visitor for _ in range(3)]
    for guest in guests:
        guest.ask(poll(), *[event] * 200)
        for handle in range(3, 203):
            assert guest.ask(watch(handle, READABLE, handle)).status == 1
    served.loop.call_soon_threadsafe(gate.wait)
    for guest in guests:
        guest.send(poll(1000, FOREVER))
    gate.set()
    assert served.call(lambda: served.server.guests) == 3
    os.eventfd_write(event.fileno(), 1)
    for guest in guests:
        assert len(guest.receive().events) == 200


def test_a_guest_too_many_is_turned_away() -> None:
    with serving(max_guests=1) as served, served.connect() as first:
        assert first.ask(poll()).status == 1
        with served.connect() as second:
            assert second.rest() == []
        assert first.ask(poll()).status == 1


def test_too_many_descriptors_are_said_and_end_the_connection(host: Host) -> None:
    with serving(max_handles=3) as served:
        with served.connect() as guest:
            guest.ask(poll(), host.event(), host.event())
            guest.send(poll(), host.event(), host.event())
            (refusal,) = guest.rest()
            assert (refusal.op, refusal.rid, refusal.error) == (0, 0, "too many descriptors")
        assert served.eventually(lambda: served.server.guests == 0)


def test_a_guest_that_never_reads_is_held_back_and_loses_nothing(served: Served) -> None:
    with served.connect() as greedy:
        greedy.sock.setblocking(False)
        sent, request = 0, b"".join(unwatch(5, rid=n) for n in range(64))
        idle = 0
        while idle < 50:
            try:
                sent += greedy.sock.send(request[sent % len(request) :])
                idle = 0
            except BlockingIOError:
                served.call(lambda: None)  # a turn of the server's loop
                idle += 1
        assert sent < 2 << 20
        with served.connect() as other:
            assert other.ask(poll()).status == 1
        greedy.sock.settimeout(30)
        rids = [greedy.receive().rid for _ in range(sent // 32)]
        assert rids == [number % 64 for number in range(sent // 32)]


# --- leaving ---


def test_whatever_state_a_guest_leaves_in_nothing_stays(served: Served, host: Host) -> None:
    readers = [host.pipe() for _ in range(7)]
    before = served.call(open_descriptors)
    ways = [
        b"Z",
        watch(3, READABLE, 1),
        watch(3, READABLE, 1) + poll(8, FOREVER),
        watch(3, READABLE, 1) + poll(8, FOREVER)[:25],
        watch(3, READABLE, 1) + b"".join(poll() for _ in range(2000)),
        arm(1, 1, interval=1, flags=0) + poll(8, FOREVER) * 3 + b"junk",
        b"no ZCL1 at all",
    ]
    for (reader, _), way in zip(readers, ways, strict=True):
        with served.connect() as guest:
            guest.send(way, reader)
        reader.close()
    assert served.eventually(lambda: served.server.guests == 0)
    assert served.call(open_descriptors) == before - len(ways), "the readers, which the test closed"
    for _, writer in readers:
        with pytest.raises(BrokenPipeError):
            writer.write(b"x")


def test_guests_that_send_their_own_connections_can_still_leave(served: Served, host: Host) -> None:
    """The node must not be the one who keeps a connection open; and a loop is not watched, whatever its number."""
    reader, writer = host.pipe()
    writer.write(b"x")
    before = served.call(open_descriptors)
    with served.connect() as one, served.connect() as other:
        assert one.ask(watch(3, READABLE, 1), one.sock, other.sock, reader).error == "watch failed"
        assert one.ask(watch(4, READABLE, 1)).error == "watch failed"
        assert one.ask(watch(5, READABLE, 1)).status == 1, "the numbers behind them are what the guest believes"
        assert one.ask(poll()).events == [(READY, READABLE, 5, 1)]
        assert one.ask(frame(1000, struct.pack("<I", 3))).status == 1, "they end like any handle"
        other.send(poll(8, FOREVER), one.sock)
    assert served.eventually(lambda: served.server.guests == 0)
    assert served.call(open_descriptors) == before


def lingering(host: Host) -> socket.socket:
    """A socket whose last close waits for a peer that never reads."""
    listener = host.keep(socket.create_server(("127.0.0.1", 0)))
    sender = host.keep(socket.create_connection(listener.getsockname()))
    host.keep(listener.accept()[0])
    sender.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            sender.send(bytes(65536))
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 3600))
    return sender


@pytest.mark.parametrize("end", ["leave", "end the handle", "too many"])
def test_a_socket_that_lingers_holds_up_nobody(end: str, host: Host) -> None:
    with serving(max_handles=1) as served:
        guest = host.keep(SocketOf(served.connect())).visitor
        sender = lingering(host)
        guest.ask(poll(), *[sender] * (2 if end == "too many" else 1))
        os.close(sender.detach())  # the node has the last copy now
        if end == "end the handle":
            assert guest.ask(frame(1000, struct.pack("<I", 3))).status == 1
        guest.sock.close()
        with served.connect() as other:
            assert other.ask(poll()).status == 1


def test_stopping_ends_guests_that_wait(host: Host) -> None:
    with serving() as served:
        guests = [waiting(served, host)[0] for _ in range(3)]
        served.eventually(lambda: served.server.guests == 3)
        served.stop()
        for guest in guests:
            assert guest.rest() == []
        assert not served.path.exists()


# --- bad input ---


@pytest.mark.parametrize(
    "bad",
    [
        b"junk",
        b'{"kind":"query"}\n',
        bytes(100_000),
        b"\xff" * 100_000,
        frame(5, bytes(8), version=2),
        frame(5, length=2**32 - 1) + bytes(100_000),
    ],
    ids=["junk", "json", "zeros", "ones", "version", "length"],
)
def test_bytes_that_are_no_zcl1_get_one_error_and_an_orderly_end(served: Served, bad: bytes) -> None:
    with served.connect() as guest:
        guest.send(poll(rid=1) + bad)
        first, refusal = guest.rest()
        assert (first.rid, refusal.status) == (1, 0)


def test_a_guest_that_goes_on_talking_after_its_error_is_cut_off(served: Served, host: Host) -> None:
    with served.connect() as guest:
        guest.send(b"junk")
        assert guest.receive().error == "bad magic"
        guest.send(b"more", host.event())
        assert served.eventually(lambda: served.server.guests == 0), "at the latest when the time to linger is over"


# --- the path ---


async def test_the_socket_is_private_and_its_directory_too(tmp_path: Path) -> None:
    server = LoopSocketServer(tmp_path / "run" / "l", clock=MonotonicClock())
    await server.start()
    assert stat.S_IMODE(server.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(server.path.parent.stat().st_mode) == 0o700
    await server.stop()
    assert not server.path.exists()


async def test_a_dead_socket_is_replaced_and_a_live_one_is_not(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "l"))
    server = LoopSocketServer(tmp_path / "l", clock=MonotonicClock())
    await server.start()
    with pytest.raises(SocketTaken) as caught:
        await LoopSocketServer(tmp_path / "l", clock=MonotonicClock()).start()
    assert caught.value.remedy
    reader, writer = await asyncio.open_unix_connection(str(server.path))
    writer.write(poll())
    assert len(await reader.readexactly(40)) == 40
    writer.close()
    await server.stop()


@pytest.mark.parametrize("name", ["file", "x" * 200])
async def test_a_path_that_cannot_be_a_socket_is_an_error_with_a_remedy(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("precious")
    with pytest.raises(SocketTaken) as caught:
        await LoopSocketServer(tmp_path / name, clock=MonotonicClock()).start()
    assert caught.value.remedy
    assert (tmp_path / "file").read_text() == "precious"


async def test_a_socket_that_is_somebody_elses_by_now_is_left_alone(tmp_path: Path) -> None:
    first = LoopSocketServer(tmp_path / "l", clock=MonotonicClock())
    await first.start()
    first.path.unlink()
    second = LoopSocketServer(tmp_path / "l", clock=MonotonicClock())
    await second.start()
    await first.stop()
    assert second.path.exists()
    await second.stop()
    await second.stop()
