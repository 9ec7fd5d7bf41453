"""What the simulator has found, each as the story that shows it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

import pytest

from mainspring import App, Event, Fail, WaitSignal
from mainspring.client import CannotConnect, Client, TimedOut, connect
from mainspring.kernel.errors import refusal as kernel_refusal
from mainspring.log import Delete
from mainspring.node.settlement import LeaseLost
from mainspring.runs import TakenOver
from mainspring.tasks import TaskFailed
from mainspring.testing import simulate
from mainspring.testing.simulation import PlannedStep, Rest, Scenario, operation
from mainspring.testing.simulation.disk import Disk
from mainspring.testing.simulation.runner import ScenarioRun


class Story(Scenario):
    """One node on a disk of its own; what breaks is said by the test."""

    nodes: ClassVar = (1,)
    clients: ClassVar = 1
    kinds: ClassVar = ()
    operations: ClassVar = 1
    sqlite: ClassVar = 0.0
    settings: ClassVar = {"ack_timeout_ms": 2_000}

    def __init__(self) -> None:
        self.seen: list[Any] = []


def told(story: type[Story], prepare: Callable[[ScenarioRun, Disk], None]) -> ScenarioRun:
    """Run it with the faults that `prepare` plans, and with its operation after 100 ms."""
    running = ScenarioRun(story(), 1, None)
    disk = running.system.machines[0].storage
    assert isinstance(disk, Disk)
    prepare(running, disk)
    try:
        running.go()
    finally:
        running.system.close()
    return running


async def test_an_attempt_that_lost_its_lease_does_not_refuse_the_attempt_after_it() -> None:
    """After a stall the same member may have the event again when the former attempt finds that it cannot settle it."""
    app, attempts = App("story"), []

    @app.consumer("work", group="workers", backoff="10ms")
    async def work(event: Event[Any]) -> None:
        attempts.append(event.attempt)
        if event.attempt == 1:
            raise LeaseLost("the event is no longer leased to this consumer")

    async with simulate(app, ack_timeout_ms=60_000) as world:
        await world.publish("work", {})
        await world.advance("50s")
        assert attempts == [1]
        await world.advance("20s")
        assert attempts == [1, 2]


class Counting(Story):
    def program(self) -> App:
        app = App("story")
        app.beats_from("pulses")

        @app.enzyme("/topics/pulses", match="prefix")
        def count(signal: str, target: str, stage: Any) -> None:
            stage.add("/count", 1)

        return app

    @operation
    async def publish(self, client: Client, step: PlannedStep) -> None:
        await client.publish("pulses", {}, id="one")

    async def left_to_do(self, end: Rest) -> str:
        return "" if await end.nodes[0].heartbeat.aread("/count") == 1 else "the pulse was not counted"


def test_beats_go_on_with_a_topic_that_could_not_be_read_for_a_while() -> None:
    def unreadable(running: ScenarioRun, disk: Disk) -> None:
        disk.refuses_reads = lambda: disk.has("failing")
        disk.refuses_commits = lambda: False
        running.system.timeline.after(20, lambda: disk.trouble("failing", 8_000))

    assert not told(Counting, unreadable).ledger.broken


class Asking(Story):
    def program(self) -> App:
        app = App("story")

        @app.query("Stock.Count")
        async def count(data: Any, ctx: Any) -> int:
            self.seen.append("asked")
            await asyncio.sleep(0.5)
            return 3

        return app

    @operation
    async def ask(self, client: Client, step: PlannedStep) -> None:
        try:
            await client.query("Stock.Count", timeout=5)
        except CannotConnect:
            self.seen.append("no answer")


class AskingWithoutLimit(Asking):
    """The node's own timeout counts, and what the node says of it is lost, too."""

    @operation
    async def ask(self, client: Client, step: PlannedStep) -> None:
        try:
            await client.query("Stock.Count")
        except CannotConnect:
            self.seen.append("no answer")


class Changing(Story):
    def program(self) -> App:
        app = App("story")

        @app.run
        async def account(perform: Any) -> None:
            @perform.update
            def book() -> None:
                self.seen.append("asked")

            await perform(WaitSignal("close"))

        return app

    @operation
    async def change(self, client: Client, step: PlannedStep) -> None:
        await client.start_run("account", id="one")
        try:
            await client.update_run("one", "book")
        except CannotConnect:
            self.seen.append("no answer")
        await client.signal("one", "close")


@pytest.mark.parametrize("story", [Asking, AskingWithoutLimit, Changing])
def test_a_question_whose_connection_is_gone_ends_when_nothing_came_for_twice_a_ping(story: type[Story]) -> None:
    def half_open(running: ScenarioRun, disk: Disk) -> None:
        def look() -> None:
            if not running.scenario.seen:  # type: ignore[attr-defined]
                running.system.timeline.after(1, look)
                return
            running.system.network.open[-1].go_silent()

        running.system.timeline.after(1, look)

    running = told(story, half_open)
    assert not running.ledger.broken
    assert running.scenario.seen == ["asked", "no answer"]  # type: ignore[attr-defined]
    assert running.system.timeline.now_ms < 15_000


class Following(Story):
    """The connection is lost while nobody waits for the next event."""

    rest_seconds: ClassVar = 60.0

    def program(self) -> App:
        return App("story")

    @operation
    async def follow(self, client: Client, step: PlannedStep) -> None:
        await client.publish("news", "old")
        async for event in client.follow("news", since="beginning"):
            self.seen.append(event.payload)
            if event.payload == "new":
                return
            await self.go_on(client)

    async def go_on(self, client: Client) -> None:
        await client.publish("news", "new")


class FollowingAndWaiting(Following):
    async def go_on(self, client: Client) -> None:
        self.publishing = asyncio.create_task(super().go_on(client))


@pytest.mark.parametrize("story", [Following, FollowingAndWaiting])
def test_who_follows_a_topic_goes_on_when_the_client_gives_up_a_node_that_says_nothing(story: type[Story]) -> None:
    """Its connections are closed then, also the one on which the next event was to come."""

    def half_open(running: ScenarioRun, disk: Disk) -> None:
        def look() -> None:
            if not running.scenario.seen:  # type: ignore[attr-defined]
                running.system.timeline.after(1, look)
                return
            for end in running.system.network.open:
                end.go_silent()

        running.system.timeline.after(1, look)

    running = told(story, half_open)
    assert not running.ledger.broken
    assert running.scenario.seen == ["old", "new"]  # type: ignore[attr-defined]


async def test_every_verb_about_runs_gives_a_question_up_whose_answer_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where the connection is gone and nobody says so, only a time limit of the client ends the wait."""
    limits: dict[str, Any] = {}

    async def ask(kind: str, type: str, data: Any, timeout: Any, *rest: Any) -> Any:
        limits[type] = timeout
        raise Fail(503, "not now")

    client = connect("ws://127.0.0.1:1")
    monkeypatch.setattr(client, "_ask", ask)
    asked: list[Awaitable[Any]] = [
        client.run_info("one"),
        client.signal("one", "go"),
        client.cancel("one"),
        client.query_run("one", "what"),
        client.update_run("one", "that"),
        client.retry_run("one"),
        client.change_runs("retry", state="failed"),
        anext(client.runs()),
        client.count_runs(),
        client.forget_run("one"),
        client.forget_runs(),
    ]
    for each in asked:
        with pytest.raises(Fail):
            await each
    assert limits
    assert None not in limits.values(), limits


async def test_who_asks_a_run_of_a_node_that_lost_its_lease_may_ask_again() -> None:
    """That is said as what passes by itself, and not as a mistake of the question."""
    assert kernel_refusal(TakenOver("this node lost its lease before the write was stored")).code == 503


class Delayed(Scenario):
    """Three nodes, one of which is an hour behind the others."""

    nodes: ClassVar = (3,)
    clients: ClassVar = 1
    kinds: ClassVar = ()
    operations: ClassVar = 2
    rest_seconds: ClassVar = 30.0

    def program(self) -> App:
        return App("story")

    @operation
    async def publish(self, client: Client, step: PlannedStep) -> None:
        await client.publish("later", {}, id=step.id, delay=0.5)

    async def left_to_do(self, end: Rest) -> str:
        came = await end.events("later")
        return "" if len(came) == self.operations else f"only {came} came"


@pytest.mark.parametrize("behind", [0, 1, 2])
def test_a_delayed_event_waits_for_its_delay_whichever_node_is_behind_the_others(behind: int) -> None:
    """The node that accepts it and the node that publishes it when it is due may have another time of day."""
    running = ScenarioRun(Delayed(), 1, None)
    running.system.machines[behind].set_clock(-3_600_000)
    try:
        running.go()
    finally:
        running.system.close()
    assert not running.ledger.broken


class DelayedAlone(Story):
    rest_seconds: ClassVar = 30.0

    def program(self) -> App:
        return App("story")

    @operation
    async def publish(self, client: Client, step: PlannedStep) -> None:
        await client.publish("later", {}, id="one", delay=3)

    async def left_to_do(self, end: Rest) -> str:
        return "" if len(await end.events("later")) == 1 else "the delayed event has not come"


def test_a_clock_that_is_set_back_while_the_disk_is_full_delays_nothing_for_longer() -> None:
    """What was to be stored about it could not be, and was not tried again."""

    def prepare(running: ScenarioRun, disk: Disk) -> None:
        def strike() -> None:
            running.system.machines[0].set_clock(-3_600_000)
            disk.trouble("full", 4_000)

        running.system.timeline.after(2_000, strike)

    assert not told(DelayedAlone, prepare).ledger.broken


class OnAFailingDisk(Story):
    """Its operation says when the disk fails for a while: no commit succeeds."""

    rest_seconds: ClassVar = 30.0

    def __init__(self) -> None:
        super().__init__()
        self.disk_fails: Callable[[], None] = lambda: None


def on_a_failing_disk(story: type[OnAFailingDisk]) -> list[str]:
    """What was broken."""

    def prepare(running: ScenarioRun, disk: Disk) -> None:
        disk.refuses_commits, disk.refuses_reads = lambda: disk.has("failing"), lambda: False
        running.scenario.disk_fails = lambda: disk.trouble("failing", 1_500)  # type: ignore[attr-defined]

    return told(story, prepare).ledger.broken


class MendingCalls(OnAFailingDisk):
    verb: ClassVar = "retry"

    def program(self) -> App:
        app = App("story")

        @app.task(max_attempts=1)
        async def pack() -> None:
            if not self.seen:
                raise ValueError("there is no string")

        app.state.pack = pack
        return app

    @operation
    async def mend(self, client: Client, step: PlannedStep) -> None:
        app = self.program()
        app.use(client)
        handles = [await app.state.pack.enqueue() for _ in range(2)]
        for handle in handles:
            with pytest.raises(TaskFailed):
                await handle.result(timeout=10)
        self.seen.append("string")
        self.disk_fails()
        change = client.retry_calls if self.verb == "retry" else client.discard_calls
        self.seen.append(await client.insist(lambda: change("pack", ids=[handle.id for handle in handles])))

    async def check(self, end: Rest) -> None:
        states = {call.state for call in (await end.nodes[0].bus.task_calls.calls("pack")).calls}
        end.require(self.seen == ["string", 2], f"of two calls {self.seen[-1]} were changed")
        end.require(states == {"done" if self.verb == "retry" else "discarded"}, f"they are {states}")


class DiscardingCalls(MendingCalls):
    verb: ClassVar = "discard"


@pytest.mark.parametrize("story", [MendingCalls, DiscardingCalls])
def test_calls_that_cannot_be_changed_now_are_not_said_to_be_refused(story: type[OnAFailingDisk]) -> None:
    """A client that was told so went on, and nobody did them any more: only an error makes it ask again."""
    assert not on_a_failing_disk(story)


def reminder(delay_ms: int) -> dict[str, Any]:
    message = {"kind": "command", "type": "Remind.Me", "data": {}, "metadata": {"id": "one", "timestamp": 0}}
    return {"delay": delay_ms, "message": message, "durable": True}


class Reminding(OnAFailingDisk):
    def program(self) -> App:
        app = App("story")

        @app.command("Remind.Me", durable=True)
        async def remind(data: Any, ctx: Any) -> None:
            await ctx.publish("reminded", {})

        return app

    @operation
    async def remind(self, client: Client, step: PlannedStep) -> None:
        await client.command("Timer.Schedule", reminder(500), timeout=10)
        self.disk_fails()

    async def left_to_do(self, end: Rest) -> str:
        timers = (await end.nodes[0].kernel.ask("query", "Timer.List", {}))["timers"]
        came = await end.events("reminded")
        return f"timers {timers}, reminders {came}" if timers or len(came) != 1 else ""

    async def check(self, end: Rest) -> None:
        letters = await end.nodes[0].kernel.dead_messages.page()
        end.require(not letters, f"it is done, and a dead message: {letters}")


def test_a_durable_timer_that_is_due_while_the_disk_fails_is_sent_when_it_does_not() -> None:
    """Its command was not accepted, so nobody had it: it ended as a dead message all the same."""
    assert not on_a_failing_disk(Reminding)


class RemindingWithAnotherClock(Reminding):
    rest_seconds: ClassVar = 30.0


def test_a_clock_that_is_set_back_over_a_restart_delays_a_durable_timer_by_its_own_delay_at_most() -> None:
    """What the new life of the node read was the time of day at which it was due: an hour later than meant."""
    running = ScenarioRun(RemindingWithAnotherClock(), 1, None)
    (machine,) = running.system.machines

    def strike() -> None:
        machine.set_clock(-3_600_000)
        machine.kill(50)

    running.scenario.disk_fails = lambda: running.system.timeline.after(100, strike)  # type: ignore[attr-defined]
    running.go()
    running.system.close()
    assert not running.ledger.broken


class RemindingInVain(Story):
    rest_seconds: ClassVar = 30.0

    def program(self) -> App:
        app = App("story")

        @app.command("Remind.Me")
        async def remind(data: Any, ctx: Any) -> None:
            raise Fail(409, "there is nothing to do")

        return app

    @operation
    async def remind(self, client: Client, step: PlannedStep) -> None:
        await client.command("Timer.Schedule", reminder(500), timeout=10)

    async def left_to_do(self, end: Rest) -> str:
        timers = (await end.nodes[0].kernel.ask("query", "Timer.List", {}))["timers"]
        letters = await end.nodes[0].kernel.dead_messages.page()
        return f"timers {timers}, dead messages {letters}" if timers or len(letters) != 1 else ""


def test_the_message_of_a_durable_timer_is_never_neither_a_timer_nor_a_dead_message() -> None:
    """The node ends as soon as the timer is removed: what was to be written a moment later was lost."""

    def prepare(running: ScenarioRun, disk: Disk) -> None:
        commit = disk.state.commit

        async def commit_and_end(batches: Any) -> Any:
            results = await commit(batches)
            if any(
                isinstance(each, Delete) and each.space == "timers" for batch in batches for each in batch.operations
            ):
                running.system.timeline.after(0, lambda: running.system.machines[0].kill(100))
            return results

        disk.state.commit = commit_and_end  # type: ignore[method-assign]

    running = told(RemindingInVain, prepare)
    assert not running.ledger.broken
    assert running.system.machines[0].lives == 2


class Cancelling(OnAFailingDisk):
    """The disk takes its time for the cancellation, and the timer is due meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.disk_slows: Callable[[], None] = lambda: None
        self.reminders = 0

    def program(self) -> App:
        app = App("story")

        @app.command("Remind.Me")
        async def remind(data: Any, ctx: Any) -> None:
            self.reminders += 1

        return app

    @operation
    async def cancel(self, client: Client, step: PlannedStep) -> None:
        timer = (await client.command("Timer.Schedule", reminder(300), timeout=10))["timerId"]
        self.disk_slows()
        try:
            self.seen.append(await client.command("Timer.Cancel", {"timerId": timer}, timeout=10))
        except Fail as error:
            self.seen.append(error.code)

    async def left_to_do(self, end: Rest) -> str:
        timers = (await end.nodes[0].kernel.ask("query", "Timer.List", {}))["timers"]
        return f"timers {timers}" if timers else ""


@pytest.mark.parametrize(
    ("disk_fails", "answer", "reminders"), [(False, {"cancelled": True}, 0), (True, 503, 1)], ids=["slow", "failing"]
)
def test_a_durable_timer_that_is_due_while_it_is_cancelled_is_sent_or_cancelled(
    disk_fails: bool, answer: Any, reminders: int
) -> None:
    """It was sent, and its cancellation was a success all the same."""

    def prepare(running: ScenarioRun, disk: Disk) -> None:
        def slow() -> None:
            disk.commit_s = lambda: 1.0  # type: ignore[method-assign]
            if disk_fails:
                disk.trouble("full", 1_100)

        running.scenario.disk_slows = slow  # type: ignore[attr-defined]

    running = told(Cancelling, prepare)
    assert not running.ledger.broken
    assert (running.scenario.seen, running.scenario.reminders) == ([answer], reminders)  # type: ignore[attr-defined]


class Requesting(Story):
    """The node is away when the first request is made, and for longer than the client waits for one answer."""

    rest_seconds: ClassVar = 90.0

    def __init__(self) -> None:
        super().__init__()
        self.node_ends: Callable[[], None] = lambda: None

    def program(self) -> App:
        return App("story")

    @operation
    async def ask(self, client: Client, step: PlannedStep) -> None:
        async def answer(event: Any) -> int:
            return int(event.payload) + 1

        client.respond("questions", answer, group="answering", from_="beginning")
        self.node_ends()
        for number, timeout in enumerate((2, 60, 60)):
            try:
                self.seen.append(await client.request("questions", number, timeout=timeout))
            except TimedOut as error:
                self.seen.append(error.remedy)


@pytest.mark.parametrize("silently", [False, True])
def test_a_request_is_tried_until_its_own_timeout_while_the_node_is_away(silently: bool) -> None:
    """It failed at the first connection that could not be made, or after 30 s of silence."""

    def prepare(running: ScenarioRun, disk: Disk) -> None:
        end = running.system.machines[0].kill
        running.scenario.node_ends = lambda: end(40_000, silently=silently)  # type: ignore[attr-defined]

    running = told(Requesting, prepare)
    assert not running.ledger.broken
    assert running.scenario.seen == ["is the node running?", 2, 3]  # type: ignore[attr-defined]
