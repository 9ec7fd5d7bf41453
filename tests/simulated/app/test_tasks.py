"""Tasks of a program: durable when enqueued, done at least once, typed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from mainspring import App, Event
from mainspring.tasks import NotServed
from mainspring.testing import simulate


@dataclass
class Mail:
    to: str
    copies: int = 1


def program() -> tuple[App, list[Any], Any]:
    app, sent = App("post"), []

    @app.task(max_attempts=3, backoff="1s")
    async def send(mail: Mail, *tags: str, urgent: bool = False, **more: int) -> None:
        sent.append((mail, tags, urgent, more))
        if mail.to == "nobody":
            raise ValueError("no such address")

    @app.command("Mail.Send")
    async def mail(data: dict, ctx: Any) -> str:
        return (await send.enqueue(Mail(data["to"]))).id

    @app.command("Mail.Later")
    async def later(data: dict, ctx: Any) -> str:
        return (await send.options(delay="1h").enqueue(Mail(data["to"]))).id

    @app.command("Mail.Durably", durable=True)
    async def durably(data: dict, ctx: Any) -> None:
        await ctx.publish(send.topic, send.payload(Mail(data["to"])))
        await ctx.sleep(60)

    @app.consumer("orders")
    async def bill(event: Event[dict]) -> None:
        event.publish(send.topic, send.payload(Mail("ada"), "bill", urgent=True, weight=3))

    return app, sent, send


async def test_a_task_is_done_with_its_arguments_in_their_types() -> None:
    app, sent, send = program()
    async with simulate(app) as world:
        await world.command("Mail.Send", {"to": "ada"})
        assert sent == [(Mail("ada"), (), False, {})]
        await world.publish("orders", {})
        assert sent[1:] == [(Mail("ada"), ("bill",), True, {"weight": 3})]
    await send(Mail("bob"))
    assert sent[-1][0] == Mail("bob")


async def test_a_task_waits_its_time_over_a_crash() -> None:
    app, sent, _ = program()
    async with simulate(app) as world:
        await world.command("Mail.Later", {"to": "ada"})
        await world.advance("59m")
        await world.crash_and_restart()
        assert sent == []
        await world.advance("2m")
    assert [mail.to for mail, *_ in sent] == ["ada"]


async def test_a_task_that_fails_is_tried_again_and_becomes_a_dead_letter() -> None:
    app, sent, send = program()
    async with simulate(app) as world:
        await world.command("Mail.Send", {"to": "nobody"})
        await world.advance("1m")
        (letter,) = world.dead_letters(send.topic)
        assert (len(sent), letter.attempts, letter.reason) == (3, 3, "ValueError: no such address")


async def test_a_task_of_a_durable_command_is_enqueued_with_its_reply() -> None:
    app, sent, _ = program()
    async with simulate(app) as world:
        await world.begin("command", "Mail.Durably", {"to": "ada"})
        await world.advance("30s")
        await world.crash_and_restart()
        await world.advance("2m")
    assert len(sent) == 1


async def test_arguments_that_do_not_fit_are_refused_when_enqueued() -> None:
    app, _, send = program()
    async with simulate(app):
        with pytest.raises(TypeError):
            send.payload()


async def test_outside_a_node_nothing_can_be_enqueued() -> None:
    app, _, send = program()
    with pytest.raises(NotServed, match="not served"):
        await send.enqueue(Mail("ada"))
    async with simulate(app):
        pass
    with pytest.raises(NotServed):
        await send.enqueue(Mail("ada"))
