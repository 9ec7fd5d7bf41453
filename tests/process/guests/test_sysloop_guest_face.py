"""The rest of what a guest can call: sys/info, zi_ctl, handle numbers, pointers; and the Python client."""

from __future__ import annotations

import os
import socket
import struct
import time
from pathlib import Path

import pytest

from mainspring.guests import (
    TIMER,
    Guest,
    NotAttachable,
    Readiness,
    RequestRefused,
    StreamClosed,
    connect,
    open_loop,
)
from mainspring.guests.handles import Attached, HandleTable
from mainspring.guests.wasm import Abi, Heap
from mainspring.loop import VirtualClock
from tests.support.guests import (
    AGAIN,
    CLOSED,
    NOSYS,
    READABLE,
    WRITABLE,
    Host,
    answers,
    frame,
    nothing_left_behind,
    poll,
)
from tests.support.loop_server import serving


def test_a_guest_that_was_closed_opens_nothing_more(host: Host) -> None:
    with nothing_left_behind():
        guest = Guest()
        loop = guest.open("sys", "loop")
        guest.close()
        assert guest.write(loop, poll()) == guest.end(loop) == NOSYS
        assert guest.open("sys", "loop") == guest.open("event", "bus") == CLOSED
        with os.fdopen(os.eventfd(0), "rb") as event:
            assert guest.attach(event) == guest.adopt(os.dup(event.fileno())) == CLOSED
        guest.close()


@pytest.mark.parametrize("cap", [2**31 - 1, 2**32 - 1, 2**63, 2**70])
def test_a_buffer_may_be_larger_than_any_memory(guest: Guest, host: Host, cap: int) -> None:
    reader, writer = host.pipe()
    handle = guest.attach(reader)
    assert guest.read(handle, cap) == AGAIN
    writer.write(b"hello")
    assert guest.read(handle, cap) == b"hello"
    assert guest.read(guest.open("sys", "loop"), cap) == AGAIN


# --- sys/info ---


def info(guest: Guest, handle: int, op: int) -> bytes:
    assert guest.write(handle, frame(op)) == 24
    got = guest.read(handle, 65536)
    assert isinstance(got, bytes)
    (answer,) = answers(got)
    assert answer.status == 1
    return answer.payload


def test_sys_info_tells_the_time_of_the_loop() -> None:
    with Guest(clock=VirtualClock(5_000, wall_ms=9_000_000)) as guest:
        handle = guest.open("sys", "info")
        assert struct.unpack("<IQQ", info(guest, handle, 3)) == (1, 9_000_000 * 10**6, 5_000 * 10**6)


def test_the_time_of_day_is_told_to_the_nanosecond() -> None:
    with Guest() as guest:
        handle = guest.open("sys", "info")
        for _ in range(20):
            before = time.time_ns()
            _, told, _ = struct.unpack("<IQQ", info(guest, handle, 3))
            assert before <= told <= time.time_ns()


def test_the_machines_clock_is_the_one_python_reads(guest: Guest) -> None:
    handle = guest.open("sys", "info")
    before = time.monotonic_ns()
    _, _, now = struct.unpack("<IQQ", info(guest, handle, 3))
    assert before <= now <= time.monotonic_ns()


def test_sys_info_describes_the_machine(guest: Guest) -> None:
    payload = info(guest, guest.open("sys", "info"), 1)
    version, flags, cpus, page = struct.unpack_from("<IIII", payload)
    rest, texts = payload[16:], []
    for _ in range(4):
        size = int.from_bytes(rest[:4], "little")
        texts.append(rest[4 : 4 + size].decode())
        rest = rest[4 + size :]
    assert (version, cpus, page, rest) == (1, os.cpu_count(), os.sysconf("SC_PAGESIZE"), b"")
    assert flags == sum(1 << number for number, text in enumerate(texts) if text)
    assert texts[1] == os.uname().machine


def test_sys_info_stats_and_seeds(guest: Guest) -> None:
    handle = guest.open("sys", "info")
    stats = info(guest, handle, 2)
    version, flags, _, *loads, total, free, used = struct.unpack("<IIQIIIQQI", stats)
    assert (version, flags, len(loads)) == (1, 3, 3)
    assert 0 < free < total
    assert 0 <= used <= 1000
    with Guest(entropy=lambda count: b"7" * count) as fixed:
        assert info(fixed, fixed.open("sys", "info"), 4) == struct.pack("<II", 1, 32) + b"7" * 32
    assert info(guest, handle, 4) != info(guest, handle, 4)


# --- zi_ctl ---


def test_shutting_down_writing_tells_the_peer(guest: Guest, host: Host) -> None:
    stream, peer = host.unix_pair()
    handle = guest.attach(stream)

    def handle_op(number: int, op: int = 1, version: int = 1) -> object:
        got = guest.ctl(frame(4, struct.pack("<IIII", version, number, op, 0)))
        assert isinstance(got, bytes)
        return answers(got)[0].status or answers(got)[0].error

    assert handle_op(handle) == 1
    assert peer.recv(10) == b""
    assert handle_op(handle, op=2) == "handle op not supported"
    assert handle_op(guest.open("sys", "loop")) == "handle op not supported"
    assert handle_op(guest.attach(host.event())) == "handle op not supported"
    assert handle_op(99) == "unknown handle"
    assert handle_op(handle, version=2) == "bad version"
    alone = host.keep(socket.socket())
    assert handle_op(guest.attach(alone)) == "handle op failed: -9"
    short = guest.ctl(frame(4, b"x"))
    assert isinstance(short, bytes)
    assert answers(short)[0].error == "short payload"


# --- handle numbers ---


def test_a_number_comes_again_only_when_all_others_have_been_used() -> None:
    table = HandleTable(most=4, highest=7)

    def add() -> int:
        return table.add(Attached(os.dup(0)))

    assert [add() for _ in range(5)] == [3, 4, 5, 6, -8]
    assert table.end(4) == 0
    assert add() == 7
    assert (table.end(3), table.end(7)) == (0, 0)
    assert (add(), add()) == (3, 4)
    table.close()
    assert len(table) == 0


# --- pointers ---


class Memory:
    def __init__(self) -> None:
        self.data = bytearray(65536)

    def size(self) -> int:
        return len(self.data)

    def grow_to(self, size: int) -> bool:
        if size <= 4 * 65536:
            self.data.extend(bytes(max(0, size - len(self.data))))
        return size <= len(self.data)

    def read(self, start: int, count: int) -> bytes:
        return bytes(self.data[start : start + count])

    def write(self, start: int, data: bytes) -> None:
        self.data[start : start + len(data)] = data


@pytest.fixture
def abi(guest: Guest) -> Abi:
    memory = Memory()
    return Abi(guest, memory, Heap(memory, 40_000), lambda topic, message: None)


@pytest.mark.parametrize("pointer", [0, -1, 65530, 65536, 2**32 - 1, 2**32, 2**63 - 1, -(2**63)])
def test_a_pointer_outside_the_memory_is_bounds(guest: Guest, abi: Abi, pointer: int) -> None:
    handle = guest.open("sys", "loop")
    guest.write(handle, poll())
    assert abi.zi_read(handle, pointer, 40) == -2
    assert abi.zi_write(handle, pointer, 40) == -2
    assert abi.zi_ctl(pointer, 24, 100, 100) == -2
    assert abi.zi_ctl(100, 24, pointer, 100) == -2
    assert abi.zi_cap_open(pointer) == -2
    assert abi.zi_cap_get(0, pointer, 100) == -2
    assert abi.zi_telemetry(pointer, 10, 100, 10) == -2
    assert abi.zi_read(handle, 100, 40) == 40, "nothing was consumed"
    assert abi.zi_read(handle, 100, -1) == -2, "a size is unsigned"


def test_blocks_are_apart_reused_and_end_with_the_memory(abi: Abi) -> None:
    one, two = abi.zi_alloc(100), abi.zi_alloc(100)
    assert one >= 40_000
    assert two >= one + 100
    assert (abi.zi_free(one), abi.zi_free(one), abi.zi_free(12345)) == (0, -1, -1)
    assert abi.zi_alloc(90) == one
    assert abi.zi_alloc(100_000) > 0, "the memory grows"
    assert (abi.zi_alloc(1 << 20), abi.zi_alloc(0), abi.zi_alloc(-5)) == (0, 0, 0)


# --- the client ---


def test_the_client_speaks_with_a_node(host: Host) -> None:
    reader, writer = host.pipe()
    event = host.event()
    with serving() as served, connect(served.path) as loop:
        handle = loop.attach(reader)
        reader.close()
        loop.watch(handle, Readiness.READABLE | Readiness.HUP, watch_id=7)
        assert loop.poll(timeout_ms=0) == ([], False)
        writer.write(b"x")
        (ready,) = loop.poll().events
        assert (ready.id, ready.handle, ready.events) == (7, handle, READABLE)
        loop.unwatch(7)
        began = time.monotonic_ns()
        loop.arm(1, 1_000_000)
        loop.arm(2, began, absolute=True)
        loop.arm(3, 10**18)
        loop.cancel(3)
        due = [*loop.poll().events]
        while len(due) < 2:
            due += loop.poll().events
        assert [(event.kind, event.id) for event in due] == [(TIMER, 2), (TIMER, 1)]
        assert due[1].data >= began + 1_000_000
        with pytest.raises(RequestRefused) as refused:
            loop.cancel(3)
        assert refused.value.message == "unknown timer_id"
        loop.end(handle)
        with pytest.raises(RequestRefused):
            loop.end(handle)
        handles = [loop.attach(event) for _ in range(600)]  # more than one message carries
        for number in handles:
            loop.watch(number, WRITABLE, number)
        assert {event.id for event in loop.poll().events} == set(handles)
        for nothing in (99_999, -1, 2**40, "path", None):
            with pytest.raises(NotAttachable):
                loop.attach(nothing)  # type: ignore[arg-type]


def test_a_client_without_a_node_says_so(tmp_path: Path) -> None:
    with nothing_left_behind(), pytest.raises(StreamClosed) as caught:
        connect(tmp_path / "nothing")
    assert "mainspring serve" in caught.value.remedy


def test_a_client_notices_when_its_node_is_gone() -> None:
    with serving() as served, connect(served.path) as loop:
        loop.poll(timeout_ms=0)
        served.stop()
        with pytest.raises(StreamClosed):
            loop.poll(timeout_ms=0)


def test_reading_where_nothing_is_and_writing_where_nothing_can_be(guest: Guest, host: Host) -> None:
    reader, writer = host.pipe()
    source, sink = guest.attach(reader), guest.attach(writer)
    assert (guest.flags(source), guest.flags(sink), guest.flags(99)) == (5, 6, 0)
    assert (guest.read(source, 10), guest.read(source, -1)) == (AGAIN, -2)
    assert (guest.read(sink, 10), guest.write(source, b"x")) == (-7, -7)
    assert guest.write(sink, b"x") == 1
    assert guest.read(source, 10) == b"x"
    writer.close()
    guest.end(sink)
    assert guest.read(source, 10) == b"", "the end"


def test_a_full_table_is_said_by_the_client_too(host: Host) -> None:
    with Guest(max_handles=2) as guest, open_loop(guest) as loop:
        loop.attach(host.event())
        with pytest.raises(NotAttachable, match="full"):
            loop.attach(host.event())
