"""Several nodes on one stream: one order, one truth."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from mainspring.log import (
    ABSENT,
    ANY_VERSION,
    Append,
    Batch,
    Change,
    Delete,
    Guard,
    LogUnavailable,
    Operation,
    Put,
    Refused,
    Remove,
)
from mainspring.log.engines.nats import JetStreamEngine
from tests.support.fixtures.nats import Node, OpenNode, everything, until, until_equal
from tests.support.nats_server import NatsServer


async def test_what_one_node_commits_every_node_reads_and_hears_of_in_the_same_order(
    server: NatsServer, name: str, node: OpenNode
) -> None:
    nodes = [await node(server.url(name), which) for which in "abc"]
    await asyncio.gather(
        *(one.publish(f"{which}{n}") for which, one in zip("abc", nodes, strict=True) for n in range(40)),
        *(one.log.commit(Batch([Put("s", f"k{n % 5}", b"%d" % n)])) for one in nodes for n in range(40)),
    )
    await until_equal(*nodes)
    first, second, third = [await everything(one.log) for one in nodes]
    assert first == second == third
    assert len(await nodes[0].ids()) == 120

    def without_own(heard: list[Change]) -> list[tuple[object, ...]]:
        return [(change.appended, change.records, change.removed) for change in heard]

    assert without_own(nodes[0].heard) == without_own(nodes[1].heard) == without_own(nodes[2].heard)
    assert [sum(change.own for change in one.heard) for one in nodes] == [80, 80, 80]


async def test_an_own_change_is_heard_before_the_commit_returns_and_can_be_read(
    server: NatsServer, name: str, node: OpenNode
) -> None:
    one = await node(server.url(name))
    await one.publish("x")
    assert [change.own for change in one.heard] == [True]
    assert await one.ids() == ["x"]


async def test_of_many_who_expect_the_same_version_one_wins(server: NatsServer, name: str, node: OpenNode) -> None:
    nodes = [await node(server.url(name), which) for which in "abc"]
    for _ in range(10):
        results = await asyncio.gather(
            *(one.log.commit(Batch([Put("leases", f"l{_}", b"me", expect=ABSENT)])) for one in nodes),
            return_exceptions=True,
        )
        assert sorted(type(result).__name__ for result in results) == ["Receipt", "Refused", "Refused"]
    versions = [record.version async for record in nodes[0].log.scan("leases")]
    assert versions == sorted(set(versions))


async def test_a_counter_kept_by_three_nodes_loses_no_step(server: NatsServer, name: str, node: OpenNode) -> None:
    nodes = [await node(server.url(name), which) for which in "abc"]

    async def step(one: Node) -> None:
        while True:
            record = await one.log.get("s", "count")
            value, version = (int(record.value), record.version) if record else (0, ABSENT)
            try:
                await one.log.commit(Batch([Put("s", "count", b"%d" % (value + 1), expect=version)]))
                return
            except Refused:
                continue

    async def steps(one: Node) -> None:
        for _ in range(15):
            await step(one)

    await asyncio.gather(*(steps(one) for one in nodes))
    await until_equal(*nodes)
    counts = [await one.log.get("s", "count") for one in nodes]
    assert [record and record.value for record in counts] == [b"45"] * 3


async def test_versions_and_offsets_stay_the_same_everywhere_when_one_node_restarts(
    server: NatsServer, name: str, node: OpenNode
) -> None:
    one, two = await node(server.url(name), "a"), await node(server.url(name), "b")
    await one.log.commit(Batch([Put("s", "k", b"1")]))
    await until_equal(one, two)
    await two.log.close()
    await one.log.commit(Batch([Put("s", "k", b"2"), Append("t", 0, "x", 1, b"1")]))
    again = await node(server.url(name), "b")
    assert await everything(again.log) == await everything(one.log)
    receipt = await again.log.commit(Batch([Put("s", "l", b"3")]))
    await until_equal(one, again)
    assert await everything(again.log) == await everything(one.log)
    record = await one.log.get("s", "l")
    assert record is not None
    assert (record.version,) == receipt.versions


async def test_a_node_that_comes_later_reads_all_that_was_before(server: NatsServer, name: str, node: OpenNode) -> None:
    one = await node(server.url(name), "a")
    for n in range(300):
        await one.publish(f"e{n}")
    await one.log.forget_dedupe(1 << 51)
    late = await node(server.url(name), "late")
    assert await everything(late.log) == await everything(one.log)
    assert late.heard == []  # it is all there when it opens: no news


async def test_a_batch_bigger_than_a_message_is_stored_whole(server: NatsServer, name: str, node: OpenNode) -> None:
    """The server's max_payload is 1 MiB."""
    one, two = await node(server.url(name), "a"), await node(server.url(name), "b")
    events = [Append("big", 0, f"b{n}", 1, b"x" * 700_000) for n in range(5)]
    big = Batch([*events, Put("s", "k", b"y" * 2_000_000)])
    results = await asyncio.gather(
        one.log.commit(big),
        two.log.commit(big),
        *(one.log.commit(Batch([Append("many", 0, f"m{n}", 1, b"z" * 300_000)])) for n in range(12)),
    )
    await until_equal(one, two)
    assert await everything(one.log) == await everything(two.log)
    assert [result.offsets[0][1] for result in results[2:]] == list(range(1, 13))
    with pytest.raises(Refused):
        await one.log.commit(Batch([Put("s", "k", b"y" * 3_000_000, expect=ABSENT)]))


async def test_whatever_nodes_do_and_however_often_they_restart_they_have_the_same_log(
    server: NatsServer, name: str, node: OpenNode
) -> None:
    """What a node groups into one transaction differs from node to node; what comes of it must not."""
    dice = random.Random(7)
    nodes = {which: await node(server.url(name), which) for which in "abc"}

    def operation() -> Operation:
        topic, partition, offset = dice.choice("tu"), dice.randrange(2), dice.randrange(60)
        space, key, version = "s", dice.choice("klm"), dice.choice([ANY_VERSION, ABSENT, dice.randrange(200)])
        dedupe = dice.choice([None, f"d{dice.randrange(9)}"])
        kinds: list[Operation] = [
            Append(topic, partition, "e", dice.randrange(99), b"{}", dedupe=dedupe, dedupe_until=dice.randrange(99)),
            Append(topic, partition, "e", dice.randrange(99), b"{}", expect=offset),
            Put(space, key, b"%d" % offset, version),
            Delete(space, key, version),
            Guard(space, key, dice.randrange(200)),
            Remove(topic, partition, offset, (offset + 3, offset + 5)),
        ]
        return dice.choices(kinds, [6, 1, 5, 1, 1, 1])[0]

    for _ in range(12):
        batches = [(dice.choice("abc"), Batch([operation() for _ in range(dice.randrange(1, 6))])) for _ in range(40)]
        await asyncio.gather(*(nodes[which].log.commit(batch) for which, batch in batches), return_exceptions=True)
        await nodes[dice.choice("abc")].log.forget_dedupe(dice.randrange(60))
        which = dice.choice("abc")
        await nodes[which].log.close()
        nodes[which] = await node(server.url(name), which)
    await until_equal(*nodes.values())
    first, second, third = [await everything(one.log) for one in nodes.values()]
    assert first == second == third
    assert await everything((await node(server.url(name), "late")).log) == first


async def test_what_no_node_wrote_is_passed_over_by_all(server: NatsServer, name: str, node: OpenNode) -> None:
    one, two = await node(server.url(name), "a"), await node(server.url(name), "b")
    client = one.engine.link.client
    for noise in (b"", b"hello", b"MSJ", b"MSJ\x01", b"MSJ\x01\xff\xff", b"MSJ\x01\x94\xa1w\x01\xa6commit\xc4\x01\x00"):
        await client.jetstream().publish(one.engine.address.subject, noise)
    await one.publish("x")
    await until_equal(one, two)
    assert await everything(one.log) == await everything(two.log)
    assert await two.ids() == ["x"]


async def test_a_closed_engine_takes_nothing(server: NatsServer, name: str, node: OpenNode) -> None:
    one = await node(server.url(name))
    await one.log.close()
    with pytest.raises(LogUnavailable):
        await one.engine.commit([Batch()])
    with pytest.raises(LogUnavailable):
        await one.engine.get("s", "k")


async def test_who_begins_to_watch_while_a_message_is_applied_reads_it_or_is_told(
    server: NatsServer, name: str, node: OpenNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts of a node watch, then read. What is being applied at that moment must be in one of the two."""
    one, engine = await node(server.url(name)), JetStreamEngine(server.url(name), tmp_path / "replica.sqlite3")
    await engine.open()
    try:
        writer, held, told = engine.replica.writer, asyncio.Queue[Callable[[], None]](), list[Change]()
        apply = writer.apply
        with monkeypatch.context() as patch:
            patch.setattr(writer, "apply", lambda *given, **more: held.put_nowait(partial(apply, *given, **more)))
            await one.log.commit(Batch([Put("s", "key", b"new")]))
            go_on = await held.get()
            engine.watch(told.append)
            assert await engine.get("s", "key") is None
        go_on()
        await one.publish("next")
        await until(lambda: len(told) == 2)
        assert await engine.get("s", "key") is not None
        assert [record.key for change in told for record in change.records] == ["key"]
    finally:
        await engine.close()
