"""A node whose log is on a server: what it tells while the server is away, and afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from mainspring import App
from tests.support.metrics import documented, metrics, value
from tests.support.nats_server import NatsServer
from tests.support.observability import Running, Spans, serve


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    nats = NatsServer(tmp_path / "nats").start()
    yield nats
    nats.kill()


async def until(happened: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not happened():  # noqa: ASYNC110 - nobody tells when a server is found again
            await asyncio.sleep(0.05)


async def ready(running: Running) -> bool:
    return (await running.get("/readyz"))[0] == 200


async def test_a_lost_server_makes_the_node_unready_and_a_found_one_is_counted(
    server: NatsServer, tmp_path: Path
) -> None:
    async with serve(tmp_path, engine=server.url("observed", patience=1)) as running:
        found = await metrics(running)
        assert set(documented()) - set(found) <= {"mainspring_log_disk_free_bytes"}
        assert set(found) <= set(documented())
        assert value(found, "mainspring_log_engine_info", engine="nats") == 1
        assert value(found, "mainspring_cluster_nodes") == 1
        assert value(found, "mainspring_log_reconnects_total") == 0
        assert await ready(running)
        server.kill()
        status, _ = await running.post("/topics/notes/events", {"payload": 1})
        assert status == 503
        assert not await ready(running)
        assert (await running.get("/healthz"))[0] == 200
        assert value(await metrics(running), "mainspring_ready") == 0
        server.start()
        await until(lambda: running.node.log.fault is None and not running.node.cluster.trouble)
        assert await ready(running)
        found = await metrics(running)
        assert value(found, "mainspring_log_reconnects_total") >= 1
        assert value(found, "mainspring_log_failed_commits_total") >= 1


async def test_a_request_that_another_node_handles_is_one_trace_and_counted_on_both(
    server: NatsServer, tmp_path: Path, spans: Spans
) -> None:
    engine = server.url("observed", patience=5)
    async with (
        serve(tmp_path / "one", engine=engine) as one,
        serve(tmp_path / "two", App("till"), engine=engine) as two,
    ):
        await until(lambda: len(two.node.cluster.nodes()) == 2)
        await until(lambda: any("query:Stock.Count" in each.serves for each in two.node.cluster.nodes()))
        status, _ = await two.post("/messages", {"kind": "query", "type": "Stock.Count", "data": {"cents": 1}})
        assert status == 200
        forwarded = await metrics(two)
        assert value(forwarded, "mainspring_kernel_forwarded_total", type="Stock.Count", outcome="reply") == 1
        assert value(forwarded, "mainspring_cluster_nodes") == 2
        handled = await metrics(one)
        assert value(handled, "mainspring_kernel_requests_total", type="Stock.Count", outcome="reply") == 1
    outer, inner = sorted(spans.named("query Stock.Count"), key=lambda span: span.start_time or 0)
    assert outer.context is not None
    assert inner.parent is not None
    assert inner.parent.span_id == outer.context.span_id
