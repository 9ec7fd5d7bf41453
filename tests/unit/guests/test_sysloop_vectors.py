"""Recorded exchanges with another implementation, replayed against a guest of ours.

`conform` and `os` vectors match byte for byte, error frames with the corrected form; so do `choice` vectors where we
chose the same. The two tables below name every vector that is treated otherwise, and why.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mainspring.guests import Guest
from mainspring.guests.wasm import Abi, Heap
from tests.support.guests import HEADER, Answer, Host, answers
from tests.support.paths import ROOT

Vector = dict[str, Any]
VECTORS: list[Vector] = json.loads((ROOT / "tests" / "support" / "sysloop_vectors.json").read_text("utf-8"))

NO_AIO = "file/aio is not offered to guests; an attached descriptor covers what it shows about waiting"
NO_ARGV = "proc/argv is not offered to guests"
OWN_REGISTRY = "needs a registry of one's own; the capabilities of a guest are fixed"
NOT_REPLAYED = {
    "aio_writable": NO_AIO,
    "aio_level_repeat": NO_AIO,
    "err_watch_proc_argv": NO_ARGV,
    "proc_argv_stream": NO_ARGV,
    "ctl_caps_list_empty": OWN_REGISTRY,
    "ctl_caps_list_meta": OWN_REGISTRY,
    "open_no_opener": OWN_REGISTRY,
    "open_tcp_denied": "net/tcp is not offered to guests; the host attaches connected sockets instead",
}


def deadline_order(world: World) -> None:
    """Timers come by deadline; the recording has them in the order of its table."""
    got, recorded = world.answer(), answers(world.expected)[0]
    deadlines = world.deadlines
    assert got.ids(2) == sorted(recorded.ids(2), key=lambda ident: deadlines[ident])


def any_order(world: World) -> None:
    """Watches take turns; the recording has them in the order of its table."""
    assert sorted(world.answer().events) == sorted(answers(world.expected)[0].events)


def at_most_once(world: World) -> None:
    """Missed ticks are one event. The grid may have its next tick by now, but no more than that."""
    assert len(world.answer().events) <= 1


def data_first(world: World) -> None:
    """On a machine that was busy the timer may be due as well by now."""
    assert world.answer().events[:1] == answers(world.expected)[0].events


def with_hup(world: World) -> None:
    """An orderly close by the peer is reported as hup too."""
    (got,), (recorded,) = world.answer().events, answers(world.expected)[0].events
    assert got == (recorded[0], recorded[1] | 4, *recorded[2:])


def refused_reserved(world: World) -> None:
    assert world.answer().error == "reserved must be 0"


def junk_ends_the_stream(world: World) -> None:
    """The good frame is answered as recorded; what follows is no ZCL1 and says so at once."""
    assert world.received.startswith(world.expected)
    (refusal,) = answers(world.received[len(world.expected) :])
    assert (refusal.op, refusal.rid, refusal.error) == (0, 0, "bad magic")


def larger_table(world: World) -> None:
    assert (world.answer().status, world.answer().payload) == (1, b"")


def watch_is_gone(world: World) -> None:
    assert world.answer().error == "unknown watch_id"


def codes(*wanted: int) -> Callable[[World], None]:
    def check(world: World) -> None:
        assert world.code in wanted

    return check


def listing(world: World) -> None:
    """As recorded, with our event/bus before it: flags 1 can open and 4 may block, then a length of metadata of 0."""
    event, sys, end = b"\5\0\0\0event", b"\3\0\0\0sys", b"\5\0\0\0\0\0\0\0"
    entries = event + b"\3\0\0\0bus" + end + sys + b"\4\0\0\0info" + end + sys + b"\4\0\0\0loop" + end
    assert answers(world.received) == [Answer(1, 42, 1, b"\1\0\0\0\3\0\0\0" + entries)]


def edges(world: World) -> None:
    """As recorded, but: reading no bytes gives none, and a write may be larger than the input buffer."""
    ours = {"zi_read(L, buf, 0) with nothing queued": 0, "zi_write(L, 65537 bytes)": 65537}
    assert world.calls == [(call, ours.get(call, code)) for call, code in world.vector["calls"]]


def more_capabilities(world: World) -> None:
    """Recorded with one capability; we have three, so the first index past the end is another."""
    assert world.abi.zi_cap_get(world.abi.zi_cap_count(), world.scratch, 4096) == world.vector["rc"]


def watchable(world: World) -> None:
    """The recording refuses to watch an event/bus; a guest that may wait in one place only has to."""
    assert world.answer() == Answer(1, 1, 1, b"")


def pipelined(world: World) -> None:
    """The recording drops two frames in one write; here every stream takes several."""
    assert [(each.rid, each.status) for each in answers(world.received)] == [(2, 1), (3, 1)]


def told_and_closed(world: World) -> None:
    """The recording says so with a code; here every stream answers with an error frame."""
    assert world.answer().error == "bad magic"


INVALID, BOUNDS, NOSYS = -1, -2, -7
DIFFERENT: dict[str, Callable[[World], None]] = {
    "timers_order_is_arm_order": deadline_order,
    "timers_order_slot_reuse": deadline_order,
    "timer_repeating_coalesced": at_most_once,
    "watch_order_slot_reuse": any_order,
    "poll_ready_before_timer": data_first,
    "tcp_peer_fin": with_hup,
    "tcp_eof_stays_readable": with_hup,
    "hdr_reserved_nonzero_accepted": refused_reserved,
    "pipelined_trailing_junk": junk_ends_the_stream,
    "plen_too_small": junk_ends_the_stream,
    "limit_1024_watches": larger_table,
    "limit_1024_timers": larger_table,
    "watched_handle_ended_unwatch": watch_is_gone,
    "cap_get_out_of_range": more_capabilities,
    "calls_loop_edges": edges,
    "err_watch_event_bus": watchable,
    "bus_two_frames_refused": pipelined,
    "bus_bad_magic": told_and_closed,
    # zi_ctl follows its text where the recording does not
    "ctl_caps_list_sys": listing,
    "ctl_caps_list_payload_ignored": listing,
    "ctl_caps_list_trailing": listing,
    "ctl_caps_list_status_reserved_ignored": codes(INVALID),
    "ctl_caps_list_small_buffer": codes(BOUNDS),
    "ctl_bad_magic": codes(INVALID),
    "ctl_bad_version": codes(INVALID),
    "ctl_short": codes(INVALID),
    "ctl_plen_too_big": codes(INVALID),
    "ctl_op_0": codes(NOSYS),
    "ctl_op_2": codes(NOSYS),
    "ctl_op_3": codes(NOSYS),
    "ctl_op_5": codes(NOSYS),
    "ctl_op_99": codes(NOSYS),
}


class Bytes:
    """A linear memory for calls that take pointers."""

    def __init__(self) -> None:
        self.data = bytearray(1 << 18)

    def size(self) -> int:
        return len(self.data)

    def grow_to(self, size: int) -> bool:
        return size <= len(self.data)

    def read(self, start: int, count: int) -> bytes:
        return bytes(self.data[start : start + count])

    def write(self, start: int, data: bytes) -> None:
        self.data[start : start + len(data)] = data


def corrected(raw: bytes) -> bytes:
    """Recorded frames without the four stray bytes that end each error frame."""
    out = b""
    while raw:
        magic, version, op, rid, status, reserved, length = HEADER.unpack_from(raw)
        payload, raw = raw[24 : 24 + length], raw[24 + length :]
        if status == 0:
            size = 0
            for _ in range(3):
                size += 4 + int.from_bytes(payload[size : size + 4], "little")
            payload = payload[:size]
        out += HEADER.pack(magic, version, op, rid, status, reserved, len(payload)) + payload
    return out


def same(got: bytes, wanted: bytes, volatile: list[list[int]]) -> bool:
    masked = {position for start, end in volatile for position in range(start, end)}
    return len(got) == len(wanted) and all(
        a == b or position in masked for position, (a, b) in enumerate(zip(got, wanted, strict=True))
    )


class World:
    """One vector, from an empty guest to what came of it."""

    def __init__(self, vector: Vector, guest: Guest, host: Host) -> None:
        self.vector, self.guest, self.host = vector, guest, host
        self.memory = Bytes()
        self.abi = Abi(guest, self.memory, Heap(self.memory, 1 << 17), lambda topic, message: None)
        self.scratch = 4096
        self.handles: dict[str, int] = {}
        self.things: dict[str, Any] = {}
        self.peers: dict[str, Any] = {}
        self.deadlines: dict[int, int] = {}
        self.soon: list[Callable[[], None]] = []
        self.taken: list[int] = []
        self.reads: list[int] = []
        self.received = b""
        self.code = 0
        self.calls: list[tuple[str, int]] = []
        self.expected = bytes.fromhex(vector["response_spec_hex" if "response_spec_hex" in vector else "response_hex"])

    def answer(self) -> Answer:
        (only,) = answers(self.received)
        return only

    # --- setup ---

    def prepare(self) -> None:
        for step in self.vector["setup"]:
            getattr(self, "do_" + step["do"])(step)

    def _add(self, step: Vector, thing: Any, peer: Any = None) -> None:
        self.things[step["as"]], self.peers[step.get("peer", "")] = thing, peer
        self._named(step, self.guest.attach(thing))

    def _named(self, step: Vector, handle: int) -> None:
        assert handle == step["handle"]
        self.handles[step["as"]] = handle

    def do_runtime(self, step: Vector) -> None:
        pass

    def do_cap_open(self, step: Vector) -> None:
        self._named(step, self.guest.open(*step["cap"].split("/")))

    def do_handle_without_poll_ops(self, step: Vector) -> None:
        self._named(step, self.guest.open("sys", "info"))

    def do_pipe_read_end(self, step: Vector) -> None:
        self._add(step, *self.host.pipe())

    def do_pipe_write_end(self, step: Vector) -> None:
        reader, writer = self.host.pipe()
        self._add(step, writer, reader)

    def do_tcp_connect(self, step: Vector) -> None:
        self._add(step, *self.host.tcp_pair())

    def do_tcp_connect_refused(self, step: Vector) -> None:
        silent = self.host.keep(socket.socket())
        silent.bind(("127.0.0.1", 0))
        stream = self.host.keep(socket.socket())
        stream.setblocking(False)
        stream.connect_ex(silent.getsockname())
        self._add(step, stream)

    def do_regular_file(self, step: Vector) -> None:
        self._add(step, self.host.file())

    def do_peer_write(self, step: Vector) -> None:
        os.write(self.peers[step["peer"]].fileno(), bytes.fromhex(step["hex"]))

    def do_later_peer_write(self, step: Vector) -> None:
        self.soon.append(lambda: self.host.later(step["ms"] / 1000, lambda: self.do_peer_write(step)))

    def do_alarm(self, step: Vector) -> None:
        """Here a signal ends a POLL when its handler says so."""
        main = threading.main_thread().ident
        assert main is not None
        self.soon.append(lambda: self.host.later(step["ms"] / 1000, lambda: signal.pthread_kill(main, signal.SIGUSR1)))

    def do_peer_close(self, step: Vector) -> None:
        self.peers[step["peer"]].close()

    def do_peer_reset(self, step: Vector) -> None:
        self.peers[step["peer"]].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.peers[step["peer"]].close()

    def do_sleep(self, step: Vector) -> None:
        time.sleep(step["ms"] / 1000)

    def do_fill_until_EAGAIN(self, step: Vector) -> None:
        for size in (4096, 1):
            while (taken := self.guest.write(self.handles[step["on"]], bytes(size))) > 0:
                pass
            assert taken == -6

    def do_zi_end(self, step: Vector) -> None:
        assert self.guest.end(self.handles[step["on"]]) == step["rc"]

    def do_zi_read(self, step: Vector) -> None:
        assert self.guest.read(self.handles[step["on"]], step["cap"]) == bytes.fromhex(step["hex"])

    def do_zi_write(self, step: Vector) -> None:
        assert self.guest.write(self.handles[step["on"]], bytes.fromhex(step["hex"])) == step["rc"]

    def do_zi_write_zeros(self, step: Vector) -> None:
        assert self.guest.write(self.handles[step["on"]], bytes(step["count"])) == step["rc"]

    def do_zi_ctl(self, step: Vector) -> None:
        got = self.guest.ctl(bytes.fromhex(step["request_hex"]))
        assert isinstance(got, bytes)
        assert answers(got)[0].status == 1

    def do_exchange(self, step: Vector) -> None:
        request = bytearray.fromhex(step["request_hex"])
        if patch := step.get("patch"):
            instant = time.monotonic_ns() + patch["add_ns"]
            request[patch["offset"] : patch["offset"] + patch["bytes"]] = instant.to_bytes(patch["bytes"], "little")
        handle = self.handles[step["on"]]
        assert self.guest.write(handle, bytes(request)) == step["write_rc"]
        got = self.guest.read(handle, 1 << 18)
        assert isinstance(got, bytes)
        assert same(got, corrected(bytes.fromhex(step["response_hex"])), step["volatile"])
        if request[6] == 3:
            ident, due = struct.unpack_from("<QQ", request, 24)
            self.deadlines[ident] = due

    def do_repeat_exchange(self, step: Vector) -> None:
        handle = self.handles[step["on"]]
        for ident in range(1, step["count"] + 1):
            for template in step["templates"]:
                request = bytearray.fromhex(template["hex"])
                request[template["id_offset"] : template["id_offset"] + 8] = ident.to_bytes(8, "little")
                assert self.guest.write(handle, bytes(request)) == len(request)
                got = self.guest.read(handle, 1 << 18)
                assert isinstance(got, bytes)
                assert answers(got)[0].status == 1

    def do_repeat_zi_write(self, step: Vector) -> None:
        """The recording dropped answers; we refuse requests instead, and every one that was taken has its answer."""
        handle, request = self.handles[step["on"]], bytes.fromhex(step["hex"])
        count = 0
        while self.guest.write(handle, request) == len(request):
            count += 1
        got = self.guest.read(handle, 1 << 18)
        assert isinstance(got, bytes)
        assert len(answers(got)) == count < step["count"]

    def do_drain(self, step: Vector) -> None:
        assert self.guest.read(self.handles[step["on"]], 1 << 18) == -6

    # --- the vector itself ---

    def play(self) -> None:
        on = self.vector["on"]
        if on == "zi_ctl":
            got = self.guest.ctl(bytes.fromhex(self.vector["request_hex"]), self.vector["resp_cap"])
            self.received, self.code = (got, len(got)) if isinstance(got, bytes) else (b"", got)
        elif on == "zi_cap_open":
            self.code = self._open(**self.vector["args"])
        elif on == "zi_cap_get":
            args = self.vector["args"]
            self.code = self.abi.zi_cap_get(args["index"], self.scratch, args["out_cap"])
        elif on == "calls":
            self.calls = [(call, self._call(call)) for call, _ in self.vector["calls"]]
        else:
            self._request()

    def _open(self, kind: str, name: str, mode: int, params_hex: str) -> int:
        params = bytes.fromhex(params_hex)
        at = self.scratch + 100
        self.memory.write(at, kind.encode() + name.encode() + params)
        places = (at, len(kind), at + len(kind), len(name), mode, at + len(kind) + len(name), len(params))
        self.memory.write(self.scratch, struct.pack("<QIQIIQI", *places))
        return self.abi.zi_cap_open(self.scratch)

    def _call(self, text: str) -> int:
        """A call by its description: zi_read(L, buf, 100) with nothing queued."""
        verb, _, rest = text.partition("(")
        arguments = [part.strip() for part in rest.partition(")")[0].split(",")]
        name = arguments[0]
        handle = self.handles["L"] if name in ("L", "ended") else int(name)
        if verb == "zi_end":
            return self.abi.zi_end(handle)
        if verb == "zi_handle_hflags":
            return self.abi.zi_handle_hflags(handle)
        at = 0 if "null" in arguments else self.scratch
        last = arguments[-1]
        if last == name:  # only the handle matters
            self.memory.write(at, bytes(100))
            return self.abi.zi_read(handle, at, 100) if verb == "zi_read" else self.abi.zi_write(handle, at, 1)
        if "POLL" in arguments:
            self.memory.write(at, HEADER.pack(b"ZCL1", 1, 5, 1, 0, 0, 8) + struct.pack("<II", 8, 0))
        size = int(last.split()[0])
        return self.abi.zi_read(handle, at, size) if verb == "zi_read" else self.abi.zi_write(handle, at, size)

    def _request(self) -> None:
        handle, request = self.handles[self.vector["on"]], self.vector["request_hex"]
        for action in self.soon:
            action()
        for piece in [request] if isinstance(request, str) else request:
            self.taken.append(self.guest.write(handle, bytes.fromhex(piece)))
        for cap in self.vector["read_caps"]:
            got = self.guest.read(handle, cap)
            self.reads.append(got if isinstance(got, int) else len(got))
            self.received += b"" if isinstance(got, int) else got

    def as_recorded(self) -> None:
        if "rc" in self.vector and self.vector["on"] != "zi_ctl":
            assert self.code == self.vector["rc"]
        elif self.vector["on"] == "calls":
            assert self.calls == [(call, code) for call, code in self.vector["calls"]]
        else:
            volatile = self.vector["volatile_spec" if "volatile_spec" in self.vector else "volatile"]
            assert same(self.received, self.expected, volatile), answers(self.received)
        if "write_rc" in self.vector:
            wanted = self.vector["write_rc"]
            assert self.taken == (wanted if isinstance(wanted, list) else [wanted])


@pytest.fixture
def interruptible(guest: Guest) -> Iterator[Guest]:
    """SIGUSR1 interrupts the guest."""
    before = signal.signal(signal.SIGUSR1, lambda number, where: guest.interrupt())
    yield guest
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize(
    "vector", [v for v in VECTORS if v["name"] not in NOT_REPLAYED], ids=lambda vector: vector["name"]
)
def test_vector(vector: Vector, interruptible: Guest, host: Host) -> None:
    world = World(vector, interruptible, host)
    world.prepare()
    world.play()
    DIFFERENT.get(vector["name"], World.as_recorded)(world)


def test_every_exception_names_a_vector() -> None:
    names = {vector["name"] for vector in VECTORS}
    assert set(NOT_REPLAYED) | set(DIFFERENT) <= names
    assert not set(NOT_REPLAYED) & set(DIFFERENT)
