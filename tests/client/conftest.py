"""Real nodes for the client's tests, and what JavaScript needs: Node with a WebSocket package, and Chromium.

What is absent is a reason to skip on a developer's machine. Where CI is set it is installed instead, once.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from client_node import Node

CACHE = Path(__file__).resolve().parents[2] / ".cache"
CI = os.environ.get("CI") == "true"
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """One node for a whole module; tests use topics of their own."""
    with Node(folder=tmp_path_factory.mktemp("node"), engine="memory") as running:
        yield running


@pytest.fixture
def own_node(tmp_path: Path) -> Iterator[Node]:
    """A node with SQLite for one test, to be killed and started again."""
    with Node(folder=tmp_path, engine="sqlite", env={"MAINSPRING_RETENTION_INTERVAL_MS": "200"}) as running:
        yield running


@pytest.fixture
def name() -> str:
    """A name for a topic or queue that no other test uses."""
    return f"t{next(_numbers)}"


@pytest.fixture(scope="session")
def node_js() -> Path:
    """A folder from which Node finds the package `ws`."""
    if shutil.which("node") is None:
        _install_or_skip("node is not installed", ["apt-get", "install", "-y", "nodejs", "npm"])
    folder = CACHE / "js"
    return _once(folder / "node_modules" / "ws" / "package.json", lambda: _npm(folder), folder)


@pytest.fixture(scope="session")
def chromium() -> Path:
    """The browser's program."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if found := shutil.which(name):
            return Path(found)
    _install_or_skip("chromium is not installed", ["apt-get", "install", "-y", "chromium"])
    found = shutil.which("chromium")
    assert found is not None
    return Path(found)


def _npm(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "package.json").write_text('{"private": true}')
    if shutil.which("npm") is None:
        _install_or_skip("npm is not installed", ["apt-get", "install", "-y", "npm"])
    done = subprocess.run(
        ["npm", "install", "--no-audit", "--no-fund", "ws@8"], cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode:
        if CI:
            pytest.fail(f"npm install ws: {done.stderr}")
        pytest.skip("the package ws cannot be installed")


def _install_or_skip(reason: str, command: list[str]) -> None:
    if not CI:
        pytest.skip(reason)
    CACHE.mkdir(exist_ok=True)
    with open(CACHE / "apt.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        subprocess.run(["apt-get", "update"], capture_output=True, check=False)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.fail(f"{' '.join(command)}: {done.stderr}")


def _once(sign: Path, make: Callable[[], None], result: Path) -> Path:
    """Make something unless its sign is there; tests in other processes wait."""
    CACHE.mkdir(exist_ok=True)
    with open(CACHE / "js.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not sign.exists():
            make()
    return result
