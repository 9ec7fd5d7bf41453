"""A line of beats on a log that several nodes share: one node leads it, all others follow.

Leading is a role of the cluster. Its guard is in every batch of the line, so a node that slept while another took over
cannot add a beat, and every batch says which head it follows. The next leader reads the line from the log and goes on
where it ends: the same state, the same inboxes, the same chain of digests. After a write of unknown fate the leader
reads the line again as well, before it does anything else; what the log holds is what happened.

What comes from outside goes through the line's topic (`signal_topic.py`), also on the leader's own node: there is one
way. Followers apply the leader's batches as they see them in the log.

While nodes have different programs, one with the newest program that has enzymes leads. A signal is worked on by the
enzymes of the leader and is gone afterwards; a leader with an older program, or with none, would pass over signals that
a newer one knows. So an older node does not try to lead while a newer one is there, and when a newer one comes, the
older leader hands over between two beats. Among nodes with the same program nothing changes hands. A newer node counts
from when it is ready, so the line does not wait for one that is still starting.

The reasons are in docs/decisions/beats-shared.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from mainspring.beats.calls import EnzymeHost
from mainspring.beats.errors import LineBusy, NotLeading
from mainspring.beats.lineage import current_origin
from mainspring.beats.matching.registry import Bind
from mainspring.beats.report import BeatReport
from mainspring.beats.shared.signal_topic import LineInput, SignalTopic
from mainspring.beats.storage.journal import Impulse
from mainspring.beats.storage.line import RECENT_BEATS, SPACE, LineImage, LineWriter, StoredLine, journals_of
from mainspring.cluster import NODES, Membership, NodeView, ProgramVersions, Role
from mainspring.errors import MainspringError
from mainspring.log import ABSENT, Batch, Change, InDoubt, KeptRecord, Log
from mainspring.loop import BackgroundTasks, Clock

if TYPE_CHECKING:
    from mainspring.beats.heartbeat import Heartbeat

T = TypeVar("T")

BEATS_ROLE: Final = "beats"  # of the line `main`; also what a node announces whose program has enzymes
_READ_AGAIN_S: Final = 1.0  # before a line that could not be read is read again

_log: Final = logging.getLogger("mainspring.beats")


class SharedLine:
    """One node's access to a line that all nodes of a cluster share."""

    unseen_input = True

    def __init__(self, heartbeat: Heartbeat, log: Log, cluster: Membership, clock: Clock) -> None:
        self._heartbeat = heartbeat
        self._log = log
        self._name = heartbeat.line
        self._cluster = cluster
        self._role_name = BEATS_ROLE if self._name == "main" else f"{BEATS_ROLE}/{self._name}"
        self._role: Role | None = None
        self._programs: ProgramVersions | None = None
        self._able = True
        self._topic = SignalTopic(log, self._name, cluster.node, lambda: cluster.epoch, clock)
        self._sending = asyncio.Lock()
        self._leading = False  # the state in memory is the leader's own
        self._stale = False  # it must be read again
        self._follower: LineFollower | None = None
        self._early: list[Change] | None = None  # changes that came while the line was being read
        self._declared: list[tuple[str, str, str]] = []
        self._tasks = BackgroundTasks(_log, f"line {self._name}")
        self._closed = False

    # --- opening and reading ------------------------------------------------------------------------------------------

    async def open(self, programs: ProgramVersions | None, *, able: bool) -> None:
        """Read the line, watch the log, and be ready to lead."""
        self._programs, self._able = programs, able
        self._declared = self._heartbeat.state.bindings.records()
        self._log.watch(self._on_change)
        await self._read(leading=False)
        self._cluster.roles.only_if(self._role_name, self._is_fit)
        self._role = self._cluster.role(self._role_name)
        self._role.on_change(self._on_role_change)

    async def close(self) -> None:
        self._closed = True  # the roles of this node end after this, and nobody reads a line for them any more
        await self._tasks.cancel()

    async def _read(self, *, leading: bool) -> None:
        heartbeat = self._heartbeat
        self._early = []
        state = heartbeat.state.fresh()
        line = StoredLine(self._log, self._name)
        writer = LineWriter(line, state, heartbeat.program, self._guard)
        try:
            image = await line.load(state)
            if leading:
                await self._topic.open()
            if image is not None and leading:
                await writer.continue_from(image, self._declared)
            elif image is not None:
                for beat in range(max(state.oldest, state.beat - RECENT_BEATS), state.beat):
                    state.note_journal(beat, await line.journal(beat) or b"")
            elif leading:
                for record in self._declared:
                    writer.note_binding(state.change(Bind(*record)))
        except BaseException:
            self._early = None
            raise
        image = image or LineImage(state)
        self._follower = None if leading else LineFollower(self._name, image)
        self._leading, self._stale = leading, False
        heartbeat.continue_with(state, writer)
        early, self._early = self._early or [], None
        for change in early:
            self._on_line_change(change, newer_than=image.version)

    def _guard(self, batch: Batch) -> None:
        if self._role is not None:
            self._role.guard(batch)

    # --- what happens in the log --------------------------------------------------------------------------------------

    def _on_change(self, change: Change) -> None:
        for appended in change.appended:
            if appended.topic == self._topic.name:
                self._topic.tail = max(self._topic.tail, appended.last)
                self._wake()
        self._on_line_change(change)
        self._on_node_change(change)

    def _on_line_change(self, change: Change, newer_than: int = ABSENT) -> None:
        head = f"{self._name}/head"
        versions = [record.version for record in change.records if record.space == SPACE and record.key == head]
        if not versions:
            return
        if self._early is not None:
            self._early.append(change)
        elif versions[-1] <= newer_than:
            return
        elif self._leading:
            self._stale = self._stale or not change.own
            if not self.leads:
                self._read_again()
        elif self._follower is not None:
            self._follower.apply(change.records)
            if self._follower.lost_track:
                self._read_again()

    def _on_role_change(self, held: bool) -> None:
        if held:
            self._wake()
        elif self._leading:
            self._read_again()

    def _wake(self) -> None:
        if self.leads:
            self._heartbeat.wake()

    def _read_again(self) -> None:
        if not self._closed:
            self._tasks.start_unless_running(self._follow, "read the line")

    async def _follow(self) -> None:
        """Read the line as a follower; until it succeeds: there may be no further change to remind this node."""
        while True:
            try:
                async with self._heartbeat.turn():
                    if not self.leads:
                        await self._read(leading=False)
                return
            except MainspringError as error:
                _log.warning("line %s cannot be read now: %s", self._name, error)
                await asyncio.sleep(_READ_AGAIN_S)

    # --- from outside -------------------------------------------------------------------------------------------------

    def signal(self, impulse: Impulse, beat: int | None, lands: int) -> None:
        self._topic.add(LineInput(signal=impulse.signal, target=impulse.target, beat=beat, origin=current_origin()))

    def change(self, change: object) -> None:
        """Bindings go to the leader; registrations, and what a program binds before it opens the line, stay here."""
        if self._role is not None and isinstance(change, Bind):
            self._send_soon(LineInput(bind=(change.path, change.name, change.kind)))
        else:
            self._heartbeat.apply_or_defer(change)

    def set_paused(self, paused: bool) -> None:
        self._send_soon(LineInput(pause=paused))

    def _send_soon(self, item: LineInput) -> None:
        self._topic.add(item)
        self._heartbeat.wake()

    @property
    def unsent(self) -> int:
        return self._topic.unsent

    async def flush(self) -> None:
        """Make durable what came to this node from outside."""
        async with self._sending:
            await self._topic.send()

    # --- leading ------------------------------------------------------------------------------------------------------

    @property
    def leads(self) -> bool:
        return self._role is not None and self._role.held

    @property
    def leader(self) -> NodeView | None:
        return next((node for node in self._cluster.nodes() if self._role_name in node.roles), None)

    @property
    def input_waits(self) -> bool:
        return self._leading and self._topic.waits

    async def ready(self, *, for_work: bool) -> bool:
        """Send what came here and, when leading, take what came anywhere; whether a beat is due now."""
        heartbeat = self._heartbeat
        async with heartbeat.turn():
            await self.flush()
            if not self.leads:
                return False
            await self._watching_writes(self._take)
            if heartbeat.paused:
                await self._watching_writes(heartbeat.writer.save_between_beats)
                return False
        return not for_work or bool(heartbeat.waiting or heartbeat.inlets) or heartbeat.waiting_later

    async def beat(self, host: EnzymeHost) -> BeatReport:
        """Run one beat of the line; `not_leading` when another node does."""
        await self.flush()
        if not self.leads:
            leader = self.leader
            remedy = f"ask node {leader.name}" if leader is not None else "wait until one of the nodes leads it"
            raise NotLeading(f"another node runs the beats of line {self._name!r}", remedy=remedy)
        await self._watching_writes(self._take)
        return await self._watching_writes(partial(self._heartbeat.run_beat, host))

    async def _watching_writes(self, work: Callable[[], Awaitable[T]]) -> T:
        """After a write that was refused, or may have been stored, only what the log holds counts."""
        try:
            return await work()
        except InDoubt:
            self._stale = True
            raise
        except LineBusy as error:
            self._stale = True
            raise NotLeading(
                f"line {self._name!r} was written by another node, or by an earlier try of this one",
                remedy="nothing is lost: it is read again before the next beat",
            ) from error

    async def _take(self) -> None:
        heartbeat = self._heartbeat
        if not self._leading or self._stale:
            for inlet in heartbeat.inlets:
                forget = getattr(inlet, "forget", None)
                if forget is not None:
                    forget()
            await self._read(leading=True)
        taken = await self._topic.take()
        for item in taken:
            heartbeat.accept_input(item)
        if taken:
            heartbeat.writer.save_with(self._topic.operations())

    # --- nodes with different programs --------------------------------------------------------------------------------

    def _is_fit(self) -> bool:
        """Whether no other node has a newer program with enzymes."""
        own = (self._able, 0 if self._programs is None else self._programs.rank(self._programs.digest))
        return not any(self._rank(node) > own for node in self._cluster.nodes() if not node.here)

    def _rank(self, node: NodeView) -> tuple[bool, int]:
        return BEATS_ROLE in node.able, 0 if self._programs is None else self._programs.rank(node.program)

    def _on_node_change(self, change: Change) -> None:
        changed = False
        for record in change.records:
            order_changed = self._programs is not None and self._programs.on_record(record)
            changed = changed or order_changed or record.space == NODES
        if changed and self.leads and not self._tasks.is_running("hand over") and not self._is_fit():
            self._tasks.start(self._hand_over(), "hand over")

    async def _hand_over(self) -> None:
        """Between two beats: what an enzyme began is finished first."""
        try:
            async with self._heartbeat.turn():
                await self._cluster.roles.hand_over(self._role_name)
            _log.info("a node with a newer program leads the beats from now on")
        except MainspringError as error:
            _log.debug("the beats could not be handed over yet: %s", error.message)  # tried with the next change


class LineFollower:
    """Applies the batches of the leader to the image of the line.

    So reading answers on every node, from memory, as of the last beat that was seen in the log. Nothing is decided from
    it: a node that gets to run beats reads the line from the log first. Applying the same batch twice changes nothing,
    because a line that is read while another node writes it may hold some of what the next batches say again.
    """

    def __init__(self, name: str, image: LineImage) -> None:
        self._prefix = f"{name}/"
        self._journals = journals_of(name)
        self._image = image
        self.lost_track: bool = False  # something happened that cannot be followed: read the line again

    def apply(self, records: Iterable[KeptRecord]) -> None:
        """Apply the records of one batch that are about this line."""
        pieces: dict[int, list[bytes]] = {}
        for record in records:
            if record.space == SPACE and record.key.startswith(self._prefix):
                kind, _, key = record.key.removeprefix(self._prefix).partition("/")
                if record.version == ABSENT:
                    self._delete(kind, key)
                else:
                    self._image.apply(kind, key, record.value)
            elif record.space == self._journals and record.version != ABSENT:
                pieces.setdefault(int(record.key[:16]), []).append(record.value)
        for beat, parts in pieces.items():
            self._image.state.note_journal(beat, b"".join(parts))

    def _delete(self, kind: str, key: str) -> None:
        """What retention takes is let go by the head; bindings that were put together are read again."""
        if kind == "queue":
            self._image.queued.pop(key, None)
        elif kind in ("bindings", "head"):
            self.lost_track = True
