"""Runs the consumers of patterns: `@app.consumer("orders.*")` consumes every topic whose name fits, also later ones.

Each topic has a group of the same name, and all that the consumer says (`concurrency`, `rate`, `batch`, ...) counts for
each of them. A topic that appears while the node runs is consumed from its beginning.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from mainspring.app import DeclaredConsumer
from mainspring.bus import Bus
from mainspring.bus.access import Pattern
from mainspring.errors import MainspringError
from mainspring.loop import BackgroundTasks, Loop, pause
from mainspring.node.consumers import Consuming

logger: logging.Logger = logging.getLogger("mainspring.app")

RETRY_MS: Final = 1_000


class PatternConsuming:
    """One declared consumer of a pattern at work. `start`, then `quiesce`, `finish` and `stop`."""

    def __init__(
        self, declared: DeclaredConsumer, make: Callable[[DeclaredConsumer], Consuming], bus: Bus, loop: Loop
    ) -> None:
        self.declared = declared
        self._pattern = Pattern(declared.topic)
        self._make = make
        self._bus = bus
        self._loop = loop
        self._topics: dict[str, Consuming] = {}
        self._joined: list[Consuming] = []
        self._joining = BackgroundTasks(logger, "app")
        self._closed = False

    async def start(self) -> None:
        """Join the groups of all topics there are; those that appear from now on follow by themselves."""
        self._bus.topics.on_new.append(self._appeared)
        for topic in self._bus.topics.all():
            if topic.exists and self._fits(topic.name):
                await self._begin(topic.name, self.declared).start()
        self._joined += self._topics.values()

    def quiesce(self) -> None:
        """Take no more events, and no more topics."""
        self._closed = True
        for each in self._joined:
            each.quiesce()

    async def finish(self) -> None:
        """Wait for the functions that run."""
        await asyncio.gather(*(each.finish() for each in self._joined))

    async def stop(self) -> None:
        """Give back what is held."""
        self._closed = True
        await self._joining.cancel()
        for each in self._joined:
            await each.stop()

    def _fits(self, topic: str) -> bool:
        return topic not in self._topics and self._pattern.covers_topic(topic)

    def _begin(self, topic: str, declared: DeclaredConsumer) -> Consuming:
        consuming = self._topics[topic] = self._make(replace(declared, topic=topic))
        return consuming

    def _appeared(self, topic: str) -> None:
        if not self._closed and self._fits(topic):
            consuming = self._begin(topic, replace(self.declared, start=None))
            self._joining.start(self._join(consuming), f"consumer of {topic}")

    async def _join(self, consuming: Consuming) -> None:
        while True:
            try:
                await consuming.start()
                break
            except MainspringError as error:
                logger.warning("the consumer of %s does not begin yet: %s", consuming.declared.name, error)
                await pause(self._loop, RETRY_MS, ref=False)
        self._joined.append(consuming)
        if self._closed:
            consuming.quiesce()
