"""The client without an event loop: the same verbs, waited for."""

from __future__ import annotations

import inspect
import threading

import pytest

from mainspring.client import CannotConnect, Client, Closed, SyncClient, TimedOut
from tests.support.client_node import Node


@pytest.fixture
def bus(node: Node) -> SyncClient:
    with SyncClient(node.url) as client:
        yield client


def test_publish_subscribe_acknowledge(bus: SyncClient, name: str) -> None:
    assert [bus.publish(name, n) for n in range(3)] == [1, 2, 3]
    seen = []
    for event in bus.subscribe(name, group="g"):
        seen.append((event.payload, event.ack()))
        if len(seen) == 3:
            break
    assert seen == [(0, True), (1, True), (2, True)]
    assert [event.payload for event in bus.replay(name)] == [0, 1, 2]


def test_refusing_extending_and_waiting(bus: SyncClient, name: str) -> None:
    bus.publish(name, "x")
    with bus.subscribe(name, group="g") as events:
        event = events.get(60)
        assert event.extend(30)
        assert event.nack(delay=0.01, reason="later")
        assert events.get(60).attempt == 2
        with pytest.raises(TimedOut):
            events.get(0.05)
        events.seek("beginning")
        assert events.get(60).payload == "x"


def test_many_threads_share_one_client(bus: SyncClient, name: str) -> None:
    def publish(base: int) -> None:
        for n in range(50):
            bus.publish(name, base + n)

    threads = [threading.Thread(target=publish, args=(base,)) for base in (0, 100, 200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(list(bus.replay(name))) == 150


def test_no_node_no_client_and_no_thread_left() -> None:
    before = threading.active_count()
    with pytest.raises(CannotConnect), SyncClient("ws://127.0.0.1:1", connect_timeout=0.2):
        pass
    assert threading.active_count() == before


def test_a_closed_client_says_so(node: Node, name: str) -> None:
    client = SyncClient(node.url)
    with client:
        pass
    with pytest.raises(Closed):
        client.publish(name, 1)
    client.close()


@pytest.mark.parametrize(
    "verb",
    [name for name, member in inspect.getmembers(Client, inspect.isfunction) if not name.startswith("_")],
)
def test_every_verb_of_the_async_client_is_there_or_has_no_meaning_without_a_loop(verb: str) -> None:
    only_async = {
        "consume",
        "respond",
        "envelopes",
        "forget",
        "insist",
        "on_close",
        "put",
        "relieved",
        "run",
        "wall_ms",
    }
    assert hasattr(SyncClient, verb) or verb in only_async
    if hasattr(SyncClient, verb) and verb != "close":
        assert getattr(SyncClient, verb).__doc__ == getattr(Client, verb).__doc__
