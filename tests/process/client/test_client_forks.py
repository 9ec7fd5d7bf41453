"""What a Django, Flask or Celery user expects of a client that is kept for the whole process.

It opens itself when it is first used, serves all threads, and works in a child that was forked after it was made or
used (`gunicorn --preload`, prefork workers, multiprocessing). The forks are real.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from mainspring import App, SyncClient, connect
from mainspring.client import CannotConnect, Closed
from tests.support.client_node import Node
from tests.support.nats_server import free_port
from tests.support.processes import eventually
from tests.support.serving import PATIENCE_S, clean_environment


def in_a_child(work: Callable[[], object]) -> None:
    """Fork, do it there, and fail here when it failed there."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def payloads(client: SyncClient, topic: str) -> list[object]:
    return [event.payload for event in client.replay(topic)]


def test_a_client_opens_itself_and_is_closed_at_the_end(node: Node, name: str) -> None:
    client = SyncClient(node.url)
    assert not client.connected
    assert client.publish(name, "first") == 1
    assert client.connected
    client.close()
    client.close()
    with pytest.raises(Closed):
        client.publish(name, "late")


def test_a_client_that_was_never_used_can_be_closed(node: Node, name: str) -> None:
    client = SyncClient(node.url)
    client.close()
    with pytest.raises(Closed):
        client.publish(name, 1)


def test_a_client_that_finds_no_node_finds_it_later(name: str) -> None:
    """The web server came first: its first request fails with a sentence, and the next ones work."""
    client = SyncClient(f"ws://127.0.0.1:{free_port()}", connect_timeout=0.2)
    for _ in range(2):
        with pytest.raises(CannotConnect):
            client.publish(name, 1)
    client.close()


def test_one_client_serves_all_threads_also_the_first_time(node: Node, name: str) -> None:
    client = SyncClient(node.url)
    with ThreadPoolExecutor(8) as threads:
        offsets = list(threads.map(lambda number: int(client.publish(name, number)), range(40)))
    assert sorted(offsets) == list(range(1, 41))
    client.close()


async def test_an_async_client_opens_itself_too(node: Node, name: str) -> None:
    bus = connect(node.url)
    await asyncio.gather(*(bus.publish(name, number) for number in range(5)))
    assert await bus.publish_many(name, range(5)) == 5
    subscription = bus.subscribe(name, group="g")
    assert (await subscription.get(timeout=20)).payload == 0
    await bus.close()
    with pytest.raises(Closed):
        await bus.publish(name, 1)


async def test_an_async_client_is_opened_and_closed_by_hand(node: Node, name: str) -> None:
    bus = connect(node.url)
    await bus.open()
    assert bus.connected
    await bus.close()
    unused = connect(node.url)
    await unused.close()


def test_a_client_that_was_used_works_in_a_child(node: Node, name: str) -> None:
    client = SyncClient(node.url)
    client.publish(name, "parent")
    in_a_child(lambda: client.publish(name, "child"))
    client.publish(name, "parent again")
    assert payloads(client, name) == ["parent", "child", "parent again"]
    client.close()


def test_children_of_children_and_many_at_once(node: Node, name: str) -> None:
    client = SyncClient(node.url)
    client.publish(name, "parent")

    def child(number: int) -> None:
        client.publish(name, number)
        in_a_child(lambda: client.publish(name, -number))

    context = multiprocessing.get_context("fork")
    children = [context.Process(target=child, args=(number,)) for number in (1, 2, 3)]
    for each in children:
        each.start()
    for each in children:
        each.join()
        assert each.exitcode == 0
    assert sorted(map(str, payloads(client, name))) == sorted(["parent", "1", "2", "3", "-1", "-2", "-3"])
    client.close()


def test_a_child_inside_the_with_block_leaves_it_by_itself(node: Node, name: str) -> None:
    with SyncClient(node.url) as client:

        def child() -> None:
            client.publish(name, "child")
            client.close()
            with pytest.raises(Closed):
                client.publish(name, "late")

        in_a_child(child)
        client.publish(name, "parent")
        assert payloads(client, name) == ["child", "parent"]


def test_tasks_are_enqueued_in_a_child_through_the_client_of_the_parent(node: Node, name: str) -> None:
    app, client = App(name), SyncClient(node.url)

    @app.task
    def send(to: str) -> None:
        """Done elsewhere."""

    app.use(client)
    send.enqueue("ada")
    in_a_child(lambda: send.enqueue("bob"))
    sent = [event.payload["args"] for event in client.replay(send.topic)]
    assert sent == [["ada"], ["bob"]]
    client.close()


WEB = """
import os
from mainspring import SyncClient

bus = SyncClient(os.environ["BUS_URL"])
bus.publish(os.environ["TOPIC"], os.getpid())  # used before the workers are forked


def web(environ, start_response):
    bus.publish(os.environ["TOPIC"], os.getpid())
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [str(os.getpid()).encode()]
"""


def test_gunicorn_with_preload_serves_from_every_worker(node: Node, name: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(WEB)
    port = free_port()
    environment = clean_environment({"BUS_URL": node.url, "TOPIC": name})
    command = [sys.executable, "-m", "gunicorn", "--preload", "--no-control-socket", "-w", "3", "--threads", "2"]
    with subprocess.Popen(
        [*command, "-b", f"127.0.0.1:{port}", "program:web"], cwd=tmp_path, env=environment
    ) as server:
        try:
            answered: list[int] = []

            def all_workers() -> bool:
                try:
                    answered.append(int(httpx.get(f"http://127.0.0.1:{port}/", timeout=PATIENCE_S).text))
                except httpx.TransportError:
                    return False
                return len(set(answered)) == 3

            eventually(all_workers, "an answer of each worker")
        finally:
            server.terminate()
    with SyncClient(node.url) as client:
        stored = payloads(client, name)
    assert stored == [server.pid, *answered]
