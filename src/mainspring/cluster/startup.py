"""The way to a log that is somebody else's: wait for it, see what its acknowledgements are worth, join those on it."""

from __future__ import annotations

import logging
import re
import socket
from collections.abc import Awaitable, Callable
from typing import Final

from mainspring.cluster.errors import NotDurable
from mainspring.errors import SettingError
from mainspring.log import Durability, Log, LogUnavailable
from mainspring.loop import Clock, Loop, pause

logger: logging.Logger = logging.getLogger("mainspring.cluster")

_STEP_MS: Final = 1_000
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def node_name(wanted: str, home: str) -> str:
    """The name of this node: the one wanted, or one made of the host's and the home's."""
    if not wanted:
        host = re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname().partition(".")[0]).strip("-")[:40] or "node"
        return f"{host}-{re.sub(r'[^A-Za-z0-9]', '', home)[-6:] or '0'}"
    if not _NAME.fullmatch(wanted):
        raise SettingError(
            f"{wanted!r} is no name for a node",
            remedy="use up to 64 letters, digits, dots, dashes and underscores, beginning with a letter or digit",
        )
    return wanted


async def with_patience(work: Callable[[], Awaitable[object]], loop: Loop, wait_s: int) -> None:
    """Do it, again and again for up to `wait_s` seconds while the log cannot be reached, saying so."""
    clock: Clock = loop.clock
    began = clock.now_ms()
    while True:
        try:
            await work()
            return
        except LogUnavailable as error:
            waited = (clock.now_ms() - began) // 1_000
            if waited >= wait_s:
                raise
            logger.warning("waiting for the engine, %d of %d s: %s", waited, wait_s, error.message)
            await pause(loop, _STEP_MS, ref=False)


async def check_durability(log: Log, *, required: bool) -> Durability:
    """Say what an acknowledgement means; raise `NotDurable` when it must mean more than it does."""
    found = await log.engine.durability()
    if not found.durable and required:
        raise NotDurable(found.statement)
    if log.shared:
        if found.durable:
            logger.info("the engine's acknowledgements are durable: %s", found.statement)
        else:
            logger.warning("what the engine acknowledges could still be lost: %s", found.statement)
    return found
