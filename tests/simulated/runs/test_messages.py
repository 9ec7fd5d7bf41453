"""The messages of runs, beats, memory and timers, asked of any of several nodes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from mainspring.beats import Driver, Heartbeat
from mainspring.builtin import beat_capability
from mainspring.builtin.events import TypePatterns
from mainspring.builtin.runs import run
from mainspring.cluster import inbox
from mainspring.codec import Encoding, encoding_of
from mainspring.kernel import Fail, Kernel, handler_from
from mainspring.log import Append, Batch
from mainspring.message import Message, counted_ids
from mainspring.runs import Perform, Runtime, WaitSignal
from tests.support.kernels import KernelNode, kernel_node
from tests.support.shared_runs import LEASE_MS, World, in_virtual_time, wait


async def order(perform: Any) -> Any:
    return await perform(WaitSignal("paid"))


def work(signal: str, target: str | None, stage: Any) -> None:
    stage.write(f"/seen{signal}", stage.beat)


async def served(world: World, name: str, *programs: Any, encoding: Encoding | None = None) -> KernelNode:
    """A node with a kernel, runs and beats."""
    node = KernelNode(world, name, [], [])
    member = await node.member.start()
    runtime = Runtime(clock=world.clock, loop=member.loop, log=member.log, cluster=member.cluster)
    for program in programs:
        runtime.register(program, program.__name__)
    heartbeat = Heartbeat(member.log, cluster=member.cluster, clock=world.clock)
    heartbeat.register("work", "/jobs", work, match="prefix")
    node.kernel = Kernel(loop=member.loop, ids=counted_ids(), log=member.log, cluster=member.cluster)
    node.kernel.register(run(node.kernel, runtime, encoding), beat_capability(heartbeat, node.kernel))
    await node.kernel.start()
    await runtime.start_service()
    await heartbeat.open()
    Driver(heartbeat, member.loop).start()
    return node


@in_virtual_time
async def test_a_run_is_started_here_signalled_there_and_asked_about_anywhere(world: World) -> None:
    a, b = await served(world, "a", order), await served(world, "b", order)
    await wait(10)
    assert await a.ask("command", "Run.Start", {"program": "order", "id": "o"}) == {"id": "o"}
    assert await b.ask("command", "Run.Start", {"program": "order", "id": "o"}) == {"id": "o"}
    assert (await b.ask("query", "Run.Outcome", {"id": "o"}))["owner"] == "a"
    assert await b.ask("command", "Run.Signal", {"id": "o", "name": "paid", "value": 7}) == {"signalled": True}
    await wait(10)
    for node in (a, b):
        found = await node.ask("query", "Run.Outcome", {"id": "o"})
        assert (found["state"], found["value"]) == ("done", 7)
        assert "owner" not in found
        assert len((await node.ask("query", "Run.List", {}))["runs"]) == 1
    assert await b.ask("command", "Run.Fork", {"id": "o", "at": 1, "newId": "p"}) == {"id": "p"}
    await wait(10)
    assert (await a.ask("query", "Run.Outcome", {"id": "p"}))["value"] == 7


class Reversed:
    """Not a cipher, but nothing can be read."""

    key_id = "k"

    def encode(self, data: bytes) -> bytes:
        return data[::-1]

    def decode(self, data: bytes, key_id: str) -> bytes:
        return data[::-1]


def note_inboxes(node: KernelNode, posted: list[bytes]) -> None:
    """Keep what this node writes to the inboxes of nodes."""
    log, submit = node.member.log, node.member.log.submit

    def noting(batch: Batch, done: Any) -> None:
        appended = [each for each in batch.operations if isinstance(each, Append)]
        posted.extend(each.payload for each in appended if each.topic.startswith(inbox("")))
        submit(batch, done)

    log.submit = noting  # type: ignore[method-assign,assignment]


async def basket(perform: Perform) -> Any:
    items: list[str] = []

    @perform.query
    def contents() -> list[str]:
        return list(items)

    @perform.update
    def add(item: str) -> int:
        if item in items:
            raise ValueError(f"{item} is there already")
        items.append(item)
        return len(items)

    await perform(WaitSignal("paid"))
    return items


@in_virtual_time
async def test_a_run_is_asked_and_changed_through_any_node(world: World) -> None:
    a, b, c = [await served(world, name, basket) for name in "abc"]
    await wait(10)
    await a.ask("command", "Run.Start", {"program": "basket", "id": "o"})
    await wait(10)
    add = {"id": "o", "name": "add"}
    assert await b.ask("command", "Run.Update", {**add, "args": ["pen"]}) == {"value": 1}
    assert await a.ask("command", "Run.Update", {**add, "args": ["ink"]}) == {"value": 2}
    with pytest.raises(Fail, match="422 ValueError: ink is there already"):
        await c.ask("command", "Run.Update", {**add, "args": ["ink"]})
    with pytest.raises(Fail, match="404 run o has no query price"):
        await b.ask("query", "Run.Query", {"id": "o", "name": "price"})
    for node in (a, b, c):
        assert await node.ask("query", "Run.Query", {"id": "o", "name": "contents"}) == {"value": ["pen", "ink"]}
    await a.kill()
    with pytest.raises(Fail, match="503 node a, which handles this, is gone"):
        await b.ask("query", "Run.Query", {"id": "o", "name": "contents"}, timeout=LEASE_MS)
    await wait(LEASE_MS)
    for node in (b, c):
        assert await node.ask("query", "Run.Query", {"id": "o", "name": "contents"}) == {"value": ["pen", "ink"]}
    await c.ask("command", "Run.Signal", {"id": "o", "name": "paid"})
    await wait(10)
    with pytest.raises(Fail, match="409 run o is done and cannot be asked"):
        await b.ask("query", "Run.Query", {"id": "o", "name": "contents"})


@in_virtual_time
async def test_what_is_asked_through_another_node_is_encoded_on_its_way(world: World) -> None:
    encoding = encoding_of(Reversed())
    assert encoding is not None
    a, b = [await served(world, name, basket, encoding=encoding) for name in "ab"]
    await wait(10)
    await a.ask("command", "Run.Start", {"program": "basket", "id": "o"})
    await wait(10)
    posted: list[bytes] = []
    for node in (a, b):
        note_inboxes(node, posted)
    asked = {"id": "o", "name": "add", "args": ["secret"]}
    answer = await b.ask("command", "Run.Update", asked)
    assert encoding.open_value(answer["value"]) == 1
    answer = await b.ask("query", "Run.Query", {"id": "o", "name": "contents"})
    assert encoding.open_value(answer["value"]) == ["secret"]
    assert len(posted) == 4, "two questions and their answers"
    assert not any(b"secret" in each for each in posted)


@in_virtual_time
async def test_a_run_says_that_it_waits_for_a_node_with_its_program(world: World) -> None:
    a, b = await served(world, "a", order), await served(world, "b")
    await wait(10)
    await b.ask("command", "Run.Start", {"program": "order", "id": "o"})
    await wait(10)
    assert (await b.ask("query", "Run.Outcome", {"id": "o"}))["owner"] == "a"
    await a.kill()
    await wait(2 * LEASE_MS)
    found = await b.ask("query", "Run.Outcome", {"id": "o"})
    assert found["waitsFor"] == "program order"
    with pytest.raises(Fail) as unknown:
        await b.ask("command", "Run.Start", {"program": "order", "id": "p"})
    assert unknown.value.code == 404


async def fragile(perform: Perform) -> None:
    raise ValueError("there is no string")


@in_virtual_time
async def test_a_bulk_that_a_node_without_its_lease_could_not_finish_is_no_answer_about_single_runs(
    world: World,
) -> None:
    """Who was told that they are refused did not ask again."""
    a, _ = await served(world, "a", fragile), await served(world, "b")
    await wait(10)
    for id in ("one", "two"):
        await a.ask("command", "Run.Start", {"program": "fragile", "id": id})
    await wait(10)
    asked = a.ask("command", "Run.Bulk", {"action": "retry", "state": "failed"}, timeout=20 * LEASE_MS)
    a.member.engine.cut_off = True
    await wait(3 * LEASE_MS)
    a.member.engine.join_again()
    with pytest.raises(Fail) as refused:
        await asked
    assert refused.value.code == 503
    assert "ask again" in refused.value.remedy


@in_virtual_time
async def test_a_bulk_whose_write_came_after_the_nodes_lease_says_nothing_about_its_runs(world: World) -> None:
    """It said of each that it had changed, when it was the lease; and nobody tried them again."""
    a, b = await served(world, "a", fragile), await served(world, "b")
    await wait(10)
    await a.ask("command", "Run.Start", {"program": "fragile", "id": "one"})
    await wait(10)
    log, other = a.member.log, b.member.log
    submit = log.submit

    def taken_away_meanwhile(batch: Batch, done: Any) -> None:
        """The lease of the node is over by the time its next write comes to the log."""
        log.submit = submit  # type: ignore[method-assign]
        lease = Batch()
        lease.delete("leases", "node/a")
        other.submit(lease, lambda _: submit(batch, done))

    log.submit = taken_away_meanwhile  # type: ignore[method-assign]
    with pytest.raises(Fail) as refused:
        await a.ask("command", "Run.Bulk", {"action": "retry", "state": "failed"}, timeout=20 * LEASE_MS)
    assert refused.value.code == 503
    assert "ask again" in refused.value.remedy


@in_virtual_time
async def test_beats_are_asked_of_any_node(world: World) -> None:
    a, b = await served(world, "a"), await served(world, "b")
    await wait(100)
    assert await b.ask("command", "Beat.Signal", {"signal": "/jobs/1"}) == {"beat": 1}
    await wait(100)
    ran = await b.ask("command", "Beat.Run", {"beats": 2})
    assert ran["beat"] == 3
    await wait(10)
    for node in (a, b):
        assert await node.ask("query", "Beat.Read", {"path": "/seen/jobs/1"}) == {"value": 1}
        assert (await node.ask("query", "Beat.Standing", {}))["digest"] == ran["digest"]
    assert (await b.ask("command", "Beat.Pause", {}))["paused"]
    await wait(10)
    assert (await a.ask("query", "Beat.Standing", {}))["paused"]
    assert not (await a.ask("command", "Beat.Resume", {}))["paused"]


@in_virtual_time
async def test_memory_is_the_same_everywhere(world: World) -> None:
    a, b = await kernel_node(world, "a"), await kernel_node(world, "b")
    await a.ask("command", "Memory.Set", {"key": "/till", "value": 5})
    assert await b.ask("query", "Memory.Get", {"key": "/till"}) == {"value": 5}
    b.member.engine.lose_answers = True
    with pytest.raises(Fail) as doubt:
        await b.ask("command", "Memory.Set", {"key": "/till", "value": 6})
    assert doubt.value.code == 503
    assert "may have been stored" in str(doubt.value)
    b.member.engine.lose_answers = False
    await b.ask("command", "Memory.Set", {"key": "/till", "value": 6})
    assert await a.ask("query", "Memory.Get", {"key": "/till"}) == {"value": 6}
    await a.ask("command", "Memory.Delete", {"key": "/till"})
    assert (await b.ask("query", "Memory.List", {}))["keys"] == []


@in_virtual_time
async def test_a_timer_fires_once_on_the_node_that_was_asked(world: World) -> None:
    fired: list[str] = []

    def told(name: str) -> Any:
        def hear(data: Any, ctx: Any) -> None:
            fired.append(name)

        return handler_from("command", "Shop.Remind", hear)

    a, b = await kernel_node(world, "a", told("a")), await kernel_node(world, "b", told("b"))
    await wait(10)
    message = {"kind": "command", "type": "Shop.Remind", "data": {}, "metadata": {"id": "m", "timestamp": 1}}
    await a.ask("command", "Timer.Schedule", {"delay": 500, "message": message})
    assert (await a.ask("query", "Timer.List", {}))["total"] == 1
    assert (await b.ask("query", "Timer.List", {}))["total"] == 0
    await wait(2_000)
    assert fired == ["a"]


class Listener:
    """A connection that subscribed to events."""

    def __init__(self, node: KernelNode, *types: str) -> None:
        self.heard: list[tuple[str, Any]] = []
        node.kernel.exchange.streams[self] = TypePatterns(list(types))

    def stream(self, message: Message) -> None:
        self.heard.append((message.type, msgspec.json.decode(message.raw)))


@in_virtual_time
async def test_connections_hear_events_of_every_node_and_handlers_those_of_their_own(world: World) -> None:
    a, b = await served(world, "a", order), await served(world, "b", order)
    await wait(10)
    near, far = Listener(a, "Run.*"), Listener(b, "Run.*")
    observed: list[str] = []
    b.kernel.observe(lambda message: observed.append(message.type))
    for run_id in ("paid", "cut"):
        await a.ask("command", "Run.Start", {"program": "order", "id": run_id})
    await a.ask("command", "Run.Signal", {"id": "paid", "name": "paid", "value": 1})
    await wait(10)
    await a.ask("command", "Run.Cancel", {"id": "cut", "reason": "enough"})
    await wait(10)
    assert near.heard == [
        ("Run.Completed", {"id": "paid", "program": "order"}),
        ("Run.Cancelled", {"id": "cut", "program": "order", "reason": "enough"}),
    ]
    assert far.heard == near.heard
    assert observed == [], "nothing happened on b"


@in_virtual_time
async def test_connections_hear_of_memory_that_changed_anywhere(world: World) -> None:
    a, b = await kernel_node(world, "a"), await kernel_node(world, "b")
    far = Listener(b, "Memory.*")
    await a.ask("command", "Memory.Set", {"key": "/till", "value": 5})
    await a.ask("command", "Memory.Delete", {"key": "/till"})
    await wait(10)
    changes = [("Memory.Changed", {"key": "/till", "change": change}) for change in ("set", "deleted")]
    assert far.heard == changes
