"""Nodes that die, or stop, at a write of the test's choice: `victim.py ADDRESS SIGNAL STEP...`.

For each step a child is made that commits twice, and during the second commit sends itself the signal before the write
of that name. Lines on standard output: `pid STEP PID`, `acked STEP` when the second commit was acknowledged, `over
STEP` when the child is gone.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from mainspring.log import Append, Batch, Delete, Put, Receipt, Remove
from mainspring.log.engines.postgres import PostgresEngine


def first(name: str) -> Batch:
    batch = Batch([Append(name, 0, f"{name}-{n}", n, b"1") for n in (1, 2, 3)])
    batch.operations += [Put("s", name, b"1"), Put("s", f"{name}-old", b"1")]
    return batch


def second(name: str) -> Batch:
    return Batch(
        [
            Append(name, 0, f"{name}-4", 4, b"4", dedupe=f"{name}-d", dedupe_until=1 << 40),
            Append(name, 0, f"{name}-5", 5, b"5"),
            Put("s", name, b"2"),
            Delete("s", f"{name}-old"),
            Remove(name, 0, below=2, offsets=(3,)),
        ]
    )


async def live(address: str, number: int, name: str) -> None:
    armed = False

    def step(write: str) -> None:
        nonlocal armed
        if armed and write == name:
            armed = False
            os.kill(os.getpid(), number)

    engine = PostgresEngine(address, step=step)
    await engine.open()
    (result,) = await engine.commit([first(name)])
    assert isinstance(result, Receipt), result
    armed = True
    (result,) = await engine.commit([second(name)])
    assert isinstance(result, Receipt), result
    os.write(1, f"acked {name}\n".encode())
    await engine.close()


def main(address: str, number: int, steps: list[str]) -> None:
    for name in steps:
        child = os.fork()
        if child == 0:
            asyncio.run(live(address, number, name))
            os._exit(0)
        os.write(1, f"pid {name} {child}\n".encode())
        os.waitpid(child, 0)
        os.write(1, f"over {name}\n".encode())


if __name__ == "__main__":
    main(sys.argv[1], signal.Signals[sys.argv[2]], sys.argv[3:])
