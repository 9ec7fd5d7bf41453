"""`mainspring top` and `mainspring demo`: a node at a glance, and something to look at."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

from mainspring.cli.node.top import rate
from tests.support.serving import PATIENCE_S, Serving
from tests.support.terminal import Terminal, until, url_of


def test_one_look_tells_rates_topics_groups_and_lag(terminal: Terminal) -> None:
    terminal.ok("pub", "seen", stdin="1\n2\n3\n")
    terminal.json("sub", "seen", "-g", "g", "-n", "1")
    (look,) = terminal.json("top", "--once", "--every", "100ms")
    assert look["ready"] is True
    assert look["version"]
    assert look["totals"]["published"] >= 3
    assert look["rates"]["nacks"] == 0.0
    (topic,) = (each for each in look["topics"] if each["topic"] == "seen")
    assert (topic["published"], topic["lag"]) == (3, 2)
    (group,) = (each for each in look["groups"] if each["group"] == "g")
    assert (group["lag"], group["lagChange"], group["members"]) == (2, 0, 0)
    assert not any(each["topic"].startswith("system.") for each in look["topics"])


def test_for_people_it_is_a_table_without_colour_in_a_pipe(terminal: Terminal) -> None:
    terminal.ok("pub", "tabled", "1")
    said = terminal.ok("top", "--once", "--every", "100ms")
    assert "\x1b" not in said
    assert "tabled" in said
    assert "dead letters" in said


def test_it_looks_again_and_again_until_ctrl_c(terminal: Terminal) -> None:
    terminal.ok("pub", "again", "1")
    with terminal.running("top", "--json", "--every", "100ms") as command:
        first, second = json.loads(command.line()), json.loads(command.line())
        assert first["rates"]["published"] is None
        assert second["rates"]["published"] is not None
        assert command.interrupt() == 130


def test_on_a_terminal_it_is_a_live_view(terminal: Terminal) -> None:
    terminal.ok("pub", "lively", "1")
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "mainspring", "top", "--every", "100ms"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=terminal.environment({"TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"}),
    )
    os.close(theirs)
    try:
        seen = b""
        while seen.count(b"lively") < 2:
            seen += os.read(ours, 65536)
        assert b"\x1b[" in seen
        process.send_signal(signal.SIGINT)
        while process.poll() is None:
            try:
                os.read(ours, 65536)
            except OSError:
                break
        assert process.wait(PATIENCE_S) == 130
    finally:
        process.kill()
        process.wait(PATIENCE_S)
        os.close(ours)


def test_a_node_that_goes_away_is_looked_for_again(tmp_path: Path) -> None:
    with Serving(folder=tmp_path) as node:
        terminal = Terminal(url_of(node))
        with terminal.running("top", "--every", "100ms") as command:
            command.line()
            node.kill()
            until(lambda: "does not answer" in command.errors())
            assert command.interrupt() == 130


def test_a_rate_needs_two_looks_at_the_same_life_of_the_node() -> None:
    assert rate(30, 10, 2.0) == 10.0
    assert rate(30, None, 2.0) is None
    assert rate(3, 10, 2.0) is None  # it was restarted in between
    assert rate(3, 3, 0.0) is None


def test_the_demo_lives_fails_lags_and_ends_by_itself() -> None:
    demo = Terminal("ws://127.0.0.1:1")
    with demo.running("demo", "--rate", "40", "--json", "--seconds", "60") as command:
        told = json.loads(command.line())
        terminal = Terminal(told["url"])
        letters = until(lambda: terminal.json("dlq", "list", "orders", "--group", "mailer"))
        assert letters[0]["attempts"] == 3
        assert letters[0]["reason"].startswith("no mail address for")
        groups = {each["group"]: each for each in terminal.json("groups", "list")}
        assert set(groups) == {"billing", "shipping", "mailer", "monitor"}
        assert all(each["members"] == 1 for each in groups.values())
        assert terminal.json("tail", "heartbeat.received", "-n", "1")[0]["payload"]["name"] == "demo"
        assert "checkout" in terminal.ok("runs", "list")
        assert command.interrupt() == 130


def test_the_demo_says_what_to_try_and_what_it_says_works() -> None:
    with Terminal("ws://127.0.0.1:1").running("demo", "--rate", "20", "--seconds", "60") as command:
        said = [command.line() for _ in range(14)]
        url = next(line for line in said if "BUS_URL=" in line).partition("BUS_URL=")[2].strip()
        terminal = Terminal(url)
        for line in said:
            if any(each in line for each in ("groups list", "dlq list", "runs list", "attention")):
                terminal.ok(*line.split("  ")[1].split()[1:])
        assert command.interrupt() == 130


def test_the_demo_ends_with_its_time_and_leaves_nothing() -> None:
    with Terminal("ws://127.0.0.1:1").running("demo", "--seconds", "0.5", "--json") as command:
        told = json.loads(command.line())
        assert command.process.wait(PATIENCE_S) == 0
        assert not Path(told["kernel_socket"]).parent.exists()
