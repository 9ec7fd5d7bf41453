"""What /metrics says and what its reference page documents."""

from __future__ import annotations

import asyncio
import re

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families as classic

from tests.support.observability import Running
from tests.support.paths import ROOT

PAGE = ROOT / "docs" / "reference" / "metrics.md"


ROW = re.compile(r"^\| `(\w+)` \| (\w+) \| ([\w, ]*) \|", re.MULTILINE)


def documented() -> dict[str, tuple[str, set[str]]]:
    """Kind and labels of each metric the page names."""
    rows = ROW.findall(PAGE.read_text(encoding="utf-8"))
    return {name: (kind, {each.strip() for each in labels.split(",") if each.strip()}) for name, kind, labels in rows}


def shown(family: Metric) -> str:
    return f"{family.name}_total" if family.type == "counter" else family.name


async def metrics(running: Running) -> dict[str, Metric]:
    status, text = await running.get("/metrics")
    assert status == 200
    return {shown(family): family for family in classic(text)}


def value(found: dict[str, Metric], name: str, **labels: str) -> float:
    """The number of the one sample of this name that has these labels."""
    family = found[name]
    suffix = "_count" if family.type == "histogram" else ""
    samples = [
        sample.value
        for sample in family.samples
        if sample.name == name + suffix and labels.items() <= sample.labels.items()
    ]
    assert len(samples) == 1, f"{name} {labels}: {family.samples}"
    return samples[0]


async def busy(running: Running) -> None:
    """Something of everything."""
    await running.command("Order.Place", {"cents": 5})
    await running.command("Order.Place", {"cents": -1})
    await running.command("Order.Place", {"cents": 0})
    await running.post("/messages", {"kind": "query", "type": "Stock.Count", "data": {"cents": 13}})
    await running.command("No.Such", {})
    await running.command("Beat.Signal", {"signal": "/signals/drop"})
    await running.get("/nowhere")
    async with asyncio.timeout(20):
        while running.node.heartbeat.tally.staged == 0:  # noqa: ASYNC110 - the run sleeps for a second
            await asyncio.sleep(0.02)
