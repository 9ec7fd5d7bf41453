"""The heartbeat examples, run as their reader would run them: a node, a publisher and a monitor, three processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from mainspring.client import connect
from tests.support.client_node import Node, eventually
from tests.support.paths import ROOT
from tests.support.serving import clean_environment

EXAMPLES = ROOT / "examples"


def start(script: str, url: str, said: Path, *arguments: str) -> subprocess.Popen[bytes]:
    env = clean_environment({"BUS_URL": url, "HEARTBEAT_EVERY_S": "0.2"})
    with open(said, "ab") as output:
        return subprocess.Popen(
            [sys.executable, str(EXAMPLES / script), *arguments], env=env, stdout=output, stderr=subprocess.STDOUT
        )


async def test_a_monitor_sees_a_process_live_and_fall_silent(node: Node, tmp_path: Path) -> None:
    shown = tmp_path / "monitor.txt"
    monitor = start("heartbeat_monitor.py", node.url, shown)
    publisher = start("heartbeat_publisher.py", node.url, tmp_path / "publisher.txt", "stt")

    async def shows(text: str) -> bool:
        return text in shown.read_text()

    try:
        await eventually(lambda: shows(f"stt ({publisher.pid}) lives"), 30)
        publisher.kill()
        await eventually(lambda: shows(f"stt ({publisher.pid}) is silent"), 30)
    finally:
        for process in (monitor, publisher):
            process.kill()
            process.wait()
    async with connect(node.url) as bus:
        beats = [event async for event in bus.replay("heartbeat.received")]
    assert {beat.key for beat in beats} == {f"proc:{publisher.pid}"}
    assert {tuple(sorted(beat.payload)) for beat in beats} == {("name", "pid", "ts")}
