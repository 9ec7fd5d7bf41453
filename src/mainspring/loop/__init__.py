"""The loop: one scheduler for messages, timers and what other threads finish, and the asyncio event loop around it.

- `clock`: where time comes from, real or virtual; `pause`
- `loop`: lanes, turns, timers, holds and counters of one loop
- `timer_wheel`: many deadlines, cheap to set and cheap to cancel
- `asyncio_host`: an asyncio event loop that drives a loop
- `virtual_time`: asyncio programs under virtual time
- `threads`: threads for the plain functions of a program
- `watchdog`: says who blocks the loop's thread, while it is blocked
- `futures_and_tasks`: futures that may be done already, tasks in the background
- `errors`: what can go wrong with the loop itself
"""

from mainspring.loop.asyncio_host import new_event_loop, run
from mainspring.loop.clock import Clock, MonotonicClock, VirtualClock, pause
from mainspring.loop.errors import ClockError, DuplicateTimer, LoopBusy, LoopLimit, LoopStalled
from mainspring.loop.futures_and_tasks import BackgroundTasks, reject, resolve, wake
from mainspring.loop.loop import Counters, FailedTurn, Hold, Lane, Lanes, Loop, Turn, turn_name
from mainspring.loop.threads import HandlerThreads, blocking_verb, runs_in_thread, with_blocking_verbs
from mainspring.loop.timer_wheel import TimerEntry, TimerWheel
from mainspring.loop.virtual_time import VirtualEventLoop, clock_to_pin, run_virtual, time_stands_still
from mainspring.loop.watchdog import Blocked, BlockedTotal, Watchdog, identifies_work

__all__ = [
    "BackgroundTasks",
    "Blocked",
    "BlockedTotal",
    "Clock",
    "ClockError",
    "Counters",
    "DuplicateTimer",
    "FailedTurn",
    "HandlerThreads",
    "Hold",
    "Lane",
    "Lanes",
    "Loop",
    "LoopBusy",
    "LoopLimit",
    "LoopStalled",
    "MonotonicClock",
    "TimerEntry",
    "TimerWheel",
    "Turn",
    "VirtualClock",
    "VirtualEventLoop",
    "Watchdog",
    "blocking_verb",
    "clock_to_pin",
    "identifies_work",
    "new_event_loop",
    "pause",
    "reject",
    "resolve",
    "run",
    "run_virtual",
    "runs_in_thread",
    "time_stands_still",
    "turn_name",
    "wake",
    "with_blocking_verbs",
]
