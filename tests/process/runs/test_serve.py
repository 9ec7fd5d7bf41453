"""Durable runs in a real node: killed, started again, and steered from the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from mainspring.cli.node.log import app as log_command
from mainspring.cli.program.runs import app as runs_command
from mainspring.cli.support.messages import Wire
from tests.support.serving import serving

APP = """
from pathlib import Path

from mainspring import App
from mainspring.runs import Effect, Publish, WaitSignal, resume

app = App("shop")


class Charge(Effect[int]):
    cents: int


@app.handles(Charge)
async def charge(effect, ctx):
    with open("charged", "a") as file:
        file.write(f"{ctx.key}\\n")
    return resume(effect.cents)


@app.run
async def checkout(cents: int, perform):
    paid = await perform(Charge(cents))
    await perform(Publish("paid", {"cents": paid}))
    note = await perform(WaitSignal("shipped"))
    await perform(Publish("shipped", {"note": note}))
    return {"paid": paid, "note": note}
"""


def invoke(socket: Path, *words: str) -> str:
    result = CliRunner().invoke(runs_command, [*words, "--socket", str(socket)])
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output.strip()


def state_of(socket: Path, run_id: str) -> dict[str, Any]:
    answer = Wire(socket).ask("query", "Run.Outcome", {"id": run_id})
    data: dict[str, Any] = answer["data"]
    return data


def wait_until(socket: Path, run_id: str, effects: int) -> None:
    """Until the journal has so many answers: asked for again and again, the node answers in between."""
    wire = Wire(socket)
    while True:
        journal = wire.ask("query", "Run.History", {"id": run_id})["data"]["journal"]
        if sum(entry.get("answered", False) for entry in journal) >= effects:
            return


def test_a_run_survives_the_death_of_its_node(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP)
    with serving(tmp_path, "shop:app", engine="sqlite") as node:
        assert invoke(node.kernel_socket, "start", "checkout", "1900", "--id", "order-1") == "order-1"
        wait_until(node.kernel_socket, "order-1", 2)
        node.kill()
    with serving(tmp_path, "shop:app", engine="sqlite") as node:
        assert state_of(node.kernel_socket, "order-1")["state"] == "running"
        assert invoke(node.kernel_socket, "start", "checkout", "1900", "--id", "order-1") == "order-1"
        invoke(node.kernel_socket, "signal", "order-1", "shipped", '"by train"')
        wait_until(node.kernel_socket, "order-1", 4)
        found = state_of(node.kernel_socket, "order-1")
        while found["state"] == "running":
            found = state_of(node.kernel_socket, "order-1")
        assert (found["state"], found["value"]) == ("done", {"paid": 1900, "note": "by train"})
        fork = invoke(node.kernel_socket, "fork", "order-1", "--at", "1", "--id", "order-2")
        wait_until(node.kernel_socket, fork, 2)
        assert "cancelled" in invoke(node.kernel_socket, "cancel", fork, "--reason", "a trial")
        states = [["order-2", "cancelled"], ["order-1", "done"]]
        listed = invoke(node.kernel_socket, "list")
        assert [line.split()[:2] for line in listed.splitlines()[1:]] == states
        offline = CliRunner().invoke(log_command, ["runs", "--data", str(tmp_path / "data")])
        assert [line.split()[:2] for line in offline.output.splitlines()[1:]] == states
        shown = CliRunner().invoke(log_command, ["runs", "order-1", "--data", str(tmp_path / "data")])
        assert shown.output.strip() == invoke(node.kernel_socket, "show", "order-1")
    assert (tmp_path / "charged").read_text() == "order-1#00000000\n"


def test_a_node_forgets_finished_runs_when_told_to(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP)
    env = {"MAINSPRING_RUNS_RETENTION_MS": "1", "MAINSPRING_RUNS_RECOVERY_MS": "100"}
    with serving(tmp_path, "shop:app", engine="sqlite", env=env) as node:
        invoke(node.kernel_socket, "start", "checkout", "1900", "--id", "busy")
        invoke(node.kernel_socket, "start", "checkout", "1900", "--id", "done")
        invoke(node.kernel_socket, "cancel", "done")
        wire = Wire(node.kernel_socket)
        while (answer := wire.ask("query", "Run.Outcome", {"id": "done"}))["kind"] == "reply":
            assert answer["data"]["state"] == "cancelled"
        assert answer["data"]["code"] == 404
        assert state_of(node.kernel_socket, "busy")["state"] == "running"


def test_a_blocked_run_shows_journal_and_program_below_each_other(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP)
    with serving(tmp_path, "shop:app", engine="sqlite") as node:
        invoke(node.kernel_socket, "start", "checkout", "1900", "--id", "order-1")
        wait_until(node.kernel_socket, "order-1", 2)
    (tmp_path / "shop.py").write_text(APP.replace("await perform(Charge(cents))", "await perform(Charge(cents + 1))"))
    with serving(tmp_path, "shop:app", engine="sqlite") as node:
        while state_of(node.kernel_socket, "order-1")["state"] != "blocked":
            pass
        shown = invoke(node.kernel_socket, "show", "order-1").splitlines()
    first = next(number for number, line in enumerate(shown) if line.startswith("blocked: "))
    assert shown[first + 1].split() == ["journal:", "Charge", '{"cents":1900}']
    assert shown[first + 2].split()[:3] == ["program:", "Charge", '{"cents":1901}']
