"""The beats of a node: one heartbeat on its log, driven on its loop, fed by the topics its program named.

A node makes one, starts it when its log is open, and stops it before the log closes. Topics are looked at when the node
says that something was published there, and besides at a slow rhythm, so that events of other nodes on a shared log are
found, too. Looking is not beating: without an event there is no beat.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from typing import Any

from mainspring.beats.driver import Driver
from mainspring.beats.heartbeat import Heartbeat
from mainspring.beats.inlet import TopicInlet
from mainspring.beats.program import BeatsProgram
from mainspring.log import Log
from mainspring.loop import Loop


class BeatsService:
    """Heartbeat, driver and inlets of a node. `heartbeat` is what capabilities and adapters talk to."""

    def __init__(
        self,
        log: Log,
        loop: Loop,
        program: BeatsProgram | None = None,
        *,
        interval_ms: int = 0,
        look_ms: int = 200,
        **rules: Any,
    ) -> None:
        self.heartbeat = Heartbeat(log=log, **rules)
        self.program = program if program is not None else BeatsProgram()
        self.driver = Driver(self.heartbeat, loop, interval_ms=interval_ms or None)
        self._log = log
        self._loop = loop
        self._look_ms = look_ms
        self._inlets: list[TopicInlet] = []
        self._look: Hashable | None = None
        self._looking: asyncio.Task[None] | None = None
        self._running = False

    async def start(self) -> None:
        """Read the line from the log, install the program, and begin."""
        await self.heartbeat.open()
        self.program.install(self.heartbeat)
        for declared in self.program.topics:
            inlet = TopicInlet(self._log, declared.topic, target=declared.target)
            self.heartbeat.add_inlet(inlet)
            self._inlets.append(inlet)
        self._running = True
        self.driver.start()
        if self._inlets:
            self._look_at_topics(None)

    async def stop(self) -> None:
        """Finish the beat under way and make what waits durable."""
        self._running = False
        if self._look is not None:
            self._loop.cancel(self._look)
        if self._looking is not None:
            await asyncio.wait([self._looking])
        await self.driver.stop()
        await self.heartbeat.aflush()
        self.heartbeat.close()

    def published(self, topic: str) -> None:
        """Something was published; from any thread."""
        if any(inlet.topic == topic for inlet in self._inlets):
            self.driver.wake()

    def _look_at_topics(self, _: None) -> None:
        if self._running and self._looking is None:
            self._looking = asyncio.ensure_future(self._look_once())

    async def _look_once(self) -> None:
        try:
            if not self.heartbeat.paused:
                for inlet in self._inlets:
                    if await inlet.ready():
                        self.driver.wake()
                        break
        finally:
            self._looking = None
            if self._running:
                self._look = self._loop.schedule(self._look_ms, self._look_at_topics, None, ref=False)
