"""`python -m tests.fuzz [--inputs N] [--seed S] [--only FACE] [--first N]`: random input for a node, face by face.

While the faces of a node get theirs, an innocent client publishes one event after the other; each must be answered.
Prints one line per face, the innocent client's answers, and the seed. A failure prints the input and the command that
sends it again.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.fuzz import faces, functions, inputs
from tests.support.victim import Innocent, Victim, attacked

BATCH: Final = 200
NODE_FACES: Final[dict[str, tuple[inputs.Make, faces.Send]]] = {
    "websocket": (inputs.frame, faces.websocket),
    "http": (faces.request, faces.http),
    "ndjson": (inputs.line, faces.ndjson),
    "ndjson_tcp": (inputs.line, faces.ndjson_tcp),
    "zcl1": (inputs.zcl1, faces.loop_socket),
}
PARTS: Final = {
    "websocket": 30,
    "http": 4,
    "ndjson": 14,
    "ndjson_tcp": 8,
    "zcl1": 16,  # of a hundred inputs
    "schemas": 4,
    "cron": 14,
    "filters": 8,
    "imports": 2,
}


def make(seed: int, face: str, number: int) -> bytes:
    """Input `number` of a face."""
    maker = NODE_FACES[face][0] if face in NODE_FACES else functions.FUNCTIONS[face][0]
    return maker(random.Random(f"{seed}/{face}/{number}"))


class Campaign:
    """One run over some faces."""

    def __init__(self, seed: int, total: int, only: Sequence[str], first: int) -> None:
        self.seed = seed
        self.counts = {face: -(-total * part // 100) for face, part in PARTS.items() if not only or face in only}
        if len(self.counts) == 1:
            self.counts = dict.fromkeys(self.counts, total)
        self._first = first
        self.failed = False

    def run(self) -> None:
        """All faces: first those of a node, then what runs in this process."""
        of_node = [face for face in self.counts if face in NODE_FACES]
        if of_node:
            with (
                tempfile.TemporaryDirectory(prefix="ms-") as folder,
                attacked(Path(folder), "--kernel-tcp", "0", tokens=False) as node,
            ):
                asyncio.run(self._attack(node, of_node))
        for face in self.counts:
            if face in functions.FUNCTIONS and not self.failed:
                self._call(face)

    async def _attack(self, node: Victim, of_node: Sequence[str]) -> None:
        innocent = Innocent(node)
        innocent.start()
        await asyncio.gather(*(self._send(node, face) for face in of_node))
        await asyncio.to_thread(innocent.stop)
        print(f"innocent client: {innocent.answers} answers, the longest after {innocent.longest_s:.2f} s", flush=True)
        if innocent.failures:
            self.failed = True
            print(f"FAILED: the innocent client: {innocent.failures}")
        if node.process is None or node.process.poll() is not None:
            self.failed = True
            print(f"FAILED: the node ended\n{node.errors()[-2000:]}")

    async def _send(self, node: Victim, face: str) -> None:
        _, send = NODE_FACES[face]
        count, begun = self.counts[face], time.monotonic()
        for start in range(self._first, self._first + count, BATCH):
            sent = [make(self.seed, face, start + at) for at in range(min(BATCH, self._first + count - start))]
            try:
                await send(node, sent)
            except Exception as error:
                await self._report(node, face, start, sent, error)
                return
            if self.failed:
                return
        self._say(face, count, begun)

    async def _report(self, node: Victim, face: str, start: int, sent: list[bytes], error: Exception) -> None:
        """Find the one input of the batch that fails by itself, if there is one."""
        self.failed = True
        _, send = NODE_FACES[face]
        at = error.at if isinstance(error, faces.Wrong) else None
        for each, given in enumerate(sent) if at is None else ():
            try:
                await send(node, [given])
            except Exception as alone:
                at, error = each, alone
                break
        if at is None:
            print(f"FAILED: {face}: {error!r}; only the batch as a whole fails")
            print(f"again: python -m tests.fuzz --seed {self.seed} --only {face} --first {start} --inputs {len(sent)}")
            return
        print(f"FAILED: {face}: {error!r}\ninput {start + at}: {sent[at]!r}")
        print(f"again: python -m tests.fuzz --seed {self.seed} --only {face} --first {start + at} --inputs 1")

    def _call(self, face: str) -> None:
        _, function = functions.FUNCTIONS[face]
        count, begun = self.counts[face], time.monotonic()
        for number in range(self._first, self._first + count):
            given = make(self.seed, face, number)
            try:
                functions.call(function, given)
            except Exception:
                self.failed = True
                print(f"FAILED: {face}: input {number}: {given!r}\n{traceback.format_exc(limit=-4)}")
                print(f"again: python -m tests.fuzz --seed {self.seed} --only {face} --first {number} --inputs 1")
                return
        self._say(face, count, begun)

    def _say(self, face: str, count: int, begun: float) -> None:
        print(f"{face}: {count} inputs in {time.monotonic() - begun:.0f} s", flush=True)


def main(arguments: Sequence[str]) -> int:
    """The exit code: 1 where something failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Random input for every face of a node.")
    parser.add_argument("--inputs", type=int, default=1_000_000, help="how many, over all faces")
    parser.add_argument("--seed", type=int, default=None, help="of everything that is sent; by default a new one")
    parser.add_argument("--only", action="append", choices=list(PARTS), default=[], help="a face; may be given again")
    parser.add_argument("--first", type=int, default=0, help="the number of the first input")
    chosen = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(1 << 32) if chosen.seed is None else chosen.seed
    print(f"seed {seed}", flush=True)
    campaign = Campaign(seed, chosen.inputs, chosen.only, chosen.first)
    campaign.run()
    print(f"{'FAILED' if campaign.failed else 'passed'}: {sum(campaign.counts.values())} inputs, seed {seed}")
    return int(campaign.failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
