"""A client in another language, written from the protocol's text with the usual WebSocket library, does its recipe.

It needs Node.js and the package `ws`, which `make test` fetches before the tests begin.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.javascript import javascript_folder
from tests.support.serving import Serving

CLIENT = Path(__file__).parent / "node" / "recipe.js"


@pytest.fixture(scope="module")
def modules() -> Path:
    """Where `require("ws")` finds the package."""
    return javascript_folder() / "node_modules"


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
