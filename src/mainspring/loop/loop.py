"""The loop: one scheduler for messages, timers and what other threads finish.

A turn is a function and its one argument. Turns wait in two lanes, the system lane and the user lane, and before every
turn the lanes are looked at anew: the system lane first, else the user lane. So the system lane drains completely, also
what arrives while it drains, then comes one user turn; and a fault signal never waits for more than the one user turn
that is already running.

A slice is: due timers join the completions, by deadline; completions join the user lane; then turns are made until the
slice's budget is spent or nothing is ready. After a slice the host gets its turn. `tick` is the smallest slice: the
whole system lane, then one user turn. Timers are looked at once per slice, so a timer with delay 0 fires at the next
slice, never inside the turn that set it. A timeout that is noticed late, because the thread was blocked or the process
was stopped, waits until the host has read what arrived meanwhile (`deadlines.py`). The budget counts system turns too:
a flood of system work that feeds itself yields to the host like everything else and goes on afterwards, still before
any user turn.

A turn that raises is reported with what raised, and the next turn follows. Only `KeyboardInterrupt` and `SystemExit`
pass through: they are meant for the program, not for the turn they happened to interrupt.

A loop does not know who drives it. Bare, someone calls `tick`, `run_until_idle`, `advance` or `run_until_quiescent`.
Attached, an asyncio event loop does (`asyncio_host.py`), and whatever arrives while the loop sleeps wakes it.

A loop is quiescent when nothing is ready, no timer is pending and nobody holds it. Adapters that can still bring input,
requests that wait for an answer and bytes that are not written yet are invisible to the loop, so their owners hold it:
one hold per reason, released when the reason is gone.

The reasons are in docs/decisions/loop.md.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count, repeat
from operator import length_hint
from types import TracebackType
from typing import Any, TypeAlias, TypeVar

from mainspring.loop.asyncio_host import LONGEST_SLEEP_S, EventLoopHost
from mainspring.loop.clock import NS_PER_MS, Clock, MonotonicClock, VirtualClock, span_ns
from mainspring.loop.deadlines import LATE_MS, LateCalls
from mainspring.loop.errors import ClockError, DuplicateTimer, LoopBusy, LoopLimit, LoopStalled
from mainspring.loop.futures_and_tasks import reject, wake
from mainspring.loop.timer_wheel import TimerEntry, TimerWheel
from mainspring.loop.watchdog import identifies_work

_T = TypeVar("_T")
_log = logging.getLogger("mainspring.loop")

MAX_TURNS_PER_SLICE = 1024  # about a third of a millisecond of small turns: sockets do not notice the wait
TURN_LIMIT = 1_000_000  # far above any test's work, reached in about a second when something feeds itself

Turn: TypeAlias = tuple[Callable[[Any], object], Any]
"""A function and its one argument: what a lane holds."""


class Lane(deque[Turn]):
    """First in, first out. `taken` counts what has left; code that takes turns out directly keeps it right.

    Knowing how long the oldest turn has waited would normally cost a clock reading per arrival. A lane notes instead,
    once per slice, how many arrivals it has seen in all (`mark`). Whatever arrived between two marks is dated by the
    later one, so an age is exact to one slice and never exaggerated, and an arrival costs nothing.
    """

    __slots__ = ("_marks", "taken")

    def __init__(self) -> None:
        super().__init__()
        self.taken: int = 0
        self._marks: deque[tuple[int, int]] = deque()

    def mark(self, now_ms: int) -> None:
        """Date every arrival since the last mark as `now_ms`."""
        marks = self._marks
        taken = self.taken
        while marks and marks[0][0] <= taken:
            marks.popleft()
        arrived = taken + len(self)
        if arrived > (marks[-1][0] if marks else taken):
            marks.append((arrived, now_ms))

    def waiting_ms(self, now_ms: int) -> int:
        """How long, at least, the oldest turn of this lane has waited; 0 when it is empty."""
        taken = self.taken
        for arrived, marked_ms in self._marks:
            if arrived > taken:
                return now_ms - marked_ms
        return 0


class Lanes:
    """The system lane and the user lane, and the rule which goes first."""

    __slots__ = ("system", "user")

    def __init__(self) -> None:
        self.system: Lane = Lane()
        self.user: Lane = Lane()

    def push_system(self, turn: Turn) -> None:
        """Queue a turn that goes before every user turn."""
        self.system.append(turn)

    def push_user(self, turn: Turn) -> None:
        """Queue a user turn."""
        self.user.append(turn)

    def take(self) -> Turn | None:
        """The next turn: the system lane's if it has one, else the user lane's, else None."""
        lane = self.system or self.user
        if not lane:
            return None
        lane.taken += 1
        return lane.popleft()

    def __len__(self) -> int:
        return len(self.system) + len(self.user)

    def mark(self, now_ms: int) -> None:
        """Date what arrived since the last mark."""
        if self.user:
            self.user.mark(now_ms)
        if self.system:
            self.system.mark(now_ms)

    def waiting_ms(self, now_ms: int) -> int:
        """The age of the oldest waiting turn of both lanes."""
        return max(self.system.waiting_ms(now_ms), self.user.waiting_ms(now_ms))


@dataclass(frozen=True, slots=True)
class Counters:
    """A snapshot. Counts grow from the loop's start; depths, ages and pending numbers are of this moment."""

    turns: int
    slices: int
    failed_turns: int
    system_depth: int
    user_depth: int
    completions_waiting: int
    oldest_waiting_ms: int
    timers_pending: int
    longest_turn_ns: int
    longest_turn: str
    holds: int


@dataclass(frozen=True, slots=True)
class FailedTurn:
    """One turn that raised. The loop went on."""

    name: str
    error: BaseException
    function: Callable[[Any], object]
    argument: Any

    def __str__(self) -> str:
        return f"{self.name} raised {type(self.error).__name__}: {self.error}"


def turn_name(function: Callable[[Any], object], argument: object) -> str:
    """Who a turn is, for people: the function's qualified name and the type of the argument."""
    while isinstance(function, functools.partial):
        function = function.func
    owner = getattr(function, "__self__", None)
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    module = getattr(function, "__module__", None) or type(function).__module__
    if owner is not None and not isinstance(owner, type) and hasattr(function, "__func__"):
        # The class of the object at hand tells more than the class that happens to define the method.
        name = f"{type(owner).__qualname__}.{function.__name__}"
        module = type(owner).__module__
    return f"{module}.{name}({type(argument).__qualname__})"


class _Timers:
    """Pending and due timers, by id. Deadlines are milliseconds of the loop's clock.

    A due timer leaves the wheel and waits in the user lane like any other turn. It can still be cancelled there: a
    caller who cancels a timeout may rely on it that the timeout's function is never called afterwards, however late the
    lane is.
    """

    __slots__ = ("_due", "_ids", "_unref", "_wheel")

    def __init__(self) -> None:
        self._wheel = TimerWheel()
        self._due: dict[Hashable, TimerEntry] = {}  # handed out by the wheel, waiting in the user lane
        self._unref: set[Hashable] = set()  # pending, but no reason to stay alive
        self._ids = count(1)

    def __len__(self) -> int:
        """All timers that have not run yet."""
        return len(self._wheel) + len(self._due)

    @property
    def keeping_alive(self) -> int:
        """How many pending timers are a reason to stay alive. Those already due count as ready turns instead."""
        return len(self._wheel) - len(self._unref)

    def schedule(self, deadline_ms: int, turn: Turn, timer_id: Hashable | None, kind: str, ref: bool) -> Hashable:
        if timer_id is None:
            timer_id = next(self._ids)
        elif timer_id in self._due:
            raise DuplicateTimer(f"timer {timer_id!r} is still due", remedy="cancel it first, or use another id")
        self._wheel.schedule(TimerEntry(timer_id, deadline_ms, turn, kind))
        if not ref:
            self._unref.add(timer_id)
        return timer_id

    def cancel(self, timer_id: Hashable) -> bool:
        """False when there is no such timer any more, or never was."""
        if not self._wheel.cancel(timer_id):
            return self._due.pop(timer_id, None) is not None
        if self._unref:
            self._unref.discard(timer_id)
        return True

    def has_ready(self, now_ms: int) -> bool:
        return self._wheel.has_ready(now_ms)

    def next_deadline(self) -> int | None:
        return self._wheel.next_deadline()

    def take_ready(self, now_ms: int, late: list[Turn]) -> list[Turn]:
        """The turns of all timers due at `now_ms`, by deadline, equal deadlines in order of registration.

        Timeouts that are noticed late are put into `late` instead.
        """
        if not len(self._wheel):
            return []
        latest = now_ms - LATE_MS
        fire, due, unref = self._fire, self._due, self._unref
        turns: list[Turn] = []
        for entry in self._wheel.take_ready(now_ms):
            due[entry.id] = entry
            unref.discard(entry.id)
            if entry.kind == "timeout" and entry.deadline <= latest:
                late.append((fire, entry))
            else:
                turns.append((fire, entry))
        return turns

    def _fire(self, entry: TimerEntry) -> None:
        """The turn of a due timer, unless it was cancelled while it waited in the lane."""
        if self._due.get(entry.id) is entry:
            del self._due[entry.id]
            function, argument = entry.message
            function(argument)

    def unwrap(self, turn: Turn) -> Turn:
        """The turn its author knows: that of a timer, instead of `_fire`."""
        message: Turn = turn[1].message if turn[0] == self._fire else turn
        return message


def _turn_of(known: Mapping[str, Any]) -> tuple[str, str]:
    return "turn", known["self"].name(known["function"], known["argument"])


class _Turns:
    """Takes turns from the lanes and makes them: the innermost part, and the only one that runs other people's code.

    It reads the clock once per turn, because the end of one turn is the start of the next. That single reading is
    enough to know the longest turn; everything else is counted per slice.
    """

    def __init__(
        self,
        lanes: Lanes,
        now_ns: Callable[[], int],
        on_error: Callable[[FailedTurn], object] | None,
        unwrap: Callable[[Turn], Turn],
    ) -> None:
        self._lanes = lanes
        self._now_ns = now_ns
        self._on_error = on_error or _log_failed_turn
        self._unwrap = unwrap
        self.made: int = 0
        self.failed: int = 0
        self.longest_ns: int = 0
        self.longest: str = ""
        self.running: bool = False

    @identifies_work(_turn_of, unit="started")
    def make(self, budget: int) -> int:
        """Make up to `budget` turns, fewer when the lanes run empty; returns how many."""
        system, user = self._lanes.system, self._lanes.user
        take_system, take_user = system.popleft, user.popleft
        now_ns = self._now_ns
        longest = self.longest_ns
        from_system = short = 0
        left = repeat(None, budget)  # an iterator, so that the count survives a turn that raises
        function: Callable[[Any], object] = repr
        argument: Any = None
        self.running = True
        started = now_ns()
        try:
            while True:
                try:
                    for _ in left:
                        if system:
                            function, argument = take_system()
                            from_system += 1
                        elif user:
                            function, argument = take_user()
                        else:
                            short = 1
                            break
                        function(argument)
                        ended = now_ns()
                        if ended - started > longest:
                            longest = self._note(function, argument, ended - started)
                        started = ended
                    return budget - length_hint(left) - short
                except (KeyboardInterrupt, SystemExit):
                    raise
                except BaseException as error:
                    longest = self._note(function, argument, now_ns() - started)
                    self._report(function, argument, error)
                    started = now_ns()
        finally:
            self.running = False
            made = budget - length_hint(left) - short
            self.made += made
            system.taken += from_system
            user.taken += made - from_system

    @identifies_work(_turn_of)
    def make_now(self, function: Callable[[Any], object], argument: Any) -> None:
        """Make one user turn that never waited in its lane, with the same accounts as the others."""
        self.running = True
        started = self._now_ns()
        try:
            function(argument)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            self._report(function, argument, error)
        finally:
            self.running = False
            self.made += 1
            self._lanes.user.taken += 1
            duration_ns = self._now_ns() - started
            if duration_ns > self.longest_ns:
                self._note(function, argument, duration_ns)

    def _note(self, function: Callable[[Any], object], argument: Any, duration_ns: int) -> int:
        """Remember a turn that is longer than any before; returns how long the longest was."""
        if duration_ns > self.longest_ns:
            self.longest_ns = duration_ns
            self.longest = self.name(function, argument)
        return self.longest_ns

    def name(self, function: Callable[[Any], object], argument: Any) -> str:
        """Who a turn is, for people; of a timer's turn, who set the timer."""
        return turn_name(*self._unwrap((function, argument)))

    def _report(self, function: Callable[[Any], object], argument: Any, error: BaseException) -> None:
        self.failed += 1
        function, argument = self._unwrap((function, argument))
        report = FailedTurn(turn_name(function, argument), error, function, argument)
        try:
            self._on_error(report)
        except Exception:
            _log.exception("the on_error hook of the loop raised while it was given this report: %s", report)


def _log_failed_turn(report: FailedTurn) -> None:
    _log.error("failed turn: %s", report, exc_info=report.error)


class Hold:
    """One reason to stay alive. Release it once, or use it in a `with` block; releasing again does nothing."""

    __slots__ = ("_release", "reason")

    def __init__(self, reason: str, release: Callable[[], object]) -> None:
        self.reason: str = reason
        self._release: Callable[[], object] | None = release

    def release(self) -> None:
        """The reason is gone. Doing it again does nothing."""
        release, self._release = self._release, None
        if release is not None:
            release()

    def __enter__(self) -> Hold:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()


class Loop:
    """The scheduler. Everything but `complete` belongs to the thread that drives the loop.

    `on_error` is given every turn that raised; without it they go to the log `mainspring.loop`. Nothing is swallowed,
    and nothing stops the loop.
    """

    def __init__(
        self,
        clock: Clock | None = None,
        max_turns_per_slice: int = MAX_TURNS_PER_SLICE,
        on_error: Callable[[FailedTurn], object] | None = None,
    ) -> None:
        self.clock: Clock = MonotonicClock() if clock is None else clock
        self.max_turns_per_slice: int = max(1, max_turns_per_slice)
        self._lanes = Lanes()
        self._completions: deque[Turn] = deque()
        self._timers = _Timers()
        self._holds: Counter[str] = Counter()  # open holds by reason; none is kept at 0
        self._turns = _Turns(self._lanes, self.clock.now_ns, on_error, self._timers.unwrap)
        self._slices = 0
        self._host: EventLoopHost | None = None
        self._asleep = False  # attached, with no slice running or on its way
        self._signalled = False  # another thread has already knocked
        self._late = LateCalls()  # they wait until what has arrived is read
        self._arrival = threading.Event()  # wakes a bare driver that waits
        self._waiters: list[asyncio.Future[None]] = []
        self._on_active: Callable[[], object] | None = None
        # Bound once: these are the loop's hottest calls.
        self._user, self._system = self._lanes.user, self._lanes.system
        self._push_user = self._user.append
        self._push_system = self._system.append

    # What turns are made of

    def post(self, function: Callable[[_T], object], argument: _T) -> None:
        """Have `function(argument)` called as a user turn, after everything posted before."""
        self._push_user((function, argument))
        if self._asleep:
            self._stir()

    def offer(self, function: Callable[[_T], object], argument: _T) -> None:
        """Like `post`, but the turn is made at once when an attached loop sleeps.

        Nothing waits then, so nothing is overtaken, and the way around the host is saved. Inside a turn, and whenever
        anything waits, it is a plain `post`.
        """
        turns = self._turns
        if self._asleep and not turns.running and not self._completions:
            if self._on_active is not None:
                self._say_active()
            turns.make_now(function, argument)
        else:
            self.post(function, argument)

    def post_system(self, function: Callable[[_T], object], argument: _T) -> None:
        """Have it called as a system turn: before any further user turn."""
        self._push_system((function, argument))
        if self._asleep:
            self._stir()

    def complete(self, function: Callable[[_T], object], argument: _T) -> None:
        """Like `post`, from any thread: it becomes a user turn at the next slice."""
        self._completions.append((function, argument))
        # Appended first, asked second: `_collect` does it the other way round, so no arrival goes unnoticed.
        if not self._signalled:
            self._signalled = True
            host = self._host
            if host is None:
                self._arrival.set()
            else:
                host.next_slice_threadsafe()

    def schedule(
        self,
        delay_ms: float,
        function: Callable[[_T], object],
        argument: _T,
        *,
        timer_id: Hashable | None = None,
        kind: str = "scheduled",
        ref: bool = True,
    ) -> Hashable:
        """Have `function(argument)` called as a user turn once `delay_ms` have passed, never earlier.

        A negative delay counts as 0. With `ref=False` the timer does not keep the loop alive. One of the kind `timeout`
        ends a wait: when it is late, what has arrived meanwhile is read first. Returns the timer's id, for `cancel`.
        """
        due_ns = self.clock.now_ns() + span_ns(delay_ms)
        return self.schedule_at(-(-due_ns // NS_PER_MS), function, argument, timer_id=timer_id, kind=kind, ref=ref)

    def schedule_at(
        self,
        deadline_ms: int,
        function: Callable[[_T], object],
        argument: _T,
        *,
        timer_id: Hashable | None = None,
        kind: str = "scheduled",
        ref: bool = True,
    ) -> Hashable:
        """The same for an instant of the loop's clock (`clock.now_ms()`); one in the past is due at once."""
        timer_id = self._timers.schedule(deadline_ms, (function, argument), timer_id, kind, ref)
        if self._asleep:
            if self._on_active is not None:
                self._say_active()
            if self._wakes_after(deadline_ms):
                self._stir()
        return timer_id

    def cancel(self, timer_id: Hashable) -> bool:
        """Make sure that a timer's turn never runs. False when it already ran, was cancelled or never was."""
        cancelled = self._timers.cancel(timer_id)
        if cancelled and self._asleep and (self._waiters or (self._host is not None and self._host.shares_time)):
            self._stir()  # quiescence may be near, and virtual time must not jump to a deadline that is gone
        return cancelled

    def after_reading(self, call: Callable[[], object]) -> bool:
        """Call `call` when the host has read what had arrived by now; False: there is no host that reads.

        Where a test moves the clock by hand nothing is late, because nothing arrives by itself.
        """
        host = self._host
        if host is None or host.moved_by_hand:
            return False
        self._late.after_reading(host.aio, call)
        return True

    # Liveness

    def hold(self, reason: str, *, pins_time: bool = False) -> Hold:
        """Keep the loop alive for a reason it cannot see: an open input, a request in flight, unwritten bytes.

        With `pins_time`, virtual time also stands still until the hold is released: for work in real threads.
        """
        pinned = self.clock if pins_time and isinstance(self.clock, VirtualClock) else None
        if pinned is not None:
            pinned.pin()
        self._holds[reason] += 1

        def release() -> None:
            if pinned is not None:
                pinned.unpin()
            self._holds[reason] -= 1
            if not self._holds[reason]:
                del self._holds[reason]
            self._stir()

        return Hold(reason, release)

    @property
    def alive(self) -> bool:
        """False when quiescent: nothing ready, no timer that counts, no hold."""
        return bool(self._ready or self._late or self._holds or self._timers.keeping_alive)

    def why_alive(self) -> dict[str, int]:
        """What keeps the loop alive, counted by reason; empty when quiescent."""
        reasons = {
            "ready": len(self._lanes) + len(self._completions) + len(self._late),
            "timers": self._timers.keeping_alive,
            **self._holds,
        }
        return {reason: number for reason, number in reasons.items() if number}

    def counters(self) -> Counters:
        """A snapshot of the loop's counters; cheap enough to take every second."""
        now_ms = self.clock.now_ms()
        lanes, turns = self._lanes, self._turns
        lanes.mark(now_ms)
        return Counters(
            turns=turns.made,
            slices=self._slices,
            failed_turns=turns.failed,
            system_depth=len(lanes.system),
            user_depth=len(lanes.user),
            completions_waiting=len(self._completions),
            oldest_waiting_ms=lanes.waiting_ms(now_ms),
            timers_pending=len(self._timers),
            longest_turn_ns=turns.longest_ns,
            longest_turn=turns.longest,
            holds=self._holds.total(),
        )

    def when_active(self, callback: Callable[[], object]) -> None:
        """Call `callback` once, at the beginning of the next slice or when work arrives. May be set from any thread."""
        self._on_active = callback

    # Driving it bare

    def tick(self) -> bool:
        """Due timers, then the whole system lane, then one user turn. True when at least one turn was made."""
        self._enter()
        self._slices += 1
        self._collect()
        system, make = self._system, self._turns.make
        made = 0
        while system:
            if made > TURN_LIMIT:
                raise self._over(TURN_LIMIT)
            made += make(len(system))
        return made + make(1) > 0

    def run_until_idle(self, limit: int = TURN_LIMIT) -> int:
        """Make turns until nothing is ready at this instant; returns how many. Time does not move.

        More than `limit` turns are an error that names the limit: something feeds itself.
        """
        return self._make_ready(0, limit)

    def advance(self, ms: float, limit: int = TURN_LIMIT) -> int:
        """Move a virtual clock forward by `ms`, stopping at every deadline on the way; returns the turns made."""
        clock = self.clock
        if not isinstance(clock, VirtualClock):
            raise ClockError("only a virtual clock can be moved", remedy="make the loop with a VirtualClock")
        target_ns = clock.now_ns() + span_ns(ms)
        made = self._make_ready(0, limit)
        while (deadline := self._timers.next_deadline()) is not None and deadline * NS_PER_MS <= target_ns:
            clock.move_to(deadline)
            made = self._make_ready(made, limit)
        clock.move_to_ns(max(target_ns, clock.now_ns()))  # a turn may have moved it further by itself
        return made

    def run_until_quiescent(self, limit: int = TURN_LIMIT) -> int:
        """Drive the loop until nothing keeps it alive; returns the turns made.

        A virtual clock jumps to the next deadline whenever nothing is ready; with a real one the thread sleeps.
        """
        if self._running_host() is not None:
            raise LoopBusy("waiting here would block the host of this loop", remedy="await quiescent() instead")
        made = self._make_ready(0, limit)
        while self.alive:
            if not self._ready:
                self._wait()
            made = self._make_ready(made, limit)
        return made

    # Having it driven by asyncio

    def attach(self) -> None:
        """Let the running asyncio event loop drive this loop from now on."""
        aio = asyncio.get_running_loop()
        host = self._running_host()
        if host is not None and host.aio is aio:
            return
        if host is not None:
            raise LoopBusy("this loop is attached to another event loop", remedy="detach it there first")
        self._host = EventLoopHost(aio, self.clock, self._host_slice)
        self._asleep = True
        self._stir()

    def detach(self) -> None:
        """Stop being driven. What waits stays, for the next driver."""
        host, self._host = self._host, None
        self._asleep = False
        if host is not None:
            host.leave()
        self._late.release()
        self._settle(LoopStalled("the loop was detached while its quiescence was awaited", remedy="detach it later"))

    @contextmanager
    def hosted(self) -> Iterator[Loop]:
        """`attach` for the length of a `with` block."""
        self.attach()
        try:
            yield self
        finally:
            self.detach()

    async def quiescent(self) -> None:
        """Wait until nothing keeps the loop alive; the loop must be attached."""
        if self._host is None:
            raise LoopBusy("nobody drives this loop", remedy="attach it first, or use run_until_quiescent")
        if self.alive:
            waiter: asyncio.Future[None] = self._host.aio.create_future()
            self._waiters.append(waiter)
            await waiter

    # Inside

    @property
    def _ready(self) -> bool:
        return bool(self._user or self._system or self._completions)

    def _running_host(self) -> EventLoopHost | None:
        """The host that drives this loop; one that was closed without detaching no longer does."""
        if self._host is not None and self._host.aio.is_closed():
            self.detach()
        return self._host

    def _enter(self) -> None:
        if self._turns.running:
            raise LoopBusy("a turn tried to drive the loop it runs on", remedy="post the work and return")

    def _make_ready(self, made: int, limit: int) -> int:
        """Make all turns that are ready at this instant, after `made` others of the same call."""
        self._enter()
        while self._ready or self._timers.has_ready(self.clock.now_ms()):
            if made >= limit:
                raise self._over(limit)
            made += self._slice(min(self.max_turns_per_slice, limit - made))
        return made

    def _slice(self, budget: int) -> int:
        self._slices += 1
        self._collect()
        return self._turns.make(budget)

    def _collect(self) -> None:
        """Due timers to completions, completions to the user lane."""
        self._signalled = False
        if self._on_active is not None:
            self._say_active()
        completions, push = self._completions, self._push_user
        now_ms = self.clock.now_ms()
        late: list[Turn] = []
        completions.extend(self._timers.take_ready(now_ms, late))
        if late and not self.after_reading(functools.partial(self._judge, late)):
            completions.extend(late)
        for _ in range(len(completions)):
            push(completions.popleft())
        self._lanes.mark(now_ms)

    def _judge(self, late: list[Turn]) -> None:
        """What arrived before these timeouts were noticed has been read: those that were not cancelled are due."""
        self._completions.extend(late)
        self._stir()

    def _host_slice(self) -> None:
        self._asleep = False
        try:
            self._slice(self.max_turns_per_slice)
        finally:
            self._rest()

    def _rest(self) -> None:
        host = self._host
        if host is None:
            return
        if self._user or self._system or self._completions:
            host.next_slice()
            return
        self._asleep = True
        host.sleep_until(self._timers.next_deadline())
        if self._waiters and not self.alive:
            self._settle(None)

    def _say_active(self) -> None:
        callback, self._on_active = self._on_active, None
        if callback is not None:
            callback()

    def _wakes_after(self, deadline_ms: int) -> bool:
        """Whether a sleeping loop would oversleep this deadline."""
        host = self._host
        return host is not None and (host.armed_ms is None or deadline_ms < host.armed_ms)

    def _stir(self) -> None:
        """Something changed while nobody was looking: have a sleeping loop look again."""
        host = self._host
        if host is not None and self._asleep:
            self._asleep = False
            host.next_slice()

    def _settle(self, error: LoopStalled | None) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if error is None:
                wake(waiter)
            else:
                reject(waiter, error)

    def _wait(self) -> None:
        """Nothing is ready: let time pass until the next deadline or arrival."""
        self._signalled = False  # from here on every arrival rings, so only what came before must be looked for
        if self._completions:
            return
        deadline = self._timers.next_deadline()
        clock = self.clock
        if not isinstance(clock, VirtualClock):
            delay_s = LONGEST_SLEEP_S if deadline is None else (deadline * NS_PER_MS - clock.now_ns()) / 1e9
            self._arrival.wait(min(max(delay_s, 0), LONGEST_SLEEP_S))
        elif clock.pinned:
            self._arrival.wait()
        elif deadline is not None:
            clock.move_to(deadline)
        else:
            raise LoopStalled(
                f"nothing is ready and no timer is pending, but the loop is held: {self.why_alive()}",
                remedy="release the hold, or hold with pins_time while a thread works",
            )
        self._arrival.clear()

    def _over(self, limit: int) -> LoopLimit:
        turn = (self._system or self._user or [None])[0]
        waiting = f"; next is {turn_name(*self._timers.unwrap(turn))}" if turn else ""
        return LoopLimit(
            f"the loop was still busy after its limit of {limit} turns{waiting}",
            remedy="look for a turn that posts itself, or raise the limit",
        )
