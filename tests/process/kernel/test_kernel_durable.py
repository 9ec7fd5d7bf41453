"""Durable commands: written before they are accepted, dispatched again after a crash, answered once."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mainspring import App, Fail
from mainspring.kernel import Kernel
from mainspring.kernel.durable.record import SPACE, StoredCommand
from mainspring.log import Batch, Log, LogUnavailable, MemoryEngine
from mainspring.loop import VirtualClock
from mainspring.message import Message, Metadata, encode_data
from tests.support.kernel import booted, command, encoded, query, served, virtual
from tests.support.paths import ROOT
from tests.support.serving import Serving


def working(ran: list[Any], seconds: float = 1) -> App:
    app = App("work", concurrency=1)

    @app.command("Work.Do", durable=True)
    async def do(data: dict, ctx: Any) -> dict:
        ran.append((ctx.message.id, data["n"]))
        await ctx.sleep(seconds)
        if data.get("fail"):
            raise Fail(409, "no")
        if data.get("crash"):
            raise RuntimeError("boom")
        return {"n": data["n"]}

    @app.query("Work.Ask")
    async def ask(data: dict, ctx: Any) -> int:
        return len(ran)

    return app


async def a_log() -> Log:
    log = Log(MemoryEngine())
    await log.open()
    return log


async def stored(log: Log) -> dict[str, Any]:
    return {record.key: msgspec.json.decode(record.value, type=StoredCommand) async for record in log.scan(SPACE)}


@virtual
async def test_a_command_is_in_the_log_before_its_actor_sees_it(clock: VirtualClock) -> None:
    log, ran = await a_log(), []
    app, seen = working(ran), []
    real = log.submit

    def slowly(batch: Batch, callback: Any) -> None:
        seen.append(len(ran))
        asyncio.get_running_loop().call_later(0.5, real, batch, callback)

    log.submit = slowly  # type: ignore[method-assign]
    async with booted(app, clock, log=log) as kernel:
        begun = clock.now_ms()
        assert await kernel.ask("command", "Work.Do", {"n": 1}) == {"n": 1}
        assert seen == [0, 1], "stored before it ran, its outcome after"
        assert clock.now_ms() - begun == 2000, "half a second for each write, one for the work"


@virtual
async def test_a_query_does_not_overtake_a_command_on_its_way_to_the_log(clock: VirtualClock) -> None:
    """Checklist 9."""
    log, ran = await a_log(), []
    async with served(working(ran), clock, log=log) as site:
        client = await site.connect()
        client.send(command("Work.Do", {"n": 1}, id="c"), query("Work.Ask", {}, id="q"))
        assert (await client.answer("q"))["data"] == 1, "the command ran before it"
        assert (await client.answer("c"))["data"] == {"n": 1}


@virtual
async def test_the_outcome_is_found_by_id(clock: VirtualClock) -> None:
    log, ran = await a_log(), []
    async with served(working(ran), clock, log=log) as site:
        client = await site.connect()
        client.send(command("Work.Do", {"n": 1}, id="one"))
        await client.fence()
        assert (await client.call(query("Syscall.Outcome", {"id": "one"})))["data"] == {"id": "one", "state": "pending"}
        assert (await client.answer("one"))["data"] == {"n": 1}
        found = (await client.call(query("Syscall.Outcome", {"id": "one"})))["data"]
        assert found == {"id": "one", "state": "done", "kind": "reply", "type": "Work.Do", "data": {"n": 1}}
        for data, kind, code in (({"n": 2, "fail": 1}, "Work.Do", 409), ({"n": 3, "crash": 1}, "Sys.ActorCrash", 500)):
            request = command("Work.Do", data)
            await client.call(request)
            found = (await client.call(query("Syscall.Outcome", {"id": request["metadata"]["id"]})))["data"]
            assert (found["kind"], found["type"], found["data"]["code"]) == ("error", kind, code)
        assert (await client.call(query("Syscall.Outcome", {"id": "never"})))["data"]["code"] == 404


@virtual
async def test_the_same_durable_command_runs_once_whoever_sends_it(clock: VirtualClock) -> None:
    """Checklist 141: in flight, answered, and from other connections; other content is 409."""
    log, ran = await a_log(), []
    async with served(working(ran), clock, log=log) as site:
        one, other = await site.connect(), await site.connect()
        request = command("Work.Do", {"n": 1}, id="same")
        one.send(request)
        await one.fence()
        other.send(request)
        taken = await (await site.connect()).call(command("Work.Do", {"n": 2}, id="same"))
        assert (taken["type"], taken["data"]["code"]) == ("Sys.DuplicateId", 409)
        assert (await one.answer("same"))["data"] == (await other.answer("same"))["data"] == {"n": 1}
        assert (await one.call(request))["data"] == {"n": 1}
        assert (await one.call(command("Work.Do", {"n": 2}, id="same")))["data"]["code"] == 409
        assert ran == [("same", 1)]


@virtual
async def test_the_same_command_sent_twice_without_a_connection_is_answered_twice(clock: VirtualClock) -> None:
    """As over HTTP, where a sender gives up and sends it again: one that is not answered would wait for ever."""
    log, ran = await a_log(), []
    async with booted(working(ran), clock, log=log) as kernel:
        asked = [kernel.ask("command", "Work.Do", {"n": 1}, id="same") for _ in range(2)]
        message = Message("command", "Work.Do", encode_data({"n": 1}), Metadata("same", clock.wall_ms()))
        sent = [kernel.exchange_request(message) for _ in range(2)]
        await asyncio.sleep(60)
        assert [each.result() for each in asked] == [{"n": 1}] * 2
        assert [each.result().data for each in sent] == [{"n": 1}] * 2
        with pytest.raises(Fail, match="another durable command"):
            await kernel.ask("command", "Work.Do", {"n": 2}, id="same")
        assert ran == [("same", 1)]


@virtual
async def test_a_timeout_ends_the_wait_and_not_the_command(clock: VirtualClock) -> None:
    log, ran = await a_log(), []
    async with served(working(ran, seconds=10), clock, log=log) as site:
        client = await site.connect()
        answer = await client.call(command("Work.Do", {"n": 1}, id="slow", timeout=100))
        assert answer["type"] == "Sys.Timeout"
        await asyncio.sleep(20)
        assert await client.fence() == []
        assert (await client.call(query("Syscall.Outcome", {"id": "slow"})))["data"]["data"] == {"n": 1}


@virtual
async def test_what_has_no_outcome_runs_again_after_a_restart_in_order(clock: VirtualClock) -> None:
    log, ran = await a_log(), []
    kernel = working(ran).kernel(clock=clock, log=log)
    await kernel.start()
    asking = [asyncio.ensure_future(kernel.ask("command", "Work.Do", {"n": number})) for number in range(4)]
    await asyncio.sleep(1.5)  # the first is done, the second under way
    await kernel.stop()
    outcomes = await asyncio.gather(*asking, return_exceptions=True)
    assert outcomes[0] == {"n": 0}
    assert [error.code for error in outcomes[1:]] == [503] * 3  # type: ignore[union-attr]
    assert "sent again with the same id" in outcomes[1].remedy  # type: ignore[union-attr]
    before = list(ran)
    async with booted(working(ran), clock, log=log) as again:
        await again.quiescent()
        redone = ran[len(before) :]
        assert [n for _, n in redone] == [1, 2, 3]
        assert redone[0] == before[1], "with the same id"
        for ident, number in redone:
            assert (await again.ask("query", "Syscall.Outcome", {"id": ident}))["data"] == {"n": number}
    count = len(ran)
    async with booted(working(ran), clock, log=log) as last:
        await last.quiescent()
    assert len(ran) == count, "what has an outcome does not run again"


@virtual
async def test_a_stored_command_nobody_handles_any_more_stays(clock: VirtualClock) -> None:
    log, ran = await a_log(), []
    async with booted(working(ran, seconds=99), clock, log=log) as kernel:
        asyncio.ensure_future(kernel.ask("command", "Work.Do", {"n": 1})).add_done_callback(
            lambda done: done.exception()
        )
        await asyncio.sleep(1)
    other = App("other")
    other.command("Other.Do", durable=True)(lambda data, ctx: None)
    async with booted(other, clock, log=log) as kernel:
        await kernel.quiescent()
    assert len(await stored(log)) == 1
    changed = App("work")

    @changed.command("Work.Do", durable=True)
    async def do(data: int, ctx: Any) -> None: ...

    async with booted(changed, clock, log=log) as kernel:
        await kernel.quiescent()
    [record] = (await stored(log)).values()
    assert record.outcome.data["code"] == 422, "its data no longer fits: that is its outcome"


class Failing(Log):
    broken = False

    def submit(self, batch: Batch, callback: Any) -> None:
        if self.broken:
            callback(LogUnavailable("disk full"))
        else:
            super().submit(batch, callback)


@virtual
async def test_a_command_that_cannot_be_stored_is_not_accepted(clock: VirtualClock) -> None:
    log, ran = Failing(MemoryEngine()), []
    await log.open()
    async with booted(working(ran), clock, log=log) as kernel:
        log.broken = True
        with pytest.raises(Fail) as caught:
            await kernel.ask("command", "Work.Do", {"n": 1})
        assert (caught.value.code, caught.value.type) == (503, "Sys.NotStored")
        assert ran == []
        log.broken = False
        assert await kernel.ask("command", "Work.Do", {"n": 2}) == {"n": 2}
        doing = asyncio.ensure_future(kernel.ask("command", "Work.Do", {"n": 3}))
        await asyncio.sleep(0.5)
        log.broken = True
        await asyncio.sleep(5)
        assert not doing.done(), "the work is done, but nobody is told what is not stored"
        assert [each.message.data["n"] for each in (await stored(log)).values() if each.outcome is None] == [3]
        log.broken = False
        assert await doing == {"n": 3}
        assert all(each.outcome is not None for each in (await stored(log)).values())


@virtual
async def test_old_outcomes_are_forgotten(clock: VirtualClock) -> None:
    log = await a_log()
    async with booted(working([]), clock, log=log, outcome_ttl_ms=3_600_000) as kernel:
        await kernel.ask("command", "Work.Do", {"n": 1})
        assert len(await stored(log)) == 1
        await asyncio.sleep(2 * 3600)
        assert await stored(log) == {}
        await kernel.ask("command", "Work.Do", {"n": 2})
    clock.advance(4_000_000)
    async with booted(working([]), clock, log=log):
        assert await stored(log) == {}


# --- with a real kill -------------------------------------------------------------------------------------------


def talk(path: Path, *messages: dict[str, Any], answers: int) -> list[dict[str, Any]]:
    with socket.socket(socket.AF_UNIX) as wire:
        wire.settimeout(30)
        wire.connect(str(path))
        wire.sendall(b"".join(map(encoded, messages)))
        lines = wire.makefile("rb")
        return [json.loads(lines.readline()) for _ in range(answers)]


def state(node: Serving, ident: str) -> str | None:
    [answer] = talk(node.kernel_socket, query("Syscall.Outcome", {"id": ident}), answers=1)
    found: str | None = answer["data"].get("state")
    return found


def until(condition: Callable[[], bool]) -> None:
    """Wait for another process; the limit is only there to end a broken test."""
    for _ in range(3000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("what had to come did not come")


def test_kill_9_loses_no_accepted_command_and_repeats_none_with_an_outcome(tmp_path: Path) -> None:
    """Every accepted command without an outcome is dispatched again, once per restart, with its own id."""
    notes = tmp_path / "notes"
    env = {"PYTHONPATH": str(ROOT), "PROGRAM_NOTES": str(notes)}

    def ran() -> list[str]:
        return [line.split()[0] for line in notes.read_text().splitlines()]

    def node() -> Serving:
        return Serving("tests.support.kernel_programs:durable", folder=tmp_path, env=env, engine="sqlite")

    with node() as first:
        done = talk(first.kernel_socket, command("Work.Do", {"n": 0}, id="done"), answers=1)
        assert done[0]["data"] == {"n": 0}
        wire = socket.socket(socket.AF_UNIX)
        wire.connect(str(first.kernel_socket))
        wire.sendall(b"".join(encoded(command("Work.Do", {"n": n, "s": 300}, id=f"open{n}")) for n in (1, 2)))
        until(lambda: state(first, "open2") == "pending")  # accepted: the log has it
        until(lambda: "open1" in ran())
        first.kill()
        wire.close()
    assert ran() == ["done", "open1"]
    with node() as second:
        until(lambda: ran().count("open1") == 2)
        assert [state(second, ident) for ident in ("done", "open1", "open2", "never")] == [
            "done",
            "pending",
            "pending",
            None,
        ]
        second.kill()
    assert ran() == ["done", "open1", "open1"], "once per restart, one at a time"


@virtual
async def test_other_capabilities_are_not_slowed_by_durability(clock: VirtualClock) -> None:
    kernel = Kernel(clock=clock)
    assert kernel.exchange.durable is None
    async with booted(App("x"), clock, log=await a_log()) as plain:
        assert plain.exchange.durable is None
        with pytest.raises(Fail) as caught:
            await plain.ask("query", "Syscall.Outcome", {"id": "x"})
        assert caught.value.code == 404
