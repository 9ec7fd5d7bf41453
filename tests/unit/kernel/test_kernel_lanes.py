"""The loop under the kernel: who goes first, what a turn does, and when everything is over."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from typing import Any

import pytest

from mainspring import App, Fail, RestartPolicy
from mainspring.kernel import Kernel
from mainspring.kernel.mail import Mail
from mainspring.loop import Lanes, Loop, VirtualClock
from mainspring.message import Message, parse
from tests.support.kernel import Worker, booted, command, encoded, message, said, served, shape, virtual


class Probe:
    """An origin that notes what it is told."""

    external = True

    def __init__(self) -> None:
        self.open: dict[str, Mail] = {}
        self.answers: list[Message] = []
        self.settled_count = 0

    def deliver(self, message: Message) -> bool:
        self.answers.append(message)
        return True

    def settled(self) -> None:
        self.settled_count += 1


def bare(app: App, clock: VirtualClock) -> tuple[Kernel, Loop]:
    """A kernel whose loop nobody drives but the test."""
    loop = Loop(clock)
    return app.kernel(clock=clock, loop=loop), loop


@virtual
async def test_no_turn_of_the_loop_runs_a_handler(clock: VirtualClock) -> None:
    """Checklist 1, 8: neither a handler that raises nor one that blocks runs on the loop's own turn."""
    app, ran = App("calm"), []

    @app.command("Calm.Do")
    def do(data: dict, ctx: Any) -> None:
        ran.append(kernel.loop._turns.running)
        raise RuntimeError("boom")

    kernel, loop = bare(app, clock)
    await kernel.start()
    probe = Probe()
    kernel.ingest(parse(encoded(command("Calm.Do", {}))), probe)
    loop.run_until_idle()
    assert ran == [], "the turns are over and the handler has not begun"
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert ran == [False], "it runs in its actor's task, outside any turn"
    loop.run_until_idle()
    assert [answer.type for answer in probe.answers] == ["Sys.ActorCrash"]
    await kernel.stop()


@virtual
async def test_every_message_passes_the_one_choke_point(clock: VirtualClock) -> None:
    """Checklist 2: inbound ones, an actor's, the kernel's own, and those of timers."""
    app = App("seen")

    @app.command("Seen.Do")
    async def do(data: dict, ctx: Any) -> dict:
        ctx.emit("Seen.Happened", {})
        ctx.after(1, "event", "Seen.Later", {})
        return {}

    async with booted(app, clock) as kernel:
        seen: list[tuple[str, str]] = []
        end = kernel.observe(lambda passing: seen.append((passing.kind, passing.type)))
        await kernel.ask("command", "Seen.Do", {})
        with pytest.raises(Fail):
            await kernel.ask("query", "No.Such", {})
        await asyncio.sleep(2)
        assert seen == [
            ("command", "Seen.Do"),
            ("event", "Seen.Happened"),
            ("reply", "Seen.Do"),
            ("query", "No.Such"),
            ("error", "Sys.RoutingError"),
            ("event", "Seen.Later"),
        ]
        end()
        await kernel.ask("command", "Seen.Do", {})
        assert len(seen) == 6


@virtual
async def test_an_observer_that_fails_disturbs_nobody(clock: VirtualClock) -> None:
    """Checklist 2."""
    async with booted(App("x"), clock) as kernel:
        kernel.observe(lambda passing: 1 / 0)
        assert await kernel.ask("query", "Syscall.Ping", {"payload": 1}) == {"payload": 1}


@virtual
async def test_the_same_message_always_leads_to_the_same_place(clock: VirtualClock) -> None:
    """Checklist 3."""

    async def destinations() -> list[str]:
        app, went = App("same"), []
        for name in ("A", "B", "C"):
            app.command(f"{name}.Do")(lambda data, ctx, name=name: went.append(name))
            app.on("Some.Event")(lambda data, ctx, name=name: went.append(name + "!"))
        async with booted(app, clock) as kernel:
            for name in "BACAB":
                await kernel.ask("command", f"{name}.Do", {})
            kernel.emit("Some.Event", {})
            await kernel.quiescent()
        return went

    assert await destinations() == await destinations() == ["B", "A", "C", "A", "B", "A!", "B!", "C!"]


@virtual
async def test_one_thread_and_nothing_left_after_a_restart(clock: VirtualClock) -> None:
    """Checklist 5: queues are in memory only."""
    app, threads = App("mem"), set()

    @app.command("Mem.Do")
    async def do(data: dict, ctx: Any) -> None:
        threads.add(threading.get_ident())
        await ctx.sleep(1000)

    kernel, loop = bare(app, clock)
    await kernel.start()
    kernel.ingest(parse(encoded(command("Mem.Do", {}))), Probe())
    loop.run_until_idle()
    assert kernel.liveness()["inFlight"] == 1
    await kernel.stop()
    async with booted(app, clock) as again:
        assert again.liveness() == {"inFlight": 0, "events": 0, "timers": 0}
    assert threads <= {threading.get_ident()}


def test_there_are_two_lanes_and_each_keeps_its_order() -> None:
    """Checklist 14, 16, 20: System if it holds anything, else User, else nothing."""
    lanes = Lanes()
    for number in range(3):
        lanes.user.append((print, f"user {number}"))
        lanes.system.append((print, f"system {number}"))
    loop, order = Loop(VirtualClock()), []
    for number in range(3):
        loop.post(order.append, f"user {number}")
        loop.post_system(order.append, f"system {number}")
    loop.run_until_idle()
    assert order == ["system 0", "system 1", "system 2", "user 0", "user 1", "user 2"]
    assert loop.run_until_idle() == 0
    assert len(lanes.user) == len(lanes.system) == 3


def test_the_system_lane_is_emptied_also_of_what_arrives_meanwhile() -> None:
    """Checklist 15, 19, 21, 25: after one user turn the system lane is looked at again."""
    loop, order = Loop(VirtualClock()), []

    def system(number: int) -> None:
        order.append(f"s{number}")
        if number < 3:
            loop.post_system(system, number + 1)

    def user(name: str) -> None:
        order.append(name)
        loop.post_system(order.append, f"fault of {name}")

    loop.post(user, "u1")
    loop.post(user, "u2")
    loop.post_system(system, 1)
    loop.run_until_idle()
    assert order == ["s1", "s2", "s3", "u1", "fault of u1", "u2", "fault of u2"]


@virtual
async def test_a_tick_takes_at_most_one_user_message(clock: VirtualClock) -> None:
    """Checklist 25, 26: one driver; another tick exactly when work remains."""
    kernel, loop = bare(App("x"), clock)
    await kernel.start()
    probe = Probe()
    for _ in range(3):
        kernel.ingest(parse(encoded(command("No.Such", {}))), probe)
    for answered in (0, 1, 2):
        assert loop.tick()
        assert len(probe.answers) == answered, "its error waits in the system lane for the next tick"
    assert loop.tick()
    assert len(probe.answers) == 3
    assert not loop.tick()
    await kernel.stop()


@virtual
async def test_the_kernels_own_errors_take_the_system_lane_and_traffic_the_user_lane(clock: VirtualClock) -> None:
    """Checklist 17, 18, 27, 28."""
    app = App("lanes")

    @app.command("Lane.Typed")
    async def typed(data: int, ctx: Any) -> int:
        return data

    kernel, loop = bare(app, clock)
    await kernel.start()
    probe = Probe()
    kernel.ingest(parse(encoded(command("Lane.Typed", 1))), probe)
    kernel.ingest(parse(encoded(message("event", "Any.Event", 1))), probe)
    assert (loop.counters().user_depth, loop.counters().system_depth) == (2, 0)
    kernel.reject(probe, 400, "Invalid JSON: x")
    assert loop.counters().system_depth == 1
    loop.run_until_idle()
    for wrong in (command("Lane.Typed", "x"), command("No.Such", 1)):
        kernel.ingest(parse(encoded(wrong)), probe)
        assert loop.tick()
        assert loop.counters().system_depth == 1
        loop.run_until_idle()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert loop.counters().user_depth == 1, "the actor's reply"
    loop.run_until_idle()
    assert [(each.type, each.data.get("code") if each.kind == "error" else None) for each in probe.answers] == [
        ("Sys.SchemaError", 400),
        ("Sys.SchemaError", 422),
        ("Sys.RoutingError", 404),
        ("Lane.Typed", None),
    ]
    await kernel.stop()


@virtual
async def test_a_flood_delays_a_fault_by_one_message_at_most(clock: VirtualClock) -> None:
    """Checklist 21."""
    app, order = App("flood", restart=RestartPolicy(backoff_ms=1)), []

    @app.command("Flood.Crash")
    async def crash(data: dict, ctx: Any) -> None:
        for number in range(500):
            ctx.emit("Flood.Noise", number)
        raise RuntimeError("boom")

    async with booted(app, clock) as kernel:
        kernel.observe(lambda passing: order.append(passing.type))
        with pytest.raises(Fail):
            await kernel.ask("command", "Flood.Crash", {})
        await kernel.quiescent()
    assert order.count("Flood.Noise") == 500
    assert order.index("Sys.ActorCrash") <= 2, "right behind the command and at most one event"


@virtual
async def test_nobody_gains_priority_by_naming_a_type_sys(clock: VirtualClock) -> None:
    """Checklist 22."""
    kernel, loop = bare(App("x"), clock)
    await kernel.start()
    probe, order = Probe(), []
    kernel.observe(lambda passing: order.append((passing.kind, passing.type)))
    kernel.ingest(parse(encoded(message("event", "Plain.Event", 1))), probe)
    kernel.ingest(parse(encoded(message("event", "Sys.ActorFault", {"capabilityId": "Syscall"}))), probe)
    kernel.ingest(parse(encoded(message("error", "Sys.ActorCrash", {"code": 500}, causation="x"))), probe)
    assert loop.counters().system_depth == 0
    loop.run_until_idle()
    assert order == [("event", "Plain.Event"), ("event", "Sys.ActorFault"), ("error", "Sys.ActorCrash")]
    assert probe.answers == []
    await kernel.stop()


@virtual
async def test_a_turn_validates_routes_and_only_then_hands_over(clock: VirtualClock) -> None:
    """Checklist 23, 29, 30: the entry is in the pending table before the actor can see the message."""
    app, seen = App("turn"), []

    def handler(worker: Worker, given: Message) -> None:
        worker.say(said(given, "reply", "Low.Do", {}))

    class Looking(Worker):
        def post_message(self, given: Message) -> None:
            seen.append((given.id, kernel.liveness()["inFlight"]))
            super().post_message(given)

    app.capability(
        id="Low",
        description="looks",
        inbound=shape("command", "Low.Do"),
        outbound=shape("reply", "Low.Do"),
        spawn=lambda: Looking(handler),
    )
    async with booted(app, clock) as kernel:
        with pytest.raises(Fail):
            await kernel.ask("command", "Low.Do", "not an object")
        assert seen == []
        await kernel.ask("command", "Low.Do", {})
        assert [count for _, count in seen] == [1]


@virtual
async def test_metadata_timeout_overrides_the_default(clock: VirtualClock) -> None:
    """Checklist 31, 50, 125."""
    app = App("slow")

    @app.query("Slow.Wait")
    async def wait(data: dict, ctx: Any) -> None:
        await ctx.sleep(3600)

    async with booted(app, clock) as kernel:
        for timeout, expected in ((0.25, 250), (None, 30_000), (60.0005, 60_001)):
            begun = clock.now_ms()
            with pytest.raises(Fail, match="timed out"):
                await kernel.ask("query", "Slow.Wait", {}, timeout=timeout)
            assert clock.now_ms() - begun == expected
        assert kernel.liveness()["inFlight"] == 0


@virtual
async def test_events_and_outcomes_without_a_place_end_quietly(clock: VirtualClock) -> None:
    """Checklist 32, 66: no routing error, no loop of errors."""
    kernel, loop = bare(App("x"), clock)
    await kernel.start()
    probe, seen = Probe(), []
    kernel.observe(lambda passing: seen.append(passing.type))
    kernel.ingest(parse(encoded(message("event", "Nobody.Cares", 1))), probe)
    kernel.ingest(parse(encoded(message("reply", "Memory.Get", 1, causation="x"))), probe)
    kernel.ingest(parse(encoded(message("error", "Memory.Get", {"code": 500, "message": "x"}, causation="x"))), probe)
    assert loop.run_until_idle() == 3
    assert seen == ["Nobody.Cares", "Memory.Get", "Memory.Get"]
    assert probe.answers == []
    assert probe.settled_count == 3
    await kernel.stop()


@virtual
async def test_nothing_to_do_means_no_turns(clock: VirtualClock) -> None:
    """Checklist 34: a far timer and an open request do not make the loop spin."""
    app = App("idle")

    @app.query("Idle.Wait")
    async def wait(data: dict, ctx: Any) -> None:
        await asyncio.Event().wait()

    async with booted(app, clock) as kernel:
        waiting = asyncio.ensure_future(kernel.ask("query", "Idle.Wait", {}, timeout=3600))
        await asyncio.sleep(0.001)
        before = kernel.loop.counters().turns
        await asyncio.sleep(1000)
        assert kernel.loop.counters().turns == before
        assert await kernel.ask("query", "Syscall.Ping", {"payload": 1}) == {"payload": 1}, "and it wakes at once"
        waiting.cancel()


@virtual
async def test_quiescent_only_when_nothing_is_open(clock: VirtualClock) -> None:
    """Checklist 13, 35, 38, 39, 41: requests, events being handled and timers all count."""
    app = App("live")

    @app.command("Live.Wait")
    async def wait(data: dict, ctx: Any) -> None:
        await ctx.sleep(5)

    @app.on("Live.Event")
    async def heard(data: dict, ctx: Any) -> None:
        await ctx.sleep(20)

    async with booted(app, clock) as kernel:
        await kernel.quiescent()
        begun = clock.now_ms()
        asking = asyncio.ensure_future(kernel.ask("command", "Live.Wait", {}))
        await asyncio.sleep(0)
        assert kernel.liveness() == {"inFlight": 1, "events": 0, "timers": 0}
        await kernel.quiescent()
        assert clock.now_ms() - begun == 5000
        await asking
        later = message("event", "Live.Event", {})
        await kernel.ask("command", "Timer.Schedule", {"delay": 10_000, "message": later})
        assert kernel.liveness() == {"inFlight": 0, "events": 0, "timers": 1}
        await kernel.quiescent()
        assert clock.now_ms() - begun == 5000 + 10_000 + 20_000


@virtual
async def test_an_open_input_and_unwritten_answers_keep_it_alive(clock: VirtualClock) -> None:
    """Checklist 37, 40: a connection is closed only when it can bring nothing and owes nothing."""
    async with served(App("x"), clock) as site:
        client = await site.connect()
        client.send(
            {"kind": "query", "type": "Syscall.Ping", "data": {"payload": 1}, "metadata": {"id": "a", "timestamp": 1}}
        )
        assert (await client.line())["data"] == {"payload": 1}
        await asyncio.sleep(10)
        assert not client.reader.at_eof()
        client.writer.write_eof()
        assert await client.to_end() == []


@virtual
async def test_shutdown_ends_everything_in_order(clock: VirtualClock) -> None:
    """Checklist 36, 76: reading stops, open requests get an outcome, actors end, what is written is flushed."""
    app, ended = App("end"), []

    class Ending(Worker):
        def terminate(self) -> None:
            ended.append("terminated")

    app.capability(
        id="Low",
        description="never answers",
        inbound=shape("command", "Low.Do"),
        outbound=shape("reply", "Low.Do"),
        spawn=lambda: Ending(lambda worker, given: None),
    )

    @app.query("Slow.Wait")
    async def wait(data: dict, ctx: Any) -> str:
        await ctx.sleep(1)
        return "done"

    async with served(app, clock) as site:
        client = await site.connect()
        client.send(command("Low.Do", {}, id="never"), message("query", "Slow.Wait", {}, id="soon"))
        await client.fence()
        await site.server.quiesce()
        client.send(command("Low.Do", {}, id="too late"))
        assert not await site.kernel.drain(3_000)
        await site.server.stop()
        lines = await client.to_end()
        await site.kernel.stop()
    assert [(line["metadata"]["causation"], line["type"]) for line in lines] == [
        ("soon", "Slow.Wait"),
        ("never", "Sys.ShuttingDown"),
    ]
    assert lines[1]["data"]["code"] == 503
    assert ended == ["terminated"]


@virtual
async def test_new_requests_are_refused_while_the_kernel_drains(clock: VirtualClock) -> None:
    """Checklist 36, 76."""
    app = App("drain")

    @app.query("Slow.Wait")
    async def wait(data: dict, ctx: Any) -> dict:
        await ctx.sleep(1)
        return await ctx.send("query", "Syscall.Ping", {"payload": "inside"})

    async with served(app, clock) as site:
        client = await site.connect()
        client.send(message("query", "Slow.Wait", {}, id="open"))
        await client.fence()
        draining = asyncio.ensure_future(site.kernel.drain(5_000))
        await asyncio.sleep(0)
        client.send(message("query", "Syscall.Ping", {"payload": 1}, id="new"))
        assert (await client.answer("new"))["data"]["code"] == 503
        assert (await client.answer("open"))["data"] == {"payload": "inside"}, "what handlers ask meanwhile is answered"
        assert await draining


@virtual
async def test_a_kernel_that_is_gone_is_collected(clock: VirtualClock) -> None:
    async with booted(App("x"), clock) as kernel:
        await kernel.ask("query", "Syscall.Ping", {"payload": 1})
        gone = weakref.ref(kernel)
    del kernel
    for _ in range(3):
        await asyncio.sleep(0)
    gc.collect()
    assert gone() is None


@virtual
async def test_a_turn_is_made_at_once_only_when_nothing_waits(clock: VirtualClock) -> None:
    """Checklist 9, 18: an offer overtakes nothing, and what it raises is reported like any other turn's."""
    failed: list[str] = []
    loop, order = Loop(clock, on_error=lambda turn: failed.append(str(turn.error))), []
    loop.offer(order.append, "nobody drives it yet")
    assert order == []
    with loop.hosted():
        loop.offer(order.append, "behind")
        await asyncio.sleep(0.01)
        assert order == ["nobody drives it yet", "behind"]

        def turn(_: None) -> None:
            order.append("turn")
            loop.offer(order.append, "offered inside")
            order.append("end of turn")

        loop.offer(turn, None)
        assert order[2:] == ["turn", "end of turn"], "made at once; what it offers waits"
        loop.offer(order.append, "last")
        assert order[4:] == []
        await asyncio.sleep(0.01)
        assert order[4:] == ["offered inside", "last"]
        made = loop.counters().turns
        loop.offer(lambda _: 1 / 0, None)
        assert failed == ["division by zero"]
        assert loop.counters().turns == made + 1
