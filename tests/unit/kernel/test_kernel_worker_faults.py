"""What a low-level actor said before it failed counts; what it says afterwards does not."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import pytest

from mainspring import App, Fail
from mainspring.loop import VirtualClock
from tests.support.kernel import Worker, command, low_level, said, served, virtual


def telling(tell: Any) -> tuple[App, list[str]]:
    """An app with the low-level capability `Low`, and a list of the requests its actors were given."""
    given: list[str] = []

    def handler(worker: Worker, message: Any) -> None:
        if message.kind == "command":
            given.append(message.data["n"])
        tell(worker, message)

    app = App("telling")
    app.low_level.append(low_level("Low", handler, []))
    app.order.append("Low")
    return app, given


def echoed(message: Any, **overrides: Any) -> dict[str, Any]:
    return said(message, "reply", message.type, message.data, **overrides)


@virtual
async def test_an_answer_given_before_a_crash_reaches_its_requester_and_is_not_made_twice(clock: VirtualClock) -> None:
    """The fault overtakes the answer on the system lane; the request is answered all the same."""

    def tell(worker: Worker, message: Any) -> None:
        if message.data["n"] == "crash":
            worker.fail(RuntimeError("boom"))
        elif message.data["n"] != "silent" or len(given) > 4:
            worker.say(echoed(message))

    app, given = telling(tell)
    async with served(app, clock) as site:
        client = await site.connect()
        client.send(*(command("Low.Do", {"n": name}, id=name) for name in ("silent", "answered", "crash", "behind")))
        assert (await client.answer("answered"))["kind"] == "reply"
        assert (await client.answer("silent"))["type"] == "Sys.ActorCrash", "the oldest without an answer"
        assert (await client.answer("crash"))["type"] == "Sys.ActorCrash"
        assert (await client.answer("behind"))["kind"] == "reply"
        assert await client.fence() == []
        assert given.count("answered") == 1


@virtual
async def test_an_event_said_before_a_crash_reaches_its_subscribers(clock: VirtualClock) -> None:
    heard: list[Any] = []

    def tell(worker: Worker, message: Any) -> None:
        worker.say(said(message, "event", "Low.Said", {"n": 1}))
        worker.fail(RuntimeError("boom"))
        worker.say(said(message, "event", "Low.Said", {"n": 2}))
        worker.say(echoed(message))

    app, _ = telling(tell)

    @app.on("Low.Said")
    async def hear(data: dict, ctx: Any) -> None:
        heard.append(data["n"])

    async with served(app, clock) as site:
        client = await site.connect()
        assert (await client.call(command("Low.Do", {"n": "x"})))["type"] == "Sys.ActorCrash"
        assert await client.fence() == []
        assert heard == [1], "nothing said after the error event"


@virtual
async def test_an_invalid_answer_that_a_crash_overtook_is_an_error_for_its_requester(clock: VirtualClock) -> None:
    """Its actor is replaced already: no second fault, no second restart, and no request without an outcome."""

    def tell(worker: Worker, message: Any) -> None:
        if message.data["n"] == "crash":
            worker.fail(RuntimeError("boom"))
        elif message.data["n"] == "invalid":
            worker.say(echoed(message, correlation=None))
        else:
            worker.say(echoed(message))

    app, given = telling(tell)
    async with served(app, clock) as site:
        client = await site.connect()
        client.send(
            command("Low.Do", {"n": "invalid"}, id="invalid", correlation="flow"),
            command("Low.Do", {"n": "valid"}, id="valid"),
            command("Low.Do", {"n": "crash"}, id="crash"),
        )
        outcomes = {name: (await client.answer(name))["type"] for name in ("crash", "invalid", "valid")}
        assert outcomes == {"crash": "Sys.ActorCrash", "invalid": "Sys.ActorFault", "valid": "Low.Do"}
        assert (await client.call(command("Low.Do", {"n": "after"})))["kind"] == "reply"
        assert await client.fence() == []
        assert given.count("invalid") == 1


@virtual
async def test_something_that_is_no_message_event_is_a_fault_and_no_silence(clock: VirtualClock) -> None:
    def tell(worker: Worker, message: Any) -> None:
        if message.data["n"] == "odd":
            for listener in worker.listeners["message"]:
                listener(object())
        else:
            worker.say(echoed(message))

    app, _ = telling(tell)
    async with served(app, clock) as site:
        client = await site.connect()
        assert (await client.call(command("Low.Do", {"n": "odd"})))["type"] == "Sys.ActorFault"
        assert (await client.call(command("Low.Do", {"n": "even"})))["kind"] == "reply"


async def test_an_actor_may_speak_and_fail_from_a_thread_of_its_own() -> None:
    def tell(worker: Worker, message: Any) -> None:
        if message.data["n"] == "fail":
            said_there = partial(worker.fail, RuntimeError("boom"))
        else:
            said_there = partial(worker.say, echoed(message))
        threading.Timer(0.05, said_there).start()  # the kernel sleeps by then, and must be woken

    app, _ = telling(tell)
    kernel = app.kernel()
    await kernel.start()
    try:
        for _ in range(5):
            assert await kernel.ask("command", "Low.Do", {"n": "x"}, timeout=20) == {"n": "x"}
        with pytest.raises(Fail, match="boom"):
            await kernel.ask("command", "Low.Do", {"n": "fail"}, timeout=20)
        assert await kernel.ask("command", "Low.Do", {"n": "y"}, timeout=20) == {"n": "y"}
    finally:
        await kernel.stop()
