"""The stream stays short: snapshots replace what is old, new nodes start from them, and nobody loses anything."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest

from mainspring.log import Batch, FormatError, Put
from mainspring.log.engines.nats import encoding, snapshots
from mainspring.log.engines.nats.snapshots import TrimmingRules
from tests.support.fixtures.nats import Node, OpenNode, everything, found, until, until_equal
from tests.support.nats_server import NatsServer
from tests.support.proxy import Proxy

SMALL = TrimmingRules(grown_bytes=50_000, keep_ms=0, claim_ms=5_000)


async def move_positions(node: Node, times: int) -> None:
    """The endless small writes of groups that commit their positions."""
    for n in range(times):
        await node.log.commit(Batch([Put("groups", f"g{n % 7}", b"p" * 400)]))


async def until_shortened(node: Node) -> None:
    async with asyncio.timeout(30):
        while (await found(node)).first <= 1:
            await move_positions(node, 20)


async def test_endless_updates_of_the_same_records_do_not_grow_the_stream(
    server: NatsServer, name: str, node: OpenNode
) -> None:
    nodes = [await node(server.url(name), which, SMALL) for which in "ab"]
    sizes = []
    for _ in range(10):
        await asyncio.gather(*(move_positions(one, 100) for one in nodes))
        sizes.append((await found(nodes[0])).bytes)
    assert (await found(nodes[0])).first > 1
    written = 10 * 2 * 100 * 400
    assert max(sizes[5:]) < written / 2
    await until_equal(*nodes)
    assert await everything(nodes[0].log) == await everything(nodes[1].log)


async def test_a_new_node_starts_from_the_snapshot_and_has_everything(
    server: NatsServer, name: str, node: OpenNode
) -> None:
    one = await node(server.url(name), "a", SMALL)
    for n in range(50):
        await one.publish(f"e{n}")
    await until_shortened(one)
    await one.publish("after")
    late = await node(server.url(name), "late", SMALL)
    await until_equal(one, late)
    assert await everything(late.log) == await everything(one.log)
    assert await late.publish("e7") == 8  # its dedupe is known to the newcomer
    receipts = [await which.log.commit(Batch([Put("s", "k", b"v")])) for which in (late, one)]
    assert receipts[0].versions < receipts[1].versions


async def test_a_node_that_was_away_for_long_goes_on_from_the_snapshot(
    server: NatsServer, name: str, node: OpenNode
) -> None:
    one, away = await node(server.url(name), "a", SMALL), await node(server.url(name), "away", SMALL)
    await one.publish("before")
    await until_equal(one, away)
    await away.log.close()
    await until_shortened(one)
    await one.publish("meanwhile")
    back = await node(server.url(name), "away", SMALL)
    assert await back.ids() == ["before", "meanwhile"]
    await until_equal(one, back)
    assert await everything(back.log) == await everything(one.log)


async def test_a_running_node_that_fell_behind_says_so_and_is_whole_after_a_restart(
    server: NatsServer, name: str, node: OpenNode
) -> None:
    proxy = await Proxy(server.port).start()
    one = await node(server.url(name), "a", SMALL)
    cut_off = await node(f"nats://127.0.0.1:{proxy.port}/{name}?patience=1", "b", SMALL)
    failed: list[Exception] = []
    cut_off.engine.on_failure(failed.append)
    await one.publish("before")
    await until_equal(one, cut_off)
    proxy.cut()
    await until_shortened(one)
    proxy.mend()
    await until(lambda: bool(failed))
    assert isinstance(failed[0], FormatError)
    assert "fell behind" in str(failed[0])
    await cut_off.log.close()
    again = await node(server.url(name), "b", SMALL)
    assert await everything(again.log) == await everything(one.log)
    await proxy.close()


async def test_messages_are_kept_for_a_while_after_the_snapshot(server: NatsServer, name: str, node: OpenNode) -> None:
    one = await node(server.url(name), "a", TrimmingRules(grown_bytes=50_000, keep_ms=600_000, claim_ms=5_000))
    await move_positions(one, 200)
    async with asyncio.timeout(20):
        while await snapshots.stored(one.engine.link, one.engine.address) is None:
            await move_positions(one, 20)
    await move_positions(one, 200)
    assert (await found(one)).first == 1


async def test_without_the_snapshot_a_shortened_stream_is_a_clear_error(
    server: NatsServer, name: str, node: OpenNode
) -> None:
    one = await node(server.url(name), "a", SMALL)
    await until_shortened(one)
    await one.log.close()
    other = await node(server.url(name + "x"), "b")
    await other.engine.link.client.jetstream().delete_object_store(one.engine.address.bucket)
    with pytest.raises(FormatError, match="dropped all before"):
        await node(server.url(name), "c", SMALL)


async def test_the_snapshot_is_there_before_anything_is_dropped(server: NatsServer, name: str, node: OpenNode) -> None:
    one = await node(server.url(name), "a", SMALL)
    await until_shortened(one)
    there = await snapshots.stored(one.engine.link, one.engine.address)
    assert there is not None
    assert there.seq >= (await found(one)).first - 1


async def test_a_node_that_takes_long_for_its_snapshot_renews_its_claim(
    server: NatsServer, name: str, node: OpenNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the next node would begin the same work when the first claim lapses, and then the next."""
    rules = TrimmingRules(grown_bytes=20_000, keep_ms=0, claim_ms=600)
    made = snapshots.copy
    may_go_on = threading.Event()
    begun: list[Path] = []

    def slow(replica: Path, target: Path) -> encoding.Snapshot:
        begun.append(replica)
        may_go_on.wait(30)
        return made(replica, target)

    monkeypatch.setattr(snapshots, "copy", slow)
    nodes = [await node(server.url(name), which, rules) for which in "ab"]
    try:
        async with asyncio.timeout(30):
            while not begun:
                await move_positions(nodes[0], 20)
            start = nodes[0].engine.replica.state.ts
            while nodes[1].engine.replica.state.ts < start + 4 * rules.claim_ms:
                await asyncio.gather(*(move_positions(one, 5) for one in nodes))
        assert len(begun) == 1
    finally:
        may_go_on.set()
    await until(lambda: all(one.engine.replica.state.snapshot is not None for one in nodes))


async def test_a_download_goes_on_where_it_was_when_the_link_was_lost(
    server: NatsServer, name: str, node: OpenNode
) -> None:
    one = await node(server.url(name), "a", SMALL)
    await one.log.commit(Batch([Put("s", f"k{n}", os.urandom(200_000)) for n in range(9)]))
    await until_shortened(one)
    there = await snapshots.stored(one.engine.link, one.engine.address)
    assert there is not None
    proxy = await Proxy(server.port).start()
    passed: list[int] = []  # bytes of answers before the link is lost, and after

    def look(answer: bytes) -> None:
        if len(passed) < 2:
            passed[:] = [sum(passed) + len(answer)]
            if passed[0] > there.bytes:  # as base64 it takes a third more
                passed.append(0)
                proxy.cut()
                asyncio.get_running_loop().call_later(0.2, proxy.mend)
        else:
            passed[1] += len(answer)

    proxy.on_answer = look
    late = await node(f"nats://127.0.0.1:{proxy.port}/{name}", "late", SMALL)
    await until_equal(one, late)
    assert await everything(late.log) == await everything(one.log)
    assert len(passed) == 2
    assert passed[1] < there.bytes
    await late.log.close()
    await proxy.close()
