"""A line of beats on a log that several nodes share: one node leads it, all others follow.

Leading is a role of the cluster. Its guard is in every batch of the line, so a node that slept while another took over
cannot add a beat, and every batch says which head it follows. The next leader reads the line from the log and goes on
where it ends: the same state, the same inboxes, the same chain of digests. After a write of unknown fate the leader
reads the line again as well, before it does anything else; what the log holds is what happened.

What comes from outside goes through the line's intake (`intake.py`), also on the leader's own node: there is one way.
Followers apply the leader's batches as they hear of them (`following.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, TypeVar

from mainspring.beats.errors import LineBusy, NotLeading
from mainspring.beats.history.report import Report
from mainspring.beats.matching.changes import Bind
from mainspring.beats.shared.follower import Follower
from mainspring.beats.shared.signal_topic import Intake, Sent
from mainspring.beats.state import RECENT
from mainspring.beats.storage.keeper import Keeper
from mainspring.beats.storage.line import SPACE, Line
from mainspring.cluster import Cluster, NodeView, Role
from mainspring.errors import MainspringError
from mainspring.log import ABSENT, Batch, Change, InDoubt, Log
from mainspring.loop import Clock

if TYPE_CHECKING:
    from mainspring.beats.shared.heartbeat import SharedHeartbeat

T = TypeVar("T")

_AGAIN_S: Final = 1.0  # before a line that could not be read is read again

_log: Final = logging.getLogger("mainspring.beats")


class SharedLine:
    """One node's part in a line that all nodes of a cluster share."""

    def __init__(self, heartbeat: SharedHeartbeat, log: Log, name: str, cluster: Cluster, clock: Clock) -> None:
        self._heartbeat = heartbeat
        self._log = log
        self._name = name
        self._cluster = cluster
        self._role: Role | None = None
        self._intake = Intake(log, name, cluster.node, lambda: cluster.epoch, clock)
        self._sending = asyncio.Lock()
        self._leading = False  # the state in memory is the leader's own
        self._stale = False  # it must be read again
        self._follower: Follower | None = None
        self._early: list[Change] | None = None  # news that came while the line was being read
        self._declared: list[tuple[str, str, str]] = []
        self._reading: asyncio.Task[None] | None = None

    # --- opening and reading ------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Read the line, listen, and be ready to lead it."""
        self._declared = self._heartbeat.state.bindings.records()
        self._log.watch(self._hear)
        await self._read(leading=False)
        self._role = self._cluster.role("beats" if self._name == "main" else f"beats/{self._name}")
        self._role.on_change(self._role_changed)

    async def _read(self, *, leading: bool) -> None:
        heartbeat = self._heartbeat
        self._early = []
        state = heartbeat.state.fresh()
        line = Line(self._log, self._name, forgets_beats=state.rules.retain_beats is not None, guard=self._guard)
        keeper = Keeper(line, state, heartbeat.program)
        try:
            kept = await line.load()
            if leading:
                await self._intake.open()
            if kept is not None and leading:
                await keeper.go_on_from(kept, self._declared)
            elif kept is not None:
                state.restore(kept)
                for beat in range(max(state.oldest, state.beat - RECENT), state.beat):
                    state.follow(beat, await line.journal(beat) or b"")
            elif leading:
                for record in self._declared:
                    keeper.note_binding(state.change(Bind(*record)))
        except BaseException:
            self._early = None
            raise
        self._follower = None if leading else Follower(self._name, state, kept)
        self._leading, self._stale = leading, False
        heartbeat.go_on_with(state, keeper)
        early, self._early = self._early or [], None
        for change in early:
            self._hear(change, newer_than=line.version)

    def _guard(self, batch: Batch) -> None:
        if self._role is not None:
            self._role.guard(batch)

    # --- news ---------------------------------------------------------------------------------------------------------

    def _hear(self, change: Change, newer_than: int = ABSENT) -> None:
        for appended in change.appended:
            if appended.topic == self._intake.topic:
                self._intake.tail = max(self._intake.tail, appended.last)
                self._wake()
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
            self._follower.hear(change.records)
            if self._follower.lost_track:
                self._read_again()

    def _role_changed(self, held: bool) -> None:
        if held:
            self._wake()
        elif self._leading:
            self._read_again()

    def _wake(self) -> None:
        if self.leads:
            self._heartbeat.wake()

    def _read_again(self) -> None:
        """As a follower, again and again until it succeeds: there may be no more news that could remind this node."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.get_running_loop().create_task(self._follow())

    async def _follow(self) -> None:
        while True:
            try:
                async with self._heartbeat.turn():
                    if not self.leads:
                        await self._read(leading=False)
                return
            except MainspringError as error:
                _log.warning("line %s cannot be read now: %s", self._name, error)
                await asyncio.sleep(_AGAIN_S)

    def close(self) -> None:
        """Read nothing any more."""
        if self._reading is not None:
            self._reading.cancel()

    # --- from outside -------------------------------------------------------------------------------------------------

    def send_later(self, item: Sent) -> None:
        """Have something sent with the next `send`."""
        self._intake.add(item)

    @property
    def unsent(self) -> int:
        return self._intake.unsent

    async def send(self) -> None:
        """Make durable what came to this node from outside."""
        async with self._sending:
            await self._intake.send()

    # --- leading ------------------------------------------------------------------------------------------------------

    @property
    def leads(self) -> bool:
        """Whether this node is the one to run beats, as far as it knows."""
        return self._role is not None and self._role.held

    @property
    def waits(self) -> bool:
        """Whether something from outside is still to be taken by the leader."""
        return self._leading and self._intake.waits

    async def ready(self) -> bool:
        """Send what came here and, when leading, take what came anywhere; whether a beat may run now."""
        await self.send()
        if not self.leads:
            return False
        await self._careful(self._take)
        if self._heartbeat.state.paused:
            await self._careful(self._heartbeat.keeper.save_rest)
        return not self._heartbeat.state.paused

    async def beat(self, run: Callable[[], Awaitable[Report]]) -> Report:
        """Run one beat of the line; `not_leading` when another node does."""
        await self.send()
        if not self.leads:
            raise NotLeading(f"another node runs the beats of line {self._name!r}", remedy=self._who())
        await self._careful(self._take)
        return await self._careful(run)

    @property
    def leader(self) -> NodeView | None:
        """The node that leads the line, as far as this one knows."""
        role = self._role.name if self._role is not None else ""
        return next((node for node in self._cluster.nodes() if role in node.roles), None)

    def _who(self) -> str:
        leader = self.leader
        return f"ask node {leader.name}" if leader is not None else "wait until one of the nodes leads it"

    async def _careful(self, work: Callable[[], Awaitable[T]]) -> T:
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
        if not self._leading or self._stale:
            for inlet in self._heartbeat.inlets:
                forget = getattr(inlet, "forget", None)
                if forget is not None:
                    forget()
            await self._read(leading=True)
        taken = await self._intake.take()
        for item in taken:
            self._heartbeat.take_in(item)
        if taken:
            self._heartbeat.keeper.save_with(self._intake.operations())
