"""A client in another language, written from the protocol's text with the usual WebSocket library, does its recipe.

It needs Node.js and npm, which fetches the package `ws` once into `.cache/`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import ROOT
from tests.support.serving import Serving

CLIENT = Path(__file__).parent / "node" / "recipe.js"
CACHE = ROOT / ".cache" / "node"
VERSION = "8.18.0"


@pytest.fixture(scope="module")
def modules() -> Path:
    """Where `require("ws")` finds the package."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        if os.environ.get("CI"):
            pytest.fail("Node.js and npm are needed: install nodejs and npm")
        pytest.skip("Node.js and npm are not installed")
    if not (CACHE / "node_modules" / "ws").is_dir():
        CACHE.mkdir(parents=True, exist_ok=True)
        command = ["npm", "install", "--no-audit", "--no-fund", "--no-save", "--prefix", str(CACHE), f"ws@{VERSION}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        if done.returncode != 0:
            if os.environ.get("CI"):
                pytest.fail(f"npm could not install ws: {done.stderr}")
            pytest.skip("npm cannot reach its registry")
    return CACHE / "node_modules"


def run(phase: str, node: Serving, modules: Path) -> Any:
    done = subprocess.run(
        ["node", str(CLIENT), phase, str(node.port)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "NODE_PATH": str(modules)},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_recipe(tmp_path: Path, modules: Path) -> None:
    with Serving(folder=tmp_path, engine="sqlite", env={"BUS_ACK_TIMEOUT_MS": "30000"}) as node:
        first = run("consume", node, modules)
        assert first["published"] == list(range(1, 51))
        assert first["seen"] == list(range(1, 51))
        assert first["most"] <= 10
        assert first["committed"] == 40
        node.kill()
        node.launch()
        second = run("resume", node, modules)
        assert second["seen"] == [[n, n] for n in range(41, 51)]
        assert second["committed"] == 50


def test_acks_off_leads_to_redeliveries_and_then_to_the_dead_letter_topic(tmp_path: Path, modules: Path) -> None:
    env = {"BUS_ACK_TIMEOUT_MS": "200", "MAINSPRING_MAX_ATTEMPTS": "3"}
    with Serving(folder=tmp_path, engine="memory", env=env) as node:
        told = run("silence", node, modules)
    assert told["attempts"] == [1, 2, 3]
    (letter,) = told["dead"]
    assert (letter["payload"], letter["key"]) == ("boo", "proc:stt")
    assert letter["headers"]["x"] == "1"
    assert letter["headers"]["x-original-id"] == told["id"]
    assert letter["headers"]["x-attempts"] == "3"
