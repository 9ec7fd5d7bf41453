"""The loop: one scheduler for messages, timers and what other threads finish.

A slice is: due timers join the completions, by deadline; completions join the user lane; then turns are made, the
system lane always first, until the slice's budget is spent or nothing is ready. After a slice the host gets its turn.
`tick` is the smallest slice: the whole system lane, then one user turn.

Timers are looked at once per slice, so a timer with delay 0 fires at the next slice, never inside the turn that set it.
The budget counts system turns too: a flood of system work that feeds itself yields to the host like everything else
and goes on afterwards, still before any user turn.

A loop does not know who drives it. Bare, someone calls `tick`, `run_until_idle`, `advance` or `run_until_quiescent`.
Attached, an asyncio event loop does (`host.py`), and whatever arrives while the loop sleeps wakes it.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from mainspring.loop.asyncio_host import LONGEST_SLEEP_S, Host
from mainspring.loop.clock import NS_PER_MS, Clock, MonotonicClock, VirtualClock, span_ns
from mainspring.loop.counters import Counters, FailedTurn, SlowTurn, turn_name
from mainspring.loop.errors import ClockError, LoopBusy, LoopLimit, LoopStalled
from mainspring.loop.futures_and_tasks import reject, wake
from mainspring.loop.holds import Hold, Holds
from mainspring.loop.lanes import Lanes, Turn
from mainspring.loop.timers import Timers
from mainspring.loop.turns import Turns

_T = TypeVar("_T")

MAX_TURNS_PER_SLICE = 1024  # about a third of a millisecond of small turns: sockets do not notice the wait
SLOW_TURN_MS = 100  # a pause that people notice
TURN_LIMIT = 1_000_000  # far above any test's work, reached in about a second when something feeds itself


class Loop:
    """The scheduler. Everything but `complete` belongs to the thread that drives the loop.

    `on_error` is told of every turn that raised, `on_slow_turn` of every turn longer than `slow_turn_ms` (None: of
    none). Without hooks both go to the log `mainspring.loop`; nothing is swallowed and nothing stops the loop.
    """

    def __init__(
        self,
        clock: Clock | None = None,
        max_turns_per_slice: int = MAX_TURNS_PER_SLICE,
        slow_turn_ms: float | None = SLOW_TURN_MS,
        on_slow_turn: Callable[[SlowTurn], object] | None = None,
        on_error: Callable[[FailedTurn], object] | None = None,
    ) -> None:
        self.clock: Clock = MonotonicClock() if clock is None else clock
        self.max_turns_per_slice: int = max(1, max_turns_per_slice)
        self._lanes = Lanes()
        self._completions: deque[Turn] = deque()
        self._timers = Timers()
        self._holds = Holds(self._stir)
        self._turns = Turns(
            self._lanes,
            self.clock.now_ns,
            slow_turn_ms=slow_turn_ms,
            on_slow_turn=on_slow_turn,
            on_error=on_error,
            unwrap=self._timers.unwrap,
        )
        self._slices = 0
        self._host: Host | None = None
        self._asleep = False  # attached, with no slice running or on its way
        self._signalled = False  # another thread has already knocked
        self._arrival = threading.Event()  # wakes a bare driver that waits
        self._waiters: list[asyncio.Future[None]] = []
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

        A negative delay counts as 0. With `ref=False` the timer does not keep the loop alive. Returns the timer's id,
        for `cancel`.
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
        if self._asleep and self._wakes_after(deadline_ms):
            self._stir()
        return timer_id

    def cancel(self, timer_id: Hashable) -> bool:
        """Make sure that a timer's turn never runs. False when it already ran, was cancelled or never was."""
        cancelled = self._timers.cancel(timer_id)
        if cancelled and self._asleep and (self._waiters or (self._host is not None and self._host.shares_time)):
            self._stir()  # quiescence may be near, and virtual time must not jump to a deadline that is gone
        return cancelled

    # Liveness

    def hold(self, reason: str, *, pins_time: bool = False) -> Hold:
        """Keep the loop alive for a reason it cannot see: an open input, a request in flight, unwritten bytes.

        With `pins_time`, virtual time also stands still until the hold is released: for work in real threads.
        """
        clock = self.clock
        if not pins_time or not isinstance(clock, VirtualClock):
            return self._holds.hold(reason)
        clock.pin()
        return self._holds.hold(reason, clock.unpin)

    @property
    def alive(self) -> bool:
        """False when quiescent: nothing ready, no timer that counts, no hold."""
        return bool(self._ready or len(self._holds) or self._timers.keeping_alive)

    def why_alive(self) -> dict[str, int]:
        """What keeps the loop alive, counted by reason; empty when quiescent."""
        reasons = {
            "ready": len(self._lanes) + len(self._completions),
            "timers": self._timers.keeping_alive,
            **self._holds.reasons(),
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
            slow_turns=turns.slow,
            system_depth=len(lanes.system),
            user_depth=len(lanes.user),
            completions_waiting=len(self._completions),
            oldest_waiting_ms=lanes.waiting_ms(now_ms),
            timers_pending=len(self._timers),
            longest_turn_ns=turns.longest_ns,
            longest_turn=turns.longest,
            holds=len(self._holds),
        )

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
        self._host = Host(aio, self.clock, self._host_slice)
        self._asleep = True
        self._stir()

    def detach(self) -> None:
        """Stop being driven. What waits stays, for the next driver."""
        host, self._host = self._host, None
        self._asleep = False
        if host is not None:
            host.leave()
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

    def _running_host(self) -> Host | None:
        """Whoever drives this loop; a host that ended without saying so no longer does."""
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
        completions, push = self._completions, self._push_user
        now_ms = self.clock.now_ms()
        completions.extend(self._timers.take_ready(now_ms))
        for _ in range(len(completions)):
            push(completions.popleft())
        self._lanes.mark(now_ms)

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
