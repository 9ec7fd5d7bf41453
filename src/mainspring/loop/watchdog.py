"""The watchdog: says who blocks the loop's thread, while it is blocked.

Handlers, consumers, tasks, effects, steps of runs and enzymes all run on the thread of one event loop. One that sleeps,
computes or waits for a socket without `await` stops everything else on the node, and nothing on that thread can say so.
So another thread looks from outside, every `limit_ms / 2`:

- Is the loop's thread doing anything? Its frames tell: an idle event loop waits in its selector.
- If so, ask the event loop to call back. While it answers, nothing is blocked, however busy it is.
- If it has not come round for `limit_ms`, and the same piece of work was on its stack all the time, that work blocks.
  It is reported once, with its stack, and once more when it has ended, with the whole duration.

Nothing is noted per message for this. The functions that run a program's code are marked with `identifies_work`, which
only files a function under its code object; the name of the work is read from the local variables of the blocked frame.

When it has found the thread idle a few times the watchdog asks the loop to wake it at its next activity, and until then
looks once a second only: work that does not pass through the loop (a task of the program's own) is found as well, a
little later.

A process that is stopped (SIGSTOP, a suspended machine, no processor time) looks like a blocked loop from outside. But
then the watchdog itself wakes up late, and the process has used no processor time: that is reported as what it is, and
that time is not counted against any handler. If the process has used its processor time, it was code that holds the
interpreter's lock, and that is a handler's fault again.

The reasons are in docs/decisions/loop.md.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import CodeType, FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from mainspring.loop.clock import NS_PER_MS, Clock, MonotonicClock

if TYPE_CHECKING:
    from mainspring.loop.loop import Loop

_F = TypeVar("_F", bound=Callable[..., Any])
_log = logging.getLogger("mainspring.loop")

KEPT: Final = 50  # the latest blocks; a node with more of them has shown enough
IDLE_LOOKS: Final = 4  # in a row, before it looks less often
IDLE_S: Final = 1.0  # between two looks at an idle loop
LOG_EVERY_MS: Final = 60_000  # the same work is logged once in this time; every block is counted
STANDSTILL_MS: Final = 1_000  # shorter pauses of a whole process are the ordinary noise of a busy machine
STANDSTILL: Final = "process"  # the kind under which those pauses are counted
OTHER: Final = "other"  # the kind of work that no marked function runs

Describe = Callable[[Mapping[str, Any]], tuple[str, str]]
"""From a function's local variables to the kind and the name of the work it does."""

_marked: dict[CodeType, tuple[Describe, str | None]] = {}

_HERE: Final = os.path.dirname(os.path.dirname(__file__)) + os.sep
_STANDARD_LIBRARY: Final = os.path.dirname(os.__file__) + os.sep


def identifies_work(describe: Describe, *, unit: str | None = None, nested: str | None = None) -> Callable[[_F], _F]:
    """Mark a function that runs code of a program, so that the watchdog can name what blocks; calls cost nothing.

    `describe` is given the function's local variables and returns kind and name: `("command", "Order.Place")`. A
    function that runs one piece of work after the other names with `unit` the local variable that is another object
    for each piece; without it, every call of the function is one piece of work. `nested` marks the function of that
    name that is defined inside this one, once for all of its definitions.
    """

    def mark(function: _F) -> _F:
        code: CodeType = function.__code__
        if nested is not None:
            inner = (each for each in code.co_consts if isinstance(each, CodeType))
            code = next(each for each in inner if each.co_name == nested)
        _marked[code] = (describe, unit)
        return function

    return mark


@dataclass(frozen=True, slots=True)
class Blocked:
    """One piece of work that kept everything else waiting."""

    kind: str
    """`command`, `query`, `event`, `consumer`, `task`, `schedule`, `effect`, `run`, `enzyme`, `turn` or `other`;
    `process`: the whole process did not run."""
    name: str
    at_ms: int
    """When it was noticed (epoch ms)."""
    duration_ms: float
    limit_ms: float
    where: str = ""
    """The innermost line of the program's own code: `shop.py:12 in place`."""
    stack: str = ""
    """The stack when it was noticed, from where the work began."""


@dataclass(slots=True)
class BlockedTotal:
    """How often and how long the loop was blocked by work of one kind."""

    times: int = 0
    duration_ms: float = 0.0


@dataclass(slots=True)
class _Suspect:
    """The piece of work on the loop's thread since it was last asked to come round."""

    frame: FrameType  # kept, as is `unit`, so that nothing else can appear under the same identity
    unit: object
    kind: str
    name: str
    since_ns: int
    report: Blocked | None = None
    logged: bool = False


@dataclass(slots=True)
class _Logged:
    at_ns: int
    unlogged: int = 0


class LoopThread:
    """The thread of a running event loop, as another thread sees it. Made on that thread."""

    def __init__(self, aio: asyncio.AbstractEventLoop, now_ns: Callable[[], int]) -> None:
        self._aio = aio
        self._now_ns = now_ns
        self._ident = threading.get_ident()
        self._base = 0  # the id of the frame below all work: it lives as long as the event loop runs
        self.asked: int = 0
        self._answered = 0
        self.came_round_ns: int = 0
        self.on_came_round: Callable[[], object] = lambda: None
        aio.call_soon(self._came_round, 0)

    @property
    def has_come_round(self) -> bool:
        """Whether the event loop has called back since it was asked last."""
        return self._answered == self.asked

    def ask(self) -> None:
        """Have the event loop call back as soon as it comes round."""
        self.asked += 1
        try:
            self._aio.call_soon_threadsafe(self._came_round, self.asked)
        except RuntimeError:  # it is closed
            self._answered = self.asked

    def frames(self) -> list[FrameType]:
        """What the thread is executing for the event loop, innermost frame first; nothing when that is idle."""
        found: list[FrameType] = []
        if not self._aio.is_running():
            self._answered = self.asked  # between two runs nothing comes round, and nothing is blocked
            return found
        frame = sys._current_frames().get(self._ident)
        while frame is not None and id(frame) != self._base:
            found.append(frame)
            frame = frame.f_back
        while found and _is_asyncio(found[-1]):
            found.pop()
        if found and found[-1].f_globals.get("__name__") == "selectors":
            found.clear()
        return found

    def _came_round(self, number: int) -> None:
        frame = sys._getframe().f_back
        while frame is not None and _is_asyncio(frame):
            frame = frame.f_back
        self._base = id(frame)
        self.came_round_ns = self._now_ns()
        self._answered = number
        self.on_came_round()


class Watchdog:
    """Watches the event loop on which it was started, from a thread of its own, until `stop`.

    `loop` wakes it when it has fallen asleep over an idle node. `clock`, `cpu_ns` (processor time of the process) and
    `look` are there for tests, which must not depend on the speed of a machine.
    """

    def __init__(
        self,
        limit_ms: float,
        clock: Clock | None = None,
        *,
        loop: Loop | None = None,
        cpu_ns: Callable[[], int] = time.process_time_ns,
    ) -> None:
        self.limit_ms = limit_ms
        self.blocked: deque[Blocked] = deque(maxlen=KEPT)
        """The latest ones, oldest first."""
        self.totals: dict[str, BlockedTotal] = {}
        """How often and how long, by kind, since the start."""
        self.booting: bool = False
        """While a node boots nobody waits for it yet: only code of the program is reported."""
        self._clock: Clock = MonotonicClock() if clock is None else clock
        self._loop = loop
        self._cpu_ns = cpu_ns
        self._limit_ns = round(limit_ms * NS_PER_MS)
        self._interval_s = max(1, limit_ms / 2) / 1000
        self._suspect: _Suspect | None = None
        self._logged: dict[tuple[str, str], _Logged] = {}
        self._idle_looks = 0
        self._due_ns: int | None = None  # when the next look should happen
        self._cpu_before_ns = 0
        self._wake = threading.Event()
        self._stopped = False
        self._thread: threading.Thread | None = None

    @property
    def times_blocked(self) -> int:
        """How often work blocked the loop; pauses of the whole process are not among them."""
        return sum(total.times for kind, total in self.totals.copy().items() if kind != STANDSTILL)

    @property
    def times_asked(self) -> int:
        """How often the event loop was asked to come round."""
        return self._loop_thread.asked

    # Its life

    def attach(self) -> None:
        """Watch the event loop that is running here; somebody calls `look`."""
        self._loop_thread = LoopThread(asyncio.get_running_loop(), self._clock.now_ns)
        self._loop_thread.on_came_round = self._came_round

    def start(self) -> None:
        """Watch the event loop that is running here."""
        self.attach()
        self._thread = threading.Thread(target=self._run, name="mainspring-watchdog", daemon=True)
        self._thread.start()

    def booted(self) -> None:
        """From now on somebody waits for whatever blocks."""
        self.booting = False

    def stop(self) -> None:
        """Watch no longer."""
        self._stopped = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
        self._suspect = None

    def __enter__(self) -> Watchdog:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def _run(self) -> None:
        while not self._stopped:
            try:
                delay_s = self.look()
            except Exception:
                _log.exception("the watchdog failed to look at the loop, and goes on")
                delay_s = IDLE_S
            self._wake.wait(delay_s)
            self._wake.clear()

    def _came_round(self) -> None:
        """On the loop's thread. A block that was reported has ended: the rest of its report need not wait."""
        suspect = self._suspect
        if suspect is not None and suspect.report is not None:
            self._wake.set()

    # Looking

    def look(self) -> float:
        """Look once; in how many seconds to look again."""
        now_ns = self._clock.now_ns()
        held_since_ns = self._account_for_lateness(now_ns)
        thread = self._loop_thread
        came_round = thread.has_come_round  # asked first: what comes round later is still on the stack now
        frames = thread.frames()
        if came_round and self._suspect is not None:
            self._end(thread.came_round_ns)
        if frames:
            self._idle_looks = 0
            self._suspect_work(frames, now_ns, held_since_ns)
            if came_round:
                thread.ask()
        elif came_round:
            self._idle_looks += 1
        delay_s = self._interval_s
        if self._idle_looks >= IDLE_LOOKS:
            delay_s = IDLE_S
            if self._loop is not None:
                self._loop.when_active(self._woken)
        self._due_ns = now_ns + round(delay_s * 1e9)
        return delay_s

    def _woken(self) -> None:
        """On the loop's thread: something happens again."""
        self._idle_looks = 0
        self._due_ns = None
        self._wake.set()

    def _account_for_lateness(self, now_ns: int) -> int:
        """Since when the loop's thread may have been at what it does now.

        The watchdog comes late when the process did not run, or when other code kept the interpreter's lock.
        """
        cpu_ns = self._cpu_ns()
        used_ns, self._cpu_before_ns = cpu_ns - self._cpu_before_ns, cpu_ns
        late_ns = 0 if self._due_ns is None else now_ns - self._due_ns
        if late_ns <= self._limit_ns:
            return now_ns
        if used_ns * 2 >= late_ns:
            return now_ns - late_ns
        if self._suspect is not None:
            self._suspect.since_ns += late_ns
        if late_ns >= STANDSTILL_MS * NS_PER_MS:
            self._report_standstill(late_ns / NS_PER_MS)
        return now_ns

    def _suspect_work(self, frames: list[FrameType], now_ns: int, held_since_ns: int) -> None:
        frame, unit, kind, name = _work_in(frames)
        suspect = self._suspect
        if suspect is not None and (suspect.frame is not frame or suspect.unit is not unit):
            self._end(now_ns)
            suspect = None
        if suspect is None:
            suspect = self._suspect = _Suspect(frame, unit, kind, name, min(now_ns, held_since_ns))
        duration_ns = now_ns - suspect.since_ns
        if suspect.report is None and duration_ns >= self._limit_ns and self._concerns_somebody(frames):
            self._report(suspect, frames, duration_ns / NS_PER_MS)

    def _concerns_somebody(self, frames: list[FrameType]) -> bool:
        """Code of the program always does. Of ours not while a node boots, nor when a module is loaded once."""
        if any(_is_program(frame) for frame in frames):
            return True
        return not self.booting and not any(frame.f_code.co_filename.startswith("<frozen imp") for frame in frames)

    # Saying so

    def _report(self, suspect: _Suspect, frames: list[FrameType], duration_ms: float) -> None:
        shown = frames[: frames.index(suspect.frame) + 1]
        suspect.report = report = Blocked(
            suspect.kind,
            suspect.name,
            self._clock.wall_ms(),
            duration_ms,
            self.limit_ms,
            _program_line(shown),
            _stack_text(shown),
        )
        unlogged = self._unlogged_before(suspect.kind, suspect.name)
        suspect.logged = unlogged is not None
        if unlogged is not None:
            again = f" ({unlogged} more times since it was last reported)" if unlogged else ""
            _warn(
                f"{suspect.kind} {suspect.name} has blocked the loop for {duration_ms:,.0f} ms, and nothing else runs "
                f"until it returns{again}; await instead, or use asyncio.to_thread. It is at {report.where}",
                report,
                report.stack,
            )

    def _end(self, ended_ns: int) -> None:
        """The piece of work is over, or gave the loop back."""
        suspect, self._suspect = self._suspect, None
        if suspect is None or suspect.report is None:
            return
        seen = suspect.report
        duration_ms = max(seen.duration_ms, (ended_ns - suspect.since_ns) / NS_PER_MS)
        report = Blocked(seen.kind, seen.name, seen.at_ms, duration_ms, seen.limit_ms, seen.where, seen.stack)
        self._count(report)
        if suspect.logged:
            _warn(f"{report.kind} {report.name} blocked the loop for {duration_ms:,.0f} ms", report)

    def _report_standstill(self, duration_ms: float) -> None:
        text = "was stopped or suspended, or got no processor time"
        report = Blocked(STANDSTILL, text, self._clock.wall_ms(), duration_ms, self.limit_ms)
        self._count(report)
        if self._unlogged_before(STANDSTILL, text) is not None:
            _warn(f"this process did not run for {duration_ms:,.0f} ms: it {text}; no handler is to blame", report)

    def _count(self, report: Blocked) -> None:
        total = self.totals.setdefault(report.kind, BlockedTotal())
        total.times += 1
        total.duration_ms += report.duration_ms
        self.blocked.append(report)

    def _unlogged_before(self, kind: str, name: str) -> int | None:
        """Whether to log this: how often it was not logged since the last time, or None."""
        now_ns = self._clock.now_ns()
        logged = self._logged.get((kind, name))
        if logged is not None and now_ns - logged.at_ns < LOG_EVERY_MS * NS_PER_MS:
            logged.unlogged += 1
            return None
        self._logged.pop((kind, name), None)
        while len(self._logged) >= KEPT:
            del self._logged[next(iter(self._logged))]
        self._logged[kind, name] = _Logged(now_ns)
        return 0 if logged is None else logged.unlogged


def _work_in(frames: list[FrameType]) -> tuple[FrameType, object, str, str]:
    """The piece of work that the innermost marked frame runs: that frame, its unit, kind and name."""
    for frame in frames:
        marked = _marked.get(frame.f_code)
        if marked is not None:
            describe, unit = marked
            try:
                known = frame.f_locals
                kind, name = describe(known)
                return frame, None if unit is None else known[unit], kind, name
            except Exception:  # a variable that is not bound yet, or no longer what it was
                continue
    outermost, program = frames[-1], _program_frame(frames)
    module = program.f_globals.get("__name__", "?")
    return outermost, None, OTHER, f"{module}.{program.f_code.co_qualname}"


def _program_frame(frames: list[FrameType]) -> FrameType:
    """The innermost frame of the program's own code.

    A program that is installed looks like a library: in work that we know it is the outermost frame that is not ours.
    Where there is no program at all, it is the innermost frame of ours, or of all.
    """
    own = next((frame for frame in frames if _is_program(frame)), None)
    installed = next((frame for frame in reversed(frames) if "site-packages" in frame.f_code.co_filename), None)
    ours = next((frame for frame in frames if frame.f_code.co_filename.startswith(_HERE)), None)
    known = frames[-1].f_code in _marked
    return own or (installed if known else None) or ours or frames[0]


def _is_program(frame: FrameType) -> bool:
    """Whether its code is neither ours nor a library's."""
    file = frame.f_code.co_filename
    return not file.startswith((_HERE, _STANDARD_LIBRARY, "<frozen")) and "site-packages" not in file


def _program_line(frames: list[FrameType]) -> str:
    frame = _program_frame(frames)
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"


def _stack_text(frames: list[FrameType]) -> str:
    """The stack as in a traceback: the innermost line is the last."""
    lines = [(frame, frame.f_lineno) for frame in reversed(frames)]
    return "".join(traceback.StackSummary.extract(iter(lines)).format()).rstrip()


def _is_asyncio(frame: FrameType) -> bool:
    """Whether it is a frame of the event loop's own machinery, below all work."""
    return frame.f_code.co_name in ("_run", "_run_once") and frame.f_globals.get("__name__", "").startswith("asyncio.")


def _warn(text: str, report: Blocked, stack: str | None = None) -> None:
    """A warning with the other thread's stack; `logging` itself can only add the caller's own."""
    if _log.isEnabledFor(logging.WARNING):
        fields = {"kind": report.kind, "name": report.name, "duration_ms": round(report.duration_ms)}
        extra = {"fields": {**fields, "where": report.where}}
        _log.handle(_log.makeRecord(_log.name, logging.WARNING, __file__, 0, text, (), None, extra=extra, sinfo=stack))
