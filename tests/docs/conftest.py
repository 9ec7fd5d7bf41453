"""The examples as their reader has them: scripts in a folder, that can be imported from there and run from anywhere."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.serving import clean_environment

PATIENCE_S = 60  # for what must end; nothing is measured

sys.path.insert(0, str(ROOT / "examples"))


@pytest.fixture
def run_example(tmp_path: Path) -> Callable[[str], str]:
    """Runs an example in a process of its own, in an empty folder; gives what it printed."""

    def run(name: str) -> str:
        done = subprocess.run(
            [sys.executable, str(ROOT / "examples" / name)],
            cwd=tmp_path,
            env=clean_environment(),
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "Traceback" not in done.stderr, done.stderr
        return done.stdout

    return run
