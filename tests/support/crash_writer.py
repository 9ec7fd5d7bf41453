"""The victim of the crash test: publishes as fast as it can and says what was acknowledged, until it is killed.

Each line on standard output is part of a receipt, written after the commit:
`event topic partition offset id crc-of-payload`, or `record key version value`.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import zlib

from mainspring.log import Append, Batch, Log, Put, Receipt, Remove, SqliteEngine


async def main(path: str, seed: int) -> None:
    dice = random.Random(seed)
    log = Log(SqliteEngine(path))
    await log.open()
    print("ready", flush=True)
    number = 0

    def one() -> tuple[Batch, list[str]]:
        nonlocal number
        batch = Batch()
        lines = []
        for _ in range(dice.choice([1, 1, 1, 3, 64])):
            number += 1
            payload = b'"%s"' % (b"%d" % number * dice.randrange(1, 400))
            id = f"{seed}-{number}"
            dedupe = id if dice.random() < 0.2 else None
            batch.append(Append(f"t{number % 3}", number % 2, id, number, payload, dedupe=dedupe, dedupe_until=1 << 40))
            lines.append(f"{id} {zlib.crc32(payload)}")
        batch.put("s", f"{seed}-{number}", b"%d" % number)
        if dice.random() < 0.02:
            batch.operations.append(Remove("t0", 0, below=dice.randrange(1, 40)))
        return batch, lines

    def acknowledge(batch: Batch, lines: list[str], result: Receipt) -> None:
        events = [operation for operation in batch.operations if isinstance(operation, Append)]
        text = "".join(
            f"event {event.topic} {partition} {offset} {line}\n"
            for event, (partition, offset, _), line in zip(events, result.offsets, lines, strict=True)
        )
        put = next(operation for operation in batch.operations if isinstance(operation, Put))
        os.write(1, f"{text}record {put.key} {result.versions[0]} {put.value.decode()}\n".encode())

    async def publisher() -> None:
        while True:
            batch, lines = one()
            acknowledge(batch, lines, await log.commit(batch))

    await asyncio.gather(*(publisher() for _ in range(8)))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
