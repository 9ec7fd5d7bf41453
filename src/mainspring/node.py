"""A node: one process's loop, log and parts, booted in seven phases and stopped in three steps.

Boot is a straight line: LOAD the program, DISCOVER what it handles, BUILD the parts, SPAWN the actors, ATTACH the
listeners, ADAPT (open the sockets), READY. Every step that acquires something says at once how to give it back, so a
failure in any phase undoes exactly what was done, in reverse, and leaves no socket behind. Nothing accepts input before
ADAPT, so nothing has to be taken back from a client.

Stopping is bounded: stop intake, finish what was accepted, give back what is held. Each step has `drain_ms`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from mainspring.errors import BootError, MainspringError
from mainspring.loop import Clock, Loop, MonotonicClock
from mainspring.settings import Settings
from mainspring.wire.loop_socket import LoopSocketServer

logger = logging.getLogger("mainspring.node")

PHASES: Final = ("LOAD", "DISCOVER", "BUILD", "SPAWN", "ATTACH", "ADAPT", "READY")


class BootFailure(BootError):
    """Boot stopped in `phase`; everything before it was undone."""

    def __init__(self, phase: str, cause: Exception) -> None:
        if isinstance(cause, MainspringError):
            super().__init__(f"boot failed in phase {phase}: {cause.message}", remedy=cause.remedy, code=cause.code)
        else:
            super().__init__(f"boot failed in phase {phase}: {type(cause).__name__}: {cause}")
        self.phase = phase


class Node:
    """Owns the parts of one process. `boot`, then `drain`; used once."""

    def __init__(self, settings: Settings, program: str | None = None, *, clock: Clock | None = None) -> None:
        self.settings = settings
        self.clock: Clock = clock or MonotonicClock()
        self.phases: list[str] = []
        self.loop = Loop(
            self.clock, max_turns_per_slice=settings.max_turns_per_slice, slow_turn_ms=settings.slow_turn_ms
        )
        self._program = program
        self._undo = AsyncExitStack()
        self._adapters: list[str] = []
        self._on_shutdown: Callable[[], None] = lambda: None

    async def boot(self) -> dict[str, object]:
        """Start everything; returns the Sys.BootComplete message. Raises BootFailure, with everything undone."""
        steps = (self._load, self._discover, self._build, self._spawn, self._attach, self._adapt)
        for phase, step in zip(PHASES, steps, strict=False):
            self.phases.append(phase)
            logger.debug("boot: %s", phase)
            try:
                await step()
            except Exception as error:
                await self._undo.aclose()
                raise BootFailure(phase, error) from error
        self.phases.append("READY")
        return self._summary()

    def on_shutdown(self, callback: Callable[[], None]) -> None:
        """What to call when a client asks the node to stop."""
        self._on_shutdown = callback

    async def drain(self) -> None:
        """Stop intake, finish, give back; each within `drain_ms`. Safe to call after a failed boot."""
        await self._undo.aclose()

    # The phases

    async def _load(self) -> None: ...

    async def _discover(self) -> None: ...

    async def _build(self) -> None:
        self.loop.attach()
        self._undo.callback(self.loop.detach)

    async def _spawn(self) -> None: ...

    async def _attach(self) -> None: ...

    async def _adapt(self) -> None:
        guests = LoopSocketServer(self._socket_path(self.settings.loop_socket, "loop.sock"), clock=self.clock)
        await guests.start()
        self._undo.push_async_callback(guests.stop)
        self._adapters.append(f"unix:{guests.path}")

    def _summary(self) -> dict[str, object]:
        return {
            "kind": "event",
            "type": "Sys.BootComplete",
            "data": {
                "capabilities": [],
                "subscriptions": {},
                "adapters": self._adapters,
                "timers": {"defaultTimeout": self.settings.request_timeout_ms},
            },
            "metadata": {"id": "boot", "timestamp": self.clock.wall_ms()},
        }

    def _socket_path(self, given: str, name: str) -> Path:
        if given:
            return Path(given)
        runtime = os.environ.get("XDG_RUNTIME_DIR")
        return (Path(runtime) / "mainspring" if runtime else Path(self.settings.data)) / name
