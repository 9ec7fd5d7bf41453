"""What a user of RabbitMQ, Celery or NATS expects of messages that fail.

A message may say how often it is tried, with pauses that double. Its sender gets the first success or the last error.
What failed to the end, or failed where nobody waited, is kept: it can be seen, sent back and dropped. A timer that was
asked to survive the node does.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mainspring import App, Context, Fail, Retry
from mainspring.testing import simulate
from tests.expectations.conftest import Start


def flaky(failures: int, code: int = 503) -> tuple[App, list[int]]:
    """Charge.Card fails so many times, then succeeds; with the attempt that each call was."""
    app, attempts = App("flaky"), []

    @app.command("Charge.Card")
    async def charge(data: dict[str, Any], ctx: Context) -> str:
        attempts.append(ctx.message.metadata.attempt)
        if len(attempts) <= failures:
            raise Fail(code, "the bank is away")
        return "charged"

    @app.on("Charge.Wanted")
    async def wanted(data: dict[str, Any], ctx: Context) -> None:
        attempts.append(ctx.message.metadata.attempt)
        if len(attempts) <= failures:
            raise RuntimeError("not yet")

    @app.command("Charge.Later")
    async def later(data: dict[str, Any], ctx: Context) -> None:
        ctx.after("10ms", "command", data["type"], {}, retry=Retry(3, 1) if data.get("retry") else None)

    @app.command("Charge.Announce")
    async def announce(data: dict[str, Any], ctx: Context) -> None:
        ctx.emit("Charge.Wanted", {})

    return app, attempts


async def letters(node: Any) -> list[dict[str, Any]]:
    return list((await node.query("Syscall.DeadLetters"))["letters"])


async def test_a_message_with_a_retry_is_sent_again_until_it_succeeds(start: Start) -> None:
    """Checklist 58: with pauses, for as many attempts as its retry says."""
    app, attempts = flaky(2)
    async with start(app) as node:
        assert await node.command("Charge.Card", {}, retry=Retry(5, backoff_ms=1)) == "charged"
        assert attempts == [1, 2, 3]
        assert await letters(node) == []


async def test_without_a_retry_nothing_is_sent_twice(start: Start) -> None:
    app, attempts = flaky(1)
    async with start(app) as node:
        with pytest.raises(Fail, match="bank"):
            await node.command("Charge.Card", {})
        assert attempts == [1]
        assert await letters(node) == []  # its sender knows


async def test_an_error_that_will_not_pass_is_not_tried_again(start: Start) -> None:
    app, attempts = flaky(9, code=409)
    async with start(app) as node:
        with pytest.raises(Fail) as caught:
            await node.command("Charge.Card", {}, retry=Retry(5, backoff_ms=1))
        assert (caught.value.code, attempts) == (409, [1])
        assert await letters(node) == []


async def test_what_fails_to_the_end_is_a_dead_letter_that_can_be_sent_back(start: Start) -> None:
    app, attempts = flaky(3)
    async with start(app) as node:
        with pytest.raises(Fail, match="bank"):
            await node.command("Charge.Card", {"card": 7}, retry=Retry(3, backoff_ms=1))
        assert attempts == [1, 2, 3]
        (letter,) = await letters(node)
        assert (letter["reason"], letter["error"], letter["code"]) == ("gave_up", "Charge.Card", 503)
        assert (letter["message"]["type"], letter["message"]["data"]) == ("Charge.Card", {"card": 7})
        assert await node.command("Syscall.Redrive", {"ids": [letter["id"]]}) == {"count": 1}
        await node.until(lambda: len(attempts) == 4)
        assert attempts[-1] == 1  # with all its attempts

        async def gone() -> bool:
            return not await letters(node)

        await node.until(gone)


async def test_a_letter_that_fails_again_stays_and_can_be_dropped(start: Start) -> None:
    app, attempts = flaky(99)
    async with start(app) as node:
        await node.command("Charge.Later", {"type": "Charge.Card"})
        (letter,) = await node.until(lambda: letters(node))
        assert letter["reason"] == "reached_nobody"
        await node.command("Syscall.Redrive", {"all": True})
        await node.until(lambda: len(attempts) == 2)
        (again,) = await letters(node)
        assert again["id"] == letter["id"]
        assert await node.command("Syscall.DropDeadLetters", {"ids": [again["id"]]}) == {"count": 1}
        assert await letters(node) == []


async def test_a_letter_that_was_dropped_on_its_way_does_not_come_back(start: Start) -> None:
    app, ending = App("shop"), asyncio.Event()
    attempts: list[int] = []

    @app.command("Charge.Card")
    async def charge(data: dict[str, Any], ctx: Context) -> None:
        attempts.append(1)
        if len(attempts) == 2:
            await ending.wait()
        raise Fail(503, "the bank is away")

    @app.command("Charge.Later")
    async def later(data: dict[str, Any], ctx: Context) -> None:
        ctx.after("10ms", "command", "Charge.Card", {})

    async with start(app) as node:
        await node.command("Charge.Later", {})
        (letter,) = await node.until(lambda: letters(node))
        await node.command("Syscall.Redrive", {"all": True})
        await node.until(lambda: len(attempts) == 2)
        assert await node.command("Syscall.DropDeadLetters", {"ids": [letter["id"]]}) == {"count": 1}
        ending.set()
        with pytest.raises(Fail, match="bank"):
            await node.command("Charge.Card", {})
        assert await letters(node) == []


async def test_a_timer_for_nobody_is_a_dead_letter(start: Start) -> None:
    app, _ = flaky(0)
    async with start(app) as node:
        await node.command("Charge.Later", {"type": "No.Such"})
        (letter,) = await node.until(lambda: letters(node))
        assert (letter["message"]["type"], letter["code"]) == ("No.Such", 404)


async def test_an_event_whose_handler_fails_goes_back_to_that_handler(start: Start) -> None:
    app, attempts = flaky(1)
    others: list[str] = []

    @app.on("Charge.Wanted")
    async def also(data: dict[str, Any], ctx: Context) -> None:
        others.append("heard")

    async with start(app) as node:
        await node.command("Charge.Announce", {})
        (letter,) = await node.until(lambda: letters(node))
        assert (letter["message"]["kind"], letter["error"]) == ("event", "Sys.ActorCrash")
        await node.command("Syscall.Redrive", {"all": True})
        await node.until(lambda: len(attempts) == 2)

        async def gone() -> bool:
            return not await letters(node)

        await node.until(gone)


async def test_dead_letters_survive_a_restart(start: Start) -> None:
    app, _ = flaky(99)
    async with start(app) as node:
        await node.command("Charge.Later", {"type": "Charge.Card", "retry": True})
        before = await node.until(lambda: letters(node))
        await node.restart()
        assert await letters(node) == before


def reminding() -> App:
    app = App("reminding")

    @app.command("Remind.Me", durable=True)
    async def remind(data: dict[str, Any], ctx: Context) -> None:
        await ctx.publish("reminded", data)

    return app


async def later(node: Any, delay: int, data: Any, **options: Any) -> str:
    inner = {"kind": "command", "type": "Remind.Me", "data": data, "metadata": {"id": "r-1", "timestamp": 0}}
    return str((await node.command("Timer.Schedule", {"delay": delay, "message": inner, **options}))["timerId"])


async def test_a_durable_timer_fires_after_a_crash(start: Start) -> None:
    async with start(reminding) as node:
        await later(node, 300, {"n": 1}, durable=True)
        await node.crash()
        await node.comes("reminded", {"n": 1})

        async def gone() -> bool:
            return (await node.query("Timer.List"))["total"] == 0

        await node.until(gone)


async def test_a_timer_in_memory_ends_with_the_node() -> None:
    async with simulate(reminding()) as node:
        await later(node, 300, {"n": 1})
        assert (await node.query("Timer.List"))["total"] == 1
        await node.crash_and_restart()
        assert (await node.query("Timer.List"))["total"] == 0


async def test_a_durable_timer_can_be_cancelled_after_a_restart() -> None:
    async with simulate(reminding()) as node:
        timer = await later(node, 60_000, {"n": 1}, durable=True)
        await node.crash_and_restart()
        (shown,) = (await node.query("Timer.List"))["timers"]
        assert (shown["timerId"], shown["kind"], shown["messageKind"], shown["durable"]) == (
            timer,
            "scheduled",
            "command",
            True,
        )
        assert await node.command("Timer.Cancel", {"timerId": timer}) == {"cancelled": True}
        assert await node.command("Timer.Cancel", {"timerId": timer}) == {"cancelled": False}
        await node.crash_and_restart()
        await node.advance("2m")
        assert (await node.query("Timer.List"))["total"] == 0


async def test_a_retry_is_a_timer_that_can_be_seen_and_cancelled() -> None:
    """Checklist 43, 58: an entry of kind retry sends the message once more."""
    app, attempts = flaky(99)
    async with simulate(app) as node:
        await node.command("Charge.Later", {"type": "Charge.Card", "retry": True})
        await node.begin("command", "Charge.Card", {}, retry=Retry(9, backoff_ms=60_000))
        await node.until(lambda: len(attempts) == 4)
        (shown,) = (await node.query("Timer.List"))["timers"]
        assert (shown["kind"], shown["type"], shown["attempt"]) == ("retry", "Charge.Card", 2)
        assert await node.command("Timer.Cancel", {"timerId": shown["timerId"]}) == {"cancelled": True}
        assert [each["reason"] for each in await letters(node)] == ["reached_nobody", "gave_up"]


async def test_a_trace_survives_a_restart_where_it_is_kept(start: Start) -> None:
    app, _ = flaky(0)
    for kept in (False, True):
        async with start(app, keep_trace=kept) as node:
            await node.command("Charge.Card", {}, id=f"traced-{kept}")
            tree = await node.query("Syscall.Trace", {"id": f"traced-{kept}"})
            assert [each["type"] for each in tree["messages"]] == ["Charge.Card", "Charge.Card"]
            await node.restart()
            if kept:
                assert await node.query("Syscall.Trace", {"id": "traced-True"}) == tree
            else:
                with pytest.raises(Fail, match="not known"):
                    await node.query("Syscall.Trace", {"id": "traced-False"})
