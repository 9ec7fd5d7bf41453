"""`mainspring engine compare` and `recover`: after servers came back with less than they had acknowledged.

An operator expects to see which acknowledged events are only in the log that a node kept aside, and to get them back by
one command that does no harm when it is given twice.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from mainspring.client import NodeConnection
from mainspring.log import Append, Batch, Log, Put, SqliteEngine, log_file
from tests.support.in_process import mainspring
from tests.support.serving import Serving


def fill(folder: Path, *ids: str, topic: str = "orders") -> Path:
    """A data directory whose log holds these events and a record."""

    async def write() -> None:
        log = Log(SqliteEngine(log_file(folder)))
        await log.open()
        for id in ids:
            await log.commit(
                Batch([Append(topic, 0, id, 1, b'{"id":"%b"}' % id.encode(), key="k", headers=b'{"h":"v"}')])
            )
        await log.commit(Batch([Put("space", "key", b"value")]))
        await log.close()

    folder.mkdir()
    asyncio.run(write())
    return folder


def url(node: Serving) -> str:
    return f"ws://127.0.0.1:{node.port}"


def test_logs_that_hold_the_same_are_told_so(tmp_path: Path) -> None:
    left, right = fill(tmp_path / "left", "a", "b"), fill(tmp_path / "right", "a", "b")
    assert mainspring("engine", "compare", str(left), str(log_file(right))).stdout == "the logs hold the same events\n"


def test_where_two_logs_part_and_what_only_one_holds_is_shown(tmp_path: Path) -> None:
    left = fill(tmp_path / "left", "a", "b", "lost-1", "moved", "lost-2")
    right = fill(tmp_path / "right", "a", "b", "moved", "new")
    told = mainspring("engine", "compare", str(left), str(right), code=3).stdout.splitlines()
    assert told == [
        "orders partition 0: they differ from offset 3 on",
        "  only left: 3 lost-1",
        "  only left: 5 lost-2",
        "  only right: 4 new",
    ]
    (line,) = mainspring("engine", "compare", str(left), str(right), "--json", code=3).stdout.splitlines()
    assert json.loads(line) == {
        "topic": "orders",
        "partition": 0,
        "offset": 3,
        "only_left": [{"offset": 3, "id": "lost-1"}, {"offset": 5, "id": "lost-2"}],
        "only_right": [{"offset": 4, "id": "new"}],
    }


def test_a_log_that_is_not_there_is_named(tmp_path: Path) -> None:
    said = mainspring("engine", "compare", str(tmp_path / "no"), str(tmp_path / "no"), code=1).stderr
    assert f"there is no log at {tmp_path / 'no'}" in said


def test_what_only_the_kept_log_holds_is_published_again_once(tmp_path: Path) -> None:
    lost = fill(tmp_path / "lost", "a", "lost-1", "lost-2")
    home = tmp_path / "node"
    home.mkdir()
    fill(home / "data", "a", "new")
    with Serving(folder=home, engine="sqlite") as node:
        for _ in range(2):
            told = mainspring(
                "engine", "recover", str(lost), "--compare-with", str(home / "data"), "--url", url(node), "-y"
            ).stdout
            assert told.startswith("published")
        with NodeConnection(url(node)) as connection:
            events = connection.get("/topics/orders/events")["events"]
    assert [event["id"] for event in events] == ["a", "new", "lost-1", "lost-2"]
    assert events[2]["payload"] == {"id": "lost-1"}
    assert (events[2]["key"], events[2]["headers"]["h"]) == ("k", "v")


def test_a_kept_log_becomes_the_log_of_a_new_data_directory(tmp_path: Path) -> None:
    lost = fill(tmp_path / "lost", "a", "b")
    new = tmp_path / "new"
    new.mkdir()
    told = mainspring("engine", "recover", str(log_file(lost)), "--into", str(new)).stdout
    assert told == f"made {log_file(new)}: 2 events, 1 records\n"
    assert mainspring("engine", "compare", str(lost), str(new)).stdout == "the logs hold the same events\n"
    assert "there is a log already" in mainspring("engine", "recover", str(lost), "--into", str(new), code=1).stderr


def test_recover_wants_to_know_what_to_do(tmp_path: Path) -> None:
    lost = fill(tmp_path / "lost", "a")
    assert "--compare-with LOG or --into DIR" in mainspring("engine", "recover", str(lost), code=2).stderr
