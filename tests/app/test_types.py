"""Types reach the user: a program is checked by mypy in strict mode, right where it is right and wrong where wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(400)
def test_a_users_program_is_checked_strictly() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "tests/app/typed_program.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=380,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_public_name_can_be_imported_and_is_listed() -> None:
    import mainspring

    assert sorted(mainspring.__all__) == mainspring.__all__
    assert dir(mainspring) == mainspring.__all__
    for name in mainspring.__all__:
        assert getattr(mainspring, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = mainspring.Nothing  # type: ignore[attr-defined]
