"""Runs as part of a node: reached by messages, reaching capabilities and topics."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from mainspring.builtin.runs import BusPort, KernelPort, run
from mainspring.bus import Bus
from mainspring.kernel import Capability, Fail, Kernel, handler_from
from mainspring.log import Log
from mainspring.loop import Loop, MonotonicClock
from mainspring.runs import Ask, Cancelled, Failed, Publish, Runtime, Sleep, Value, WaitEvent, WaitSignal, resume
from mainspring.settings import Settings
from tests.support.runs import Boom, Hop, memory_log


async def add(count: int, perform: Any) -> int:
    return sum([await perform(Hop(n)) for n in range(count)])


async def patient(perform: Any) -> Any:
    return await perform(WaitSignal("go"))


async def failing(perform: Any) -> None:
    raise Boom("on purpose")


class Node:
    """The parts of a node that runs meet."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.loop = Loop(MonotonicClock())
        self.kernel = Kernel(loop=self.loop, log=log)
        ids = iter(range(10**9))
        self.bus = Bus(
            log,
            self.loop.clock,
            self.loop,
            settings=Settings(),
            new_id=lambda: f"event-{next(ids)}",
            random=random.Random(1).random,
        )
        self.events: list[tuple[str, Any]] = []
        self.runtime = self.new_runtime()
        echo = handler_from("query", "Echo.Say", lambda data, ctx: {"said": data["text"]})
        self.kernel.register(
            run(self.kernel, self.runtime), Capability(id="Echo", description="Says it again.", handlers=[echo])
        )

    def new_runtime(self) -> Runtime:
        runtime = Runtime(loop=self.loop, log=self.log, recovery_ms=50, on_failure=lambda error, run_id: None)
        port = BusPort(self.bus)
        runtime.connect(ask=KernelPort(self.kernel), publish=port, events=port)
        runtime.handle(Hop, lambda effect, ctx: resume(effect.n))
        for program in (add, patient, failing, asking, publishing, waiting):
            runtime.register(program, program.__name__)
        return runtime

    async def ask(self, type: str, data: Any, kind: str = "command") -> Any:
        return await asyncio.wait_for(self.kernel.ask(kind, type, data), 10)

    async def outcome(self, run_id: str) -> Any:
        return await asyncio.wait_for((await self.runtime.durable.find(run_id)).outcome(), 10)


async def asking(text: str, perform: Any) -> Any:
    return await perform(Ask("Echo.Say", {"text": text}, kind="query"))


async def publishing(count: int, perform: Any) -> list[str]:
    return [await perform(Publish("orders", {"n": n}, key="k", headers={"h": "1"})) for n in range(count)]


async def waiting(perform: Any) -> Any:
    event = await perform(WaitEvent("orders", {"n": 2}, timeout="1m"))
    return event["payload"]


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    log = await memory_log()
    node = Node(log)
    node.loop.attach()
    await node.bus.start()
    await node.kernel.start()
    node.kernel.observe(lambda message: node.events.append((message.type, message.data)))
    await node.runtime.start_service()
    yield node
    await node.runtime.stop_service()
    node.runtime.close()
    await node.kernel.stop()
    await node.bus.stop()
    node.loop.detach()
    await log.close()


async def test_runs_are_started_followed_and_listed_by_messages(node: Node) -> None:
    assert await node.ask("Run.Start", {"program": "add", "args": [4], "id": "a"}) == {"id": "a"}
    assert await node.ask("Run.Start", {"program": "add", "args": [4], "id": "a"}) == {"id": "a"}
    assert await node.outcome("a") == Value(6)
    found = await node.ask("Run.Outcome", {"id": "a"}, "query")
    assert (found["state"], found["value"], found["program"]) == ("done", 6, "add")
    listed = await node.ask("Run.List", {"state": "done"}, "query")
    assert [each["id"] for each in listed["runs"]] == ["a"]
    history = await node.ask("Run.History", {"id": "a"}, "query")
    assert [entry["effect"] for entry in history["journal"]] == ["Hop"] * 4


async def test_runs_are_signalled_cancelled_retried_and_forked_by_messages(node: Node) -> None:
    for run_id in ("a", "b"):
        await node.ask("Run.Start", {"program": "patient", "id": run_id})
    assert await node.ask("Run.Signal", {"id": "a", "name": "go", "value": [1]}) == {"signalled": True}
    assert await node.outcome("a") == Value([1])
    assert await node.ask("Run.Signal", {"id": "a", "name": "go"}) == {"signalled": False}
    assert await node.ask("Run.Cancel", {"id": "b", "reason": "enough"}) == {"cancelled": True}
    assert await node.outcome("b") == Cancelled("enough")
    assert (await node.ask("Run.Outcome", {"id": "b"}, "query"))["reason"] == "enough"
    assert await node.ask("Run.Cancel", {"id": "b"}) == {"cancelled": False}
    assert await node.ask("Run.Retry", {"id": "b"}) == {"id": "b"}
    await node.ask("Run.Signal", {"id": "b", "name": "go", "value": 2})
    assert await node.outcome("b") == Value(2)
    assert await node.ask("Run.Fork", {"id": "a", "at": 1, "newId": "c"}) == {"id": "c"}
    assert await node.outcome("c") == Value([1])


async def test_the_ends_of_durable_runs_are_events(node: Node) -> None:
    await node.ask("Run.Start", {"program": "add", "args": [1], "id": "good"})
    await node.ask("Run.Start", {"program": "failing", "id": "bad"})
    cut = node.runtime.start(patient, durable=True, id="cut")
    cut.cancel("enough")
    for run_id in ("good", "bad", "cut"):
        await node.outcome(run_id)
    await node.runtime.start(lambda_program)
    await asyncio.sleep(0.05)
    heard = {type: data for type, data in node.events if type.startswith("Run.") and "program" in data}
    assert heard["Run.Completed"]["id"] == "good"
    assert heard["Run.Failed"]["error"]["message"] == "on purpose"
    assert heard["Run.Cancelled"]["reason"] == "enough"


def lambda_program() -> Any:
    yield Sleep(ms=0)


async def test_what_cannot_be_done_is_an_error_answer(node: Node) -> None:
    for type, data, code in [
        ("Run.Start", {"program": "unknown"}, 404),
        ("Run.Start", {"program": "add", "args": [1, 2, 3]}, 422),
        ("Run.Start", {"program": "add", "args": [1], "id": "a#b"}, 422),
        ("Run.Start", {"program": "add", "args": ["three"]}, 422),
        ("Run.Retry", {"id": "nobody"}, 404),
        ("Run.Fork", {"id": "nobody", "at": 0}, 404),
    ]:
        with pytest.raises(Fail) as caught:
            await node.ask(type, data)
        assert caught.value.code == code, (type, data, caught.value)
    with pytest.raises(Fail) as caught:
        await node.ask("Run.Outcome", {"id": "nobody"}, "query")
    assert caught.value.code == 404


async def test_a_program_asks_a_capability(node: Node) -> None:
    run = node.runtime.start(asking, "hello", durable=True)
    assert await asyncio.wait_for(run, 60) == {"said": "hello"}


async def test_asking_a_capability_that_does_not_exist_fails_the_run(node: Node) -> None:
    async def lost(perform: Any) -> Any:
        return await perform(Ask("Nobody.Home", {}))

    outcome = await asyncio.wait_for(node.runtime.start(lost, durable=True).outcome(), 10)
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, Fail)
    assert outcome.error.code == 404


@pytest.mark.parametrize("durable", [True, False])
async def test_a_program_publishes_and_another_waits_for_the_event(node: Node, durable: bool) -> None:
    await node.bus.publish("orders", b'{"n":0}')
    waiter = node.runtime.start(waiting, durable=durable)
    await asyncio.sleep(0.05)
    ids = await asyncio.wait_for(node.runtime.start(publishing, 4, durable=durable), 10)
    assert await asyncio.wait_for(waiter, 60) == {"n": 2}
    (partition,) = {event.partition for event in await stored(node) if event.id in ids}
    own = [event for event in await node.bus.read("orders", partition, 1, 100) if event.id in ids]
    assert [event.id for event in own] == ids
    assert [event.payload for event in own] == [b'{"n":%d}' % n for n in range(4)]


async def stored(node: Node) -> list[Any]:
    found = []
    for each in await node.bus.groups.offsets("orders"):
        found += await node.bus.read("orders", each.partition, 1, 100)
    return found


async def noted(node: Node, run_id: str) -> None:
    """Wait until a run has noted where the topic ended."""
    for _ in range(10_000):
        if await node.runtime.durable.store.journal(run_id):
            return
        await asyncio.sleep(0)
    raise AssertionError("it has noted nothing")


async def test_an_event_waited_for_is_not_missed_while_the_runtime_was_away(node: Node) -> None:
    await node.bus.publish("orders", b'{"n":0}')
    node.runtime.start(waiting, durable=True, id="a")
    await noted(node, "a")
    await node.runtime.stop_service()
    await node.bus.publish("orders", b'{"n":2}')
    node.runtime = node.new_runtime()
    await node.runtime.start_service()
    assert await node.outcome("a") == Value({"n": 2})


async def test_waiting_for_an_event_gives_up_in_time(node: Node) -> None:
    async def impatient(perform: Any) -> Any:
        return await perform(WaitEvent("orders", {"n": 99}, timeout="20ms"))

    await node.bus.publish("orders", b'{"n":0}')
    assert await asyncio.wait_for(node.runtime.start(impatient), 10) is None


async def test_many_starts_under_way_share_commits(node: Node) -> None:
    await node.ask("Run.Start", {"program": "patient", "id": "first"})
    before = node.log.commits
    started = await asyncio.gather(*(node.ask("Run.Start", {"program": "patient"}) for _ in range(200)))
    assert len({each["id"] for each in started}) == 200
    assert node.log.commits - before < 100


async def test_messages_about_one_run_are_answered_in_order(node: Node) -> None:
    started, cancelled, state = await asyncio.gather(
        node.ask("Run.Start", {"program": "patient", "id": "one"}),
        node.ask("Run.Cancel", {"id": "one"}),
        node.ask("Run.Outcome", {"id": "one"}, "query"),
    )
    assert (started["id"], cancelled["cancelled"], state["state"]) == ("one", True, "cancelled")
