"""The heartbeat of a node that shares its log with others. See `sharing.py` for how the nodes take turns."""

from __future__ import annotations

import asyncio
from typing import Any

from mainspring.beats.calls import OnThisLoop
from mainspring.beats.heartbeat import Heartbeat
from mainspring.beats.history.report import Report
from mainspring.beats.inlets import Inlet
from mainspring.beats.lineage import origin_here
from mainspring.beats.matching.changes import Bind
from mainspring.beats.shared.line import SharedLine
from mainspring.beats.shared.signal_topic import Sent
from mainspring.beats.stage import Stage, checked_pair, landing
from mainspring.beats.storage.journal import Impulse
from mainspring.cluster import Cluster, NodeView
from mainspring.log import Log
from mainspring.loop import Clock, MonotonicClock


class SharedHeartbeat(Heartbeat):
    """A line of beats on a log that several nodes share, each with a heartbeat of the same program.

    One of the nodes leads the line and runs its beats; `abeat` on another raises `NotLeading`. `signal`, `bind`,
    `unbind`, `pause` and `resume` reach the leader from every node, once, and are durable after `aflush`. Reading
    answers on every node as of the last beat it heard of. Registrations are each node's own: they hold functions, and
    the leader's count.
    """

    def __init__(
        self, log: Log, *, cluster: Cluster, clock: Clock | None = None, line: str = "main", **settings: Any
    ) -> None:
        super().__init__(log, line=line, **settings)
        self._shared = SharedLine(self, log, line, cluster, clock or MonotonicClock())

    async def open(self) -> None:
        """Read the line from the log, and take part in it from now on."""
        if not self._open:
            await self._shared.open()
            self._open = True

    def close(self) -> None:
        """Take part in the line no more."""
        self._shared.close()
        super().close()

    @property
    def leads(self) -> bool:
        """Whether it is this node that runs the beats, as far as it knows."""
        return self._shared.leads

    @property
    def leader(self) -> NodeView | None:
        """The node that leads the line, as far as this one knows."""
        return self._shared.leader

    # --- from outside -------------------------------------------------------------------------------------------------

    def signal(self, signal: str | None, target: str | None = None, beat: int | None = None) -> int:
        """Queue a signal; the earliest beat it can land in. It is durable after `aflush`, or when a driver has sent it.

        Called by an enzyme it is `stage.signal`.
        """
        stage = self._inside()
        if stage is not None:
            return stage.signal(signal, target, beat)
        impulse = Impulse(*checked_pair(signal, target))
        self._need_open()
        lands = landing(beat, self.state.beat + self._running)
        sent = Sent(signal=impulse.signal, target=impulse.target, beat=beat, origin=origin_here())
        self._shared.send_later(sent)
        self.wake()
        return lands

    def _change(self, change: object, stage: Stage | None) -> None:
        if stage is None and self._open and isinstance(change, Bind):
            self._shared.send_later(Sent(bind=(change.path, change.name, change.kind)))
            self.wake()
        else:
            super()._change(change, stage)

    def pause(self) -> None:
        """Have signals wait, from a beat on that is near."""
        self._shared.send_later(Sent(pause=True))
        self.wake()

    def resume(self) -> None:
        """Have waiting signals worked on again."""
        self._shared.send_later(Sent(pause=False))
        self.wake()

    async def aflush(self) -> None:
        """Make what came to this node from outside durable."""
        await self._shared.send()

    # --- beats --------------------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """How many signals wait for the next beat, as far as this node knows."""
        return super().waiting + self._shared.unsent

    @property
    def more_waits(self) -> bool:
        """Whether an inlet, or what came from outside, was more than the last beat could take."""
        return super().more_waits or self._shared.waits

    async def abeat(self) -> Report:
        """Run one beat, if this node leads the line."""
        async with self._turn():
            return await self._shared.beat(lambda: self._beat(OnThisLoop()))

    async def ready(self) -> bool:
        """Send what came here and, when leading, take what came anywhere; whether a beat may run now."""
        async with self._turn():
            return await self._shared.ready()

    def turn(self) -> asyncio.Lock:
        """For one beat at a time, and for nothing else meanwhile."""
        return self._turn()

    # --- for the shared line ------------------------------------------------------------------------------------------

    @property
    def inlets(self) -> tuple[Inlet, ...]:
        """What feeds the line from topics, while this node leads it."""
        return tuple(self._inlets)

    def wake(self) -> None:
        """There is something to do."""
        self._tell_listeners()
