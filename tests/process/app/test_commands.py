"""The commands around a program: new, doctor, describe --tools, mcp, serve --reload."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import IO, Any

import pytest
from typer.testing import CliRunner

from mainspring.cli.commands import app as command_line
from mainspring.cli.node.new import files_of
from mainspring.cli.program.mcp import Server, tool_from
from mainspring.cli.support.messages import Wire
from mainspring.cli.support.output import CommandFailed
from tests.support.serving import PATIENCE_S, Serving, clean_environment


def mainspring(folder: Path, *arguments: str, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "mainspring", *arguments],
        cwd=folder,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("new")
    assert "test_shop.py" in mainspring(folder, "new", "shop")
    return folder / "shop"


@pytest.fixture(scope="module")
def node(project: Path) -> Iterator[Serving]:
    with Serving("shop:app", folder=project, engine="sqlite") as node:
        yield node


# --- new


def test_a_new_fastapi_project_has_tests_that_pass(tmp_path: Path) -> None:
    pytest.importorskip("fastapi")
    assert "uvicorn web_shop:api" in mainspring(tmp_path, "new", "web-shop", "--fastapi")
    assert "3 passed" in pytest_output(tmp_path / "web-shop")


def test_a_new_project_has_tests_that_pass(project: Path) -> None:
    assert "4 passed" in pytest_output(project)


def pytest_output(project: Path) -> str:
    environment = {name: value for name, value in clean_environment().items() if not name.startswith("PYTEST")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_new_project_is_served_as_its_readme_says(node: Serving) -> None:
    order = {"id": "o-1", "customer": "ada", "cents": 1200}
    with Wire(node.kernel_socket) as wire:
        assert wire.ask("command", "Order.Place", order)["data"] == {"id": "o-1"}
        deadline = time.monotonic() + PATIENCE_S
        while wire.ask("query", "Run.Outcome", {"id": "checkout-o-1"})["kind"] == "error":
            assert time.monotonic() < deadline
        assert wire.ask("query", "Run.Outcome", {"id": "checkout-o-1"})["data"]["state"] == "running"


def test_nothing_is_written_over_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "mine.txt").write_text("mine")
    mainspring(tmp_path, "new", "shop", code=1)
    assert os.listdir(tmp_path / "shop") == ["mine.txt"]


@pytest.mark.parametrize("name", ["1shop", "a b", "class", "../x", "", "test", "json", "Queue", "mainspring"])
def test_a_name_that_can_be_no_module_is_refused(name: str) -> None:
    with pytest.raises(CommandFailed, match="cannot name"):
        files_of(name)


def test_dashes_become_underscores() -> None:
    assert {"my_shop.py", "test_my_shop.py"} <= files_of("my-shop").keys()


# --- doctor


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_doctor_finds_a_sound_installation_and_says_who_serves(project: Path, node: Serving) -> None:
    found = lines(mainspring(project, "doctor", "--json", "shop:app"))
    states = {each["check"]: each["state"] for each in found}
    assert set(states.values()) <= {"ok", "warning"}
    assert {"python", "sqlite", "data", "log", "owner", "program"} <= states.keys()
    (owner,) = [each for each in found if each["check"] == "owner"]
    assert str(node.pid) in owner["found"]


def test_doctor_finds_what_is_wrong_and_says_the_remedy(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "log.sqlite3").write_bytes(b"this is no log" * 1000)
    (tmp_path / "broken.py").write_text("raise RuntimeError('not today')\n")
    found = lines(mainspring(tmp_path, "doctor", "--json", "broken:app", code=1))
    wrong = {each["check"]: each for each in found if each["state"] == "wrong"}
    assert set(wrong) == {"log", "program"}
    assert "not today" in wrong["program"]["found"]
    assert all(each["remedy"] for each in wrong.values())


def test_doctor_reports_a_setting_that_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "mainspring.toml").write_text("prot = 7\n")
    found = lines(mainspring(tmp_path, "doctor", "--json", "--config", "mainspring.toml", code=1))
    assert found[-1]["check"] == "settings"
    assert "did you mean port" in found[-1]["remedy"]


@pytest.mark.parametrize(("engine", "driver"), [("nats://n1/shop", "nats-py"), ("mongodb://m1/shop", "pymongo")])
def test_doctor_says_when_the_package_of_the_engine_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, driver: str
) -> None:
    def nothing_but_ours(name: str) -> str:
        if name == driver:
            raise PackageNotFoundError(name)
        return "1.0"

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MAINSPRING_ENGINE", engine)
    monkeypatch.setattr("mainspring.cli.node.doctor.version", nothing_but_ours)
    done = CliRunner().invoke(command_line, ["doctor"])
    assert done.exit_code == 1
    assert f"wrong    {driver}: not installed\n         pip install 'mainspring[" in done.stdout


# --- tools


def test_every_message_is_a_tool_with_an_object_for_arguments(project: Path, node: Serving) -> None:
    tools = json.loads(mainspring(project, "describe", "--tools", "--socket", str(node.kernel_socket)))
    by_name = {tool["name"]: tool for tool in tools}
    assert {
        "Order_Place",
        "Bus_Publish",
        "Run_Start",
        "Beat_Signal",
        "Timer_Schedule",
        "Syscall_Ping",
    } <= by_name.keys()
    for tool in tools:
        assert tool.keys() == {"name", "description", "input_schema"}
        assert tool["description"]
        assert tool["input_schema"]["type"] == "object"
        assert tool["name"].replace("_", "").isalnum()
    order = by_name["Order_Place"]
    assert order["description"] == "Place an order."
    assert order["input_schema"]["required"] == ["id", "customer", "cents"]
    assert "$defs" not in order["input_schema"]


def test_data_that_is_no_object_is_wrapped_and_a_type_that_holds_itself_keeps_its_definition() -> None:
    plain = tool_from("Sum.Of", {"kind": "query", "description": "Add.", "input": {"type": "integer"}})
    assert plain.schema == {"type": "object", "properties": {"data": {"type": "integer"}}, "required": ["data"]}
    assert (plain.data({"data": 5}), plain.description) == (5, "Add. Changes nothing.")
    tree = {"$ref": "#/$defs/T", "$defs": {"T": {"type": "object", "properties": {"left": {"$ref": "#/$defs/T"}}}}}
    kept = tool_from("Tree.Put", {"kind": "command", "description": "Put.", "input": tree})
    assert kept.schema["type"] == "object"
    assert "T" in kept.schema["$defs"]


# --- mcp


class Client:
    """A Model Context Protocol client over the pipes of a real process."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "mainspring", "mcp", *arguments],
            cwd=folder,
            env=clean_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._id = 0

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe(self.process.stdin).close()
        assert self.process.wait(PATIENCE_S) == 0
        self._pipe(self.process.stdout).close()

    @staticmethod
    def _pipe(pipe: IO[str] | None) -> IO[str]:
        assert pipe is not None
        return pipe

    def say(self, **message: Any) -> None:
        stdin = self._pipe(self.process.stdin)
        stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        stdin.flush()

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        self._id += 1
        self.say(id=self._id, method=method, params=params)
        answer: dict[str, Any] = json.loads(self._pipe(self.process.stdout).readline())
        assert answer["id"] == self._id
        return answer


def test_an_agent_finds_and_calls_tools(project: Path, node: Serving) -> None:
    with Client(project, "--socket", str(node.kernel_socket), "--allow-changes") as client:
        hello = client.ask("initialize", protocolVersion="2025-03-26", capabilities={}, clientInfo={"name": "t"})
        assert hello["result"]["protocolVersion"] == "2025-03-26"
        assert "tools" in hello["result"]["capabilities"]
        client.say(method="notifications/initialized")
        assert client.ask("ping")["result"] == {}
        tools = {tool["name"]: tool for tool in client.ask("tools/list")["result"]["tools"]}
        assert tools["Order_Place"]["inputSchema"]["type"] == "object"
        assert tools["Bus_Read"]["annotations"] == {"readOnlyHint": True}
        order = {"id": "o-2", "customer": "bob", "cents": 5}
        called = client.ask("tools/call", name="Order_Place", arguments=order)["result"]
        assert (called["isError"], called["structuredContent"]) == (False, {"id": "o-2"})
        assert json.loads(called["content"][0]["text"]) == {"id": "o-2"}
        refused = client.ask("tools/call", name="Order_Place", arguments={**order, "cents": 0})["result"]
        assert refused["isError"] is True
        assert "costs something" in refused["content"][0]["text"]
        wrong = client.ask("tools/call", name="Order_Place", arguments={})["result"]
        assert "Schema validation failed" in wrong["content"][0]["text"]


def test_a_server_may_offer_less_than_the_node_has(project: Path, node: Serving) -> None:
    with Client(project, "--socket", str(node.kernel_socket), "--only", "Bus.*") as client:
        names = {tool["name"] for tool in client.ask("tools/list")["result"]["tools"]}
        assert "Bus_Read" in names
        assert all(name.startswith("Bus_") for name in names)
        assert "Bus_Publish" not in names
        for name in ("Bus_Publish", "Syscall_Ping", "No_Such"):
            assert client.ask("tools/call", name=name, arguments={})["error"]["code"] == -32602


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("{", -32700),
        ("[]x", -32700),
        ("1", -32600),
        ('{"id": 1, "method": "ping"}', -32600),
        ('{"jsonrpc": "2.0", "id": 1, "method": "no/such"}', -32601),
        ('{"jsonrpc": "2.0", "id": 1, "method": 5}', -32601),
        ('{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {}}', -32602),
        ('{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": [1]}', -32602),
        ('{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}', -32603),
    ],
)
def test_what_is_wrong_with_a_call_is_a_json_rpc_error(tmp_path: Path, line: str, code: int) -> None:
    (answer,) = answers_of(Server(lambda: Wire(tmp_path / "no.sock")), line)
    assert answer["error"]["code"] == code


def answers_of(server: Server, line: str) -> list[Any]:
    sent: list[Any] = []
    server.take(line.encode(), sent.append)
    server.finish()
    return sent


def test_notifications_and_answers_get_no_answer_and_a_batch_gets_one(tmp_path: Path) -> None:
    for line in (
        '{"jsonrpc": "2.0", "method": "notifications/cancelled"}',
        '{"jsonrpc": "2.0", "id": 1, "result": {}}',
    ):
        assert answers_of(Server(lambda: Wire(tmp_path / "no.sock")), line) == []
    batch = '[{"jsonrpc": "2.0", "id": 1, "method": "ping"}, {"jsonrpc": "2.0", "method": "ping"}]'
    assert answers_of(Server(lambda: Wire(tmp_path / "no.sock")), batch) == [
        [{"jsonrpc": "2.0", "id": 1, "result": {}}]
    ]


# --- reload

ANSWERS = (
    "from mainspring import App\n\napp = App('r')\n\n@app.query('Which.One')\ndef which(data, ctx):\n    return {n}\n"
)


def test_a_changed_program_is_started_again_with_its_data(tmp_path: Path) -> None:
    program = tmp_path / "which.py"
    program.write_text(ANSWERS.format(n=1))
    node = Serving("which:app", "--reload", folder=tmp_path, engine="sqlite")
    with node:
        with Wire(node.kernel_socket) as wire:
            assert wire.ask("query", "Which.One", None)["data"] == 1
            wire.ask("command", "Memory.Set", {"key": "/kept", "value": "yes"})
        program.write_text("this is no Python")
        program.write_text(ANSWERS.format(n=22))
        assert node.process is not None
        assert node.process.stdout is not None
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            line = json.loads(node.process.stdout.readline())
            if line["type"] == "Sys.BootComplete":
                break
        with Wire(node.kernel_socket) as wire:
            assert wire.ask("query", "Which.One", None)["data"] == 22
            assert wire.ask("query", "Memory.Get", {"key": "/kept"})["data"] == {"value": "yes"}
        node.signal(signal.SIGTERM)
        assert node.wait() == 0


def test_the_help_of_these_commands_reads_well() -> None:
    for name in ("new", "doctor", "mcp", "describe", "serve"):
        done = CliRunner().invoke(command_line, [name, "--help"])
        assert done.exit_code == 0, done.output
        assert "Usage: " in done.output
