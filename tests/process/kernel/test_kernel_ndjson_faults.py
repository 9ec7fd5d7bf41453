"""A fault is on its way to whoever asked before the messages behind it have had their turns."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from pathlib import Path
from typing import Any

import pytest

from mainspring import App
from mainspring.server.ndjson import NdjsonServer
from tests.support.kernel import LOOPS, command, encoded

NOISE = 300


def noisy() -> App:
    app = App("noisy")

    @app.command("Flood.Crash")
    async def crash(data: dict, ctx: Any) -> None:
        for number in range(NOISE):
            ctx.emit("Flood.Noise", number)
        raise RuntimeError("boom")

    return app


@pytest.mark.parametrize("host", LOOPS)
def test_a_crash_reaches_its_client_before_the_flood_it_left_behind_is_through(host: str, tmp_path: Path) -> None:
    """The answer can be read while the rest of the flood still waits for its turns, whatever hosts the loop."""
    arrived: list[tuple[int, Any]] = []  # which event of the flood had its turn when the answer could be read

    async def watch() -> None:
        kernel = noisy().kernel()
        await kernel.start()
        server = NdjsonServer(kernel, tmp_path / "k.sock")
        await server.start()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.connect(str(server.path))
            client.setblocking(False)
            turns = 0
            over = asyncio.get_running_loop().create_future()

            def look(passing: Any) -> None:
                nonlocal turns
                if passing.type == "Flood.Noise":
                    turns += 1
                    with contextlib.suppress(BlockingIOError):
                        arrived.append((turns, json.loads(client.recv(16384))))
                    if turns == NOISE:
                        over.set_result(None)

            kernel.observe(look)
            client.send(encoded(command("Flood.Crash", {}, id="crash")))
            await over
        await server.stop()
        await kernel.stop()

    with asyncio.Runner(loop_factory=LOOPS[host]) as runner:
        runner.run(watch())
    (turn, answer), *others = arrived
    assert (answer["type"], answer["metadata"]["causation"]) == ("Sys.ActorCrash", "crash")
    assert turn <= 2, "at most one event went before it"
    assert others == []
