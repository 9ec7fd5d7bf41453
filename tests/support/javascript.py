"""Node.js and the npm packages `ws` and `typescript`, for clients in JavaScript. `make prepare` fetches them."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.paths import ROOT

PACKAGES = {"ws": "8.18.0", "typescript": "7.0.2"}
FOLDER = ROOT / ".cache" / "js"


def missing() -> str | None:
    """None where nothing is missing, empty text where it can be fetched, else why it cannot."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        return "Node.js and npm are not installed"
    return None if all(_installed(name) == version for name, version in PACKAGES.items()) else ""


def _installed(name: str) -> str:
    file = FOLDER / "node_modules" / name / "package.json"
    return str(json.loads(file.read_text())["version"]) if file.exists() else ""


def fetch() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "package.json").write_text('{"private": true}')
    wanted = [f"{name}@{version}" for name, version in PACKAGES.items()]
    command = ["npm", "install", "--no-audit", "--no-fund", "--no-save", *wanted]
    subprocess.run(command, cwd=FOLDER, capture_output=True, check=True)


def javascript_folder() -> Path:
    """A folder from which Node finds the packages. Skips the test where they are not there."""
    if (reason := missing()) is not None:
        pytest.skip(reason or "the npm packages ws and typescript are not there: make prepare fetches them")
    return FOLDER
