"""openapi-python-client in an environment of its own, for the test of generated clients. `make prepare` fetches it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

VERSION = "0.29.1"
FOLDER = ROOT / ".cache" / f"openapi-python-client-{VERSION}"
_SIGN = FOLDER / "installed"


def missing() -> str | None:
    """None where nothing is missing, empty text where it can be fetched."""
    return None if _SIGN.exists() else ""


def fetch() -> None:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(FOLDER / "bin" / "python")]
    for command in (
        [sys.executable, "-m", "venv", "--clear", "--without-pip", str(FOLDER)],
        [*pip, "install", "-q", f"openapi-python-client=={VERSION}"],
    ):
        subprocess.run(command, capture_output=True, check=True)
    _SIGN.touch()


def generator_folder() -> Path:
    """The folder of its environment. Skips the test where it is not there."""
    if missing() is not None:
        pytest.skip(f"openapi-python-client {VERSION} is not there: make prepare fetches it")
    return FOLDER
