"""The loop: one scheduler for messages, timers and what other threads finish, and the asyncio event loop around it.

- `clock`: where time comes from, real or virtual; `pause`
- `loop`: lanes, turns, timers, holds and counters of one loop
- `timer_wheel`: many deadlines, cheap to set and cheap to cancel
- `deadlines`: judged when what has arrived is read, also after a stall
- `asyncio_host`: an asyncio event loop that drives a loop
- `virtual_time`: asyncio programs under virtual time
- `threads`: threads for the plain functions of a program
- `watchdog`: says who blocks the loop's thread, while it is blocked
- `futures_and_tasks`: futures that may be done already, tasks in the background
- `errors`: what can go wrong with the loop itself
"""

from mainspring.lazy_imports import offer
from mainspring.loop.asyncio_host import new_event_loop as new_event_loop
from mainspring.loop.asyncio_host import run as run
from mainspring.loop.clock import Clock as Clock
from mainspring.loop.clock import MonotonicClock as MonotonicClock
from mainspring.loop.clock import VirtualClock as VirtualClock
from mainspring.loop.clock import pause as pause
from mainspring.loop.deadlines import LATE_MS as LATE_MS
from mainspring.loop.deadlines import LateCalls as LateCalls
from mainspring.loop.deadlines import time_limit as time_limit
from mainspring.loop.errors import ClockError as ClockError
from mainspring.loop.errors import DuplicateTimer as DuplicateTimer
from mainspring.loop.errors import HandlerTimeout as HandlerTimeout
from mainspring.loop.errors import LoopBusy as LoopBusy
from mainspring.loop.errors import LoopLimit as LoopLimit
from mainspring.loop.errors import LoopStalled as LoopStalled
from mainspring.loop.futures_and_tasks import BackgroundTasks as BackgroundTasks
from mainspring.loop.futures_and_tasks import reject as reject
from mainspring.loop.futures_and_tasks import resolve as resolve
from mainspring.loop.futures_and_tasks import result_elsewhere as result_elsewhere
from mainspring.loop.futures_and_tasks import wake as wake
from mainspring.loop.loop import Counters as Counters
from mainspring.loop.loop import FailedTurn as FailedTurn
from mainspring.loop.loop import Hold as Hold
from mainspring.loop.loop import Lane as Lane
from mainspring.loop.loop import Lanes as Lanes
from mainspring.loop.loop import Loop as Loop
from mainspring.loop.loop import Turn as Turn
from mainspring.loop.loop import turn_name as turn_name
from mainspring.loop.threads import HandlerThreads as HandlerThreads
from mainspring.loop.threads import blocking_verb as blocking_verb
from mainspring.loop.threads import current_threads as current_threads
from mainspring.loop.threads import in_time as in_time
from mainspring.loop.threads import runs_in_thread as runs_in_thread
from mainspring.loop.threads import with_blocking_verbs as with_blocking_verbs
from mainspring.loop.timer_wheel import TimerEntry as TimerEntry
from mainspring.loop.timer_wheel import TimerWheel as TimerWheel
from mainspring.loop.virtual_time import VirtualEventLoop as VirtualEventLoop
from mainspring.loop.virtual_time import clock_to_pin as clock_to_pin
from mainspring.loop.virtual_time import run_virtual as run_virtual
from mainspring.loop.virtual_time import time_stands_still as time_stands_still
from mainspring.loop.watchdog import Blocked as Blocked
from mainspring.loop.watchdog import BlockedTotal as BlockedTotal
from mainspring.loop.watchdog import Watchdog as Watchdog
from mainspring.loop.watchdog import identifies_work as identifies_work

offer(globals())
