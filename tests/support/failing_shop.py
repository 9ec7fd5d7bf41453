"""A shop in which everything goes wrong, until the file that `SHOP_MENDED` names is there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from mainspring import App, Event, Fail, Perform, RestartPolicy

app = App("shop")


def is_mended() -> bool:
    return Path(os.environ["SHOP_MENDED"]).exists()


@app.run
async def checkout(order: int, perform: Perform) -> int:
    if not is_mended():
        raise Fail(402, "the card has expired")
    return order


@app.consumer("orders", group="billing", max_attempts=1)
async def bill(event: Event[Any]) -> None:
    if not is_mended():
        raise ValueError("the ledger is closed")


@app.command("Scale.Weigh", restart=RestartPolicy(max_restarts=0))
async def weigh(data: dict[str, Any], ctx: Any) -> int:
    if not is_mended():
        raise OverflowError("the scale is broken")
    return 1


@app.on("Parcel.Sent")
async def notify(data: dict[str, Any], ctx: Any) -> None:
    if not is_mended():
        raise ConnectionError("the post does not answer")


@app.every("1d")
async def report(event: Event[Any]) -> None:
    if not is_mended():
        raise RuntimeError("no paper")
