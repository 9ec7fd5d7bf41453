"""A server that dies, sleeps or cannot be reached: nothing is acknowledged falsely, and all goes on by itself."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mainspring.log import Append, Batch, InDoubt, Log, LogUnavailable, Put, Receipt, open_engine
from tests.support.fixtures.nats import Node, OpenNode, everything, until, until_equal
from tests.support.nats_server import NatsServer
from tests.support.proxy import Proxy


@pytest.fixture
async def proxy(server: NatsServer) -> AsyncIterator[Proxy]:
    proxy = await Proxy(server.port).start()
    yield proxy
    await proxy.close()


def through(proxy: Proxy, name: str, patience: float) -> str:
    return f"nats://127.0.0.1:{proxy.port}/{name}?patience={patience}"


async def publish_until_told(node: Node, text: str, doubts: list[str]) -> int:
    """Try again as a careful publisher does: under the same dedupe."""
    while True:
        try:
            return await node.publish(text)
        except LogUnavailable as error:
            doubts.append(error.code)


async def test_a_server_killed_and_started_again_costs_no_acknowledged_event(
    own_server: NatsServer, name: str, node: OpenNode
) -> None:
    one, two = await node(own_server.url(name, patience=3), "a"), await node(own_server.url(name, patience=3), "b")
    acknowledged: dict[str, int] = {}
    stop = asyncio.Event()

    async def writer(who: Node, prefix: str) -> None:
        n = 0
        while not stop.is_set():
            text = f"{prefix}{n}"
            acknowledged[text] = await publish_until_told(who, text, [])
            n += 1

    writers = [asyncio.create_task(writer(who, prefix)) for who, prefix in ((one, "a"), (two, "b"), (one, "c"))]
    for _ in range(3):
        goal = len(acknowledged) + 50
        await until(lambda goal=goal: len(acknowledged) > goal)  # type: ignore[misc]
        own_server.kill()
        await asyncio.sleep(0.3)
        own_server.start()
    goal = len(acknowledged) + 50
    await until(lambda: len(acknowledged) > goal)
    stop.set()
    await asyncio.gather(*writers)
    await until_equal(one, two)
    assert await everything(one.log) == await everything(two.log)
    ids = await one.ids()
    assert {text: offset for offset, text in enumerate(ids, 1)} == acknowledged


async def test_a_short_cut_is_waited_for(server: NatsServer, name: str, node: OpenNode, proxy: Proxy) -> None:
    one = await node(through(proxy, name, 10))
    await one.publish("before")
    proxy.cut()
    under_way = asyncio.create_task(one.publish("during"))
    await asyncio.sleep(0.5)
    assert not under_way.done()
    proxy.mend()
    assert await under_way == 2
    assert await one.publish("after") == 3


async def test_a_long_cut_is_said_and_nothing_is_stored(
    server: NatsServer, name: str, node: OpenNode, proxy: Proxy
) -> None:
    one, other = await node(through(proxy, name, 0.5)), await node(server.url(name), "other")
    await one.publish("before")
    proxy.cut()
    await until(lambda: not one.engine.connected)
    with pytest.raises(LogUnavailable) as fault:
        await one.publish("lost")
    assert type(fault.value) is LogUnavailable
    assert fault.value.remedy
    assert one.log.fault is not None
    assert await one.ids() == ["before"]  # reads go on
    await other.publish("meanwhile")
    proxy.mend()
    await until(lambda: one.engine.applied == other.engine.applied)
    assert await one.ids() == ["before", "meanwhile"]
    assert [change.own for change in one.heard] == [True, False]
    assert await one.publish("again") == 3
    assert one.log.fault is None


async def test_without_an_answer_a_commit_is_in_doubt_and_may_be_there(
    server: NatsServer, name: str, node: OpenNode, proxy: Proxy
) -> None:
    one, other = await node(through(proxy, name, 0.5)), await node(server.url(name), "other")
    await one.publish("before")
    proxy.hold_answers()
    with pytest.raises(InDoubt):
        await one.publish("doubtful")
    await until(lambda: len(other.heard) == 2)
    assert await other.ids() == ["before", "doubtful"]
    proxy.mend()
    assert await one.publish("doubtful") == 2  # the same dedupe: it is known again
    assert await one.publish("after") == 3


async def test_a_message_tried_again_is_stored_once(
    server: NatsServer, name: str, node: OpenNode, proxy: Proxy
) -> None:
    """Without any dedupe of the caller: the server knows the message again."""
    one, other = await node(through(proxy, name, 10)), await node(server.url(name), "other")
    proxy.hold_answers()
    under_way = asyncio.create_task(one.log.commit(Batch([Append("t", 0, "once", 1, b"{}"), Put("s", "k", b"v")])))
    await until(lambda: len(other.heard) == 1)
    proxy.cut()
    proxy.mend()
    receipt = await under_way
    assert receipt.offsets == ((0, 1, False),)
    assert await one.ids() == await other.ids() == ["once"]
    assert one.engine.applied == other.engine.applied == 1


async def test_what_was_given_up_does_not_happen_after_what_came_later(
    server: NatsServer, name: str, node: OpenNode
) -> None:
    """The network may keep a message for long. Its number shows that its writer went on without it."""
    one, other = await node(server.url(name)), await node(server.url(name), "other")
    await one.publish("a")
    await one.publish("b")
    subject = one.engine.address.subject
    info = await one.engine.link.api(f"STREAM.MSG.GET.{one.engine.address.stream}", {"seq": 1})
    late = base64.b64decode(info["message"]["data"])
    await one.engine.link.client.jetstream().publish(subject, late)
    await one.publish("c")
    await until_equal(one, other)
    assert await one.ids() == await other.ids() == ["a", "b", "c"]


async def test_a_stopped_server_is_left_waiting_and_found_again(
    own_server: NatsServer, name: str, node: OpenNode
) -> None:
    one = await node(own_server.url(name, patience=1))
    await one.publish("before")
    own_server.freeze()
    with pytest.raises(InDoubt):
        await one.publish("frozen")
    own_server.thaw()
    doubts: list[str] = []
    await publish_until_told(one, "frozen", doubts)
    await publish_until_told(one, "after", doubts)
    assert await one.ids() == ["before", "frozen", "after"]


async def test_an_engine_without_a_server_says_so_and_opens_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = NatsServer(tmp_path / "server")
    log = Log(open_engine(server.url("late", patience=0.3), tmp_path))
    with pytest.raises(LogUnavailable, match="no NATS server answers"):
        await log.open()
    assert caplog.text.count("no NATS server answers yet") == 1
    server.start()
    try:
        await log.open()
        assert isinstance(await log.commit(Batch([Put("s", "k", b"v")])), Receipt)
        await log.close()
    finally:
        server.kill()


async def test_a_server_whose_storage_is_full_takes_nothing_and_goes_on_when_it_has_room(
    own_server: NatsServer, name: str, node: OpenNode
) -> None:
    own_server.stop()
    own_server.jetstream = "max_file_store: 2MB"
    own_server.start()
    one = await node(own_server.url(name, patience=0.5))
    big = Batch([Append("t", 0, "x", 1, b"x" * 400_000)])

    async def fill() -> None:
        for _ in range(20):
            await one.log.commit(big)

    with pytest.raises(LogUnavailable) as fault:
        await fill()
    assert type(fault.value) is LogUnavailable  # the server said no, so it is certain
    assert "resource" in fault.value.message
    stored = len(await one.ids())
    assert 0 < stored < 20
    own_server.stop()
    own_server.jetstream = "max_file_store: 200MB"
    own_server.start()
    assert await publish_until_told(one, "after", []) == stored + 1


async def test_a_server_without_jetstream_says_so(tmp_path: Path) -> None:
    server = NatsServer(tmp_path / "server")
    server.jetstream = None
    server.launch()
    server.wait("varz")
    try:
        with pytest.raises(LogUnavailable, match="JetStream"):
            await open_engine(server.url("x", patience=0.3), tmp_path).open()
    finally:
        server.kill()
