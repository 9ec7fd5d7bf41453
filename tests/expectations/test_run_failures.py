"""What a user of Temporal or DBOS expects when a part of a run fails: `try/except` works, and again on replay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mainspring import (
    App,
    Ask,
    ChildFailed,
    Context,
    Effect,
    EffectFailed,
    Fail,
    Perform,
    Publish,
    Sleep,
    WaitSignal,
    WaitTimedOut,
)
from mainspring.runs import ChildTimedOut, EffectTimeout
from mainspring.testing import simulate
from tests.expectations.conftest import Start


class Charge(Effect[str]):
    cents: int


class Hang(Effect[None]):
    pass


def bank() -> App:
    """Every attempt to charge and every compensation is an event, so that a story sees how often it happened."""
    app = App("bank")

    async def note(topic: str, what: Any) -> None:
        await app.publish(topic, what)

    @app.handles(Charge, max_attempts=2, backoff="10ms", give_up_on=PermissionError)
    async def charge(effect: Charge) -> str:
        await note("attempts", effect.cents)
        if effect.cents == 13:
            raise ConnectionError("the bank is away")
        if effect.cents == 14:
            raise PermissionError("no")
        return "paid"

    @app.handles(Hang, timeout="20ms")
    async def hang(effect: Hang) -> str:
        import asyncio

        await asyncio.Event().wait()
        return ""

    @app.run
    async def compensates(cents: int, perform: Perform) -> list[str]:
        try:
            return [await perform(Charge(cents))]
        except EffectFailed as error:
            await perform(Publish("refunds", cents))
            await perform(WaitSignal("go on"))
            return [error.effect, error.type, error.message, str(error)]

    @app.run
    async def does_not_catch(cents: int, perform: Perform) -> str:
        return await perform(Charge(cents))

    @app.run
    async def waits(perform: Perform) -> list[str]:
        seen = []
        try:
            await perform(WaitSignal("paid", timeout="20ms"))
        except WaitTimedOut as error:
            seen.append(str(error))
        try:
            await perform(Hang())
        except EffectTimeout as error:
            seen.append(str(error))
        try:
            await perform.within("20ms", sleeps)
        except ChildTimedOut:
            seen.append("child")
        try:
            await perform.within("20ms", sleeps)
        except TimeoutError:
            seen.append("also a TimeoutError")
        return seen

    @app.run
    async def sleeps(perform: Perform) -> None:
        await perform(Sleep("1h"))

    @app.run
    async def joins(perform: Perform) -> list[str]:
        child, seen = perform.spawn(does_not_catch, 13), []
        try:
            await child
        except ChildFailed as error:
            seen.append(f"{error.type}: {error.message}")
        try:
            async with perform.group() as group:
                group.spawn(does_not_catch, 13)
                group.spawn(sleeps)
                await perform(WaitSignal("never"))
        except ChildFailed as error:
            seen.append(str(error).removeprefix(f"child {error.run_id} "))
        await perform(WaitSignal("go on"))
        return seen

    return app


async def test_a_program_catches_the_failure_of_an_effect_and_compensates(start: Start) -> None:
    async with start(bank()) as node:
        run = await node.start_run("compensates", 13)
        await node.comes("refunds", 13)
        await node.signal(run, "go on")
        ended = await node.outcome(run)
        text = "Charge failed: ConnectionError: the bank is away"
        assert (ended.state, ended.value) == ("done", ["Charge", "ConnectionError", "the bank is away", text])
        assert await node.events("attempts") == [13, 13]


async def test_after_a_crash_the_program_meets_the_same_failure(start: Start) -> None:
    async with start(bank) as node:
        run = await node.start_run("compensates", 13)
        await node.comes("refunds", 13)
        await node.crash()
        await node.signal(run, "go on")
        assert (await node.outcome(run)).value[1] == "ConnectionError"
        assert await node.events("attempts") == [13, 13]
        assert await node.events("refunds") == [13]


async def test_an_error_that_is_not_worth_another_attempt_gets_none(start: Start) -> None:
    async with start(bank()) as node:
        run = await node.start_run("compensates", 14)
        await node.comes("refunds", 14)
        await node.signal(run, "go on")
        assert (await node.outcome(run)).value[1:3] == ["PermissionError", "no"]
        assert await node.events("attempts") == [14]


async def test_a_failure_that_is_not_caught_fails_the_run_with_the_handlers_error(start: Start) -> None:
    async with start(bank()) as node:
        ended = await node.outcome(await node.start_run("does_not_catch", 13))
        assert (ended.state, ended.error) == ("failed", {"type": "ConnectionError", "message": "the bank is away"})


async def test_a_run_that_failed_is_retried_at_the_effect_that_failed(start: Start) -> None:
    async with start(bank()) as node:
        run = await node.start_run("does_not_catch", 13)
        await node.outcome(run)
        await node.command("Run.Retry", {"id": run})
        await node.comes("attempts", 13, 13, 13, 13)
        assert (await node.outcome(run)).state == "failed"


async def test_timeouts_are_raised(start: Start) -> None:
    async with start(bank()) as node:
        ended = await node.outcome(await node.start_run("waits"))
        assert ended.value == [
            "no signal 'paid' came within 20ms",
            "the handler of Hang did not answer within 20ms",
            "child",
            "also a TimeoutError",
        ]


async def test_failing_children_are_caught_also_after_a_crash(start: Start) -> None:
    async with start(bank) as node:
        run = await node.start_run("joins")
        await node.comes("attempts", 13, 13, 13, 13)
        await node.crash()
        await node.signal(run, "go on")
        ended = await node.outcome(run)
        text = "ConnectionError: the bank is away"
        assert ended.value == [text, f"failed: {text}"]
        assert len(await node.events("attempts")) == 4


async def test_the_refusal_of_a_command_that_a_run_asks_has_its_code(start: Start) -> None:
    app = App("shop")

    @app.command("Order.Place")
    async def place(data: dict[str, Any], ctx: Context) -> None:
        raise Fail(409, "sold out")

    @app.run
    async def checkout(perform: Perform) -> list[str]:
        try:
            await perform(Ask("Order.Place", {}))
        except EffectFailed as error:
            return [error.type, error.code]
        return []

    async with start(app) as node:
        assert (await node.outcome(await node.start_run("checkout"))).value == ["Fail", "409"]


# -- effects that are made and never awaited


async def test_an_effect_that_is_never_awaited_fails_the_run_and_names_the_line() -> None:
    app = App("shop")

    @app.run
    async def forgetful(perform: Perform) -> str:
        perform(Charge(99))  # line of interest
        await perform(Sleep(1))
        return "done"

    @app.run
    async def holding(perform: Perform) -> str:
        later = perform(Charge(99))
        await perform(Sleep(1))
        return f"done {later is None}"

    async with simulate(app) as world:
        failed = await world.outcome(await world.start_run(forgetful))
        held = await world.outcome(await world.start_run(holding))
    line = next(n for n, text in enumerate(Path(__file__).read_text().splitlines(), 1) if "line of interest" in text)
    assert failed.kind == held.kind == "failed"
    assert failed.error.type == "NeverAwaited"
    assert f"{__file__}, line {line}, in" in str(failed.error)
    assert f"{__file__}, line {holding.__code__.co_firstlineno}, in" in str(held.error)


async def test_an_effect_may_be_made_first_and_awaited_later() -> None:
    app = App("shop")

    @app.run
    async def patient(perform: Perform) -> str:
        first, second = perform(Sleep(1)), perform(Sleep(2))
        await second
        await first
        return "done"

    async with simulate(app) as world:
        assert (await world.outcome(await world.start_run(patient))).kind == "value"


# -- mistakes in declarations


async def test_a_run_without_perform_is_refused_where_it_is_written() -> None:
    app = App("shop")
    with pytest.raises(Exception, match=r"test_run_failures.py:\d+\): its last parameter is not `perform`"):

        @app.run
        async def total(order: str) -> None: ...

    with pytest.raises(Exception, match=r"test_run_failures.py:\d+\): a run is an async function"):

        @app.run
        def plain(perform: Perform) -> None: ...

    with pytest.raises(Exception, match=r"test_run_failures.py:\d+\): .* cannot take `tax`"):

        @app.run
        async def named(perform: Perform, *, tax: int) -> None: ...

    with pytest.raises(Exception, match=r"@app.handles\(Charge\) \(.*test_run_failures.py:\d+\): max_attempts is 0"):

        @app.handles(Charge, max_attempts=0)
        def charge(effect: Charge) -> str:
            return ""


async def test_a_missing_handler_is_asked_for_in_the_words_of_an_app() -> None:
    app = App("shop")

    @app.run
    async def checkout(perform: Perform) -> str:
        return await perform(Charge(1))

    async with simulate(app) as world:
        ended = await world.outcome(await world.start_run(checkout))
    assert "@app.handles(Charge)" in str(ended.error)
