"""`Membership`: one node among several on one log.

What happens to a node is decided by the log and learnt from its change feed, never from an answer: that a lease was
taken, that it was lost, that another node is gone. So an answer that got lost, and a node that could not follow the log
for a while, need no care of their own; changes come in the log's order, and every node draws the same conclusions.

A node writes its pulse three times per lease. A node that has seen nothing of another for the whole of that one's lease
deletes the lease, on the condition that the pulse is still the one it saw last. A node whose lease is gone takes a new
one, with a new epoch, and reports to its parts that what they held is no longer theirs.

While the log cannot be reached, no node can take a lease away. When it is back, no node is in a hurry: one that could
not write its own pulse counts the others' silence from then on, so a server that was away for minutes costs no leases.
A node that is cut off alone does not know it. Its parts go on with what they have, but nothing that they do under its
lease can be stored once the lease was taken: that is what the guard is for. `in_touch` says whether the lease is
certain. A node that was stopped for longer than its lease sees by its own clock that it is not, and gives nothing out
before a pulse is stored.

The reasons are in docs/decisions/cluster.md.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from typing import Final

import msgspec

from mainspring.cluster import peers
from mainspring.cluster.cluster import About, NodeView
from mainspring.cluster.peers import LEASES, NODES, AwayNode, Holder, NodeLease, Peer, Peers, Pulse, lease_key, role_key
from mainspring.cluster.suspects import Suspects
from mainspring.errors import BootError, MainspringError
from mainspring.log import ABSENT, Batch, Change, FormatError, InDoubt, KeptRecord, Log, MissedTooMuch, Receipt, Refused
from mainspring.loop import BackgroundTasks, Loop, pause

logger: logging.Logger = logging.getLogger("mainspring.cluster")

LEASE_MS: Final = 10_000  # longer than a busy Python process ever pauses by itself, short enough to wait for
_PULSES: Final = 3  # per lease: two may get lost
_LOOKS: Final = 10  # per lease: how finely silence is measured
_SLOW_MS: Final = 2_000  # a commit that takes longer will not be quick for other writers either
_FINAL: Final = (MissedTooMuch, FormatError)  # errors that every later try would meet again
_NODE, _ROLE = "node/", "role/"
_MOST_AWAY: Final = 100  # nodes that are remembered after they went


class NameTaken(BootError):
    """Another node of this name is alive. Names tell nodes apart, so the second one does not start."""

    code = "name_taken"

    def __init__(self, node: str, address: str = "") -> None:
        where = f" at {address}" if address else ""
        super().__init__(
            f"another node named {node!r} is alive{where}",
            remedy="give each node its own name with --node, and its own data directory",
        )


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
        self.suspects: Suspects = Suspects()
        self.joined: bool = False
        self.ended: MainspringError | None = None  # why this node cannot go on
        self._loop = loop
        self._clock = loop.clock
        self._new_id = new_id
        self._about = about
        self._home = home
        self.epoch: int = peers.NO_VERSION
        self._started = self._clock.wall_ms()
        self._peers = Peers()
        self.roles: Roles = Roles(self)
        self._early: list[KeptRecord] | None = None  # changes that came while the table was being read
        self._on_death: list[Callable[[int], None]] = []
        self._away: dict[str, AwayNode] = {}
        self._on_fenced: list[Callable[[int], None]] = []
        self._on_end: list[Callable[[MainspringError], None]] = []
        self._on_in_touch: list[Callable[[], None]] = []
        self._uncertain: list[Callable[[], object]] = []  # to be called when the lease is certain
        self._timer: Hashable | None = None
        self._tasks = BackgroundTasks(logger, "membership")
        self._pulses = 0
        self._pulse_under_way = False
        self._next_pulse_ms = 0
        self._sent_ms = 0
        self._answered_ms = 0
        self._confirmed_ms = 0  # when the last pulse that was stored was sent
        self._refusal = ""  # why the last one was not
        self._looked_ms = 0
        self._leaving = False
        self._following = False

    # -- what the parts ask

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
            now - self._sent_ms if self._pulse_under_way else 0, now - self._confirmed_ms - self.lease_ms // _PULSES
        )
        if silent_ms >= min(_SLOW_MS, self.lease_ms // _PULSES):
            return f"the engine has not answered for {silent_ms / 1000:.0f} s{self._refusal}"
        return ""

    def guard(self, batch: Batch) -> None:
        batch.guard(LEASES, lease_key(self.node), self.epoch)

    def guard_of(self, batch: Batch, node: str, epoch: int) -> None:
        """The batch is refused unless that node still has that epoch."""
        batch.guard(LEASES, lease_key(node), epoch)

    def alive(self, epoch: int) -> bool:
        return self._peers.alive(epoch)

    def on_death(self, callback: Callable[[int], None]) -> None:
        self._on_death.append(callback)

    def on_fenced(self, callback: Callable[[int], None]) -> None:
        self._on_fenced.append(callback)

    def on_in_touch(self, callback: Callable[[], None]) -> None:
        self._on_in_touch.append(callback)

    def when_in_touch(self, callback: Callable[[], object]) -> None:
        if self.in_touch:
            callback()
        else:
            self._uncertain.append(callback)

    def on_end(self, callback: Callable[[MainspringError], None]) -> None:
        """Call when this node cannot go on: another one has taken its name, or its log can be followed no further."""
        self._on_end.append(callback)

    def role(self, name: str) -> SharedRole:
        return self.roles.want(name)

    def nodes(self) -> list[NodeView]:
        """All nodes that hold a lease, by name."""
        return [self._view(peer) for peer in sorted(self._peers, key=lambda peer: peer.name)]

    def away(self) -> list[AwayNode]:
        """Nodes that are gone without having said that they stop, by name."""
        return [each for _, each in sorted(self._away.items())]

    def _view(self, peer: Peer) -> NodeView:
        pulse = peer.pulse if peer.pulse is not None and peer.pulse.epoch == peer.epoch else Pulse(peer.name, 0)
        return NodeView(
            name=peer.name,
            epoch=peer.epoch,
            since=pulse.started,
            format=peer.lease.format,
            roles=self.roles.of(peer.epoch),
            **{name: getattr(pulse, name) for name in About.__struct_fields__},
            here=peer.epoch == self.epoch,
            silent_ms=0 if peer.epoch == self.epoch else max(0, self._clock.now_ms() - peer.seen_ms),
        )

    # -- joining and leaving

    async def join(self) -> None:
        """Take the lease of this node's name. Raises `NameTaken`, or `LogUnavailable`: then it may be tried again."""
        if not self._following:
            self._following = True
            self.log.watch_records(self._on_change)
        self._early = []
        await self._read_table()
        self.epoch = await self._take_lease(self._new_id(), first_time=True)
        self._became_member()
        self._look(None)

    async def leave(self) -> None:
        """Give the lease and all roles back, so that no other node has to wait for them. Idempotent."""
        self._leaving = True
        if self._timer is not None:
            self._loop.cancel(self._timer)
        await self._tasks.cancel()
        if not self.joined:
            return
        batch = Batch()
        self.roles.give_back(batch)
        peer = self._peers.get(self.node)
        if peer is not None and peer.pulse_version != ABSENT:
            batch.delete(NODES, self.node)
        batch.delete(LEASES, lease_key(self.node), expect=self.epoch)
        batch.remove(peers.inbox(self.node), 0, below=peers.EVERYTHING)
        try:
            await self.log.commit(batch)
        except Refused:
            pass  # another node was faster: the lease is gone all the same
        except MainspringError as error:
            logger.warning("the lease could not be given back, others take it when it is over: %s", error.message)
        self.joined = False
        self.roles.lose_all()

    def announce(self) -> None:
        """What this node says about itself has changed: tell the others now instead of with the next pulse."""
        self._next_pulse_ms = 0
        if self.joined:
            self._send_pulse()

    async def _read_table(self) -> None:
        async for record in self.log.scan(LEASES):
            self._apply(KeptRecord(LEASES, record.key, record.value, record.version))
        async for record in self.log.scan(NODES):
            self._apply(KeptRecord(NODES, record.key, record.value, record.version))
        # What came meanwhile is repeated in its order: a scan is not one moment in time.
        early, self._early = self._early or [], None
        for each in early:
            self._apply(each)

    def _became_member(self) -> None:
        now = self._clock.now_ms()
        self.joined = True
        self._answered_ms = self._confirmed_ms = self._looked_ms = now
        self._next_pulse_ms = 0
        self._peers.restart_silence(now)
        logger.info("node %s joined with epoch %d", self.node, self.epoch)
        self._send_pulse()
        self.roles.try_all()
        self._go_on_certain()

    # -- taking the lease of a name: from nobody, from this node's own former life, or from a node that is silent
    #
    # That the lease is taken is learnt from the change feed, not from an answer. Of two living nodes with one name the
    # second is refused; whether the first lives shows within the time of its lease.

    async def _take_lease(self, instance: str, *, first_time: bool) -> int:
        """The epoch, once the change feed says that this life of the node holds the lease. Raises `NameTaken`."""
        other = self._peers.get(self.node)
        first_seen = None if other is None else (other.epoch, other.pulse_version)
        if other is not None and not self._is_gone(other, first_time):
            logger.info("a node named %s holds a lease: waiting to see whether it is alive", self.node)
        while True:
            other = self._peers.get(self.node)
            if other is not None and other.lease.instance == instance:
                return other.epoch
            if other is None or self._is_gone(other, first_time):
                await self._try_lease(instance, other)
            elif (other.epoch, other.pulse_version) != first_seen:
                raise NameTaken(self.node, other.pulse.address if other.pulse is not None else "")
            else:
                await pause(self._loop, self.lease_ms / _LOOKS, ref=False)

    def _is_gone(self, other: Peer, first_time: bool) -> bool:
        # A former life of this node is over. But a node that lost its lease to one with its own home lives itself:
        # two processes believe that they own it, and the later one stays.
        if first_time and self._home and other.lease.home == self._home:
            return True
        return self._clock.now_ms() - other.seen_ms >= other.lease.lease_ms

    async def _try_lease(self, instance: str, former: Peer | None) -> None:
        batch = Batch()
        if former is not None:
            batch.guard(NODES, self.node, former.pulse_version)
            batch.delete(LEASES, lease_key(self.node), expect=former.epoch)
            batch.remove(peers.inbox(self.node), 0, below=peers.EVERYTHING)
        lease = NodeLease(self.node, instance, self.lease_ms, self._home)
        batch.put(LEASES, lease_key(self.node), peers.encode(lease), expect=ABSENT)
        try:
            await self.log.commit(batch)
        except (Refused, InDoubt):
            await self._check_lease()
            await pause(self._loop, self.lease_ms / _LOOKS, ref=False)  # the change feed will say what became of it

    async def _check_lease(self) -> None:
        """A lease that cannot be read cannot be judged either; an operator has to look at it."""
        record = await self.log.get(LEASES, lease_key(self.node))
        try:
            if record is not None:
                peers.decode_lease(record.value)
        except msgspec.DecodeError as error:
            raise FormatError(
                f"the lease of node {self.node!r} in the log cannot be read: {error}",
                remedy="another program writes there, or a newer version: look at the engine's contents, or use --node",
            ) from error

    # -- the rhythm

    def _look(self, _: object) -> None:
        """Several times per lease: say that this node lives, and see who does not."""
        if self._leaving:
            return
        now, step = self._clock.now_ms(), self.lease_ms / _LOOKS
        if now - self._looked_ms > 3 * step:
            self._peers.restart_silence(now)  # this process slept: silence during that time means nothing
        self._looked_ms = now
        if self.joined:
            self._send_pulse()
            if now - self._answered_ms < self.lease_ms / 2:
                for peer in self._peers.silent(now):
                    if peer.epoch != self.epoch:
                        self._delete_lease(peer)
            self.roles.try_all()
        self._timer = self._loop.schedule(step, self._look, None, kind="timeout", ref=False)

    def _send_pulse(self) -> None:
        now = self._clock.now_ms()
        if self._pulse_under_way or now < self._next_pulse_ms:
            return
        self._pulses += 1
        about = msgspec.structs.asdict(self._about())
        pulse = Pulse(self.node, self.epoch, self._pulses, started=self._started, **about)
        batch = Batch()
        self.guard(batch)
        batch.put(NODES, self.node, peers.encode(pulse))
        self._pulse_under_way = True
        self._sent_ms = now
        self._next_pulse_ms = now + self.lease_ms // _PULSES
        self.log.submit(batch, self._pulse_decided)

    def _pulse_decided(self, result: object) -> None:
        self._pulse_under_way = False
        if isinstance(result, Receipt):
            now = self._clock.now_ms()
            if now - self._answered_ms >= self.lease_ms / 2:
                logger.info("node %s is in touch with the log again", self.node)
                self._peers.restart_silence(now)
            self._answered_ms = now
            self._refusal = ""
            was_certain, self._confirmed_ms = self.in_touch, self._sent_ms
            if not was_certain and self.in_touch:
                for callback in tuple(self._on_in_touch):
                    callback()
                self._go_on_certain()
            if self._next_pulse_ms == 0 and self.joined and not self._leaving:
                self._send_pulse()  # something changed while this one was on its way
        else:
            self._next_pulse_ms = 0  # with the next look; after a refusal, the loss of the lease is about to come
            self._refusal = f": {result.message}" if isinstance(result, MainspringError) else ""
            if isinstance(result, _FINAL):
                self._end(result)

    def _go_on_certain(self) -> None:
        uncertain, self._uncertain = self._uncertain, []
        for callback in uncertain:
            try:
                callback()
            except Exception:
                logger.exception("what waited for the lease of this node failed")

    def _end(self, error: MainspringError) -> None:
        if self.ended is None:
            self.ended = error
            logger.error("node %s cannot go on: %s", self.node, error)
            for callback in tuple(self._on_end):
                callback(error)

    def _delete_lease(self, peer: Peer) -> None:
        logger.warning("node %s (epoch %d) was silent for %d ms", peer.name, peer.epoch, peer.lease.lease_ms)
        batch = Batch()
        if peer.pulse_version == ABSENT:
            batch.guard(NODES, peer.name, ABSENT)
        else:
            batch.delete(NODES, peer.name, expect=peer.pulse_version)
        batch.delete(LEASES, lease_key(peer.name), expect=peer.epoch)
        batch.remove(peers.inbox(peer.name), 0, below=peers.EVERYTHING)
        self.log.submit(batch, lambda _: None)  # refused: it lives, or another node was faster; the feed will say

    # -- the change feed

    def _on_change(self, change: Change) -> None:
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
        now, key, deleted = self._clock.now_ms(), record.key, record.version == ABSENT
        if record.space == NODES:
            self._peers.set_pulse(key, record.version, None if deleted else peers.decode_pulse(record.value), now)
        elif key.startswith(_ROLE):
            self.roles.changed(key.removeprefix(_ROLE), record)
        elif key.startswith(_NODE):
            lease = None if deleted else peers.decode_lease(record.value)
            name = key.removeprefix(_NODE)
            former = self._peers.get(name)
            gone = self._peers.set_lease(name, record.version, lease, now)
            if lease is not None:
                self._away.pop(name, None)
            elif former is not None and not former.leaving and name != self.node:
                self._away[name] = AwayNode(name, self._clock.wall_ms())
                if len(self._away) > _MOST_AWAY:
                    del self._away[next(iter(self._away))]
            if gone is not None:
                self._gone(gone)

    def _gone(self, epoch: int) -> None:
        if not self.joined or epoch != self.epoch:
            self._notify(self._on_death, epoch)
            self.roles.try_all()
        elif not self._leaving:
            self.joined = False
            logger.warning("node %s lost its lease (epoch %d) and takes a new one", self.node, epoch)
            self.roles.lose_all()
            self._tasks.start(self._rejoin(epoch), "rejoin")

    async def _rejoin(self, former: int) -> None:
        instance = self._new_id()
        while not self.joined:
            try:
                self.epoch = await self._take_lease(instance, first_time=False)
                self.joined = True
            except NameTaken as error:
                self._end(error)
                return
            except MainspringError as error:
                logger.debug("node %s could not join again yet: %s", self.node, error.message)
                await pause(self._loop, self.lease_ms / _LOOKS, ref=False)
        self._notify(self._on_fenced, former)
        self._notify(self._on_death, former)
        self._became_member()

    def _notify(self, callbacks: list[Callable[[int], None]], epoch: int) -> None:
        for callback in tuple(callbacks):
            try:
                callback(epoch)
            except Exception:
                logger.exception("a part failed over the end of epoch %d", epoch)


# -- roles: work for one node at a time
#
# Who has a role is what the log says, and this node believes it only when the change feed says so: an answer that got
# lost makes no difference. A role is free when no node has it or when the epoch that had it is gone; then every node
# that wants it tries, and the log lets one of them have it.


class SharedRole:
    """A role that this node wants."""

    def __init__(self, name: str, membership: Membership) -> None:
        self.name = name
        self.asking = False
        self._membership = membership
        self._version = peers.NO_VERSION
        self.held: bool = False
        self._callbacks: list[Callable[[bool], None]] = []

    def guard(self, batch: Batch) -> None:
        self._membership.guard(batch)
        batch.guard(LEASES, role_key(self.name), self._version)

    def on_change(self, callback: Callable[[bool], None]) -> None:
        self._callbacks.append(callback)
        if self.held:
            callback(True)

    def settle(self, version: int | None) -> None:
        """This node has the role under that version, or (None) has not."""
        if version is not None:
            self._version = version
        if self.held == (version is not None):
            return
        self.held = version is not None
        logger.info("%s the role %s", "got" if self.held else "lost", self.name)
        for callback in tuple(self._callbacks):
            try:
                callback(self.held)
            except Exception:
                logger.exception("a listener of the role %s failed", self.name)


class Roles:
    """Every role there is, and those this node wants."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self._wanted: dict[str, SharedRole] = {}
        self._holders: dict[str, tuple[int, Holder]] = {}
        self._fit: dict[str, Callable[[], bool]] = {}  # roles that this node wants under a condition

    def want(self, name: str) -> SharedRole:
        role = self._wanted.get(name)
        if role is None:
            role = self._wanted[name] = SharedRole(name, self._membership)
            self._believe(name)
            self._try(role)
        return role

    def only_if(self, name: str, fit: Callable[[], bool]) -> None:
        """Do not try to get this role while `fit` says no. Some living node must be fit, or no node has it."""
        self._fit[name] = fit

    async def hand_over(self, name: str) -> None:
        """Give a role back, so that a node that is fit for it takes it. Raises when the log did not let it happen."""
        version, holder = self._holders.get(name, (ABSENT, None))
        if holder is not None and holder.epoch == self._membership.epoch:
            batch = Batch()
            self._membership.guard(batch)
            batch.delete(LEASES, role_key(name), expect=version)
            await self._membership.log.commit(batch)

    def changed(self, name: str, record: KeptRecord) -> None:
        """The record of a role was written or deleted, by any node."""
        if record.version == ABSENT:
            self._holders.pop(name, None)
        else:
            self._holders[name] = (record.version, peers.decode_holder(record.value))
        self._believe(name)
        if name in self._wanted:
            self._try(self._wanted[name])

    def of(self, epoch: int) -> tuple[str, ...]:
        """The roles of a node, by name."""
        return tuple(sorted(name for name, (_, holder) in self._holders.items() if holder.epoch == epoch))

    def try_all(self) -> None:
        for role in self._wanted.values():
            self._try(role)

    def lose_all(self) -> None:
        """This node's lease is gone, and with it whatever it had."""
        for role in self._wanted.values():
            role.settle(None)

    def give_back(self, batch: Batch) -> None:
        for name, (version, holder) in self._holders.items():
            if holder.epoch == self._membership.epoch:
                batch.delete(LEASES, role_key(name), expect=version)

    def _believe(self, name: str) -> None:
        role, found = self._wanted.get(name), self._holders.get(name)
        if role is not None:
            mine = found is not None and self._membership.joined and found[1].epoch == self._membership.epoch
            role.settle(found[0] if mine and found is not None else None)

    def _try(self, role: SharedRole) -> None:
        membership = self._membership
        version, holder = self._holders.get(role.name, (ABSENT, None))
        taken = holder is not None and membership.alive(holder.epoch)
        if role.asking or taken or not membership.joined:
            return
        if role.name in self._fit and not self._fit[role.name]():
            return
        batch = Batch()
        membership.guard(batch)
        value = peers.encode(Holder(membership.node, membership.epoch))
        batch.put(LEASES, role_key(role.name), value, expect=version)
        role.asking = True

        def answered(_: object) -> None:
            # What became of it is in the change feed; a failure is tried again with the next pulse.
            role.asking = False

        membership.log.submit(batch, answered)
