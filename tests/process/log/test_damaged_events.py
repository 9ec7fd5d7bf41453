"""A stored event whose bytes have rotted is named wherever it would be read, and the others are still served.

Somebody who reads a topic expects every event or to be told which one is missing; a clean answer with a gap in it is a
lie. A consumer group goes on behind it, and what is left of the event waits among the dead letters.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mainspring import connect
from tests.support.log_file import alter, chunks_of, damage_event
from tests.support.serving import PATIENCE_S, Serving

DAMAGED = 5
COUNT = 15


class Site:
    """A node, and what HTTP says."""

    def __init__(self, node: Serving) -> None:
        self.url = f"http://127.0.0.1:{node.port}"
        self.node = node

    def get(self, path: str, accept: str = "application/json") -> tuple[int, str]:
        request = urllib.request.Request(self.url + path, headers={"Accept": accept})
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def json(self, path: str) -> Any:
        return json.loads(self.get(path)[1])

    def post(self, path: str, body: Any) -> Any:
        request = urllib.request.Request(
            self.url + path, data=json.dumps(body).encode(), headers={"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return json.load(answer)


def damaged_node(folder: Path, damage: Callable[[Path], object]) -> Serving:
    """A node that begins on a log with one damaged event among fifteen."""
    node = Serving(folder=folder, engine="sqlite")
    with node:
        site = Site(node)
        for n in range(1, COUNT + 1):
            site.post("/topics/big/events", {"payload": {"n": n}, "key": f"k{n}", "headers": {"a": "b"}})
        node.signal(signal.SIGTERM)
        assert node.wait() == 0
    damage(folder / "data" / "log.sqlite3")
    return Serving(folder=folder, engine="sqlite")


def damage_one(log: Path) -> None:
    (id,) = [row[2] for chunk in chunks_of(log) for row in chunk.rows() if row[4] == f"k{DAMAGED}"]
    damage_event(log, id, lambda payload: payload.replace(b"5", b"9"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("damaged")
    with damaged_node(folder, damage_one) as node:
        yield Site(node)


def test_one_event_is_a_problem_of_its_own(site: Site) -> None:
    status, text = site.get(f"/topics/big/events/0/{DAMAGED}")
    problem = json.loads(text)
    assert (status, problem["code"]) == (500, "damaged_event")
    assert f"offset {DAMAGED}" in problem["detail"]
    assert site.get("/topics/big/events/0/6")[0] == 200
    assert site.get("/topics/big/events/0/99")[0] == 404


def test_a_page_names_it(site: Site) -> None:
    page = site.json("/topics/big/events")
    assert [event["offset"] for event in page["events"]] == [n for n in range(1, COUNT + 1) if n != DAMAGED]
    (place,) = page["damaged"]
    assert (place["topic"], place["partition"], place["offset"], place["code"]) == ("big", 0, DAMAGED, "damaged_event")
    assert site.json("/topics/big/events?limit=4").get("damaged") is None
    only = site.json(f"/topics/big/events?partition=0&offset={DAMAGED}&limit=1")
    assert (only["events"], [each["offset"] for each in only["damaged"]], only["cursor"]) == ([], [DAMAGED], "0:5")


def test_a_line_names_it(site: Site) -> None:
    lines = [json.loads(line) for line in site.get("/topics/big/events", "application/x-ndjson")[1].splitlines()]
    assert len(lines) == COUNT
    assert lines[DAMAGED - 1]["damaged"]["offset"] == DAMAGED


def test_cloudevents_have_no_place_for_it_and_are_refused(site: Site) -> None:
    with pytest.raises(http.client.HTTPException):
        site.get("/topics/big/events", "application/cloudevents-batch+json")
    path = f"/topics/big/events?partition=0&offset={DAMAGED}"
    assert site.get(path, "application/cloudevents-batch+json")[0] == 500


def test_a_stream_names_it(site: Site) -> None:
    request = urllib.request.Request(f"{site.url}/topics/big/stream?from=beginning")
    seen: list[bytes] = []
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as stream:
        while not any(b'"offset":6' in line for line in seen):
            seen.append(stream.readline().strip())
    at = seen.index(b"event: damaged")
    assert seen[at + 1] == b"id: 0:5"
    assert json.loads(seen[at + 2].removeprefix(b"data: "))["offset"] == DAMAGED


def test_tail_says_it(site: Site) -> None:
    command = [sys.executable, "-m", "mainspring", "tail", "big", "-n", "100", "--url", site.url]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    assert f"offset {DAMAGED} of 'big' partition 0 is damaged" in done.stderr
    assert len(done.stdout.splitlines()) == COUNT - 1


async def test_the_client_and_the_messages_say_it(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    async with connect(site.url.replace("http", "ws")) as bus:
        replayed = [event.offset async for event in bus.replay("big")]
        assert len(replayed) == COUNT - 1
        assert f"offset {DAMAGED} of 'big'" in caplog.text
        first = await bus.query("Bus.Read", {"topic": "big", "limit": 20})
        assert [event["offset"] for event in first["events"]] == [1, 2, 3, 4]
        rest = await bus.query("Bus.Read", {"topic": "big", "offset": first["next"], "limit": 20})
        assert rest["damaged"] == [DAMAGED]
        assert rest["events"][0]["offset"] == DAMAGED + 1


async def test_a_group_passes_it_and_what_is_left_is_a_dead_letter(site: Site) -> None:
    async with connect(site.url.replace("http", "ws")) as bus:
        seen = []
        async with bus.subscribe("big", group="workers", from_="beginning") as events:
            async for event in events:
                seen.append(event.offset)
                await event.ack()
                if event.offset == COUNT:
                    break
    assert seen == [n for n in range(1, COUNT + 1) if n != DAMAGED]
    async with asyncio.timeout(PATIENCE_S):
        while True:
            letters = site.json("/dlq/big")["letters"]
            if letters:
                break
            await asyncio.sleep(0.02)
    (letter,) = letters
    assert (letter["originalOffset"], letter["group"], letter["key"]) == (DAMAGED, "workers", f"k{DAMAGED}")
    assert letter["reason"] == "the stored event is damaged"
    assert letter["headers"] == {"a": "b", "x-damaged": "true"}
    assert letter["payload"]["damaged"] is True
    (notice,) = site.json("/topics/system.bus.dlq/events")["events"]
    assert (notice["payload"]["offset"], notice["payload"]["reason"]) == (DAMAGED, "the stored event is damaged")
    assert site.json("/stats")["damaged"] >= 1
    assert "mainspring_damaged_events_total 1" in site.get("/metrics", "text/plain")[1]
    groups = site.json("/topics/big/groups/workers")
    assert json.dumps(groups)
    # It cannot be sent back: nobody knows what it was.
    assert site.post("/dlq/big/redrive", {})["count"] == 0
    with pytest.raises(urllib.error.HTTPError) as refused:
        site.post("/dlq/big/redrive", {"offsets": [letter["offset"]]})
    assert refused.value.code == 409


def test_a_partition_whose_events_cannot_be_found_is_not_empty(tmp_path: Path) -> None:
    """As after damage to an inner page of the file's tree."""
    move = "UPDATE partitions SET id = 77 WHERE topic = 'big'"
    with damaged_node(tmp_path, lambda log: alter(log, move)) as node:
        site = Site(node)
        status, text = site.get("/topics/big/events")
        assert (status, json.loads(text)["code"]) == (500, "log_damaged")
        with pytest.raises(urllib.error.HTTPError) as refused:
            site.post("/topics/big/events", {"payload": 1})
        assert refused.value.code == 503
        site.post("/topics/others/events", {"payload": 1})
