"""Which node of a shared log executes a run: the programs of every living node, and the choice among them.

Each node writes down the names of its programs under its epoch. From that, and from who is alive, every node draws the
same conclusions without asking: whether any node has a program at all, and which of several should take a run that has
lost its owner. The choice weighs the run against each candidate with a hash, so the runs of a dead node spread
evenly over the living, and no node has to know how many there are.

While a program is being replaced, nodes have different code under one name (`code_of` in `programs.py`). The space
`runs/codes` keeps for each program the codes in the order in which they came to the log, the newest last. A run goes to
nodes that have the code its journal was written with. Where there is none, nodes with newer code take it: the author
has seen to it that they can. Nodes with older code leave it alone, because they cannot know what the newer one did;
unless the newer code was gone when they started, for then it was taken back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from mainspring.cluster import Cluster, ProgramOrder
from mainspring.log import ABSENT, Batch, InDoubt, KeptRecord, Log, Reader, Refused
from mainspring.runs.durable.records import RunRecord
from mainspring.runs.durable.store import CHILD_MARK
from mainspring.runs.programs import Programs

PROGRAMS: Final = "runs/programs"
CODES: Final = "runs/codes"
_DIGITS: Final = 16


class NodePrograms(msgspec.Struct):
    """The programs of one node."""

    node: str
    programs: list[str]
    codes: dict[str, str] = {}


class Placement:
    """The programs of all nodes on one log, as one of them sees it."""

    def __init__(self, log: Log, cluster: Cluster, programs: Programs) -> None:
        self._log = log
        self._cluster = cluster
        self._programs = programs
        self._by_epoch: dict[int, dict[str, str]] = {}  # the codes of the programs of each node
        self._orders: dict[str, tuple[ProgramOrder, int]] = {}  # and the version of the record
        self._taken_back: set[tuple[str, str]] = set()  # newer codes that were gone when this node started
        self._announced: tuple[int, dict[str, str]] | None = None

    async def load(self) -> None:
        """Read what all nodes have written down."""
        for space in (CODES, PROGRAMS):
            async for record in self._log.scan(space):
                self.on_change(KeptRecord(space, record.key, record.value, record.version))
        for name, code in self._programs.codes().items():
            newer = self._newer(name, code)
            living = [codes for epoch, codes in self._by_epoch.items() if self._cluster.alive(epoch)]
            if not any(codes.get(name) in newer for codes in living):
                self._taken_back.update((name, each) for each in newer)

    def on_change(self, record: KeptRecord) -> None:
        """The record of one node's programs, or of the codes of one program, was written or removed."""
        if record.space == CODES:
            if record.version != ABSENT:
                self._orders[record.key] = (msgspec.json.decode(record.value, type=ProgramOrder), record.version)
        elif record.version == ABSENT:
            self._by_epoch.pop(int(record.key), None)
        else:
            theirs = msgspec.json.decode(record.value, type=NodePrograms)
            codes = {name: theirs.codes.get(name, "") for name in theirs.programs}
            self._by_epoch[int(record.key)] = codes
            if self._cluster.alive(int(record.key)):
                self._taken_back.difference_update(codes.items())

    async def announce(self, epoch: int, guard: Callable[[Batch], None]) -> None:
        """Write this node's own programs down, if they changed."""
        codes = self._programs.codes()
        if (epoch, codes) == self._announced:
            return
        await self._introduce(codes, guard)
        batch = Batch()
        guard(batch)
        batch.put(PROGRAMS, _key(epoch), msgspec.json.encode(NodePrograms(self._cluster.node, list(codes), codes)))
        await self._log.commit(batch)
        self._announced = (epoch, codes)

    async def _introduce(self, codes: dict[str, str], guard: Callable[[Batch], None]) -> None:
        """Put codes that are new to the log behind those that are known, before any node can meet a run of theirs."""
        for name, code in codes.items():
            while code and code not in (order := self._orders.get(name, (ProgramOrder(), ABSENT)))[0].digests:
                batch, longer = Batch(), order[0].with_(code)
                guard(batch)
                batch.put(CODES, name, msgspec.json.encode(longer), expect=order[1])
                try:
                    self._orders[name] = (longer, (await self._log.commit(batch)).versions[0])
                except (Refused, InDoubt):
                    await self._look_at(name, order[1])

    async def _look_at(self, name: str, version: int) -> None:
        """Another node was faster, or it is there; if neither, the lease was refused, and the caller tries again."""
        record = await self._log.get(CODES, name)
        if record is None or record.version == version:
            raise Refused(f"the code of {name} could not be written down")
        self.on_change(KeptRecord(CODES, name, record.value, record.version))

    async def remove_dead(self, guard: Callable[[Batch], None]) -> None:
        """Remove what nodes that are gone had written down."""
        dead = [epoch for epoch in self._by_epoch if not self._cluster.alive(epoch)]
        if not dead:
            return
        batch = Batch()
        guard(batch)
        for epoch in dead:
            batch.delete(PROGRAMS, _key(epoch))
        await self._log.commit(batch)

    # -- asking

    def has_executor(self, program: str) -> bool:
        """Whether a living node has the program, this one included."""
        return program in self._programs or bool(self._takers(program))

    def has_code(self, program: str, code: str) -> bool:
        """Whether a living node has this code of a program."""
        return any(self._by_epoch[epoch][program] == code for epoch in self._takers(program))

    def programs(self) -> list[str]:
        """The programs that a living node has, this one included."""
        theirs = {name for epoch, names in self._by_epoch.items() if self._cluster.alive(epoch) for name in names}
        return sorted(theirs.union(self._programs.names()))

    def may_take(self, record: RunRecord) -> bool:
        """Whether this node has code for a run that has no owner."""
        mine = self._programs.code(record.program)
        if not record.code or not mine or mine == record.code:
            return True
        if self.has_code(record.program, record.code):
            return False
        newer = self._newer(record.program, mine)
        return record.code not in newer or (record.program, record.code) in self._taken_back

    def missing(self, record: RunRecord) -> str:
        """What no living node has, so that a run without an owner stays as it is; empty when a node will take it."""
        if not self.has_executor(record.program):
            return f"program {record.program}"
        older = [self._by_epoch[epoch][record.program] for epoch in self._takers(record.program)]
        if record.program in self._programs:
            older.append("" if self.may_take(record) else self._programs.code(record.program))
        if all(code and record.code in self._newer(record.program, code) for code in older):
            return f"the newer code of program {record.program}"
        return ""

    def _newer(self, program: str, code: str) -> tuple[str, ...]:
        return self._orders[program][0].newer_than(code) if program in self._orders else ()

    def should_take(self, record: RunRecord, epoch: int) -> bool:
        """Whether the node of this epoch is the one to take a run that has no owner. It must be one that may."""
        able = self._takers(record.program)
        takers = {epoch, *([each for each in able if self._by_epoch[each][record.program] == record.code] or able)}
        family = record.id.partition(CHILD_MARK)[0]
        return epoch == max(takers, key=lambda each: hashlib.blake2b(f"{family}/{each}".encode()).digest())

    def _takers(self, program: str) -> list[int]:
        alive = self._cluster.alive
        return [epoch for epoch, names in self._by_epoch.items() if program in names and alive(epoch)]


def _key(epoch: int) -> str:
    return f"{epoch:0{_DIGITS}d}"


# How the records about programs are read, by space.
PLACEMENT_READERS: Final[Mapping[str, Reader]] = {
    CODES: lambda _, value: msgspec.json.decode(value, type=ProgramOrder),
    PROGRAMS: lambda key, value: (int(key), msgspec.json.decode(value, type=NodePrograms)),
}
