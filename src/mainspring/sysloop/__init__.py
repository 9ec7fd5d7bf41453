"""`sys/loop@v1`: one place to wait, for guests that speak ZCL1.

A `Guest` lives in this process. Guests in other processes use `connect` and the node's loop socket; both wait for
readiness of descriptors (WATCH) and for timers (TIMER_ARM) with one call (POLL).
"""

from mainspring.sysloop.client import GuestClient, connect, open_loop
from mainspring.sysloop.codes import Code
from mainspring.sysloop.errors import NeedsLinux, NotAttachable, RequestRefused, StreamClosed
from mainspring.sysloop.guest import Guest
from mainspring.sysloop.ops import READY, TIMER, Event, Op, Poll, Readiness

__all__ = [
    "READY",
    "TIMER",
    "Code",
    "Event",
    "Guest",
    "GuestClient",
    "NeedsLinux",
    "NotAttachable",
    "Op",
    "Poll",
    "Readiness",
    "RequestRefused",
    "StreamClosed",
    "connect",
    "open_loop",
]
