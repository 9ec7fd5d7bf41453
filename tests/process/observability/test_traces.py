"""One trace over all parts: a command, its event, the consumer, the run, its effects, and the beat at the end."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import pytest
from aiohttp import ClientSession

from mainspring import Fail
from mainspring.client import SyncClient, connect
from mainspring.telemetry import tracing
from mainspring.testing import simulate
from tests.support.observability import Running, Spans
from tests.support.observed_shop import make_shop

REMOTE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TRACE, PARENT = REMOTE.split("-")[1:3]


async def test_one_trace_leads_from_a_command_through_every_part_to_the_beat(spans: Spans) -> None:
    async with simulate(make_shop()) as world:
        await world.command("Order.Place", {"cents": 5})
        await world.advance("1m")
    above = {
        "command Order.Place": None,
        "query Stock.Count": "command Order.Place",
        "event Order.Placed": "command Order.Place",
        "publish orders": "command Order.Place",
        "process orders": "publish orders",
        "publish bills": "process orders",
        "run checkout": "process orders",
        "effect Charge": "run checkout",
        "effect Weigh": "run checkout",
        "effect Sleep": "run checkout",
        "effect Publish": "run checkout",
        "publish parcels": "effect Publish",
        "enzyme pack": "beat main",
    }
    assert {name: spans.parent_of(name) for name in above if name != "enzyme pack"} == {
        name: parent for name, parent in above.items() if name != "enzyme pack"
    }
    (packing, shipping) = [span for span in spans.all() if span.name == "beat main"]
    assert packing.parent is not None
    assert packing.parent.span_id == _span_id(spans["publish parcels"])
    assert spans["enzyme pack"].parent == packing.context
    assert shipping.parent is not None
    assert shipping.parent.span_id == _span_id(spans["enzyme pack"])
    assert spans["enzyme ship"].parent == shipping.context
    trace = spans.trace_of("command Order.Place")
    assert {spans.trace_of(name) for name in above} == {trace}
    assert spans.trace_of("enzyme ship") == trace


def _span_id(span: Any) -> int:
    return int(span.context.span_id)


async def test_names_and_kinds_follow_the_conventions_for_messaging(spans: Spans) -> None:
    async with simulate(make_shop()) as world:
        await world.command("Order.Place", {"cents": 5})
        await world.advance("1m")
        event = world.events("orders")[0]
    published, processed = spans["publish orders"], spans["process orders"]
    assert published.kind.name == "PRODUCER"
    assert processed.kind.name == "CONSUMER"
    assert processed.attributes == {
        "messaging.system": "mainspring",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "orders",
        "messaging.destination.partition.id": "0",
        "messaging.consumer.group.name": "shop.bill",
        "messaging.message.id": event.id,
        "messaging.mainspring.offset": 1,
        "messaging.mainspring.attempt": 1,
    }
    assert [link.context.span_id for link in processed.links] == [_span_id(published)]
    assert event.headers["traceparent"].split("-")[2] == f"{_span_id(published):016x}"
    assert spans["command Order.Place"].kind.name == "SERVER"


async def test_what_goes_wrong_is_marked_where_it_went_wrong(spans: Spans) -> None:
    async with simulate(make_shop()) as world:
        with pytest.raises(Exception, match="an order costs something"):
            await world.command("Order.Place", {"cents": -1})
        await world.publish("orders", {"cents": 0})
        await world.command("Beat.Signal", {"signal": "/signals/drop"})
        await world.advance("1m")
    assert spans["command Order.Place"].status.status_code.name == "ERROR"
    failed = spans["process orders"]
    assert failed.status.description == "ValueError: nothing to pay"
    assert failed.events[0].name == "exception"
    dropped = [span for span in spans.all() if span.name == "enzyme drop"]
    assert dropped[0].status.description == "ValueError: butter fingers"


async def test_a_durable_run_goes_on_in_its_trace_after_a_crash(spans: Spans) -> None:
    async with simulate(make_shop()) as world:
        await world.command("Order.Place", {"cents": 5})
        await world.crash_and_restart()
        await world.advance("1m")
    runs = [span for span in spans.all() if span.name == "run checkout"]
    assert {run.parent.span_id for run in runs if run.parent is not None} == {_span_id(spans["process orders"])}
    assert runs[-1].attributes is not None
    assert runs[-1].attributes["mainspring.run.outcome"] == "value"
    assert spans.trace_of("publish parcels") == spans.trace_of("command Order.Place")


async def test_http_requests_go_on_in_the_trace_they_bring(running: Running, spans: Spans) -> None:
    headers = {"traceparent": REMOTE}
    await running.command("Order.Place", {"cents": 5}, headers=headers)
    await running.post("/topics/notes/events", {"payload": 1}, headers=headers)
    assert spans.trace_of("command Order.Place") == TRACE
    assert spans.parent_of("command Order.Place") == PARENT
    assert spans.parent_of("publish notes") == PARENT
    _, text = await running.get("/topics/notes/events/0/1")
    stored = json.loads(text)
    assert stored["headers"]["traceparent"].startswith(f"00-{TRACE}-")
    published = spans["publish notes"].attributes or {}
    assert published["messaging.message.id"] == stored["id"], "an id that the node has made, too"
    assert published["messaging.destination.partition.id"] == "0"


async def test_ndjson_messages_go_on_in_the_trace_of_their_metadata(running: Running, spans: Spans) -> None:
    reader, writer = await asyncio.open_unix_connection(running.node.ndjson.path)
    metadata = {"id": "m-1", "timestamp": 1, "traceparent": REMOTE}
    message = {"kind": "query", "type": "Stock.Count", "data": {"cents": 1}, "metadata": metadata}
    writer.write(json.dumps(message).encode() + b"\n")
    answer = json.loads(await reader.readline())
    writer.close()
    assert answer["kind"] == "reply"
    assert "traceparent" not in answer["metadata"]
    assert (spans.trace_of("query Stock.Count"), spans.parent_of("query Stock.Count")) == (TRACE, PARENT)


async def test_a_publishers_own_span_stays_the_parent_of_consumers(running: Running, spans: Spans) -> None:
    """Over WebSocket the client's span is in the event's headers; the node's own stands below it."""
    async with ClientSession() as session, session.ws_connect(running.address) as socket:
        frame = {"type": "PUBLISH", "topic": "orders", "payload": {"cents": 5}, "headers": {"traceparent": REMOTE}}
        await socket.send_json(frame)
        assert (await socket.receive_json())["type"] == "PUBLISHED"
    await _until(lambda: any(span.name == "process orders" for span in spans.all()))
    assert spans.parent_of("append orders") == PARENT
    assert spans.parent_of("process orders") == PARENT
    assert spans.trace_of("process orders") == TRACE


async def test_the_client_and_the_node_make_one_trace(
    running: Running, spans: Spans, monkeypatch: pytest.MonkeyPatch
) -> None:
    from opentelemetry import trace

    monkeypatch.setattr(trace, "get_tracer_provider", lambda: _Recording(tracing.recorder))
    async with connect(running.address.replace("http", "ws")) as bus:
        await bus.publish("orders", {"cents": 5})
        await bus.publish_many("notes", [1, 2])
        await bus.query("Syscall.Ping", {"payload": 1})
        with pytest.raises(Fail):
            await bus.command("Order.Place", {"cents": -1})
    await _until(lambda: any(span.name == "process orders" for span in spans.all()))
    assert spans.parent_of("append orders") == "publish orders"
    assert spans.parent_of("process orders") == "publish orders"
    _, text = await running.get("/topics/notes/events/0/2")
    (batch,) = [span for span in spans.all() if span.name == "publish notes"]
    assert f"-{batch.context.trace_id:032x}-" in json.loads(text)["headers"]["traceparent"]
    for name in ("query Syscall.Ping", "command Order.Place"):
        asked, handled = sorted((each for each in spans.all() if each.name == name), key=lambda each: each.kind.name)
        assert (asked.kind.name, handled.kind.name) == ("CLIENT", "SERVER")
        assert handled.parent is not None
        assert handled.parent.span_id == asked.context.span_id
    assert asked.attributes["error.type"] == "Fail"
    assert handled.attributes["error.type"] == "422"
    assert handled.status.description == "422: an order costs something"
    port = int(running.address.rpartition(":")[2])
    (publishing,) = (each for each in spans.all() if each.name == "publish orders")
    for span in (asked, publishing, batch):
        assert (span.attributes["server.address"], span.attributes["server.port"]) == ("127.0.0.1", port)
    assert "server.address" not in handled.attributes


async def test_the_context_of_the_caller_goes_with_everything_it_sends(
    running: Running, spans: Spans, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A blocking client too, with what vendors added to the trace; a batch has a count and no id."""
    from opentelemetry import context, trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    monkeypatch.setattr(trace, "get_tracer_provider", lambda: _Recording(tracing.recorder))
    here = TraceContextTextMapPropagator().extract({"traceparent": REMOTE, "tracestate": "vendor=1"})

    def send() -> None:
        context.attach(here)
        with SyncClient(running.address.replace("http", "ws")) as bus:
            bus.publish("notes", 1)
            bus.publish_many("notes", [2, 3])
            bus.query("Syscall.Ping", {"payload": 1})

    await asyncio.to_thread(send)
    for offset in (1, 2, 3):
        _, text = await running.get(f"/topics/notes/events/0/{offset}")
        headers = json.loads(text)["headers"]
        assert (headers["traceparent"].split("-")[1], headers["tracestate"]) == (TRACE, "vendor=1")
    one, batch = (span for span in spans.all() if span.name == "publish notes")
    assert "messaging.message.id" in one.attributes
    assert "messaging.message.id" not in batch.attributes
    assert batch.attributes["messaging.batch.message_count"] == 2
    asked = [span.context for span in spans.all() if span.name == "query Syscall.Ping"]
    assert len(asked) == 2, "one of the client, one of the node"
    assert {(found.trace_id, found.trace_state.to_header()) for found in asked} == {(int(TRACE, 16), "vendor=1")}


class _Recording:
    """The provider behind the recorder, as the process's own."""

    def __init__(self, recorder: Any) -> None:
        self._recorder = recorder

    def get_tracer(self, *_: Any, **__: Any) -> Any:
        return self._recorder._tracer


async def test_a_node_that_records_nothing_passes_traces_on(running: Running) -> None:
    assert tracing.recorder is None
    await running.command("Order.Place", {"cents": 5}, headers={"traceparent": REMOTE})
    await running.post("/topics/notes/events", {"payload": 1}, headers={"traceparent": REMOTE})
    await running.post("/topics/notes/events", {"payload": 2}, headers={"traceparent": "00-nonsense"})
    for place in ("orders", "notes"):
        _, text = await running.get(f"/topics/{place}/events/0/1")
        assert json.loads(text)["headers"]["traceparent"] == REMOTE
    await running.command(
        "Order.Place", {"cents": 5}, headers={"traceparent": REMOTE, "tracestate": "vendor=1,other=2"}
    )
    _, text = await running.get("/topics/orders/events/0/2")
    assert json.loads(text)["headers"]["tracestate"] == "vendor=1,other=2"
    _, text = await running.get("/topics/notes/events/0/2")
    assert "traceparent" not in json.loads(text).get("headers", {})


async def test_without_an_sdk_nothing_is_recorded_or_imported() -> None:
    script = """
import sys
from mainspring.telemetry import tracing
assert not tracing.switch_on()
assert tracing.recorder is None and tracing.here() is None
import mainspring.node.core
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
"""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", script)
    assert await process.wait() == 0


async def _until(happened: Any) -> None:
    async with asyncio.timeout(20):
        while not happened():  # noqa: ASYNC110 - the exporter has no event to wait for
            await asyncio.sleep(0.01)
