"""The npm package of the JavaScript client: what it holds, its types, and what a program that installs it can do.

What somebody who knows NATS or BullMQ expects: `npm install`, an import that the compiler knows, and the verbs of the
Python client: commands, queries, tasks with their results, following.
"""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.client_node import Node
from tests.support.javascript import javascript_folder
from tests.support.paths import ROOT

HERE = Path(__file__).parent
PACKAGE = ROOT / "src" / "mainspring" / "client"
INTERNAL = {"constructor", "say", "take", "lost", "end"}  # of an exported class, and not for users

LIST_EXPORTS = """
import * as client from "mainspring-client";
const verbs = (kind) => Object.getOwnPropertyNames(kind.prototype);
const entries = Object.entries(client).map(([name, one]) => [name, String(one).startsWith("class") ? verbs(one) : []]);
console.log(JSON.stringify(Object.fromEntries(entries)));
"""

STORY = """
import WebSocket from "ws";
import { connect } from "mainspring-client";
const bus = connect(process.argv[2], { WebSocket });
const told = {};
const seen = [];
const screen = bus.follow("orders", (event) => seen.push(event.payload.cents));
await screen.confirmed;
told.receipt = await bus.command("Order.Place", { cents: 5 }, { timeoutMs: 5000 });
const refused = await bus.command("Order.Place", { cents: -1 }).catch((error) => error);
told.refused = [refused.name, refused.status, refused.message];
told.unknown = await bus.query("Nobody.Serves").catch((error) => error.status);
told.count = await bus.query("Order.Count");
const handle = await bus.enqueue("shop.add", [1, 2], { kwargs: { times: 3 } });
told.sum = await handle.result({ timeoutMs: 20000 });
told.again = await bus.task("shop.add", handle.id).result();
told.state = await handle.state();
const others = [{ priority: "high" }, { key: "k" }, { unique: "u" }];
told.others = await Promise.all(others.map(async (each) => (await bus.enqueue("shop.add", [1, 1], each)).result()));
const failed = await (await bus.enqueue("shop.fail")).result().catch((error) => error);
told.failed = [failed.code, failed.message.includes("boom")];
const endless = await bus.enqueue("shop.wait_for_ever");
told.late = await endless.result({ timeoutMs: 50 }).catch((error) => error.code);
await endless.cancel("enough");
told.cancelled = await endless.result().catch((error) => error.code);
told.badName = await bus.enqueue("add").catch((error) => error.code);
while (!seen.length) await new Promise((resolve) => setTimeout(resolve, 5));
told.seen = seen;
await bus.close();
console.log(JSON.stringify(told));
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the packed package is installed, beside `ws`."""
    tools = javascript_folder()
    folder = tmp_path_factory.mktemp("npm")
    (folder / "package.json").write_text('{"private": true, "type": "module"}')
    packed = json.loads(run("npm", "pack", "--json", "--pack-destination", str(folder), str(PACKAGE), cwd=folder))
    assert sorted(file["path"] for file in packed[0]["files"]) == ["client.d.ts", "client.js", "package.json"]
    run("npm", "install", "--offline", "--no-audit", "--no-fund", f"./{packed[0]['filename']}", cwd=folder)
    (folder / "node_modules" / "ws").symlink_to(tools / "node_modules" / "ws")
    return folder


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    folder, env = tmp_path_factory.mktemp("node"), {"PYTHONPATH": str(ROOT)}
    with Node("tests.browser.client.shop:app", folder=folder, env=env) as running:
        yield running


def run(*command: str, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def execute(folder: Path, script: str, *arguments: str) -> Any:
    (folder / "program.js").write_text(script)
    return json.loads(run("node", "program.js", *arguments, cwd=folder))


def test_a_program_that_installs_it_commands_asks_enqueues_and_follows(installed: Path, shop: Node) -> None:
    assert execute(installed, STORY, shop.url) == {
        "receipt": {"paid": 5},
        "refused": ["BusError", 422, "negative"],
        "unknown": 404,
        "count": 7,
        "sum": 9,
        "again": 9,
        "state": "done",
        "others": [2, 2, 2],
        "failed": ["task_failed", True],
        "late": "timed_out",
        "cancelled": "task_cancelled",
        "badName": "bad_argument",
        "seen": [5],
    }


def test_the_compiler_finds_every_mistake_and_nothing_else(installed: Path) -> None:
    program = HERE / "typed_program.ts"
    (installed / program.name).write_text(program.read_text())
    options = ["--strict", "--noEmit", "--target", "es2022", "--module", "nodenext", "--lib", "es2022,dom"]
    tsc = javascript_folder() / "node_modules" / ".bin" / "tsc"
    command = [tsc, *options, "--types", "", program.name]
    done = subprocess.run(command, cwd=installed, capture_output=True, text=True, timeout=60, check=False)
    said = re.findall(r"^typed_program\.ts\((\d+),\d+\): error (.*)$", done.stdout, re.M)
    found = {int(line): text for line, text in said}
    lines = program.read_text().splitlines()
    marked = {number for number, line in enumerate(lines, 1) if "// wrong: " in line}
    assert {number: text for number, text in found.items() if number not in marked} == {}
    assert {number: lines[number - 1] for number in marked - found.keys()} == {}, done.stdout


def test_everything_exported_has_its_type(installed: Path) -> None:
    exported: dict[str, list[str]] = execute(installed, LIST_EXPORTS)
    types = (PACKAGE / "client.d.ts").read_text()
    declared = set(re.findall(r"^export (?:class|function) (\w+)", types, re.M))
    assert declared == exported.keys()
    for name, verbs in exported.items():
        if verbs:
            (body,) = re.findall(rf"^export class {name}\b.*?\{{(.*?)^\}}", types, re.M | re.S)
            written = set(re.findall(r"^  (?:readonly )?(\w+)(?:<[^>]*>)?[(:]", body, re.M))
            assert {verb for verb in verbs if verb not in INTERNAL and "Symbol" not in verb} <= written, name


def test_it_has_the_version_of_the_python_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    package = json.loads((PACKAGE / "package.json").read_text())
    assert package["version"] == project["version"]
    assert package["license"] == project["license"]
