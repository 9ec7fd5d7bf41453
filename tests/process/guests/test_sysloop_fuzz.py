"""Any bytes at all: an answer in whole frames or an orderly end, never a crash, a hang or a leak.

Two times 20,000 frames: recorded and hand-made requests, whole and mutated, straight into streams and over the socket.
"""

from __future__ import annotations

import json
import os
import random
import socket
from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.guests import Guest
from mainspring.guests.socket.session import GuestSession
from mainspring.loop import MonotonicClock, VirtualClock
from tests.support.guests import (
    HEADER,
    MS,
    Host,
    answers,
    arm,
    cancel,
    frame,
    nothing_left_behind,
    open_descriptors,
    poll,
    unwatch,
    watch,
)
from tests.support.loop_server import serving
from tests.support.paths import ROOT

FRAMES = 20_000
PER_STREAM = 50


def whole(data: bytes) -> bool:
    """Whether the bytes are frames that a stream can carry to the last."""
    while len(data) >= 24:
        magic, version, _, _, _, _, length = HEADER.unpack_from(data)
        if magic != b"ZCL1" or version != 1 or len(data) < 24 + length:
            return False
        data = data[24 + length :]
    return not data


def corpus() -> list[bytes]:
    """Requests of the recorded exchanges that are not too long, and some of our own."""
    found = [watch(3, 3, 1), watch(4, 15, 2), unwatch(1), arm(1, MS, MS), arm(2, 0, 1), cancel(1), poll(3), poll(1)]
    found += [frame(1000, b"\3\0\0\0"), frame(9, b"abc"), frame(0), poll(0)]
    for vector in json.loads((ROOT / "tests" / "support" / "sysloop_vectors.json").read_text("utf-8")):
        requests = vector["request_hex"]
        data = bytes.fromhex(requests if isinstance(requests, str) else "".join(requests))
        if 24 <= len(data) <= 1000 and whole(data):
            found.append(data)
    return found


CORPUS = corpus()


def mutated(data: bytes, chance: random.Random) -> bytes:
    body = bytearray(data)
    match chance.randrange(9):
        case 0:
            return chance.randbytes(chance.randrange(1, 90))
        case 1:
            for _ in range(chance.randrange(1, 5)):
                body[chance.randrange(len(body))] ^= 1 << chance.randrange(8)
        case 2:
            del body[chance.randrange(len(body)) :]
        case 3:
            at = chance.randrange(len(body))
            body[at:at] = chance.randbytes(chance.randrange(1, 12))
        case 4:
            lengths = [0, 1, 8, 65512, 65513, 2**31, 2**32 - 24, 2**32 - 1]
            body[20:24] = chance.choice(lengths).to_bytes(4, "little")
        case 5:
            body[4:6] = chance.randbytes(2)
        case 6:
            body[16:20] = chance.randbytes(4)
        case 7:
            body[6:8] = chance.randbytes(2)
        case 8:
            body[24:] = chance.randbytes(len(body) - 24)
    return bytes(body)


def impatient(data: bytes) -> bytes:
    """The same bytes, but no POLL in them waits: what is read as one gets the timeout 0."""
    body, at = bytearray(data), 0
    while len(body) - at >= 24:
        magic, version, op, _, _, _, length = HEADER.unpack_from(body, at)
        if magic != b"ZCL1" or version != 1 or length > 65512:
            break
        if op == 5 and length == 8 and len(body) - at >= 32:
            body[at + 28 : at + 32] = bytes(4)
        at += 24 + length
    return bytes(body)


def streams(seed: int) -> Iterator[bytes]:
    """Up to PER_STREAM frames at a time, for ever: all well-formed, or some of them not."""
    chance = random.Random(seed)
    while True:
        broken = chance.choice([0.0, 0.05, 0.3])
        frames = [chance.choice(CORPUS) for _ in range(chance.randrange(1, PER_STREAM))]
        yield impatient(b"".join(mutated(f, chance) if chance.random() < broken else f for f in frames))


def test_twenty_thousand_frames_into_streams(host: Host) -> None:
    chance = random.Random(1)
    event = host.event()
    answered = refused = ended = 0
    source = streams(seed=1)
    with nothing_left_behind():
        while answered < FRAMES:
            session = GuestSession(VirtualClock())
            assert session.adopt([os.dup(event.fileno())])
            stream, data, at, received = session.stream, next(source), 0, b""
            while at < len(data) and not stream.closed:
                at += max(stream.offer(data[at : at + chance.choice([1, 7, 24, 500])]), 0)
                got = stream.read(chance.choice([10, 100_000]))
                received += got if isinstance(got, bytes) else b""
                assert not stream.waiting
            while isinstance(got := stream.read(65536), bytes) and got:
                received += got
            found = answers(received)
            answered += len(found)
            refused += sum(answer.status == 0 for answer in found)
            ended += stream.closed
            session.close()
    assert refused > FRAMES / 10
    assert ended > 100


def test_twenty_thousand_frames_over_the_socket(host: Host) -> None:
    event = host.event()
    with serving() as served, served.connect() as bystander:
        bystander.ask(poll())
        before = served.call(open_descriptors)
        answered = 0
        for number, data in enumerate(streams(seed=2)):
            with served.connect() as guest:
                guest.send(data, *[event] * (number % 3))
                guest.sock.shutdown(socket.SHUT_WR)
                answered += len(guest.rest())
            if number % 20 == 0:
                assert bystander.ask(poll()).events == []
            if answered > FRAMES:
                break
        assert served.eventually(lambda: served.server.guests == 1)
        assert served.call(open_descriptors) == before


@given(st.lists(st.one_of(st.binary(max_size=200), st.sampled_from(CORPUS)), max_size=8))
@settings(max_examples=300)
def test_any_bytes_are_answered_in_frames(pieces: list[bytes]) -> None:
    session = GuestSession(MonotonicClock())
    received = b""
    for piece in map(impatient, pieces):
        if session.stream.waiting:  # a POLL put together from several pieces
            session.loop.interrupt()
            assert session.stream.resume()
        session.stream.offer(piece)
        got = session.stream.read(1 << 20)
        received += got if isinstance(got, bytes) else b""
    answers(received)
    session.close()


@given(st.one_of(st.binary(max_size=80), st.sampled_from(CORPUS)), st.integers(0, 200))
@settings(max_examples=300)
def test_any_control_frame_gets_a_frame_or_a_code(data: bytes, cap: int) -> None:
    with Guest() as guest:
        guest.open("sys", "loop")
        got = guest.ctl(data, cap)
        if isinstance(got, bytes):
            assert len(got) <= cap
            assert len(answers(got)) == 1
        else:
            assert -10 <= got < 0
