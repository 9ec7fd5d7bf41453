"""`python -m tests.collector ENVIRONMENT`: build the collector, and compare what it got of a node and of its client.

`ENVIRONMENT` is a virtual environment with Mainspring, `opentelemetry-distro` and the OTLP exporter: node and client
are started with `opentelemetry-instrument`, as a user would. Needs Go.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.support.paths import ROOT

HERE: Final = Path(__file__).parent
BINARY: Final = ROOT / ".cache" / "otelcol-0.152.0"
PATIENCE_S: Final = 60.0
REMOTE: Final = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

PROGRAM: Final = """
from mainspring import App, Event

app = App("shop")

@app.command("Order.Place")
async def place(data: dict, ctx) -> dict:
    await ctx.publish("orders", data)
    return {}

@app.query("Stock.Count")
def count(data: dict, ctx) -> int:
    return 10 // data["n"]

@app.consumer("orders")
def bill(order: Event[dict]) -> None:
    pass
"""

CLIENT: Final = """
import asyncio, sys
from opentelemetry import trace
from mainspring.client import connect

async def main():
    async with connect(sys.argv[1]) as bus:
        with trace.get_tracer("user").start_as_current_span("buy"):
            await bus.command("Order.Place", {"n": 1})
            await bus.query("Stock.Count", {"n": 1})
            await bus.publish_many("parcels", [{"n": 1}, {"n": 2}])
            try:
                await bus.query("Stock.Count", {"n": 0})
            except Exception as error:
                print(type(error).__name__)

asyncio.run(main())
"""

CONFIG: Final = """
receivers:
  otlp:
    protocols:
      http: {{endpoint: "127.0.0.1:{port}"}}
exporters:
  file: {{path: {path}, flush_interval: 100ms}}
service:
  telemetry: {{metrics: {{level: none}}, logs: {{level: error}}}}
  pipelines:
    traces: {{receivers: [otlp], exporters: [file]}}
"""


def built() -> Path:
    """The collector, built once."""
    if not BINARY.exists():
        print("building an OpenTelemetry collector (once, some minutes)", flush=True)
        with tempfile.TemporaryDirectory(prefix="ms-otelcol-") as name:
            folder = Path(name)
            for file in ("go.mod", "main.go"):
                shutil.copy(HERE / file, folder)
            command = ["go", "build", "-mod=mod", "-ldflags=-s -w", "-o", str(folder / "otelcol"), "."]
            subprocess.run(command, cwd=folder, env={**os.environ, "CGO_ENABLED": "0"}, check=True)
            BINARY.parent.mkdir(exist_ok=True)
            shutil.copy(folder / "otelcol", BINARY)
    return BINARY


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def process(command: Sequence[str], folder: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process, asked to stop at the end. What it writes to standard error is seen."""
    started = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL)
    try:
        yield started
    finally:
        started.send_signal(signal.SIGTERM)
        started.wait(PATIENCE_S)


def wait_for(condition: Callable[[], bool], started: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        if started.poll() is not None or time.monotonic() > end:
            sys.exit(f"{started.args!r} did not start")
        time.sleep(0.05)


def answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def recorded(environment: Path, folder: Path) -> list[dict[str, Any]]:
    """The spans that the collector wrote, each with the `service` that sent it."""
    otlp, port, spans = free_port(), free_port(), folder / "spans.jsonl"
    (folder / "config.yaml").write_text(CONFIG.format(port=otlp, path=spans))
    (folder / "shop.py").write_text(PROGRAM)
    (folder / "client.py").write_text(CLIENT)
    instrument = [str(environment / "bin" / "opentelemetry-instrument"), "--metrics_exporter", "none"]
    own = {
        **os.environ,
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{otlp}",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_LOGS_EXPORTER": "none",
        "PATH": f"{environment / 'bin'}:{os.environ['PATH']}",
    }
    with process([str(built()), "--config", "file:config.yaml"], folder, own) as collector:
        wait_for(lambda: answers(otlp), collector)
        node = [*instrument, "mainspring", "serve", "shop:app", "--port", str(port), "--data", str(folder / "data")]
        with process(node, folder, {**own, "OTEL_SERVICE_NAME": "shop"}) as served:
            wait_for(lambda: answers(port), served)
            client = [*instrument, "python", "client.py", f"ws://127.0.0.1:{port}"]
            subprocess.run(client, cwd=folder, env={**own, "OTEL_SERVICE_NAME": "till"}, check=True)
            message = '{"kind":"query","type":"Stock.Count","data":{"n":1}}'
            headers = [
                "-H",
                f"traceparent: {REMOTE}",
                "-H",
                "tracestate: vendor=kept",
                "-H",
                "content-type: application/json",
            ]
            address = f"http://127.0.0.1:{port}/messages"
            subprocess.run(["curl", "-sfo", os.devnull, *headers, "-d", message, address], check=True)
    return [
        {"service": _attributes(part["resource"])["service.name"], **span, "attributes": _attributes(span)}
        for line in spans.read_text().splitlines()
        for part in json.loads(line)["resourceSpans"]
        for scope in part["scopeSpans"]
        for span in scope["spans"]
    ]


def _attributes(part: dict[str, Any]) -> dict[str, Any]:
    return {each["key"]: next(iter(each["value"].values())) for each in part.get("attributes", [])}


def compare(spans: list[dict[str, Any]]) -> None:
    """One trace for client and node, by parents; failed spans have an `error.type`; `tracestate` is kept."""
    by_id = {span["spanId"]: span for span in spans}
    (root,) = [span for span in spans if span["name"] == "buy"]
    mine = [span for span in spans if span["traceId"] == root["traceId"]]

    def path(span: dict[str, Any]) -> list[str]:
        above = by_id.get(span.get("parentSpanId", ""))
        return [*(path(above) if above else []), f"{span['service']}: {span['name']}"]

    paths = sorted(" > ".join(path(span)) for span in mine)
    print("\n".join(paths))
    assert all(each.startswith("till: buy") for each in paths), "every span of the trace is below the client's own"
    for end in ("shop: command Order.Place", "shop: process orders", "shop: query Stock.Count"):
        assert any(each.endswith(end) for each in paths), f"the trace has no {end!r}"
    assert any("parcels" in each for each in paths), "the trace has no publish_many"
    failed = [span for span in mine if span.get("status", {}).get("code") == 2]
    assert failed, "the query that failed has no failed span"
    for span in failed:
        assert span["attributes"].get("error.type"), f"{span['name']} failed without an error.type"
    (remote,) = [span for span in spans if span["traceId"] == REMOTE.split("-")[1]]
    assert remote["parentSpanId"] == REMOTE.split("-")[2]
    assert remote["traceState"] == "vendor=kept", f"tracestate is {remote.get('traceState')!r}"


def main(environment: str) -> None:
    if not shutil.which("go") and not BINARY.exists():
        sys.exit("the collector is built with Go, which is not installed")
    with tempfile.TemporaryDirectory(prefix="ms-") as name:
        spans = recorded(Path(environment).absolute(), Path(name))
    compare(spans)
    services = {span["service"] for span in spans}
    print(f"the collector got {len(spans)} spans of {len(services)} services: all as documented")


if __name__ == "__main__":
    main(sys.argv[1])
