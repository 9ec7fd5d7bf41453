"""The supply of a node that shares its log: taking events, settling them, returning them.

On each node the group is the state machine it is on one (`group.py`), for the events that the node has taken. Before an
event can be leased to a member here, the node takes it: a commit that moves it from the shared record into the node's
claim. It returns what no member here can have any more (they left, are full or stalled), so that a remote member gets
it. Where keys stick to members, one node at a time works on a partition, and does there what it would do alone.

Each position has at most one write under way. It carries everything that came up since the last one: what members
settled, what this node takes and returns, and the claims of nodes that are gone. What was only settled touches this
node's own claim and nothing else, so acknowledgements on different nodes never stand in each other's way; a write that
moves events between nodes also writes the shared record, and is refused when another node was faster. Then the change
feed says how things stand, and the write is made again from there. Nothing is concluded from an answer, and least of
all from a missing one. A write carries the node's lease: once that is taken away, nothing this node still believes can
be stored.

Of several nodes that have room, one tries first and the others only when it did not take the events (it is stalled,
cut off or dead): otherwise each new event would cost a refused commit for every idle node. The order is a lot drawn
anew for each version of the shared record, the same on all nodes.

Where a group starts and where it is moved to is decided by the shared record, too: a node that was too late takes what
the first one stored. A group that another node makes, moves or deletes appears, moves or goes here with the change
feed; members here keep their subscription and lose what they held.

The reasons are in docs/decisions/bus-shared-groups.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from mainspring.bus.errors import Unavailable
from mainspring.bus.groups.delivery import Delivery
from mainspring.bus.groups.group import RETRY_MS, Group, LeaseView
from mainspring.bus.groups.member import MemberView
from mainspring.bus.groups.position import (
    COPIES,
    NOTHING,
    REOPENED,
    SPACE,
    SUSPECT,
    OpenEvent,
    Position,
    PositionRecord,
    PositionWrite,
    UnsettledFields,
    decode_position,
    encode_position,
    pack,
)
from mainspring.bus.groups.registry import GroupRegistry
from mainspring.bus.groups.shared.change_feed import ChangeFeed
from mainspring.bus.groups.shared.position import ClaimWrite, SharedPosition
from mainspring.bus.groups.shared.presence import Division, Presence
from mainspring.bus.groups.shared.records import (
    CLAIMS,
    MEMBERS,
    ClaimRecord,
    claim_key,
    decode_claim,
    encode,
    parts_of,
)
from mainspring.bus.groups.shared.transfer import Transfer
from mainspring.bus.groups.supply import OnRecordChanged, Reopening, Starts
from mainspring.bus.names import SEPARATOR
from mainspring.bus.topics.registry import TopicRegistry
from mainspring.bus.topics.tail import ReadyEvent
from mainspring.cluster import Cluster
from mainspring.errors import MainspringError
from mainspring.log import ABSENT, Batch, InDoubt, KeptRecord, Log, Receipt, Refused, Result
from mainspring.loop import Clock, Loop
from mainspring.retries import Backoff

COMMIT_MS: Final = 1_000  # how old the commit in the shared record may be; the nodes know it from all the records
REFUSED: Final = Backoff(5, RETRY_MS)  # after a refusal that the change feed does not explain yet
TRIES_AT_THE_END: Final = 20
MOVE_TRIES: Final = 200  # while other nodes take events of the same partition
MOVE_PAUSE_S: Final = 0.005  # between them
TURN_MS: Final = 25  # what a node is given to take events before the next one tries; most commits take less
COMMITS_PER_TURN: Final = 3  # where commits take long: one that takes events, and what it may have to wait for
MOST_TURNS: Final = 4  # after so many all nodes that are left try at once
STAGGER_MS: Final = 100  # between the nodes that could take over from a dead one: one of them is enough


class SharedSupply:
    """One of several nodes on a log."""

    takes_unclaimed = False

    def __init__(self, log: Log, clock: Clock, loop: Loop, topics: TopicRegistry, cluster: Cluster) -> None:
        self._log = log
        self._clock = clock
        self._loop = loop
        self._topics = topics
        self._cluster = cluster
        self._presence = Presence(log, loop, cluster, lambda topic, group: topics.declared(topic, group).max_attempts)
        topics.remote_max_attempts = self._presence.max_attempts
        self._number = 0  # of this node's last write of a claim
        self._changed: dict[SharedPosition, None] = {}  # by the commit that is being shown
        self._stored: dict[SharedPosition, int] = {}  # numbers of writes that the commit being shown has stored
        self._uncommitted: dict[SharedPosition, None] = {}  # the shared record says less than is settled
        self._takeover_planned = False

    def attach(self, delivery: Delivery) -> None:
        self._delivery = delivery
        self._feed = ChangeFeed(self._log, self._loop, self._topics, delivery, self._on_commit_shown)

    def _to_wall(self) -> int:
        """What must be added to a monotonic time to make it epoch ms."""
        return self._clock.wall_ms() - self._clock.now_ms()

    def _all(self) -> Iterator[SharedPosition]:
        for group in self._registry.all():
            yield from _positions(group)

    # -- life

    def listen(self, listeners: Mapping[str, OnRecordChanged]) -> None:
        self._feed.listen({**listeners, **self._listeners()})

    def _listeners(self) -> dict[str, OnRecordChanged]:
        return {
            SPACE: self._on_position_changed,
            CLAIMS: self._on_claim_changed,
            MEMBERS: self._on_members_record_changed,
            COPIES: self._on_copy_changed,
        }

    async def load(self, registry: GroupRegistry) -> None:
        """Read every group; `catch_up` adds the changes of this time, and then makes sense of it."""
        self._registry = registry
        for space, listener in self._listeners().items():
            async for record in self._log.scan(space):
                listener(KeptRecord(space, record.key, record.value, record.version))
        await registry.load_topics()
        self._cluster.on_death(self._on_death)
        self._cluster.on_fenced(self._on_fenced)
        self._cluster.on_in_touch(self._on_in_touch)
        self._cluster.suspects.use(lambda ms, look: self._loop.schedule(ms, lambda _: look(), None, ref=False))
        self._cluster.suspects.wait_for(self._handles_suspect)

    async def catch_up(self) -> None:
        await self._feed.catch_up(self._cluster.node)
        self._take_over(None)

    async def stop(self) -> None:
        """Return everything, so that no other node has to wait until this node's lease is over."""
        for shared in list(self._all()):
            if shared.claim_version(self._cluster.epoch):
                await self._return_all(shared)
        self._feed.stop()
        await self._presence.leave()

    async def _return_all(self, shared: SharedPosition) -> None:
        for _ in range(TRIES_AT_THE_END):
            await self._delivery.lock(shared.position)
            shared.return_all()
            batch = self._batch(Transfer(shared), last=True)
            try:
                if batch is not None:
                    await self._log.commit(batch)
                return
            except Refused:
                continue
            except MainspringError:
                return  # the others take it when the lease is over
            finally:
                self._delivery.unlock(shared.position)

    # -- the change feed

    def _on_position_changed(self, record: KeptRecord) -> None:
        topic, name, (partition,) = parts_of(record.key)
        if record.version == ABSENT:
            self._on_position_deleted(topic, name, partition)
            return
        group = self._registry.find(topic, name)
        if group is None:
            group = self._registry.find_or_make(topic, name)
            if not group.topic.loaded:
                self._delivery.run(self._topics.load(group.topic))
        position = group.positions.get(partition)
        if position is not None and position.shared.on_record_changed(decode_position(record.value), record.version):
            self._changed[position.shared] = None

    def _on_position_deleted(self, topic: str, name: str, partition: int) -> None:
        group = self._registry.find(topic, name)
        if group is None:
            return
        if partition in group.positions:
            shared = group.positions[partition].shared
            shared.on_record_deleted()
            self._changed[shared] = None
        if not group.members and not any(each.version for each in _positions(group)):
            self._registry.remove(group)

    def _on_claim_changed(self, record: KeptRecord) -> None:
        topic, name, (partition, epoch) = parts_of(record.key)
        group = self._registry.find(topic, name)
        position = None if group is None else group.positions.get(partition)
        if position is None:
            return  # of a group that is gone
        shared = position.shared
        own = epoch == self._cluster.epoch
        if record.version == ABSENT:
            claim = shared.claims.pop(epoch, None)
            shared.lost = shared.lost or (own and claim is not None)
        else:
            written = decode_claim(record.value)
            if shared.on_claim_changed(epoch, written, record.version) and own and written.number:
                self._stored[shared] = written.number
        self._changed[shared] = None

    def _on_copy_changed(self, record: KeptRecord) -> None:
        topic, name, (partition, offset) = parts_of(record.key)
        group = self._registry.find(topic, name)
        if group is not None and partition in group.positions:
            copies = group.positions[partition].copies
            if record.version == ABSENT:
                copies.discard(offset)
            else:
                copies.add(offset)

    def _on_members_record_changed(self, record: KeptRecord) -> None:
        self._apply_members(*self._presence.on_changed(record))

    def _apply_members(self, topic: str, name: str) -> None:
        group = self._registry.find(topic, name)
        if group is not None:
            self._topics.apply(group.topic, group)
            self._registry.on_members_changed(group)
            self._delivery.wake(group)

    def _on_commit_shown(self) -> None:
        """All records of a commit were shown: see where the groups stand, and go on from there."""
        changed, self._changed = self._changed, {}
        stored, self._stored = self._stored, {}
        now, to_wall = self._clock.now_ms(), self._to_wall()
        for shared in changed:
            position, group = shared.position, shared.position.group
            shared.update()
            if shared.lost:
                shared.drop()
            elif shared in stored:
                for event in shared.on_stored(stored[shared], now, to_wall):
                    self._hold_suspect(position, event)
                self._delete_copies(shared)
            own = shared.claims.get(self._cluster.epoch)
            if own is not None and own.lowest is None and shared.last_committed < position.committed():
                self._plan_commit(shared)
            shared.forget_bodies()
            if group.members or shared.returning:
                self._delivery.wake(group)

    def _hold_suspect(self, position: Position, event: OpenEvent) -> None:
        """Functions of this node are called with it alone, if nodes ended with it more than once."""
        ends = position.ends.get(event.offset, (0, 0))[0]
        if ends >= SUSPECT and not event.dying and self._registry.is_in_process(position.group):
            self._delivery.hold_suspect(self._cluster.suspects, position, event)

    def _handles_suspect(self) -> bool:
        groups = [group for group in self._registry.all() if self._registry.is_in_process(group)]
        return any(position.handles_suspect() for group in groups for position in group.positions.values())

    # -- other nodes

    def _on_death(self, epoch: int) -> None:
        for topic, name in self._presence.groups_of(epoch):
            self._apply_members(topic, name)
        rank = sum(1 for node in self._cluster.nodes() if node.epoch < self._cluster.epoch)
        self._plan_takeover(rank * STAGGER_MS)

    def _on_fenced(self, former: int) -> None:
        """What this node had belongs to the node that takes it."""
        for shared in self._all():
            shared.drop()
            self._delivery.wake(shared.position.group)
        self._presence.on_fenced()

    def _on_in_touch(self) -> None:
        for group in self._registry.all():
            self._delivery.wake(group)

    def _plan_takeover(self, wait_ms: int) -> None:
        if not self._takeover_planned:
            self._takeover_planned = True
            self._loop.schedule(wait_ms, self._take_over, None, ref=False)

    def _take_over(self, _: None) -> None:
        """Take over the claims of nodes that are gone, and delete their presences; until there are no more."""
        self._takeover_planned = False
        orphaned = [shared for shared in self._all() if self._orphans(shared)]
        for shared in orphaned:
            self._delivery.changed(shared.position)
        for shared in self._all():
            self._delete_copies(shared)
        presences = self._presence.orphans()
        if presences:
            batch = Batch()
            self._cluster.guard(batch)
            for key in presences:
                batch.delete(MEMBERS, key)
            self._log.submit(batch, lambda _: None)
        if orphaned or presences:
            self._plan_takeover(RETRY_MS)

    def _delete_copies(self, shared: SharedPosition) -> None:
        """Of events that were dead letters, were sent back and are settled now."""
        position = shared.position
        settled = position.copies - shared.unsettled() if position.copies else ()
        if settled:
            batch = Batch()
            self._cluster.guard(batch)
            for offset in settled:
                batch.delete(COPIES, position.copy_key(offset))
            self._log.submit(batch, lambda _: None)  # if it fails, the next commit or takeover sees to it

    def _orphans(self, shared: SharedPosition) -> list[tuple[int, int, ClaimRecord]]:
        """Claims of nodes that are gone: epoch, version and content."""
        return [
            (epoch, claim.version, claim.record)
            for epoch, claim in shared.claims.items()
            if epoch != self._cluster.epoch and not self._cluster.alive(epoch)
        ]

    # -- delivering

    def add_position(self, position: Position) -> None:
        position.shared = SharedPosition(position)

    def deliver(self, group: Group, now: int) -> None:
        """Give out what this node has; then return what no member here can have, and take more.

        Nothing is given out while others may have taken this node's lease away.
        """
        if not self._cluster.in_touch:
            return
        group.deliver_again(now)
        group.flush()
        room = sum(member.room() for member in group.choice.rotation())
        if group.choice.most:  # what the others have counts as well
            remote = sum(self.remote_inflight(position) for position in group.turns)
            room = min(room, group.choice.free() - remote)
        for shared in _positions(group):
            room -= len(shared.position.waiting) + sum(len(write.taken) for write in shared.writes.values())
        for _ in range(len(group.turns)):
            position = group.turns[0]
            group.turns.rotate(-1)
            room -= self._exchange(position.shared, room, now)

    def _exchange(self, shared: SharedPosition, room: int, now: int) -> int:
        """One position's turn; how many events are being taken."""
        position, group = shared.position, shared.position.group
        if position.write_locked or now < shared.retry_at:
            return 0  # it comes again when the write is decided, or when its time has come
        division = self._presence.division(group, position.partition)
        if division is Division.REMOTE or not group.members:
            shared.return_unleased()
        elif division is Division.TOGETHER and not group.choice.someone_has_room:
            shared.return_waiting()
        transfer = Transfer(shared)
        if group.members and division is not Division.REMOTE and not shared.returning:
            if division is Division.TOGETHER and self._others_first(shared, now):
                pass
            elif division is Division.TOGETHER:
                transfer.take(room, self._presence, now, self._to_wall())
            elif all(claim.lowest() is None for claim in shared.other_claims(self._cluster.epoch)):
                transfer.take_in_order(room)
        if transfer.moves_something() or shared.counting:
            self._write(transfer)
        return len(transfer.taken)

    def _others_first(self, shared: SharedPosition, now: int) -> bool:
        """Whether another node should take what there is; if it does not, this one tries when its turn has come."""
        position, group = shared.position, shared.position.group
        if not shared.free and position.cursor > position.tail.offset:
            shared.turn = None
            return False
        if shared.turn is None or shared.turn[0] != shared.version:
            shared.turn = (shared.version, now)
        ahead = self._presence.ahead(group, shared.version, partial(_held_by, group))
        turn_at = shared.turn[1] + min(ahead, MOST_TURNS) * max(TURN_MS, int(COMMITS_PER_TURN * self._log.commit_ms))
        if now >= turn_at:
            return False
        group.check_at(turn_at)
        return True

    def may_redeliver(self, position: Position, event: OpenEvent) -> bool:
        """Once the attempt is in the log: if the node ends before it could store it, it counts all the same."""
        return position.group.choice.someone_has_room and position.shared.has_counted(event, self._cluster.epoch)

    async def before_attempt(self, position: Position) -> None:
        """Attempts are stored already; but a node that was stopped may have lost its lease, and the event with it."""
        if not self._cluster.in_touch:
            certain = asyncio.Event()
            self._cluster.when_in_touch(certain.set)
            await certain.wait()

    def on_members_changed(self, group: Group) -> None:
        self._presence.changed(group)
        self._delivery.wake(group)

    def on_fetched(self, position: Position, present: Mapping[int, ReadyEvent], start: int, end: int) -> None:
        shared = position.shared
        for offset in shared.free:
            if start <= offset <= end:
                if offset in present:
                    position.bodies[offset] = present[offset]
                else:
                    shared.vanished.add(offset)

    def accepted_remotely(self, group: Group, ready: ReadyEvent) -> bool:
        return self._presence.accepted_remotely(group, ready)

    def return_unplaced(self, position: Position, event: OpenEvent, ready: ReadyEvent) -> bool:
        """Unless its key sticks to this node."""
        if self._presence.division(position.group, position.partition) is not Division.TOGETHER:
            return False
        position.shared.return_to_group(event)
        position.bodies[ready.offset] = ready
        return True

    # -- writing

    def store(self, positions: Sequence[Position]) -> None:
        for position in positions:
            self._write(Transfer(position.shared))

    def _write(self, transfer: Transfer) -> None:
        shared = transfer.shared
        before = self._number
        batch = self._batch(transfer)
        if batch is None:
            return
        number = self._number if self._number != before else 0  # 0: the claim is not part of it
        versions = self._versions(shared)
        shared.position.write_locked = True
        self._delivery.write_audit()
        self._log.submit(batch, partial(self._on_decided, shared, number, versions))

    def _versions(self, shared: SharedPosition) -> tuple[int, int]:
        return shared.version, shared.claim_version(self._cluster.epoch)

    def _on_decided(self, shared: SharedPosition, number: int, before: tuple[int, int], result: Result) -> None:
        in_doubt, refused = isinstance(result, InDoubt), isinstance(result, Refused)
        if isinstance(result, Receipt) or (in_doubt and number and number not in shared.writes):
            shared.failures = 0
        else:
            if not in_doubt:
                shared.writes.pop(number, None)
            if not (refused and self._versions(shared) != before):
                self._retry_later(shared, refused=refused)
            self._delivery.changed(shared.position)
        self._delivery.unlock(shared.position)
        self._delivery.wake(shared.position.group)

    def _retry_later(self, shared: SharedPosition, *, refused: bool) -> None:
        """Nothing has changed that would make another try succeed: wait, longer each time."""
        shared.failures += 1
        wait = REFUSED.delay_ms(shared.failures) if refused else RETRY_MS
        shared.retry_at = self._clock.now_ms() + wait
        shared.position.store_after = max(shared.position.store_after, shared.retry_at)
        if not self._delivery.closed:
            self._loop.schedule(wait, self._delivery.wake, shared.position.group, ref=False)

    def _plan_commit(self, shared: SharedPosition) -> None:
        """The shared record says less than is settled: for those who look into the log, write it once in a while."""
        if not self._uncommitted and not self._delivery.closed:
            self._loop.schedule(COMMIT_MS, self._write_commits, None, ref=False)
        self._uncommitted[shared] = None

    def _write_commits(self, _: None) -> None:
        uncommitted, self._uncommitted = self._uncommitted, {}
        for shared in uncommitted:
            position = shared.position
            if position.committed() <= shared.last_committed or position.group.deleted:
                continue
            if position.write_locked:
                self._plan_commit(shared)
            else:
                self._write(Transfer(shared, commit=True))

    # -- what to write

    def _batch(self, transfer: Transfer, *, last: bool = False) -> Batch | None:
        """Everything there is to write about the position; None: nothing. `last`: the node has nothing more."""
        shared, position, own = transfer.shared, transfer.shared.position, self._cluster.epoch
        to_wall = self._to_wall()
        orphans = self._orphans(shared)
        batch = Batch()
        self._cluster.guard(batch)
        moves = bool(orphans) or transfer.moves_something()
        if moves:
            free = shared.free_after(to_wall, transfer.taken, transfer.passed, [record for _, _, record in orphans])
            cursor = max(transfer.cursor, shared.next_offset)
            self._put_shared(batch, shared, cursor, transfer.skip_before, free=free)
            for epoch, version, _ in orphans:
                batch.delete(CLAIMS, _claim_key(position, epoch), expect=version)
        held = shared.held(to_wall, taken=transfer.taken)
        if last:
            batch.delete(CLAIMS, _claim_key(position, own), expect=shared.claim_version(own))
        elif transfer.taken or shared.returning or shared.writes or held != self._last_held(shared):
            # Also when a write is in doubt and nothing is new: this one, or its refusal, makes that certain.
            write = ClaimWrite(PositionWrite(position), dict(transfer.taken), tuple(shared.returning))
            self._put_claim(batch, shared, held, write)
        elif not moves:
            return None
        return batch

    def _last_held(self, shared: SharedPosition) -> UnsettledFields:
        claim = shared.claims.get(self._cluster.epoch)
        return NOTHING if claim is None else claim.record.fields()

    def _put_shared(
        self,
        batch: Batch,
        shared: SharedPosition,
        cursor: int,
        skip_before: int,
        *,
        free: UnsettledFields = NOTHING,
        committed: int | None = None,
        moves: int | None = None,
    ) -> None:
        position = shared.position
        record = PositionRecord(
            topic=position.group.topic.name,
            group=position.group.name,
            partition=position.partition,
            last_committed=position.committed() if committed is None else committed,
            updated_ts=self._clock.wall_ms(),
            cursor=cursor,
            open=free.open,
            retried=free.retried,
            skip_before=skip_before,
            generation=shared.moves if moves is None else moves,
            fresh=free.fresh,
            ended=free.ended,
        )
        batch.put(SPACE, position.key, encode_position(record), expect=shared.version)

    def _put_claim(self, batch: Batch, shared: SharedPosition, held: UnsettledFields, write: ClaimWrite) -> None:
        self._number += 1
        position, epoch = shared.position, self._cluster.epoch
        text = encode(
            ClaimRecord(
                topic=position.group.topic.name,
                group=position.group.name,
                partition=position.partition,
                epoch=epoch,
                generation=shared.moves,
                number=self._number,
                fresh=held.fresh,
                open=held.open,
                retried=held.retried,
                ended=held.ended,
                in_process=self._registry.is_in_process(position.group),
            )
        )
        position.written(self._clock.now_ms(), len(text))
        shared.writes[self._number] = write
        batch.put(CLAIMS, _claim_key(position, epoch), text, expect=shared.claim_version(epoch))

    def put_position(self, batch: Batch, position: Position, settles: frozenset[int] = frozenset()) -> PositionWrite:
        """This node's claim without what the batch settles. The change feed says whether it was stored."""
        shared = position.shared
        self._cluster.guard(batch)
        held = shared.held(self._to_wall(), without=settles, returning=shared.returning)
        write = ClaimWrite(PositionWrite(position), settled=settles)
        self._put_claim(batch, shared, held, write)
        return write.outcome

    # -- groups

    async def store_group(self, group: Group) -> None:
        """Where another node was faster, its start stands."""
        while True:
            absent = [shared for shared in _positions(group) if shared.version == ABSENT]
            if not absent:
                return
            batch = Batch()
            for shared in absent:
                position = shared.position
                settled = max(0, min(position.cursor - 1, position.tail.offset))
                self._put_shared(batch, shared, position.cursor, position.skip_before, committed=settled, moves=0)
            try:
                await self._log.commit(batch)
            except Refused:
                await self._read_again(absent)

    async def _read_again(self, absent: list[SharedPosition]) -> None:
        for shared in absent:
            record = await self._log.get(SPACE, shared.position.key)
            if record is not None:
                self._on_position_changed(KeptRecord(SPACE, record.key, record.value, record.version))
        self._on_commit_shown()

    async def move(self, group: Group, starts: Starts) -> None:
        await self.store_group(group)
        await asyncio.gather(
            *(self._move(group.positions[partition].shared, *start) for partition, start in starts.items())
        )

    async def _move(self, shared: SharedPosition, cursor: int, skip_before: int) -> None:
        wanted = None
        for _ in range(MOVE_TRIES):
            if wanted is not None and (shared.moves, shared.next_offset) == wanted:
                return  # the answer was lost, but it has happened
            await self._delivery.lock(shared.position)
            try:
                wanted = (shared.moves + 1, cursor)
                await self._log.commit(self._move_batch(shared, cursor, skip_before))
                return
            except (Refused, InDoubt):
                pass  # the change feed says how things stand
            finally:
                self._delivery.unlock(shared.position)
                self._delivery.wake(shared.position.group)  # the change may have come while it was locked
            await asyncio.sleep(MOVE_PAUSE_S)
        raise Unavailable(f"group {shared.position.group.name!r} is too busy to be moved", remedy="try again")

    async def is_open(self, position: Position, offset: int) -> bool:
        """Who asks may have read in the log what the change feed has yet to show: then it is waited for."""
        for _ in range(MOVE_TRIES):
            if offset < position.cursor and offset not in position.shared.unsettled():
                return False
            if await self._is_shown(position):
                return True
            await asyncio.sleep(MOVE_PAUSE_S)
        raise Unavailable(f"this node does not know yet how group {position.group.name!r} stands", remedy="try again")

    async def _is_shown(self, position: Position) -> bool:
        """Whether this node knows everything that the log says about a position."""
        record = await self._log.get(SPACE, position.key)
        claims = {each.key: each.version async for each in self._log.scan(CLAIMS, f"{position.key}{SEPARATOR}")}
        shared = position.shared
        known = {_claim_key(position, epoch): claim.version for epoch, claim in shared.claims.items()}
        return shared.version == (ABSENT if record is None else record.version) and known == claims

    async def reopen(self, position: Position, prepare: Callable[[], Awaitable[Reopening | None]]) -> bool:
        """The events are free: any node may take them."""
        shared, in_doubt = position.shared, False
        for _ in range(MOVE_TRIES):
            await self._delivery.lock(position)
            try:
                version = shared.version
                reopening = await prepare()
                if reopening is None:
                    return in_doubt  # a write whose answer was lost has happened
                if shared.version == version:
                    self._cluster.guard(reopening.batch)
                    free = pack({**shared.free, **dict.fromkeys(reopening.offsets, REOPENED)})
                    self._put_shared(reopening.batch, shared, shared.next_offset, position.skip_before, free=free)
                    await self._log.commit(reopening.batch)
                    return True
            except Refused:
                pass  # the change feed says how things stand
            except InDoubt:
                in_doubt = True
            finally:
                self._delivery.unlock(position)
                self._delivery.wake(position.group)  # the change may have come while it was locked
            await asyncio.sleep(MOVE_PAUSE_S)
        raise Unavailable(f"group {position.group.name!r} is too busy to take events back", remedy="try again")

    def _move_batch(self, shared: SharedPosition, cursor: int, skip_before: int) -> Batch:
        """Take everything from all nodes, and start again. A claim that is written meanwhile is taken all the same:
        the node that wrote it has touched the shared record, or has only settled what it had."""
        batch = Batch()
        position, moves = shared.position, shared.moves + 1
        self._put_shared(batch, shared, cursor, skip_before, moves=moves)
        for epoch in shared.claims:
            if self._cluster.alive(epoch):
                empty = ClaimRecord(position.group.topic.name, position.group.name, position.partition, epoch, moves)
                batch.put(CLAIMS, _claim_key(position, epoch), encode(empty))
            else:
                batch.delete(CLAIMS, _claim_key(position, epoch))
        return batch

    async def delete(self, group: Group) -> None:
        """The change feed removes it from the registry, here as on every node."""
        batch = Batch()
        self._cluster.guard(batch)
        for shared in _positions(group):
            batch.delete(SPACE, shared.position.key)
            for offset in shared.position.copies:
                batch.delete(COPIES, shared.position.copy_key(offset))
            for epoch in shared.claims:
                batch.delete(CLAIMS, _claim_key(shared.position, epoch))
        await self._log.commit(batch)

    def member_count(self, group: Group) -> int:
        return self._presence.count(group)

    def members(self, group: Group) -> list[MemberView]:
        return self._presence.members(group, partial(_held_by, group))

    def remote_inflight(self, position: Position) -> int:
        """Other nodes lease what they take at once."""
        return sum(claim.count() for claim in position.shared.other_claims(self._cluster.epoch))

    def remote_leases(self, position: Position, wall_ms: int) -> list[LeaseView]:
        shared = position.shared
        held = [(0, "waiting", shared.free)]
        held += [(claim.epoch, "leased", claim.fields().events()) for claim in shared.other_claims(self._cluster.epoch)]
        return [
            LeaseView(
                position.partition,
                offset,
                "delayed" if event.due > wall_ms else state,
                event.deliveries,
                event.due,
                reason=event.reason,
                epoch=epoch,
            )
            for epoch, state, events in held
            for offset, event in events.items()
        ]


def _positions(group: Group) -> list[SharedPosition]:
    return [position.shared for position in group.positions.values()]


def _held_by(group: Group, epoch: int) -> int:
    """How many events the node of this epoch has, as far as the log shows."""
    claims = (shared.claims.get(epoch) for shared in _positions(group))
    return sum(claim.record.count() for claim in claims if claim is not None)


def _claim_key(position: Position, epoch: int) -> str:
    return claim_key(position.group.topic.name, position.group.name, position.partition, epoch)
