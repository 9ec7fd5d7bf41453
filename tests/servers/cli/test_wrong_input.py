"""Whatever is wrong with a command line, a person reads what happened and what to do, and never a traceback."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from mainspring.cli.commands import app
from tests.support.in_process import mainspring
from tests.support.mongo_server import new_database
from tests.support.nats_server import shared_server
from tests.support.serving import Serving, serving

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(tmp_path_factory.mktemp("node"), engine="sqlite") as running:
        yield running


@pytest.fixture
def here(elsewhere: Path, node: Serving, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with some files, where the settings name the node."""
    monkeypatch.setenv("BUS_URL", f"ws://127.0.0.1:{node.port}")
    (elsewhere / "text.txt").write_text("this is no JSON")
    (elsewhere / "log").symlink_to(node.folder / "data")
    return elsewhere


CANNOT = [
    ("topics show nope", "no topic 'nope'"),
    ("topics alter nope --partitions 2", "no topic 'nope'"),
    ("topics create a*b", "cannot name a topic"),
    ("topics list --url ws://nosuchhost.invalid:1", "no host"),
    ("topics list --url localhost", "not the address of a node"),
    ("pub @EMPTY 1", "a name is empty"),
    ("pub t {", "not JSON"),
    ("pub t @missing.json", "cannot read missing.json"),
    ("pub system.bus.audit 1", "written by the node only"),
    ("tail nope", "no topic 'nope'"),
    ("groups show nope g", "no topic 'nope'"),
    ("groups seek nope g --to latest --yes", "no topic 'nope'"),
    ("dlq list nope", "no topic 'nope'"),
    ("dlq redrive nope --all --yes", "no topic 'nope'"),
    ("schemas show nope", "has no schema"),
    ("schemas register t missing.json", "cannot read missing.json"),
    ("schemas register t text.txt", "is not JSON"),
    ("send query No.Such", "Sys.RoutingError 404"),
    ("send query lowercase", "not a message type"),
    ("send query A.B {", "not JSON"),
    ("send query A.B --timeout-ms 600001", "longest timeout"),
    ("send query A.B --socket missing.sock", "no node listens"),
    ("describe No.Such", "no such message type"),
    ("trace nope", "not known"),
    ("log runs --engine memory", "seen by its node only"),
    ("log runs nope --data log", "no durable run"),
    ("runs show nope", "no durable run"),
    ("runs start nope", "no program named 'nope'"),
    ("runs start nope x", "not JSON"),
    ("runs cancel nope", "over or unknown"),
    ("log runs", "there is no log at data"),
    ("beats show 1 --data log", "no details of beat 1"),
    ("beats read relative --data log", "a path starts with"),
    ("beats replay --data log", "does not say which program"),
    ("beats lines --engine memory", "seen by its node only"),
    ("beats signal bad", "a path starts with"),
    ("log check", "there is no log"),
    ("log stats --engine banana", "no engine 'banana'"),
    ("log export missing/x --data log", "cannot write missing/x"),
    ("log export text.txt --data log", "exists already"),
    ("log import missing --data new", "cannot read missing"),
    ("log import . --data new", "cannot read ."),
    ("log import text.txt --data new", "line 1 of the export"),
    ("log import text.txt --data log", "there is a log already"),
    ("log backup text.txt --data log", "exists already"),
    ("log backup missing/x --data log", "no folder missing"),
    ("settings --config missing.toml", "cannot read missing.toml"),
    ("settings --config text.txt", "not TOML"),
    ("new 1bad", "cannot name a program"),
    ("new shop --into text.txt", "cannot write to text.txt/shop"),
    ("token new --agent a --scope bad", "'bad' is not a scope"),
    ("token new --agent a --scope admin --expires soon", "'soon' is not a time"),
    ("token new --agent a --scope admin --file missing/x", "cannot write missing/x"),
    ("guest missing.wasm", "cannot read the module"),
    ("guest missing.wat --attach nope", "cannot attach nope"),
    ("outbox create -d banana://x", "no database"),
    ("outbox show -d sqlite:///missing.db", "no file missing.db"),
]


@pytest.mark.parametrize(("line", "said"), CANNOT, ids=lambda each: str(each)[:40])
@pytest.mark.usefixtures("here")
def test_what_cannot_be_done_is_two_lines_and_exit_code_1(line: str, said: str) -> None:
    words = ["" if word == "@EMPTY" else word for word in line.split()]
    lines = mainspring(*words, code=1).stderr.splitlines()
    assert said in lines[0]
    assert lines[0].startswith("mainspring: ")
    assert len(lines) == 2, lines
    assert len(lines[1].strip()) > 5


WRONG = [
    ("topics create a --partitions abc", "--partitions"),
    ("topics create a --partitions 1025", "--partitions"),
    ("topics create a --retention soon", "--retention"),
    ("topics create a --ack-timeout soon", "--ack-timeout"),
    ("groups seek t g --to soon", "--to"),
    ("dlq show t x", "OFFSET"),
    ("dlq redrive t", "say which"),
    ("dlq redrive t --before soon", "--before"),
    ("pub t 1 -H bad", "--header"),
    ("pub t 1 --delay soon", "--delay"),
    ("sub t -g g --from soon", "--from"),
    ("sub t", "--group"),
    ("tail t --filter bad", "--filter"),
    ("tail t --since soon", "--since"),
    ("tail t -n -1", "--lines"),
    ("top --once --every soon", "--every"),
    ("send banana A.B", "banana"),
    ("send query A.B --timeout-ms x", "--timeout-ms"),
    ("runs list --state banana", "--state"),
    ("runs fork r --at x", "--at"),
    ("beats show 0", "N"),
    ("outbox drain -d sqlite:///x.db --once --lease soon", "--lease"),
    ("outbox retry -d sqlite:///x.db", "say which"),
    ("schemas check t", "SCHEMA"),
    ("serve --port x", "--port"),
    ("engine check a b", "b"),
    ("tpoics list", "tpoics"),
]


@pytest.mark.parametrize(("line", "said"), WRONG, ids=lambda each: each[:40])
@pytest.mark.usefixtures("here")
def test_a_wrong_command_line_names_what_is_wrong_and_is_exit_code_2(line: str, said: str) -> None:
    complained = mainspring(*line.split(), code=2).stderr
    *_, last = complained.splitlines()
    assert last.startswith("Error: ")
    assert said in last


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("command", [("log", "stats"), ("log", "export", "copy"), ("log", "runs"), ("beats", "lines")])
def test_who_only_reads_makes_no_log_on_a_server(command: tuple[str, ...]) -> None:
    for url in (shared_server().url(f"read{next(_numbers)}"), new_database()):
        first, second = mainspring(*command, "--engine", url, code=1).stderr.splitlines()
        assert "there is no log at" in first
        assert "engine init" in second
        mainspring("engine", "check", url, code=4)


def every_command() -> Iterator[tuple[str, Any]]:
    def below(name: str, command: Any) -> Iterator[tuple[str, Any]]:
        yield name, command
        for each, inner in getattr(command, "commands", {}).items():
            yield from below(f"{name} {each}", inner)

    root: Any = typer.main.get_command(app)
    for name in root.list_commands(None):
        yield from below(name, root.get_command(None, name))


def test_the_help_of_every_command_is_whole() -> None:
    for name, command in every_command():
        short = command.get_short_help_str(64)
        assert short.endswith("."), name
        assert not short.endswith("..."), f"the first sentence of `{name}` is cut off in the list of commands: {short}"
        for param in command.params:
            assert param.help or param.name in ("help", "version"), f"{name}: {param.name} says nothing"


def test_the_command_line_and_the_node_agree_on_how_many_partitions_are_too_many() -> None:
    from mainspring.bus.topics import config as node_side
    from mainspring.cli.bus import topics as command

    assert command.MAX_PARTITIONS == node_side.MAX_PARTITIONS
