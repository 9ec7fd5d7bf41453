"""`Membership`: one node among several on one log.

What happens to a node is decided by the log and learnt from its news, never from an answer: that a lease was taken,
that it was lost, that another node is gone. So an answer that got lost, and a node that could not hear for a while,
need no care of their own; the news come in the log's order, and every node draws the same conclusions.

A node writes its pulse three times per lease. Whoever has heard nothing from a node for the whole of that node's lease
deletes the lease, on the condition that the pulse is still the one it heard last. A node whose lease is gone takes a
new one, with a new epoch, and tells its parts that what they held is no longer theirs.

While the log cannot be reached nobody can take a lease away. When it is back, nobody is in a hurry: a node that could
not write its own pulse counts everybody's silence from then on, so a server that was away for minutes costs no leases.
A node that is cut off alone is not told. Its parts go on with what they have, but nothing that they do under its lease
can be stored once the lease was taken: that is what the guard is for. `in_touch` says whether the lease is certain.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable
from typing import Final

import msgspec

from mainspring.cluster.cluster import About, NodeView
from mainspring.cluster.entrance import Entrance
from mainspring.cluster.errors import NameTaken
from mainspring.cluster.peers import Peer, Peers
from mainspring.cluster.records import (
    EVERYTHING,
    LEASES,
    NO_VERSION,
    NODES,
    Pulse,
    decode_lease,
    decode_pulse,
    encode,
    inbox,
    lease_key,
)
from mainspring.cluster.roles import Roles, SharedRole
from mainspring.errors import MainspringError
from mainspring.log import ABSENT, Batch, Change, FormatError, KeptRecord, Log, Receipt, Refused
from mainspring.loop import Loop, pause

logger: logging.Logger = logging.getLogger("mainspring.cluster")

LEASE_MS: Final = 10_000  # longer than a busy Python process ever pauses by itself, short enough to wait for
_PULSES: Final = 3  # per lease: two may get lost
_LOOKS: Final = 10  # per lease: how finely silence is measured
_SLOW_MS: Final = 2_000  # a commit that takes longer will not be quick for anybody else either
_FINAL: Final = frozenset({"missed_too_much", FormatError.code})  # errors that every later try would meet again
_NODE, _ROLE = "node/", "role/"


class Membership:
    """The cluster as one node on a shared log sees it.

    `home` names something that only one process at a time can own (a locked data directory): its next owner takes the
    lease of the last one at once. `new_id` gives text that is never given twice.
    """

    def __init__(
        self,
        log: Log,
        loop: Loop,
        *,
        node: str,
        new_id: Callable[[], str],
        lease_ms: int = LEASE_MS,
        about: Callable[[], About] = About,
        home: str = "",
    ) -> None:
        self.log = log
        self.node = node
        self.lease_ms = lease_ms
        self.joined: bool = False
        self.ended: MainspringError | None = None  # why this node cannot go on
        self._loop = loop
        self._clock = loop.clock
        self._new_id = new_id
        self._about = about
        self._epoch = NO_VERSION
        self._started = self._clock.wall_ms()
        self._peers = Peers()
        self._entrance = Entrance(log, loop, self._peers, node=node, lease_ms=lease_ms, home=home)
        self._roles = Roles(self)
        self._early: list[KeptRecord] | None = None  # news that came while the table was being read
        self._on_death: list[Callable[[int], None]] = []
        self._on_fenced: list[Callable[[int], None]] = []
        self._on_end: list[Callable[[MainspringError], None]] = []
        self._timer: Hashable | None = None
        self._rejoining: asyncio.Task[None] | None = None
        self._beats = 0
        self._beating = False
        self._next_beat_ms = 0
        self._sent_ms = 0
        self._answered_ms = 0
        self._confirmed_ms = 0  # when the last pulse that was stored was sent
        self._looked_ms = 0
        self._leaving = False
        self._listening = False

    # -- what the parts ask

    @property
    def epoch(self) -> int:
        return self._epoch

    @property
    def in_touch(self) -> bool:
        """Whether this node's lease is certain: it was renewed within the time after which it may be taken away."""
        return self.joined and self._clock.now_ms() - self._confirmed_ms < self.lease_ms

    @property
    def trouble(self) -> str:
        if self.ended is not None:
            return self.ended.message
        if not self.joined:
            return "its lease was taken away, and it has no new one yet"
        now = self._clock.now_ms()
        silent_ms = max(
            now - self._sent_ms if self._beating else 0, now - self._confirmed_ms - self.lease_ms // _PULSES
        )
        if silent_ms >= min(_SLOW_MS, self.lease_ms // _PULSES):
            return f"the engine has not answered for {silent_ms / 1000:.0f} s"
        return ""

    def guard(self, batch: Batch) -> None:
        batch.guard(LEASES, lease_key(self.node), self._epoch)

    def guard_of(self, batch: Batch, node: str, epoch: int) -> None:
        """The batch is refused unless that node still has that epoch."""
        batch.guard(LEASES, lease_key(node), epoch)

    def alive(self, epoch: int) -> bool:
        return self._peers.alive(epoch)

    def on_death(self, callback: Callable[[int], None]) -> None:
        self._on_death.append(callback)

    def on_fenced(self, callback: Callable[[int], None]) -> None:
        self._on_fenced.append(callback)

    def on_end(self, callback: Callable[[MainspringError], None]) -> None:
        """Call when this node cannot go on: another one has taken its name, or its log can be followed no further."""
        self._on_end.append(callback)

    def role(self, name: str) -> SharedRole:
        return self._roles.want(name)

    def only_if(self, role: str, fit: Callable[[], bool]) -> None:
        """Do not try to get this role while `fit` says no. Some living node must be fit, or nobody has it."""
        self._roles.only_if(role, fit)

    async def hand_over(self, role: str) -> None:
        """Give a role back, so that a node that is fit for it takes it. Raises when the log did not let it happen."""
        await self._roles.hand_over(role)

    def nodes(self) -> list[NodeView]:
        """Everybody who holds a lease, by name."""
        return [self._view(peer) for peer in sorted(self._peers, key=lambda peer: peer.name)]

    def _view(self, peer: Peer) -> NodeView:
        pulse = peer.pulse if peer.pulse is not None and peer.pulse.epoch == peer.epoch else Pulse(peer.name, 0)
        return NodeView(
            name=peer.name,
            epoch=peer.epoch,
            address=pulse.address,
            since=pulse.started,
            version=pulse.version,
            format=peer.lease.format,
            roles=self._roles.of(peer.epoch),
            serves=list(pulse.serves),
            program=pulse.program,
            able=list(pulse.able),
            here=peer.epoch == self._epoch,
            silent_ms=0 if peer.epoch == self._epoch else max(0, self._clock.now_ms() - peer.heard_ms),
        )

    # -- joining and leaving

    async def join(self) -> None:
        """Take the lease of this node's name. Raises `NameTaken`, or `LogUnavailable`: then it may be tried again."""
        if not self._listening:
            self._listening = True
            self.log.watch(self._heard)
        self._early = []
        await self._read_table()
        self._epoch = await self._entrance.take(self._new_id(), first_time=True)
        self._member_again()
        self._look(None)

    async def leave(self) -> None:
        """Give the lease and all roles back, so that nobody has to wait for them. Idempotent."""
        self._leaving = True
        if self._timer is not None:
            self._loop.cancel(self._timer)
        if self._rejoining is not None:
            self._rejoining.cancel()
        if not self.joined:
            return
        batch = Batch()
        self._roles.give_back(batch)
        peer = self._peers.get(self.node)
        if peer is not None and peer.pulse_version != ABSENT:
            batch.delete(NODES, self.node)
        batch.delete(LEASES, lease_key(self.node), expect=self._epoch)
        batch.remove(inbox(self.node), 0, below=EVERYTHING)
        try:
            await self.log.commit(batch)
        except Refused:
            pass  # somebody was faster: the lease is gone all the same
        except MainspringError as error:
            logger.warning("the lease could not be given back, others take it when it is over: %s", error.message)
        self.joined = False
        self._roles.lose_all()

    def announce(self) -> None:
        """What this node says about itself has changed: tell the others now instead of with the next pulse."""
        self._next_beat_ms = 0
        if self.joined:
            self._beat()

    async def _read_table(self) -> None:
        async for record in self.log.scan(LEASES):
            self._apply(KeptRecord(LEASES, record.key, record.value, record.version))
        async for record in self.log.scan(NODES):
            self._apply(KeptRecord(NODES, record.key, record.value, record.version))
        # What came meanwhile is repeated in its order: a scan is not one moment in time.
        early, self._early = self._early or [], None
        for each in early:
            self._apply(each)

    def _member_again(self) -> None:
        now = self._clock.now_ms()
        self.joined = True
        self._answered_ms = self._confirmed_ms = self._looked_ms = now
        self._next_beat_ms = 0
        self._peers.count_again(now)
        logger.info("node %s joined with epoch %d", self.node, self._epoch)
        self._beat()
        self._roles.try_all()

    # -- the rhythm

    def _look(self, _: object) -> None:
        """Several times per lease: say that this node lives, and see who does not."""
        if self._leaving:
            return
        now, step = self._clock.now_ms(), self.lease_ms / _LOOKS
        if now - self._looked_ms > 3 * step:
            self._peers.count_again(now)  # this process slept: what it did not hear means nothing
        self._looked_ms = now
        if self.joined:
            self._beat()
            if now - self._answered_ms < self.lease_ms / 2:
                for peer in self._peers.silent(now):
                    if peer.epoch != self._epoch:
                        self._take_away(peer)
            self._roles.try_all()
        self._timer = self._loop.schedule(step, self._look, None, ref=False)

    def _beat(self) -> None:
        now = self._clock.now_ms()
        if self._beating or now < self._next_beat_ms:
            return
        self._beats += 1
        about = self._about()
        pulse = Pulse(
            self.node,
            self._epoch,
            self._beats,
            address=about.address,
            started=self._started,
            version=about.version,
            serves=about.serves,
            program=about.program,
            able=about.able,
        )
        batch = Batch()
        self.guard(batch)
        batch.put(NODES, self.node, encode(pulse))
        self._beating = True
        self._sent_ms = now
        self._next_beat_ms = now + self.lease_ms // _PULSES
        self.log.submit(batch, self._beaten)

    def _beaten(self, result: object) -> None:
        self._beating = False
        if isinstance(result, Receipt):
            now = self._clock.now_ms()
            if now - self._answered_ms >= self.lease_ms / 2:
                logger.info("node %s is in touch with the log again", self.node)
                self._peers.count_again(now)
            self._answered_ms = now
            self._confirmed_ms = self._sent_ms
            if self._next_beat_ms == 0 and self.joined and not self._leaving:
                self._beat()  # something changed while this one was on its way
        else:
            self._next_beat_ms = 0  # with the next look; a refusal means that news of a lost lease are on their way
            if isinstance(result, MainspringError) and result.code in _FINAL:
                self._end(result)

    def _end(self, error: MainspringError) -> None:
        if self.ended is None:
            self.ended = error
            logger.error("node %s cannot go on: %s", self.node, error)
            for callback in tuple(self._on_end):
                callback(error)

    def _take_away(self, peer: Peer) -> None:
        logger.warning("node %s (epoch %d) was silent for %d ms", peer.name, peer.epoch, peer.lease.lease_ms)
        batch = Batch()
        if peer.pulse_version == ABSENT:
            batch.guard(NODES, peer.name, ABSENT)
        else:
            batch.delete(NODES, peer.name, expect=peer.pulse_version)
        batch.delete(LEASES, lease_key(peer.name), expect=peer.epoch)
        batch.remove(inbox(peer.name), 0, below=EVERYTHING)
        self.log.submit(batch, lambda _: None)  # refused: it lives, or somebody was faster; the change feed will say

    # -- the news

    def _heard(self, change: Change) -> None:
        for record in change.records:
            if record.space == LEASES or record.space == NODES:
                if self._early is not None:
                    self._early.append(record)
                else:
                    self._apply(record)

    def _apply(self, record: KeptRecord) -> None:
        try:
            self._read(record)
        except msgspec.DecodeError as error:
            logger.warning("%s %s cannot be read and counts as not there: %s", record.space, record.key, error)

    def _read(self, record: KeptRecord) -> None:
        now, key = self._clock.now_ms(), record.key
        if record.space == NODES:
            if record.version == ABSENT:
                self._peers.pulse_deleted(key)
            else:
                self._peers.pulse_written(key, record.version, decode_pulse(record.value), now)
        elif key.startswith(_ROLE):
            self._roles.heard(key.removeprefix(_ROLE), record)
        elif key.startswith(_NODE):
            name = key.removeprefix(_NODE)
            if record.version == ABSENT:
                gone = self._peers.lease_deleted(name)
            else:
                gone = self._peers.lease_written(name, record.version, decode_lease(record.value), now)
            if gone is not None:
                self._gone(gone)

    def _gone(self, epoch: int) -> None:
        if not self.joined or epoch != self._epoch:
            self._tell(self._on_death, epoch)
            self._roles.try_all()
        elif not self._leaving:
            self.joined = False
            logger.warning("node %s lost its lease (epoch %d) and takes a new one", self.node, epoch)
            self._roles.lose_all()
            self._rejoining = asyncio.get_running_loop().create_task(self._rejoin(epoch))

    async def _rejoin(self, former: int) -> None:
        instance = self._new_id()
        while not self.joined:
            try:
                self._epoch = await self._entrance.take(instance, first_time=False)
                self.joined = True
            except NameTaken as error:
                self._end(error)
                return
            except MainspringError as error:
                logger.debug("node %s could not join again yet: %s", self.node, error.message)
                await pause(self._loop, self.lease_ms / _LOOKS, ref=False)
        self._tell(self._on_fenced, former)
        self._tell(self._on_death, former)
        self._member_again()

    def _tell(self, callbacks: list[Callable[[int], None]], epoch: int) -> None:
        for callback in tuple(callbacks):
            try:
                callback(epoch)
            except Exception:
                logger.exception("a part failed to hear about epoch %d", epoch)
