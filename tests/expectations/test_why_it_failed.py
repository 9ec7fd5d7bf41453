"""Why it failed can be read afterwards, as in Flower, Temporal and Sentry: type, text and traceback of the exception.

It is kept with the attempt, whoever made it: a consumer, a task, a command, an effect, a schedule. It is bounded, and
what the settings say is secret is not in it.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from mainspring import App, Event, Fail
from mainspring.errors import SettingError
from mainspring.kernel import Inspector
from mainspring.runs import Effect, Sleep, WaitSignal
from mainspring.testing import simulate
from tests.expectations.conftest import Start


class Charge(Effect[str]):
    """Take money."""

    card: str


def reach_the_bank(card: str) -> str:
    raise ConnectionError(f"postgresql://bank:hunter2@db/bank does not answer for {card}")


def shop() -> App:
    app = App("shop")

    @app.consumer("orders", max_attempts=2, backoff="1ms")
    async def bill(event: Event[Any]) -> None:
        reach_the_bank(event.payload["card"])

    @app.consumer("returns", give_up_on=LookupError)
    async def refund(event: Event[Any]) -> None:
        {}["receipt"]

    @app.task(max_attempts=2, backoff="1ms")
    async def send_mail(to: str) -> None:
        reach_the_bank(to)

    app.state.send_mail = send_mail

    @app.command("Order.Place")
    async def place(data: dict[str, Any], ctx: Any) -> str:
        return reach_the_bank(data["card"])

    @app.every("20ms", max_attempts=1)
    async def report() -> None:
        reach_the_bank("all cards")

    @app.handles(Charge, max_attempts=3, backoff="1ms")
    async def charge(effect: Charge) -> str:
        return reach_the_bank(effect.card)

    @app.run(name="checkout")
    async def checkout(card: str, perform: Any) -> str:
        return str(await perform(Charge(card)))

    @app.run(name="approval")
    async def approval(name: str, perform: Any) -> Any:
        if name == "slow":
            await perform(Sleep("1h"))
        return await perform(WaitSignal(name, timeout="2h"))

    return app


def assert_kept(error: dict[str, Any], type: str = "ConnectionError") -> None:
    assert error["type"] == type
    lines = error["traceback"].splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert "test_why_it_failed.py" in lines[1]  # of the program, from its first line on
    assert any("reach_the_bank" in line for line in lines)
    assert lines[-1].startswith(type)
    assert "hunter2" not in str(error)
    assert "postgresql://***@db/bank" in error["message"]


async def test_a_dead_letter_has_the_exception_of_its_last_attempt(start: Start) -> None:
    async with start(shop) as node:
        await node.publish("orders", {"card": "c-1"})
        (letter,) = await node.until(lambda: node.dead_letters("orders"))
        assert_kept(letter["failure"])
        assert "hunter2" not in letter["reason"]
        assert "x-failure" not in letter["headers"]
        await node.publish("returns", {})
        (letter,) = await node.until(lambda: node.dead_letters("returns"))
        assert (letter["failure"]["type"], letter["attempts"]) == ("KeyError", 1)  # and not the word for giving up
        (dead,) = [each async for each in node.bus.dead_letters("returns")]
        assert dead.failure is not None
        assert '{}["receipt"]' in dead.failure.traceback


async def test_a_letter_that_is_sent_back_does_not_carry_the_old_exception(start: Start) -> None:
    async with start(shop) as node:
        await node.publish("orders", {"card": "c-1"})
        await node.until(lambda: node.dead_letters("orders"))
        await node.redrive("orders")
        (letter,) = await node.until(lambda: node.dead_letters("orders"))
        assert "x-failure" not in letter["headers"]
        assert_kept(letter["failure"])


async def test_a_client_says_why_it_gave_an_event_up(start: Start) -> None:
    async with start(App("empty")) as node:
        await node.publish("orders", {"n": 1})
        async with node.bus.subscribe("orders", group="mail", from_="beginning") as events:
            event = await events.get()
            try:
                reach_the_bank("c-1")
            except ConnectionError as error:
                await event.reject("no bank", error=error)
        (letter,) = await node.until(lambda: node.dead_letters("orders"))
        assert letter["reason"] == "no bank"
        assert_kept(letter["failure"])


async def test_a_failed_task_has_its_exception(start: Start) -> None:
    async with start(shop) as node:
        await node.enqueue(shop().state.send_mail, "ada")
        (letter,) = await node.until(lambda: node.dead_letters("tasks.shop.send_mail"))
        assert_kept(letter["failure"])


async def test_a_failed_schedule_has_its_exception(start: Start) -> None:
    async with start(shop) as node:

        async def last() -> Any:
            return next((each["last"] for each in await node.bus.schedules() if each.get("last")), None)

        called = await node.until(last)
        assert called["result"] == "failed"
        assert_kept(called["failure"])


async def test_a_failed_run_has_its_exception_and_those_of_all_attempts(start: Start) -> None:
    async with start(shop) as node:
        await node.start_run("checkout", "c-1", id="o-1")
        await node.outcome("o-1")
        history = await node.query("Run.History", {"id": "o-1"})
        (entry,) = history["journal"]
        assert_kept({**entry["error"], "traceback": entry["traceback"]})
        assert [failed["error"]["type"] for failed in entry["failures"]] == ["ConnectionError"] * 2
        assert entry["attempts"] == 3
        for failed in entry["failures"]:
            assert_kept({**failed["error"], "traceback": failed["traceback"]})
            assert failed["at"] >= entry["at"]
        info = await node.bus.run_info("o-1")
        assert info.error is not None
        assert info.error["type"] == "ConnectionError"
        assert "await perform(Charge(card))" in info.traceback
        (listed,) = (await node.query("Run.List"))["runs"]
        assert "traceback" not in listed  # a list stays short


async def test_a_run_that_is_retried_begins_with_no_failures(start: Start) -> None:
    async with start(shop) as node:
        await node.start_run("checkout", "c-1", id="o-1")
        await node.outcome("o-1")
        await node.bus.retry_run("o-1")
        await node.until(lambda: _is_over(node, "o-1"))
        (entry,) = (await node.query("Run.History", {"id": "o-1"}))["journal"]
        assert len(entry["failures"]) == 2


async def _is_over(node: Any, run_id: str) -> bool:
    info = await node.bus.run_info(run_id)
    return bool(info.state == "failed" and info.retries)


async def test_a_failed_command_is_a_fault_with_its_exception() -> None:
    async with simulate(shop()) as world:
        with pytest.raises(Fail, match="does not answer"):
            await world.command("Order.Place", {"card": "c-1"})
        (fault,) = Inspector(world.node.kernel).faults()
        assert fault.failure is not None
        assert_kept(msgspec.structs.asdict(fault.failure))


async def test_settings_leave_tracebacks_out_and_redact() -> None:
    async with simulate(shop(), keep_tracebacks=False, redact=(r"c-\d+",)) as world:
        await world.publish("orders", {"card": "c-17"})
        (letter,) = await world.until(lambda: world.dead_letters("orders"))
        assert letter.failure is not None
        assert letter.failure.traceback == ""
        assert letter.failure.message.endswith("does not answer for ***")
        assert letter.reason.endswith("does not answer for ***")
    with pytest.raises(SettingError, match="not a regular expression"):
        async with simulate(shop(), redact=("(",)):
            pass


async def test_what_is_kept_is_bounded() -> None:
    app = App("deep")

    @app.consumer("numbers", max_attempts=1)
    async def fall(event: Event[int]) -> None:
        def deeper(n: int) -> None:
            if n:
                deeper(n - 1)
            raise ValueError("x" * 100_000)

        deeper(200)

    async with simulate(app) as world:
        await world.publish("numbers", 1)
        (letter,) = await world.until(lambda: world.dead_letters("numbers"))
        assert letter.failure is not None
        assert len(letter.failure.message) <= 1_000
        assert len(letter.failure.traceback) <= 6_000
