"""A program in which everything that can block the loop does so, until the node has said it.

Plain functions run in threads and block nothing; what can block are coroutine functions, runs and enzymes.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

from mainspring import App, Effect, Event

PATIENCE_S = 60.0  # how long to wait for what must come; never a measurement

_reported = threading.Event()


class _Reports(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        if record.stack_info and "blocked the loop" in record.getMessage():
            _reported.set()


logging.getLogger("mainspring.loop").addHandler(_Reports())


def block() -> None:
    """As a handler that calls a blocking library would, but exactly until the watchdog has seen it."""
    _reported.clear()
    assert _reported.wait(PATIENCE_S)


class Refund(Effect[None]):
    pass


app = App("shop")


@app.command("Order.Place")
async def place(data: Any, ctx: Any) -> None:
    block()


@app.query("Order.Count")
async def count(data: Any, ctx: Any) -> int:
    block()
    return 1


@app.on("Order.Placed")
async def hear(data: Any, ctx: Any) -> None:
    block()


@app.command("Order.Tell")
async def tell(data: Any, ctx: Any) -> None:
    ctx.emit("Order.Placed", None)


@app.consumer("orders")
async def bill(event: Event[Any]) -> None:
    block()


@app.task
async def post(letter: str) -> None:
    block()


@app.command("Letter.Post")
async def write(data: Any, ctx: Any) -> None:
    await post.enqueue("hello")


_swept = threading.Event()


@app.every("1s", name="sweep")
async def sweep() -> None:
    if not _swept.is_set():
        _swept.set()
        block()


@app.handles(Refund)
async def refund(effect: Refund) -> None:
    block()


@app.run
async def give_back(perform: Any) -> None:
    await perform(Refund())


@app.run
async def compute(perform: Any) -> None:
    block()


@app.consumer("payments")
async def start(event: Event[Any]) -> None:
    event.start_run({"give_back": give_back, "compute": compute}[event.payload])


@app.enzyme("/topics/parcels", match="prefix")
def pack(signal: str, target: Any, stage: Any) -> None:
    block()


app.beats_from("parcels")
