"""`sys/loop@v1`: one place to wait, for guests that speak ZCL1.

A `Guest` lives in this process. Guests in other processes use `connect` and the node's loop socket; both wait for
readiness of descriptors (WATCH) and for timers (TIMER_ARM) with one call (POLL).

Guests and their client are imported when first used: a node serves guests, but is none.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from mainspring.sysloop.codes import Code
from mainspring.sysloop.errors import NeedsLinux, NotAttachable, RequestRefused, StreamClosed
from mainspring.sysloop.ops import READY, TIMER, Event, Op, Poll, Readiness

if TYPE_CHECKING:
    from mainspring.sysloop.client import GuestClient as GuestClient
    from mainspring.sysloop.client import connect as connect
    from mainspring.sysloop.client import open_loop as open_loop
    from mainspring.sysloop.guest import Guest as Guest

_HOMES: Final = {
    "Guest": "mainspring.sysloop.guest",
    "GuestClient": "mainspring.sysloop.client",
    "connect": "mainspring.sysloop.client",
    "open_loop": "mainspring.sysloop.client",
}

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


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'mainspring.sysloop' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
