"""The agent's back end: a conversation over the socket, and a refund that waits for its approval."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable

import pytest

from agent_backend import Call, Tools, app, tools_at
from mainspring.message import Message
from mainspring.testing import serving, simulate

WISH = {"order": "o-7", "cents": 2450, "reason": "it is lost"}


def test_the_agent_answers_a_question(run_example: Callable[[str], str]) -> None:
    said = run_example("agent_backend.py")
    lines = said.splitlines()
    assert lines[0] == "tools: Run_Outcome, Order_Find, Parcel_Track, Letter_Search, Refund_Request"
    assert '  failed call-1 "404: there is no order 7; known orders: o-7, o-8"' in lines
    assert [line for line in lines if "Letter.Searched" in line] == [
        f'  hears  Letter.Searched {{"read": {read}, "of": 4}} of call-4' for read in (1, 2, 3, 4)
    ]
    assert "grace: refund-o-7? lost at Hub West, 2 letters about it: granted" in lines
    assert lines[-1] == (
        "agent: I am sorry that your parcel was lost. We paid back 2450 cents for o-7, approved by grace."
    )


async def test_calls_made_together_are_answered_each_with_its_own_result() -> None:
    async with serving(app) as node, tools_at(node.kernel_socket, [], lambda event: None) as tools:
        await tools.learn()
        calls = [Call(f"c-{n}", "Order_Find", {"id": f"o-{n}"}) for n in range(6, 10)]
        results = await asyncio.gather(*(tools.call(call) for call in calls))
        assert [result.is_error for result in results] == [True, False, False, True]
        assert [result.content["customer"] for result in results[1:3]] == ["ada", "ben"]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (Call("c", "Order_Burn", {}), "there is no tool Order_Burn"),
        (Call("c", "Run_Signal", {"id": "refund-o-7", "name": "approved", "value": "me"}), "there is no tool"),
        (Call("c", "Refund_Request", {**WISH, "cents": 0}), "422: Schema validation failed"),
    ],
    ids=["unknown", "not offered", "bad arguments"],
)
async def test_what_goes_wrong_is_a_result_for_the_model(call: Call, text: str) -> None:
    async with serving(app) as node, tools_at(node.kernel_socket, [], lambda event: None) as tools:
        await tools.learn()
        result = await tools.call(call)
        assert result.is_error
        assert text in result.content


async def test_the_tools_are_those_the_command_line_shows() -> None:
    async with serving(app) as node, tools_at(node.kernel_socket, [], lambda event: None) as tools:
        command = (sys.executable, "-m", "mainspring", "describe", "--tools", "--socket", str(node.kernel_socket))
        shown = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        text, _ = await shown.communicate()
        listed = {tool["name"]: tool for tool in json.loads(text)}
        assert [listed[tool["name"]] for tool in await tools.learn()] == await tools.learn()


async def test_a_node_that_goes_away_leaves_nobody_waiting() -> None:
    async with serving(app) as node:
        reader, writer = await asyncio.open_unix_connection(node.kernel_socket)
        tools = Tools(writer)
        listening = asyncio.create_task(tools.listen(reader, lambda event: None))
        waiting = asyncio.create_task(tools.ask("query", "Timer.Nothing", {}))
        await asyncio.sleep(0)
        writer.transport.abort()
        with pytest.raises(ConnectionError):
            await waiting
        await listening


# -- the refund, on virtual time


async def test_a_refund_waits_for_days_and_over_a_crash_and_is_paid_once() -> None:
    async with simulate(app) as world:
        assert await world.command("Refund.Request", WISH) == {"run": "refund-o-7"}
        await world.advance("3d")
        await world.crash_and_restart(down="1h")
        assert await world.command("Refund.Request", WISH) == {"run": "refund-o-7"}
        await world.command("Run.Signal", {"id": "refund-o-7", "name": "approved", "value": "grace"})
        outcome = await world.outcome("refund-o-7", within="1s")
        assert outcome.value == "paid back 2450 cents for o-7, approved by grace"


async def test_a_refund_that_nobody_approves_is_not_paid() -> None:
    async with simulate(app) as world:
        await world.command("Refund.Request", WISH)
        outcome = await world.outcome("refund-o-7")
        assert outcome.value == "nobody approved it within a week"


async def test_progress_belongs_to_the_call_that_makes_it() -> None:
    async with simulate(app) as world:
        await world.command("Letter.Search", {"text": "tea"})
        asked, *progress = [each for each in world.messages if each.type in ("Letter.Search", "Letter.Searched")]
        assert [cause(each) for each in progress] == [cause(progress[0])] * 5
        assert asked.metadata.id == cause(progress[0])


def cause(message: Message) -> str | None:
    return message.metadata.causation
