"""Node.js and the npm package `ws`, for clients in JavaScript. `make test` fetches it before the tests begin."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.paths import ROOT

VERSION = "8.18.0"
FOLDER = ROOT / ".cache" / "js"
_SIGN = FOLDER / "node_modules" / "ws" / "package.json"


def missing() -> str | None:
    """None where nothing is missing, empty text where it can be fetched, else why it cannot."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        return "Node.js and npm are not installed"
    return None if _SIGN.exists() else ""


def fetch() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "package.json").write_text('{"private": true}')
    command = ["npm", "install", "--no-audit", "--no-fund", "--no-save", f"ws@{VERSION}"]
    subprocess.run(command, cwd=FOLDER, capture_output=True, check=True)


def folder_with_ws() -> Path:
    """A folder from which Node finds the package. Skips the test where it is not there."""
    if (reason := missing()) is not None:
        pytest.skip(reason or "the npm package ws is not there: make prepare fetches it")
    return FOLDER
