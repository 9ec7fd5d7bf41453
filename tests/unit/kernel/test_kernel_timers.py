"""Messages that are sent later, and requests that take too long."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring import App, Fail
from mainspring.kernel.exchange import Deadlines
from mainspring.kernel.mail import Mail, NoReplyOrigin
from mainspring.loop import Loop, TimerEntry, TimerWheel, VirtualClock, run_virtual
from tests.support.kernel import WALL_MS, booted, command, encoded, message, ping, served, virtual


def noting() -> tuple[App, list[tuple[Any, int, Any]]]:
    app, notes = App("noted"), []

    @app.command("Note.Take")
    async def take(data: dict, ctx: Any) -> dict:
        notes.append((data.get("tag"), clock_of(ctx), ctx.message))
        return data

    def clock_of(ctx: Any) -> int:
        return ctx._port._exchange.clock.now_ms()

    return app, notes


def later(delay: Any, inner: Any, **metadata: Any) -> dict[str, Any]:
    return command("Timer.Schedule", {"delay": delay, "message": inner}, **metadata)


def note(tag: Any, **metadata: Any) -> dict[str, Any]:
    return command("Note.Take", {"tag": tag}, **{"timestamp": 0, **metadata})


def test_the_wheel_offers_its_five_operations() -> None:
    """Checklist 42, 43."""
    wheel = TimerWheel()
    assert wheel.next_deadline() is None
    wheel.schedule(TimerEntry("a", 50, "message", "timeout"))
    wheel.schedule(TimerEntry("b", 20, "message", "retry"))
    assert (wheel.next_deadline(), wheel.has_ready(19), wheel.has_ready(20)) == (20, False, True)
    assert wheel.pop_ready(19) is None
    entry = wheel.pop_ready(20)
    assert (entry.id, entry.deadline, entry.message, entry.kind) == ("b", 20, "message", "retry")
    assert wheel.cancel("a") is True
    assert wheel.cancel("a") is False
    assert wheel.next_deadline() is None


def test_the_wheel_holds_many_and_far_timers() -> None:
    """Checklist 44."""
    wheel, chosen = TimerWheel(), random.Random(7)
    deadlines = [chosen.randrange(1, 10 ** chosen.randrange(1, 13)) for _ in range(5000)]
    for number, deadline in enumerate(deadlines):
        wheel.schedule(TimerEntry(number, deadline, None, "scheduled"))
    for number in range(0, 5000, 2):
        assert wheel.cancel(number)
    fired = []
    while (now := wheel.next_deadline()) is not None:
        entry = wheel.pop_ready(now)
        assert entry is not None
        fired.append(entry.deadline)
    assert fired == sorted(deadlines[1::2])


@virtual
async def test_equal_deadlines_fire_in_the_order_they_were_set(clock: VirtualClock) -> None:
    """Checklist 6, 24, 57: by deadline, then by registration."""
    app, notes = noting()
    delays = [900, 150, 900, 500, 150, 150, 500]
    async with booted(app, clock) as kernel:
        for number, delay in enumerate(delays):
            await kernel.ask("command", "Timer.Schedule", {"delay": delay, "message": note(number)})
        await kernel.quiescent()
    assert [tag for tag, _, _ in notes] == [1, 4, 5, 3, 6, 0, 2]


@virtual
async def test_a_delay_of_0_fires_at_the_next_opportunity(clock: VirtualClock) -> None:
    """Checklist 7: not inside the turn that scheduled it, and its timer id is answered all the same."""
    app, _ = noting()
    order: list[str] = []
    async with booted(app, clock) as kernel:
        kernel.observe(lambda passing: order.append(f"{passing.kind} {passing.type}"))
        reply = await kernel.ask("command", "Timer.Schedule", {"delay": 0, "message": note("now")})
        await kernel.quiescent()
    assert isinstance(reply["timerId"], str)
    assert order == ["command Timer.Schedule", "reply Timer.Schedule", "command Note.Take", "reply Note.Take"]


@virtual
async def test_schedule_answers_now_and_sends_later(clock: VirtualClock) -> None:
    """Checklist 45, 46, 47, 137."""
    app, notes = noting()
    async with served(app, clock) as site:
        client = await site.connect()
        begun = clock.now_ms()
        request = later(5000, note("later"))
        reply = await client.call(request)
        assert reply["kind"] == "reply"
        assert reply["metadata"]["causation"] == request["metadata"]["id"]
        assert isinstance(reply["data"]["timerId"], str)
        await asyncio.sleep(4.999)
        assert notes == []
        await asyncio.sleep(0.01)
        [(tag, at, _)] = notes
        assert (tag, at - begun) == ("later", 5000)
        assert await client.fence() == [], "its answer goes nowhere"


@virtual
async def test_a_scheduled_message_has_a_lineage_of_its_own(clock: VirtualClock) -> None:
    """Checklist 48: its id is kept when free, its time is fresh, its cause is the scheduling command."""
    app, notes = noting()
    async with served(app, clock) as site:
        client = await site.connect()
        request = later(20, note("mine", id="given"), correlation="flow")
        await client.call(request)
        await asyncio.sleep(1)
        sent = notes[0][2].metadata
        assert (sent.id, sent.causation, sent.correlation) == ("given", request["metadata"]["id"], "flow")
        assert sent.timestamp == WALL_MS + 20


@virtual
async def test_a_scheduled_message_may_have_any_number_as_its_timestamp(clock: VirtualClock) -> None:
    """The source says "number", and it gets a new one when it is sent."""
    app, notes = noting()
    async with served(app, clock) as site:
        client = await site.connect()
        for timestamp in (-1, 1.5, -7.5e3, 1e300):
            assert (await client.call(later(1, note("any", timestamp=timestamp))))["kind"] == "reply"
        for timestamp in (True, "1", None):
            assert (await client.call(later(1, note("bad", timestamp=timestamp))))["data"]["code"] == 422
        await asyncio.sleep(1)
        assert [(tag, sent.metadata.timestamp) for tag, _, sent in notes] == [("any", WALL_MS + 1)] * 4


@virtual
async def test_a_given_id_that_is_in_use_is_replaced(clock: VirtualClock) -> None:
    """Checklist 48."""
    app, seen = App("busy"), []

    @app.command("Busy.Do")
    async def do(data: dict, ctx: Any) -> None:
        seen.append(ctx.message.id)
        await ctx.sleep(1)

    async with booted(app, clock) as kernel:
        for _ in range(2):
            await kernel.ask("command", "Timer.Schedule", {"delay": 5, "message": command("Busy.Do", {}, id="same")})
        await kernel.quiescent()
    assert seen[0] == "same"
    assert len(set(seen)) == 2


def bad_schedules() -> list[Any]:
    good = note("never")
    return [
        {"message": good},
        {"delay": -1, "message": good},
        {"delay": -0.5, "message": good},
        {"delay": "5", "message": good},
        {"delay": True, "message": good},
        {"delay": None, "message": good},
        {"delay": 1e300, "message": good},
        {"delay": 5},
        {"delay": 5, "message": "Note.Take"},
        {"delay": 5, "message": {**good, "kind": "banana"}},
        {"delay": 5, "message": {**good, "type": "note.take"}},
        {"delay": 5, "message": {**good, "metadata": {}}},
        {"delay": 5, "message": {key: value for key, value in good.items() if key != "data"}},
        [],
        None,
    ]


@virtual
async def test_bad_schedules_are_one_error_each_and_no_timer(clock: VirtualClock) -> None:
    """Checklist 49."""
    app, notes = noting()
    async with served(app, clock) as site:
        client = await site.connect()
        for data in bad_schedules():
            answer = await client.call(command("Timer.Schedule", data))
            assert (answer["kind"], answer["data"]["code"]) == ("error", 422), data
        for text in (b"NaN", b"1e999"):
            line = later(4711, note("never"))
            client.send_raw(encoded(line).replace(b"4711", text))
            answer = await client.line()
            assert answer["data"]["code"] in (400, 422)
        assert await client.fence() == []
        assert site.kernel.liveness()["timers"] == 0
    assert notes == []


@virtual
async def test_a_timeout_is_an_error_with_the_requests_lineage(clock: VirtualClock) -> None:
    """Checklist 50, 51, 125, 138."""
    app = App("stuck")

    @app.query("Stuck.Wait")
    async def wait(data: dict, ctx: Any) -> None:
        await ctx.sleep(10**6)

    async with served(app, clock) as site:
        client = await site.connect()
        for extra, expected in (({"timeout": 250, "correlation": "flow"}, 250), ({}, 30_000)):
            request = message("query", "Stuck.Wait", {}, **extra)
            begun = clock.now_ms()
            answer = await client.call(request)
            assert clock.now_ms() - begun == expected
            assert (answer["kind"], answer["type"]) == ("error", "Sys.Timeout")
            data = answer["data"]
            assert (data["code"], data["originalId"]) == (504, request["metadata"]["id"])
            assert data["message"]
            assert answer["metadata"].get("correlation") == extra.get("correlation")
            assert None not in answer["metadata"].values()
        assert site.kernel.liveness()["inFlight"] == 0


@pytest.mark.parametrize("timeout", ["1e-300", "0.5", "1e303", "1.7e308", "9" * 309, "9" * 4000])
@virtual
async def test_a_timeout_may_be_any_positive_number(clock: VirtualClock, timeout: str) -> None:
    """Checklist 31, 142: however large it is, the request is answered and nothing is left behind."""
    async with served(App("x"), clock) as site:
        client = await site.connect()
        client.send_raw(encoded(ping("in time", timeout=4711)).replace(b"4711", timeout.encode()))
        assert (await client.line())["data"] == {"payload": "in time"}
        assert site.kernel.liveness()["inFlight"] == 0


@virtual
async def test_an_answer_cancels_the_timeout(clock: VirtualClock) -> None:
    """Checklist 52."""
    async with served(App("x"), clock) as site:
        client = await site.connect()
        client.send(ping(1, timeout=900), ping(2), command("No.Such", {}, timeout=900))
        for _ in range(3):
            await client.line()
        await asyncio.sleep(100)
        assert await client.fence() == []


@virtual
async def test_a_reply_after_the_timeout_is_discarded(clock: VirtualClock) -> None:
    """Checklist 68, 77: one request, one outcome."""
    app = App("late")

    @app.query("Late.Wait")
    async def wait(data: dict, ctx: Any) -> str:
        await ctx.sleep(1)
        return "late"

    async with served(app, clock) as site:
        client = await site.connect()
        request = message("query", "Late.Wait", {}, timeout=100)
        assert (await client.call(request))["type"] == "Sys.Timeout"
        await asyncio.sleep(5)
        assert await client.fence() == []
        assert site.kernel.exchange.counters["late"] == 1


@virtual
async def test_cancel_stops_a_timer_and_unknown_ones_are_answered(clock: VirtualClock) -> None:
    """Checklist 53, 54."""
    app, notes = noting()
    async with booted(app, clock) as kernel:
        timer = (await kernel.ask("command", "Timer.Schedule", {"delay": 800, "message": note("never")}))["timerId"]
        assert await kernel.ask("command", "Timer.Cancel", {"timerId": timer}) == {"cancelled": True}
        assert await kernel.ask("command", "Timer.Cancel", {"timerId": timer}) == {"cancelled": False}
        assert await kernel.ask("command", "Timer.Cancel", {"timerId": "unknown"}) == {"cancelled": False}
        fired = (await kernel.ask("command", "Timer.Schedule", {"delay": 1, "message": note("fired")}))["timerId"]
        await asyncio.sleep(1)
        assert await kernel.ask("command", "Timer.Cancel", {"timerId": fired}) == {"cancelled": False}
        with pytest.raises(Fail) as caught:
            await kernel.ask("command", "Timer.Cancel", {})
        assert caught.value.code == 422
        await asyncio.sleep(10)
    assert [tag for tag, _, _ in notes] == ["fired"]


@virtual
async def test_timers_are_listed_earliest_first_without_their_data(clock: VirtualClock) -> None:
    app, _ = noting()
    async with booted(app, clock) as kernel:
        for delay in (500, 100):
            await kernel.ask("command", "Timer.Schedule", {"delay": delay, "message": note("secret")})
        listed = await kernel.ask("query", "Timer.List", {})
    assert listed["total"] == 2
    assert [entry["deadline"] - WALL_MS for entry in listed["timers"]] == [100, 500]
    assert "secret" not in str(listed)


@virtual
async def test_timer_messages_take_the_ordinary_route(clock: VirtualClock) -> None:
    """Checklist 55: validation, routing errors and the pending table included; nobody gets the answers."""
    app, notes = noting()
    async with served(app, clock) as site:
        client = await site.connect()
        seen: list[str] = []
        site.kernel.observe(lambda passing: seen.append(passing.type) if passing.kind == "error" else None)
        for inner in (command("No.Such", {}), command("Note.Take", "not an object"), note("fine"), ping("nobody")):
            await client.call(later(10, inner))
        await site.kernel.quiescent()
        assert seen == ["Sys.RoutingError", "Sys.SchemaError"]
        assert [tag for tag, _, _ in notes] == ["fine"]
        assert await client.fence() == []


@virtual
async def test_a_timer_outlives_its_connection(clock: VirtualClock) -> None:
    app, notes = noting()
    async with served(app, clock) as site:
        client = await site.connect()
        await client.call(later(500, note("kept")))
        await client.close()
        await asyncio.sleep(1)
    assert [tag for tag, _, _ in notes] == ["kept"]


@given(st.lists(st.floats(0, 10_000), min_size=1, max_size=30))
def test_never_early_whatever_the_delay(delays: list[float]) -> None:
    """Checklist 56, 57: over many random delays; all fire, in the order of their deadlines."""

    async def scenario() -> None:
        app, notes = noting()
        async with booted(app, clock) as kernel:
            begun = clock.now_ns()
            for number, delay in enumerate(delays):
                await kernel.ask("command", "Timer.Schedule", {"delay": delay, "message": note(number)})
            await kernel.quiescent()
        assert sorted(tag for tag, _, _ in notes) == list(range(len(delays)))
        for tag, at, _ in notes:
            assert at * 1_000_000 >= begun + delays[tag] * 1_000_000 - 1_000_000
        assert [at for _, at, _ in notes] == sorted(at for _, at, _ in notes)

    clock = VirtualClock(0)
    run_virtual(scenario(), clock=clock)


@virtual
async def test_a_handler_can_send_later_again_and_again(clock: VirtualClock) -> None:
    """Checklist 58: periodic ticks are messages that schedule themselves."""
    app, ticks = App("tick"), []

    @app.command("Health.Tick")
    async def tick(data: dict, ctx: Any) -> None:
        ticks.append((clock.now_ms(), ctx.message.metadata.causation))
        if len(ticks) < 4:
            ctx.after(10, "command", "Health.Tick", {})

    async with booted(app, clock) as kernel:
        begun = clock.now_ms()
        await kernel.ask("command", "Health.Tick", {})
        await kernel.quiescent()
    assert [at - begun for at, _ in ticks] == [0, 10_000, 20_000, 30_000]
    assert all(cause is not None for _, cause in ticks[1:])


def test_deadlines_forget_the_answered_and_remember_the_rest() -> None:
    """Checklist 50, 57: the queue stays short however many requests are answered, and no deadline is lost."""
    clock = VirtualClock()
    loop, expired = Loop(clock), []
    deadlines = Deadlines(loop, 1000, lambda mail: expired.append(mail.seen_id))
    nobody: Any = NoReplyOrigin()
    kept = []
    for number in range(5000):
        mail = Mail(None, None, None, None, nobody, seen_id=str(number))  # type: ignore[arg-type]
        deadlines.start(mail, None)
        if number % 1000 == 0:
            kept.append(str(number))
        else:
            mail.closed = True
    assert len(deadlines._queue) < 600
    loop.advance(999)
    assert expired == []
    loop.advance(1)
    assert expired == kept
    assert not loop.why_alive()
