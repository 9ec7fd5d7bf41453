"""Which node leads the beats while nodes have different programs: one with the newest program that has enzymes.

A signal is worked on by the enzymes of the leader and is gone afterwards. A leader with an older program, or with none,
would pass over signals that a newer one knows. So an older node does not try to lead while a newer one is there, and
when a newer one comes, the older leader hands over between two beats. Among nodes with the same program nothing changes
hands. A newer node counts from when it is ready, so the line does not wait for one that is still starting.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from mainspring.beats import SharedHeartbeat
from mainspring.cluster import NODES, Membership, NodeView, ProgramVersions
from mainspring.errors import MainspringError
from mainspring.log import Change, Log

logger: logging.Logger = logging.getLogger("mainspring.app")

BEATS: Final = "beats"


class Leading:
    """One node's part in it. `programs` None: it has no program. Use it before the heartbeat is opened; `stop` it."""

    def __init__(
        self, heartbeat: SharedHeartbeat, log: Log, cluster: Membership, programs: ProgramVersions | None, *, able: bool
    ) -> None:
        self._heartbeat = heartbeat
        self._cluster = cluster
        self._programs = programs
        self._able = able
        self._handing: asyncio.Task[None] | None = None
        cluster.only_if(BEATS, self._is_fit)
        log.watch(self._heard)

    async def stop(self) -> None:
        if self._handing is not None:
            self._handing.cancel()
            await asyncio.wait([self._handing])

    def _is_fit(self) -> bool:
        own = (self._able, 0 if self._programs is None else self._programs.rank(self._programs.digest))
        return not any(self._rank(node) > own for node in self._cluster.nodes() if not node.here)

    def _rank(self, node: NodeView) -> tuple[bool, int]:
        return BEATS in node.able, 0 if self._programs is None else self._programs.rank(node.program)

    def _heard(self, change: Change) -> None:
        news = False
        for record in change.records:
            known = self._programs is not None and self._programs.on_record(record)
            news = news or known or record.space == NODES
        if news and self._heartbeat.leads and (self._handing is None or self._handing.done()) and not self._is_fit():
            self._handing = asyncio.get_running_loop().create_task(self._hand_over())

    async def _hand_over(self) -> None:
        """Between two beats: what an enzyme began is finished first."""
        try:
            async with self._heartbeat.turn():
                await self._cluster.hand_over(BEATS)
            logger.info("a node with a newer program leads the beats from now on")
        except MainspringError as error:
            logger.debug("the beats could not be handed over yet: %s", error.message)  # tried with the next news
