"""The capability `sys/loop@v1`: watches, timers, and POLL, the one place where a guest waits.

`LoopCapability` never blocks. A POLL with nothing to report stays pending; the driver of the stream waits until
`fileno` is readable or `wake_at` has come, and resumes it. An empty answer is given only for a timeout or an
interruption: a wake-up that turns out to be nothing is not the guest's business.

Ready watches and due timers share an answer half and half when both have more than fits; where the half is not a whole
number they take turns. GuestTimers keep the order of their deadlines, watches take turns among themselves.

`ReadySet` finds ready watches at a cost that follows the ready ones and not the idle ones. Every watched descriptor is
registered once with epoll, edge-triggered, for the union of what its watches ask for. An edge makes those watches
*candidates*. Before a candidate is reported, poll(2) asks the kernel whether it is true right now; if it is not, the
candidate is dropped until the next edge. Reported ones go to the end of the line, which is both the level-triggered
promise (still true: reported again) and the fairness promise (the others come first).

Level-triggered epoll looks simpler and was left out for two reasons. It always reports hangup and error, asked for or
not, so a watch for readable on a dead pipe would wake the loop for ever; as an edge this is one wake-up. And to set the
more-flag truthfully one has to look one entry further than is reported, which would send that entry to the back of the
kernel's own queue unreported: with single-event polls every second descriptor would starve.

A new watch starts as a candidate, so a condition that is already true needs no edge. That also covers regular files,
which epoll refuses and poll(2) calls always ready: they stay candidates for ever.

The reasons are in docs/decisions/guests.md.
"""

from __future__ import annotations

import errno
import select
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import ClassVar, cast

from mainspring.guests.errors import NeedsLinux, RequestRefused
from mainspring.guests.handles import HandleTable
from mainspring.guests.protocol import operations as ops
from mainspring.guests.protocol.operations import Op, Readiness
from mainspring.guests.protocol.stream import GuestCapability
from mainspring.loop import Clock, TimerEntry, TimerWheel

MAX_WATCHES = 65536  # per loop; a bound on memory, far above what descriptors usually allow
MAX_TIMERS = 65536

_MS = 1_000_000

# The kernel's numbers, the same for epoll and poll(2). Written out, so that other systems can import this module.
_IN, _OUT, _ERR, _HUP, _RDHUP, _EDGES = 0x1, 0x4, 0x8, 0x10, 0x2000, 1 << 31
_KERNEL_BITS = {
    int(Readiness.READABLE): _IN,
    int(Readiness.WRITABLE): _OUT,
    int(Readiness.HUP): _HUP | _RDHUP,  # an orderly close by the peer is a hangup too
    int(Readiness.ERROR): _ERR,
}
_ALL = 0xF
_EDGES_AT_ONCE = 1024


class LoopCapability(GuestCapability):
    """One open loop."""

    trace = "sys.loop"

    def __init__(self, clock: Clock, handles: HandleTable) -> None:
        self._clock = clock
        self._handles = handles
        self._ready = ReadySet()
        self._handles.join(self._ready.forget)
        self._timers = GuestTimers()
        self._pending: tuple[int, int | None] | None = None  # most events, and until when; None waits for ever
        self._interrupted = False
        self.polls: int = 0  # requests to wait, so far
        self._timers_first = False  # whose turn it is to get the odd place

    # --- requests ---

    def answer(self, op: int, rid: int, payload: bytes, room: int) -> bytes | None:
        carry_out = self.operations.get(op)
        if carry_out is None:
            raise RequestRefused("unknown op")
        layout = ops.LAYOUTS[Op(op)]
        if len(payload) != layout.size:
            raise RequestRefused(f"bad {Op(op).name} payload")
        carry_out(self, *layout.unpack(payload))
        return b"" if self._pending is None else self.resume(room)

    def _watch(self, handle: int, events: int, ident: int, flags: int) -> None:
        if flags:
            raise RequestRefused("flags must be 0")
        descriptor = self._handles.watchable(handle)
        if not ident or not events or ident in self._ready or descriptor is None or len(self._ready) >= MAX_WATCHES:
            raise RequestRefused("watch failed")
        try:
            self._ready.add(ident, handle, descriptor, events)
        except OSError as error:  # the kernel's own limits, or an epoll that would watch itself
            raise RequestRefused("watch failed") from error

    def _unwatch(self, ident: int) -> None:
        if not self._ready.remove(ident):
            raise RequestRefused("unknown watch_id")

    def _arm(self, ident: int, due: int, interval: int, flags: int) -> None:
        full = len(self._timers) >= MAX_TIMERS and ident not in self._timers
        if not ident or flags & ~ops.RELATIVE or full:
            raise RequestRefused("timer arm failed")
        self._timers.arm(ident, due + self._clock.now_ns() if flags else due, interval)

    def _cancel(self, ident: int) -> None:
        if not self._timers.cancel(ident):
            raise RequestRefused("unknown timer_id")

    def _poll(self, max_events: int, timeout_ms: int) -> None:
        if not max_events:
            raise RequestRefused("max_events must be >= 1")
        deadline = None if timeout_ms == ops.FOREVER else self._clock.now_ns() + timeout_ms * _MS
        self.polls += 1
        self._pending = max_events, deadline
        self._interrupted = False

    operations: ClassVar[dict[int, Callable[..., None]]] = {
        Op.WATCH: _watch,
        Op.UNWATCH: _unwatch,
        Op.TIMER_ARM: _arm,
        Op.TIMER_CANCEL: _cancel,
        Op.POLL: _poll,
    }

    # --- waiting ---

    def fileno(self) -> int:
        """Readable when a pending POLL may have something to report."""
        return self._ready.fileno()

    def wake_at(self) -> int | None:
        """The monotonic instant at which a pending POLL must be resumed at the latest; None: only readiness ends it."""
        due = self._timers.next_deadline()
        deadline = None if self._pending is None else self._pending[1]
        return min((each for each in (due, deadline) if each is not None), default=None)

    def resume(self, room: int) -> bytes | None:
        """The payload that answers the pending POLL, or None to go on waiting."""
        assert self._pending is not None
        now, (max_events, deadline) = self._clock.now_ns(), self._pending
        most = min(max_events, ops.MAX_EVENTS, (room - ops.POLL_OVERHEAD) // ops.EVENT.size)
        self._ready.refresh()
        timers = self._timers.take((most + self._timers_first) // 2, now)
        watches, more = self._ready.take(most - len(timers))
        timers += self._timers.take(most - len(timers) - len(watches), now)
        if not timers and not watches:
            expired = deadline is not None and now >= deadline
            if not expired and not self._interrupted:
                return None
        more = more or self._timers.has_due(now)
        self._timers.settle(timers, now)
        if most % 2:
            self._timers_first = not self._timers_first
        self._pending = None
        return ops.encode_poll(_entries(watches, timers, now), len(watches) + len(timers), more)

    def interrupt(self) -> None:
        """Lets the next `resume` give what there is."""
        self._interrupted = True

    def close(self) -> None:
        self._handles.leave(self._ready.forget)
        self._ready.close()


def _entries(watches: list[tuple[HandleWatch, int]], timers: list[TimerEntry], now: int) -> list[bytes]:
    pack = ops.EVENT.pack
    ready = [pack(ops.READY, bits, watch.handle, 0, watch.id, 0) for watch, bits in watches]
    return ready + [pack(ops.TIMER, 0, 0, 0, due.id, now) for due in timers]


# --- watches ---


def require_epoll() -> None:
    """Raises `NeedsLinux` where descriptors cannot be waited for."""
    if not hasattr(select, "epoll"):
        raise NeedsLinux("sys/loop needs epoll", remedy="run guests and the loop socket on Linux")


def _from_kernel(mask: int) -> int:
    found = 0
    if mask & _IN:
        found = 0x1
    if mask & _OUT:
        found |= 0x2
    if mask & (_HUP | _RDHUP):
        found |= 0x4
    if mask & _ERR:
        found |= 0x8
    return found


@dataclass(slots=True, eq=False)
class _Source:
    """One watched descriptor of one loop, with everything that watches it."""

    descriptor: int
    watches: dict[int, HandleWatch] = field(default_factory=dict)
    votes: dict[int, int] = field(default_factory=lambda: dict.fromkeys(_KERNEL_BITS, 0))  # watches for each bit
    asked: int = 0  # what epoll and poll(2) are asked for
    registered: bool = False  # epoll takes it

    def vote(self, events: int, step: int) -> int:
        """Counts a watch in or out; gives the kernel's mask for the union of what is left."""
        mask = 0
        for bit, kernel_bits in _KERNEL_BITS.items():
            if events & bit:
                self.votes[bit] += step
            if self.votes[bit]:
                mask |= kernel_bits
        return mask


@dataclass(slots=True, eq=False)
class HandleWatch:
    """Interest of a guest in one handle."""

    id: int
    handle: int
    events: int
    source: _Source


class ReadySet:
    """The watches of one loop, and which of them are ready."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._sources: dict[int, _Source] = {}  # by descriptor
        self._watches: dict[int, HandleWatch] = {}
        self._candidates: OrderedDict[int, HandleWatch] = OrderedDict()

    def __len__(self) -> int:
        return len(self._watches)

    def __contains__(self, ident: int) -> bool:
        return ident in self._watches

    def fileno(self) -> int:
        """Becomes readable when `refresh` has something to learn."""
        return self._epoll.fileno()

    def add(self, ident: int, handle: int, descriptor: int, events: int) -> None:
        """Watches a descriptor. Raises OSError when the kernel cannot; the set is then as it was."""
        events &= _ALL  # unknown bits are accepted and mean nothing
        source = self._sources.get(descriptor) or _Source(descriptor)
        try:
            self._ask(source, source.vote(events, +1))
        except OSError:
            source.vote(events, -1)
            raise
        self._sources[descriptor] = source
        watch = HandleWatch(ident, handle, events, source)
        source.watches[ident] = self._watches[ident] = self._candidates[ident] = watch

    def remove(self, ident: int) -> bool:
        """Whether there was such a watch."""
        watch = self._watches.pop(ident, None)
        if watch is None:
            return False
        self._candidates.pop(ident, None)
        source = watch.source
        del source.watches[ident]
        asked = source.vote(watch.events, -1)
        if source.watches:
            self._ask(source, asked)
        else:
            self._drop(source)
        return True

    def forget(self, descriptor: int) -> None:
        """Removes every watch of a descriptor that is about to be closed."""
        source = self._sources.get(descriptor)
        if source is not None:
            for ident in source.watches:
                del self._watches[ident]
                self._candidates.pop(ident, None)
            self._drop(source)

    def refresh(self) -> None:
        """Takes the edges the kernel has collected."""
        if not self._sources:
            return
        while True:
            edges = self._epoll.poll(0, _EDGES_AT_ONCE)
            for descriptor, mask in edges:
                source = self._sources.get(descriptor)
                if source is not None:
                    bits = _from_kernel(mask)
                    for ident, watch in source.watches.items():
                        if watch.events & bits:
                            self._candidates[ident] = watch
            if len(edges) < _EDGES_AT_ONCE:
                return

    def take(self, most: int) -> tuple[list[tuple[HandleWatch, int]], bool]:
        """Up to `most` ready watches with their bits, in turn; and whether another one is ready as well."""
        line, found = self._candidates, list[tuple[HandleWatch, int]]()
        unseen, step = len(line), most + 1
        while unseen:
            batch = list(islice(line.values(), min(step, unseen)))
            now = _ask_kernel(list({watch.source for watch in batch}))
            for watch in batch:
                bits = now.get(watch.source.descriptor, 0) & watch.events
                if not bits:
                    del line[watch.id]
                elif len(found) < most:
                    line.move_to_end(watch.id)
                    found.append((watch, bits))
                else:
                    return found, True
            unseen -= len(batch)
            step *= 2
        return found, False

    def close(self) -> None:
        """Gives the kernel's side back. The descriptors belong to the handle table."""
        self._epoll.close()
        self._sources.clear()
        self._watches.clear()
        self._candidates.clear()

    def _ask(self, source: _Source, asked: int) -> None:
        if source.registered:
            if asked != source.asked:
                self._epoll.modify(source.descriptor, asked | _EDGES)
        elif not source.watches:
            try:
                self._epoll.register(source.descriptor, asked | _EDGES)
                source.registered = True
            except PermissionError:
                pass  # a regular file or the like: always ready, as poll(2) will say
        source.asked = asked

    def _drop(self, source: _Source) -> None:
        if source.registered:
            # Closing would not be enough: epoll keeps an entry while any copy of the descriptor is open.
            self._epoll.unregister(source.descriptor)
        del self._sources[source.descriptor]


def _ask_kernel(sources: list[_Source]) -> dict[int, int]:
    """What is true of descriptors right now."""
    question = select.poll()
    for source in sources:
        question.register(source.descriptor, source.asked)
    try:
        return {descriptor: _from_kernel(mask) for descriptor, mask in question.poll(0)}
    except OSError as error:
        if error.errno != errno.EINVAL or len(sources) == 1:
            raise
        # More than RLIMIT_NOFILE, which may be lowered below what is open: poll(2) takes them in smaller portions.
        half = len(sources) // 2
        return _ask_kernel(sources[:half]) | _ask_kernel(sources[half:])


# --- timers ---


class GuestTimers:
    """One-shot and repeating timers of a guest: a table of ids over a timer wheel that counts in nanoseconds.

    They are delivered by exact deadline, equal ones in the order they were armed. A repeating timer keeps to its grid:
    the next deadline is the first multiple of the interval, counted from the first deadline, that is still to come.
    Ticks missed while the guest did not poll are one event, so a pause never becomes a burst.
    """

    def __init__(self) -> None:
        self._wheel = TimerWheel()
        self._intervals: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._intervals)

    def __contains__(self, ident: int) -> bool:
        return ident in self._intervals

    def arm(self, ident: int, deadline: int, interval: int) -> None:
        """Arms a timer; one with the same id is replaced."""
        if ident in self._intervals:
            self._wheel.cancel(ident)
        self._intervals[ident] = interval
        self._schedule(ident, deadline)

    def cancel(self, ident: int) -> bool:
        """Whether there was such a timer."""
        if self._intervals.pop(ident, None) is None:
            return False
        self._wheel.cancel(ident)
        return True

    def next_deadline(self) -> int | None:
        return self._wheel.next_deadline()

    def has_due(self, now: int) -> bool:
        return self._wheel.has_ready(now)

    def take(self, most: int, now: int) -> list[TimerEntry]:
        """Up to `most` due timers, which are no longer armed: `settle` them when the answer is complete."""
        due: list[TimerEntry] = []
        while len(due) < most and (entry := self._wheel.pop_ready(now)) is not None:
            due.append(entry)
        return due

    def settle(self, delivered: list[TimerEntry], now: int) -> None:
        """Forgets delivered one-shot timers, arms repeating ones again: once per answer, however short the interval."""
        for entry in delivered:
            ident = cast(int, entry.id)
            interval = self._intervals[ident]
            if interval:
                missed = (now - entry.deadline) // interval
                self._schedule(ident, entry.deadline + (missed + 1) * interval)
            else:
                del self._intervals[ident]

    def _schedule(self, ident: int, deadline: int) -> None:
        self._wheel.schedule(TimerEntry(ident, min(deadline, ops.MAX_U64), None, "guest"))
