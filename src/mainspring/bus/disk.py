"""Room where the log is: the node warns when it runs short, and refuses publishes before there is none.

Nothing is removed unasked: what a topic keeps is data until somebody gives it a retention. So a disk can fill, and when
it is full a log cannot even be told to remove something. That is why the last part of it (`disk_reserve`) is kept for
acknowledgements, dead letters, deletions and what the node's own program has begun: publishes from outside are refused
with `unavailable` until there is room again, and clients try them again by themselves. Long before that (`disk_warn`)
the node says in its log, in `/readyz`, `/stats`, `/metrics` and the dashboard how much is left and what takes the most.

Pages inside the log's file that were freed by removing events count as room. The shorter the room, the more often it
is looked at.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from typing import Any, Final, Literal

from mainspring.bus.publishing.admission import Admission
from mainspring.bus.results import DiskState, Growing
from mainspring.errors import MainspringError, SettingError
from mainspring.log import Log, Room
from mainspring.loop import Loop
from mainspring.settings import Settings

logger: logging.Logger = logging.getLogger("mainspring.bus")

REMEDY: Final = "make room on its disk, purge or delete topics, or give them a retention; publishing goes on by itself"
SOONEST_MS: Final = 50
LATEST_MS: Final = 60_000
BYTES_PER_MS: Final = 200_000  # faster than a disk of today is filled
MARGIN: Final = 8
SHOWN: Final = 5
_UNITS: Final = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS_OF_TWO: Final = {"KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}
_AMOUNT: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(%|[KMGT]I?B)?", re.IGNORECASE)


def space_of(text: str, name: str) -> Callable[[int], int]:
    """How many bytes of a disk of some size a setting means: `10%`, `5GB`, or the smaller of `10%,5GB`."""
    amounts: list[tuple[float, int]] = []
    for part in text.split(","):
        found = _AMOUNT.fullmatch(part.strip())
        if found is None:
            raise SettingError(f"{name} is {text!r}", remedy="write 10%, 5GB, or both as 10%,5GB: the smaller counts")
        unit = (found[2] or "").upper()
        amounts.append((float(found[1]), 0 if unit == "%" else {**_UNITS, **_UNITS_OF_TWO}[unit]))
    return lambda total: min(round(number * unit) if unit else round(total * number / 100) for number, unit in amounts)


class DiskGuard:
    """Looks at the room from time to time, and tells the admission."""

    def __init__(
        self, log: Log, loop: Loop, settings: Settings, admission: Admission, room: Callable[[], Awaitable[Room | None]]
    ) -> None:
        """`room` says how much there is; None: the engine does not know."""
        self.state: DiskState | None = None
        self._log = log
        self._loop = loop
        self._admission = admission
        self._room = room
        self._warn = space_of(settings.disk_warn, "disk_warn")
        self._reserve = space_of(settings.disk_reserve, "disk_reserve")
        self._timer: Hashable | None = None
        self._measured_ms = 0
        self._run: Callable[[Coroutine[Any, Any, None]], object] = lambda _: None
        self._stopped = False

    async def start(self, run: Callable[..., object]) -> None:
        """Look for the first time, and from now on if the engine can tell; `run` begins a background task."""
        self._run = run
        await self._look()

    def stop(self) -> None:
        self._stopped = True
        if self._timer is not None:
            self._loop.cancel(self._timer)

    @property
    def is_full(self) -> bool:
        """Whether publishes are refused."""
        return self.state is not None and self.state.state == "full"

    def shortage(self) -> list[tuple[str, str]]:
        """What is left on the disk and which topics take the most, in words; nothing while there is enough."""
        found = self.state
        if found is None or found.state == "ok":
            return []
        left = f"{_amount(found.free)} left" + (", publishes are refused" if found.state == "full" else "")
        return [("disk", left), *((each.topic, f"takes {_amount(each.bytes)}") for each in found.largest if each.topic)]

    async def _look(self) -> None:
        try:
            room = await self._room()
            if room is not None:
                await self._judge(room)
        except (MainspringError, OSError) as error:
            logger.warning("how much room the log has could not be found out: %s", error)
            room = Room(0, 0, 0, 0)
        if room is not None and not self._stopped:
            reserve = self._reserve(room.total)
            spare = room.free + room.reusable - reserve
            soonest = max(SOONEST_MS, min(1_000, reserve // BYTES_PER_MS // 4))  # a small reserve is gone sooner
            wait_ms = max(soonest, min(LATEST_MS, spare // BYTES_PER_MS))
            self._timer = self._loop.schedule(wait_ms, lambda _: self._run(self._look()), None, ref=False)

    async def _judge(self, room: Room) -> None:
        former, now = self.state, self._loop.clock.now_ms()
        free, reserve, warn = room.free + room.reusable, self._reserve(room.total), self._warn(room.total)
        was = "ok" if former is None else former.state
        # It takes more room to leave a state than to come to it: the log's journal grows and shrinks by itself. And
        # what is freed inside the log's file is of no use where its journal cannot grow.
        if free < reserve + (reserve // MARGIN if was == "full" else 0) or room.free < reserve // 4:
            state: Literal["ok", "low", "full"] = "full"
        else:
            state = "low" if free < warn + (warn // MARGIN if was != "ok" else 0) else "ok"
        largest: list[Growing] = []
        if state != "ok":
            is_same = former is not None and former.state == state and now - self._measured_ms < LATEST_MS
            largest = former.largest if former is not None and is_same else await self._largest(room)
        self.state = DiskState(state, free, room.total, room.size, largest)
        if state != was:
            self._say(self.state, reserve)
        text = f"the disk of the log is nearly full: {_amount(free)} of {_amount(room.total)} are left"
        self._admission.on_disk(text if state == "full" else "", REMEDY)

    async def _largest(self, room: Room) -> list[Growing]:
        self._measured_ms = self._loop.clock.now_ms()
        sizes = [
            Growing(topic, sum(bounds.bytes for bounds in await self._log.bounds(topic)))
            for topic in await self._log.engine.topics()
        ]
        rest = Growing("", max(0, room.size - room.reusable - sum(each.bytes for each in sizes)))
        return sorted([*sizes, rest], key=lambda each: -each.bytes)[:SHOWN]

    def _say(self, found: DiskState, reserve: int) -> None:
        left = f"{_amount(found.free)} of {_amount(found.total)} are left where the log is"
        if found.state == "ok":
            logger.info("%s", left)
            return
        largest = ", ".join(f"{each.topic or 'runs and other records'} {_amount(each.bytes)}" for each in found.largest)
        refusing = (
            "publishes are refused" if found.state == "full" else f"publishes are refused below {_amount(reserve)}"
        )
        logger.warning("%s; %s. The largest: %s. %s", left, refusing, largest, REMEDY.capitalize())


def _amount(size: int) -> str:
    for unit, each in reversed(_UNITS.items()):
        if size >= each and unit:
            return f"{size / each:.1f} {unit}"
    return f"{size} bytes"
