"""A shop in which things fail, to be looked at: a consumer, a command, effects with attempts, a tree of runs."""

from __future__ import annotations

from typing import Any

from mainspring import App, Event
from mainspring.runs import Effect, WaitSignal

app = App("trouble")


class Charge(Effect[str]):
    """Take money."""

    card: str


def reach_the_bank(card: str) -> str:
    if card == "good":
        return "receipt"
    raise ConnectionError(f"the bank does not know {card}")


@app.consumer("orders", max_attempts=2, backoff="1ms")
async def bill(event: Event[Any]) -> None:
    reach_the_bank(event.payload["card"])


@app.command("Label.Print")
async def label(data: dict[str, Any], ctx: Any) -> None:
    reach_the_bank("printer")


@app.handles(Charge, max_attempts=3, backoff="1ms")
async def charge(effect: Charge) -> str:
    return reach_the_bank(effect.card)


@app.run(name="checkout")
async def checkout(order: dict[str, Any], perform: Any) -> Any:
    await perform(Charge(order["card"]))
    return await perform(WaitSignal("paid", timeout="2h"))


@app.run(name="approval")
async def approval(by: str, perform: Any) -> Any:
    return await perform(WaitSignal("approved"))


@app.run(name="board")
async def board(perform: Any) -> str:
    async with perform.group() as group:
        group.spawn(approval, "ada")
        group.spawn(approval, "grace")
    return "agreed"
