"""The simulated network is as unkind as a real one, and no unkinder: what a connection carries stays in order."""

from __future__ import annotations

import asyncio
import random

import pytest

from mainspring.testing.simulation.network import Network
from mainspring.testing.simulation.processes import SimulatedProcess, Timeline


@pytest.mark.parametrize("seed", range(10))
def test_bytes_arrive_in_order_whatever_is_cut_or_stalled_meanwhile(seed: int) -> None:
    chance = random.Random(seed)
    timeline = Timeline(str(seed))
    network = Network(timeline, str(seed))
    here, there = (SimulatedProcess(timeline, network, name, start_ms=1) for name in ("here", "there"))
    sent, arrived = [str(n) for n in range(200)], bytearray()

    class Receiver(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            arrived.extend(data)

    async def send() -> None:
        transport, _ = await here.loop.create_connection(asyncio.Protocol, "there")
        for piece in sent:
            transport.write(piece.encode())
            await asyncio.sleep(chance.uniform(0, 0.05))

    serving = there.spawn(there.loop.create_server(Receiver, "there"))
    timeline.run(serving.done, 1_000)
    sending = here.spawn(send())
    for _ in range(12):
        timeline.after(chance.uniform(0, 5_000), lambda: network.cut("here", "there", chance.uniform(10, 2_000)))
        timeline.after(chance.uniform(0, 5_000), lambda: there.stall(chance.uniform(10, 500)))
    assert timeline.run(sending.done, 60_000)
    timeline.pass_ms(10_000)
    assert arrived.decode() == "".join(sent)
    for process in (here, there):
        process.close()
