"""The encrypted clinic: what the desk reads, what a stranger reads, and how a key is changed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from encrypted_clinic import KeyRing, app, keys
from mainspring.testing import simulate


def test_the_desk_reads_what_a_stranger_cannot(run_example: Callable[[str], str]) -> None:
    assert run_example("encrypted_clinic.py").splitlines() == [
        "Ada will be called",
        "the desk reads: your result: all is well",
        "a stranger reads: {'$encoded': '...', 'key': '2026-10'}",
        "the desk reads: your result: come again",
        "both keys: ['2026-10', '2026-11']",
        "both results: ['Ada', 'Bob']",
    ]


def test_what_was_changed_is_not_decoded() -> None:
    ring = KeyRing({"a": AESGCM.generate_key(256), "b": AESGCM.generate_key(256)}, current="a")
    encoded = bytearray(ring.encode(b"1"))
    assert ring.decode(bytes(encoded), "a") == b"1"
    with pytest.raises(InvalidTag):
        ring.decode(bytes(encoded), "b")
    encoded[-1] ^= 1
    with pytest.raises(InvalidTag):
        ring.decode(bytes(encoded), "a")


async def test_the_patient_is_called_once_after_a_crash() -> None:
    async with simulate(app) as world:
        await world.command("Result.Send", {"patient": "Ada", "finding": "all is well"})
        await world.crash_and_restart()
        assert [each["patient"] for each in world.events("calls").payloads] == ["Ada"]
        async with world.client(codec=keys) as desk, world.client() as stranger:
            (run,) = world.runs("call_patient")
            assert (await desk.run_info(run.id)).value == "Ada knows"
            assert set((await stranger.run_info(run.id)).value) == {"$encoded", "key"}
