"""Who else could execute a run: the programs of every living node.

Each node writes down the names of its programs under its epoch. From that, and from who is alive, every node draws the
same conclusions without asking: whether somebody has a program at all, and which of several should take a run that has
lost its owner. The choice weighs the run against each candidate with a hash, so the runs of a dead node spread
evenly over the living, and nobody has to know how many there are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, Final

import msgspec

from mainspring.cluster import Cluster
from mainspring.log import ABSENT, Batch, KeptRecord, Log
from mainspring.runs.journal import RunRecord
from mainspring.runs.registry import Programs
from mainspring.runs.serial import Raw, encode
from mainspring.runs.store import CHILD_MARK

PROGRAMS: Final = "runs/programs"
_DIGITS: Final = 16


class Known(msgspec.Struct):
    """The programs of one node."""

    node: str
    programs: list[str]


class Others:
    """The programs of all nodes on one log, as one of them sees it."""

    def __init__(self, log: Log, cluster: Cluster, programs: Programs) -> None:
        self._log = log
        self._cluster = cluster
        self._programs = programs
        self._by_epoch: dict[int, frozenset[str]] = {}
        self._told: tuple[int, list[str]] | None = None

    async def load(self) -> None:
        """Read what all nodes have written down."""
        async for record in self._log.scan(PROGRAMS):
            self.hear(KeptRecord(PROGRAMS, record.key, record.value, record.version))

    def hear(self, record: KeptRecord) -> None:
        """News about one node's programs."""
        if record.version == ABSENT:
            self._by_epoch.pop(int(record.key), None)
        else:
            names = msgspec.json.decode(record.value, type=Known).programs
            self._by_epoch[int(record.key)] = frozenset(names)

    async def tell(self, epoch: int, guard: Callable[[Batch], None]) -> None:
        """Write this node's own programs down, if that is news."""
        mine = (epoch, self._programs.names())
        if mine == self._told:
            return
        batch = Batch()
        guard(batch)
        known = Known(self._cluster.node, mine[1])
        batch.put(PROGRAMS, _key(epoch), msgspec.json.encode(known))
        await self._log.commit(batch)
        self._told = mine

    async def forget_the_dead(self, guard: Callable[[Batch], None]) -> None:
        """Remove what nodes wrote down that are gone."""
        dead = [epoch for epoch in self._by_epoch if not self._cluster.alive(epoch)]
        if not dead:
            return
        batch = Batch()
        guard(batch)
        for epoch in dead:
            batch.delete(PROGRAMS, _key(epoch))
        await self._log.commit(batch)

    # -- asking

    def is_alive(self, epoch: int) -> bool:
        return self._cluster.alive(epoch)

    def have(self, program: str) -> bool:
        """Whether a living node has the program, this one included."""
        return program in self._programs or any(True for _ in self._takers(program))

    def alone_have(self, program: str) -> bool:
        """Whether other living nodes have the program and this one does not."""
        return program not in self._programs and self.have(program)

    def should_take(self, record: RunRecord, epoch: int) -> bool:
        """Whether the node of this epoch is the one to take a run that has no owner."""
        takers = {epoch, *self._takers(record.program)}
        family = record.id.partition(CHILD_MARK)[0]
        return epoch == max(takers, key=lambda each: hashlib.blake2b(f"{family}/{each}".encode()).digest())

    def _takers(self, program: str) -> list[int]:
        alive = self._cluster.alive
        return [epoch for epoch, names in self._by_epoch.items() if program in names and alive(epoch)]

    @staticmethod
    def arguments(args: tuple[Any, ...]) -> Raw:
        """Arguments for a program that is not known here: plain JSON values."""
        return Raw(encode(list(args), "args"))


def _key(epoch: int) -> str:
    return f"{epoch:0{_DIGITS}d}"
