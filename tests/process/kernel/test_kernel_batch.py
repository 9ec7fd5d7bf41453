"""Batch runs and the kernel's commands on the command line."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mainspring import App
from mainspring.cli.commands import app as command_line
from mainspring.cli.support.messages import Wire
from mainspring.cli.support.output import CommandFailed
from mainspring.loop import VirtualClock
from mainspring.server.batch import run_batch
from tests.support.kernel import booted, command, encoded, message, ping, query, virtual
from tests.support.serving import Serving, clean_environment


def noting(notes: list[Any]) -> App:
    app = App("batch", concurrency=1)

    @app.command("Note.Take")
    async def take(data: dict, ctx: Any) -> dict:
        notes.append(data["n"])
        return data

    @app.on("Note.Event")
    async def hear(data: dict, ctx: Any) -> None:
        await ctx.sleep(10)
        notes.append("heard")

    return app


async def fed(app: App, clock: VirtualClock, text: bytes, piece: int = 1 << 16) -> tuple[int, list[dict[str, Any]]]:
    pieces = [text[start : start + piece] for start in range(0, len(text), piece)] + [b""]
    written: list[bytes] = []
    async with booted(app, clock) as kernel:
        failed = await run_batch(kernel, lambda count: pieces.pop(0), written.append)
    return failed, [json.loads(line) for line in b"".join(written).splitlines()]


@virtual
async def test_a_batch_ends_when_nothing_is_left_to_do(clock: VirtualClock) -> None:
    """Checklist 35, 37, 41: timers fired, events handled, everything written."""
    notes: list[Any] = []
    later = {"delay": 5_000, "message": command("Note.Take", {"n": "later"})}
    text = b"".join(
        map(
            encoded,
            [ping(1, id="p"), command("Timer.Schedule", later, id="t"), message("event", "Note.Event", {}), ping(2)],
        )
    )
    failed, lines = await fed(noting(notes), clock, text[:-1], piece=50)
    assert failed == 0
    assert [line["data"].get("payload") for line in lines if line["type"] == "Syscall.Ping"] == [1, 2]
    assert notes == ["heard", "later"], "one actor, one after the other"


@virtual
async def test_lines_that_fail_are_counted(clock: VirtualClock) -> None:
    """Checklist 35."""
    text = b"nonsense\n" + encoded(command("No.Such", {})) + encoded(ping(1)) + b"x" * 20_000
    failed, lines = await fed(App("x"), clock, text)
    assert failed == 3
    assert sorted(line["data"].get("code", 0) for line in lines) == [0, 400, 404, 413]


@virtual
async def test_an_empty_batch_is_over_at_once(clock: VirtualClock) -> None:
    assert await fed(App("x"), clock, b"") == (0, [])


@virtual
async def test_a_long_batch_is_taken_as_fast_as_it_is_answered(clock: VirtualClock) -> None:
    """Checklist 107."""
    notes: list[Any] = []
    text = b"".join(encoded(command("Note.Take", {"n": number})) for number in range(6_000))
    failed, lines = await fed(noting(notes), clock, text)
    assert failed == 0
    assert notes == [line["data"]["n"] for line in lines] == list(range(6_000))


async def test_an_answer_is_written_before_more_input_comes() -> None:
    """Checklist 35: whoever feeds a pipe line by line may wait for each answer."""
    answered = threading.Event()
    pieces = [encoded(ping(1)), b""]

    def read(count: int) -> bytes:
        if len(pieces) == 1:
            assert answered.wait(30), "the first answer waits for more input"
        return pieces.pop(0)

    async with App("x").kernel() as kernel:
        assert await run_batch(kernel, read, lambda text: answered.set()) == 0


async def test_a_shutdown_ends_a_batch_whose_input_stays_open() -> None:
    """Checklist 36: no further line is taken, and no timer is waited for."""
    ended = threading.Event()
    later = {"delay": 3_600_000, "message": command("Note.Take", {"n": "later"})}
    pieces = [encoded(command("Timer.Schedule", later)) + encoded(command("Syscall.Shutdown", {}, id="end"))]
    written: list[bytes] = []

    def read(count: int) -> bytes:
        if pieces:
            return pieces.pop(0)
        assert ended.wait(30), "the input is read on"
        return b""

    notes: list[Any] = []
    async with noting(notes).kernel() as kernel:
        assert await run_batch(kernel, read, written.append, end_input=ended.set) == 0
    assert [json.loads(line)["type"] for line in b"".join(written).splitlines()] == [
        "Timer.Schedule",
        "Syscall.Shutdown",
    ]
    assert notes == []


async def test_a_batch_whose_output_nobody_reads_ends() -> None:
    def write(text: bytes) -> None:
        raise BrokenPipeError

    ended = threading.Event()
    pieces = [encoded(ping(1))]

    def read(count: int) -> bytes:
        if pieces:
            return pieces.pop(0)
        assert ended.wait(30), "the input is read on"
        return b""

    async with App("x").kernel() as kernel:
        with pytest.raises(BrokenPipeError):
            await run_batch(kernel, read, write, end_input=ended.set)


PROGRAM = """
from mainspring import App
app = App("small")

@app.query("Small.Double")
def double(data: int, ctx) -> int:
    "Twice as much."
    return data * 2
"""


def mainspring(folder: Path, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    (folder / "small.py").write_text(PROGRAM)
    code = "from mainspring.cli.program import kernel; import typer; typer.run(kernel.run)"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        input=text,
        cwd=folder,
        env=clean_environment({"PYTHONPATH": str(folder)}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_run_answers_standard_input_and_says_whether_all_went_well(tmp_path: Path) -> None:
    """Checklist 35."""
    good = encoded(query("Small.Double", 21)).decode()
    done = mainspring(tmp_path, "small:app", text=good)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["data"] == 42
    mixed = mainspring(tmp_path, "small:app", text=good + "nonsense\n")
    assert mixed.returncode == 1
    assert len(mixed.stdout.splitlines()) == 2


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("cli")
    (folder / "small.py").write_text(PROGRAM)
    with Serving("small:app", folder=folder, env={"PYTHONPATH": str(folder)}) as running:
        yield running


def run(*arguments: str) -> Any:
    return CliRunner().invoke(command_line, list(arguments))


def test_send_shows_the_answer_or_the_error(node: Serving) -> None:
    where = ("--socket", str(node.kernel_socket))
    assert json.loads(run("send", "query", "Small.Double", "21", *where).output) == 42
    line = json.loads(run("send", "query", "Small.Double", "21", "--json", "--correlation", "c", *where).output)
    assert (line["kind"], line["metadata"]["correlation"]) == ("reply", "c")
    refused = run("send", "query", "No.Such", *where)
    assert refused.exit_code == 1
    assert "Sys.RoutingError 404" in refused.output
    as_json = run("send", "query", "Small.Double", '"x"', "--json", *where)
    assert (as_json.exit_code, json.loads(as_json.output)["data"]["code"]) == (1, 422)
    event = run("send", "event", "Some.Event", "{}", *where)
    assert (event.exit_code, event.output.startswith("sent ")) == (0, True)
    wrong = run("send", "banana", "Some.Event", "{}", *where)
    assert wrong.exit_code == 2
    for text in ('{"a": NaN}', '"\\ud800"', "{", ""):
        refused = run("send", "query", "Small.Double", text, *where)
        assert isinstance(refused.exception, CommandFailed), "said before anything is sent"
    huge = run("send", "query", "Syscall.Ping", '{"payload": 123456789012345678901234567890}', *where)
    assert json.loads(huge.output) == {"payload": 123456789012345678901234567890}


def test_describe_lists_all_types_and_shows_one(node: Serving) -> None:
    where = ("--socket", str(node.kernel_socket))
    listed = run("describe", *where).output
    assert "Small.Double" in listed
    assert "Twice as much." in listed
    entries = [json.loads(line) for line in run("describe", "--json", *where).output.splitlines()]
    assert {"Small.Double", "Syscall.Ping", "Memory.Set"} <= {entry["type"] for entry in entries}
    one = run("describe", "Small.Double", *where).output
    assert one.startswith("query Small.Double\nTwice as much.")
    assert run("describe", "No.Such", *where).exit_code == 1


def test_trace_draws_the_tree(node: Serving) -> None:
    where = ("--socket", str(node.kernel_socket))
    run("send", "query", "Small.Double", "1", "--id", "traced", *where)
    assert run("trace", "traced", *where).output.splitlines()[0] == "query Small.Double  traced  <--"
    assert run("trace", "never-was", *where).exit_code == 1


def test_without_a_node_the_commands_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match="no node listens") as caught:
        Wire(tmp_path / "nothing.sock")
    assert "mainspring serve" in caught.value.remedy


def test_dead_messages_are_listed_sent_again_and_dropped_from_a_terminal(node: Serving) -> None:
    def terminal(*args: str) -> str:
        done = CliRunner().invoke(command_line, ["dead-messages", *args, "--socket", str(node.kernel_socket)])
        assert done.exit_code == 0, done.output
        return done.output

    inner = command("No.Such", {})
    with Wire(node.kernel_socket) as wire:
        wire.ask("command", "Timer.Schedule", {"delay": 0, "message": inner})
        while not (letters := terminal("list", "--json")):
            pass
    letter = json.loads(letters)
    assert (letter["message"]["type"], letter["reason"], letter["code"]) == ("No.Such", "reached_nobody", 404)
    assert "command No.Such" in terminal("list")
    assert terminal("redrive", letter["id"]) == "sent 1 again\n"
    assert terminal("drop", "--all", "--json") == '{"count":1}\n'
    assert terminal("list") == ""
    refused = CliRunner().invoke(command_line, ["dead-messages", "drop", "--socket", str(node.kernel_socket)])
    assert refused.exit_code == 2
