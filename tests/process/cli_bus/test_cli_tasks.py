"""What an operator types about tasks and schedules, and many commands at once: against a node with a real program."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.in_process import mainspring
from tests.support.serving import PATIENCE_S, clean_environment, serving
from tests.support.terminal import until, url_of

PROGRAM = """
from pathlib import Path
from mainspring import App, Perform, WaitSignal

app = App("shop")

@app.run
async def checkout(order: str, perform: Perform) -> str:
    return await perform(WaitSignal("paid"))

@app.task(max_attempts=1)
async def mail(to: str, *, subject: str = "hello") -> str:
    if not Path("up").exists():
        raise ConnectionError(f"no way to {to}")
    return f"sent to {to}"

@app.every("1h")
async def tidy() -> None:
    pass
"""


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    folder = tmp_path_factory.mktemp("shop")
    (folder / "shop.py").write_text(PROGRAM)
    with serving(folder, "shop:app", env={"PYTHONPATH": str(folder)}) as node:
        yield url_of(node), folder


def said(shop: tuple[str, Path], *arguments: str, code: int = 0, stdin: str = "") -> list[Any]:
    """The objects of a command with --json."""
    text = mainspring(*arguments, "--json", code=code, stdin=stdin, env={"BUS_URL": shop[0]}).stdout
    return [json.loads(line) for line in text.splitlines()]


def test_calls_are_listed_shown_retried_and_discarded(shop: tuple[str, Path]) -> None:
    env = {"BUS_URL": shop[0]}
    for to in ("ada", "bob", "cy"):
        mainspring("pub", "tasks.shop.mail", json.dumps({"args": [to], "kwargs": {"subject": "x"}}), env=env)
    until(lambda: said(shop, "tasks", "list")[0]["failed"] == 3)
    table = mainspring("tasks", "list", env=env).stdout
    assert "shop.mail" in table
    newest, _, oldest = said(shop, "tasks", "list", "shop.mail", "--state", "failed")
    assert (newest["args"], oldest["args"], oldest["kwargs"]) == (["cy"], ["ada"], {"subject": "x"})
    assert oldest["createdTime"].startswith("20")
    shown = mainspring("tasks", "show", "mail", oldest["id"], env=env).stdout
    assert "no way to ada" in shown
    assert '"ada", subject="x"' in shown
    (shop[1] / "up").touch()
    assert said(shop, "tasks", "retry", "mail", oldest["id"]) == [{"task": "shop.mail", "count": 1, "refused": {}}]
    until(lambda: said(shop, "tasks", "list")[0]["done"] == 1)
    assert said(shop, "tasks", "discard", "mail", "--error", "bob")[0]["count"] == 1
    assert "1 call was sent back" in mainspring("tasks", "retry", "mail", "--all", "-y", env=env).stdout
    assert said(shop, "tasks", "list", "--state", "failed") == []
    assert "say which" in mainspring("tasks", "retry", "mail", code=2, env=env).stderr
    refused = mainspring("tasks", "cancel", "mail", oldest["id"], code=1, env=env).stderr
    assert "is done already" in refused
    assert "`mainspring tasks list`" in mainspring("tasks", "show", "male", "x", code=1, env=env).stderr


def test_a_schedule_is_shown_run_paused_and_resumed(shop: tuple[str, Path]) -> None:
    env = {"BUS_URL": shop[0]}
    name = "app/shop/tidy"
    (before,) = said(shop, "schedules", "show", name)
    said(shop, "schedules", "run", name)
    until(lambda: said(shop, "schedules", "show", name)[0].get("last", {}).get("result") == "done")
    (after,) = said(shop, "schedules", "show", name)
    assert after["nextMs"] == before["nextMs"]  # its regular times stay
    assert said(shop, "schedules", "pause", name)[0]["paused"]
    assert "paused" in mainspring("schedules", "show", name, env=env).stdout
    assert not said(shop, "schedules", "resume", name)[0].get("paused", False)


def test_many_runs_are_signalled_and_cancelled_by_a_filter(shop: tuple[str, Path]) -> None:
    env = {"BUS_URL": shop[0]}
    for n in range(3):
        mainspring("runs", "start", "checkout", f'"o-{n}"', "--id", f"o-{n}", env=env)
    mainspring("runs", "start", "checkout", '"p"', "--id", "p", env=env)
    chosen = ("--program", "checkout", "--prefix", "o-")
    assert said(shop, "runs", "signal", "-", "paid", '"yes"', *chosen, "-y") == [{"count": 3, "refused": {}}]
    until(lambda: all(each["state"] == "done" for each in said(shop, "runs", "list", *chosen)))
    words = mainspring("runs", "cancel", "--state", "running", "--program", "checkout", env=env).stdout
    assert "1 run was cancelled" in words
    assert "say which runs" in mainspring("runs", "signal", "-", "paid", code=1, env=env).stderr


def test_many_commands_are_one_process_and_stop_at_the_first_that_fails(shop: tuple[str, Path]) -> None:
    env = {"BUS_URL": shop[0]}
    lines = "# three topics\n" + "".join(f"pub many.{n} '{{\"n\": {n}}}'\n\n" for n in range(3))
    mainspring("shell", stdin=lines + "mainspring topics show many.2\n", env=env)
    wrong = "pub many.0 1\ntopics show nowhere\npub many.0 2\n"
    stopped = mainspring("shell", stdin=wrong, code=1, env=env)
    assert "there is no topic 'nowhere'" in stopped.stderr
    assert "line 2 failed with exit code 1" in stopped.stderr
    *_, first, second, third = [
        each for each in said(shop, "shell", "--keep-going", stdin=wrong, code=1) if "exitCode" in each
    ]
    assert [each["exitCode"] for each in (first, second, third)] == [0, 1, 0]
    assert second == {"line": 2, "command": "topics show nowhere", "exitCode": 1}
    (topic,) = [each for each in said(shop, "topics", "list") if each["topic"] == "many.0"]
    assert topic["events"] == 4  # one, one before the stop, two with --keep-going


def test_a_line_that_reads_standard_input_does_not_eat_the_others(shop: tuple[str, Path]) -> None:
    mainspring("shell", stdin="pub eaten -\npub eaten 7\n", env={"BUS_URL": shop[0]})
    (topic,) = [each for each in said(shop, "topics", "list") if each["topic"] == "eaten"]
    assert topic["events"] == 1


def test_at_a_terminal_the_shell_prompts_completes_and_remembers(shop: tuple[str, Path], tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    env = clean_environment({"BUS_URL": shop[0], "XDG_STATE_HOME": str(tmp_path), "TERM": "dumb"})
    process = subprocess.Popen(
        [sys.executable, "-m", "mainspring", "shell"], stdin=theirs, stdout=theirs, stderr=theirs, env=env
    )
    os.close(theirs)
    read = b""

    def wait_for(text: bytes) -> None:
        nonlocal read
        while text not in read:
            assert select.select([ours], [], [], PATIENCE_S)[0], read
            read += os.read(ours, 4096)
        read = read.partition(text)[2]

    try:
        wait_for(b"mainspring> ")
        os.write(ours, b"topcs\n")
        wait_for(b"did you mean 'topics'?")
        wait_for(b"mainspring> ")
        os.write(ours, b"schedu\tshow app/sh\t\n")
        wait_for(b"every 1h")
        wait_for(b"mainspring> ")
        os.write(ours, b"exit\n")
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    history = tmp_path / "mainspring" / "history"
    assert "schedules show app/shop/tidy" in history.read_text()
    assert history.stat().st_mode & 0o077 == 0
