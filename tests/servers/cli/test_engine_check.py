"""`mainspring engine check` looks and changes nothing; `init` makes what it finds missing. On real servers."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient

from mainspring.log import log_file, open_engine
from mainspring.log.engines.nats import encoding
from mainspring.log.engines.sqlite.schema import FORMAT
from tests.support.in_process import mainspring
from tests.support.mongo_server import new_database
from tests.support.nats_server import NatsServer, free_port, shared_server
from tests.support.serving import serving

_numbers = itertools.count(1)


def checked(*url: str, code: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(mainspring("engine", "check", "--json", *url, code=code).stdout)
    return found


def everything_in(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(file.relative_to(folder)): (file.stat().st_mtime_ns, file.read_bytes())
        for file in folder.rglob("*")
        if file.is_file()
    }


# -- sqlite


def test_a_log_that_is_not_there_is_said_and_not_made(elsewhere: Path) -> None:
    said = mainspring("engine", "check", code=4).stdout
    assert "not there yet: run `mainspring engine init`" in said
    assert checked(code=4)["log"] is False
    assert os.listdir(elsewhere) == []


def test_init_makes_the_file_and_check_leaves_it_as_it_is(elsewhere: Path) -> None:
    assert "created the file" in mainspring("engine", "init").stdout
    assert "there already" in mainspring("engine", "init").stdout
    before = everything_in(elsewhere)
    found = checked(code=0)
    assert (found["log"], found["format"], found["durable"], found["loss_window_s"]) == (True, FORMAT, True, 0)
    assert f"log           there, format {FORMAT}" in mainspring("engine", "check").stdout
    assert everything_in(elsewhere) == before


def test_a_node_may_serve_meanwhile(elsewhere: Path) -> None:
    with serving(elsewhere, engine="sqlite"):
        assert checked(code=0)["log"] is True
        assert "there already" in mainspring("engine", "init").stdout


def test_a_file_that_is_no_log_is_refused_and_left_alone(elsewhere: Path) -> None:
    log_file("data").parent.mkdir()
    log_file("data").write_bytes(b"this is no log" * 1000)
    for verb in ("check", "init"):
        first, second = mainspring("engine", verb, code=1).stderr.splitlines()
        assert "not a readable log" in first
        assert second.strip()
    assert log_file("data").read_bytes() == b"this is no log" * 1000


@pytest.mark.usefixtures("elsewhere")
def test_memory_has_nothing_to_look_at_and_keeps_nothing() -> None:
    assert checked("memory", code=3)["durable"] is False
    assert "ends with it" in mainspring("engine", "init", "memory", code=1).stderr
    assert "no engine 'banana'" in mainspring("engine", "check", "banana", code=1).stderr


# -- NATS


def streams(server: NatsServer) -> set[str]:
    with urllib.request.urlopen(f"{server.monitor}/jsz?streams=true", timeout=10) as reply:
        told = json.load(reply)
    return {
        stream["name"] for account in told.get("account_details", ()) for stream in account.get("stream_detail", ())
    }


def new_stream() -> str:
    return shared_server().url(f"made{next(_numbers)}")


@pytest.mark.usefixtures("elsewhere")
def test_a_stream_is_looked_for_and_not_made() -> None:
    server = shared_server()
    name = f"looked{next(_numbers)}"
    url = server.url(name, monitor=server.monitor)
    before = streams(server)
    found = checked(url, code=4)
    assert (found["log"], found["missing"], found["durable"]) == (False, [f"the stream MAINSPRING_{name}"], None)
    assert "run `mainspring engine init`" in mainspring("engine", "check", url, code=4).stdout
    assert streams(server) == before
    assert f"created the stream MAINSPRING_{name}" in mainspring("engine", "init", url).stdout
    assert streams(server) - before == {f"MAINSPRING_{name}", f"OBJ_MAINSPRING_{name}"}
    assert "there already" in mainspring("engine", "init", url).stdout
    found = checked(url, code=3)
    assert (found["log"], found["format"], found["replicas"], found["loss_window_s"]) == (True, encoding.FORMAT, 1, 120)
    said = mainspring("engine", "check", url, code=3).stdout
    assert "replicas      1\n" in said
    assert "loss window   120 s" in said
    assert "\nnot durable: one replica" in said


@pytest.mark.usefixtures("elsewhere")
def test_a_server_that_syncs_each_message_loses_nothing(tmp_path: Path) -> None:
    server = NatsServer(tmp_path / "nats")
    server.jetstream = "sync_interval: always"
    server.start()
    try:
        url = server.url("safe", monitor=server.monitor)
        mainspring("engine", "init", url)
        found = checked(url, code=0)
        assert (found["durable"], found["loss_window_s"]) == (True, 0)
        # More replicas than the stream has are a wish; looking does not grant it.
        wish = mainspring("engine", "check", f"{url}&replicas=3").stdout
        assert "replicas      1; the address asks for 3" in wish
    finally:
        server.kill()


# -- MongoDB


@pytest.fixture
def database() -> Iterator[tuple[str, Any]]:
    """An address nobody has used, and its database seen by a plain client."""
    address = new_database()
    client: Any = MongoClient(address)
    found = client.get_default_database()
    yield address, found
    client.drop_database(found.name)
    client.close()


@pytest.mark.usefixtures("elsewhere")
def test_collections_are_looked_for_and_not_made(database: tuple[str, Any]) -> None:
    url, held = database
    found = checked(url, code=4)
    assert found["log"] is False
    assert "the collection events" in found["missing"]
    assert held.list_collection_names() == []
    assert held.name not in held.client.list_database_names()
    assert "created the collection events" in mainspring("engine", "init", url).stdout
    assert "there already" in mainspring("engine", "init", url).stdout
    found = checked(url, code=0)
    assert (found["log"], found["format"], found["missing"], found["replicas"]) == (True, 1, [], 1)


@pytest.mark.usefixtures("elsewhere")
def test_an_index_somebody_dropped_is_named_and_made_again(database: tuple[str, Any]) -> None:
    url, held = database
    mainspring("engine", "init", url)
    (index,) = [name for name, each in held.marks.index_information().items() if list(each["key"]) == [("until", 1)]]
    held.marks.drop_index(index)
    assert "missing       the index (until) of marks" in mainspring("engine", "check", url, code=4).stdout
    assert mainspring("engine", "init", url).stdout.startswith("created the index (until) of marks\n")
    assert checked(url, code=0)["missing"] == []


@pytest.mark.usefixtures("elsewhere")
def test_somebody_elses_database_is_refused_and_left_alone(database: tuple[str, Any]) -> None:
    url, held = database
    held.events.insert_one({"_id": "mine"})
    first, second = mainspring("engine", "check", url, code=1).stderr.splitlines()
    assert "not a log of Mainspring" in first
    assert "database of its own" in second
    assert held.list_collection_names() == ["events"]


@pytest.mark.usefixtures("elsewhere")
def test_an_address_that_asks_for_less_is_said_to_lose_commits(database: tuple[str, Any]) -> None:
    url, _ = database
    mainspring("engine", "init", url)
    weak = f"{url}{'&' if '?' in url else '?'}w=1"
    found = checked(weak, code=3)
    assert (found["durable"], found["loss_window_s"]) == (False, None)


# -- both


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("scheme", ["nats", "mongodb"])
def test_a_server_that_does_not_answer_is_exit_code_1(scheme: str) -> None:
    option = "patience=0.2" if scheme == "nats" else "serverSelectionTimeoutMS=200"
    url = f"{scheme}://127.0.0.1:{free_port()}/shop?{option}"
    for verb in ("check", "init"):
        *_, first, second = mainspring("engine", verb, url, code=1).stderr.splitlines()
        assert first.startswith("mainspring: ")
        assert second.startswith("  ")


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize(
    "new", [lambda: shared_server().url(f"made{next(_numbers)}"), new_database], ids=["nats", "mongo"]
)
def test_what_init_makes_is_what_a_node_opens(new: Callable[[], str], tmp_path: Path) -> None:
    url = new()
    mainspring("engine", "init", url)

    async def opened() -> list[str]:
        engine = open_engine(url, tmp_path)
        await engine.open()
        try:
            return list(await engine.topics())
        finally:
            await engine.close()

    assert asyncio.run(opened()) == []
    assert checked(url, code=0 if url.startswith("mongodb") else 3)["log"] is True
