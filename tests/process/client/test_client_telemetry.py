"""Traces: the context travels with the event, and spans say what the conventions want. No SDK is needed here."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from opentelemetry import trace

from mainspring.client import Event, connect
from mainspring.client.connection import find_telemetry
from tests.support.client_node import Node


class Recorded(trace.NonRecordingSpan):
    """A span that remembers."""

    def __init__(self, context: trace.SpanContext, name: str, options: dict[str, Any]) -> None:
        super().__init__(context)
        self.name = name
        self.options = options
        self.ended = 0
        self.status: Any = None

    def end(self, end_time: int | None = None) -> None:
        self.ended += 1

    def set_attribute(self, key: str, value: Any) -> None:
        self.options["attributes"][key] = value

    def set_status(self, status: Any, description: str | None = None) -> None:
        self.status = status


class Recorder(trace.TracerProvider, trace.Tracer):
    """A provider with one tracer: itself."""

    def __init__(self) -> None:
        self.spans: list[Recorded] = []
        self._numbers = itertools.count(1)

    def get_tracer(self, *arguments: Any, **named: Any) -> trace.Tracer:
        return self

    def start_span(self, name: str, context: Any = None, **options: Any) -> Recorded:
        parent = trace.get_current_span(context).get_span_context()
        number = next(self._numbers)
        trace_id = parent.trace_id if parent.is_valid else number << 64
        made = trace.SpanContext(trace_id, number, False, trace.TraceFlags(1))
        span = Recorded(made, name, {**options, "parent": parent})
        self.spans.append(span)
        return span

    @contextmanager
    def start_as_current_span(self, name: str, *arguments: Any, **options: Any) -> Iterator[Recorded]:
        span = self.start_span(name, **options)
        with trace.use_span(span, end_on_exit=True):
            yield span

    def named(self, name: str) -> list[Recorded]:
        return [span for span in self.spans if span.name == name]


async def test_a_consumers_span_continues_the_producers_trace(node: Node, name: str) -> None:
    recorder = Recorder()
    async with connect(node.url, tracer_provider=recorder) as bus:
        await bus.publish(name, 1, key="k")
        async with bus.subscribe(name, group="g") as events:
            event = await events.get(60)
            assert event.headers["traceparent"].startswith("00-")
            await event.ack()
    (produced,), (consumed,) = recorder.named(f"publish {name}"), recorder.named(f"process {name}")
    assert produced.options["kind"] is trace.SpanKind.PRODUCER
    assert consumed.options["kind"] is trace.SpanKind.CONSUMER
    assert consumed.get_span_context().trace_id == produced.get_span_context().trace_id
    assert consumed.options["parent"].span_id == produced.get_span_context().span_id
    assert [link.context.span_id for link in consumed.options["links"]] == [produced.get_span_context().span_id]
    assert (produced.ended, consumed.ended) == (1, 1)
    said = produced.options["attributes"]
    assert said["messaging.system"] == "mainspring"
    assert said["messaging.operation.type"] == "send"
    assert said["messaging.destination.name"] == name
    assert said["messaging.message.id"] == event.id
    assert consumed.options["attributes"]["messaging.operation.type"] == "process"
    assert consumed.options["attributes"]["messaging.consumer.group.name"] == "g"


async def test_a_handler_runs_within_its_events_span_and_a_failure_marks_it(node: Node, name: str) -> None:
    recorder = Recorder()
    current: list[int] = []
    async with connect(node.url, tracer_provider=recorder) as bus:

        async def handle(event: Event[int]) -> None:
            current.append(trace.get_current_span().get_span_context().span_id)
            if event.attempt == 1:
                raise ValueError("boom")
            done.set_result(None)

        import asyncio

        done = asyncio.get_running_loop().create_future()
        consumer = bus.consume(name, handle, group="g", retry_delay=0.0)
        await bus.publish(name, 1)
        await asyncio.wait_for(done, 60)
        await consumer.stop()
    failed, fine = recorder.named(f"process {name}")
    assert current == [failed.get_span_context().span_id, fine.get_span_context().span_id]
    assert failed.status.status_code is trace.StatusCode.ERROR
    assert failed.options["attributes"]["error.type"] == "ValueError"
    assert fine.status is None


async def test_a_refusal_is_one_kind_of_error_whatever_its_reason(node: Node, name: str) -> None:
    recorder = Recorder()
    async with connect(node.url, tracer_provider=recorder) as bus:
        await bus.publish(name, 1)
        async with bus.subscribe(name, group="g") as events:
            await (await events.get(60)).nack(reason="card 4711 has expired")
    (refused,) = recorder.named(f"process {name}")
    assert refused.options["attributes"]["error.type"] == "nack"
    assert refused.status.description == "card 4711 has expired"


async def test_without_an_sdk_nothing_is_added(node: Node, name: str) -> None:
    async with connect(node.url) as bus:
        assert bus.telemetry is None
        await bus.publish(name, 1)
        async with bus.subscribe(name, group="g") as events:
            event = await events.get(60)
            assert dict(event.headers) == {}
            assert event.span is None


def test_without_the_api_there_is_no_telemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    assert find_telemetry(None, lambda: ("", 0)) is None
