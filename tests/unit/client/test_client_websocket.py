"""The WebSocket parser and masking, byte by byte."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.client.websocket import BROKEN, FrameReader, frame_bytes, mask_in_place, masked


def server_frame(data: bytes, opcode: int = 1, final: bool = True) -> bytes:
    head = bytes(((0x80 if final else 0) | opcode,))
    size = len(data)
    if size < 126:
        return head + bytes((size,)) + data
    if size < 65_536:
        return head + b"\x7e" + size.to_bytes(2, "big") + data
    return head + b"\x7f" + size.to_bytes(8, "big") + data


@given(st.lists(st.text(max_size=300) | st.just("long" * 1_000), max_size=8), st.data())
def test_texts_come_out_however_the_stream_is_cut(given_texts: list[str], data: st.DataObject) -> None:
    texts = [text.encode() for text in given_texts]
    stream = b"".join(server_frame(text) for text in texts)
    reader = FrameReader()
    found = []
    while stream:
        cut = data.draw(st.integers(1, len(stream)))
        found += reader.feed(stream[:cut])
        stream = stream[cut:]
    assert found == [(1, text) for text in texts]


@pytest.mark.parametrize("size", [0, 125, 126, 65_535, 65_536, 200_000])
def test_every_form_of_length_is_read(size: int) -> None:
    assert FrameReader().feed(server_frame(b"x" * size)) == [(1, b"x" * size)]


def test_fragments_are_joined_and_control_frames_may_come_between() -> None:
    stream = server_frame(b"he", final=False) + server_frame(b"", opcode=9) + server_frame(b"llo", opcode=0)
    assert FrameReader().feed(stream) == [(9, b""), (1, b"hello")]


@pytest.mark.parametrize(
    "stream",
    [
        server_frame(b"late", opcode=0),
        server_frame(b"a", final=False) + server_frame(b"b"),
        b"\xc1\x00",
        b"\x81\xff" + bytes(8),
        b"\x81\x7f" + (1 << 40).to_bytes(8, "big"),
    ],
    ids=["fragment without a first", "first within a first", "extension bits", "masked", "endless"],
)
def test_a_stream_that_makes_no_sense_is_refused(stream: bytes) -> None:
    reader = FrameReader()
    assert [kind for kind, _ in reader.feed(server_frame(b"before") + stream)] == [1, BROKEN]
    assert reader.feed(server_frame(b"after")) == []


@given(st.binary(max_size=3000), st.binary(min_size=4, max_size=4))
def test_masking_twice_gives_the_data_back_and_both_ways_agree(data: bytes, key: bytes) -> None:
    once = bytes(masked(data, key))
    assert bytes(masked(once, key)) == data
    assert once == bytes(byte ^ key[at % 4] for at, byte in enumerate(data))
    copy = bytearray(data)
    mask_in_place(key, copy)
    assert bytes(copy) == once


@pytest.mark.parametrize("size", [0, 125, 126, 65_535, 65_536])
def test_a_frame_says_its_length_and_that_it_is_masked(size: int) -> None:
    head, body = frame_bytes(1, b"x" * size, b"\0\0\0\0")
    assert head[1] & 0x80
    assert bytes(body) == b"x" * size
    unmasked = bytes((head[0], head[1] & 0x7F)) + head[2:-4] + bytes(body)
    assert FrameReader().feed(unmasked) == [(1, b"x" * size)]
