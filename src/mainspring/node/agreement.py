"""A program among the programs of other nodes: what it declares is put into effect, and nothing of theirs undone.

Topics are settled before anything is consumed, schedules when everything else is ready. Both follow what is in force,
that is, what the programs of all living nodes declare (`cluster/program_versions.py`). What another node declares
meanwhile is noticed: schedules are written under a guard, and topics are looked at again.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

from mainspring.app.app import App
from mainspring.app.topics import configure_topics, declared_topics
from mainspring.bus import Bus
from mainspring.cluster import Cluster, DeclarationsInForce, Declared, ProgramVersions
from mainspring.errors import MainspringError
from mainspring.log import Log, Refused
from mainspring.loop import Loop, pause
from mainspring.node.schedules import declared_schedules, plan_schedules

logger: logging.Logger = logging.getLogger("mainspring.app")

_RETRY_MS: Final = 1_000


def declares(app: App) -> Declared:
    """Everything a program says about what nodes share, as plain data. Another digest of it is another program."""
    beats = app.beats
    return {
        "schedules": declared_schedules(app),
        "topics": declared_topics(app.topics),
        "enzymes": {f"{each.name} {each.query}": [each.match, each.before, each.after] for each in beats.enzymes},
        "bindings": {f"{path} {name}": kind for path, name, kind in beats.bindings},
        "inlets": {each.topic: {} for each in beats.topics},
    }


class Agreement:
    """Puts one program's declarations into effect. `settle_topics`, then `settle_schedules`; `stop` at the end."""

    def __init__(self, app: App, bus: Bus, log: Log, loop: Loop, cluster: Cluster) -> None:
        self.programs: ProgramVersions = ProgramVersions(log, loop, cluster, declares(app))
        self._app = app
        self._bus = bus
        self._loop = loop
        self._again: asyncio.Task[None] | None = None
        cluster.on_fenced(self._fenced)

    async def settle_topics(self) -> None:
        """Create the program's topics, or change them where they differ."""
        before: DeclarationsInForce | None = None
        while before != (now := await self.programs.declare()):
            await configure_topics(now, self._app.topics, self._bus)
            before = now

    async def settle_schedules(self) -> None:
        """Write the program's schedules, and remove those that nobody declares any more."""
        while True:
            try:
                await plan_schedules(self._app, self._bus, await self.programs.declare())
                return
            except Refused:
                continue  # somebody declared something, or one of them fired

    async def stop(self) -> None:
        if self._again is not None:
            self._again.cancel()
            await asyncio.wait([self._again])

    def _fenced(self, _: Any) -> None:
        """What was declared under the former lease counted as gone for a while: say it again."""
        if self._again is None or self._again.done():
            self._again = asyncio.get_running_loop().create_task(self._declare_again())

    async def _declare_again(self) -> None:
        while True:
            try:
                await self.settle_topics()
                await self.settle_schedules()
                return
            except MainspringError as error:
                logger.warning("what the program declares could not be written down yet: %s", error.message)
                await pause(self._loop, _RETRY_MS, ref=False)
