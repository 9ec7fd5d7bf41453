"""The capability `sys/loop@v1`: watches, timers, and POLL, the one place where a guest waits.

It never blocks itself. A POLL with nothing to report is left pending; whoever drives the stream waits until `fileno` is
readable or `wake_at` has come, and resumes it. An empty answer is given only for a timeout or an interruption: a
wake-up that turns out to be nothing is not the guest's business.

Ready watches and due timers share an answer half and half when both have more than fits; where the half is not a whole
number they take turns. Timers keep the order of their deadlines, watches take turns among themselves.
"""

from __future__ import annotations

from typing import NamedTuple

from mainspring.guests.capabilities.readiness import ReadySet, Watch
from mainspring.guests.capabilities.timers import Due, Timers
from mainspring.guests.errors import RequestRefused
from mainspring.guests.handles import HandleTable
from mainspring.guests.protocol import operations as ops
from mainspring.guests.protocol.operations import Op
from mainspring.loop import Clock

MAX_WATCHES = 65536  # per loop; a bound on memory, far above what descriptors usually allow
MAX_TIMERS = 65536

_MS = 1_000_000


class _Pending(NamedTuple):
    max_events: int
    deadline: int | None  # None waits for ever


class LoopCapability:
    """One open loop."""

    trace = "sys.loop"

    def __init__(self, clock: Clock, handles: HandleTable) -> None:
        self._clock = clock
        self._handles = handles
        self._ready = ReadySet()
        self._handles.join(self)
        self._timers = Timers()
        self._pending: _Pending | None = None
        self._interrupted = False
        self.polls: int = 0  # requests to wait, so far
        self._timers_first = False  # whose turn it is to get the odd place

    # --- requests ---

    def answer(self, op: int, rid: int, payload: bytes, room: int) -> bytes | None:
        if op == Op.POLL:
            return self._poll(payload, room)
        if op == Op.WATCH:
            self._watch(payload)
        elif op == Op.UNWATCH:
            self._unwatch(payload)
        elif op == Op.TIMER_ARM:
            self._arm(payload)
        elif op == Op.TIMER_CANCEL:
            self._cancel(payload)
        else:
            raise RequestRefused("unknown op")
        return b""

    def _watch(self, payload: bytes) -> None:
        if len(payload) != ops.WATCH.size:
            raise RequestRefused("bad WATCH payload")
        handle, events, ident, flags = ops.WATCH.unpack(payload)
        if flags:
            raise RequestRefused("flags must be 0")
        descriptor = self._handles.watchable(handle)
        if not ident or not events or ident in self._ready or descriptor is None or len(self._ready) >= MAX_WATCHES:
            raise RequestRefused("watch failed")
        try:
            self._ready.add(ident, handle, descriptor, events)
        except OSError as error:  # the kernel's own limits, or an epoll that would watch itself
            raise RequestRefused("watch failed") from error

    def _unwatch(self, payload: bytes) -> None:
        if len(payload) != ops.ID.size:
            raise RequestRefused("bad UNWATCH payload")
        if not self._ready.remove(ops.ID.unpack(payload)[0]):
            raise RequestRefused("unknown watch_id")

    def _arm(self, payload: bytes) -> None:
        if len(payload) != ops.TIMER_ARM.size:
            raise RequestRefused("bad TIMER_ARM payload")
        ident, due, interval, flags = ops.TIMER_ARM.unpack(payload)
        full = len(self._timers) >= MAX_TIMERS and ident not in self._timers
        if not ident or flags & ~ops.RELATIVE or full:
            raise RequestRefused("timer arm failed")
        self._timers.arm(ident, due + self._clock.now_ns() if flags else due, interval)

    def _cancel(self, payload: bytes) -> None:
        if len(payload) != ops.ID.size:
            raise RequestRefused("bad TIMER_CANCEL payload")
        if not self._timers.cancel(ops.ID.unpack(payload)[0]):
            raise RequestRefused("unknown timer_id")

    def _poll(self, payload: bytes, room: int) -> bytes | None:
        if len(payload) != ops.POLL.size:
            raise RequestRefused("bad POLL payload")
        max_events, timeout_ms = ops.POLL.unpack(payload)
        if not max_events:
            raise RequestRefused("max_events must be >= 1")
        now = self._clock.now_ns()
        deadline = None if timeout_ms == ops.FOREVER else now + timeout_ms * _MS
        self.polls += 1
        self._pending = _Pending(max_events, deadline)
        self._interrupted = False
        return self._collect(now, room)

    # --- waiting ---

    def fileno(self) -> int:
        """Readable when a pending POLL may have something to report."""
        return self._ready.fileno()

    def wake_at(self) -> int | None:
        """The monotonic instant at which a pending POLL must be resumed at the latest; None: only readiness ends it."""
        pending = self._pending
        due = self._timers.next_deadline()
        if pending is None or pending.deadline is None:
            return due
        return pending.deadline if due is None else min(due, pending.deadline)

    def resume(self, room: int) -> bytes | None:
        return self._collect(self._clock.now_ns(), room)

    def interrupt(self) -> None:
        self._interrupted = True

    def _collect(self, now: int, room: int) -> bytes | None:
        """The payload that answers the pending POLL, or None to go on waiting."""
        pending = self._pending
        assert pending is not None
        most = min(pending.max_events, ops.MAX_EVENTS, (room - ops.POLL_OVERHEAD) // ops.EVENT.size)
        self._ready.refresh()
        timers = self._timers.take((most + self._timers_first) // 2, now)
        watches, more = self._ready.take(most - len(timers))
        timers += self._timers.take(most - len(timers) - len(watches), now)
        if not timers and not watches:
            expired = pending.deadline is not None and now >= pending.deadline
            if not expired and not self._interrupted:
                return None
        more = more or self._timers.has_due(now)
        self._timers.settle(timers, now)
        if most % 2:
            self._timers_first = not self._timers_first
        self._pending = None
        return ops.encode_poll(_entries(watches, timers, now), len(watches) + len(timers), more)

    # --- handles ---

    def forget(self, descriptor: int) -> None:
        """A handle ends: its watches go with it."""
        self._ready.forget(descriptor)

    def close(self) -> None:
        self._handles.leave(self)
        self._ready.close()


def _entries(watches: list[tuple[Watch, int]], timers: list[Due], now: int) -> list[bytes]:
    pack = ops.EVENT.pack
    ready = [pack(ops.READY, bits, watch.handle, 0, watch.id, 0) for watch, bits in watches]
    return ready + [pack(ops.TIMER, 0, 0, 0, due.id, now) for due in timers]
