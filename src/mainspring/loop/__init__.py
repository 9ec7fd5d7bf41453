"""The loop: clocks, lanes, the timer wheel, and the scheduler that turns them."""

from mainspring.loop.asyncio_host import new_event_loop, run
from mainspring.loop.clock import Clock, MonotonicClock, VirtualClock
from mainspring.loop.counters import Counters, FailedTurn, SlowTurn, turn_name
from mainspring.loop.errors import ClockError, DuplicateTimer, LoopBusy, LoopLimit, LoopStalled
from mainspring.loop.futures_and_tasks import BackgroundTasks, reject, resolve, wake
from mainspring.loop.holds import Hold
from mainspring.loop.lanes import Lane, Lanes, Turn
from mainspring.loop.loop import Loop
from mainspring.loop.timer_wheel import TimerEntry, TimerWheel
from mainspring.loop.virtual_time import VirtualEventLoop, run_virtual

__all__ = [
    "BackgroundTasks",
    "Clock",
    "ClockError",
    "Counters",
    "DuplicateTimer",
    "FailedTurn",
    "Hold",
    "Lane",
    "Lanes",
    "Loop",
    "LoopBusy",
    "LoopLimit",
    "LoopStalled",
    "MonotonicClock",
    "SlowTurn",
    "TimerEntry",
    "TimerWheel",
    "Turn",
    "VirtualClock",
    "VirtualEventLoop",
    "new_event_loop",
    "reject",
    "resolve",
    "run",
    "run_virtual",
    "turn_name",
    "wake",
]
