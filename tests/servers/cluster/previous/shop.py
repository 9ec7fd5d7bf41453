"""The program whose log `log.jsonl` is, written by the version before nodes could share a log, and ended by kill -9."""

from __future__ import annotations

from typing import Any

from mainspring import App
from mainspring.runs import WaitSignal

app = App("shop")
app.beats_from("orders")


@app.command("Stock.Reserve", durable=True)
async def reserve(data: dict[str, Any], ctx: Any) -> dict[str, Any]:
    await ctx.sleep(data.get("slow", 0) / 1000)
    return {"reserved": data["sku"]}


@app.run
async def checkout(order: str, perform: Any) -> str:
    paid: str = await perform(WaitSignal("paid"))
    return f"{order} {paid}"


@app.enzyme("/topics/orders", match="prefix")
def count(signal: str, target: str, stage: Any) -> None:
    stage.write("/seen" + signal, stage.read(signal)["payload"])
