"""`mainspring outbox drain` as real processes against a real node and real databases, killed and cut off for real."""

from __future__ import annotations

import contextlib
import itertools
import json
import signal
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mainspring.outbox.outbox import Outbox
from tests.support.outbox import Shop, sqlite_shop
from tests.support.postgres import running_postgres
from tests.support.serving import PATIENCE_S, Serving, clean_environment, serving
from tests.support.terminal import Terminal, until, url_of

KEYS = ["a", "b", "c", "d"]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(tmp_path_factory.mktemp("node")) as node:
        yield node


@pytest.fixture
def topic() -> str:
    return f"orders.{next(_numbers)}"


_numbers = itertools.count(1)


def stored(node: Serving, topic: str) -> list[dict[str, Any]]:
    address = f"http://127.0.0.1:{node.port}/topics/{topic}/events"
    request = urllib.request.Request(address, headers={"Accept": "application/x-ndjson"})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return [json.loads(line) for line in answer]
    except urllib.error.HTTPError:
        return []


def fill(shop: Shop, topic: str, count: int) -> None:
    """Numbered events of several keys, in transactions of ten."""
    for start in range(0, count, 10):
        with shop.transaction() as connection:
            for number in range(start, min(start + 10, count)):
                shop.execute(connection, "INSERT INTO orders VALUES (?)", number)
                Outbox().add(connection, topic, number, key=KEYS[number % len(KEYS)])


def check(events: list[dict[str, Any]], count: int) -> None:
    """Everything once; the events of each key in the order in which they were added."""
    assert Counter(event["payload"] for event in events) == Counter(range(count))
    for index, key in enumerate(KEYS):
        assert [event["payload"] for event in events if event["key"] == key] == list(range(index, count, len(KEYS)))


@contextlib.contextmanager
def draining(shop: Shop, url: str, *options: str) -> Iterator[subprocess.Popen[str]]:
    """A drainer under way; killed at the end if it still lives."""
    command = [sys.executable, "-m", "mainspring", "outbox", "drain", "-d", shop.url, "--poll", "50ms", *options]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=clean_environment({"BUS_URL": url}),
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE_S)


def listens(process: subprocess.Popen[str]) -> bool:
    """Whether it handles SIGTERM by now; a slow one may still be starting when the others have sent everything."""
    status = Path(f"/proc/{process.pid}/status")
    if not status.exists():  # no way to know on this system
        return True
    (caught,) = (line for line in status.read_text().splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


def left(shop: Shop) -> int:
    return len(shop.rows("id", "state = 0"))


def test_several_drainers_send_every_row_once_and_in_order(shop: Shop, node: Serving, topic: str) -> None:
    fill(shop, topic, 600)
    with contextlib.ExitStack() as stack:
        drainers = [stack.enter_context(draining(shop, url_of(node), "--batch", "7", "--json")) for _ in range(3)]
        until(lambda: left(shop), lambda count: count == 0)
        for each in drainers:
            until(lambda each=each: listens(each), bool)
            each.send_signal(signal.SIGTERM)
        told = [each.communicate(timeout=PATIENCE_S) for each in drainers]
        assert [each.returncode for each in drainers] == [0, 0, 0]
    sent = [sum(json.loads(line)["sent"] for line in said.splitlines()) for said, _ in told]
    assert sum(sent) == 600
    check(stored(node, topic), 600)


def test_drainers_killed_again_and_again_lose_nothing_and_double_nothing(shop: Shop, node: Serving, topic: str) -> None:
    fill(shop, topic, 400)
    before = left(shop)
    for _ in range(4):
        with draining(shop, url_of(node), "--batch", "20", "--lease", "500ms") as drainer:
            until(lambda: left(shop), lambda count, before=before: count < before)
            drainer.send_signal(signal.SIGKILL)
            drainer.wait(PATIENCE_S)
            before = left(shop)
        if not before:
            break
    with draining(shop, url_of(node), "--lease", "500ms"):
        until(lambda: left(shop), lambda count: count == 0)
    check(stored(node, topic), 400)


def test_a_node_that_vanishes_and_comes_back_gets_everything_once(tmp_path: Path) -> None:
    shop = sqlite_shop(tmp_path)
    with Serving(folder=tmp_path, engine="sqlite") as node:
        port, url = str(node.port), url_of(node)
        fill(shop, "orders", 100)
        with draining(shop, url, "--batch", "10") as drainer:
            until(lambda: left(shop), lambda count: count < 100)
            node.kill()
            fill_more(shop, 100, 300)
            node.command[node.command.index("--port") + 1] = port
            node.launch()
            assert node.boot["type"] == "Sys.BootComplete"
            until(lambda: left(shop), lambda count: count == 0)
            drainer.send_signal(signal.SIGINT)
            assert drainer.wait(PATIENCE_S) == 130
        check(stored(node, "orders"), 300)
        assert shop.rows("id", "state = 2") == []


def fill_more(shop: Shop, start: int, end: int) -> None:
    with shop.transaction() as connection:
        for number in range(start, end):
            Outbox().add(connection, "orders", number, key=KEYS[number % len(KEYS)])


def test_a_database_that_vanishes_and_comes_back_is_drained_on(node: Serving, topic: str) -> None:
    with running_postgres() as server:
        shop = Shop("postgresql", server.url("postgres"))
        fill(shop, topic, 20)
        with draining(shop, url_of(node)) as drainer:
            until(lambda: left(shop), lambda count: count == 0)
            server.stop()
            server.start()
            with shop.transaction() as connection:
                for number in range(20, 40):
                    Outbox().add(connection, topic, number, key=KEYS[number % len(KEYS)])
            until(lambda: left(shop), lambda count: count == 0)
            drainer.send_signal(signal.SIGTERM)
            assert drainer.wait(PATIENCE_S) == 0
            assert drainer.stderr is not None
            assert "Traceback" not in drainer.stderr.read()
        check(stored(node, topic), 40)


def test_one_round_ends_by_itself_and_says_what_it_did(shop: Shop, node: Serving, topic: str) -> None:
    fill(shop, topic, 30)
    terminal = Terminal(url_of(node))
    assert terminal.json("outbox", "drain", "-d", shop.url, "--once") == [
        {"sent": 30, "refused": 0, "setAside": 0, "cleaned": 0, "waiting": 0, "setAsideInAll": 0}
    ]
    assert terminal.ok("outbox", "drain", "-d", shop.url, "--once") == "sent 0 rows\n"
    check(stored(node, topic), 30)


def test_a_row_the_node_refuses_is_set_aside_shown_and_tried_again(shop: Shop, node: Serving) -> None:
    terminal = Terminal(url_of(node))
    with shop.transaction() as connection:
        poison = Outbox().add(connection, "not a topic name", 1, key="k")
        Outbox().add(connection, "fine", 2, key="k")
    (told,) = terminal.json("outbox", "drain", "-d", shop.url, "--once", "--max-attempts", "1")
    assert (told["sent"], told["refused"], told["setAside"]) == (1, 1, 1)
    (shown,) = terminal.json("outbox", "show", "-d", shop.url)
    assert (shown["waiting"], shown["setAside"], shown["rows"][0]["id"]) == (0, 1, poison)
    assert shown["rows"][0]["error"].startswith("bad_frame: ")
    assert "not a topic name" in terminal.ok("outbox", "show", "-d", shop.url)
    assert terminal.json("outbox", "retry", "-d", shop.url, "--id", poison) == [{"retried": 1}]
    (shown,) = terminal.json("outbox", "show", "-d", shop.url)
    assert (shown["waiting"], shown["setAside"]) == (1, 0)
    assert terminal.run("outbox", "retry", "-d", shop.url).returncode == 2


def test_a_drainer_that_ends_gives_back_what_it_claimed(tmp_path: Path) -> None:
    shop = sqlite_shop(tmp_path)
    fill(shop, "orders", 10)
    with draining(shop, "ws://127.0.0.1:1") as drainer:
        assert drainer.stderr is not None
        line = drainer.stderr.readline()
        assert "no node answers" in line
        assert "trying again in" in line
        drainer.send_signal(signal.SIGTERM)
        assert drainer.wait(PATIENCE_S) == 0
    assert shop.rows("claimed_by, attempts") == [(None, 0)] * 10


def test_errors_say_what_to_do(tmp_path: Path, postgres: Any, node: Serving) -> None:
    shop = sqlite_shop(tmp_path)
    shop.add("orders", 1)
    away, there = Terminal("ws://127.0.0.1:1"), Terminal(url_of(node))
    first, second = away.fails("outbox", "drain", "-d", shop.url, "--once")
    assert "no node answers" in first
    assert "mainspring serve" in second
    first, second = there.fails("outbox", "drain", "-d", f"sqlite:///{tmp_path}/none.db", "--once")
    assert "there is no file" in first
    assert "--database" in second
    first, second = there.fails("outbox", "show", "-d", shop.url, "-t", "absent")
    assert "outbox create" in second
    first, second = there.fails("outbox", "show", "-d", "mysql://x/y")
    assert "'mysql' is no database" in first
    first, second = there.fails("outbox", "show", "-d", postgres.url("nobody"))
    assert "does not exist" in first
    first, second = there.fails("outbox", "show", "-d", "postgresql://u@127.0.0.1:1/x")
    assert "is the database running" in second
    assert there.run("outbox", "drain").returncode == 2


def test_the_table_can_be_made_from_the_command_line(tmp_path: Path, new_database: Callable[[], str]) -> None:
    (tmp_path / "empty.db").touch()
    terminal = Terminal("ws://127.0.0.1:1")
    for url in (f"sqlite:///{tmp_path / 'empty.db'}", new_database()):
        for _ in range(2):
            terminal.ok("outbox", "create", "-d", url)
        assert terminal.json("outbox", "show", "-d", url)[0]["waiting"] == 0
