"""Worker-shaped actors: what they offer, what they may say, and what happens when they break a rule."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mainspring import App, Fail
from mainspring.kernel import BufferedActor, ErrorEvent, Kernel, MessageEvent
from mainspring.loop import VirtualClock
from tests.support.kernel import Worker, booted, command, low_level, message, ping, said, served, virtual


@virtual
async def test_post_message_only_queues(clock: VirtualClock) -> None:
    """Checklist 8, 84."""
    handled: list[int] = []
    actor = BufferedActor(handled.append)
    actor.post_message(1)
    assert handled == []
    await asyncio.sleep(0.01)
    assert handled == [1]


@virtual
async def test_one_at_a_time_in_order_also_when_earlier_ones_are_slower(clock: VirtualClock) -> None:
    """Checklist 9, 12, 85."""
    log: list[str] = []

    async def handler(number: int) -> None:
        log.append(f"+{number}")
        await asyncio.sleep([0.5, 0.0, 0.2][number % 3])
        log.append(f"-{number}")

    actor = BufferedActor(handler)
    for number in range(6):
        actor.post_message(number)
    await asyncio.sleep(10)
    assert log == [f"{sign}{number}" for number in range(6) for sign in "+-"]


@virtual
async def test_outputs_reach_the_property_and_the_listeners(clock: VirtualClock) -> None:
    """Checklist 81, 82, 83, 86: several outputs of one input, in order; the event carries the message as data."""
    heard: list[Any] = []
    actor = BufferedActor(lambda given: [f"{given} one", f"{given} two"])
    actor.onmessage = lambda event: heard.append(("property", event.data))
    listener = lambda event: heard.append(("listener", event.data))  # noqa: E731
    actor.add_event_listener("message", listener)
    actor.post_message("a")
    await asyncio.sleep(0.01)
    assert heard == [("listener", "a one"), ("property", "a one"), ("listener", "a two"), ("property", "a two")]
    actor.remove_event_listener("message", listener)
    actor.remove_event_listener("message", listener)
    actor.post_message("b")
    await asyncio.sleep(0.01)
    assert heard[4:] == [("property", "b one"), ("property", "b two")]
    assert MessageEvent("x").data == "x"


@virtual
async def test_an_exception_becomes_an_error_event_and_work_goes_on(clock: VirtualClock) -> None:
    """Checklist 11, 82, 87: the sender never sees it; property and listeners do."""
    heard: list[Any] = []

    def handler(given: int) -> list[int]:
        if given == 1:
            raise RuntimeError("boom")
        return [given]

    actor = BufferedActor(handler)
    actor.onerror = lambda event: heard.append(("property", str(event.error)))
    actor.add_event_listener("error", lambda event: heard.append(("listener", event.message)))
    actor.onmessage = lambda event: heard.append(event.data)
    actor.post_message(1)
    actor.post_message(2)
    await asyncio.sleep(0.01)
    assert heard == [("listener", "RuntimeError: boom"), ("property", "boom"), 2]
    assert ErrorEvent(RuntimeError("x"), "x").type == "error"


@virtual
async def test_terminate_drops_the_mail_and_silences_the_running_handler(clock: VirtualClock) -> None:
    """Checklist 88."""
    heard: list[Any] = []

    async def handler(given: int) -> list[int]:
        try:
            await asyncio.sleep(1)
        except asyncio.CancelledError:
            heard.append("cancelled")
        return [given]

    actor = BufferedActor(handler)
    actor.onmessage = lambda event: heard.append(event.data)
    actor.post_message(1)
    actor.post_message(2)
    await asyncio.sleep(0.1)
    actor.terminate()
    actor.post_message(3)
    await asyncio.sleep(10)
    assert heard == ["cancelled"]


@virtual
async def test_each_spawn_gives_an_independent_actor(clock: VirtualClock) -> None:
    """Checklist 80, 134: the new one has fresh listeners; the old one's output is ignored."""
    spawned: list[Worker] = []

    def handler(worker: Worker, given: Any) -> None:
        if given.data.get("fail"):
            worker.fail(RuntimeError("boom"))
            late = said(given, "reply", "Low.Do", {"from": "the grave"})
            asyncio.get_running_loop().call_later(2, worker.say, late)
        else:
            worker.say(said(given, "reply", "Low.Do", {"from": spawned.index(worker)}))

    app = App("x")
    app.low_level.append(low_level("Low", handler, spawned))
    app.order.append("Low")
    async with served(app, clock) as site:
        client = await site.connect()
        broken = await client.call(command("Low.Do", {"fail": True}))
        assert broken["type"] == "Sys.ActorCrash"
        answer = await client.call(command("Low.Do", {}))
        assert answer["data"] == {"from": 1}
        await asyncio.sleep(5)
        assert await client.fence() == []
    assert len(spawned) == 2
    assert spawned[0].terminated
    assert spawned[0].listeners["message"] != spawned[1].listeners["message"]


@virtual
async def test_an_actor_may_write_any_number_as_a_timestamp(clock: VirtualClock) -> None:
    """The source says "number"; what leaves the kernel is a whole number from 0, whatever the actor wrote."""

    def handler(worker: Worker, given: Any) -> None:
        worker.say(said(given, "reply", "Low.Do", {}, timestamp=given.data["time"]))

    app = App("x")
    app.low_level.append(low_level("Low", handler, []))
    app.order.append("Low")
    async with served(app, clock) as site:
        client = await site.connect()
        for written, sent in ((1.5, 1), (-1, 0), (2e3, 2000), (7, 7)):
            answer = await client.call(command("Low.Do", {"time": written}))
            assert (answer["kind"], answer["metadata"]["timestamp"]) == ("reply", sent)


RULES = [
    ("wrong causation", lambda given: said(given, "reply", "Low.Do", {}, causation="somebody-else")),
    ("no causation", lambda given: said(given, "reply", "Low.Do", {}, causation=None)),
    ("event without causation", lambda given: said(given, "event", "Low.Said", {}, causation=None)),
    ("correlation dropped", lambda given: said(given, "reply", "Low.Do", {}, correlation=None)),
    ("correlation changed", lambda given: said(given, "reply", "Low.Do", {}, correlation="other")),
    ("bad envelope", lambda given: said(given, "reply", "not a type", {})),
    ("no id", lambda given: said(given, "reply", "Low.Do", {}, id=None)),
    ("bool as time", lambda given: said(given, "reply", "Low.Do", {}, timestamp=True)),
    ("not JSON", lambda given: said(given, "reply", "Low.Do", {"x": object()})),
    ("NaN", lambda given: said(given, "reply", "Low.Do", {"x": float("nan")})),
    ("no message at all", lambda given: 5),
    ("undeclared type", lambda given: said(given, "reply", "Other.Thing", {})),
    ("undeclared kind", lambda given: said(given, "query", "Low.Do", {})),
    ("data outside its schema", lambda given: said(given, "reply", "Low.Do", "text")),
    ("error without code", lambda given: said(given, "error", "Low.Do", {"message": "x"})),
    ("error with code 200", lambda given: said(given, "error", "Low.Do", {"code": 200, "message": "x"})),
]


@pytest.mark.parametrize(("name", "make"), RULES, ids=[name for name, _ in RULES])
@virtual
async def test_a_broken_rule_is_an_actor_fault_and_is_not_delivered(clock: VirtualClock, name: str, make: Any) -> None:
    """Checklist 89, 90, 91, 92, 93, 123, 149, 150: at once, with the request's lineage, and the actor is replaced."""
    spawned: list[Worker] = []

    def handler(worker: Worker, given: Any) -> None:
        if given.data.get("break"):
            worker.say(make(given))
        else:
            worker.say(said(given, "reply", "Low.Do", {"fine": True}))

    app = App("x")
    app.low_level.append(low_level("Low", handler, spawned))
    app.order.append("Low")
    async with served(app, clock) as site:
        client = await site.connect()
        begun = clock.now_ms()
        request = command("Low.Do", {"break": True}, correlation="flow")
        answer = await client.call(request)
        assert (answer["type"], answer["data"]["code"]) == ("Sys.ActorFault", 500)
        assert (answer["data"]["capabilityId"], answer["data"]["requestType"]) == ("Low", "Low.Do")
        assert answer["metadata"]["correlation"] == "flow"
        assert clock.now_ms() == begun, "at once"
        assert (await client.call(command("Low.Do", {})))["data"] == {"fine": True}
        assert await client.fence() == []
    assert [worker.terminated for worker in spawned] == [True, True], "one for the fault, one at the end"


@virtual
async def test_what_a_low_level_actor_may_say(clock: VirtualClock) -> None:
    """Checklist 64, 86, 90: several things in order; errors need no outbound schema; a second reply is dropped."""
    app, notes, spawned = App("x"), [], []

    @app.command("Note.Take")
    async def take(data: dict, ctx: Any) -> None:
        notes.append((data["tag"], ctx.message.metadata.causation))

    @app.on("Low.Said")
    async def heard(data: dict, ctx: Any) -> None:
        notes.append((data["tag"], ctx.message.metadata.causation))

    def handler(worker: Worker, given: Any) -> None:
        if given.kind == "query":
            worker.say(
                said(
                    given, "error", "Any.Type", {"code": 418, "message": "no", "cause": {"code": 502, "message": "up"}}
                )
            )
            return
        worker.say(said(given, "event", "Low.Said", {"tag": "first"}))
        worker.say(said(given, "event", "Low.Said", {"tag": "second"}))
        worker.say(said(given, "command", "Note.Take", {"tag": "third"}))
        worker.say(said(given, "reply", "Low.Do", {"n": 1}))
        worker.say(said(given, "reply", "Low.Do", {"n": 2}))

    app.low_level.append(low_level("Low", handler, spawned))
    app.order.append("Low")
    async with served(app, clock) as site:
        client = await site.connect()
        request = command("Low.Do", {})
        assert (await client.call(request))["data"] == {"n": 1}
        await client.fence()
        cause = request["metadata"]["id"]
        assert sorted(notes) == sorted([("first", cause), ("second", cause), ("third", cause)])
        refused = await client.call(message("query", "Low.Ask", {}))
        assert (refused["type"], refused["data"]["cause"]) == ("Any.Type", {"code": 502, "message": "up"})
        assert await client.fence() == []
    assert len(spawned) == 1


@virtual
async def test_mail_behind_a_low_level_crash_goes_to_the_next_actor(clock: VirtualClock) -> None:
    """Checklist 124."""
    spawned: list[Worker] = []

    def handler(worker: Worker, given: Any) -> None:
        if given.data.get("n") == 0:
            worker.fail(RuntimeError("boom"))
        worker.say(said(given, "reply", "Low.Do", {**given.data, "by": spawned.index(worker)}))

    app = App("x")
    app.low_level.append(low_level("Low", handler, spawned))
    app.order.append("Low")
    async with served(app, clock) as site:
        client = await site.connect()
        client.send(*(command("Low.Do", {"n": number}) for number in range(3)))
        first, *others = [await client.line() for _ in range(3)]
        assert first["type"] == "Sys.ActorCrash"
        assert [line["data"] for line in others] == [{"n": 1, "by": 1}, {"n": 2, "by": 1}]
        assert await client.fence() == []


@virtual
async def test_an_actor_whose_post_message_raises_has_crashed(clock: VirtualClock) -> None:
    """Checklist 11, 124."""

    class Refusing(Worker):
        def post_message(self, given: Any) -> None:
            raise RuntimeError("no more")

    app = App("x")
    app.low_level.append(low_level("Low", None, [], spawn=lambda: Refusing(lambda *_: None)))
    app.order.append("Low")
    async with booted(app, clock) as kernel:
        with pytest.raises(Fail, match="no more") as caught:
            await kernel.ask("command", "Low.Do", {})
        assert caught.value.type == "Sys.ActorCrash"


@virtual
async def test_an_actor_with_properties_only_is_listened_to(clock: VirtualClock) -> None:
    """Checklist 81, 82."""

    class Plain:
        onmessage: Any = None
        onerror: Any = None

        def post_message(self, given: Any) -> None:
            reply = said(given, "reply", "Low.Do", {"plain": True})
            asyncio.get_running_loop().call_soon(lambda: self.onmessage(MessageEvent(reply)))

        def terminate(self) -> None: ...

    kernel = Kernel(clock=clock)
    kernel.register(low_level("Low", None, [], spawn=Plain))
    async with kernel:
        assert await kernel.ask("command", "Low.Do", {}) == {"plain": True}


@virtual
async def test_the_message_is_copied_on_the_way(clock: VirtualClock) -> None:
    """Checklist 10: what one side changes later, the other does not see."""
    app, kept = App("copy"), []

    @app.command("Copy.Keep")
    async def keep(data: dict, ctx: Any) -> dict:
        await ctx.sleep(1)
        kept.append(data)
        return data

    async with booted(app, clock) as kernel:
        given = {"list": [1]}
        asking = asyncio.ensure_future(kernel.ask("command", "Copy.Keep", given))
        await asyncio.sleep(0.1)
        given["list"].append(2)
        reply = await asking
        assert reply == {"list": [1]}
        reply["list"].append(3)
        assert kept == [{"list": [1]}]


@virtual
async def test_order_is_kept_between_a_sender_and_an_actor(clock: VirtualClock) -> None:
    """Checklist 9."""
    app, order = App("order"), []

    @app.command("Order.Take")
    async def take(data: int, ctx: Any) -> None:
        order.append(data)

    async with served(app, clock) as site:
        client = await site.connect()
        client.send(*(command("Order.Take", number) for number in range(500)), ping())
        for _ in range(501):
            await client.line()
    assert order == list(range(500))


def test_a_buffered_actor_is_an_event_target() -> None:
    """What seed and browsers call dispatchEvent: listeners first, then the property."""
    actor = BufferedActor(lambda message: None)
    seen: list[Any] = []
    actor.add_event_listener("message", lambda event: seen.append(("listener", event.data)))
    actor.add_event_listener("other", lambda event: seen.append(("other", event.type)))
    actor.onmessage = lambda event: seen.append(("property", event.data))
    assert actor.dispatch_event(MessageEvent(1)) is True
    assert actor.dispatch_event(ErrorEvent(ValueError("x"), "x", type="other")) is True
    assert seen == [("listener", 1), ("property", 1), ("other", "other")]
    actor.terminate()
    actor.dispatch_event(MessageEvent(2))
    assert len(seen) == 3
