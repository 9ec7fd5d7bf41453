"""Before a node joins others on a log: its data directory and name, waiting for the log, what acknowledgements mean."""

from __future__ import annotations

import fcntl
import logging
import os
import re
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from mainspring.errors import BootError, MainspringError, SettingError
from mainspring.log import Durability, Log, LogUnavailable
from mainspring.loop import Clock, Loop, pause
from mainspring.private_files import make_private_folder, open_private

logger: logging.Logger = logging.getLogger("mainspring.cluster")

_STEP_MS: Final = 1_000
_ASK_AGAIN_MS: Final = 10_000
_ID_FILE: Final = "node.id"
_LONGEST_ID: Final = 64
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class NotDurable(BootError):
    """An acknowledgement of the engine, as it is configured, does not mean that nothing can be lost."""

    code = "not_durable"

    def __init__(self, statement: str) -> None:
        super().__init__(
            f"what the engine acknowledges could still be lost: {statement}",
            remedy="configure the server for it (docs/how-to/run-several-nodes.md), or start without --require-durable",
        )


class Home:
    """A node's data directory as proof that the node's last life is over; `id` is the directory's own.

    A node that was killed and starts again finds its own lease in the log. It may wait until the lease is over, as all
    others have to; or it can show that nobody else can be the owner. The operating system's lock on a file in the data
    directory is such proof: it ends with the process, however that ends. The file holds an id that was made once, so a
    node keeps its name for as long as it keeps its directory. `leave` releases the lock.
    """

    def __init__(self, data_dir: str | Path, new_id: Callable[[], str]) -> None:
        folder = Path(data_dir)
        try:
            make_private_folder(folder)
            self._descriptor = open_private(folder / _ID_FILE, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise BootError(
                f"the data directory {folder} cannot be used: {error.strerror}",
                remedy="name a directory that the node may write to with --data",
            ) from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._descriptor)
            raise BootError(
                f"another node uses the data directory {folder}",
                remedy="give each node its own data directory with --data",
                code="log_locked",
            ) from None
        self.id: str = os.pread(self._descriptor, _LONGEST_ID, 0).decode(errors="replace").strip()
        if not self.id:
            self.id = new_id()
            os.pwrite(self._descriptor, self.id.encode(), 0)
            os.fsync(self._descriptor)

    def leave(self) -> None:
        os.close(self._descriptor)


def node_name(wanted: str, home: str) -> str:
    """The name of this node: the one wanted, or one made of the host's and the home's."""
    if not wanted:
        host = re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname().partition(".")[0]).strip("-")[:40] or "node"
        return f"{host}-{re.sub(r'[^A-Za-z0-9]', '', home)[-6:] or '0'}"
    if not _NAME.fullmatch(wanted):
        raise SettingError(
            f"{wanted!r} is not a valid node name",
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


class DurabilityWatch:
    """What an acknowledgement of the engine means: asked at boot, and again while the node runs.

    A server may come back with other settings than it had. `required`: then the node must not go on, and `failed` is
    called. A server that cannot be asked at the moment changes nothing.
    """

    def __init__(self, log: Log, loop: Loop, *, required: bool, failed: Callable[[MainspringError], object]) -> None:
        self._log = log
        self._loop = loop
        self._required = required
        self._failed = failed
        self.found: Durability | None = None

    async def ask(self) -> None:
        """Raises `NotDurable` when it must mean more than it does."""
        found = await self._log.engine.durability()
        if not found.durable and self._required:
            raise NotDurable(found.statement)
        self._learn(found)

    async def follow(self) -> None:
        """Ask again and again, until cancelled."""
        while True:
            await pause(self._loop, _ASK_AGAIN_MS, ref=False)
            with suppress(LogUnavailable):
                found = await self._log.engine.durability()
                if found.known and not found.durable and self._required:
                    self._failed(NotDurable(found.statement))
                if found.known or self.found is None or not self.found.durable:
                    self._learn(found)

    def _learn(self, found: Durability) -> None:
        if self._log.shared and found != self.found:
            if found.durable:
                logger.info("the engine's acknowledgements are durable: %s", found.statement)
            else:
                logger.warning("what the engine acknowledges could still be lost: %s", found.statement)
        self.found = found
