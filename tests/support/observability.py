"""A recorder of spans, a listener to log lines, and a node with every socket, in this process."""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from mainspring import App
from mainspring.node import Node
from mainspring.settings import Settings
from mainspring.telemetry import JsonLines, WithMessage, tracing
from tests.support.observed_shop import make_shop


class Spans:
    """What was recorded, by name."""

    def __init__(self, exporter: InMemorySpanExporter) -> None:
        self._exporter = exporter

    def all(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.all() if span.name == name]

    def __getitem__(self, name: str) -> ReadableSpan:
        found = self.named(name)
        assert len(found) == 1, f"{len(found)} spans are called {name!r}; there are {[s.name for s in self.all()]}"
        return found[0]

    def parent_of(self, name: str) -> str | None:
        """The name of the span above this one; a remote parent that was not recorded here is its id in hexadecimal."""
        parent = self[name].parent
        if parent is None:
            return None
        above = [
            span.name for span in self.all() if span.context is not None and span.context.span_id == parent.span_id
        ]
        return above[0] if above else f"{parent.span_id:016x}"

    def trace_of(self, name: str) -> str:
        context = self[name].context
        assert context is not None
        return f"{context.trace_id:032x}"


@pytest.fixture
def spans() -> Iterator[Spans]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing.switch_on(provider)
    yield Spans(exporter)
    tracing.switch_off()


class Lines(logging.Handler):
    """Log lines as a node writes them."""

    def __init__(self) -> None:
        super().__init__()
        self.addFilter(WithMessage())
        self.setFormatter(JsonLines())
        self.written: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.written.append(json.loads(self.format(record)))

    def __getitem__(self, message: str) -> dict[str, Any]:
        found = [line for line in self.written if line["message"] == message]
        assert len(found) == 1, f"{len(found)} lines say {message!r}; there are {[x['message'] for x in self.written]}"
        return found[0]


@pytest.fixture
def lines() -> Iterator[Lines]:
    listener, shop = Lines(), logging.getLogger("shop")
    shop.addHandler(listener)
    shop.setLevel(logging.INFO)
    yield listener
    shop.removeHandler(listener)


class Running:
    """A node with every socket, and an HTTP client."""

    def __init__(self, node: Node, address: str, session: ClientSession) -> None:
        self.node = node
        self.address = address
        self.session = session

    async def get(self, path: str, **options: Any) -> tuple[int, str]:
        async with self.session.get(self.address + path, **options) as answer:
            return answer.status, await answer.text()

    async def post(self, path: str, body: Any, **options: Any) -> tuple[int, Any]:
        async with self.session.post(self.address + path, json=body, **options) as answer:
            return answer.status, await answer.json(content_type=None)

    async def command(self, type: str, data: Any, **options: Any) -> tuple[int, Any]:
        return await self.post("/messages", {"kind": "command", "type": type, "data": data}, **options)


@asynccontextmanager
async def serve(folder: Path, app: App | None = None, **settings: Any) -> AsyncIterator[Running]:
    """A node with the shop, or with another program, ended when the block ends."""
    with tempfile.TemporaryDirectory(prefix="ms-") as sockets:
        node = Node(
            Settings(
                port=0,
                data=str(folder / "data"),
                kernel_socket=f"{sockets}/k.sock",
                loop_socket=f"{sockets}/l.sock",
                metrics_interval_ms=0,
                **settings,
            ),
            app or make_shop(),
        )
        boot = await node.boot()
        (address,) = [each for each in boot.data["adapters"] if each.startswith("http")]
        try:
            async with ClientSession() as session:
                yield Running(node, address, session)
        finally:
            if not node.draining:
                await node.drain()


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    async with serve(tmp_path) as node:
        yield node
