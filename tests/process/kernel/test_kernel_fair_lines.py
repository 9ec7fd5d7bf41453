"""However much one client sends, and whatever it is, the others have their turns."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from mainspring import App
from mainspring.loop import VirtualClock
from mainspring.server.ndjson import NdjsonServer
from tests.support.kernel import LOOPS, Client, command, encoded, ping, served, virtual

PATIENCE_S = 60

FLOODS = {
    "nonsense": b"{\n" * 50_000,
    "no messages": b"{}\n" * 30_000,
    "nobody handles it": encoded(command("No.Such", {})) * 1_000,
    "messages": b"".join(encoded(ping(number)) for number in range(1_000)),
}

# A process of its own, because it must be as quick as the kernel: sends the same lines again and again, and reads.
FLOODER = """
import select, socket, sys
sock = socket.socket(socket.AF_UNIX)
sock.connect(sys.argv[1])
sock.setblocking(False)
lines = open(sys.argv[2], "rb").read()
left = lines
while True:
    readable, writable, _ = select.select([sock], [sock], [])
    try:
        if readable and not sock.recv(1 << 20):
            break
        if writable:
            left = left[sock.send(left) :] or lines
    except BlockingIOError:
        pass
"""


@pytest.mark.parametrize("host", LOOPS)
@pytest.mark.parametrize("flood", FLOODS)
def test_a_flood_of_lines_starves_nobody(flood: str, host: str, tmp_path: Path) -> None:
    """What is no message is answered before anybody's messages, but not instead of them."""

    async def talk() -> None:
        kernel = App("x").kernel()
        await kernel.start()
        server = NdjsonServer(kernel, tmp_path / "k.sock")
        await server.start()
        (tmp_path / "lines").write_bytes(FLOODS[flood])
        loud = await asyncio.create_subprocess_exec(
            sys.executable, "-S", "-c", FLOODER, str(server.path), str(tmp_path / "lines")
        )
        try:
            async with asyncio.timeout(PATIENCE_S):
                quiet = Client(*await asyncio.open_unix_connection(str(server.path)))
                while kernel.loop.counters().turns < 20_000:
                    assert (await quiet.call(ping("meanwhile")))["data"] == {"payload": "meanwhile"}
                for number in range(20):
                    assert (await quiet.call(ping(number)))["data"] == {"payload": number}
                await quiet.close()
        finally:
            loud.kill()
            await loud.wait()
            await server.stop()
            await kernel.stop()

    with asyncio.Runner(loop_factory=LOOPS[host]) as runner:
        runner.run(talk())


@virtual
async def test_lines_of_one_client_keep_their_order_across_its_turns(clock: VirtualClock) -> None:
    async with served(App("x"), clock) as site:
        clients = [await site.connect() for _ in range(3)]
        for client in clients:
            client.send(*(ping(number, id=f"p{number}") for number in range(1_000)))
        for client in clients:
            seen = [(await client.line())["metadata"]["causation"] for _ in range(1_000)]
            assert seen == [f"p{number}" for number in range(1_000)]


@virtual
async def test_lines_that_had_no_turn_yet_when_the_node_ends_are_answered_too(clock: VirtualClock) -> None:
    async with served(App("x"), clock) as site:
        client = await site.connect()
        await client.call(ping("connected"))
        site.kernel.loop.max_turns_per_slice = 16
        begun = asyncio.Event()
        site.kernel.observe(lambda seen: begun.set())
        client.send(*(ping(number) for number in range(1_000)))  # few enough to arrive in one piece
        await begun.wait()
        await site.server.quiesce()
        await site.kernel.drain(1_000)
        await site.server.stop()
        answers = await client.to_end()
        assert len({answer["metadata"]["causation"] for answer in answers}) == len(answers) == 1_000
