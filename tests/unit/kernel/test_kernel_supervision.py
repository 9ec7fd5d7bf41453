"""Faults, restarts and the end of patience."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass
from typing import Any

import pytest

from mainspring import App, Fail, MainspringError, RestartPolicy
from mainspring.loop import VirtualClock
from tests.support.kernel import Worker, booted, command, low_level, message, ping, said, served, virtual


def fragile(policy: RestartPolicy | None = None) -> App:
    app = App("fragile", restart=policy or RestartPolicy(), concurrency=1)
    for name in ("Frail", "Other"):

        @app.command(f"{name}.Crash")
        async def crash(data: dict, ctx: Any) -> None:
            raise RuntimeError("boom")

        @app.command(f"{name}.Ok")
        async def ok(data: dict, ctx: Any) -> dict:
            return {"ok": True}

    return app


@virtual
async def test_a_crash_is_told_at_once_and_the_next_request_is_answered(clock: VirtualClock) -> None:
    """Checklist 124, 128, 129, 133: fault, then restart after the back-off, then health."""
    async with served(fragile(), clock) as site:
        client = await site.connect()
        begun = clock.now_ms()
        request = command("Frail.Crash", {}, correlation="flow")
        answer = await client.call(request)
        assert clock.now_ms() == begun
        assert (answer["kind"], answer["type"]) == ("error", "Sys.ActorCrash")
        assert (answer["data"]["code"], answer["data"]["capabilityId"]) == (500, "Frail")
        assert "boom" in answer["data"]["message"]
        assert answer["metadata"]["correlation"] == "flow"
        assert (await client.call(command("Frail.Ok", {})))["data"] == {"ok": True}
        assert clock.now_ms() - begun == 1000, "the default back-off"
        assert await client.fence() == []


@virtual
async def test_the_back_off_of_one_stops_nobody_else(clock: VirtualClock) -> None:
    """Checklist 128: and its own mail waits, in order."""
    async with served(fragile(), clock) as site:
        client = await site.connect()
        client.send(
            command("Frail.Crash", {}, id="crash"), command("Frail.Ok", {}, id="a"), command("Frail.Ok", {}, id="b")
        )
        begun = clock.now_ms()
        await client.answer("crash")
        assert (await client.call(command("Other.Ok", {})))["data"] == {"ok": True}
        assert (await client.call(ping(1)))["data"] == {"payload": 1}
        assert clock.now_ms() == begun
        assert [(await client.line())["metadata"]["causation"] for _ in range(2)] == ["a", "b"]
        assert clock.now_ms() - begun == 1000


def test_the_default_policy() -> None:
    """Checklist 127."""
    policy = RestartPolicy()
    assert (policy.max_restarts, policy.window_ms, policy.backoff_ms) == (3, 60_000, 1_000)
    assert App("x").restart is None, "functions are supervised only where the program asks for it"
    for wrong in ({"max_restarts": -1}, {"window_ms": 0}, {"backoff_ms": -1}):
        with pytest.raises(ValueError, match="restart policy"):
            RestartPolicy(**wrong)


@virtual
async def test_the_fault_beyond_the_budget_makes_the_capability_unhealthy(clock: VirtualClock) -> None:
    """Checklist 130, 131, 76: held mail and every later request is refused at once; others live."""
    async with served(fragile(), clock) as site:
        client = await site.connect()
        for _ in range(3):
            assert (await client.call(command("Frail.Crash", {})))["type"] == "Sys.ActorCrash"
        client.send(command("Frail.Crash", {}, id="fourth"), command("Frail.Ok", {}, id="behind"))
        assert (await client.answer("fourth"))["type"] == "Sys.ActorCrash"
        assert (await client.answer("behind"))["data"]["code"] == 503
        begun = clock.now_ms()
        for _ in range(3):
            answer = await client.call(command("Frail.Ok", {}))
            assert (answer["type"], answer["data"]["code"]) == ("Sys.Unhealthy", 503)
            assert answer["data"]["capabilityId"] == "Frail"
        assert (await client.call(command("Other.Ok", {})))["data"] == {"ok": True}
        assert clock.now_ms() == begun
        await asyncio.sleep(3600)
        assert (await client.call(command("Frail.Ok", {})))["data"]["code"] == 503, "no more restarts"


class DiskFull(MainspringError):
    code = "unavailable"


@virtual
async def test_a_trouble_that_passes_is_no_fault_of_whoever_met_it(clock: VirtualClock) -> None:
    """Publishing while the disk is full, say, or while a server is away: the capability works again when that does."""
    app, full = App("shop"), [True]

    @app.command("Order.Place")
    async def place(data: dict[str, Any], ctx: Any) -> str:
        if full[0]:
            raise DiskFull("the disk is full", remedy="free some space")
        return "placed"

    async with booted(app, clock) as kernel:
        for _ in range(10):
            with pytest.raises(Fail) as caught:
                await kernel.ask("command", "Order.Place", {})
            refusal = caught.value
            assert (refusal.code, refusal.message, refusal.remedy) == (503, "the disk is full", "free some space")
        full[0] = False
        assert await kernel.ask("command", "Order.Place", {}) == "placed"


@virtual
async def test_old_restarts_do_not_count(clock: VirtualClock) -> None:
    """Checklist 132, 127."""
    policy = RestartPolicy(max_restarts=2, window_ms=10_000, backoff_ms=100)
    async with booted(fragile(policy), clock) as kernel:
        for _ in range(6):
            with pytest.raises(Fail, match="boom"):
                await kernel.ask("command", "Frail.Crash", {})
            assert await kernel.ask("command", "Frail.Ok", {}) == {"ok": True}
            await asyncio.sleep(5)
        for expected in (500, 500, 503):
            with pytest.raises(Fail) as caught:
                await kernel.ask("command", "Other.Crash", {})
            await asyncio.sleep(0.2)
            if expected == 503:
                with pytest.raises(Fail) as caught:
                    await kernel.ask("command", "Other.Crash", {})
            assert caught.value.code == expected


@virtual
async def test_a_policy_without_restarts_is_unhealthy_at_the_first_fault(clock: VirtualClock) -> None:
    """Checklist 130."""
    async with booted(fragile(RestartPolicy(max_restarts=0)), clock) as kernel:
        with pytest.raises(Fail, match="boom"):
            await kernel.ask("command", "Frail.Crash", {})
        with pytest.raises(Fail) as caught:
            await kernel.ask("command", "Frail.Ok", {})
        assert caught.value.code == 503


@pytest.mark.parametrize("result", [{"count": "many"}, {}, {1, 2}, None, "text", 5])
@virtual
async def test_output_against_its_type_is_an_actor_fault(clock: VirtualClock, result: Any) -> None:
    """Checklist 123, 90, 76."""

    @dataclass
    class Counted:
        count: int

    app = App("shape")

    @app.command("Shape.Give")
    async def give(data: bool, ctx: Any) -> Counted:
        return Counted(1) if data else result

    async with booted(app, clock) as kernel:
        assert await kernel.ask("command", "Shape.Give", True) == {"count": 1}
        with pytest.raises(Fail) as caught:
            await kernel.ask("command", "Shape.Give", False)
        assert (caught.value.code, caught.value.type) == (500, "Sys.ActorFault")
        assert await kernel.ask("command", "Shape.Give", True) == {"count": 1}


@pytest.mark.parametrize("result", [float("nan"), object(), "\ud800", {"deep": [float("inf")]}])
@virtual
async def test_output_that_json_cannot_say_is_an_actor_fault(clock: VirtualClock, result: Any) -> None:
    """Checklist 89, 93."""
    app = App("any")
    app.query("Any.Give")(lambda data, ctx: result)
    async with booted(app, clock) as kernel:
        with pytest.raises(Fail) as caught:
            await kernel.ask("query", "Any.Give", {})
        assert caught.value.type == "Sys.ActorFault"


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, asyncio.CancelledError, GeneratorExit, StopIteration])
@virtual
async def test_whatever_a_handler_raises_stays_in_its_actor(clock: VirtualClock, error: type[BaseException]) -> None:
    """Checklist 11, 124."""
    app = App("rude", restart=RestartPolicy(backoff_ms=1))

    @app.command("Rude.Do")
    def do(data: dict, ctx: Any) -> None:
        raise error

    async with booted(app, clock) as kernel:
        with pytest.raises(Fail) as caught:
            await kernel.ask("command", "Rude.Do", {})
        assert caught.value.type == "Sys.ActorCrash"
        assert await kernel.ask("query", "Syscall.Ping", {"payload": 1}) == {"payload": 1}


@virtual
async def test_a_crash_while_hearing_an_event_reaches_the_sink_with_its_cause(clock: VirtualClock) -> None:
    """Checklist 66, 73, 128."""
    app = App("ears", restart=RestartPolicy(backoff_ms=10))

    @app.on("Loud.Event")
    async def hear(data: int, ctx: Any) -> None:
        if data == 1:
            raise RuntimeError("too loud")
        heard.append(data)

    heard: list[int] = []
    async with booted(app, clock) as kernel:
        errors: list[Any] = []
        kernel.observe(lambda passing: errors.append(passing) if passing.kind == "error" else None)
        for number in (1, 2, 3):
            kernel.emit("Loud.Event", number)
        await kernel.quiescent()
        assert heard == [2, 3], "what lay behind goes to the next actor"
        assert [error.type for error in errors] == ["Sys.ActorCrash"]
        assert errors[0].metadata.causation
        assert kernel.exchange.counters["sunk"] == 1


@virtual
async def test_a_spawn_that_fails_at_the_restart_is_tried_again(clock: VirtualClock) -> None:
    """Checklist 128, 130."""
    tries: list[int] = []

    def handler(worker: Worker, given: Any) -> None:
        if given.data.get("fail"):
            worker.fail(RuntimeError("boom"))
        else:
            worker.say(said(given, "reply", "Low.Do", {}))

    def spawn() -> Worker:
        tries.append(clock.now_ms())
        if len(tries) == 2:
            raise RuntimeError("not now")
        return Worker(handler)

    app = App("x")
    app.low_level.append(low_level("Low", handler, [], spawn=spawn))
    app.order.append("Low")
    async with booted(app, clock) as kernel:
        with pytest.raises(Fail, match="boom"):
            await kernel.ask("command", "Low.Do", {"fail": True})
        assert await kernel.ask("command", "Low.Do", {}) == {}
    assert [later - earlier for earlier, later in itertools.pairwise(tries)] == [1000, 1000]


@virtual
async def test_schema_failures_dispatch_nothing(clock: VirtualClock) -> None:
    """Checklist 126, 143, 159."""
    app, ran = App("strict"), []

    @app.command("Strict.Do")
    async def do(data: int, ctx: Any) -> None:
        ran.append(data)

    async with served(app, clock) as site:
        client = await site.connect()
        wrong = [
            command("Strict.Do", "text"),
            {**command("Strict.Do", 1), "kind": "banana"},
            {**command("Strict.Do", 1), "metadata": {}},
            message("command", "strict.do", 1),
        ]
        client.send(*wrong)
        for _ in wrong:
            answer = await client.line()
            assert (answer["type"], answer["data"]["code"]) == ("Sys.SchemaError", 422)
            assert answer["data"]["message"].startswith("Schema validation failed: ")
        assert await client.fence() == []
    assert ran == []


@virtual
async def test_mail_nobody_waits_for_does_not_fill_the_memory_of_a_stuck_actor(clock: VirtualClock) -> None:
    """Checklist 125: what timed out before it was begun is dropped once too much of it waits."""
    app, ran = App("stuck", concurrency=1), []

    @app.query("Stuck.Wait")
    async def wait(data: int, ctx: Any) -> None:
        ran.append(data)
        await ctx.sleep(1000 if data == 0 else 0)

    async with booted(app, clock) as kernel:
        asked = [kernel.ask("query", "Stuck.Wait", number, timeout=0.01) for number in range(9_000)]
        await asyncio.sleep(1)
        asked += [kernel.ask("query", "Stuck.Wait", -number, timeout=5000) for number in range(1, 3_001)]
        await asyncio.sleep(1)
        assert kernel.exchange.router.slots["Stuck"].actor.waiting < 3_100
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
    assert sum(isinstance(outcome, Fail) for outcome in outcomes) == 9_000
    assert [number for number in ran if number < 0] == [-number for number in range(1, 3_001)]


@pytest.mark.slow
@virtual
async def test_a_silent_low_level_actor_is_not_remembered_for_ever(clock: VirtualClock) -> None:
    """Checklist 68."""
    app = App("x")
    app.low_level.append(low_level("Low", lambda worker, given: worker.posted.clear(), []))
    app.order.append("Low")
    async with booted(app, clock) as kernel:
        for _ in range(8):
            asked = [kernel.ask("command", "Low.Do", {}, timeout=0.001) for _ in range(10_000)]
            await asyncio.gather(*asked, return_exceptions=True)
        slot: Any = kernel.exchange.router.slots["Low"]
        assert len(slot._life.given) <= 50_000
        assert len(slot._life.unanswered) <= 50_000


@virtual
async def test_a_crash_is_logged_with_its_place_and_without_the_payload(
    clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Checklist 157."""
    app = App("logged", restart=RestartPolicy(max_restarts=0))

    @app.command("Logged.Do")
    async def do(data: dict, ctx: Any) -> None:
        raise RuntimeError("boom")

    async with booted(app, clock) as kernel:
        with pytest.raises(Fail):
            await kernel.ask("command", "Logged.Do", {"password": "hunter2secret"})
    assert "Logged.Do" in caplog.text
    assert 'raise RuntimeError("boom")' in caplog.text, "the place"
    assert "unhealthy" in caplog.text
    assert "hunter2secret" not in caplog.text


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even that")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (Fail(404, "no file na\udcefve"), (404, "no file na?ve")),
        (RuntimeError("no file na\udcefve"), (500, "RuntimeError: no file na?ve")),
        (Unspeakable(), (500, "Unspeakable")),
        (Fail(404, 17), (404, "17")),  # type: ignore[arg-type]
    ],
)
@virtual
async def test_an_error_whose_text_json_cannot_say_is_told_all_the_same(
    clock: VirtualClock, error: BaseException, told: tuple[int, str], caplog: pytest.LogCaptureFixture
) -> None:
    """Checklist 76, 129: exactly one outcome, and the actor goes on."""
    caplog.set_level("CRITICAL")  # pytest's own reports cannot say these texts either
    app = App("texts")

    @app.command("Text.Try")
    async def attempt(data: bool, ctx: Any) -> bool:
        if data:
            raise error
        return True

    async with booted(app, clock) as kernel:
        with pytest.raises(Fail) as raised:
            await kernel.ask("command", "Text.Try", True)
        assert (raised.value.code, raised.value.message) == told
        assert await kernel.ask("command", "Text.Try", False) is True


@pytest.mark.parametrize(
    "wrong", [{"code": 409.5}, {"code": True}, {"remedy": None}, {"cause": RuntimeError("not a Fail")}]
)
@virtual
async def test_a_refusal_made_wrongly_is_a_crash_and_the_actor_goes_on(clock: VirtualClock, wrong: dict) -> None:
    """Checklist 76, 129: the mistake is told to whoever asked, and nobody behind waits for ever."""
    app = App("wrong")

    @app.command("Text.Try")
    async def attempt(data: bool, ctx: Any) -> bool:
        if data:
            raise Fail(**{"code": 409, "message": "no", **wrong})
        return True

    async with booted(app, clock) as kernel:
        with pytest.raises(Fail, match="Fail takes"):
            await kernel.ask("command", "Text.Try", True)
        assert await kernel.ask("command", "Text.Try", False) is True


@virtual
async def test_an_actor_that_cannot_be_terminated_is_replaced_like_any_other(clock: VirtualClock) -> None:
    """Checklist 128, 129."""

    class Immortal(Worker):
        def terminate(self) -> None:
            raise RuntimeError("never")

    def handler(worker: Worker, message: Any) -> None:
        if message.data.get("crash"):
            worker.fail(RuntimeError("boom"))
        else:
            worker.say(said(message, "reply", message.type, message.data))

    app = App("x")
    app.low_level.append(low_level("Low", handler, [], spawn=lambda: Immortal(handler)))
    app.order.append("Low")
    async with booted(app, clock) as kernel:
        with pytest.raises(Fail, match="boom"):
            await kernel.ask("command", "Low.Do", {"crash": True})
        assert await kernel.ask("command", "Low.Do", {}) == {}


@virtual
async def test_an_event_an_actor_cannot_take_is_not_blamed_on_a_request(clock: VirtualClock) -> None:
    """Checklist 124, 133: the fault belongs to the event; the open request goes to the next actor."""

    class Picky(Worker):
        def post_message(self, message: Any) -> None:
            if message.kind == "event":
                raise RuntimeError("no events, please")
            asyncio.get_running_loop().call_later(0.05, self.handler, self, message)

    def handler(worker: Worker, message: Any) -> None:
        worker.say(said(message, "reply", message.type, message.data))

    app = App("x")
    app.low_level.append(low_level("Low", handler, [], spawn=lambda: Picky(handler), subscribes=["Low.Happened"]))
    app.order.append("Low")
    async with booted(app, clock) as kernel:
        faults: list[Any] = []
        kernel.observe(lambda seen: faults.append(seen) if seen.type == "Sys.ActorCrash" else None)
        answer = kernel.ask("command", "Low.Do", {"n": 1})
        kernel.emit("Low.Happened", {})
        assert await answer == {"n": 1}
        assert [fault.data["requestType"] for fault in faults] == ["Low.Happened"]
        assert kernel.liveness()["events"] == 0


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf")])
@virtual
async def test_a_handler_cannot_ask_with_a_timeout_no_client_may_give(clock: VirtualClock, timeout: float) -> None:
    """Checklist 142."""
    app = App("asking")

    @app.query("Near.Ask")
    async def near(data: dict, ctx: Any) -> Any:
        return await ctx.send("query", "Far.Ask", {}, timeout=timeout)

    @app.query("Far.Ask")
    async def far(data: dict, ctx: Any) -> dict:
        return {}

    async with booted(app, clock) as kernel:
        with pytest.raises(Fail, match=r"timeout|duration"):
            await kernel.ask("query", "Near.Ask", {})


@virtual
async def test_a_handler_of_faults_hears_real_ones_and_no_forgeries(clock: VirtualClock) -> None:
    app, heard = App("faulty"), []

    @app.command("Break.Down")
    async def break_down(data: dict, ctx: Any) -> None:
        raise KeyError("sku")

    @app.on("Sys.ActorCrash")
    async def on_crash(data: dict, ctx: Any) -> None:
        heard.append((data["capabilityId"], data["requestType"], ctx.message.metadata.causation))
        raise RuntimeError("and so does its handler")

    @app.on("Sys.ActorFault")
    async def on_fault(data: dict, ctx: Any) -> None:
        heard.append((ctx.message.type, data["requestType"], ctx.message.metadata.causation))

    async with served(app, clock) as site:
        client = await site.connect()
        await client.call(command("Event.Subscribe", {"types": ["Sys.*"]}))
        client.send(message("event", "Sys.ActorCrash", {"capabilityId": "forged", "requestType": "x"}, id="f"))
        client.send(message("event", "Sys.ActorFault", {"capabilityId": "forged", "requestType": "x"}, id="g"))
        request = command("Break.Down", {})
        await client.call(request)
        streamed = await client.fence()
        cause = request["metadata"]["id"]
        assert heard == [("Break", "Break.Down", cause), ("Sys.ActorFault", "Break.Down", cause)]
        assert [(each["kind"], each["type"], each["data"]["capabilityId"]) for each in streamed] == [
            ("event", "Sys.ActorCrash", "Break")
        ]
