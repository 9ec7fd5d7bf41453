"""Whoever writes a log line while a message is handled, the line says which message and which conversation."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
from pathlib import Path
from typing import Any

from mainspring.beats import Heartbeat
from mainspring.cli.support.messages import Wire
from mainspring.client import Event as ClientEvent
from mainspring.client import connect
from mainspring.runs import Effect, Runtime
from mainspring.telemetry import TextLines, WithMessage, handling
from mainspring.testing import simulate
from mainspring.testing.world import World
from tests.support.observability import Lines, Running, Spans
from tests.support.observed_shop import make_shop
from tests.support.serving import serving


async def converse(world: World, commands: dict[str, tuple[str, Any]]) -> None:
    """Send commands at once, each in a conversation of its own."""

    async def ask() -> None:
        kernel = world.node.kernel
        await asyncio.gather(
            *(kernel.ask("command", type, data, correlation=name) for name, (type, data) in commands.items())
        )

    world._run(ask())
    await world.settle()


async def test_every_handler_on_the_way_of_one_command_names_its_message_and_the_conversation(lines: Lines) -> None:
    async with simulate(make_shop()) as world:
        await converse(world, {"c-1": ("Order.Place", {"cents": 5})})
        await world.advance("1m")
        order, parcel = world.events("orders")[0], world.events("parcels")[0]
        run = world.runs()[0].id
        by_type = {(message.kind, message.type): message.id for message in world.messages}
    assert lines["place"]["message_id"] == by_type["command", "Order.Place"]
    assert lines["count"]["message_id"] == by_type["query", "Stock.Count"]
    assert lines["hear"]["message_id"] == by_type["event", "Order.Placed"]
    assert lines["bill"]["message_id"] == order.id
    assert lines["checkout"]["message_id"] == lines["checked out"]["message_id"] == run
    assert lines["charge"]["message_id"] == f"{run}#00000000"
    assert lines["weigh"]["message_id"] == f"{run}#00000001"
    assert lines["pack"]["message_id"] == lines["ship"]["message_id"] == parcel.id
    assert {line["correlation"] for line in lines.written} == {"c-1"}
    assert parcel.headers["x-correlation"] == "c-1"


async def test_a_run_that_goes_on_after_a_crash_still_belongs_to_its_conversation(lines: Lines) -> None:
    async with simulate(make_shop()) as world:
        await converse(world, {"c-1": ("Order.Place", {"cents": 5})})
        await world.crash_and_restart()
        await world.advance("1m")
    assert lines["checked out"]["correlation"] == "c-1"
    assert lines["ship"]["correlation"] == "c-1"


async def test_tasks_and_schedules_name_their_events(lines: Lines) -> None:
    async with simulate(make_shop()) as world:
        await converse(world, {"c-2": ("Mail.Write", {"to": "ada"})})
        await world.advance("61m")
        (task,) = world.events("tasks.shop.post")
        (firing,) = world.events("schedules.shop.sweep")
    assert (lines["post"]["message_id"], lines["post"]["correlation"]) == (task.id, "c-2")
    assert lines["sweep"]["message_id"] == firing.id
    assert "correlation" not in lines["sweep"]


async def test_a_signal_acts_in_the_name_of_the_message_that_sent_it(lines: Lines) -> None:
    async with simulate(make_shop()) as world:
        await converse(world, {"c-3": ("Beat.Signal", {"signal": "/signals/packed"})})
        await world.advance("1m")
        (sent,) = [
            message.id for message in world.messages if message.type == "Beat.Signal" and message.kind != "reply"
        ]
    assert (lines["ship"]["message_id"], lines["ship"]["correlation"]) == (sent, "c-3")


async def test_nobody_speaks_in_the_name_of_another(lines: Lines) -> None:
    """Two conversations at once, through one loop, one log and one beat."""
    async with simulate(make_shop()) as world:
        await converse(world, {"c-1": ("Order.Place", {"cents": 5}), "c-2": ("Order.Place", {"cents": 7})})
        await world.advance("1m")
        conversations = {run.id: {5: "c-1", 7: "c-2"}[run.value] for run in world.runs()}
    said = [line for line in lines.written if line["message"] in ("checkout", "charge", "weigh", "checked out")]
    assert len(said) == 8
    assert all(line["correlation"] == conversations[line["message_id"].partition("#")[0]] for line in said)
    assert sorted(line["correlation"] for line in lines.written if line["message"] == "pack") == ["c-1", "c-2"]
    assert handling.get() is None


async def test_a_run_without_a_journal_speaks_for_the_message_that_started_it(lines: Lines) -> None:
    class Ask(Effect[int]):
        pass

    logger = logging.getLogger("shop")

    async def answer(effect: Ask) -> int:
        logger.info("answer")
        return 1

    async def program(perform: object) -> None:
        logger.info("begin")
        await perform(Ask())  # type: ignore[operator]

    runtime = Runtime()
    runtime.handle(Ask, answer)
    token = handling.set(("m-1", "c-1"))
    run = runtime.start(program)
    handling.reset(token)
    await run.outcome()
    assert lines["begin"]["message_id"] == run.id
    assert lines["answer"]["message_id"].startswith(f"{run.id}#")
    assert lines["begin"]["correlation"] == lines["answer"]["correlation"] == "c-1"


async def test_a_failing_actor_is_reported_with_the_request_it_failed_on(running: Running) -> None:
    listener = Lines()
    logging.getLogger("mainspring.kernel").addHandler(listener)
    try:
        status, problem = await running.post(
            "/messages", {"kind": "query", "type": "Stock.Count", "data": {"cents": 13}}
        )
    finally:
        logging.getLogger("mainspring.kernel").removeHandler(listener)
    assert status == 500
    (line,) = [line for line in listener.written if "exception" in line]
    assert line["message_id"] == problem["error"]["metadata"]["causation"]


async def test_where_spans_are_recorded_json_lines_name_them(lines: Lines, spans: Spans) -> None:
    async with simulate(make_shop()) as world:
        await world.command("Order.Place", {"cents": 5})
        await world.advance("1m")
    for message, span in (("place", "command Order.Place"), ("bill", "process orders"), ("charge", "effect Charge")):
        context = spans[span].context
        assert context is not None
        assert lines[message]["trace_id"] == f"{context.trace_id:032x}"
        assert lines[message]["span_id"] == f"{context.span_id:016x}"


def test_readable_lines_end_with_message_and_conversation() -> None:
    record = logging.LogRecord("shop", logging.INFO, "", 0, "charge %d", (5,), None)
    token = handling.set(("run-1#00000000", "c-1"))
    WithMessage().filter(record)
    handling.reset(token)
    assert TextLines().format(record).endswith("INFO    shop: charge 5 [run-1#00000000 of c-1]")


ISOLATED = """
import logging
from mainspring import App

app = App("apart")
logger = logging.getLogger("apart")

@app.command("Work.Do", isolation="process")
async def do(data: dict, ctx) -> dict:
    logger.info("doing")
    return {}
"""


def test_a_handler_in_a_process_of_its_own_writes_the_same_lines(tmp_path: Path) -> None:
    (tmp_path / "apart.py").write_text(ISOLATED)
    with serving(tmp_path, "apart:app", "--log-format", "json") as node:
        with Wire(node.kernel_socket) as wire:
            wire.ask("command", "Work.Do", {}, id="m-1", correlation="c-1")
        node.signal(signal.SIGTERM)
        assert node.wait() == 0
        lines = [json.loads(line) for line in node.errors().splitlines()]
    (line,) = [line for line in lines if line["message"] == "doing"]
    assert (line["logger"], line["message_id"], line["correlation"]) == ("apart", "m-1", "c-1")


def test_enzymes_in_threads_speak_for_the_message_too(lines: Lines) -> None:
    heartbeat = Heartbeat(parallel="threads", workers=2)
    logger = logging.getLogger("shop")
    for name in ("left", "right"):
        heartbeat.register(name, "/signals/go", lambda signal, target, stage, name=name: logger.info(name))
    token = handling.set(("m-1", "c-1"))
    heartbeat.signal("/signals/go")
    handling.reset(token)
    heartbeat.beat()
    heartbeat.close()
    assert lines["left"]["message_id"] == lines["right"]["message_id"] == "m-1"
    assert lines["left"]["correlation"] == "c-1"


async def test_a_consumer_in_another_process_names_its_events(running: Running, lines: Lines) -> None:
    """The client's side; its lines carry ids where its program writes them with this package's formatters."""
    logger = logging.getLogger("shop")
    done = asyncio.Event()

    async def handle(event: ClientEvent[Any]) -> None:
        logger.info("far away")
        done.set()

    async with connect(running.address.replace("http", "ws")) as bus:
        consumer = bus.consume("notes", handle, group="readers")
        published = await bus.publish("notes", 1, headers={"x-correlation": "c-9"})
        async with asyncio.timeout(20):
            await done.wait()
        await consumer.stop()
    assert lines["far away"]["message_id"] == published.id
    assert lines["far away"]["correlation"] == "c-9"
