"""client.js under Node and in Chromium: the same stories in both, against a real node."""

from __future__ import annotations

import json
import select
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.chromium import ARGUMENTS, chromium
from tests.support.client_node import Node
from tests.support.javascript import javascript_folder
from tests.support.paths import ROOT

HERE = Path(__file__).parent
CLIENT = ROOT / "src" / "mainspring" / "client" / "client.js"
PATIENCE_S = 60

STORIES: dict[str, Any] = {
    "publishes_and_consumes": {
        "places": [1, 2, 3],
        "version": "7",
        "seen": [[1, 1, "k", "v", 1, True], [2, 2, "k", "v", 1, True], [3, 3, "k", "v", 1, True]],
    },
    "refuses_and_gets_again": [1, 2],
    "a_handler_that_throws_refuses_its_event": {"attempts": [1, 2], "errors": ["boom"]},
    "keeps_the_order_of_a_burst": True,
    "the_same_id_is_stored_once": [1, 1],
    "tells_why_it_was_refused": ["bad_frame", "bad_frame", "already_subscribed"],
    "survives_a_lost_connection": {"seen": [1, 2], "opened": 2},
    "everybody_who_follows_gets_every_event_once": [[1, 2], [1, 2], [0, 1, 2]],
    "leaves_what_it_did_not_acknowledge": [1, 2, False, True],
    "a_closed_client_says_so": [1, "closed", "closed"],
    "asks_again_for_what_may_pass_and_forgets_what_is_final": {
        "asked": ["passing", "passing", "passing", "final", "passing"],
        "refused": "forbidden",
        "ended": "forbidden",
    },
}

UNDER_NODE = """
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
const require = createRequire(process.argv[2] + "/");
const WebSocket = require("ws");
const { connect } = await import(process.argv[3]);
const { run } = await import(process.argv[4]);
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const say = (told) => process.stdout.write(JSON.stringify(told) + "\\n");
const tell = async (what) => { say({ tell: what }); await lines.next(); };
const [url, topic, story] = process.argv.slice(5);
say({ result: await run({ connect, WebSocket, url, topic, story, tell }) });
process.exit(0);
"""


@pytest.fixture(scope="session")
def node_js() -> Path:
    """A folder from which Node finds the package `ws`."""
    return javascript_folder()


def under_node(
    node_js: Path, folder: Path, node: Node, topic: str, story: str, tell: Callable[[str], None] | None = None
) -> Any:
    script = folder / "story.mjs"
    script.write_text(UNDER_NODE)
    client = folder / "client.mjs"  # Node goes by the name: without a package.json a .js is no module
    client.write_bytes(CLIENT.read_bytes())
    command = ["node", script, node_js, client, HERE / "client_test.mjs", node.url, topic, story]
    pipe = subprocess.PIPE
    with subprocess.Popen([str(part) for part in command], stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stderr is not None
        try:
            while True:
                ready, _, _ = select.select([process.stdout], [], [], PATIENCE_S)
                line = process.stdout.readline() if ready else ""
                assert line, process.stderr.read() if process.poll() is not None else "nothing was said"
                told = json.loads(line)
                if "tell" not in told:
                    return told["result"]
                assert tell is not None
                tell(told["tell"])
                process.stdin.write("done\n")
                process.stdin.flush()
        finally:
            process.kill()


@pytest.mark.parametrize("story", STORIES)
def test_under_node(node_js: Path, tmp_path: Path, node: Node, name: str, story: str) -> None:
    assert under_node(node_js, tmp_path, node, name, story) == STORIES[story]


def test_under_node_a_killed_node_is_only_a_pause(node_js: Path, tmp_path: Path, own_node: Node) -> None:
    def tell(what: str) -> None:
        own_node.kill() if what == "kill" else own_node.restart()

    assert under_node(node_js, tmp_path, own_node, "t", "publishes_over_a_killed_node", tell) == [2, 3, 4]


@pytest.fixture(scope="module")
def page(node: Node) -> Iterator[Any]:
    """A page of the node itself, so that its script may use it."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=list(ARGUMENTS))
        opened = browser.new_page()
        opened.goto(f"http://127.0.0.1:{node.port}/healthz")
        yield opened
        browser.close()


@pytest.mark.parametrize("story", STORIES)
def test_in_a_browser(page: Any, node: Node, name: str, story: str) -> None:
    """The client is the one the node serves; the stories are handed over as text."""
    result = page.evaluate(
        """async ([stories, url, topic, story]) => {
            const load = (text) => import(URL.createObjectURL(new Blob([text], { type: "text/javascript" })));
            const [{ connect }, { run }] = await Promise.all([import("/client.js"), load(stories)]);
            return await run({ connect, url, topic, story });
        }""",
        [(HERE / "client_test.mjs").read_text(), node.url, f"b{name}", story],
    )
    assert result == STORIES[story]


def test_waits_and_ids_without_a_connection(node_js: Path, tmp_path: Path) -> None:
    (tmp_path / "client.mjs").write_bytes(CLIENT.read_bytes())
    script = """
    import { waitMs, newId, BusClient } from "./client.mjs";
    const waits = [0, 1, 2, 3, 4, 5, 9, 99].map((failures) => waitMs(failures, () => 0));
    const short = waitMs(0, () => 0.999999);
    const ids = Array.from({ length: 1000 }, () => newId());
    let refused = "";
    try { new BusClient("ws://x", { WebSocket: undefined }); } catch (error) { refused = error.code; }
    const tried = [];
    class Fails { constructor(url) { tried.push(url); setTimeout(() => this.onclose()); } close() {} }
    const several = new BusClient(["http://a", "ws://b"], { WebSocket: Fails, random: () => 0.9 });
    await new Promise((resolve) => setTimeout(resolve, 5));
    several.reconnect();
    await several.close();
    console.log(JSON.stringify({ waits, short, id: newId(1_700_000_000_000, new Uint8Array(10)), refused,
      good: ids.every((id) => /^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/.test(id)),
      different: new Set(ids).size, tried }));
    """
    done = subprocess.run(
        ["node", "--input-type=module", "-e", script], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == {
        "waits": [500, 1000, 2000, 4000, 8000, 10000, 10000, 10000],
        "short": 250,
        "id": "018bcfe5-6800-7000-8000-000000000000",
        "refused": "no_websocket",
        "good": True,
        "different": 1000,
        "tried": ["ws://b", "ws://a"],
    }
