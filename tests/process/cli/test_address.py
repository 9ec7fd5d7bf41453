"""`send`, `describe`, `trace`, `mcp`, `runs` and `beats` reach a node by its address, as the commands of the bus do."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.in_process import mainspring
from tests.support.serving import Serving, serving

PROGRAM = """
from mainspring import App, Fail

app = App("small")

@app.query("Small.Double")
async def double(data: int, ctx) -> int:
    "Twice as much."
    return data * 2

@app.command("Small.Refuse")
async def refuse(data: dict, ctx) -> None:
    raise Fail(409, "not today", remedy="come back tomorrow")

@app.run
async def add(a: int, perform) -> int:
    return a + 1

@app.enzyme("/sig", match="prefix")
def count(signal, target, stage):
    stage.add("/count", 1)
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("node")
    (folder / "small.py").write_text(PROGRAM)
    with serving(folder, "small:app", engine="sqlite") as running:
        yield running


def url_of(node: Serving) -> str:
    return f"ws://127.0.0.1:{node.port}"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize("scheme", ["ws", "http"])
def test_send_asks_the_node_at_an_address(node: Serving, elsewhere: Path, scheme: str) -> None:
    at = f"{scheme}://127.0.0.1:{node.port}"
    assert mainspring("send", "query", "Small.Double", "21", "--url", at).stdout == "42\n"
    huge = '{"payload": 123456789012345678901234567890}'
    sent = mainspring("send", "query", "Syscall.Ping", "-", "--url", at, stdin=huge).stdout
    assert json.loads(sent) == json.loads(huge)


def test_the_environment_names_the_node_and_a_flag_beats_it(node: Serving, elsewhere: Path) -> None:
    named = {"BUS_URL": url_of(node)}
    assert mainspring("send", "query", "Small.Double", "4", env=named).stdout == "8\n"
    nobody = {"BUS_URL": f"ws://127.0.0.1:{free_port()}"}
    asked = ("send", "query", "Small.Double", "5", "--url", url_of(node))
    assert mainspring(*asked, env=nobody).stdout == "10\n"
    over_socket = ("send", "query", "Small.Double", "6", "--socket", str(node.kernel_socket))
    assert mainspring(*over_socket, env=nobody).stdout == "12\n"


def test_of_several_addresses_the_first_that_answers_is_asked(node: Serving, elsewhere: Path) -> None:
    several = f"ws://127.0.0.1:{free_port()}, {url_of(node)}"
    assert mainspring("send", "query", "Small.Double", "1", "--url", several).stdout == "2\n"
    assert "Small.Double" in mainspring("describe", "--url", several).stdout


def test_without_any_word_the_socket_of_the_data_directory_is_asked(node: Serving, elsewhere: Path) -> None:
    settings = {"MAINSPRING_KERNEL_SOCKET": str(node.kernel_socket)}
    assert mainspring("send", "query", "Small.Double", "3", env=settings).stdout == "6\n"
    data = elsewhere / "data"
    data.mkdir()
    # Somebody who listens at the place of a data directory is its node.
    os.symlink(node.kernel_socket, data / "kernel.sock")
    assert mainspring("send", "event", "Some.Event", "{}").stdout.startswith("sent ")


def test_every_command_finds_the_node_of_the_data_directory_here(node: Serving, elsewhere: Path) -> None:
    here = {"MAINSPRING_DATA": str(node.folder / "data")}
    placed = json.loads(mainspring("pub", "found", '"by its folder"', "--json", env=here).stdout)
    assert (placed["topic"], placed["offset"]) == ("found", 1)
    assert "found" in mainspring("topics", "list", env=here).stdout
    shown = mainspring("sub", "found", "-g", "g", "-n", "1", "--json", env=here).stdout
    assert json.loads(shown)["payload"] == "by its folder"
    assert "by its folder" in mainspring("tail", "found", "-n", "1", env=here).stdout
    mainspring("topics", "delete", "found", "-y", env=here)
    nobody = {**here, "BUS_URL": f"ws://127.0.0.1:{free_port()}"}
    assert "(named by the environment)" in mainspring("topics", "list", env=nobody, code=1).stderr
    assert "(--url)" in mainspring("topics", "list", "--url", nobody["BUS_URL"], env=here, code=1).stderr


def test_without_a_node_the_default_is_tried_and_named(elsewhere: Path) -> None:
    Path("mainspring.toml").write_text(f'url = "ws://127.0.0.1:{free_port()}"\n')
    assert "(named by the settings file)" in mainspring("topics", "list", code=1).stderr


@pytest.mark.parametrize(
    "command",
    [
        ("send", "query", "Small.Double", "1"),
        ("describe",),
        ("trace", "x"),
        ("runs", "start", "add", "1"),
        ("beats", "signal", "/sig/a"),
        ("topics", "list"),
    ],
    ids=lambda command: command[0],
)
def test_when_nobody_answers_every_command_says_the_same(elsewhere: Path, command: tuple[str, ...]) -> None:
    at = f"ws://127.0.0.1:{free_port()}"
    complained = mainspring(*command, "--url", at, code=1).stderr.splitlines()
    assert complained == [
        f"mainspring: no node answers at {at.replace('ws', 'http')} (--url): Connection refused",
        "  start one with `mainspring serve`, or say where it is with --url or BUS_URL",
    ]


def test_an_error_is_shown_as_the_socket_would_show_it(node: Serving, elsewhere: Path) -> None:
    for command in (
        ("send", "query", "No.Such"),
        ("send", "command", "Small.Refuse"),
        ("send", "query", "Small.Double", '"x"'),
        ("send", "query", "small", "1"),
        ("describe", "No.Such"),
        ("trace", "never-was"),
        ("runs", "start", "nothing"),
    ):
        over_socket = mainspring(*command, "--socket", str(node.kernel_socket), code=1)
        over_http = mainspring(*command, "--url", url_of(node), code=1)
        assert over_http.stderr.splitlines()[0]
        if command[2:] != ("small", "1"):  # no message at all: each side says so in its own words
            assert over_http.stderr == over_socket.stderr
    whole = mainspring("send", "command", "Small.Refuse", "--json", "--url", url_of(node), code=1)
    answer = json.loads(whole.stdout)
    assert (answer["kind"], answer["data"]["code"], answer["data"]["remedy"]) == ("error", 409, "come back tomorrow")


def test_a_reply_can_be_traced_by_its_id(node: Serving, elsewhere: Path) -> None:
    at = ("--url", url_of(node))
    reply = json.loads(mainspring("send", "query", "Small.Double", "21", "--json", *at).stdout)
    drawn = mainspring("trace", reply["metadata"]["causation"], *at).stdout
    assert drawn.splitlines()[0].startswith("query Small.Double")


def test_describe_says_the_same_as_over_the_socket(node: Serving, elsewhere: Path) -> None:
    for asked in ((), ("--json",), ("--tools",), ("Small.Double",), ("Small.Double", "--json")):
        over_http = mainspring("describe", *asked, "--url", url_of(node)).stdout
        over_socket = mainspring("describe", *asked, "--socket", str(node.kernel_socket)).stdout
        if asked == ("Small.Double", "--json"):
            over_http, over_socket = (json.dumps(json.loads(each)["data"]) for each in (over_http, over_socket))
        assert over_http == over_socket


def test_a_message_keeps_its_own_id_and_correlation_at_an_address(node: Serving, elsewhere: Path) -> None:
    own = ("--id", "mine", "--correlation", "c")
    said = mainspring("send", "query", "Small.Double", "1", *own, "--json", "--url", url_of(node)).stdout
    reply = json.loads(said)["metadata"]
    assert (reply["causation"], reply["correlation"]) == ("mine", "c")


def test_an_event_of_the_kernel_is_refused_at_an_address(node: Serving, elsewhere: Path) -> None:
    first, second = mainspring("send", "event", "Some.Event", "--url", url_of(node), code=1).stderr.splitlines()
    assert "unix socket only" in first
    assert "--socket" in second


def test_a_socket_and_an_address_at_once_are_a_wrong_command_line(elsewhere: Path) -> None:
    said = mainspring("describe", "--url", "ws://127.0.0.1:1", "--socket", "x.sock", code=2).stderr
    assert "either --socket or --url" in said


def test_runs_are_started_and_steered_at_an_address(node: Serving, elsewhere: Path) -> None:
    at = ("--url", url_of(node))
    assert mainspring("runs", "start", "add", "1", "--id", "r-1", *at).stdout == "r-1\n"
    assert mainspring("runs", "start", "add", "1", "--id", "r-1", *at).stdout == "r-1\n"
    over = mainspring("runs", "cancel", "never-was", *at, code=1).stderr
    assert "over or unknown" in over


def test_beats_are_signalled_and_read_at_an_address(node: Serving, elsewhere: Path) -> None:
    at = ("--url", url_of(node))
    assert mainspring("beats", "signal", "/sig/a", *at).stdout.startswith("beat ")
    assert mainspring("beats", "read", "/never", *at).stdout == "null\n"
    assert json.loads(mainspring("beats", "read", "/never", "--json", *at).stdout) == {"value": None}
    assert "paused" in mainspring("beats", "pause", *at).stdout
    assert "running" in mainspring("beats", "resume", *at).stdout
    first, second = mainspring("beats", "read", "/x", "--line", "other", *at, code=1).stderr.splitlines()
    assert "line main only" in first
    assert "--line" in second
    assert not (elsewhere / "data").exists()


def test_a_language_model_finds_the_tools_of_a_node_at_an_address(node: Serving, elsewhere: Path) -> None:
    asked = "".join(
        json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}) + "\n"
        for number, method, params in (
            (1, "tools/list", {}),
            (2, "tools/call", {"name": "Small_Double", "arguments": {"data": 4}}),
        )
    )
    said = mainspring("mcp", "--only", "Small.*", "--allow-changes", "--url", url_of(node), stdin=asked).stdout
    by_id = {each["id"]: each["result"] for each in map(json.loads, said.splitlines())}
    tools, called = by_id[1], by_id[2]
    assert {tool["name"] for tool in tools["tools"]} == {"Small_Double", "Small_Refuse"}
    assert (called["isError"], called["content"][0]["text"]) == (False, "8")


def test_a_node_with_tokens_answers_who_has_one(elsewhere: Path) -> None:
    lines = elsewhere / "tokens"
    (elsewhere / "small.py").write_text(PROGRAM)
    made = {
        agent: json.loads(
            mainspring("token", "new", "--agent", agent, "--scope", scope, "--file", str(lines), "--json").stdout
        )["token"]
        for agent, scope in (("ada", "admin"), ("bob", "query:Small.*"))
    }
    with serving(elsewhere, "small:app", env={"MAINSPRING_TOKENS_FILE": str(lines)}) as node:
        at = ("--url", url_of(node))
        query, command = (
            ("send", "query", "Small.Double", "2"),
            ("send", "command", "Memory.Set", '{"key":"/a","value":1}'),
        )
        for stranger in (query, command, ("describe",), ("trace", "x")):
            first, second = mainspring(*stranger, *at, code=1).stderr.splitlines()
            assert first.startswith("mainspring: ")
            assert "token" in second
        assert mainspring(*query, *at, "--token", made["bob"]).stdout == "4\n"
        first, second = mainspring(*command, *at, env={"BUS_TOKEN": made["bob"]}, code=1).stderr.splitlines()
        assert "'bob' may not send the command Memory.Set" in first
        assert "command:Memory.Set" in second
        mainspring(*command, *at, env={"BUS_TOKEN": made["ada"]})
