"""What the programs of all living nodes declare, and which of them is the newest.

A program declares things that live in the log and that all nodes share: schedules, settings of topics. While a program
is being replaced node by node, two of them are there, and neither may undo what the other declares. So every node
writes down what its own program declares; what holds is everything that some living node declares, and where they
differ the newest program decides. A node that is gone declares nothing, so what is declared no more is known, too.

The newest program is the one that was introduced last: the log keeps the digests of what was declared in the order in
which they first came. A node of an older program that starts again therefore changes nothing back. One that is alone
with its own kind decides again: then the newer program was taken back.

Space `programs`: `node/<name>` is one node's declaration, `order` the digests. A node that writes the first also
writes the second, so a guard on `order` says that nothing was declared since it was read. Every node writes only its
own declaration; members that a newer version of this software adds are not lost when others write theirs.

The reasons are in docs/decisions/program-versions.md.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from mainspring.cluster.cluster import Cluster
from mainspring.log import ABSENT, Batch, InDoubt, KeptRecord, Log, Refused
from mainspring.loop import Loop, pause

SPACE: Final = "programs"
ORDER: Final = "order"
_NODE: Final = "node/"
_REMEMBERED: Final = 200  # programs; no rollback goes further than that
_AGAIN_MS: Final = 50  # after another node was faster

Declared = Mapping[str, Mapping[str, Any]]
"""What a program declares: by kind, then by name. Plain JSON."""


class Declaration(msgspec.Struct, frozen=True):
    """One node's."""

    epoch: int
    digest: str
    declares: dict[str, dict[str, Any]] = {}


class ProgramOrder(msgspec.Struct, frozen=True):
    """Digests in the order in which they first came, the newest last."""

    digests: tuple[str, ...] = ()

    def rank(self, digest: str) -> int:
        """Greater is newer; 0 for one that was never introduced."""
        return self.digests.index(digest) + 1 if digest in self.digests else 0

    def newer_than(self, digest: str) -> tuple[str, ...]:
        """Those that came after this one; none for one that was never introduced."""
        rank = self.rank(digest)
        return self.digests[rank:] if rank else ()

    def with_(self, digest: str) -> ProgramOrder:
        known = self.digests if digest in self.digests else (*self.digests, digest)
        return ProgramOrder(known[-_REMEMBERED:])


def digest_of(declares: Declared) -> str:
    """The same for the same declarations, on every node and in every life."""
    return hashlib.sha256(msgspec.json.encode(declares, order="sorted")).hexdigest()[:16]


class DeclarationsInForce:
    """What all living programs declare, put together, as of one moment in the log."""

    def __init__(self, declarations: list[Declaration], order: ProgramOrder, version: int) -> None:
        self._declarations = sorted(declarations, key=lambda each: order.rank(each.digest))
        self._version = version

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeclarationsInForce) and self._declarations == other._declarations

    __hash__ = None  # type: ignore[assignment]

    def of(self, kind: str) -> dict[str, list[Any]]:
        """Everything of a kind by name; what different programs say about it, the newest last."""
        found: dict[str, list[Any]] = {}
        for each in self._declarations:
            for name, how in each.declares.get(kind, {}).items():
                found.setdefault(name, []).append(how)
        return found

    def guard(self, batch: Batch) -> None:
        """The batch is refused once something else was declared."""
        if self._version != ABSENT:
            batch.guard(SPACE, ORDER, self._version)


class ProgramVersions:
    """What one node declares, and what it knows of the others' programs.

    On a log of its own, a node's program alone decides, and nothing is written.
    """

    def __init__(self, log: Log, loop: Loop, cluster: Cluster, declares: Declared) -> None:
        self.digest: str = digest_of(declares)
        self._order = ProgramOrder()
        self._declares: dict[str, dict[str, Any]] = msgspec.json.decode(msgspec.json.encode(declares))
        self._log = log
        self._loop = loop
        self._cluster = cluster

    async def declare(self) -> DeclarationsInForce:
        """Write down what this node's program declares, unless that is known; gives what is in force then."""
        if not self._log.shared:
            return DeclarationsInForce([self._own()], ProgramOrder(), ABSENT)
        while True:
            order, version, living, dead = await self._read()
            if living.get(self._cluster.node) == self._own():
                return DeclarationsInForce(list(living.values()), order, version)
            if not await self._write(order, version, dead):
                await pause(self._loop, _AGAIN_MS, ref=False)

    def _own(self) -> Declaration:
        return Declaration(self._cluster.epoch, self.digest, self._declares)

    async def _read(self) -> tuple[ProgramOrder, int, dict[str, Declaration], list[str]]:
        """The order first: what is read afterwards is at least as new, and the guard tells if it is newer."""
        record = await self._log.get(SPACE, ORDER)
        order = ProgramOrder() if record is None else _decode_order(record.value)
        self._learn(order)
        living: dict[str, Declaration] = {}
        dead: list[str] = []
        async for each in self._log.scan(SPACE, _NODE):
            declaration = _decode_declaration(each.value)
            if self._cluster.alive(declaration.epoch):
                living[each.key.removeprefix(_NODE)] = declaration
            else:
                dead.append(each.key)
        return order, ABSENT if record is None else record.version, living, dead

    async def _write(self, order: ProgramOrder, version: int, dead: list[str]) -> bool:
        """False: another node was faster, this node's lease is gone, or it may be there. Then look again."""
        own = _NODE + self._cluster.node
        batch = Batch()
        self._cluster.guard(batch)
        batch.put(SPACE, ORDER, _encode(order.with_(self.digest)), expect=version)
        batch.put(SPACE, own, _encode(self._own()))
        for key in dead:
            if key != own:
                batch.delete(SPACE, key)
        try:
            await self._log.commit(batch)
        except (Refused, InDoubt):
            return False
        return True

    def rank(self, digest: str) -> int:
        """Greater is newer, as far as this node knows; 0 for a program that is not known."""
        return self._order.rank(digest)

    def on_record(self, record: KeptRecord) -> bool:
        """A record was written, by any node; whether the order of programs is another one now."""
        if record.space != SPACE or record.key != ORDER or record.version == ABSENT:
            return False
        return self._learn(_decode_order(record.value))

    def _learn(self, order: ProgramOrder) -> bool:
        former, self._order = self._order, order
        return former != order


_encode: Callable[[object], bytes] = msgspec.json.Encoder().encode
_decode_order: Callable[[bytes], ProgramOrder] = msgspec.json.Decoder(ProgramOrder).decode
_decode_declaration: Callable[[bytes], Declaration] = msgspec.json.Decoder(Declaration).decode


def read_program(key: str, value: bytes) -> None:
    """Raise where a record does not say what a program declares, or in which order programs came."""
    if key == ORDER:
        _decode_order(value)
    elif key.startswith(_NODE):
        _decode_declaration(value)
