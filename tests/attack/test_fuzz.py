"""A short run of `make fuzz`: whatever is sent, nothing crashes, everything is answered, and others are served."""

from __future__ import annotations

import pytest

from tests.fuzz.__main__ import PARTS, main

INPUTS = 20_000  # `make fuzz` sends a million


def test_random_input_on_every_face_is_answered(capsys: pytest.CaptureFixture[str]) -> None:
    failed = main(["--inputs", str(INPUTS), "--seed", "16"])
    told = capsys.readouterr().out
    assert not failed, told
    assert all(f"{face}: " in told for face in PARTS), told
