"""Timeline: what can be asked of beats that happened.

Reading is in memory where it can be and from the log where it must be. Nothing here changes a line of beats: replays
run in a heartbeat of their own, and a fork writes another line.

Everything that may wait is a coroutine, written once. The plain methods run it without a loop, which works in memory
and on a blocking log, where it never suspends; the methods with an `a` before their name await it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mainspring.beats.calls import Host, OnItsOwnLoop, OnThisLoop, run_now
from mainspring.beats.errors import BeatRunning, NotOpen
from mainspring.beats.history.diff import Difference, difference
from mainspring.beats.history.fork import fork
from mainspring.beats.history.reader import Reader
from mainspring.beats.matching.path import canonical
from mainspring.beats.rules import Rules
from mainspring.beats.stage import Stage, current
from mainspring.beats.state import RECENT, State
from mainspring.beats.storage.keeper import Keeper
from mainspring.beats.storage.line import AsyncLog, Line, Unhurried
from mainspring.log import BlockingLog

if TYPE_CHECKING:
    from mainspring.beats.history.replay import Replay


class Timeline:
    """A line of beats, seen from its end. `state` and `reader` are for the parts of this package."""

    def __init__(self, rules: Rules, log: BlockingLog | AsyncLog | None, line: str, program: str) -> None:
        self.rules = rules
        self.state: State = State(rules, keep_journals=None if log is None else RECENT)
        self._running = False
        self._plays: Timeline | None = None
        self._open = log is None
        self._blocking = log is None or isinstance(log, BlockingLog)
        self._keeper: Keeper | None = None
        if log is not None:
            face = Unhurried(log) if isinstance(log, BlockingLog) else log
            lasting = Line(face, line, forgets_beats=rules.retain_beats is not None)
            self._keeper = Keeper(lasting, self.state, program)
        self.reader: Reader = Reader(self.state, self._keeper.line if self._keeper is not None else None)

    async def open(self) -> None:
        """Load the line from the log. What was bound before is applied on top of what the log holds."""
        if not self._open and self._keeper is not None:
            await self._keeper.load()
        self._open = True

    def go_on_with(self, state: State, keeper: Keeper) -> None:
        """Be another reading of the same line."""
        self.state, self._keeper = state, keeper
        self.reader = Reader(state, keeper.line)

    @property
    def keeper(self) -> Keeper:
        """What keeps the line in the log."""
        assert self._keeper is not None
        return self._keeper

    def plays(self, original: Timeline) -> None:
        """Take the part of another heartbeat: what its enzymes ask of it while this one runs them is asked of this."""
        self._plays = original

    def replay(self, first: int | None = None, last: int | None = None) -> Replay:
        """Run beats again from what came from outside, in memory, and compare; nothing here changes.

        Enzymes are really called. Those that touch the world outside their stage touch it again.
        """
        self._need_blocking("areplay")
        host = OnItsOwnLoop()
        try:
            return run_now(self._replay(host, first, last))
        finally:
            host.close()

    async def areplay(self, first: int | None = None, last: int | None = None) -> Replay:
        """`replay` on the loop that is running."""
        return await self._replay(OnThisLoop(), first, last)

    async def _replay(self, host: Host, first: int | None, last: int | None) -> Replay:
        from mainspring.beats.history.replay import replay

        self._need_open()
        self._at_rest("replay")
        return await replay(self, host, first, last)

    def journal(self, beat: int) -> bytes:
        """The records of a beat as they were written, checked against their digest; `unknown_beat` when not kept."""
        self._need_blocking("aread")
        return run_now(self.reader.checked_journal(beat))

    @property
    def program(self) -> str:
        """MODULE:APP of the program that ran this line's beats, where it was told."""
        return "" if self._keeper is None else self._keeper.program

    def verify(self) -> list[int]:
        """The beats whose journals or values are not what the line's last digest says; empty when all is well."""
        self._need_blocking("averify")
        return run_now(self.reader.damaged())

    async def averify(self) -> list[int]:
        """`verify` on the loop that is running."""
        return await self.reader.damaged()

    def fork(self, at: int, new: str) -> None:
        """Start a new line in the log after beat `at` of this one. This line stays as it is."""
        self._need_blocking("afork")
        run_now(self._fork(at, new))

    async def afork(self, at: int, new: str) -> None:
        """`fork` on the loop that is running."""
        await self._fork(at, new)

    async def _fork(self, at: int, new: str) -> None:
        if self._keeper is None:
            raise NotOpen("a heartbeat in memory has no lines", remedy="give it a log")
        await fork(self._keeper.line.log, at, new, line=self._keeper.line.name)

    def diff(self, earlier: int, later: int) -> list[Difference]:
        """What differs between the states enzymes read in two beats, by path."""
        return difference(self.state.cells, self.reader.readable(earlier), self.reader.readable(later))

    def read(self, path: str, at: int | None = None) -> Any:
        """The committed value of a path now, or what enzymes read in beat `at`; None where there is none.

        Also the runtime tree (/rt/beat/<N>/inbox, agenda, stage, ...; /rt/dead/<N>) and the content store
        (/cas/<sha256>). On an async log, beats further back than the last few need `aread`.
        """
        stage = self._inside()
        if stage is not None and at is None:
            return stage.read(path)
        self._need_open()
        return run_now(self.reader.read(path, at, from_log=self._blocking))

    async def aread(self, path: str, at: int | None = None) -> Any:
        """`read` on the loop that is running."""
        self._need_open()
        return await self.reader.read(path, at, from_log=True)

    def paths(self, prefix: str = "/", at: int | None = None) -> list[str]:
        """The paths at or below a prefix that hold something, by code point."""
        return self.state.cells.paths(canonical(prefix), self.reader.readable(at))

    # --- when it may be asked -----------------------------------------------------------------------------------------

    def _inside(self) -> Stage | None:
        """The stage of the enzyme that is calling, when it belongs to this heartbeat's beat."""
        stage = current.get()
        if stage is None or not isinstance(stage.owner, Timeline):
            return None
        return stage if stage.owner is self or stage.owner._plays is self else None

    def _at_rest(self, what: str) -> None:
        if self._running:
            raise BeatRunning(f"{what} needs a heartbeat at rest", remedy=f"wait until beat {self.state.beat} is over")

    def _need_open(self) -> None:
        if not self._open:
            raise NotOpen("the heartbeat's log was not read yet", remedy="await heartbeat.open() first")

    def _need_blocking(self, instead: str) -> None:
        if not self._blocking:
            raise NotOpen("this heartbeat's log needs a running loop", remedy=f"await heartbeat.{instead}()")
